/*
 * The reference kernels: the specification, in plain loops. Nothing here is fast and nothing here may be changed
 * without a new numerics id. fmaf() is the one function of the C library used: it is exact by definition.
 */
#include <math.h>
#include <string.h>

#include "exponential.h"
#include "panels.h"
#include "tables.h"

/* ((p0 + p4) + (p2 + p6)) + ((p1 + p5) + (p3 + p7)): the one tree of the contract. */
static float tree(const float *p)
{
	return ((p[0] + p[4]) + (p[2] + p[6])) + ((p[1] + p[5]) + (p[3] + p[7]));
}

static float sum_of_block(const float *x)
{
	float p[8];

	for (int i = 0; i < 8; i++)
		p[i] = ((x[i] + x[i + 8]) + x[i + 16]) + x[i + 24];
	return tree(p);
}

static float chain(const struct okv_panels *w, uint32_t output, uint32_t group, const struct okv_activations *x,
		   uint32_t row)
{
	float out = 0;

	for (uint32_t block = okv__group_start(w, group); block < okv__group_start(w, group + 1); block++) {
		size_t at = (size_t)block * x->row_stride + row;
		struct okv__block weights;
		float part = 0;

		okv__block_read(w, output, block, &weights);
		for (uint32_t k = 0; k < OKV_BLOCK; k++)
			part = fmaf(weights.value[k], x->x[at * OKV_BLOCK + k], part);
		out = weights.is_scaled ? fmaf(weights.d, part, out) : out + part;
		if (weights.has_minimum)
			out = fmaf(weights.m, x->sums[at], out);
	}
	return out;
}

/* NOLINTBEGIN(readability-non-const-parameter): the type is that of the ops table */
static void linear(const struct okv_panels *w, uint32_t first, uint32_t count, const struct okv_activations *x,
		   float *ret_out, float *scratch)
{
	/* NOLINTEND(readability-non-const-parameter) */
	(void)scratch;
	for (uint32_t row = 0; row < x->rows; row++) {
		for (uint32_t i = 0; i < count * OKV_PANEL; i++) {
			uint32_t output = first * OKV_PANEL + i;
			float out = chain(w, output, 0, x, row);

			for (uint32_t group = 1; group < w->groups; group++)
				out += chain(w, output, group, x, row);
			ret_out[(size_t)row * count * OKV_PANEL + i] = out;
		}
	}
}

static void rms_norm(const float *h, const float *weight, uint32_t width, float epsilon, size_t row_stride,
		     float *ret_x, float *ret_sums)
{
	float p[8] = {0}, inverse;

	for (uint32_t i = 0; i < width; i++)
		p[i % 8] = fmaf(h[i], h[i], p[i % 8]);
	inverse = 1 / sqrtf(tree(p) / (float)width + epsilon);

	for (uint32_t block = 0; block < width / OKV_BLOCK; block++) {
		float *x = ret_x + block * row_stride * OKV_BLOCK;

		for (uint32_t k = 0; k < OKV_BLOCK; k++)
			x[k] = h[block * OKV_BLOCK + k] * inverse * weight[block * OKV_BLOCK + k];
		ret_sums[block * row_stride] = sum_of_block(x);
	}
}

static float own_exp(float x)
{
	float bounded = x > OKV__EXP_GREATEST ? OKV__EXP_GREATEST : x;
	float shifted = fmaf(bounded, OKV__EXP_LOG2E, OKV__EXP_ROUNDER), n = shifted - OKV__EXP_ROUNDER, power;
	float r = fmaf(-n, OKV__EXP_LN2_LOW, fmaf(-n, OKV__EXP_LN2_HIGH, bounded));
	float p = fmaf(OKV__EXP_C6, r, OKV__EXP_C5);
	uint32_t bits;

	p = fmaf(p, r, OKV__EXP_C4);
	p = fmaf(p, r, OKV__EXP_C3);
	p = fmaf(p, r, OKV__EXP_C2);
	p = fmaf(p, r, 1);
	p = fmaf(p, r, 1);

	memcpy(&bits, &shifted, sizeof bits);
	bits = (bits << 23) + 0x3f800000; /* 2^n */
	memcpy(&power, &bits, sizeof power);
	return x < OKV__EXP_LEAST ? 0 : p * power;
}

static void exponential(const float *x, uint32_t count, float *ret_x)
{
	for (uint32_t i = 0; i < count; i++)
		ret_x[i] = own_exp(x[i]);
}

static void swiglu(const float *gate, const float *up, uint32_t count, size_t row_stride, float *ret_x, float *ret_sums)
{
	for (uint32_t block = 0; block < count / OKV_BLOCK; block++) {
		float *x = ret_x + block * row_stride * OKV_BLOCK;

		for (uint32_t k = 0; k < OKV_BLOCK; k++) {
			float g = gate[block * OKV_BLOCK + k];

			x[k] = g / (1 + own_exp(-g)) * up[block * OKV_BLOCK + k];
		}
		ret_sums[block * row_stride] = sum_of_block(x);
	}
}

