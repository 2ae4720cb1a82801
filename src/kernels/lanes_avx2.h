/* Eight float lanes: AVX2, FMA and F16C. The names are those of lanes_avx512.h, and so are the bits of each lane. */
#ifndef OKV_KERNELS_LANES_AVX2_H
#define OKV_KERNELS_LANES_AVX2_H

#include <immintrin.h>
#include <stdint.h>

enum { LANES = 8, TILE_ROWS = 6, TILE_PANELS = 1, SCORE_VECTORS = 2, MIX_QUERIES = 3, FEW_ROWS = 3, FEW_PANELS = 1 };

typedef __m256 v_float;
typedef __m256i v_word;

static inline v_float v_load(const float *at)
{
	return _mm256_loadu_ps(at);
}
static inline void v_store(float *at, v_float a)
{
	_mm256_storeu_ps(at, a);
}
static inline v_float v_set1(float a)
{
	return _mm256_set1_ps(a);
}
static inline v_float v_zero(void)
{
	return _mm256_setzero_ps();
}
static inline v_float v_add(v_float a, v_float b)
{
	return _mm256_add_ps(a, b);
}
static inline v_float v_sub(v_float a, v_float b)
{
	return _mm256_sub_ps(a, b);
}
static inline v_float v_mul(v_float a, v_float b)
{
	return _mm256_mul_ps(a, b);
}
static inline v_float v_div(v_float a, v_float b)
{
	return _mm256_div_ps(a, b);
}
/* a * b + c and c - a * b, rounded once. */
static inline v_float v_fma(v_float a, v_float b, v_float c)
{
	return _mm256_fmadd_ps(a, b, c);
}
static inline v_float v_fnma(v_float a, v_float b, v_float c)
{
	return _mm256_fnmadd_ps(a, b, c);
}
/* The second operand where either is not a number. */
static inline v_float v_min(v_float a, v_float b)
{
	return _mm256_min_ps(a, b);
}
static inline v_float v_max(v_float a, v_float b)
{
	return _mm256_max_ps(a, b);
}
static inline float v_greatest(v_float a)
{
	__m128 m = _mm_max_ps(_mm256_castps256_ps128(a), _mm256_extractf128_ps(a, 1));

	m = _mm_max_ps(m, _mm_movehl_ps(m, m));
	return _mm_cvtss_f32(_mm_max_ss(m, _mm_movehdup_ps(m)));
}
/* `a`, but zero where x < least. */
static inline v_float v_zero_below(v_float a, v_float x, v_float least)
{
	return _mm256_and_ps(_mm256_cmp_ps(x, least, _CMP_NLT_UQ), a);
}
/* 2^n from the low bits of n + OKV__EXP_ROUNDER. */
static inline v_float v_power(v_float shifted)
{
	v_word n = _mm256_slli_epi32(_mm256_castps_si256(shifted), 23);

	return _mm256_castsi256_ps(_mm256_add_epi32(n, _mm256_set1_epi32(0x3f800000)));
}
static inline v_float v_load_halves(const uint16_t *at)
{
	return _mm256_cvtph_ps(_mm_loadu_si128((const __m128i *)(const void *)at));
}
static inline void v_store_halves(uint16_t *at, v_float a)
{
	_mm_storeu_si128((__m128i *)(void *)at, _mm256_cvtps_ph(a, _MM_FROUND_TO_NEAREST_INT));
}
static inline v_float v_load_bytes(const uint8_t *at)
{
	return _mm256_cvtepi32_ps(_mm256_cvtepi8_epi32(_mm_loadl_epi64((const __m128i *)(const void *)at)));
}
static inline v_word v_load_words(const uint8_t *at)
{
	return _mm256_loadu_si256((const __m256i *)(const void *)at);
}

/* What v_nibble subtracts. */
static inline v_float v_nibble_table(int bias)
{
	return _mm256_castsi256_ps(_mm256_set1_epi32(bias));
}
/* Nibble `j` (a constant) of every word. */
static inline __attribute__((always_inline)) v_float v_nibble(v_word words, unsigned j, v_float table)
{
	v_word q = _mm256_and_si256(_mm256_srli_epi32(words, (int)(4 * j)), _mm256_set1_epi32(15));

	return _mm256_cvtepi32_ps(_mm256_sub_epi32(q, _mm256_castps_si256(table)));
}

/* Pairs (a, b) rotated by pairs (c, s): fma(-b, s, a c), fma(b, c, a s). */
static inline v_float v_rope(v_float x, v_float table)
{
	v_float a = _mm256_moveldup_ps(x), b = _mm256_movehdup_ps(x), swapped = _mm256_permute_ps(table, 0xb1);
	v_float sign = _mm256_castsi256_ps(_mm256_set1_epi64x(0x80000000));

	return _mm256_fmadd_ps(_mm256_xor_ps(b, sign), swapped, _mm256_mul_ps(a, table));
}

#endif
