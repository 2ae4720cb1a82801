/*
 * Kernels that work on one row: norms, activations, RoPE, conversions. Included by avx2.c and avx512.c after their
 * lanes header; a block of 32 is a whole number of vectors, so only `exponential`, `widen` and `narrow` have tails, and
 * those go through a padded copy, never through other arithmetic.
 */
#include <string.h>

#include "exponential.h"

/* ((p0 + p4) + (p2 + p6)) + ((p1 + p5) + (p3 + p7)) */
static inline float tree(__m256 p)
{
	__m128 four = _mm_add_ps(_mm256_castps256_ps128(p), _mm256_extractf128_ps(p, 1));
	__m128 two = _mm_add_ps(four, _mm_movehl_ps(four, four));

	return _mm_cvtss_f32(_mm_add_ss(two, _mm_movehdup_ps(two)));
}

static inline float sum_of_block(const float *x)
{
	__m256 p = _mm256_add_ps(_mm256_loadu_ps(x), _mm256_loadu_ps(x + 8));

	p = _mm256_add_ps(_mm256_add_ps(p, _mm256_loadu_ps(x + 16)), _mm256_loadu_ps(x + 24));
	return tree(p);
}

static inline v_float v_exp(v_float x)
{
	v_float bounded = v_min(v_set1(OKV__EXP_GREATEST), x);
	v_float shifted = v_fma(bounded, v_set1(OKV__EXP_LOG2E), v_set1(OKV__EXP_ROUNDER));
	v_float n = v_sub(shifted, v_set1(OKV__EXP_ROUNDER));
	v_float r = v_fnma(n, v_set1(OKV__EXP_LN2_LOW), v_fnma(n, v_set1(OKV__EXP_LN2_HIGH), bounded));
	v_float p = v_fma(v_set1(OKV__EXP_C6), r, v_set1(OKV__EXP_C5));

	p = v_fma(p, r, v_set1(OKV__EXP_C4));
	p = v_fma(p, r, v_set1(OKV__EXP_C3));
	p = v_fma(p, r, v_set1(OKV__EXP_C2));
	p = v_fma(p, r, v_set1(1));
	p = v_fma(p, r, v_set1(1));
	return v_zero_below(v_mul(p, v_power(shifted)), x, v_set1(OKV__EXP_LEAST));
}

static void rms_norm(const float *h, const float *weight, uint32_t width, float epsilon, size_t row_stride,
		     float *ret_x, float *ret_sums)
{
	__m256 p = _mm256_setzero_ps();
	v_float inverse;

	for (uint32_t i = 0; i < width; i += 8)
		p = _mm256_fmadd_ps(_mm256_loadu_ps(h + i), _mm256_loadu_ps(h + i), p);
	inverse = v_set1(1 / _mm_cvtss_f32(_mm_sqrt_ss(_mm_set_ss(tree(p) / (float)width + epsilon))));

	for (uint32_t block = 0; block < width / OKV_BLOCK; block++) {
		float *x = ret_x + block * row_stride * OKV_BLOCK;

		for (uint32_t k = 0; k < OKV_BLOCK; k += LANES) {
			uint32_t i = block * OKV_BLOCK + k;

			v_store(x + k, v_mul(v_mul(v_load(h + i), inverse), v_load(weight + i)));
		}
		ret_sums[block * row_stride] = sum_of_block(x);
	}
}

static void swiglu(const float *gate, const float *up, uint32_t count, size_t row_stride, float *ret_x, float *ret_sums)
{
	for (uint32_t block = 0; block < count / OKV_BLOCK; block++) {
		float *x = ret_x + block * row_stride * OKV_BLOCK;

		for (uint32_t k = 0; k < OKV_BLOCK; k += LANES) {
			v_float g = v_load(gate + block * OKV_BLOCK + k), u = v_load(up + block * OKV_BLOCK + k);
			v_float minus = v_mul(g, v_set1(-1));

			v_store(x + k, v_mul(v_div(g, v_add(v_set1(1), v_exp(minus))), u));
		}
		ret_sums[block * row_stride] = sum_of_block(x);
	}
}

static void exponential(const float *x, uint32_t count, float *ret_x)
{
	uint32_t i = 0;

	for (; i + LANES <= count; i += LANES)
		v_store(ret_x + i, v_exp(v_load(x + i)));
	if (i < count) {
		float tail[LANES] = {0};

		memcpy(tail, x + i, (count - i) * sizeof(float));
		v_store(tail, v_exp(v_load(tail)));
		memcpy(ret_x + i, tail, (count - i) * sizeof(float));
	}
}

static void rope(float *x, const float *table, uint32_t count)
{
	uint32_t i = 0;

	for (; i + LANES <= count; i += LANES)
		v_store(x + i, v_rope(v_load(x + i), v_load(table + i)));
	if (i < count) {
		float tail[LANES] = {0}, tail_table[LANES] = {0};

		memcpy(tail, x + i, (count - i) * sizeof(float));
		memcpy(tail_table, table + i, (count - i) * sizeof(float));
		v_store(tail, v_rope(v_load(tail), v_load(tail_table)));
		memcpy(x + i, tail, (count - i) * sizeof(float));
	}
}

static void widen(const uint16_t *x, uint32_t count, float *ret_x)
{
	uint32_t i = 0;

	for (; i + LANES <= count; i += LANES)
		v_store(ret_x + i, v_load_halves(x + i));
	for (; i < count; i++)
		ret_x[i] = _cvtsh_ss(x[i]);
}

static void narrow(const float *x, uint32_t count, uint16_t *ret_x)
{
	uint32_t i = 0;

	for (; i + LANES <= count; i += LANES)
		v_store_halves(ret_x + i, v_load(x + i));
	for (; i < count; i++)
		ret_x[i] = _cvtss_sh(x[i], _MM_FROUND_TO_NEAREST_INT);
}
