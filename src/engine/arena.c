#include "arena.h"

#include <errno.h>
#include <string.h>
#include <sys/mman.h>

static size_t round_up(size_t value, size_t unit)
{
	return (value + unit - 1) / unit * unit;
}

static enum okv_status map_rotated(struct okv__arena *arena, uint64_t populate_bytes, struct okv_reason *reason)
{
	size_t size = (size_t)arena->page_count * arena->rotated_stride;
	void *memory = mmap(NULL, size, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
	size_t populate = (size_t)(populate_bytes / arena->extent_bytes) * arena->rotated_stride;

	if (memory == MAP_FAILED)
		return okv_refuse(reason, OKV_ERR_NO_MEMORY, "arena", "%zu bytes for rotated keys: %s", size,
				  strerror(errno));
	arena->rotated = memory;
	if (populate && madvise(memory, populate, MADV_POPULATE_WRITE) != 0)
		return okv_refuse(reason, OKV_ERR_NO_MEMORY, "arena", "%zu bytes for rotated keys: %s", populate,
				  strerror(errno));
	return OKV_OK;
}

enum okv_status okv__arena_init(struct okv__arena *arena, const struct okv_kv_layout *layout, uint64_t bytes,
				uint64_t populate_bytes, struct okv_reason *reason)
{
	enum okv_status status;

	*arena = (struct okv__arena){
		.region = {.fd = -1},
		.extent_bytes = round_up(layout->page_bytes, 4096),
		.rotated_stride = round_up(layout->rotated_bytes, 64),
		.page_bytes = layout->page_bytes,
		.rotated_bytes = layout->rotated_bytes,
	};
	if (bytes < arena->extent_bytes || bytes / arena->extent_bytes >= UINT32_MAX)
		return okv_refuse(reason, OKV_ERR_INVALID, "arena",
				  "the arena must hold between one page (%zu bytes) and 2^32 pages",
				  arena->extent_bytes);
	arena->page_count = (uint32_t)(bytes / arena->extent_bytes);
	bytes = arena->page_count * (uint64_t)arena->extent_bytes;
	if (populate_bytes > bytes)
		populate_bytes = bytes;
	status = okv_region_create("okv-arena", bytes, &arena->region, reason);
	if (status != OKV_OK)
		return status;
	status = okv_region_populate(&arena->region, 0, populate_bytes, reason);
	if (status == OKV_OK)
		status = map_rotated(arena, populate_bytes, reason);
	if (status != OKV_OK)
		okv__arena_done(arena);
	return status;
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
