/*
 * Every kernel of every variant that this machine can run, bit for bit against the reference, over odd sizes. A variant
 * that the processor lacks is skipped with a message. One changed bit is the
 * negative control.
 */
#include <float.h>
#include <immintrin.h>
#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "okv/base/digest.h"
#include "okv/base/rng.h"
#include "okv/kernels/kernels.h"

enum { SEED = 20240611 };

static const struct okv_kernels *variant_of(void **state)
{
	const struct okv_kernels *kernels = okv_kernels_named(*state);

	if (!kernels) {
		print_message("this processor has no %s: skipped\n", (const char *)*state);
		skip();
	}
	return kernels;
}

static void *take(size_t size)
{
	void *memory = aligned_alloc(64, (size + 63) / 64 * 64);

	assert_non_null(memory);
	memset(memory, 0, (size + 63) / 64 * 64);
	return memory;
}

static float random_float(struct okv_rng *rng)
{
	return (float)((double)(okv_rng_next(rng) >> 40) / (1 << 23) - 1);
}

/* Random, with some zeroes of both signs, subnormals and large values among them. */
static float random_wild(struct okv_rng *rng)
{
	switch (okv_rng_below(rng, 24)) {
	case 0:
		return 0.0f;
	case 1:
		return -0.0f;
	case 2:
		return random_float(rng) * 0x1p-130f;
	case 3:
		return random_float(rng) * 0x1p12f;
	default:
		return random_float(rng);
	}
}

static void fill(struct okv_rng *rng, float *x, size_t count)
{
	for (size_t i = 0; i < count; i++)
		x[i] = random_wild(rng);
}

static void fill_halves(struct okv_rng *rng, void *at, bool is_f32, size_t count)
{
	for (size_t i = 0; i < count; i++) {
		float value = random_float(rng) * 2;

		if (is_f32)
			((float *)at)[i] = value;
		else
			((uint16_t *)at)[i] = okv_narrow(value);
	}
}

static void assert_same_bits(const float *a, const float *b, size_t count)
{
	for (size_t i = 0; i < count; i++) {
		uint32_t x, y;

		memcpy(&x, &a[i], sizeof x);
		memcpy(&y, &b[i], sizeof y);
		if (x != y)
			fail_msg("value %zu of %zu: %a is not %a (seed %d)", i, count, (double)a[i], (double)b[i],
				 SEED);
	}
}

/* GGUF rows with finite scales. */
static uint8_t *random_rows(struct okv_rng *rng, enum okv_weight_type type, uint32_t outputs, uint32_t inputs)
{
	size_t block = okv_weight_row_bytes(type, OKV_BLOCK), size = outputs * okv_weight_row_bytes(type, inputs);
	uint8_t *rows = take(size);

	for (size_t at = 0; at < size; at += block) {
		for (size_t i = 0; i < block; i++)
			rows[at + i] = (uint8_t)okv_rng_next(rng);
		for (size_t i = 0; i < OKV_BLOCK; i++) {
			float value = random_wild(rng);
			uint16_t half = okv_narrow(value / 16);

			if (type == OKV_WEIGHT_F32)
				memcpy(rows + at + i * 4, &value, 4);
			else if (type == OKV_WEIGHT_F16 || i == 0 || (type == OKV_WEIGHT_Q4_1 && i == 1))
				memcpy(rows + at + i * 2, &half, 2);
		}
	}
	return rows;
}

static struct okv_panels random_panels(struct okv_rng *rng, enum okv_weight_type type, uint32_t outputs,
				       uint32_t inputs, uint32_t groups)
{
	struct okv_panels w = {.type = type, .outputs = outputs, .inputs = inputs, .groups = groups};
	uint8_t *rows = random_rows(rng, type, outputs, inputs);

	w.bytes = take(okv_panels_bytes(type, outputs, inputs));
	okv_panels_pack(&w, rows);
	free(rows);
	return w;
}

static struct okv_activations random_activations(struct okv_rng *rng, uint32_t rows, uint32_t inputs)
{
	uint32_t stride = rows + (uint32_t)okv_rng_below(rng, 3);
	size_t blocks = inputs / OKV_BLOCK * (size_t)stride;
	float *x = take(blocks * OKV_BLOCK * sizeof(float)), *sums = take(blocks * sizeof(float));

