/* The life of a block, one sentence a test; the numbers are the invariants of store.h. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>

#include <cmocka.h>

#include "failing_alloc.h"
#include "okv/base/buf.h"
#include "okv/base/metrics.h"
#include "okv/base/region.h"
#include "okv/store/store.h"

enum { MIB = 1 << 20 };

static struct okv_store *pool_of(uint64_t bytes)
{
	struct okv_store *store;
	struct okv_reason reason;

	assert_int_equal(okv_store_create(bytes, &store, &reason), OKV_OK);
	return store;
}

static struct okv_block_record record_of(unsigned name, uint64_t length)
{
	struct okv_block_record record = {.length = length, .token_count = 16};

	memcpy(record.hash.bytes, &name, sizeof(name));
	return record;
}

static struct okv_hash hash_of(unsigned name)
{
	return record_of(name, 1).hash;
}

/* Reserves, commits and unpins. */
static struct okv_block *put(struct okv_store *store, unsigned name, uint64_t length, enum okv_block_class class)
{
	struct okv_block_record record = record_of(name, length);
	struct okv_crc crc = {{(uint8_t)name}};
	struct okv_block *block;

	assert_int_equal(okv_store_reserve(store, &record, class, &block), OKV_OK);
	okv_store_commit(store, block, &crc);
	okv_store_unpin(store, block);
	return block;
}

static bool has(struct okv_store *store, unsigned name)
{
	struct okv_hash hash = hash_of(name);

	return okv_store_peek(store, &hash) != NULL;
}

static void a_block_is_found_only_between_commit_and_eviction(void **state)
{
	(void)state;
	struct okv_store *store = pool_of(MIB);
	struct okv_block_record record = record_of(1, 5000);
	struct okv_crc crc = {{7}};
	struct okv_block *block, *again;

	assert_int_equal(okv_store_reserve(store, &record, OKV_CLASS_NORMAL, &block), OKV_OK);
	assert_true(okv_block_is_incoming(block));
	assert_false(has(store, 1)); /* I1 */
	assert_int_equal(okv_store_reserve(store, &record, OKV_CLASS_NORMAL, &again), OKV_ERR_EXISTS);
	assert_ptr_equal(again, block);
	assert_int_equal(okv_store_counts(store)->used_bytes, 8192); /* I3 */
	assert_int_equal(okv_store_counts(store)->incoming_bytes, 5000);

	okv_store_commit(store, block, &crc);
	assert_false(okv_block_is_incoming(block));
	assert_true(has(store, 1));
	assert_int_equal(block->record.crc.bytes[0], 7);
	assert_int_equal(block->offset % 4096, 0);
	okv_store_unpin(store, block);

	struct okv_store_cleanup cleanup = okv_store_clean(store);
	assert_int_equal(cleanup.evicted_blocks, 1);
	assert_int_equal(cleanup.evicted_bytes, 5000);
	assert_int_equal(cleanup.reclaimed_bytes, 8192);
	assert_int_equal(cleanup.still_referenced_blocks, 0);
	assert_false(has(store, 1));
	assert_int_equal(okv_store_counts(store)->used_bytes, 0);
	okv_store_destroy(store);
}

static void an_aborted_block_leaves_nothing(void **state)
{
	(void)state;
	struct okv_store *store = pool_of(MIB);
	struct okv_block_record record = record_of(1, 100);
	struct okv_block *block;

	assert_int_equal(okv_store_reserve(store, &record, OKV_CLASS_NORMAL, &block), OKV_OK);
	okv_store_abort(store, block);
	assert_int_equal(okv_store_counts(store)->used_bytes, 0);
	assert_int_equal(okv_store_counts(store)->incoming_bytes, 0);
	put(store, 1, 100, OKV_CLASS_NORMAL);
	assert_true(has(store, 1));
	okv_store_destroy(store);
}

static void equal_bytes_after_reinsertion_are_a_new_generation(void **state)
{
	(void)state;
	struct okv_store *store = pool_of(MIB);
	uint64_t first = put(store, 1, 100, OKV_CLASS_NORMAL)->generation;

	okv_store_clean(store);
	assert_true(put(store, 1, 100, OKV_CLASS_NORMAL)->generation > first); /* I4 */
	okv_store_destroy(store);
}

static void reclaimable_goes_first_then_the_least_recently_used(void **state)
{
	(void)state;
	const uint64_t quarter = MIB / 4;
	struct okv_store *store = pool_of(MIB);
	struct okv_hash second = hash_of(2);

	put(store, 1, quarter, OKV_CLASS_NORMAL);
	put(store, 2, quarter, OKV_CLASS_NORMAL);
	put(store, 3, quarter, OKV_CLASS_NORMAL);
	put(store, 4, quarter, OKV_CLASS_RECLAIMABLE);
	put(store, 5, quarter, OKV_CLASS_NORMAL);
	assert_true(has(store, 1) && !has(store, 4)); /* I5: the class decides, though 4 is the youngest */

	struct okv_hash first = hash_of(1);
	assert_non_null(okv_store_find(store, &first)); /* used: now younger than 2 */
	put(store, 6, quarter, OKV_CLASS_NORMAL);
	assert_true(has(store, 1) && !has(store, 2));

	second = hash_of(3);
	assert_non_null(okv_store_peek(store, &second)); /* a peek is no use */
	put(store, 7, quarter, OKV_CLASS_NORMAL);
	assert_false(has(store, 3));
	assert_int_equal(okv_store_counts(store)->evictions[OKV_CLASS_NORMAL], 2);
	assert_int_equal(okv_store_counts(store)->evictions[OKV_CLASS_RECLAIMABLE], 1);
	okv_store_destroy(store);
}

