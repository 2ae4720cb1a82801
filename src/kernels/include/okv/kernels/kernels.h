/*
 * Kernels: the arithmetic of a forward pass, with every bit fixed by docs/numerics.md.
 *
 * One ops table, `struct okv_kernels`, has three implementations: "reference" (plain loops, the specification), "avx2"
 * (AVX2, FMA, F16C) and "avx512" (AVX-512 F/BW/DQ/VL). They give the same bits for every input, because vector lanes
 * run across outputs and never along a sum: width, tiles, batch and threads cannot show in a result. The table is
 * chosen once, at start (okv_kernels_best), and checked by okv_kernels_self_test() against hashes in the source.
 *
 * Memory layouts
 *   panels       a weight matrix [outputs][inputs] cut into panels of 16 outputs; a panel is a run of blocks of 32
 *                inputs, each block holding its 16 scales and then its values interleaved (panels.c draws them).
 *                16 GGUF blocks and one panel block have the same size, so a matrix costs what it costs in the file.
 *   activations  [block of 32 inputs][row][32], with the sum of each (block, row) beside them: what one step of the
 *                reduction reads lies together.
 *   KV           values f16 or f32; a page's `rotated` plane is [layer][kv head][dimension][token], so that lanes run
 *                across keys.
 *
 * Everything here is pure: no state, no allocation, no errors; arguments are promises of the caller. Tables are
 * constant. Any thread may call anything, with the floating-point mode of okv_float_mode_set().
 */
#ifndef OKV_KERNELS_KERNELS_H
#define OKV_KERNELS_KERNELS_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "okv/base/status.h"

enum {
	OKV_BLOCK = 32,		/* inputs of one link of the reduction chain */
	OKV_PANEL = 16,		/* outputs that are interleaved */
	OKV_CHUNK_PANELS = 4,	/* a GEMM works on this many panels at once */
	OKV_SUM_ENTRIES = 256,	/* list entries of one attention block */
	OKV_QUERY_VECTORS = 48, /* most query heads x rows of one okv_attend call */
};

enum okv_weight_type { OKV_WEIGHT_F32, OKV_WEIGHT_F16, OKV_WEIGHT_Q4_0, OKV_WEIGHT_Q4_1, OKV_WEIGHT_Q8_0 };

struct okv_panels {
	enum okv_weight_type type;
	uint32_t outputs, inputs; /* inputs is a multiple of OKV_BLOCK */
	uint32_t groups;	  /* the reduction's groups, 1..inputs / OKV_BLOCK; added in order */
	uint8_t *bytes;		  /* okv_panels_bytes() of them, 64-byte aligned; owned by who allocated them */
};

struct okv_activations {
	const float *x;	     /* [block][row_stride][OKV_BLOCK], 64-byte aligned */
	const float *sums;   /* [block][row_stride] */
	uint32_t rows;	     /* in use */
	uint32_t row_stride; /* >= rows */
};

/* A page of KV memory as attention reads it. */
struct okv_attended_page {
	const uint8_t *bytes;	/* [layer][Kraw, V][token][kv head x dim] */
	const uint8_t *rotated; /* the derived plane */
};

/* Where attention finds one KV head of one layer in any page of a sequence. */
struct okv_attention {
	const struct okv_attended_page *pages; /* the page table of the sequence */
	bool is_f32;			       /* else f16 */
	uint32_t page_tokens;		       /* a multiple of 8 */
	uint32_t head_dim;		       /* a multiple of 16 */
	uint32_t group;			       /* query heads that share the KV head */
	size_t keys_offset;		       /* bytes from a page's `rotated` to [dimension][token] */
	size_t values_offset;		       /* bytes from a page's `bytes` to the head's V of token 0 */
	size_t value_stride;		       /* elements from one token's V to the next */
	float scale;			       /* multiplies every score */
};

/* Consecutive rows of one sequence: row t sees list entries 0 .. visible + t - 1. */
struct okv_queries {
	const float *q;	   /* [row][q_stride]: `group` rotated query heads one after another */
	size_t q_stride;   /* floats */
	uint32_t count;	   /* rows; count * group <= OKV_QUERY_VECTORS */
	uint32_t visible;  /* >= 1 */
	float *out;	   /* activations layout: the first row's first block */
	size_t row_stride; /* rows between blocks */
	float *sums;	   /* [block][row_stride]; group * head_dim is a multiple of OKV_BLOCK */
};

struct okv_kernels {
	const char *name;

