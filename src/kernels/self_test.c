/* Hashes of results over fixed inputs, compared with constants: docs/numerics.md tells how they were made. */
#include <stdlib.h>
#include <string.h>

#include "okv/base/digest.h"
#include "okv/base/rng.h"
#include "okv/kernels/kernels.h"

enum { ROWS = 3, INPUTS = 128, OUTPUTS = 32, DIM = 64, PAGE = 16, PAGES = 18, GROUP = 2, FLOATS_MAX = 4096 };

/* Everything the test works on; the inputs come from okv_mix64 counters, so that no library can change them. */
struct bench {
	_Alignas(64) uint8_t rows[OUTPUTS * INPUTS * 4], packed[OUTPUTS * INPUTS * 4];
	_Alignas(64) float x[ROWS * INPUTS], sums[ROWS * INPUTS / OKV_BLOCK];
	_Alignas(64) float out[FLOATS_MAX], scratch[32768];
	_Alignas(64) uint16_t values[PAGES][PAGE * DIM], rotated[PAGES][PAGE * DIM];
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

static uint64_t linear_hash(const struct okv_kernels *kernels, struct bench *b, enum okv_weight_type type)
{
	struct okv_panels w = {.type = type, .outputs = OUTPUTS, .inputs = INPUTS, .groups = 2, .bytes = b->packed};
	struct okv_activations x = {.x = b->x, .sums = b->sums, .rows = ROWS, .row_stride = ROWS};

	fill_rows(b, type);
	okv_panels_pack(&w, b->rows);
	kernels->linear(&w, 0, OUTPUTS / OKV_PANEL, &x, b->out, b->scratch);
	return hash_of(b->out, sizeof(float) * ROWS * OUTPUTS);
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

static uint64_t attention_hash(const struct okv_kernels *kernels, struct bench *b)
{
	struct okv_attended_page pages[PAGES];
	struct okv_attention a = {.pages = pages,
				  .page_tokens = PAGE,
				  .head_dim = DIM,
				  .group = GROUP,
				  .value_stride = DIM,
				  .scale = 0.125f};
	struct okv_queries queries = {.q = b->x,
				      .q_stride = 1,
				      .count = 2,
				      .visible = PAGES * PAGE - 1,
				      .out = b->out,
				      .row_stride = 2,
				      .sums = b->out + 2 * GROUP * DIM};

	okv_rope_table(1e4, DIM, DIM, PAGE, b->out);
	for (uint32_t p = 0; p < PAGES; p++) {
		for (uint32_t i = 0; i < PAGE * DIM; i++)
			b->values[p][i] = okv_narrow(unit(p * PAGE * DIM + i) * 3);
		kernels->rotate(b->values[p], DIM, false, b->out, DIM, PAGE, PAGE, b->rotated[p]);
		pages[p] = (struct okv_attended_page){.bytes = (const uint8_t *)b->values[p],
						      .rotated = (const uint8_t *)b->rotated[p]};
	}
	kernels->attend(&a, &queries, b->scratch);
	return hash_of(b->out, sizeof(float) * (2 * GROUP * DIM + 2 * GROUP * DIM / OKV_BLOCK));
}

/* In the order of the checks below; regenerated only together with the numerics id. */
static const struct {
	const char *name;
	uint64_t hash;
} expected[] = {
	{"linear F32", 0x8ac2f37bc332c654},	 {"linear F16", 0xe963277bf04e56e6},
	{"linear Q4_0", 0xfc2020e2dcd8a281},	 {"linear Q4_1", 0xf9cc33fc5cbabbfa},
	{"linear Q8_0", 0xec094ccf77cf630d},	 {"exponential", 0x6ab48fd7e8e6c21f},
	{"norm and swiglu", 0xc0603c7712cb3719}, {"rope table", 0xc6a55442650eed2c},
	{"attention", 0xc38fa099218c903f},
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
		return attention_hash(kernels, b);
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
	for (size_t i = 0; i < ROWS * INPUTS; i++)
		b->x[i] = unit(i + 1000);
	for (size_t i = 0; i < ROWS * INPUTS / OKV_BLOCK; i++)
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