static void pin_survives_eviction_of_its_neighbours(void **state)
{
	(void)state;
	struct okv_store *store = pool_of(MIB);
	struct okv_block *pinned = put(store, 1, MIB / 2, OKV_CLASS_RECLAIMABLE);
	struct okv_block_record record = record_of(3, MIB / 2 + 1);
	struct okv_block *block;

	okv_store_pin(store, pinned);
	okv_store_pin(store, pinned);
	memset(pinned->bytes, 0x5a, MIB / 2);
	put(store, 2, MIB / 2, OKV_CLASS_NORMAL);
	assert_int_equal(okv_store_reserve(store, &record, OKV_CLASS_NORMAL, &block), OKV_ERR_NO_SPACE);
	assert_true(has(store, 2)); /* not emptied for what cannot fit */
	put(store, 4, MIB / 2, OKV_CLASS_NORMAL);
	assert_true(has(store, 1) && !has(store, 2)); /* I5 */
	assert_int_equal(okv_store_clean(store).still_referenced_blocks, 1);
	for (size_t i = 0; i < MIB / 2; i += 4096)
		assert_int_equal(pinned->bytes[i], 0x5a); /* I2 */

	okv_store_unpin(store, pinned);
	assert_int_equal(okv_store_counts(store)->pinned_blocks, 1); /* I6: one of two is left */
	okv_store_unpin(store, pinned);
	assert_int_equal(okv_store_counts(store)->pinned_bytes, 0);
	assert_int_equal(okv_store_clean(store).evicted_blocks, 1);
	okv_store_destroy(store);
}

static void a_condemned_block_is_never_found_and_goes_with_its_last_pin(void **state)
{
	(void)state;
	struct okv_store *store = pool_of(MIB);
	struct okv_block *block = put(store, 1, 100, OKV_CLASS_NORMAL);
	struct okv_block *fresh;

	okv_store_pin(store, block);
	okv_store_condemn(store, block);
	okv_store_condemn(store, block); /* a second reader reports the same */
	assert_false(has(store, 1));
	assert_int_equal(okv_store_counts(store)->used_bytes, 4096);
	fresh = put(store, 1, 100, OKV_CLASS_NORMAL); /* a good copy may come while the bad one is still read */
	assert_ptr_not_equal(fresh->bytes, block->bytes);
	okv_store_unpin(store, block);
	assert_int_equal(okv_store_counts(store)->used_bytes, 4096);
	assert_true(has(store, 1));

	okv_store_condemn(store, fresh);
	assert_int_equal(okv_store_counts(store)->used_bytes, 0);
	assert_int_equal(okv_store_counts(store)->condemned, 2);
	okv_store_destroy(store);
}

static void impossible_sizes_are_refused_with_numbers(void **state)
{
	(void)state;
	struct okv_store *store;
	struct okv_reason reason;
	struct okv_block *block;

	assert_int_equal(okv_store_create(MIB - 1, &store, &reason), OKV_ERR_INVALID);
	assert_int_equal(okv_store_create((uint64_t)8 << 40, &store, &reason), OKV_ERR_NO_SPACE);
	assert_string_equal(reason.field, "pool-size");
	assert_non_null(strstr(reason.text, "a pool of 8388608 MiB is more than the "));
	assert_int_equal(okv_store_create((uint64_t)900 << 40, &store, &reason), OKV_ERR_NO_SPACE);
	assert_non_null(strstr(reason.text, "smaller --pool-size"));

	store = pool_of(MIB);
	struct okv_block_record none = record_of(1, 0), huge = record_of(1, MIB + 1);
	assert_int_equal(okv_store_reserve(store, &none, OKV_CLASS_NORMAL, &block), OKV_ERR_INVALID);
	assert_int_equal(okv_store_reserve(store, &huge, OKV_CLASS_NORMAL, &block), OKV_ERR_INVALID);
	okv_store_destroy(store);
}

static size_t resident_pages(struct okv_store *store)
{
	const struct okv_region *pool = okv_store_pool(store);
	size_t pages = pool->size / 4096, resident = 0;
	unsigned char *map = malloc(pages);

	assert_non_null(map);
	assert_int_equal(mincore(pool->base, pool->size, map), 0);
	for (size_t i = 0; i < pages; i++)
		resident += map[i] & 1;
	free(map);
	return resident;
}

