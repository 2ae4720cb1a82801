#include "okv/store/store.h"

#include <inttypes.h>
#include <stdlib.h>
#include <string.h>

#include "extents.h"
#include "okv/base/alloc.h"
#include "okv/base/list.h"
#include "okv/base/map.h"
#include "okv/base/memory_limit.h"
#include "okv/base/metrics.h"
#include "okv/base/region.h"

enum block_state { INCOMING, RESIDENT, CONDEMNED };

/* Every block is in `all`. INCOMING and RESIDENT ones are in the table. A RESIDENT one without pins is also in the list
 * of its class, least recently used first. */
struct block {
	struct okv_block public;
	enum block_state state;
	uint64_t since_ns; /* RESIDENT */
	struct okv_map_node by_hash;
	struct okv_list all, in_class;
};

enum { CLASSES = 2 };

struct okv_store {
	struct okv_region pool;
	struct okv_extents extents;
	struct okv_map table;
	struct okv_list all, unpinned[CLASSES];
	uint64_t next_generation, evictable_bytes;
	struct okv_store_counts counts;
	struct okv_clock clock;		       /* for ages; they are measured if it is there */
	struct okv_metric *age[OKV_EVICTIONS]; /* borrowed */
};

enum okv_status okv_store_create(uint64_t pool_bytes, struct okv_store **ret_store, struct okv_reason *reason)
{
	const uint64_t pool_min = 1 << 20, pool_max = (uint64_t)UINT32_MAX * OKV_EXTENT_PAGE_BYTES;
	enum okv_status status =
		okv_memory_limit_check(pool_bytes, "pool-size", "a pool", "a smaller --pool-size", reason);

	if (status != OKV_OK)
		return status;
	if (pool_bytes < pool_min || pool_bytes > pool_max)
		return okv_refuse(reason, OKV_ERR_INVALID, "pool-size",
				  "a pool has 1 MiB to 16 TiB, not %" PRIu64 " bytes", pool_bytes);

	struct okv_store *store = okv_alloc(1, sizeof(*store));
	if (!store)
		return okv_refuse(reason, OKV_ERR_NO_MEMORY, "pool-size", "no memory for the block table");
	status = okv_region_create("orbitkv-pool", pool_bytes, &store->pool, reason);
	if (status != OKV_OK)
		goto free_store;
	status = okv_region_seal_for_readers(&store->pool, reason);
	if (status != OKV_OK)
		goto close_pool;
	status = okv_extents_init(&store->extents, (uint32_t)(store->pool.size / OKV_EXTENT_PAGE_BYTES));
	if (status == OKV_OK)
		status = okv_map_init(&store->table);
	if (status != OKV_OK) {
		status = okv_refuse(reason, status, "pool-size", "no memory for the block table");
		goto free_extents;
	}

	okv_list_init(&store->all);
	for (int i = 0; i < CLASSES; i++)
		okv_list_init(&store->unpinned[i]);
	store->next_generation = 1;
	store->counts.pool_bytes = store->pool.size;
	*ret_store = store;
	return OKV_OK;

free_extents:
	okv_extents_done(&store->extents);
close_pool:
	okv_region_close(&store->pool);
free_store:
	free(store);
	return status;
}

void okv_store_destroy(struct okv_store *store)
{
	if (!store)
		return;
	OKV_LIST_EACH_SAFE(node, &store->all)
	free(OKV_CONTAINER_OF(node, struct block, all));
	okv_map_done(&store->table);
	okv_extents_done(&store->extents);
	okv_region_close(&store->pool);
	free(store);
}

const struct okv_region *okv_store_pool(const struct okv_store *store)
{
	return &store->pool;
}

const struct okv_store_counts *okv_store_counts(struct okv_store *store)
{
	store->counts.largest_free_bytes = (uint64_t)okv_extents_largest(&store->extents) * OKV_EXTENT_PAGE_BYTES;
	return &store->counts;
}

void okv_store_measure_ages(struct okv_store *store, struct okv_clock clock,
			    struct okv_metric *const age[OKV_EVICTIONS])
{
	store->clock = clock;
	memcpy(store->age, age, sizeof(store->age));
}

static uint64_t now_of(const struct okv_store *store)
{
	return store->clock.now_ns ? okv_clock_now(store->clock) : 0;
}

