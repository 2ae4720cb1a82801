#include "okv/base/metrics.h"

#include <stdatomic.h>
#include <stdlib.h>
#include <string.h>

#include "okv/base/status.h"

enum metric_kind { COUNTER, GAUGE, HISTOGRAM };
enum { BOUNDS = 24 };

struct okv_metric {
	struct okv_metric *next; /* owned: the registry's chain in order of creation */
	enum metric_kind kind;
	char *name, *labels, *help; /* owned */
	_Atomic int64_t value;	    /* for a histogram: the sum, in ns or plain */
	_Atomic int64_t bucket[BOUNDS + 1];
	double first_bound; /* each next one is twice as large */
	double unit;	    /* of the sum */
};

struct okv_metrics {
	struct okv_metric *first, *last; /* chain changes only while owners are created, on one thread */
};

struct okv_metrics *okv_metrics_create(void)
{
	return calloc(1, sizeof(struct okv_metrics));
}

static void metric_free(struct okv_metric *metric)
{
	free(metric->name);
	free(metric->labels);
	free(metric->help);
	free(metric);
}

void okv_metrics_destroy(struct okv_metrics *metrics)
{
	if (!metrics)
		return;
	for (struct okv_metric *metric = metrics->first, *next; metric; metric = next) {
		next = metric->next;
		metric_free(metric);
	}
	free(metrics);
}

static struct okv_metric *find(const struct okv_metrics *metrics, const char *name, const char *labels)
{
	for (struct okv_metric *metric = metrics->first; metric; metric = metric->next)
		if (strcmp(metric->name, name) == 0 && strcmp(metric->labels, labels) == 0)
			return metric;
	return NULL;
}

static struct okv_metric *create(struct okv_metrics *metrics, enum metric_kind kind, const char *name,
				 const char *labels, const char *help)
{
	struct okv_metric *metric = find(metrics, name, labels);

	if (metric)
		return metric;
	metric = calloc(1, sizeof(*metric));
	if (!metric)
		return NULL;
	metric->kind = kind;
	metric->name = strdup(name);
	metric->labels = strdup(labels);
	metric->help = strdup(help);
	if (!metric->name || !metric->labels || !metric->help) {
		metric_free(metric);
		return NULL;
	}
	if (metrics->last)
		metrics->last->next = metric;
	else
		metrics->first = metric;
	metrics->last = metric;
	return metric;
}

struct okv_metric *okv_counter(struct okv_metrics *metrics, const char *name, const char *labels, const char *help)
{
	return create(metrics, COUNTER, name, labels, help);
}

struct okv_metric *okv_gauge(struct okv_metrics *metrics, const char *name, const char *labels, const char *help)
{
	return create(metrics, GAUGE, name, labels, help);
}

static struct okv_metric *create_histogram(struct okv_metrics *metrics, const char *name, const char *labels,
					   const char *help, double first_bound, double unit)
{
	struct okv_metric *metric = create(metrics, HISTOGRAM, name, labels, help);

	if (metric) {
		metric->first_bound = first_bound;
		metric->unit = unit;
	}
	return metric;
}

struct okv_metric *okv_histogram(struct okv_metrics *metrics, const char *name, const char *labels, const char *help)
{
	return create_histogram(metrics, name, labels, help, 0x1p-17, 1e-9);
}

struct okv_metric *okv_histogram_of_ages(struct okv_metrics *metrics, const char *name, const char *labels,
					 const char *help)
{
	return create_histogram(metrics, name, labels, help, 0x1p-3, 1e-9);
}

struct okv_metric *okv_histogram_of_counts(struct okv_metrics *metrics, const char *name, const char *labels,
					   const char *help)
{
	return create_histogram(metrics, name, labels, help, 1, 1);
}

/* Relaxed is enough: a reader wants each value, not an order between values. */
void okv_metric_add(struct okv_metric *metric, int64_t amount)
{
	if (metric)
		atomic_fetch_add_explicit(&metric->value, amount, memory_order_relaxed);
}

