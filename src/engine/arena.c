#include "arena.h"

#include <errno.h>
#include <string.h>
#include <sys/mman.h>

#include "okv/base/memory_limit.h"

enum { EXTENT_UNIT = 4096 };

static size_t round_up(size_t value, size_t unit)
{
	return (value + unit - 1) / unit * unit;
}

static enum okv_status map_rotated(struct okv__arena *arena, struct okv_reason *reason)
{
	size_t size = (size_t)arena->page_count * arena->rotated_stride;
	void *memory = mmap(NULL, size, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);

	if (memory == MAP_FAILED)
		return okv_refuse(reason, OKV_ERR_NO_MEMORY, "arena", "%zu bytes for rotated keys: %s", size,
				  strerror(errno));
	arena->rotated = memory;
	return OKV_OK;
}

enum okv_status okv__arena_init(struct okv__arena *arena, const struct okv_kv_layout *layout, uint64_t bytes,
				struct okv_reason *reason)
{
	enum okv_status status;

	*arena = (struct okv__arena){
		.region = {.fd = -1},
		.extent_bytes = round_up(layout->page_bytes, EXTENT_UNIT),
		.rotated_stride = round_up(layout->rotated_bytes, 64),
		.page_bytes = layout->page_bytes,
		.rotated_bytes = layout->rotated_bytes,
	};
	if (bytes < arena->extent_bytes || bytes / arena->extent_bytes >= UINT32_MAX)
		return okv_refuse(reason, OKV_ERR_INVALID, "arena",
				  "the arena must hold between one page (%zu bytes) and 2^32 pages",
				  arena->extent_bytes);
	arena->page_count = (uint32_t)(bytes / arena->extent_bytes);
	status = okv_memory_limit_check(arena->page_count * (arena->extent_bytes + arena->rotated_stride), "arena",
					"an arena with its rotated keys",
					"a smaller --arena-size (generate: --max-tokens)", reason);
	if (status != OKV_OK)
		return status;
	status = okv_region_create("okv-arena", arena->page_count * arena->extent_bytes, &arena->region, reason);
	if (status != OKV_OK)
		return status;
	status = map_rotated(arena, reason);
	if (status != OKV_OK)
		okv__arena_done(arena);
	return status;
}

enum okv_status okv__arena_populate(struct okv__arena *arena, uint32_t page_count, struct okv_reason *reason)
{
	size_t first = arena->resident_count, count;
	uint8_t *from, *end;
	enum okv_status status;

	if (page_count <= arena->resident_count)
		return OKV_OK;
	count = page_count - first;
	status = okv_region_populate(&arena->region, first * arena->extent_bytes, count * arena->extent_bytes, reason);
	if (status != OKV_OK)
		return status;
	/* Strides need not be whole system pages: from the one that holds the first byte to the end of the last plane.
	 */
	from = arena->rotated + first * arena->rotated_stride / EXTENT_UNIT * EXTENT_UNIT;
	end = arena->rotated + (first + count) * arena->rotated_stride;
	if (madvise(from, (size_t)(end - from), MADV_POPULATE_WRITE) != 0)
		return okv_refuse(reason, OKV_ERR_NO_MEMORY, "arena", "rotated keys cannot be made resident: %s",
				  strerror(errno));
	arena->resident_count = page_count;
	return OKV_OK;
}

void okv__arena_done(struct okv__arena *arena)
{
	if (arena->rotated)
		munmap(arena->rotated, (size_t)arena->page_count * arena->rotated_stride);
	okv_region_close(&arena->region);
	arena->rotated = NULL;
}

struct okv_kv_page okv__arena_page(const struct okv__arena *arena, uint32_t index)
{
	return (struct okv_kv_page){
		.bytes = arena->region.base + okv__arena_offset(arena, index),
		.rotated = arena->rotated + (size_t)index * arena->rotated_stride,
	};
}

uint64_t okv__arena_offset(const struct okv__arena *arena, uint32_t index)
{
	return (uint64_t)index * arena->extent_bytes;
}

void okv__arena_copy(const struct okv__arena *arena, uint32_t to, uint32_t from)
{
	struct okv_kv_page target = okv__arena_page(arena, to), source = okv__arena_page(arena, from);

	memcpy(target.bytes, source.bytes, arena->page_bytes);
	memcpy(target.rotated, source.rotated, arena->rotated_bytes);
}
