#include "manager_metrics.h"

void okv__manager_metrics_create(struct okv_metrics *registry, struct okv__manager_metrics *ret_metrics)
{
	static const char *const classes[] = {"class=\"reclaimable\"", "class=\"normal\""};
	static const char *const phases[] = {"phase=\"preparing\"", "phase=\"ready\"", "phase=\"restoring\"",
					     "phase=\"quarantined\""};
	static const char *const ends[] = {"reason=\"pressure\"", "reason=\"cleanup\""};
	static const char *const tiers[] = {"tier=\"ram\"", "tier=\"remote\"", "tier=\"miss\""};
	struct okv__manager_metrics m = {0};

#define COUNTER(field, name, help) m.field = okv_counter(registry, "orbitkv_" name, "", help)
#define GAUGE(field, name, help)   m.field = okv_gauge(registry, "orbitkv_" name, "", help)
	GAUGE(pool_used, "pool_used_bytes", "Pool memory taken by blocks, in whole 4 KiB pages.");
	GAUGE(pool_capacity, "pool_capacity_bytes", "Size of the pool.");
	GAUGE(pool_largest_free, "pool_largest_free_bytes", "Longest free piece of the pool.");
	COUNTER(pool_alloc_failures, "pool_alloc_failures_total", "Blocks for which the pool had no space.");
	GAUGE(inflight, "inflight_bytes", "Bytes of blocks that are being written and not visible yet.");
	GAUGE(resident_bytes, "cache_resident_bytes", "Bytes of visible blocks.");
	COUNTER(insertions, "cache_block_insertions_total", "Blocks that became visible.");
	COUNTER(evictions, "cache_block_evictions_total", "Blocks evicted.");
	COUNTER(evictions_still_referenced, "cache_block_evictions_still_referenced_total",
		"Pinned blocks that an eviction or a cleanup passed over.");
	COUNTER(evicted_bytes, "cache_eviction_reclaimed_bytes_total", "Pool memory that evictions gave back.");
	COUNTER(damaged, "cache_blocks_damaged_total", "Blocks taken out of service since their bytes were damaged.");
	GAUGE(pinned_entries, "pinned_for_load_entries", "Leases that pin blocks.");
	GAUGE(pinned_refs, "pinned_for_load_refs", "Pins held by leases.");
	GAUGE(pinned_blocks, "pinned_for_load_unique_blocks", "Blocks with at least one pin.");
	GAUGE(pinned_bytes, "pinned_for_load_unique_bytes", "Bytes of blocks with at least one pin.");
	GAUGE(reserved, "query_reserved_bytes", "Bytes that leases hold or are preparing to hold.");
	GAUGE(sessions, "sessions", "Engines attached.");
	COUNTER(session_refusals, "session_refusals_total", "Engines that were not let in.");
	COUNTER(session_errors, "session_protocol_errors_total",
		"Sessions ended because the engine broke the protocol.");
	COUNTER(block_hits, "cache_block_hits_total", "Blocks asked for that a prepare could give.");
	COUNTER(block_misses, "cache_block_misses_total", "Blocks asked for that it could not.");
	COUNTER(candidate_hits, "cache_candidate_hits_total", "Blocks asked for that a query found here.");
	COUNTER(candidate_misses, "cache_candidate_misses_total", "Blocks asked for that a query did not find here.");
	COUNTER(budget_bypasses, "query_budget_bypasses_total", "Prepares cut short by the byte budget.");
	COUNTER(save_bytes, "save_bytes_total", "Bytes copied from engines into the pool.");
	COUNTER(save_rejections, "save_rejections_total", "Publishes refused as malformed or under a wrong hash.");
	COUNTER(save_cancelled, "save_cancelled_blocks_total",
		"Blocks dropped since their engine left during the copy.");
	COUNTER(load_bytes, "load_bytes_total", "Bytes granted to engines for reading.");
	COUNTER(load_failures, "load_failures_total", "Blocks that an engine reported as damaged.");
	m.save_seconds = okv_histogram(registry, "orbitkv_save_duration_seconds", "", "From publish to its answer.");
	m.load_seconds = okv_histogram(registry, "orbitkv_load_duration_seconds", "", "From grant to release.");
	GAUGE(faults_armed, "fault_points_armed", "Fault points armed in this manager.");
#undef COUNTER
#undef GAUGE
	for (int i = 0; i < OKV__CLASSES; i++) {
		m.resident_blocks[i] =
			okv_gauge(registry, "orbitkv_cache_resident_blocks", classes[i], "Visible blocks by class.");
		m.evictions_by_class[i] = okv_counter(registry, "orbitkv_cache_block_evictions_by_class_total",
						      classes[i], "Blocks evicted by class.");
	}
	for (int i = 0; i < OKV_EVICTIONS; i++)
		m.age[i] = okv_histogram_of_ages(registry, "orbitkv_cache_residence_duration_seconds", ends[i],
						 "From a block's insertion to its eviction.");
	for (int i = 0; i < OKV__LEASE_PHASES; i++) {
		m.reserved_by_phase[i] = okv_gauge(registry, "orbitkv_query_reserved_bytes_by_phase", phases[i],
						   "Bytes that leases hold, by what they are in.");
		m.leases_by_phase[i] = okv_gauge(registry, "orbitkv_leases", phases[i], "Leases, by what they are in.");
	}
	for (int i = 0; i < OKV__TIERS; i++)
		m.tier_requests[i] = okv_counter(registry, "orbitkv_cache_tier_block_requests_total", tiers[i],
						 "Blocks asked for, by where they were found.");
	*ret_metrics = m;
}