void okv_metric_set(struct okv_metric *metric, int64_t value)
{
	if (metric)
		atomic_store_explicit(&metric->value, value, memory_order_relaxed);
}

int64_t okv_metric_value(const struct okv_metric *metric)
{
	return metric ? atomic_load_explicit(&metric->value, memory_order_relaxed) : 0;
}

static double bound_of(const struct okv_metric *histogram, int i)
{
	return histogram->first_bound * (double)(1ULL << i);
}

static void observe(struct okv_metric *histogram, uint64_t amount, double unit)
{
	int i = 0;

	if (!histogram)
		return;
	OKV_ASSERT(histogram->unit == unit);
	while (i < BOUNDS && (double)amount * unit > bound_of(histogram, i))
		i++;
	atomic_fetch_add_explicit(&histogram->bucket[i], 1, memory_order_relaxed);
	atomic_fetch_add_explicit(&histogram->value, (int64_t)amount, memory_order_relaxed);
}

void okv_metric_observe_ns(struct okv_metric *histogram, uint64_t duration_ns)
{
	observe(histogram, duration_ns, 1e-9);
}

void okv_metric_observe_count(struct okv_metric *histogram, uint64_t count)
{
	observe(histogram, count, 1);
}

static void render_histogram(const struct okv_metric *metric, struct okv_buf *text)
{
	const char *comma = metric->labels[0] ? "," : "";
	const char *open = metric->labels[0] ? "{" : "", *close = metric->labels[0] ? "}" : "";
	int64_t cumulative = 0;

	for (int i = 0; i <= BOUNDS; i++) {
		cumulative += atomic_load_explicit(&metric->bucket[i], memory_order_relaxed);
		okv_buf_print(text, "%s_bucket{%s%sle=\"", metric->name, metric->labels, comma);
		if (i < BOUNDS)
			okv_buf_print(text, "%.9g\"} %lld\n", bound_of(metric, i), (long long)cumulative);
		else
			okv_buf_print(text, "+Inf\"} %lld\n", (long long)cumulative);
	}
	okv_buf_print(text, "%s_sum%s%s%s %.9g\n", metric->name, open, metric->labels, close,
		      (double)okv_metric_value(metric) * metric->unit);
	okv_buf_print(text, "%s_count%s%s%s %lld\n", metric->name, open, metric->labels, close, (long long)cumulative);
}

static void render_samples(const struct okv_metric *metric, struct okv_buf *text)
{
	if (metric->kind == HISTOGRAM)
		render_histogram(metric, text);
	else if (metric->labels[0])
		okv_buf_print(text, "%s{%s} %lld\n", metric->name, metric->labels, (long long)okv_metric_value(metric));
	else
		okv_buf_print(text, "%s %lld\n", metric->name, (long long)okv_metric_value(metric));
}

static bool is_first_of_family(const struct okv_metrics *metrics, const struct okv_metric *metric)
{
	for (const struct okv_metric *at = metrics->first; at != metric; at = at->next)
		if (strcmp(at->name, metric->name) == 0)
			return false;
	return true;
}

void okv_metrics_render(const struct okv_metrics *metrics, struct okv_buf *text)
{
	static const char *const kind_names[] = {"counter", "gauge", "histogram"};

	for (const struct okv_metric *metric = metrics->first; metric; metric = metric->next) {
		if (!is_first_of_family(metrics, metric))
			continue;
		okv_buf_print(text, "# HELP %s %s\n# TYPE %s %s\n", metric->name, metric->help, metric->name,
			      kind_names[metric->kind]);
		/* The format wants all samples of a family together, whatever the order of creation. */
		for (const struct okv_metric *at = metric; at; at = at->next)
			if (strcmp(at->name, metric->name) == 0)
				render_samples(at, text);
	}
}
