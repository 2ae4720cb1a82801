/*
 * Random operations on a store against a model that knows only history: what was asked, what was answered, and the
 * rules of store.h. It never reads a decision out of the store: after each reservation it looks which blocks are gone
 * and checks that they are exactly the first ones in the order of I5.
 */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "okv/base/rng.h"
#include "okv/store/store.h"

enum { NAMES = 48, POOL = 1 << 20, STEPS = 40000 };

enum what { ABSENT, INCOMING, RESIDENT };

struct known {
	enum what what;
	struct okv_block *block;
	uint64_t length, generation, used_at;
	enum okv_block_class class;
	unsigned pins;
	uint8_t fill;
};

struct condemned {
	struct okv_block *block;
	unsigned pins;
	uint64_t length;
};

struct model {
	struct okv_store *store;
	struct known name[NAMES];
	struct condemned condemned[64];
	unsigned condemned_count;
	uint64_t now, generation_max;
};

static struct okv_hash hash_of(unsigned name)
{
	struct okv_hash hash = {{(uint8_t)name, 1}};

	return hash;
}

static uint64_t rounded(uint64_t length)
{
	return (length + 4095) / 4096 * 4096;
}

/* True if `a` must be evicted before `b`. */
static bool goes_before(const struct known *a, const struct known *b)
{
	return a->class != b->class ? a->class == OKV_CLASS_RECLAIMABLE : a->used_at < b->used_at;
}

/* Takes note of what is no longer found, and checks that nothing that should go later went earlier. */
static void account_for_evictions(struct model *model)
{
	bool is_gone[NAMES] = {false};

	for (unsigned i = 0; i < NAMES; i++) {
		struct okv_hash hash = hash_of(i);

		if (model->name[i].what == RESIDENT && !okv_store_peek(model->store, &hash)) {
			assert_int_equal(model->name[i].pins, 0);
			is_gone[i] = true;
		}
	}
	for (unsigned i = 0; i < NAMES; i++)
		for (unsigned k = 0; is_gone[i] && k < NAMES; k++)
			if (model->name[k].what == RESIDENT && model->name[k].pins == 0 && !is_gone[k])
				assert_true(goes_before(&model->name[i], &model->name[k])); /* I5 */
	for (unsigned i = 0; i < NAMES; i++)
		if (is_gone[i])
			model->name[i].what = ABSENT;
}

static uint64_t unevictable_bytes(const struct model *model)
{
	uint64_t bytes = 0;

	for (unsigned i = 0; i < NAMES; i++)
		if (model->name[i].what == INCOMING || (model->name[i].what == RESIDENT && model->name[i].pins))
			bytes += rounded(model->name[i].length);
	for (unsigned i = 0; i < model->condemned_count; i++)
		bytes += rounded(model->condemned[i].length);
	return bytes;
}

static void reserve(struct model *model, struct okv_rng *rng, unsigned i)
{
	struct known *known = &model->name[i];
	struct okv_block_record record = {.hash = hash_of(i), .length = 1 + okv_rng_below(rng, 160000)};
	enum okv_block_class class = okv_rng_below(rng, 2) ? OKV_CLASS_NORMAL : OKV_CLASS_RECLAIMABLE;
	struct okv_block *block = NULL;
	enum okv_status status = okv_store_reserve(model->store, &record, class, &block);

	if (known->what != ABSENT) {
		assert_int_equal(status, OKV_ERR_EXISTS);
		assert_ptr_equal(block, known->block);
		return;
	}
	account_for_evictions(model);
	if (status == OKV_ERR_NO_SPACE) {
		/* Justified if it cannot fit, or if what stays has cut the pool into pieces. */
		assert_true(unevictable_bytes(model) > 0);
		return;
	}
	assert_int_equal(status, OKV_OK);
	*known = (struct known){.what = INCOMING,
				.block = block,
				.length = record.length,
				.class = class,
				.fill = (uint8_t)okv_rng_next(rng)};
	memset(block->bytes, known->fill, record.length);
}