	fill(rng, x, blocks * OKV_BLOCK);
	fill(rng, sums, blocks);
	return (struct okv_activations){.x = x, .sums = sums, .rows = rows, .row_stride = stride};
}

static void compare_linear(const struct okv_kernels *kernels, struct okv_rng *rng, enum okv_weight_type type,
			   uint32_t outputs, uint32_t inputs, uint32_t rows, uint32_t groups)
{
	struct okv_panels w = random_panels(rng, type, outputs, inputs, groups);
	struct okv_activations x = random_activations(rng, rows, inputs);
	uint32_t panels = (outputs + OKV_PANEL - 1) / OKV_PANEL;
	size_t size = (size_t)rows * OKV_CHUNK_PANELS * OKV_PANEL;
	float *expected = take(size * 4), *got = take(size * 4), *scratch = take(size * 4);

	for (uint32_t first = 0; first < panels; first += OKV_CHUNK_PANELS) {
		uint32_t count = panels - first < OKV_CHUNK_PANELS ? panels - first : OKV_CHUNK_PANELS;

		okv_kernels_named("reference")->linear(&w, first, count, &x, expected, scratch);
		kernels->linear(&w, first, count, &x, got, scratch);
		assert_same_bits(got, expected, (size_t)rows * count * OKV_PANEL);
	}
	free(w.bytes);
	free((void *)(uintptr_t)x.x);
	free((void *)(uintptr_t)x.sums);
	free(expected);
	free(got);
	free(scratch);
}

static void linear_layers_equal_the_reference_for_every_type_and_size(void **state)
{
	const struct okv_kernels *kernels = variant_of(state);
	static const uint32_t outputs[] = {1, 15, 16, 17, 48, 64, 65, 130}, inputs[] = {32, 64, 160, 576};
	static const uint32_t rows[] = {1, 2, 3, 4, 5, 6, 7, 13};
	struct okv_rng rng = okv_rng_seeded(SEED);

	for (enum okv_weight_type type = OKV_WEIGHT_F32; type <= OKV_WEIGHT_Q8_0; type++)
		for (size_t o = 0; o < 8; o++)
			for (size_t r = 0; r < 8; r++) {
				uint32_t width = inputs[(o + r) % 4], blocks = width / OKV_BLOCK;
				uint32_t groups = 1 + (uint32_t)okv_rng_below(&rng, blocks < 4 ? blocks : 4);

				compare_linear(kernels, &rng, type, outputs[o], width, rows[r], groups);
			}
}

static void rows_do_not_depend_on_their_neighbours(void **state)
{
	const struct okv_kernels *kernels = variant_of(state);
	struct okv_rng rng = okv_rng_seeded(SEED);

	for (enum okv_weight_type type = OKV_WEIGHT_F32; type <= OKV_WEIGHT_Q8_0; type++) {
		struct okv_panels w = random_panels(&rng, type, 64, 192, 3);
		struct okv_activations x = random_activations(&rng, 11, 192), one = x;
		float *all = take(sizeof(float) * 11 * 64), *solo = take(sizeof(float) * 64);
		float *scratch = take(sizeof(float) * 11 * 64);

		kernels->linear(&w, 0, 4, &x, all, scratch);
		one.rows = 1;
		for (uint32_t row = 0; row < 11; row++, one.x += OKV_BLOCK, one.sums++) {
			kernels->linear(&w, 0, 4, &one, solo, scratch);
			assert_same_bits(solo, all + (size_t)row * 64, 64);
		}
		free(w.bytes);
		free((void *)(uintptr_t)x.x);
		free((void *)(uintptr_t)x.sums);
		free(all);
		free(solo);
		free(scratch);
	}
}