	/*
	 * Rows times panels first .. first + count - 1 (count <= OKV_CHUNK_PANELS): ret_out[row][count * OKV_PANEL].
	 * `scratch` has the size of ret_out and is used when the matrix has several groups. Outputs beyond
	 * `w->outputs` are zero.
	 */
	void (*linear)(const struct okv_panels *w, uint32_t first, uint32_t count, const struct okv_activations *x,
		       float *ret_out, float *scratch);

	/* One row: x = (h / sqrt(mean(h^2) + epsilon)) * weight into activations with `row_stride`, and its sums. */
	void (*rms_norm)(const float *h, const float *weight, uint32_t width, float epsilon, size_t row_stride,
			 float *ret_x, float *ret_sums);

	/* silu(gate) * up for `count` (a multiple of OKV_BLOCK) values of one row, into activations, and its sums. */
	void (*swiglu)(const float *gate, const float *up, uint32_t count, size_t row_stride, float *ret_x,
		       float *ret_sums);

	/* ret_x[i] = e^x[i] as softmax and SwiGLU use it; any count. For tests and the self-test. */
	void (*exponential)(const float *x, uint32_t count, float *ret_x);

	/* Rotates adjacent pairs of x (count even) by `table` = (cos, sin) per pair, in place. */
	void (*rope)(float *x, const float *table, uint32_t count);

	void (*widen)(const uint16_t *x, uint32_t count, float *ret_x);
	void (*narrow)(const float *x, uint32_t count, uint16_t *ret_x);

	/*
	 * K of the first `tokens` tokens of one KV head: raw[token * stride ..] rotated by table[token][head_dim] and
	 * rounded into rotated[dimension][page_tokens]. Elements are f16 or f32 as is_f32 says; stride in elements.
	 */
	void (*rotate)(const void *raw, size_t stride, bool is_f32, const float *table, uint32_t head_dim,
		       uint32_t tokens, uint32_t page_tokens, void *rotated);

	/* Scratch: okv_attend_scratch() bytes, 64-byte aligned. */
	void (*attend)(const struct okv_attention *attention, const struct okv_queries *queries, void *scratch);
};

/* The fastest table that this processor and operating system can run. */
const struct okv_kernels *okv_kernels_best(void);
/* "reference", "avx2" or "avx512"; NULL if unknown or not runnable here. */
const struct okv_kernels *okv_kernels_named(const char *name);

/* Compares results with the hashes in the source. OKV_ERR_MISMATCH names the kernel whose bits differ. */
OKV_MUST_CHECK enum okv_status okv_kernels_self_test(const struct okv_kernels *kernels, struct okv_reason *reason);

/* The id of docs/numerics.md; changes whenever any result bit could. */
const char *okv_kernels_numerics_id(void);

/* Sets this thread to round to nearest with subnormals kept, all exceptions masked. */
void okv_float_mode_set(void);
bool okv_float_mode_is_set(void);

/* Bytes of one row of `inputs` values in the GGUF layout, and of a whole packed matrix. */
size_t okv_weight_row_bytes(enum okv_weight_type type, uint32_t inputs);
size_t okv_panels_bytes(enum okv_weight_type type, uint32_t outputs, uint32_t inputs);
/* Fills panels->bytes from GGUF rows, whose values and scales are finite. */
void okv_panels_pack(const struct okv_panels *panels, const uint8_t *rows);
/* Widens one output's weights: d * q, fma(d, q, m), or the value itself. */
void okv_panels_row(const struct okv_panels *panels, uint32_t output, float *ret_row);

/*
 * The RoPE table: [position][head_dim] as (cos, sin) pairs for positions 0 .. positions - 1; the angle of pair i is
 * position * theta^(-2 i / rope_dims), and pairs from rope_dims / 2 on are not rotated. Angles in double, with our own
 * exp, log, sin and cos (+ - * / fma only).
 */
void okv_rope_table(double theta, uint32_t rope_dims, uint32_t head_dim, uint32_t positions, float *ret_table);

/* 1 / sqrt(head_dim), the scale of scores. */
float okv_score_scale(uint32_t head_dim);

/* Bytes of scratch for okv_kernels.attend over at most `visible_max` entries. */
size_t okv_attend_scratch(uint32_t head_dim, uint32_t visible_max);

/* IEEE conversions without hardware; round to nearest even, subnormals kept. */
float okv_widen(uint16_t half);
uint16_t okv_narrow(float value);

#endif
