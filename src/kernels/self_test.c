/* Hashes of results over fixed inputs, compared with constants: docs/numerics.md tells how they were made. */
#include <stdlib.h>
#include <string.h>

#include "okv/base/digest.h"
#include "okv/base/rng.h"
#include "okv/kernels/kernels.h"

enum {
	ROWS = 3,
	ROWS_MANY = 8,
	INPUTS = 128,
	OUTPUTS = 32,
	DIM = 64,
	PAGE = 16,
	PAGES = 18,
	GROUP = 2,
	FLOATS_MAX = 4096
};

/* Everything the test works on; the inputs come from okv_mix64 counters, so that no library can change them. */
struct bench {
	_Alignas(64) uint8_t rows[OUTPUTS * INPUTS * 4], packed[OUTPUTS * INPUTS * 4];
	_Alignas(64) float x[ROWS_MANY * INPUTS], sums[ROWS_MANY * INPUTS / OKV_BLOCK];
	_Alignas(64) float out[FLOATS_MAX], scratch[32768];
	_Alignas(64) uint8_t values[PAGES][PAGE * DIM * 4], rotated[PAGES][PAGE * DIM * 4]; /* f16, or f32 */
};

static float unit(uint64_t counter)
{
	return (float)((int64_t)(okv_mix64(counter) >> 40) - (1 << 23)) * 0x1p-23f;
}

static uint64_t hash_of(const void *bytes, size_t size)
{
	struct okv_crc crc = okv_crc_of(bytes, size);
	uint64_t value;

	memcpy(&value, crc.bytes, sizeof value);
	return value;
}

static void fill_rows(struct bench *b, enum okv_weight_type type)
{
	size_t block = okv_weight_row_bytes(type, OKV_BLOCK), size = OUTPUTS * okv_weight_row_bytes(type, INPUTS);

	for (size_t at = 0; at < size; at++)
		b->rows[at] = (uint8_t)okv_mix64(at);
	for (size_t at = 0; at < size; at += block) {
		for (size_t i = 0; i < OKV_BLOCK; i++) {
			float value = unit(at + i) / 8;
			uint16_t half = okv_narrow(value);

			if (type == OKV_WEIGHT_F32)
				memcpy(b->rows + at + i * 4, &value, 4);
			else if (type == OKV_WEIGHT_F16 || i == 0 || (i == 1 && type == OKV_WEIGHT_Q4_1))
				memcpy(b->rows + at + i * 2, &half, 2);
		}
	}
}

static void run_linear(const struct okv_kernels *kernels, struct bench *b, enum okv_weight_type type, uint32_t rows,
		       float *ret_out)
{
	struct okv_panels w = {.type = type, .outputs = OUTPUTS, .inputs = INPUTS, .groups = 2, .bytes = b->packed};
	struct okv_activations x = {.x = b->x, .sums = b->sums, .rows = rows, .row_stride = rows};

	fill_rows(b, type);
	okv_panels_pack(&w, b->rows);
	kernels->linear(&w, 0, OUTPUTS / OKV_PANEL, &x, ret_out, b->scratch);
}

static uint64_t linear_hash(const struct okv_kernels *kernels, struct bench *b, enum okv_weight_type type)
{
	run_linear(kernels, b, type, ROWS, b->out);
	return hash_of(b->out, sizeof(float) * ROWS * OUTPUTS);
}

/* Many rows take other code than few: every type, one hash. */
static uint64_t many_rows_hash(const struct okv_kernels *kernels, struct bench *b)
{
	enum { RESULTS = ROWS_MANY * OUTPUTS };

	for (unsigned type = 0; type <= OKV_WEIGHT_Q8_0; type++)
		run_linear(kernels, b, (enum okv_weight_type)type, ROWS_MANY, b->out + (size_t)type * RESULTS);
	return hash_of(b->out, sizeof(float) * RESULTS * (OKV_WEIGHT_Q8_0 + 1));
}

static uint64_t exponential_hash(const struct okv_kernels *kernels, struct bench *b)
{
	for (uint32_t i = 0; i < FLOATS_MAX; i++)
		b->scratch[i] = (float)i * 0.043f - 87.5f;
	kernels->exponential(b->scratch, FLOATS_MAX, b->out);
	return hash_of(b->out, sizeof b->out);
}

static uint64_t rows_hash(const struct okv_kernels *kernels, struct bench *b)
{
	memset(b->out, 0, sizeof b->out);
	kernels->rms_norm(b->x, b->x + INPUTS, INPUTS, 1e-5f, 1, b->out, b->out + INPUTS);
	kernels->swiglu(b->x, b->x + INPUTS, INPUTS, 1, b->out + 2 * INPUTS, b->out + 3 * INPUTS);
	return hash_of(b->out, sizeof(float) * 4 * INPUTS);
}

static uint64_t rope_hash(struct bench *b)
{
	okv_rope_table(1e5, DIM, DIM, FLOATS_MAX / DIM, b->out);
	return hash_of(b->out, sizeof b->out);
}

