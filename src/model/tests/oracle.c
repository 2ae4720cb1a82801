#include "oracle.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "okv/base/status.h"
#include "okv/kernels/kernels.h"

enum { WIDTH_MAX = 512, VISIBLE_MAX = 1024 };

/* fmaf() is exact wherever it is computed; as an instruction it is twenty times faster than as a call of the C library.
 */
#define FMA __attribute__((target("fma")))

bool oracle_can_run(void)
{
	return __builtin_cpu_supports("fma");
}

struct oracle {
	const struct okv_gguf *gguf;
	const struct okv_model_shape *s;
	enum okv_kv_dtype dtype;
	float *rope;
	float *keys, *values; /* [layer][context][kv_heads * head_dim]: rotated keys, as they are rounded */
	uint32_t position;
};

struct oracle *oracle_create(const struct okv_gguf *gguf, const struct okv_model_shape *shape, enum okv_kv_dtype dtype)
{
	struct oracle *o = calloc(1, sizeof *o);
	size_t kv = (size_t)shape->layers * shape->context * shape->kv_heads * shape->head_dim;

	OKV_ASSERT(o && shape->width <= WIDTH_MAX && shape->ffn <= WIDTH_MAX && shape->context <= VISIBLE_MAX);
	o->gguf = gguf;
	o->s = shape;
	o->dtype = dtype;
	o->rope = calloc((size_t)shape->context * shape->head_dim, sizeof(float));
	o->keys = calloc(kv, sizeof(float));
	o->values = calloc(kv, sizeof(float));
	OKV_ASSERT(o->rope && o->keys && o->values);
	okv_rope_table(shape->rope_theta, shape->rope_dims, shape->head_dim, shape->context, o->rope);
	return o;
}

void oracle_destroy(struct oracle *oracle)
{
	if (!oracle)
		return;
	free(oracle->rope);
	free(oracle->keys);
	free(oracle->values);
	free(oracle);
}

void oracle_clear(struct oracle *oracle)
{
	oracle->position = 0;
}

static const struct okv_gguf_tensor *tensor_of(const struct oracle *o, int layer, const char *name)
{
	const struct okv_gguf_tensor *tensor;
	char full[64];

	if (layer < 0)
		snprintf(full, sizeof full, "%s.weight", name);
	else
		snprintf(full, sizeof full, "blk.%d.%s.weight", layer, name);
	tensor = okv_gguf_tensor_find(o->gguf, full);
	OKV_ASSERT(tensor);
	return tensor;
}

/* ---- section 2: weights ---- */

struct block {
	float d, m, value[32];
	bool is_scaled, has_minimum;
};

static uint16_t half_at(const uint8_t *at)
{
	return (uint16_t)(at[0] | at[1] << 8);
}

static struct block block_at(const struct okv_gguf_tensor *tensor, uint64_t row, uint64_t block)
{
	static const size_t sizes[] = {[OKV_TENSOR_F32] = 128,
				       [OKV_TENSOR_F16] = 64,
				       [OKV_TENSOR_Q4_0] = 18,
				       [OKV_TENSOR_Q4_1] = 20,
				       [OKV_TENSOR_Q8_0] = 34};
	const uint8_t *at = tensor->data + (row * (tensor->extent[0] / 32) + block) * sizes[tensor->type];
	struct block b = {.is_scaled = true};

	switch (tensor->type) {
	case OKV_TENSOR_F32:
		b.is_scaled = false;
		memcpy(b.value, at, 128);
		break;
	case OKV_TENSOR_F16:
		b.is_scaled = false;
		for (int k = 0; k < 32; k++)
			b.value[k] = okv_widen(half_at(at + 2 * k));
		break;
	case OKV_TENSOR_Q4_0:
		b.d = okv_widen(half_at(at));
		for (int k = 0; k < 16; k++) {
			b.value[k] = (float)((at[2 + k] & 15) - 8);
			b.value[k + 16] = (float)((at[2 + k] >> 4) - 8);
		}
		break;
	case OKV_TENSOR_Q4_1:
		b.has_minimum = true;
		b.d = okv_widen(half_at(at));
		b.m = okv_widen(half_at(at + 2));
		for (int k = 0; k < 16; k++) {
			b.value[k] = (float)(at[4 + k] & 15);
			b.value[k + 16] = (float)(at[4 + k] >> 4);
		}
		break;
	case OKV_TENSOR_Q8_0:
		b.d = okv_widen(half_at(at));
		for (int k = 0; k < 32; k++)
			b.value[k] = (float)(int8_t)at[2 + k];
		break;
	}
	return b;
}

