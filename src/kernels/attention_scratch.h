/* How attention cuts its scratch memory: the one place that knows sizes and alignment. */
#ifndef OKV_KERNELS_ATTENTION_SCRATCH_H
#define OKV_KERNELS_ATTENTION_SCRATCH_H

#include "okv/kernels/kernels.h"

enum { OKV__STEP = 64 }; /* entries gathered at once; divides OKV_SUM_ENTRIES */

struct okv__attend_scratch {
	float *scores;	      /* [OKV_QUERY_VECTORS][scores_stride] */
	size_t scores_stride; /* visible_max rounded up to OKV__STEP, and one step so that rows start on different sets
			       */
	float *total, *part;  /* [OKV_QUERY_VECTORS][head_dim] */
	float *tile;	      /* keys [head_dim][OKV__STEP], then values [OKV__STEP][head_dim] */
	size_t size;	      /* floats in all */
};

static inline struct okv__attend_scratch okv__attend_scratch_of(float *memory, uint32_t head_dim, uint32_t visible_max)
{
	struct okv__attend_scratch s;
	size_t per_vector = (size_t)OKV_QUERY_VECTORS * head_dim;

	s.scores_stride = ((size_t)visible_max + OKV__STEP - 1) / OKV__STEP * OKV__STEP + OKV_PANEL;
	s.tile = memory;
	s.total = s.tile + (size_t)OKV__STEP * head_dim;
	s.part = s.total + per_vector;
	s.scores = s.part + per_vector;
	s.size = (size_t)OKV__STEP * head_dim + 2 * per_vector + OKV_QUERY_VECTORS * s.scores_stride;
	return s;
}

#endif