static void row_kernels_equal_the_reference(void **state)
{
	const struct okv_kernels *kernels = variant_of(state), *reference = okv_kernels_named("reference");
	struct okv_rng rng = okv_rng_seeded(SEED);
	enum { MOST = 640, STRIDE = 3, ROOM = MOST * STRIDE };
	float *a = take(MOST * 4), *b = take(MOST * 4), *x[2] = {take(ROOM * 4), take(ROOM * 4)};
	float *sums[2] = {take(ROOM * 4), take(ROOM * 4)};

	for (uint32_t width = 32; width <= MOST; width += 32) {
		fill(&rng, a, width);
		fill(&rng, b, width);
		reference->rms_norm(a, b, width, 1e-5f, STRIDE, x[0], sums[0]);
		kernels->rms_norm(a, b, width, 1e-5f, STRIDE, x[1], sums[1]);
		assert_same_bits(x[1], x[0], ROOM);
		assert_same_bits(sums[1], sums[0], ROOM);

		for (uint32_t i = 0; i < width; i++)
			a[i] *= 40;
		reference->swiglu(a, b, width, STRIDE, x[0], sums[0]);
		kernels->swiglu(a, b, width, STRIDE, x[1], sums[1]);
		assert_same_bits(x[1], x[0], ROOM);
		assert_same_bits(sums[1], sums[0], ROOM);

		memcpy(x[0], a, width * 4);
		memcpy(x[1], a, width * 4);
		reference->rope(x[0], b, width - 30);
		kernels->rope(x[1], b, width - 30);
		assert_same_bits(x[1], x[0], width);
	}
	for (int i = 0; i < 2; i++) {
		free(x[i]);
		free(sums[i]);
	}
	free(a);
	free(b);
}

/* One in `STEP` of all floats, tails included; the reference itself is held against libm. */
static void exponential_equals_the_reference_and_is_accurate(void **state)
{
	const struct okv_kernels *kernels = variant_of(state), *reference = okv_kernels_named("reference");
	enum { COUNT = 1003, STEP = 40009 };
	float x[COUNT], expected[COUNT], got[COUNT];
	uint32_t bits = 0, chunks = 0;
	double worst = 0;

	for (; chunks < UINT32_MAX / STEP / COUNT; chunks++) {
		for (int i = 0; i < COUNT; i++, bits += STEP)
			memcpy(&x[i], &bits, 4);
		for (int i = 0; i < COUNT; i++)
			x[i] = isnan(x[i]) ? (float)i * 0.17f - 88 : x[i];
		reference->exponential(x, COUNT, expected);
		kernels->exponential(x, COUNT, got);
		assert_same_bits(got, expected, COUNT);
		for (int i = 0; i < COUNT; i++)
			if (x[i] >= -87 && x[i] <= 88)
				worst = fmax(worst, fabs(expected[i] / exp(x[i]) - 1));
	}
	assert_true(worst < 2e-7);
	assert_true(worst > 0); /* it is not libm's */
}

/* Where e^x changes its nature, and the greatest and least arguments there are; then SwiGLU of the same. */
static void exponential_and_swiglu_equal_the_reference_at_every_edge(void **state)
{
	const struct okv_kernels *kernels = variant_of(state), *reference = okv_kernels_named("reference");
	static const float edges[] = {
		-87,	 -88,	    88,		89,  0,	   -0.0f, INFINITY, -INFINITY,	   FLT_MAX,	  -FLT_MAX,
		FLT_MIN, 0x1p-149f, -0x1p-149f, 104, -104, 0.5f,  -0.5f,    0x1.62e43p-2f, -0x1.62e43p-2f};
	enum { EDGES = sizeof edges / sizeof *edges, COUNT = (3 * EDGES + 31) / 32 * 32 };
	_Alignas(64) float x[COUNT] = {0}, up[COUNT], expected[COUNT], got[COUNT], sums[2][COUNT / 32];
	double exact = exp(-87);

	for (size_t i = 0; i < EDGES; i++) {
		x[3 * i] = nextafterf(edges[i], -INFINITY);
		x[3 * i + 1] = edges[i];
		x[3 * i + 2] = nextafterf(edges[i], INFINITY);
	}
	reference->exponential(x, COUNT, expected);
	kernels->exponential(x, COUNT, got);
	assert_same_bits(got, expected, COUNT);
	assert_true(expected[0] == 0); /* just below -87 */
	assert_true(fabs(expected[1] / exact - 1) < 2e-7);
	assert_true(expected[3 * 2 + 2] == expected[3 * 2 + 1]); /* above 88 */
	assert_true(expected[3 * 4 + 1] == 1 && expected[3 * 5 + 1] == 1);

	/* The greatest finite gates: SwiGLU of infinity is not specified. */
	for (size_t i = 0; i < COUNT; i++) {
		x[i] = isfinite(x[i]) ? x[i] : 88.5f;
		up[i] = (float)i / 64 - 0.5f;
	}
	reference->swiglu(x, up, COUNT, 1, expected, sums[0]);
	kernels->swiglu(x, up, COUNT, 1, got, sums[1]);
	assert_same_bits(got, expected, COUNT);
	for (size_t i = 0; i < COUNT; i++)
		assert_true(!isnan(got[i]));
}

