/* The page table: its invariants under random traffic, and the order in which idle pages are given up. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <string.h>

#include <cmocka.h>

#include "okv/base/rng.h"
#include "pages.h"

enum { PAGE_TOKENS = 8 };

static struct okv_hash name_of(uint32_t number)
{
	struct okv_hash hash = {{0}};

	memcpy(hash.bytes, &number, sizeof(number));
	return hash;
}

static uint32_t take_named(struct okv__pages *pages, uint32_t number, uint32_t parent)
{
	uint32_t tokens[PAGE_TOKENS] = {number, number, number, number, 7, 7, 7, 7};
	struct okv_hash name = name_of(number), parent_name = name_of(parent);
	uint32_t index;

	assert_true(okv__pages_reserve(pages, 1));
	index = okv__pages_take(pages);
	assert_true(okv__pages_name(pages, index, &name, &parent_name, tokens));
	return index;
}

static bool is_there(const struct okv__pages *pages, uint32_t number)
{
	struct okv_hash name = name_of(number);

	return okv__pages_find(pages, &name) != OKV__PAGE_NONE;
}

static void a_promise_is_kept_and_no_more_is_promised(void **state)
{
	struct okv__pages pages;

	(void)state;
	assert_int_equal(okv__pages_init(&pages, 4, PAGE_TOKENS, NULL), OKV_OK);
	assert_true(okv__pages_reserve(&pages, 3));
	assert_false(okv__pages_reserve(&pages, 2));
	assert_true(okv__pages_reserve(&pages, 1));
	for (uint32_t i = 0; i < 4; i++)
		assert_int_equal(okv__pages_take(&pages), i);
	assert_false(okv__pages_reserve(&pages, 1));
	okv__pages_release(&pages, 2);
	assert_true(okv__pages_reserve(&pages, 1));
	okv__pages_unreserve(&pages, 1);
	assert_int_equal(okv__pages_held(&pages), 3);
	okv__pages_done(&pages);
}

static void the_deepest_and_oldest_idle_page_is_given_up_first(void **state)
{
	struct okv__pages pages;
	uint32_t a[3], b;

	(void)state;
	assert_int_equal(okv__pages_init(&pages, 4, PAGE_TOKENS, NULL), OKV_OK);
	for (uint32_t i = 0; i < 3; i++)
		a[i] = take_named(&pages, i + 1, i);
	b = take_named(&pages, 100, 0);
	for (uint32_t i = 3; i-- > 0;)
		okv__pages_release(&pages, a[i]);
	okv__pages_release(&pages, b);
	assert_int_equal(pages.idle_count, 4);
	assert_int_equal(okv__pages_held(&pages), 0);

	/* Using the first page again keeps it, not its children. */
	okv__pages_hold(&pages, a[0]);
	okv__pages_release(&pages, a[0]);
	(void)take_named(&pages, 200, 100);
	assert_false(is_there(&pages, 3));
	(void)take_named(&pages, 201, 100);
	assert_false(is_there(&pages, 2));
	(void)take_named(&pages, 202, 100);
	assert_false(is_there(&pages, 100));
	assert_true(is_there(&pages, 1));
	assert_int_equal(pages.evicted_total, 3);
	okv__pages_done(&pages);
}

static void a_held_page_is_never_given_up(void **state)
{
	struct okv__pages pages;
	uint32_t held;

	(void)state;
	assert_int_equal(okv__pages_init(&pages, 2, PAGE_TOKENS, NULL), OKV_OK);
	held = take_named(&pages, 1, 0);
	okv__pages_release(&pages, take_named(&pages, 2, 1));
	(void)take_named(&pages, 3, 1);
	assert_false(is_there(&pages, 2));
	assert_true(is_there(&pages, 1));
	assert_false(okv__pages_reserve(&pages, 1));
	okv__pages_release(&pages, held);
	assert_true(okv__pages_reserve(&pages, 1));
	okv__pages_done(&pages);
}

static void only_a_page_of_one_holder_and_no_name_may_be_written(void **state)
{
	struct okv__pages pages;
	struct okv_hash name = name_of(5), parent = name_of(0);
	uint32_t tokens[PAGE_TOKENS] = {0}, a, b;

	(void)state;
	assert_int_equal(okv__pages_init(&pages, 4, PAGE_TOKENS, NULL), OKV_OK);
	assert_true(okv__pages_reserve(&pages, 2));
	a = okv__pages_take(&pages);
	b = okv__pages_take(&pages);
	assert_true(okv__pages_may_write(&pages, a));
	okv__pages_hold(&pages, a);
	assert_int_equal(pages.shared_count, 1);
	assert_false(okv__pages_may_write(&pages, a));
	okv__pages_release(&pages, a);
	assert_int_equal(pages.shared_count, 0);
	assert_true(okv__pages_name(&pages, a, &name, &parent, tokens));
	assert_false(okv__pages_may_write(&pages, a));
	/* The name is taken: the second page stays private. */
	assert_false(okv__pages_name(&pages, b, &name, &parent, tokens));
	assert_true(okv__pages_may_write(&pages, b));
	okv__pages_done(&pages);
}