static void embed(const struct oracle *o, uint32_t token, float *h)
{
	const struct okv_gguf_tensor *tensor = tensor_of(o, -1, "token_embd");

	for (uint32_t i = 0; i < o->s->width; i++) {
		struct block b = block_at(tensor, token, i / 32);

		h[i] = b.is_scaled ? fmaf(b.d, b.value[i % 32], b.m) : b.value[i % 32];
	}
}

/* ---- section 3: sums ---- */

static float tree8(const float *p)
{
	return ((p[0] + p[4]) + (p[2] + p[6])) + ((p[1] + p[5]) + (p[3] + p[7]));
}

static float sum32(const float *x)
{
	float p[8];

	for (int i = 0; i < 8; i++)
		p[i] = ((x[i] + x[i + 8]) + x[i + 16]) + x[i + 24];
	return tree8(p);
}

FMA static float chain(const struct okv_gguf_tensor *tensor, uint32_t row, const float *x, uint64_t from, uint64_t to)
{
	float out = 0;

	for (uint64_t block = from; block < to; block++) {
		struct block b = block_at(tensor, row, block);
		float part = 0;

		for (int k = 0; k < 32; k++)
			part = fmaf(b.value[k], x[block * 32 + (uint64_t)k], part);
		out = b.is_scaled ? fmaf(b.d, part, out) : out + part;
		if (b.has_minimum)
			out = fmaf(b.m, sum32(x + block * 32), out);
	}
	return out;
}

static void linear(const struct okv_gguf_tensor *tensor, const float *x, uint32_t groups, float *out)
{
	uint64_t blocks = tensor->extent[0] / 32;

	groups = groups < blocks ? groups : (uint32_t)blocks;
	for (uint32_t row = 0; row < tensor->extent[1]; row++) {
		out[row] = chain(tensor, row, x, 0, blocks / groups);
		for (uint32_t g = 1; g < groups; g++)
			out[row] = out[row] + chain(tensor, row, x, g * blocks / groups, (g + 1) * blocks / groups);
	}
}

/* ---- sections 4 and 5: norms and e^x ---- */

static void norm(const struct oracle *o, const struct okv_gguf_tensor *weight, const float *h, float *x)
{
	float p[8] = {0}, inverse;

	for (uint32_t i = 0; i < o->s->width; i++)
		p[i % 8] = fmaf(h[i], h[i], p[i % 8]);
	inverse = 1 / sqrtf(tree8(p) / (float)o->s->width + (float)o->s->norm_epsilon);
	for (uint32_t i = 0; i < o->s->width; i++) {
		float w;

		memcpy(&w, weight->data + i * 4, 4);
		x[i] = (h[i] * inverse) * w;
	}
}

static float e_to(float x)
{
	float n, r, p;

	if (x < -87)
		return 0;
	x = x > 88 ? 88 : x;
	n = fmaf(x, 0x1.715476p+0f, 0x1.8p+23f) - 0x1.8p+23f;
	r = fmaf(-n, 0x1.63p-1f, x);
	r = fmaf(-n, -0x1.bd0106p-13f, r);
	p = fmaf(0x1.6d444ep-10f, r, 0x1.120c68p-7f);
	p = fmaf(p, r, 0x1.5554e8p-5f);
	p = fmaf(p, r, 0x1.5554dcp-3f);
	p = fmaf(p, r, 0.5f);
	p = fmaf(p, r, 1);
	p = fmaf(p, r, 1);
	return p * ldexpf(1, (int)n);
}

/* ---- section 6: RoPE and attention ---- */

static void rotate(const struct oracle *o, float *x, uint32_t heads)
{
	const float *table = o->rope + (size_t)o->position * o->s->head_dim;

	for (uint32_t head = 0; head < heads; head++)
		for (uint32_t i = 0; i < o->s->head_dim; i += 2) {
			float *at = x + head * o->s->head_dim + i, a = at[0], b = at[1];

			at[0] = fmaf(-b, table[i + 1], a * table[i]);
			at[1] = fmaf(b, table[i], a * table[i + 1]);
		}
}

static void round_kv(const struct oracle *o, float *x, uint32_t count)
{
	for (uint32_t i = 0; o->dtype == OKV_KV_F16 && i < count; i++)
		x[i] = okv_widen(okv_narrow(x[i]));
}