static void half_conversions_agree_for_every_half_and_at_every_tie(void **state)
{
	const struct okv_kernels *kernels = variant_of(state);
	uint16_t half, back;
	float wide, expected;

	for (uint32_t bits = 0; bits < 0x10000; bits++) {
		half = (uint16_t)bits;
		kernels->widen(&half, 1, &wide);
		expected = okv_widen(half);
		assert_memory_equal(&wide, &expected, 4);
		for (int step = -2; step <= 2; step++) { /* around the half, and around the tie above it */
			for (int tie = 0; tie < 2; tie++) {
				uint32_t near;

				memcpy(&near, &wide, 4);
				near += (uint32_t)(step + tie * 0x1000);
				memcpy(&expected, &near, 4);
				kernels->narrow(&expected, 1, &back);
				assert_int_equal(back, okv_narrow(expected));
			}
		}
	}
}

struct paged {
	uint32_t head_dim, group, kv_heads, page_tokens, entries;
	bool is_f32;
};

static uint8_t *random_page(struct okv_rng *rng, bool is_f32, size_t elements)
{
	uint8_t *page = take(elements * (is_f32 ? 4 : 2));

	fill_halves(rng, page, is_f32, elements);
	return page;
}

static void compare_attention(const struct okv_kernels *kernels, struct okv_rng *rng, struct paged p, uint32_t count)
{
	enum { PAGES_MAX = 128, STRIDE = 3 };
	size_t element = p.is_f32 ? 4 : 2, page_elements = (size_t)p.page_tokens * p.kv_heads * p.head_dim;
	uint32_t pages = (p.entries + p.page_tokens - 1) / p.page_tokens, width = p.group * p.head_dim;
	uint32_t head = (uint32_t)okv_rng_below(rng, p.kv_heads);
	struct okv_attended_page page[PAGES_MAX];
	struct okv_attention a = {
		.pages = page,
		.is_f32 = p.is_f32,
		.page_tokens = p.page_tokens,
		.head_dim = p.head_dim,
		.group = p.group,
		.keys_offset = (size_t)head * p.head_dim * p.page_tokens * element,
		.values_offset = (size_t)head * p.head_dim * element,
		.value_stride = (size_t)p.kv_heads * p.head_dim,
		.scale = 0.11f, /* no power of two, so that where it is applied shows */
	};
	float *q = take((size_t)count * width * 4);
	size_t out_size = (size_t)width * (count + STRIDE) * 4;
	struct okv_queries queries[2];
	void *scratch = take(okv_attend_scratch(p.head_dim, p.entries));

	assert_true(pages <= PAGES_MAX);
	fill(rng, q, (size_t)count * width);
	for (uint32_t i = 0; i < pages; i++) {
		page[i].bytes = random_page(rng, p.is_f32, page_elements);
		page[i].rotated = random_page(rng, p.is_f32, page_elements);
	}
	for (int i = 0; i < 2; i++) {
		queries[i] = (struct okv_queries){.q = q,
						  .q_stride = width,
						  .count = count,
						  .visible = p.entries - count + 1,
						  .out = take(out_size),
						  .row_stride = count + STRIDE,
						  .sums = take(out_size / OKV_BLOCK)};
		(i ? kernels : okv_kernels_named("reference"))->attend(&a, &queries[i], scratch);
	}
	assert_same_bits(queries[1].out, queries[0].out, out_size / 4);
	assert_same_bits(queries[1].sums, queries[0].sums, out_size / 4 / OKV_BLOCK);

	for (int i = 0; i < 2; i++) {
		free(queries[i].out);
		free(queries[i].sums);
	}
	for (uint32_t i = 0; i < pages; i++) {
		free((void *)(uintptr_t)page[i].bytes);
		free((void *)(uintptr_t)page[i].rotated);
	}
	free(q);
	free(scratch);
}

