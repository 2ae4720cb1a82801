/* The sampler against its definition: a naive one that sorts, cuts and sums as sampler.h says. */
#include <math.h> /* macros only: NAN and INFINITY */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdlib.h>

#include <cmocka.h>

#include "okv/base/rng.h"
#include "sampler.h"

enum { VOCABULARY = 50 };

static const struct okv_sampling plain = {.temperature = 1, .top_p = 1};

static void greedy_takes_the_largest_and_the_lowest_id_among_equals(void **state)
{
	struct okv__sampler sampler;
	struct okv_sampling greedy = {.top_p = 1};
	float logits[5] = {1, 3, -2, 3, 3};

	(void)state;
	assert_int_equal(okv__sampler_init(&sampler, 5, NULL), OKV_OK);
	assert_int_equal(okv__sample(&sampler, &greedy, logits, 0), 1);
	logits[0] = NAN;
	assert_int_equal(okv__sample(&sampler, &greedy, logits, 0), 1);
	logits[4] = INFINITY;
	assert_int_equal(okv__sample(&sampler, &greedy, logits, 0), 4);
	okv__sampler_done(&sampler);
}

static void numbers_that_are_none_are_never_drawn(void **state)
{
	struct okv__sampler sampler;
	float logits[4] = {NAN, 1, -INFINITY, NAN};

	(void)state;
	assert_int_equal(okv__sampler_init(&sampler, 4, NULL), OKV_OK);
	for (uint32_t position = 0; position < 200; position++)
		assert_int_equal(okv__sample(&sampler, &plain, logits, position), 1);
	logits[1] = logits[2] = NAN;
	assert_int_equal(okv__sample(&sampler, &plain, logits, 0), 0);
	okv__sampler_done(&sampler);
}

/* Another way to e^x: Taylor near zero, then sixteen squarings, in long double. */
static double naive_exp(double x)
{
	long double y = (long double)x / 65536, term = 1, sum = 1;

	for (int n = 1; n <= 12; n++) {
		term = term * y / n;
		sum += term;
	}
	for (int i = 0; i < 16; i++)
		sum *= sum;
	return (double)sum;
}

static double distance(double a, double b)
{
	return a > b ? a - b : b - a;
}

static void our_exp_is_exp(void **state)
{
	(void)state;
	for (double x = -700; x <= 0; x += 0.0137)
		assert_true(distance(okv__exp(x) / naive_exp(x), 1) < 1e-13);
	assert_true(okv__exp(0) == 1);
	assert_true(okv__exp(-701) == 0);
	assert_true(okv__exp(-INFINITY) == 0);
	assert_true(okv__exp(NAN) == 0);
}

static const float *sorted_logits; /* for qsort in this file only */

static int by_definition(const void *a, const void *b)
{
	uint32_t i = *(const uint32_t *)a, j = *(const uint32_t *)b;

	if (sorted_logits[i] != sorted_logits[j])
		return sorted_logits[i] > sorted_logits[j] ? -1 : 1;
	return i < j ? -1 : 1;
}

/* True for ids that the definition lets through. */
static void naive_candidates(const struct okv_sampling *sampling, const float *logits, bool *ret_is_candidate)
{
	uint32_t id[VOCABULARY], count = VOCABULARY;
	double weight[VOCABULARY], sum = 0, mass = 0;

	for (uint32_t i = 0; i < VOCABULARY; i++)
		id[i] = i;
	sorted_logits = logits;
	qsort(id, VOCABULARY, sizeof(*id), by_definition);
	if (sampling->top_k && sampling->top_k < count)
		count = sampling->top_k;
	for (uint32_t i = 0; i < count; i++) {
		weight[i] = naive_exp(((double)logits[id[i]] - (double)logits[id[0]]) / (double)sampling->temperature);
		sum += weight[i];
	}
	for (uint32_t i = 0; i < VOCABULARY; i++)
		ret_is_candidate[i] = false;
	for (uint32_t i = 0; i < count; i++) {
		if (i > 0 && sampling->top_p < 1 && mass >= (double)sampling->top_p * sum)
			return;
		if (i > 0 && weight[i] < (double)sampling->min_p)
			return;
		ret_is_candidate[id[i]] = true;
		mass += weight[i];
	}
}