bool okv_store_touch_ahead(struct okv_store *store)
{
	/* 64 MiB holds the pages of a prompt of some 2,800 tokens of a small model; a step of 1 MiB takes about half a
	 * millisecond, so the owner loop stays responsive. */
	const uint32_t reserve = (64 << 20) / OKV_EXTENT_PAGE_BYTES, step = (1 << 20) / OKV_EXTENT_PAGE_BYTES;
	uint32_t first, count;

	if (store->extents.free_pages >= reserve)
		return false;
	count = okv_extents_advance(&store->extents, step, &first);
	if (!count)
		return false;
	/* Memory that cannot be made resident now will be tried again by its first writer. */
	return okv_region_populate(&store->pool, (size_t)first * OKV_EXTENT_PAGE_BYTES,
				   (size_t)count * OKV_EXTENT_PAGE_BYTES, NULL) == OKV_OK;
}

static struct block *block_of(struct okv_block *public)
{
	return OKV_CONTAINER_OF(public, struct block, public);
}

static uint32_t pages_of(const struct block *block)
{
	return (uint32_t)((block->public.record.length + OKV_EXTENT_PAGE_BYTES - 1) / OKV_EXTENT_PAGE_BYTES);
}

static uint64_t extent_bytes(const struct block *block)
{
	return (uint64_t)pages_of(block) * OKV_EXTENT_PAGE_BYTES;
}

static uint64_t hash_of(const struct okv_hash *hash)
{
	return okv_table_hash(hash, sizeof(*hash));
}

static struct block *lookup(struct okv_store *store, const struct okv_hash *hash)
{
	uint64_t at = hash_of(hash);

	for (struct okv_map_node *node = okv_map_first(&store->table, at); node; node = okv_map_next(node)) {
		struct block *block = OKV_CONTAINER_OF(node, struct block, by_hash);

		if (okv_hash_equal(&block->public.record.hash, hash))
			return block;
	}
	return NULL;
}

/* Enters and leaves the list of blocks that may be evicted. */
static void list_evictable(struct okv_store *store, struct block *block)
{
	okv_list_push_back(&store->unpinned[block->public.class], &block->in_class);
	store->evictable_bytes += extent_bytes(block);
}

static void unlist_evictable(struct okv_store *store, struct block *block)
{
	okv_list_remove(&block->in_class);
	store->evictable_bytes -= extent_bytes(block);
}

/* The one place where a block's bytes are given back. The block is in no list but `all`, and not in the table. */
static void free_block(struct okv_store *store, struct block *block)
{
	okv_extents_give(&store->extents, (uint32_t)(block->public.offset / OKV_EXTENT_PAGE_BYTES), pages_of(block));
	store->counts.used_bytes -= extent_bytes(block);
	okv_list_remove(&block->all);
	free(block);
}

static void leave_residence(struct okv_store *store, struct block *block)
{
	okv_map_remove(&store->table, &block->by_hash);
	store->counts.resident_blocks[block->public.class]--;
	store->counts.resident_bytes -= block->public.record.length;
}

static void evict(struct okv_store *store, struct block *block, enum okv_eviction reason)
{
	okv_metric_observe_ns(store->age[reason], now_of(store) - block->since_ns);
	unlist_evictable(store, block);
	leave_residence(store, block);
	store->counts.evictions[block->public.class]++;
	store->counts.evicted_bytes += extent_bytes(block);
	free_block(store, block);
}

/* I5: the next block to go, or NULL. */
static struct block *victim(struct okv_store *store)
{
	for (int i = 0; i < CLASSES; i++)
		if (!okv_list_is_empty(&store->unpinned[i]))
			return OKV_CONTAINER_OF(store->unpinned[i].next, struct block, in_class);
	return NULL;
}

static bool take_extent(struct okv_store *store, struct block *block)
{
	uint32_t first;

	/* Do not empty the cache for a block that would not fit even then. */
	if (extent_bytes(block) > store->counts.pool_bytes - store->counts.used_bytes + store->evictable_bytes)
		return false;
	while (!okv_extents_take(&store->extents, pages_of(block), &first)) {
		struct block *oldest = victim(store);

		if (!oldest)
			return false;
		evict(store, oldest, OKV_EVICTED_BY_PRESSURE);
	}
	block->public.offset = (uint64_t)first * OKV_EXTENT_PAGE_BYTES;
	block->public.bytes = store->pool.base + block->public.offset;
	return true;
}

enum okv_status okv_store_reserve(struct okv_store *store, const struct okv_block_record *record,
				  enum okv_block_class class, struct okv_block **ret_block)
{
	struct block *block = lookup(store, &record->hash);