static void attention_equals_the_reference_over_pages_and_lengths(void **state)
{
	const struct okv_kernels *kernels = variant_of(state);
	static const uint32_t page_tokens[] = {8, 16, 24, 32, 256}, head_dims[] = {32, 48, 64, 96, 128};
	static const uint32_t entries[] = {1, 7, 8, 17, 64, 65, 255, 256, 257, 300, 530};
	struct okv_rng rng = okv_rng_seeded(SEED);

	for (size_t e = 0; e < 11; e++)
		for (size_t d = 0; d < 5; d++)
			for (int f32 = 0; f32 < 2; f32++) {
				struct paged p = {.head_dim = head_dims[d],
						  .group =
							  head_dims[d] == 48 ? 2 : 1 + (uint32_t)okv_rng_below(&rng, 4),
						  .kv_heads = 2,
						  .page_tokens = page_tokens[okv_rng_below(&rng, 5)],
						  .entries = entries[e],
						  .is_f32 = f32};
				uint32_t most = OKV_QUERY_VECTORS / p.group;
				uint32_t count = 1 + (uint32_t)okv_rng_below(&rng, e % 3 ? 3 : most);

				if (p.entries / p.page_tokens >= 60)
					p.page_tokens = 16;
				compare_attention(kernels, &rng, p, count < p.entries ? count : p.entries);
			}
}

static void rotation_equals_the_reference_for_any_number_of_tokens(void **state)
{
	const struct okv_kernels *kernels = variant_of(state), *reference = okv_kernels_named("reference");
	enum { PAGE = 24, DIM = 64, STRIDE = 3 * DIM };
	struct okv_rng rng = okv_rng_seeded(SEED);
	float *table = take(PAGE * DIM * 4);
	uint8_t *raw = take(PAGE * STRIDE * 4), *rotated[2] = {take(PAGE * DIM * 4), take(PAGE * DIM * 4)};

	okv_rope_table(10000, DIM - 16, DIM, PAGE, table);
	for (int f32 = 0; f32 < 2; f32++)
		for (uint32_t tokens = 1; tokens <= PAGE; tokens++) {
			fill_halves(&rng, raw, f32, PAGE * STRIDE);
			reference->rotate(raw, STRIDE, f32, table, DIM, tokens, PAGE, rotated[0]);
			kernels->rotate(raw, STRIDE, f32, table, DIM, tokens, PAGE, rotated[1]);
			assert_memory_equal(rotated[1], rotated[0], PAGE * DIM * 4);
		}
	free(table);
	free(raw);
	free(rotated[0]);
	free(rotated[1]);
}

static void self_test_passes(void **state)
{
	struct okv_reason reason = {0};
	enum okv_status status = okv_kernels_self_test(variant_of(state), &reason);

	if (status != OKV_OK)
		fail_msg("%s", reason.text);
}

/* ---- tables of which one kernel gives one other bit ---- */

static void flip(float *x)
{
	*x = nextafterf(*x, 2);
}

static void forgetful_exponential(const float *x, uint32_t count, float *ret_x)
{
	okv_kernels_named("reference")->exponential(x, count, ret_x);
	flip(&ret_x[count / 2]);
}

/* Only where tiles of rows are at work. */
static void forgetful_linear(const struct okv_panels *w, uint32_t first, uint32_t count,
			     const struct okv_activations *x, float *ret_out, float *scratch)
{
	okv_kernels_named("reference")->linear(w, first, count, x, ret_out, scratch);
	if (x->rows > 6)
		flip(&ret_out[6 * count * OKV_PANEL]);
}

