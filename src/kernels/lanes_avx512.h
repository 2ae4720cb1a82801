/* Sixteen float lanes: AVX-512 F, BW, DQ and VL. The names are those of lanes_avx2.h. */
#ifndef OKV_KERNELS_LANES_AVX512_H
#define OKV_KERNELS_LANES_AVX512_H

#include <immintrin.h>
#include <stdint.h>

enum { LANES = 16, TILE_ROWS = 6, TILE_PANELS = 4, SCORE_VECTORS = 4, MIX_QUERIES = 6, FEW_ROWS = 3, FEW_PANELS = 4 };

typedef __m512 v_float;
typedef __m512i v_word;

static inline v_float v_load(const float *at)
{
	return _mm512_loadu_ps(at);
}
static inline void v_store(float *at, v_float a)
{
	_mm512_storeu_ps(at, a);
}
static inline v_float v_set1(float a)
{
	return _mm512_set1_ps(a);
}
static inline v_float v_zero(void)
{
	return _mm512_setzero_ps();
}
static inline v_float v_add(v_float a, v_float b)
{
	return _mm512_add_ps(a, b);
}
static inline v_float v_sub(v_float a, v_float b)
{
	return _mm512_sub_ps(a, b);
}
static inline v_float v_mul(v_float a, v_float b)
{
	return _mm512_mul_ps(a, b);
}
static inline v_float v_div(v_float a, v_float b)
{
	return _mm512_div_ps(a, b);
}
/* a * b + c and c - a * b, rounded once. */
static inline v_float v_fma(v_float a, v_float b, v_float c)
{
	return _mm512_fmadd_ps(a, b, c);
}
static inline v_float v_fnma(v_float a, v_float b, v_float c)
{
	return _mm512_fnmadd_ps(a, b, c);
}
/* The second operand where either is not a number. */
static inline v_float v_min(v_float a, v_float b)
{
	return _mm512_min_ps(a, b);
}
static inline v_float v_max(v_float a, v_float b)
{
	return _mm512_max_ps(a, b);
}
static inline float v_greatest(v_float a)
{
	return _mm512_reduce_max_ps(a);
}
/* `a`, but zero where x < least. */
static inline v_float v_zero_below(v_float a, v_float x, v_float least)
{
	return _mm512_maskz_mov_ps(_mm512_cmp_ps_mask(x, least, _CMP_NLT_UQ), a);
}
/* 2^n from the low bits of n + OKV__EXP_ROUNDER. */
static inline v_float v_power(v_float shifted)
{
	v_word n = _mm512_slli_epi32(_mm512_castps_si512(shifted), 23);

	return _mm512_castsi512_ps(_mm512_add_epi32(n, _mm512_set1_epi32(0x3f800000)));
}
static inline v_float v_load_halves(const uint16_t *at)
{
	return _mm512_cvtph_ps(_mm256_loadu_si256((const __m256i *)(const void *)at));
}
static inline void v_store_halves(uint16_t *at, v_float a)
{
	_mm256_storeu_si256((__m256i *)(void *)at, _mm512_cvtps_ph(a, _MM_FROUND_TO_NEAREST_INT));
}
static inline v_float v_load_bytes(const uint8_t *at)
{
	return _mm512_cvtepi32_ps(_mm512_cvtepi8_epi32(_mm_loadu_si128((const __m128i *)(const void *)at)));
}
static inline v_word v_load_words(const uint8_t *at)
{
	return _mm512_loadu_si512(at);
}

/* The values of the sixteen nibbles, less `bias`: a permute by the low four bits of a lane needs no mask. */
static inline v_float v_nibble_table(int bias)
{
	v_word q = _mm512_setr_epi32(0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15);

	return _mm512_cvtepi32_ps(_mm512_sub_epi32(q, _mm512_set1_epi32(bias)));
}
/* Nibble `j` (a constant) of every word. */
static inline __attribute__((always_inline)) v_float v_nibble(v_word words, unsigned j, v_float table)
{
	return _mm512_permutexvar_ps(_mm512_srli_epi32(words, 4 * j), table);
}

/* Pairs (a, b) rotated by pairs (c, s): fma(-b, s, a c), fma(b, c, a s). */
static inline v_float v_rope(v_float x, v_float table)
{
	v_float a = _mm512_moveldup_ps(x), b = _mm512_movehdup_ps(x), swapped = _mm512_permute_ps(table, 0xb1);
	v_float sign = _mm512_castsi512_ps(_mm512_set1_epi64(0x80000000));

	return _mm512_fmadd_ps(_mm512_xor_ps(b, sign), swapped, _mm512_mul_ps(a, table));
}

#endif
