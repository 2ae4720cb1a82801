/* How attention cuts its scratch memory: the one place that knows sizes and alignment. */
#ifndef OKV_KERNELS_ATTENTION_SCRATCH_H
#define OKV_KERNELS_ATTENTION_SCRATCH_H

#include "okv/kernels/kernels.h"

enum { OKV__STEP = 64 }; /* entries gathered at once; divides OKV_SUM_ENTRIES */

struct okv__attend_scratch {
	float *scores;	      /* [OKV_QUERY_VECTORS][scores_stride] */
	size_t scores_stride; /* okv__scores_stride() */
	float *total, *part;  /* [OKV_QUERY_VECTORS][head_dim] */
	float *tile;	      /* keys [head_dim][OKV__STEP], then values [OKV__STEP][head_dim] */
};

/* visible_max rounded up to OKV__STEP, and one panel, so that rows start on different sets of the cache. */
static inline size_t okv__scores_stride(uint32_t visible_max)
{
	return ((size_t)visible_max + OKV__STEP - 1) / OKV__STEP * OKV__STEP + OKV_PANEL;
}

static inline size_t okv__attend_scratch_floats(uint32_t head_dim, uint32_t visible_max)
{
	return (OKV__STEP + 2 * (size_t)OKV_QUERY_VECTORS) * head_dim +
	       OKV_QUERY_VECTORS * okv__scores_stride(visible_max);
}

/* Written through the pointers that it gives out. NOLINTNEXTLINE(readability-non-const-parameter) */
static inline struct okv__attend_scratch okv__attend_scratch_of(float *memory, uint32_t head_dim, uint32_t visible_max)
{
	size_t per_vector = (size_t)OKV_QUERY_VECTORS * head_dim;
	struct okv__attend_scratch s = {.tile = memory, .scores_stride = okv__scores_stride(visible_max)};

	s.total = s.tile + (size_t)OKV__STEP * head_dim;
	s.part = s.total + per_vector;
	s.scores = s.part + per_vector;
	return s;
}

#endif