	if (block) {
		*ret_block = &block->public;
		return OKV_ERR_EXISTS;
	}
	if (record->length == 0 || record->length > store->counts.pool_bytes)
		return OKV_ERR_INVALID;
	block = okv_alloc(1, sizeof(*block));
	if (!block) {
		store->counts.alloc_failures++;
		return OKV_ERR_NO_MEMORY;
	}
	block->public.record = *record;
	block->public.class = class;
	if (!take_extent(store, block)) {
		store->counts.alloc_failures++;
		store->counts.evictions_skipped_pinned += store->counts.pinned_blocks;
		free(block);
		return OKV_ERR_NO_SPACE;
	}
	block->state = INCOMING;
	okv_list_init(&block->in_class);
	okv_list_push_back(&store->all, &block->all);
	okv_map_insert(&store->table, &block->by_hash, hash_of(&record->hash));
	store->counts.used_bytes += extent_bytes(block);
	store->counts.incoming_bytes += record->length;
	*ret_block = &block->public;
	return OKV_OK;
}

void okv_store_commit(struct okv_store *store, struct okv_block *public, const struct okv_crc *crc)
{
	struct block *block = block_of(public);

	OKV_ASSERT(block->state == INCOMING);
	block->state = RESIDENT;
	block->since_ns = now_of(store);
	public->record.crc = *crc;
	public->generation = store->next_generation++;
	store->counts.incoming_bytes -= public->record.length;
	store->counts.resident_blocks[public->class]++;
	store->counts.resident_bytes += public->record.length;
	store->counts.insertions++;
	list_evictable(store, block);
	okv_store_pin(store, public);
}

void okv_store_abort(struct okv_store *store, struct okv_block *public)
{
	struct block *block = block_of(public);

	OKV_ASSERT(block->state == INCOMING);
	okv_map_remove(&store->table, &block->by_hash);
	store->counts.incoming_bytes -= public->record.length;
	free_block(store, block);
}

bool okv_block_is_incoming(const struct okv_block *block)
{
	return ((const struct block *)(const void *)((const char *)block - offsetof(struct block, public)))->state ==
	       INCOMING;
}

struct okv_block *okv_store_peek(struct okv_store *store, const struct okv_hash *hash)
{
	struct block *block = lookup(store, hash);

	return block && block->state == RESIDENT ? &block->public : NULL;
}

struct okv_block *okv_store_find(struct okv_store *store, const struct okv_hash *hash)
{
	struct okv_block *public = okv_store_peek(store, hash);

	if (public && public->pins == 0) {
		unlist_evictable(store, block_of(public));
		list_evictable(store, block_of(public));
	}
	return public;
}

void okv_store_touch_chain(struct okv_store *store, const struct okv_hash *last)
{
	enum { MOST = 4096 };

	for (int i = 0; i < MOST; i++) {
		struct okv_block *block = okv_store_find(store, last);

		if (!block)
			return;
		last = &block->record.parent;
	}
}

void okv_store_pin(struct okv_store *store, struct okv_block *public)
{
	struct block *block = block_of(public);

	OKV_ASSERT(block->state == RESIDENT);
	if (public->pins++ == 0) {
		unlist_evictable(store, block);
		store->counts.pinned_blocks++;
		store->counts.pinned_bytes += public->record.length;
	}
}

void okv_store_unpin(struct okv_store *store, struct okv_block *public)
{
	struct block *block = block_of(public);

	OKV_ASSERT(public->pins > 0);
	if (--public->pins > 0)
		return;
	store->counts.pinned_blocks--;
	store->counts.pinned_bytes -= public->record.length;
	if (block->state == CONDEMNED)
		free_block(store, block);
	else
		list_evictable(store, block);
}

void okv_store_condemn(struct okv_store *store, struct okv_block *public)
{
	struct block *block = block_of(public);

	OKV_ASSERT(block->state != INCOMING);
	if (block->state == CONDEMNED)
		return;
	block->state = CONDEMNED;
	leave_residence(store, block);
	store->counts.condemned++;
	if (public->pins == 0) {
		unlist_evictable(store, block);
		free_block(store, block);
	}
}

struct okv_store_cleanup okv_store_clean(struct okv_store *store)
{
	struct okv_store_cleanup result = {.still_referenced_blocks = store->counts.pinned_blocks};
	struct block *block;

	while ((block = victim(store))) {
		result.evicted_blocks++;
		result.evicted_bytes += block->public.record.length;
		result.reclaimed_bytes += extent_bytes(block);
		evict(store, block, OKV_EVICTED_BY_CLEANUP);
	}
	store->counts.evictions_skipped_pinned += result.still_referenced_blocks;
	return result;
}