static void commit_or_abort(struct model *model, struct okv_rng *rng, unsigned i)
{
	struct known *known = &model->name[i];
	struct okv_crc crc = {{known->fill}};

	if (known->what != INCOMING)
		return;
	if (okv_rng_below(rng, 5) == 0) {
		okv_store_abort(model->store, known->block);
		known->what = ABSENT;
		return;
	}
	okv_store_commit(model->store, known->block, &crc);
	known->what = RESIDENT;
	known->pins = 1;
	assert_true(known->block->generation > model->generation_max); /* I4 */
	model->generation_max = known->generation = known->block->generation;
}

static void find_and_pin(struct model *model, struct okv_rng *rng, unsigned i)
{
	struct known *known = &model->name[i];
	struct okv_hash hash = hash_of(i);
	struct okv_block *block = okv_store_find(model->store, &hash);

	assert_ptr_equal(block, known->what == RESIDENT ? known->block : NULL); /* I1 */
	if (!block)
		return;
	known->used_at = ++model->now;
	if (okv_rng_below(rng, 2)) {
		okv_store_pin(model->store, block);
		known->pins++;
	}
}

static void unpin(struct model *model, unsigned i)
{
	struct known *known = &model->name[i];

	if (known->what == RESIDENT && known->pins) {
		okv_store_unpin(model->store, known->block);
		known->pins--;
		known->used_at = ++model->now;
	}
	if (model->condemned_count) {
		struct condemned *last = &model->condemned[model->condemned_count - 1];

		okv_store_unpin(model->store, last->block);
		if (--last->pins == 0)
			model->condemned_count--;
	}
}

static void condemn(struct model *model, unsigned i)
{
	struct known *known = &model->name[i];

	if (known->what != RESIDENT || model->condemned_count == 64)
		return;
	okv_store_condemn(model->store, known->block);
	if (known->pins)
		model->condemned[model->condemned_count++] =
			(struct condemned){known->block, known->pins, known->length};
	known->what = ABSENT;
}

static void check(struct model *model)
{
	const struct okv_store_counts *counts = okv_store_counts(model->store);
	uint64_t used = 0, pinned = model->condemned_count;

	for (unsigned i = 0; i < NAMES; i++) {
		const struct known *known = &model->name[i];

		if (known->what == ABSENT)
			continue;
		used += rounded(known->length);
		if (known->what == RESIDENT)
			assert_int_equal(known->block->generation, known->generation);
		assert_int_equal(known->block->bytes[0], known->fill); /* I2 */
		assert_int_equal(known->block->bytes[known->length - 1], known->fill);
		pinned += known->what == RESIDENT && known->pins;
	}
	for (unsigned i = 0; i < model->condemned_count; i++)
		used += rounded(model->condemned[i].length);
	assert_int_equal(counts->used_bytes, used); /* I3 */
	assert_true(used <= POOL);
	assert_int_equal(counts->pinned_blocks, pinned); /* I6 */
}

static void forty_thousand_operations_agree_with_history(void **state)
{
	(void)state;
	const uint64_t seed = 7;
	struct okv_rng rng = okv_rng_seeded(seed);
	struct model model = {0};
	struct okv_reason reason;

	print_message("# seed %llu\n", (unsigned long long)seed);
	assert_int_equal(okv_store_create(POOL, &model.store, &reason), OKV_OK);
	for (int step = 0; step < STEPS; step++) {
		unsigned i = (unsigned)okv_rng_below(&rng, NAMES);
		uint64_t what = okv_rng_below(&rng, 1000);

		if (what < 350)
			reserve(&model, &rng, i);
		else if (what < 550)
			commit_or_abort(&model, &rng, i);
		else if (what < 680)
			find_and_pin(&model, &rng, i);
		else if (what < 970)
			unpin(&model, i);
		else if (what < 998)
			condemn(&model, i);
		else {
			okv_store_clean(model.store);
			for (unsigned k = 0; k < NAMES; k++)
				if (model.name[k].what == RESIDENT && model.name[k].pins == 0)
					model.name[k].what = ABSENT;
		}
		check(&model);
	}
	okv_store_destroy(model.store);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(forty_thousand_operations_agree_with_history),
	};
	return cmocka_run_group_tests_name("store_random", tests, NULL, NULL);
}