static void rope(float *x, const float *table, uint32_t count)
{
	for (uint32_t i = 0; i < count; i += 2) {
		float c = table[i], s = table[i + 1], a = x[i], b = x[i + 1];

		x[i] = fmaf(-b, s, a * c);
		x[i + 1] = fmaf(b, c, a * s);
	}
}

static void widen(const uint16_t *x, uint32_t count, float *ret_x)
{
	for (uint32_t i = 0; i < count; i++)
		ret_x[i] = okv_widen(x[i]);
}

static void narrow(const float *x, uint32_t count, uint16_t *ret_x)
{
	for (uint32_t i = 0; i < count; i++)
		ret_x[i] = okv_narrow(x[i]);
}

static float load(const void *at, bool is_f32, size_t index)
{
	return is_f32 ? ((const float *)at)[index] : okv_widen(((const uint16_t *)at)[index]);
}

static void rotate(const void *raw, size_t stride, bool is_f32, const float *table, uint32_t head_dim, uint32_t tokens,
		   uint32_t page_tokens, void *rotated)
{
	for (uint32_t token = 0; token < tokens; token++) {
		for (uint32_t i = 0; i < head_dim; i += 2) {
			float pair[2];

			pair[0] = load(raw, is_f32, token * stride + i);
			pair[1] = load(raw, is_f32, token * stride + i + 1);
			rope(pair, table + (size_t)token * head_dim + i, 2);
			for (uint32_t j = 0; j < 2; j++) {
				size_t to = (size_t)(i + j) * page_tokens + token;

				if (is_f32)
					((float *)rotated)[to] = pair[j];
				else
					((uint16_t *)rotated)[to] = okv_narrow(pair[j]);
			}
		}
	}
}

static float score(const struct okv_attention *a, const float *q, uint32_t entry)
{
	const uint8_t *keys = a->pages[entry / a->page_tokens].rotated + a->keys_offset;
	float half[2] = {0, 0};

	for (uint32_t i = 0; i < a->head_dim; i++) {
		float key = load(keys, a->is_f32, (size_t)i * a->page_tokens + entry % a->page_tokens);
		float *sum = &half[i >= a->head_dim / 2];

		*sum = fmaf(q[i], key, *sum);
	}
	return (half[0] + half[1]) * a->scale;
}

static float value(const struct okv_attention *a, uint32_t entry, uint32_t dim)
{
	const uint8_t *values = a->pages[entry / a->page_tokens].bytes + a->values_offset;

	return load(values, a->is_f32, entry % a->page_tokens * a->value_stride + dim);
}

/* Writes e^(score - maximum) of every entry to p and returns their sum, block by block. */
static float weigh(const struct okv_attention *a, const float *q, uint32_t visible, float *p)
{
	float maximum, total = 0;

	for (uint32_t entry = 0; entry < visible; entry++) {
		p[entry] = score(a, q, entry);
		maximum = entry == 0 || p[entry] > maximum ? p[entry] : maximum;
	}
	for (uint32_t start = 0; start < visible; start += OKV_SUM_ENTRIES) {
		float sums[8] = {0};

		for (uint32_t entry = start; entry < visible && entry < start + OKV_SUM_ENTRIES; entry++) {
			p[entry] = own_exp(p[entry] - maximum);
			sums[entry % 8] += p[entry];
		}
		total += tree(sums);
	}
	return total;
}

static void attend(const struct okv_attention *a, const struct okv_queries *queries, void *scratch)
{
	float *p = scratch;

	for (uint32_t vector = 0; vector < queries->count * a->group; vector++) {
		uint32_t row = vector / a->group, head = vector % a->group, visible = queries->visible + row;
		float total = weigh(a, queries->q + row * queries->q_stride + head * a->head_dim, visible, p);
		float inverse = 1 / total;

		for (uint32_t dim = 0; dim < a->head_dim; dim++) {
			size_t at = head * a->head_dim + dim;
			float out = 0;

			for (uint32_t start = 0; start < visible; start += OKV_SUM_ENTRIES) {
				float part = 0;

				for (uint32_t e = start; e < visible && e < start + OKV_SUM_ENTRIES; e++)
					part = fmaf(p[e], value(a, e, dim), part);
				out += part;
			}
			queries->out[(at / OKV_BLOCK * queries->row_stride + row) * OKV_BLOCK + at % OKV_BLOCK] =
				out * inverse;
		}
	}
	for (uint32_t row = 0; row < queries->count; row++)
		for (uint32_t block = 0; block < a->group * a->head_dim / OKV_BLOCK; block++) {
			size_t at = block * queries->row_stride + row;

			queries->sums[at] = sum_of_block(queries->out + at * OKV_BLOCK);
		}
}

const struct okv_kernels okv__kernels_reference = {
	.name = "reference",
	.linear = linear,
	.rms_norm = rms_norm,
	.swiglu = swiglu,
	.exponential = exponential,
	.rope = rope,
	.widen = widen,
	.narrow = narrow,
	.rotate = rotate,
	.attend = attend,
};
