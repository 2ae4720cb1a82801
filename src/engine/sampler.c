#include "sampler.h"

#include <stdlib.h>
#include <string.h>

#include "okv/base/rng.h"

enum okv_status okv__sampler_init(struct okv__sampler *sampler, uint32_t vocabulary, struct okv_reason *reason)
{
	*sampler = (struct okv__sampler){
		.vocabulary = vocabulary,
		.heap = calloc(vocabulary, sizeof(*sampler->heap)),
		.weight = calloc(vocabulary, sizeof(*sampler->weight)),
	};
	if (sampler->heap && sampler->weight)
		return OKV_OK;
	okv__sampler_done(sampler);
	return okv_refuse(reason, OKV_ERR_NO_MEMORY, "sampler", "no memory for a vocabulary of %u", vocabulary);
}

void okv__sampler_done(struct okv__sampler *sampler)
{
	free(sampler->heap);
	free(sampler->weight);
	*sampler = (struct okv__sampler){.vocabulary = 0};
}

enum okv_status okv__sampling_check(const struct okv_sampling *sampling, struct okv_reason *reason)
{
	/* Written so that a NaN fails every one of them. */
	if (!(sampling->temperature >= 0 && sampling->temperature <= 100))
		return okv_refuse(reason, OKV_ERR_INVALID, "temperature", "temperature must be between 0 and 100");
	if (!(sampling->top_p > 0 && sampling->top_p <= 1))
		return okv_refuse(reason, OKV_ERR_INVALID, "top_p", "top_p must be above 0 and at most 1");
	if (!(sampling->min_p >= 0 && sampling->min_p <= 1))
		return okv_refuse(reason, OKV_ERR_INVALID, "min_p", "min_p must be between 0 and 1");
	return OKV_OK;
}

double okv__exp(double x)
{
	static const double ln2_high = 6.93147180369123816490e-01, ln2_low = 1.90821492927058770002e-10;
	double term = 1, sum = 1, scale;
	uint64_t bits;
	int64_t k;
	double r;

	if (!(x >= -700))
		return 0;
	if (x > 0)
		return 1;
	/* x = k ln 2 + r, |r| <= ln 2 / 2: Cody and Waite's two-part ln 2, then Taylor to the 13th term (< 2^-57). */
	k = (int64_t)(x * 1.44269504088896338700 - 0.5);
	r = x - (double)k * ln2_high - (double)k * ln2_low;
	for (int n = 1; n <= 13; n++) {
		term = term * r / n;
		sum += term;
	}
	bits = (uint64_t)(k + 1023) << 52;
	memcpy(&scale, &bits, sizeof(scale));
	return sum * scale;
}

static uint32_t greedy(const float *logits, uint32_t vocabulary)
{
	uint32_t best = 0;

	for (uint32_t i = 1; i < vocabulary; i++)
		if (logits[i] > logits[best] || (logits[best] != logits[best] && logits[i] == logits[i]))
			best = i;
	return best;
}

/* The candidates' order: weights fall with logits, so logits decide and ids break ties. */
static bool is_before(const float *logits, uint32_t a, uint32_t b)
{
	return logits[a] > logits[b] || (!(logits[a] < logits[b]) && a < b);
}

static void sift_down(const float *logits, uint32_t *heap, uint32_t count, uint32_t at)
{
	for (uint32_t child; (child = 2 * at + 1) < count; at = child) {
		uint32_t id = heap[at];

		if (child + 1 < count && is_before(logits, heap[child + 1], heap[child]))
			child++;
		if (is_before(logits, id, heap[child]))
			return;
		heap[at] = heap[child];
		heap[child] = id;
	}
}

/* Moves the best of heap[0..count) to heap[count - 1]. */
static uint32_t pop(const float *logits, uint32_t *heap, uint32_t count)
{
	uint32_t best = heap[0];

	heap[0] = heap[count - 1];
	heap[count - 1] = best;
	sift_down(logits, heap, count - 1, 0);
	return best;
}

static double uniform(uint64_t seed, uint32_t position)
{
	return (double)(okv_mix64(okv_mix64(seed) ^ position) >> 11) * 0x1p-53;
}

/* Fills heap and weight with every id that has a weight; returns how many, and the sum in id order. */
static uint32_t weigh(struct okv__sampler *sampler, const float *logits, double temperature, double *ret_sum)
{
	double best = (double)logits[greedy(logits, sampler->vocabulary)];
	uint32_t count = 0;
	double sum = 0;

	for (uint32_t id = 0; id < sampler->vocabulary; id++) {
		double weight = (double)logits[id] == best ? 1 : okv__exp(((double)logits[id] - best) / temperature);

		if (weight == 0)
			continue;
		sampler->weight[id] = weight;
		sampler->heap[count++] = id;
		sum += weight;
	}
	*ret_sum = sum;
	return count;
}

uint32_t okv__sample(struct okv__sampler *sampler, const struct okv_sampling *sampling, const float *logits,
		     uint32_t position)
{
	uint32_t *heap = sampler->heap;
	uint32_t count, kept = 0, limit;
	double sum, mass, target;

	if (sampling->temperature == 0)
		return greedy(logits, sampler->vocabulary);
	count = weigh(sampler, logits, (double)sampling->temperature, &sum);
	if (count == 0) /* nothing but NaN */
		return 0;
	for (uint32_t i = count / 2; i-- > 0;)
		sift_down(logits, heap, count, i);

	/* Candidates leave the heap best first and line up at its end: the i-th is heap[count - 1 - i]. */
	limit = sampling->top_k && sampling->top_k < count ? sampling->top_k : count;
	if (limit < count) {
		for (sum = 0; kept < limit; kept++)
			sum += sampler->weight[pop(logits, heap, count - kept)];
	}
	mass = sum;
	if (sampling->top_p < 1 || sampling->min_p > 0) {
		uint32_t popped = kept;

		mass = 0;
		for (kept = 0; kept < limit; kept++) {
			uint32_t id = kept < popped ? heap[count - 1 - kept] : pop(logits, heap, count - kept);

			if (kept > 0 &&
			    (mass >= (double)sampling->top_p * sum || sampler->weight[id] < (double)sampling->min_p))
				break;
			mass += sampler->weight[id];
		}
		limit = kept;
	}

	target = uniform(sampling->seed, position) * mass;
	for (uint32_t i = 0; i < limit; i++) {
		uint32_t id = i < kept ? heap[count - 1 - i] : pop(logits, heap, count - i);

		target -= sampler->weight[id];
		if (target < 0 || i + 1 == limit)
			return id;
	}
	return heap[count - 1];
}
