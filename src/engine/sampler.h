/*
 * Sampler: one row of logits to one token id.
 *
 *   1. weight(i) = exp((logit(i) - largest logit) / temperature), in double, by our own exp.
 *   2. Candidates in the order (logit descending, id ascending); top_k keeps the first k.
 *   3. top_p keeps the shortest prefix whose weight reaches top_p of the weight of all candidates left by 2.
 *   4. min_p drops candidates of weight < min_p (the best one has weight 1).
 *   5. One is drawn in proportion to weight with a number that depends on (seed, position) alone.
 *
 * So a token depends on its row, its seed and its position, never on the batch, the schedule or the C library.
 * Temperature 0 is greedy; equal logits go to the lowest id. A NaN is never chosen while there is a number.
 */
#ifndef OKV_ENGINE_SAMPLER_H
#define OKV_ENGINE_SAMPLER_H

#include "okv/engine/driver.h"

/* Scratch for one vocabulary; owned by the step thread. */
struct okv__sampler {
	uint32_t vocabulary;
	uint32_t *heap; /* owned: ids */
	double *weight; /* owned, by id */
};

OKV_MUST_CHECK enum okv_status okv__sampler_init(struct okv__sampler *sampler, uint32_t vocabulary,
						 struct okv_reason *reason);
void okv__sampler_done(struct okv__sampler *sampler);

/* OKV_ERR_INVALID names the field that is out of range. */
OKV_MUST_CHECK enum okv_status okv__sampling_check(const struct okv_sampling *sampling, struct okv_reason *reason);

/* `sampling` has passed okv__sampling_check(). */
uint32_t okv__sample(struct okv__sampler *sampler, const struct okv_sampling *sampling, const float *logits,
		     uint32_t position);

/* e^x for x <= 0, relative error below 1e-13; 0 below -700. */
double okv__exp(double x);

#endif