static void exactly_the_candidates_of_the_definition_are_drawn(void **state)
{
	struct okv__sampler sampler;
	struct okv_rng rng = okv_rng_seeded(3);

	(void)state;
	assert_int_equal(okv__sampler_init(&sampler, VOCABULARY, NULL), OKV_OK);
	for (unsigned round = 0; round < 25; round++) {
		struct okv_sampling sampling = {.temperature = 0.5f + (float)okv_rng_below(&rng, 20) / 10,
						.top_k = (uint32_t)okv_rng_below(&rng, 3) * 7,
						.top_p = okv_rng_below(&rng, 2) ? 1 : 0.7f,
						.min_p = okv_rng_below(&rng, 2) ? 0 : 0.8f,
						.seed = round};
		float logits[VOCABULARY];
		bool is_candidate[VOCABULARY], is_drawn[VOCABULARY] = {false};

		for (uint32_t i = 0; i < VOCABULARY; i++)
			logits[i] = (float)okv_rng_below(&rng, 12) / 8;
		naive_candidates(&sampling, logits, is_candidate);
		for (uint32_t position = 0; position < 15000; position++)
			is_drawn[okv__sample(&sampler, &sampling, logits, position)] = true;
		for (uint32_t i = 0; i < VOCABULARY; i++)
			assert_int_equal(is_drawn[i], is_candidate[i]);
	}
	okv__sampler_done(&sampler);
}

static void tokens_are_drawn_in_proportion(void **state)
{
	struct okv__sampler sampler;
	float logits[3] = {0, 1, 2};
	unsigned drawn[3] = {0};

	(void)state;
	assert_int_equal(okv__sampler_init(&sampler, 3, NULL), OKV_OK);
	for (uint32_t position = 0; position < 100000; position++)
		drawn[okv__sample(&sampler, &plain, logits, position)]++;
	assert_true(distance(drawn[0] / 100000.0, 0.0900306) < 0.005);
	assert_true(distance(drawn[1] / 100000.0, 0.2447285) < 0.005);
	okv__sampler_done(&sampler);
}

static void a_draw_depends_on_seed_and_position_alone(void **state)
{
	struct okv__sampler first, second;
	struct okv_sampling other = {.temperature = 1, .top_p = 1, .seed = 1};
	float logits[VOCABULARY], noise[VOCABULARY];
	unsigned differ_by_seed = 0, differ_by_position = 0;

	(void)state;
	for (uint32_t i = 0; i < VOCABULARY; i++) {
		logits[i] = (float)(i % 7) / 2;
		noise[i] = (float)(i % 5);
	}
	assert_int_equal(okv__sampler_init(&first, VOCABULARY, NULL), OKV_OK);
	assert_int_equal(okv__sampler_init(&second, VOCABULARY, NULL), OKV_OK);
	for (uint32_t position = 0; position < 200; position++) {
		uint32_t token = okv__sample(&first, &plain, logits, position);

		(void)okv__sample(&second, &other, noise, position * 3); /* a neighbour in the batch */
		assert_int_equal(okv__sample(&second, &plain, logits, position), token);
		differ_by_seed += okv__sample(&second, &other, logits, position) != token;
		differ_by_position += okv__sample(&second, &plain, logits, position + 1000) != token;
	}
	assert_true(differ_by_seed > 100 && differ_by_position > 100);
	okv__sampler_done(&first);
	okv__sampler_done(&second);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(greedy_takes_the_largest_and_the_lowest_id_among_equals),
		cmocka_unit_test(numbers_that_are_none_are_never_drawn),
		cmocka_unit_test(our_exp_is_exp),
		cmocka_unit_test(exactly_the_candidates_of_the_definition_are_drawn),
		cmocka_unit_test(tokens_are_drawn_in_proportion),
		cmocka_unit_test(a_draw_depends_on_seed_and_position_alone),
	};

	return cmocka_run_group_tests_name("sampler", tests, NULL, NULL);
}