static void the_longest_common_beginning_is_found_among_the_children(void **state)
{
	struct okv__pages pages;
	struct okv_hash parent = name_of(50), other = name_of(51);
	uint32_t wanted[PAGE_TOKENS] = {1, 2, 3, 4, 5, 6, 7, 8}, tokens[PAGE_TOKENS], shared = 0;
	uint32_t index[3];

	(void)state;
	assert_int_equal(okv__pages_init(&pages, 4, PAGE_TOKENS, NULL), OKV_OK);
	assert_true(okv__pages_reserve(&pages, 3));
	for (uint32_t i = 0; i < 3; i++) {
		struct okv_hash name = name_of(i + 1);

		index[i] = okv__pages_take(&pages);
		memcpy(tokens, wanted, sizeof(tokens));
		tokens[i == 1 ? 5 : 2] = 99;
		assert_true(okv__pages_name(&pages, index[i], &name, i == 2 ? &other : &parent, tokens));
	}
	assert_int_equal(okv__pages_find_tail(&pages, &parent, wanted, 8, &shared), index[1]);
	assert_int_equal(shared, 5);
	assert_int_equal(okv__pages_find_tail(&pages, &parent, wanted, 2, &shared), index[1]);
	assert_int_equal(shared, 2);
	assert_int_equal(okv__pages_find_tail(&pages, &other, wanted, 8, &shared), index[2]);
	assert_int_equal(shared, 2);
	assert_int_equal(okv__pages_find_tail(&pages, &other, wanted, 0, &shared), OKV__PAGE_NONE);
	wanted[0] = 77;
	assert_int_equal(okv__pages_find_tail(&pages, &parent, wanted, 8, &shared), OKV__PAGE_NONE);
	okv__pages_done(&pages);
}

static void forgetting_frees_idle_pages_and_spares_held_ones(void **state)
{
	struct okv__pages pages;
	uint32_t held;

	(void)state;
	assert_int_equal(okv__pages_init(&pages, 4, PAGE_TOKENS, NULL), OKV_OK);
	held = take_named(&pages, 1, 0);
	okv__pages_release(&pages, take_named(&pages, 2, 1));
	okv__pages_release(&pages, take_named(&pages, 3, 1));
	okv__pages_forget(&pages);
	assert_int_equal(pages.free_count, 3);
	assert_int_equal(pages.idle_count, 0);
	assert_true(is_there(&pages, 1));
	assert_false(is_there(&pages, 2));
	okv__pages_release(&pages, held);
	okv__pages_done(&pages);
}

/* Everything that pages.c keeps as a number, counted again from the pages themselves. */
static void assert_counts(const struct okv__pages *pages)
{
	uint32_t idle = 0, shared = 0, held = 0, named = 0;

	for (uint32_t i = 0; i < pages->count; i++) {
		const struct okv__page *page = &pages->page[i];

		idle += page->is_named && page->holders == 0;
		shared += page->holders > 1;
		held += page->holders > 0;
		named += page->is_named;
	}
	assert_int_equal(pages->idle_count, idle);
	assert_int_equal(pages->shared_count, shared);
	assert_int_equal(okv__pages_held(pages), held);
	assert_int_equal(pages->free_count, pages->count - held - idle);
	assert_int_equal(pages->by_hash.size, named);
	assert_true((uint64_t)pages->free_count + pages->idle_count >= pages->reserved); /* I1 */
}

static void counts_and_promises_hold_under_random_traffic(void **state)
{
	enum { COUNT = 24, HOLDS = 64 };
	struct okv__pages pages;
	struct okv_rng rng = okv_rng_seeded(1);
	uint32_t hold[HOLDS], holds = 0, promised = 0;

	(void)state;
	assert_int_equal(okv__pages_init(&pages, COUNT, PAGE_TOKENS, NULL), OKV_OK);
	for (unsigned i = 0; i < 20000; i++) {
		uint32_t number = 1 + (uint32_t)okv_rng_below(&rng, 40), tokens[PAGE_TOKENS] = {number};
		struct okv_hash name = name_of(number), parent = name_of(number / 2);
		uint32_t at = holds ? (uint32_t)okv_rng_below(&rng, holds) : 0, found;

		switch (okv_rng_below(&rng, 6)) {
		case 0:
			promised += okv__pages_reserve(&pages, 1);
			break;
		case 1:
			if (promised > 0 && holds < HOLDS) {
				hold[holds++] = okv__pages_take(&pages);
				promised--;
			}
			break;
		case 2:
		case 3:
			if (holds > 0) {
				okv__pages_release(&pages, hold[at]);
				hold[at] = hold[--holds];
			}
			break;
		case 4:
			if (holds > 0 && okv__pages_may_write(&pages, hold[at]))
				(void)okv__pages_name(&pages, hold[at], &name, &parent, tokens);
			break;
		default:
			found = okv__pages_find(&pages, &name);
			if (found != OKV__PAGE_NONE && promised > 0 && holds < HOLDS) {
				okv__pages_hold(&pages, found);
				okv__pages_unreserve(&pages, 1);
				promised--;
				hold[holds++] = found;
			}
		}
		assert_int_equal(pages.reserved, promised);
		assert_counts(&pages);
	}
	okv__pages_done(&pages);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(a_promise_is_kept_and_no_more_is_promised),
		cmocka_unit_test(the_deepest_and_oldest_idle_page_is_given_up_first),
		cmocka_unit_test(a_held_page_is_never_given_up),
		cmocka_unit_test(only_a_page_of_one_holder_and_no_name_may_be_written),
		cmocka_unit_test(the_longest_common_beginning_is_found_among_the_children),
		cmocka_unit_test(forgetting_frees_idle_pages_and_spares_held_ones),
		cmocka_unit_test(counts_and_promises_hold_under_random_traffic),
	};

	return cmocka_run_group_tests_name("pages", tests, NULL, NULL);
}