static void an_empty_pool_costs_no_memory_until_a_reserve_is_asked_for(void **state)
{
	(void)state;
	struct okv_store *store = pool_of(128 * MIB);
	int steps = 0;

	assert_int_equal(resident_pages(store), 0);
	while (okv_store_touch_ahead(store))
		steps++;
	assert_int_equal(steps, 64);
	assert_int_equal(resident_pages(store), 64 * 256);
	put(store, 1, MIB, OKV_CLASS_NORMAL);
	assert_int_equal(resident_pages(store), 64 * 256); /* from the reserve */
	okv_store_destroy(store);
}

static void a_hundred_thousand_blocks_stay_fast(void **state)
{
	(void)state;
	struct okv_store *store = pool_of(64 * MIB);

	/* 16,384 fit; the rest evicts one block each. Anything quadratic would take minutes. */
	for (unsigned i = 0; i < 100000; i++)
		put(store, i, 4096, OKV_CLASS_NORMAL);
	assert_int_equal(okv_store_counts(store)->resident_blocks[OKV_CLASS_NORMAL], 16384);
	assert_int_equal(okv_store_counts(store)->evictions[OKV_CLASS_NORMAL], 100000 - 16384);
	okv_store_destroy(store);
}

static void evicted_blocks_tell_how_long_they_were_there_and_why_they_went(void **state)
{
	(void)state;
	struct okv_store *store = pool_of(MIB);
	struct okv_metrics *metrics = okv_metrics_create();
	struct okv_metric *const age[OKV_EVICTIONS] = {okv_histogram_of_ages(metrics, "space", "", ""),
						       okv_histogram_of_ages(metrics, "cleanup", "", "")};
	uint64_t now_ns = 50 * OKV_NS_PER_S;
	struct okv_buf text = {0};

	okv_store_measure_ages(store, okv_clock_virtual(&now_ns), age);
	put(store, 1, MIB / 2, OKV_CLASS_NORMAL);
	now_ns += 3 * OKV_NS_PER_S;
	put(store, 2, MIB / 2, OKV_CLASS_NORMAL);
	now_ns += 4 * OKV_NS_PER_S;
	put(store, 3, MIB / 2, OKV_CLASS_NORMAL); /* the first goes after 7 s */
	now_ns += 5 * OKV_NS_PER_S;
	okv_store_condemn(store, okv_store_peek(store, &(struct okv_hash){{3}})); /* not evicted */
	assert_int_equal(okv_store_clean(store).evicted_blocks, 1);		  /* the second, after 9 s */
	okv_metrics_render(metrics, &text);
	assert_non_null(strstr(text.data, "space_sum 7\nspace_count 1\n"));
	assert_non_null(strstr(text.data, "cleanup_sum 9\ncleanup_count 1\n"));
	okv_buf_done(&text);
	okv_store_destroy(store);
	okv_metrics_destroy(metrics);
}

/* A pool of two blocks, with one allocation that fails; whether there was one. */
static bool fill_with_a_failure(int n)
{
	struct okv_store *store = NULL;
	struct okv_reason reason;

	fail_alloc(n);
	if (okv_store_create(MIB, &store, &reason) != OKV_OK) {
		assert_null(store);
		return end_fail_alloc();
	}
	for (unsigned name = 0; name < 2; name++) {
		struct okv_store_counts before = *okv_store_counts(store);
		struct okv_block_record record = record_of(name, 100);
		struct okv_block *block;
		enum okv_status status = okv_store_reserve(store, &record, OKV_CLASS_NORMAL, &block);

		if (status == OKV_ERR_NO_MEMORY) {
			before.alloc_failures++;
			assert_memory_equal(okv_store_counts(store), &before, sizeof(before));
			status = okv_store_reserve(store, &record, OKV_CLASS_NORMAL, &block);
		}
		assert_int_equal(status, OKV_OK);
		okv_store_commit(store, block, &record.crc);
		okv_store_unpin(store, block);
	}
	assert_int_equal(okv_store_counts(store)->insertions, 2);
	okv_store_destroy(store);
	return end_fail_alloc();
}

static void every_failed_allocation_is_a_status_and_leaves_the_store_whole(void **state)
{
	(void)state;
	int runs = 0;

	while (fill_with_a_failure(runs))
		runs++;
	/* The store, its page tags, its table, and each block. */
	assert_int_equal(runs, 5);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(a_block_is_found_only_between_commit_and_eviction),
		cmocka_unit_test(an_aborted_block_leaves_nothing),
		cmocka_unit_test(equal_bytes_after_reinsertion_are_a_new_generation),
		cmocka_unit_test(reclaimable_goes_first_then_the_least_recently_used),
		cmocka_unit_test(pin_survives_eviction_of_its_neighbours),
		cmocka_unit_test(a_condemned_block_is_never_found_and_goes_with_its_last_pin),
		cmocka_unit_test(impossible_sizes_are_refused_with_numbers),
		cmocka_unit_test(an_empty_pool_costs_no_memory_until_a_reserve_is_asked_for),
		cmocka_unit_test(a_hundred_thousand_blocks_stay_fast),
		cmocka_unit_test(evicted_blocks_tell_how_long_they_were_there_and_why_they_went),
		cmocka_unit_test(every_failed_allocation_is_a_status_and_leaves_the_store_whole),
	};
	return cmocka_run_group_tests_name("store", tests, NULL, NULL);
}
