/*
 * The extent allocator against a bitmap of pages: what is taken never overlaps, what is given back merges, and a take
 * fails only when the bitmap has no such run.
 */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <string.h>

#include <cmocka.h>

#include "extents.h"
#include "okv/base/rng.h"

enum { PAGES = 700, HELD_MAX = 200 };

struct held {
	uint32_t first, count;
};

static uint32_t longest_free_run(const bool *used)
{
	uint32_t longest = 0, run = 0;

	for (uint32_t i = 0; i < PAGES; i++) {
		run = used[i] ? 0 : run + 1;
		if (run > longest)
			longest = run;
	}
	return longest;
}

static void random_takes_and_gives_agree_with_a_bitmap(void **state)
{
	(void)state;
	const uint64_t seed = 20261129;
	struct okv_rng rng = okv_rng_seeded(seed);
	struct okv_extents extents;
	static bool used[PAGES];
	struct held held[HELD_MAX];
	uint32_t held_count = 0, used_pages = 0, ignored;

	print_message("# seed %llu\n", (unsigned long long)seed);
	assert_int_equal(okv_extents_init(&extents, PAGES), OKV_OK);
	for (int step = 0; step < 30000; step++) {
		if (held_count < HELD_MAX && okv_rng_below(&rng, 100) < 52) {
			uint32_t count = 1 + (uint32_t)okv_rng_below(&rng, okv_rng_below(&rng, 4) ? 8 : 120), first;
			bool is_taken = okv_extents_take(&extents, count, &first);

			assert_int_equal(is_taken, longest_free_run(used) >= count); /* E3 */
			if (is_taken) {
				for (uint32_t i = first; i < first + count; i++) {
					assert_false(used[i]);
					used[i] = true;
				}
				held[held_count++] = (struct held){first, count};
				used_pages += count;
			}
		} else if (held_count) {
			struct held *at = &held[okv_rng_below(&rng, held_count)];

			okv_extents_give(&extents, at->first, at->count);
			memset(used + at->first, 0, at->count);
			used_pages -= at->count;
			*at = held[--held_count];
		}
		if (okv_rng_below(&rng, 50) == 0)
			okv_extents_advance(&extents, 3, &ignored);
		assert_int_equal(okv_extents_largest(&extents), longest_free_run(used));
		assert_int_equal(used_pages + extents.free_pages + (PAGES - extents.frontier), PAGES); /* E2 */
	}
	while (held_count) {
		held_count--;
		okv_extents_give(&extents, held[held_count].first, held[held_count].count);
	}
	assert_int_equal(okv_extents_largest(&extents), PAGES); /* E1: all merged into one */
	okv_extents_done(&extents);
}

static void used_memory_is_used_again_before_new_memory_is_touched(void **state)
{
	(void)state;
	struct okv_extents extents;
	uint32_t first[3], again;

	assert_int_equal(okv_extents_init(&extents, 1000), OKV_OK);
	for (int i = 0; i < 3; i++)
		assert_true(okv_extents_take(&extents, 90, &first[i]));
	assert_int_equal(extents.frontier, 270);
	okv_extents_give(&extents, first[1], 90);
	assert_true(okv_extents_take(&extents, 90, &again));
	assert_int_equal(again, first[1]);
	assert_int_equal(extents.frontier, 270);
	okv_extents_done(&extents);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(random_takes_and_gives_agree_with_a_bitmap),
		cmocka_unit_test(used_memory_is_used_again_before_new_memory_is_touched),
	};
	return cmocka_run_group_tests_name("store_extents", tests, NULL, NULL);
}