/* q as the graph rotates it, and what a page holds: rounded to f16 and widened again. */
static uint64_t rotation_hash(const struct okv_kernels *kernels, struct bench *b)
{
	float *x = b->out, *table = b->scratch;

	okv_rope_table(1e4, DIM, DIM, ROWS_MANY * INPUTS / DIM, table);
	memcpy(x, b->x, sizeof b->x);
	kernels->rope(x, table, ROWS_MANY * INPUTS);
	kernels->narrow(x, ROWS_MANY * INPUTS, (uint16_t *)(void *)b->values);
	kernels->widen((const uint16_t *)(const void *)b->values, ROWS_MANY * INPUTS, x + ROWS_MANY * INPUTS);
	return hash_of(x, sizeof(float) * 2 * ROWS_MANY * INPUTS);
}

static void fill_page(struct bench *b, uint32_t page, bool is_f32)
{
	for (uint32_t i = 0; i < PAGE * DIM; i++) {
		float value = unit(page * PAGE * DIM + i) * 3;
		uint16_t half = okv_narrow(value);

		if (is_f32)
			memcpy(b->values[page] + (size_t)i * 4, &value, 4);
		else
			memcpy(b->values[page] + (size_t)i * 2, &half, 2);
	}
}

static uint64_t attention_hash(const struct okv_kernels *kernels, struct bench *b, bool is_f32)
{
	struct okv_attended_page pages[PAGES];
	struct okv_attention a = {.pages = pages,
				  .is_f32 = is_f32,
				  .page_tokens = PAGE,
				  .head_dim = DIM,
				  .group = GROUP,
				  .value_stride = DIM,
				  .scale = is_f32 ? 0.11f : 0.125f}; /* rounded, and exact */
	struct okv_queries queries = {.q = b->x,
				      .q_stride = 1,
				      .count = 2,
				      .visible = PAGES * PAGE - 1,
				      .out = b->out,
				      .row_stride = 2,
				      .sums = b->out + 2 * GROUP * DIM};

	okv_rope_table(1e4, DIM, DIM, PAGE, b->out);
	for (uint32_t p = 0; p < PAGES; p++) {
		fill_page(b, p, is_f32);
		kernels->rotate(b->values[p], DIM, is_f32, b->out, DIM, PAGE, PAGE, b->rotated[p]);
		pages[p] = (struct okv_attended_page){.bytes = b->values[p], .rotated = b->rotated[p]};
	}
	kernels->attend(&a, &queries, b->scratch);
	return hash_of(b->out, sizeof(float) * (2 * GROUP * DIM + 2 * GROUP * DIM / OKV_BLOCK));
}

/* In the order of the checks below; regenerated only together with the numerics id. */
static const struct {
	const char *name;
	uint64_t hash;
} expected[] = {
	{"linear F32", 0x8ac2f37bc332c654},
	{"linear F16", 0xe963277bf04e56e6},
	{"linear Q4_0", 0xfc2020e2dcd8a281},
	{"linear Q4_1", 0xf9cc33fc5cbabbfa},
	{"linear Q8_0", 0xec094ccf77cf630d},
	{"exponential", 0x6ab48fd7e8e6c21f},
	{"norm and swiglu", 0xc0603c7712cb3719},
	{"rope table", 0xc6a55442650eed2c},
	{"attention", 0xc38fa099218c903f},
	{"linear of many rows", 0xcf90ede03101b8a8},
	{"rotation and rounding", 0x9f5248061962f207},
	{"attention over f32", 0x316f77cdf5029551},
};

enum { LINEAR_CHECKS = OKV_WEIGHT_Q8_0 + 1, CHECKS = sizeof expected / sizeof *expected };

static uint64_t hash_check(const struct okv_kernels *kernels, struct bench *b, unsigned check)
{
	switch (check) {
	case LINEAR_CHECKS:
		return exponential_hash(kernels, b);
	case LINEAR_CHECKS + 1:
		return rows_hash(kernels, b);
	case LINEAR_CHECKS + 2:
		return rope_hash(b);
	case LINEAR_CHECKS + 3:
		return attention_hash(kernels, b, false);
	case LINEAR_CHECKS + 4:
		return many_rows_hash(kernels, b);
	case LINEAR_CHECKS + 5:
		return rotation_hash(kernels, b);
	case LINEAR_CHECKS + 6:
		return attention_hash(kernels, b, true);
	default:
		return linear_hash(kernels, b, (enum okv_weight_type)check);
	}
}

enum okv_status okv_kernels_self_test(const struct okv_kernels *kernels, struct okv_reason *reason)
{
	enum okv_status status = OKV_OK;
	struct bench *b = aligned_alloc(64, sizeof *b);

	if (!b)
		return okv_refuse(reason, OKV_ERR_NO_MEMORY, "", "no memory for the self-test of the kernels");
	for (size_t i = 0; i < ROWS_MANY * INPUTS; i++)
		b->x[i] = unit(i + 1000);
	for (size_t i = 0; i < ROWS_MANY * INPUTS / OKV_BLOCK; i++)
		b->sums[i] = unit(i + 5000);
	for (unsigned check = 0; check < CHECKS && status == OKV_OK; check++) {
		uint64_t hash = hash_check(kernels, b, check);

		if (hash != expected[check].hash)
			status = okv_refuse(reason, OKV_ERR_MISMATCH, "numerics_id",
					    "the %s kernels gave %016llx for %s where %s needs %016llx; this processor "
					    "or build must not share a cache with others",
					    kernels->name, (unsigned long long)hash, expected[check].name,
					    okv_kernels_numerics_id(), (unsigned long long)expected[check].hash);
	}
	free(b);
	return status;
}