static void forgetful_norm(const float *h, const float *weight, uint32_t width, float epsilon, size_t row_stride,
			   float *ret_x, float *ret_sums)
{
	okv_kernels_named("reference")->rms_norm(h, weight, width, epsilon, row_stride, ret_x, ret_sums);
	flip(ret_sums);
}

static void forgetful_swiglu(const float *gate, const float *up, uint32_t count, size_t row_stride, float *ret_x,
			     float *ret_sums)
{
	okv_kernels_named("reference")->swiglu(gate, up, count, row_stride, ret_x, ret_sums);
	flip(ret_x);
}

static void forgetful_rope(float *x, const float *table, uint32_t count)
{
	okv_kernels_named("reference")->rope(x, table, count);
	flip(x);
}

static void forgetful_widen(const uint16_t *x, uint32_t count, float *ret_x)
{
	okv_kernels_named("reference")->widen(x, count, ret_x);
	flip(ret_x);
}

static void forgetful_narrow(const float *x, uint32_t count, uint16_t *ret_x)
{
	okv_kernels_named("reference")->narrow(x, count, ret_x);
	ret_x[0] ^= 1;
}

static void forgetful_rotate(const void *raw, size_t stride, bool is_f32, const float *table, uint32_t head_dim,
			     uint32_t tokens, uint32_t page_tokens, void *rotated)
{
	okv_kernels_named("reference")->rotate(raw, stride, is_f32, table, head_dim, tokens, page_tokens, rotated);
	*(uint8_t *)rotated ^= 1;
}

static void forgetful_attend(const struct okv_attention *attention, const struct okv_queries *queries, void *scratch)
{
	okv_kernels_named("reference")->attend(attention, queries, scratch);
	if (attention->is_f32)
		flip(queries->out);
}

static void self_test_refuses_one_changed_bit_of_any_kernel_by_name(void **state)
{
	(void)state;
	const struct okv_kernels *reference = okv_kernels_named("reference");
	struct okv_kernels changed[] = {*reference, *reference, *reference, *reference, *reference,
					*reference, *reference, *reference, *reference};
	static const char *const words[] = {"exponential",	     "linear of many rows",   "norm",	  "swiglu",
					    "rotation and rounding", "rotation and rounding", "rotation", "attention",
					    "attention over f32"};

	changed[0].exponential = forgetful_exponential;
	changed[1].linear = forgetful_linear;
	changed[2].rms_norm = forgetful_norm;
	changed[3].swiglu = forgetful_swiglu;
	changed[4].rope = forgetful_rope;
	changed[5].widen = forgetful_widen;
	changed[6].narrow = forgetful_narrow;
	changed[7].rotate = forgetful_rotate;
	changed[8].attend = forgetful_attend;
	for (size_t i = 0; i < sizeof changed / sizeof *changed; i++) {
		struct okv_reason reason = {0};

		assert_int_equal(okv_kernels_self_test(&changed[i], &reason), OKV_ERR_MISMATCH);
		assert_string_equal(reason.field, "numerics_id");
		if (!strstr(reason.text, words[i]))
			fail_msg("\"%s\" does not say \"%s\"", reason.text, words[i]);
	}
}

static void rope_table_is_as_near_to_libm_as_a_float_can_be(void **state)
{
	(void)state;
	enum { POSITIONS = 8192, DIM = 64, ROPE_DIMS = 48 };
	float *table = take((size_t)POSITIONS * DIM * 4);
	double worst = 0;

	okv_rope_table(1e5, ROPE_DIMS, DIM, POSITIONS, table);
	for (uint32_t position = 0; position < POSITIONS; position += 7)
		for (uint32_t pair = 0; pair < DIM / 2; pair++) {
			double angle = pair < ROPE_DIMS / 2 ? position * pow(1e5, -2.0 * pair / ROPE_DIMS) : 0;
			const float *at = table + (size_t)position * DIM + 2 * pair;

			worst = fmax(worst, fmax(fabs(at[0] - cos(angle)), fabs(at[1] - sin(angle))));
		}
	assert_true(worst < 0x1.01p-25);
	free(table);
}