FMA static void attend_head(const struct oracle *o, const float *q, const float *keys, const float *values, float *out)
{
	uint32_t dim = o->s->head_dim, stride = o->s->kv_heads * dim, visible = o->position + 1;
	float p[VISIBLE_MAX] = {0}, most = 0, total = 0;

	for (uint32_t j = 0; j < visible; j++) {
		float low = 0, high = 0;

		for (uint32_t i = 0; i < dim / 2; i++) {
			low = fmaf(q[i], keys[j * stride + i], low);
			high = fmaf(q[dim / 2 + i], keys[j * stride + dim / 2 + i], high);
		}
		p[j] = (low + high) * (1 / sqrtf((float)dim));
		most = j == 0 || p[j] > most ? p[j] : most;
	}
	memset(out, 0, dim * sizeof *out);
	for (uint32_t start = 0; start < visible; start += 256) {
		float sums[8] = {0}, part[WIDTH_MAX] = {0};

		for (uint32_t j = start; j < visible && j < start + 256; j++) {
			p[j] = e_to(p[j] - most);
			sums[j % 8] = sums[j % 8] + p[j];
			for (uint32_t i = 0; i < dim; i++)
				part[i] = fmaf(p[j], values[j * stride + i], part[i]);
		}
		total = total + tree8(sums);
		for (uint32_t i = 0; i < dim; i++)
			out[i] = out[i] + part[i];
	}
	for (uint32_t i = 0; i < dim; i++)
		out[i] = out[i] * (1 / total);
}

static void attention(struct oracle *o, int layer, const float *x, float *attended)
{
	uint32_t dim = o->s->head_dim, kv = o->s->kv_heads * dim, group = o->s->heads / o->s->kv_heads;
	float *keys = o->keys + (size_t)layer * o->s->context * kv,
	      *values = o->values + (size_t)layer * o->s->context * kv;
	float *key = keys + (size_t)o->position * kv, *value = values + (size_t)o->position * kv;
	float q[WIDTH_MAX] = {0};

	OKV_ASSERT(group >= 1);
	linear(tensor_of(o, layer, "attn_q"), x, 1, q);
	linear(tensor_of(o, layer, "attn_k"), x, 1, key);
	linear(tensor_of(o, layer, "attn_v"), x, 1, value);
	rotate(o, q, o->s->heads);
	round_kv(o, key, kv);
	rotate(o, key, o->s->kv_heads);
	round_kv(o, key, kv);
	round_kv(o, value, kv);
	for (uint32_t head = 0; head < o->s->heads; head++)
		attend_head(o, q + head * dim, keys + head / group * dim, values + head / group * dim,
			    attended + head * dim);
}

/* ---- section 7: the pass ---- */

void oracle_append(struct oracle *o, uint32_t token, float *ret_logits)
{
	float h[WIDTH_MAX] = {0}, x[WIDTH_MAX] = {0}, attended[WIDTH_MAX] = {0};
	float gate[WIDTH_MAX] = {0}, up[WIDTH_MAX] = {0}, add[WIDTH_MAX] = {0};
	uint32_t width = o->s->width;

	OKV_ASSERT(o->position < o->s->context);
	embed(o, token, h);
	for (int layer = 0; layer < (int)o->s->layers; layer++) {
		norm(o, tensor_of(o, layer, "attn_norm"), h, x);
		attention(o, layer, x, attended);
		linear(tensor_of(o, layer, "attn_output"), attended, o->s->kv_heads, add);
		for (uint32_t i = 0; i < width; i++)
			h[i] = h[i] + add[i];

		norm(o, tensor_of(o, layer, "ffn_norm"), h, x);
		linear(tensor_of(o, layer, "ffn_gate"), x, 1, gate);
		linear(tensor_of(o, layer, "ffn_up"), x, 1, up);
		for (uint32_t i = 0; i < o->s->ffn; i++)
			gate[i] = (gate[i] / (1 + e_to(-gate[i]))) * up[i];
		linear(tensor_of(o, layer, "ffn_down"), gate, o->s->kv_heads, add);
		for (uint32_t i = 0; i < width; i++)
			h[i] = h[i] + add[i];
	}
	norm(o, tensor_of(o, -1, "output_norm"), h, x);
	linear(tensor_of(o, -1, okv_gguf_tensor_find(o->gguf, "output.weight") ? "output" : "token_embd"), x, 1,
	       ret_logits);
	o->position++;
}
