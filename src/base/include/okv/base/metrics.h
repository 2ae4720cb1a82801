/*
 * Metrics: a registry instance (never a global) of counters, gauges and histograms, rendered as Prometheus text.
 *
 * A metric is created once, at its owner's creation, and updated with relaxed atomics from any thread; a label set is
 * fixed at creation ("" or `reason="bytes"`). Names carry the prefix "orbitkv_" and counters end in "_total": the
 * caller writes the whole name. A resource's gauge is raised and lowered by the object that owns the resource, so that
 * "drained" is a check. Creation returns NULL only without memory; every update takes NULL and does nothing.
 */
#ifndef OKV_BASE_METRICS_H
#define OKV_BASE_METRICS_H

#include <stdint.h>

#include "okv/base/buf.h"

struct okv_metrics;
struct okv_metric;

struct okv_metrics *okv_metrics_create(void);
void okv_metrics_destroy(struct okv_metrics *metrics);

/* `name`, `labels` and `help` are copied. The same name and labels a second time give the same metric. */
struct okv_metric *okv_counter(struct okv_metrics *metrics, const char *name, const char *labels, const char *help);
struct okv_metric *okv_gauge(struct okv_metrics *metrics, const char *name, const char *labels, const char *help);
/* Seconds that something takes: log-spaced bounds 2^-17 .. 2^6 s (7.6 us to 64 s). */
struct okv_metric *okv_histogram(struct okv_metrics *metrics, const char *name, const char *labels, const char *help);
/* Seconds that something stays: bounds 2^-3 .. 2^20 s (12 days). */
struct okv_metric *okv_histogram_of_ages(struct okv_metrics *metrics, const char *name, const char *labels,
					 const char *help);
/* Plain numbers: bounds 1, 2, 4 .. 2^23. */
struct okv_metric *okv_histogram_of_counts(struct okv_metrics *metrics, const char *name, const char *labels,
					   const char *help);

void okv_metric_add(struct okv_metric *metric, int64_t amount);
void okv_metric_set(struct okv_metric *metric, int64_t value);
int64_t okv_metric_value(const struct okv_metric *metric);
/* Of seconds, and of plain numbers. */
void okv_metric_observe_ns(struct okv_metric *histogram, uint64_t duration_ns);
void okv_metric_observe_count(struct okv_metric *histogram, uint64_t count);

/* Appends the text exposition format, version 0.0.4, metrics in order of creation. */
void okv_metrics_render(const struct okv_metrics *metrics, struct okv_buf *text);

#endif