/*
 * Every schedule's oracle reads this table too, so its bits are held to constants: bases of real models, and one whose
 * logarithm needs the whole series (2^17 * 2/3, the edge of the reduction).
 */
static void rope_table_keeps_its_bits(void **state)
{
	(void)state;
	enum { POSITIONS = 4096, DIM = 64 };
	static const struct {
		double theta;
		uint64_t hash;
	} tables[] = {{1e4, 0xa18354fa94a1adb3},
		      {1e5, 0x83a88a15ab401b88},
		      {5e5, 0x99f8595cd632a16a},
		      {1e6, 0xd897dff11071f0a9},
		      {87381.5, 0xfcfb41b7a1459e63}};
	float *table = take((size_t)POSITIONS * DIM * 4);

	for (size_t i = 0; i < sizeof tables / sizeof *tables; i++) {
		struct okv_crc crc;
		uint64_t hash;

		okv_rope_table(tables[i].theta, DIM, DIM, POSITIONS, table);
		crc = okv_crc_of(table, (size_t)POSITIONS * DIM * 4);
		memcpy(&hash, crc.bytes, sizeof hash);
		if (hash != tables[i].hash)
			fail_msg("base %g: the table's hash is %#llx, not %#llx", tables[i].theta,
				 (unsigned long long)hash, (unsigned long long)tables[i].hash);
	}
	free(table);
}

static void a_packed_row_reads_back_as_its_values(void **state)
{
	(void)state;
	uint8_t rows[3 * 20] = {0};
	uint8_t packed[16 * 20];
	struct okv_panels w = {.type = OKV_WEIGHT_Q4_1, .outputs = 3, .inputs = 32, .groups = 1, .bytes = packed};
	uint16_t d = okv_narrow(0.5f), m = okv_narrow(-3);
	float row[32];

	memcpy(rows + 40, &d, 2);
	memcpy(rows + 42, &m, 2);
	for (unsigned j = 0; j < 16; j++)
		rows[44 + j] = (uint8_t)(j | (15 - j) << 4);
	okv_panels_pack(&w, rows);
	okv_panels_row(&w, 2, row);
	for (unsigned j = 0; j < 16; j++) {
		assert_true(row[j] == (float)j / 2 - 3);
		assert_true(row[j + 16] == (float)(15 - j) / 2 - 3);
	}
}

static void float_mode_is_checked_and_set(void **state)
{
	(void)state;
	unsigned before = _mm_getcsr();

	_mm_setcsr(before | 0x8040); /* flush to zero, denormals are zero */
	assert_false(okv_float_mode_is_set());
	okv_float_mode_set();
	assert_true(okv_float_mode_is_set());
	_mm_setcsr(before);
}

#define BOTH(test)                                                                                                     \
	{#test " (avx2)", test, NULL, NULL, (void *)(uintptr_t) "avx2"},                                               \
	{                                                                                                              \
#test " (avx512)", test, NULL, NULL, (void *)(uintptr_t) "avx512"                                      \
	}

int main(void)
{
	const struct CMUnitTest tests[] = {
		BOTH(linear_layers_equal_the_reference_for_every_type_and_size),
		BOTH(rows_do_not_depend_on_their_neighbours),
		BOTH(row_kernels_equal_the_reference),
		BOTH(exponential_equals_the_reference_and_is_accurate),
		BOTH(exponential_and_swiglu_equal_the_reference_at_every_edge),
		BOTH(half_conversions_agree_for_every_half_and_at_every_tie),
		BOTH(attention_equals_the_reference_over_pages_and_lengths),
		BOTH(rotation_equals_the_reference_for_any_number_of_tokens),
		BOTH(self_test_passes),
		cmocka_unit_test(self_test_refuses_one_changed_bit_of_any_kernel_by_name),
		cmocka_unit_test(rope_table_is_as_near_to_libm_as_a_float_can_be),
		cmocka_unit_test(rope_table_keeps_its_bits),
		cmocka_unit_test(a_packed_row_reads_back_as_its_values),
		cmocka_unit_test(float_mode_is_checked_and_set),
	};
	return cmocka_run_group_tests_name("kernels_equal", tests, NULL, NULL);
}
