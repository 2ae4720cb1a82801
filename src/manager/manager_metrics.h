/*
 * Manager metrics: what the local half of the manager counts. Counters rise where things happen; gauges of resources
 * are taken from the objects that own them (store, leases) when someone asks.
 */
#ifndef OKV_MANAGER_MANAGER_METRICS_H
#define OKV_MANAGER_MANAGER_METRICS_H

#include "okv/base/metrics.h"
#include "okv/store/store.h"

enum okv__tier { OKV__TIER_RAM, OKV__TIER_REMOTE, OKV__TIER_MISS, OKV__TIERS };
enum { OKV__CLASSES = 2, OKV__LEASE_PHASES = 4 };

struct okv__manager_metrics {
	/* From the store. */
	struct okv_metric *pool_used, *pool_capacity, *pool_largest_free, *pool_alloc_failures, *inflight;
	struct okv_metric *resident_blocks[OKV__CLASSES], *evictions_by_class[OKV__CLASSES], *resident_bytes;
	struct okv_metric *insertions, *evictions, *evictions_still_referenced, *evicted_bytes, *damaged;
	struct okv_metric *age[OKV_EVICTIONS];
	struct okv_metric *pinned_entries, *pinned_refs, *pinned_blocks, *pinned_bytes;
	/* From the leases. */
	struct okv_metric *reserved, *reserved_by_phase[OKV__LEASE_PHASES], *leases_by_phase[OKV__LEASE_PHASES];
	/* Where things happen. */
	struct okv_metric *sessions, *session_refusals, *session_errors;
	struct okv_metric *tier_requests[OKV__TIERS], *block_hits, *block_misses, *budget_bypasses;
	struct okv_metric *candidate_hits, *candidate_misses;
	struct okv_metric *save_bytes, *save_seconds, *save_rejections, *save_cancelled;
	struct okv_metric *load_bytes, *load_seconds, *load_failures;
	struct okv_metric *faults_armed;
};

void okv__manager_metrics_create(struct okv_metrics *registry, struct okv__manager_metrics *ret_metrics);

#endif
