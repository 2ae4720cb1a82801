/*
 * Arena: the memory behind the pages. The pages themselves lie in a sealed shared region, each in an extent rounded up
 * to 4 KiB, so that the manager can read them and the client can write them; the rotated planes beside them are
 * private.
 */
#ifndef OKV_ENGINE_ARENA_H
#define OKV_ENGINE_ARENA_H

#include "okv/base/region.h"
#include "okv/model/graph.h"

struct okv__arena {
	struct okv_region region;
	uint8_t *rotated; /* owned mapping: page_count * rotated_stride */
	size_t extent_bytes, rotated_stride, page_bytes, rotated_bytes;
	uint32_t page_count, resident_count; /* leading pages made resident ahead of their use */
};

/* Makes as many pages as fit in `bytes`. */
OKV_MUST_CHECK enum okv_status okv__arena_init(struct okv__arena *arena, const struct okv_kv_layout *layout,
					       uint64_t bytes, struct okv_reason *reason);
/* Makes the first `page_count` pages resident, as far as they are not. */
OKV_MUST_CHECK enum okv_status okv__arena_populate(struct okv__arena *arena, uint32_t page_count,
						   struct okv_reason *reason);
void okv__arena_done(struct okv__arena *arena);

struct okv_kv_page okv__arena_page(const struct okv__arena *arena, uint32_t index);
uint64_t okv__arena_offset(const struct okv__arena *arena, uint32_t index);
void okv__arena_copy(const struct okv__arena *arena, uint32_t to, uint32_t from);

#endif
