/*
 * Inside a panel: 16 outputs interleaved, one block of 32 inputs after another. Shared by packing and kernels.
 *
 *     F32    float v[32][16]
 *     F16    f16 v[32][16]
 *     Q4_0   f16 d[16]             u32 q[4][16]
 *     Q4_1   f16 d[16], f16 m[16]  u32 q[4][16]
 *     Q8_0   f16 d[16]             s8 q[32][16]
 *
 * Word q[g][o] holds inputs 8g .. 8g+7 of output o, the first in the lowest nibble.
 * Outputs that fill up the last panel have zero scales and values.
 */
#ifndef OKV_KERNELS_PANELS_H
#define OKV_KERNELS_PANELS_H

#include "okv/kernels/kernels.h"

static inline size_t okv__block_bytes(enum okv_weight_type type)
{
	return OKV_PANEL * okv_weight_row_bytes(type, OKV_BLOCK);
}

static inline const uint8_t *okv__panel_block(const struct okv_panels *w, uint32_t panel, uint32_t block)
{
	return w->bytes + ((size_t)panel * (w->inputs / OKV_BLOCK) + block) * okv__block_bytes(w->type);
}

/* Bytes of scales before the values. */
static inline size_t okv__values_offset(enum okv_weight_type type)
{
	switch (type) {
	case OKV_WEIGHT_Q4_1:
		return 2 * OKV_PANEL * sizeof(uint16_t);
	case OKV_WEIGHT_Q4_0:
	case OKV_WEIGHT_Q8_0:
		return OKV_PANEL * sizeof(uint16_t);
	case OKV_WEIGHT_F32:
	case OKV_WEIGHT_F16:
		break;
	}
	return 0;
}

/* The first block of reduction group `group`; group == w->groups gives the end. */
static inline uint32_t okv__group_start(const struct okv_panels *w, uint32_t group)
{
	return (uint32_t)((uint64_t)group * (w->inputs / OKV_BLOCK) / w->groups);
}

/* What one output's block is made of, as the chain uses it; the value of Q4_0's nibble is less 8 here. */
struct okv__block {
	float d, m, value[OKV_BLOCK];
	bool is_scaled, has_minimum;
};
void okv__block_read(const struct okv_panels *w, uint32_t output, uint32_t block, struct okv__block *ret_block);

#endif
