/*
 * The forward pass on the real model, named by ORBITKV_MODEL (skipped, with a message, where it is not set): logits
 * against a float64 reference, and a row's bits under every batch, chunk, page layout, thread count and kernel table.
 * Under AddressSanitizer only the short cases run, since the kernels are many times slower there.
 */
#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "okv/base/rng.h"
#include "okv/kernels/kernels.h"
#include "okv/model/gguf.h"
#include "okv/model/graph.h"

#if defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__)
#define IS_SLOW true
#elif defined(__has_feature)
#if __has_feature(address_sanitizer) || __has_feature(thread_sanitizer)
#define IS_SLOW true
#endif
#endif
#ifndef IS_SLOW
#define IS_SLOW false
#endif

enum { ROWS_MAX = 544, PAIRS_MAX = 40, LISTED_MAX = 16, LAST = 6 };

/* ---- the fixture: JSON of a known shape, read by its keys ---- */

struct pairs {
	uint32_t id[PAIRS_MAX];
	double value[PAIRS_MAX];
	uint32_t count;
};

struct listed {
	uint32_t position;
	struct pairs top, probe;
};

struct prompt {
	uint32_t tokens[ROWS_MAX + 64], count;
	struct listed row[LISTED_MAX];
	uint32_t rows;
	struct pairs greedy;
};

static const char *after(const char *text, const char *key)
{
	const char *at = strstr(text, key);

	return at ? at + strlen(key) : NULL;
}

/* [[id,value],...] behind `text`'s opening bracket. */
static const char *read_pairs(const char *text, struct pairs *pairs)
{
	pairs->count = 0;
	while (*text == '[' || *text == ',') {
		char *end;

		text += strspn(text, ",[");
		assert_true(pairs->count < PAIRS_MAX);
		pairs->id[pairs->count] = (uint32_t)strtoul(text, &end, 10);
		pairs->value[pairs->count++] = strtod(end + 1, &end);
		text = end + 1;
	}
	return text;
}

/* The next prompt behind `text`; NULL past the last. */
static const char *read_prompt(const char *text, struct prompt *p)
{
	const char *greedy, *at = after(text, "\"token_ids\":[");

	if (!at)
		return NULL;
	for (p->count = 0; *at != ']'; at += *at == ',') {
		char *end;

		assert_true(p->count < ROWS_MAX);
		p->tokens[p->count++] = (uint32_t)strtoul(at, &end, 10);
		at = end;
	}
	greedy = after(at, "\"greedy\":[");
	assert_non_null(greedy);
	for (p->rows = 0; (text = after(at, "\"position\":")) && text < greedy; p->rows++) {
		struct listed *row = &p->row[p->rows];

		assert_true(p->rows < LISTED_MAX);
		row->position = (uint32_t)strtoul(text, NULL, 10);
		at = read_pairs(after(text, "\"top\":["), &row->top);
		at = read_pairs(after(at, "\"probe\":["), &row->probe);
	}
	return read_pairs(greedy, &p->greedy);
}

static char *read_fixture(void)
{
	char path[4096], *text;
	FILE *file;
	long size;

	snprintf(path, sizeof path, "%s/tests/data/smollm2_logits.json", getenv("OKV_SOURCE_ROOT"));
	file = fopen(path, "rb");
	assert_non_null(file);
	assert_int_equal(fseek(file, 0, SEEK_END), 0);
	size = ftell(file);
	rewind(file);
	text = calloc(1, (size_t)size + 1);
	assert_non_null(text);
	assert_int_equal(fread(text, 1, (size_t)size, file), size);
	fclose(file);
	return text;
}

/* ---- a model and one sequence ---- */

static struct okv_model *model; /* of the group; NULL: skip */

static int open_model(void **state)
{
	(void)state;
	const char *path = getenv("ORBITKV_MODEL");
	struct okv_reason reason = {0};
	struct okv_gguf *gguf;

	if (!path) {
		print_message("ORBITKV_MODEL names no model file: skipped\n");
		return 0;
	}
	if (okv_gguf_open(path, &gguf, &reason) != OKV_OK || okv_model_create(gguf, &model, &reason) != OKV_OK) {
		print_message("%s: %s\n", path, reason.text);
		return 1;
	}
	okv_gguf_close(gguf);
	return 0;
}

static int close_model(void **state)
{
	(void)state;
	okv_model_destroy(model);
	return 0;
}

static void *take(size_t size)
{
	void *memory = aligned_alloc(64, (size + 63) / 64 * 64);

	assert_non_null(memory);
	return memory;
}

struct sequence {
	struct okv_kv_page page[ROWS_MAX / 8 + 8];
	uint32_t count;
	uint8_t *bytes, *rotated;
};

/* Pages for ROWS_MAX tokens and some more, in an order of their own. */
static void sequence_open(struct sequence *s, const struct okv_kv_layout *layout, uint64_t seed)
{
	struct okv_rng rng = okv_rng_seeded(seed);

	s->count = ROWS_MAX / layout->page_tokens + 4;
	s->bytes = take(s->count * layout->page_bytes);
	s->rotated = take(s->count * layout->rotated_bytes);
	for (uint32_t i = 0; i < s->count; i++)
		s->page[i] = (struct okv_kv_page){.bytes = s->bytes + i * layout->page_bytes,
						  .rotated = s->rotated + i * layout->rotated_bytes};
	for (uint32_t i = s->count; i > 1; i--) {
		uint32_t other = (uint32_t)okv_rng_below(&rng, i);
		struct okv_kv_page page = s->page[i - 1];

		s->page[i - 1] = s->page[other];
		s->page[other] = page;
	}
}

static void sequence_close(struct sequence *s)
{
	free(s->bytes);
	free(s->rotated);
}

static struct okv_graph *graph_of(const struct okv_graph_options *options)
{
	struct okv_reason reason = {0};
	struct okv_graph *graph;

	if (okv_graph_create(model, options, &graph, &reason) != OKV_OK)
		fail_msg("%s", reason.text);
	return graph;
}

/* ---- against float64 ---- */

static uint32_t greatest(const float *logits, uint32_t count)
{
	uint32_t best = 0;

	for (uint32_t i = 1; i < count; i++)
		best = logits[i] > logits[best] ? i : best;
	return best;
}

static double distance(const float *logits, const struct pairs *pairs)
{
	double worst = 0;

	for (uint32_t i = 0; i < pairs->count; i++)
		worst = fmax(worst, fabs((double)logits[pairs->id[i]] - pairs->value[i]));
	return worst;
}

/* Feeds the reference's own tokens; ours must be the same while the margin exceeds the tolerance. */
static void check_greedy(struct okv_graph *graph, const struct prompt *p, const struct sequence *s, float *logits,
			 double tolerance)
{
	uint32_t vocabulary = okv_model_shape(model)->vocabulary;

	for (uint32_t i = 0; i < p->greedy.count; i++) {
		struct okv_graph_row row = {
			.token = p->greedy.id[i], .position = p->count + i, .pages = s->page, .wants_logits = true};

		if (p->greedy.value[i] > tolerance)
			assert_int_equal(greatest(logits, vocabulary), p->greedy.id[i]);
		okv_graph_step(graph, &row, 1, logits);
	}
}

static double check_prompt(struct okv_graph *graph, const struct prompt *p, double tolerance)
{
	uint32_t vocabulary = okv_model_shape(model)->vocabulary;
	float *logits = take((size_t)LISTED_MAX * vocabulary * sizeof(float));
	struct okv_graph_row *rows = take(ROWS_MAX * sizeof *rows);
	struct sequence s;
	double worst = 0;

	sequence_open(&s, okv_graph_layout(graph), 1);
	for (uint32_t i = 0; i < p->count; i++)
		rows[i] = (struct okv_graph_row){.token = p->tokens[i], .position = i, .pages = s.page};
	for (uint32_t i = 0; i < p->rows; i++)
		rows[p->row[i].position].wants_logits = true;
	okv_graph_step(graph, rows, p->count, logits);
	for (uint32_t i = 0; i < p->rows; i++) {
		worst = fmax(worst, distance(logits + (size_t)i * vocabulary, &p->row[i].top));
		worst = fmax(worst, distance(logits + (size_t)i * vocabulary, &p->row[i].probe));
	}
	assert_int_equal(p->row[p->rows - 1].position, p->count - 1);
	memmove(logits, logits + (size_t)(p->rows - 1) * vocabulary, vocabulary * sizeof(float));
	check_greedy(graph, p, &s, logits, tolerance);
	sequence_close(&s);
	free(rows);
	free(logits);
	return worst;
}

static void check_fixture(enum okv_kv_dtype dtype, double tolerance)
{
	struct okv_graph_options options = {.rows_max = ROWS_MAX, .dtype = dtype, .page_tokens = 16};
	struct prompt *p = calloc(1, sizeof *p);
	struct okv_graph *graph;
	char *text;
	uint32_t prompts = 0;
	double worst = 0;

	if (!model)
		skip();
	graph = graph_of(&options);
	text = read_fixture();
	for (const char *at = text; (at = read_prompt(at, p)); prompts++)
		if (!IS_SLOW || p->count < 6)
			worst = fmax(worst, check_prompt(graph, p, tolerance));
	print_message("%u prompts, greatest distance of a logit %.2g\n", prompts, worst);
	assert_int_equal(prompts, 6);
	assert_true(worst < tolerance);
	okv_graph_destroy(graph);
	free(text);
	free(p);
}

static void logits_with_f32_kv_are_within_2e_3_of_float64(void **state)
{
	(void)state;
	check_fixture(OKV_KV_F32, 2e-3);
}

static void logits_with_f16_kv_are_within_5e_2_of_float64(void **state)
{
	(void)state;
	check_fixture(OKV_KV_F16, 0.05);
}

/* ---- the same bits ---- */

struct way {
	const char *kernels;
	unsigned threads;
	uint32_t page_tokens, chunk, last_alone; /* the last tokens go one at a time */
	uint32_t companions;			 /* rows of another sequence in front of each chunk */
};

static uint32_t token_at(uint64_t seed, uint32_t i)
{
	return (uint32_t)(okv_mix64(seed + i) % okv_model_shape(model)->vocabulary);
}

/* Logits of the last LAST tokens of a sequence of `count`, computed that way. */
static float *logits_of(const struct way *way, uint32_t count)
{
	uint32_t vocabulary = okv_model_shape(model)->vocabulary, done = 0, other = 0, kept = 0;
	struct okv_graph_options options = {.threads = way->threads,
					    .rows_max = ROWS_MAX,
					    .page_tokens = way->page_tokens,
					    .kernels = okv_kernels_named(way->kernels)};
	float *logits = take((size_t)LAST * vocabulary * sizeof(float));
	struct okv_graph *graph = graph_of(&options);
	struct okv_graph_row rows[ROWS_MAX];
	struct sequence s, companion;

	sequence_open(&s, okv_graph_layout(graph), way->chunk);
	sequence_open(&companion, okv_graph_layout(graph), way->chunk + 1);
	while (done < count) {
		uint32_t take_now = done + way->last_alone >= count ? 1 : way->chunk, n = 0;

		if (take_now > count - done)
			take_now = count - done;
		for (; n < way->companions; n++, other++)
			rows[n] = (struct okv_graph_row){
				.token = token_at(9999, other), .position = other, .pages = companion.page};
		for (; take_now; take_now--, n++, done++)
			rows[n] = (struct okv_graph_row){.token = token_at(1, done),
							 .position = done,
							 .pages = s.page,
							 .wants_logits = done + LAST >= count};
		okv_graph_step(graph, rows, n, logits + (size_t)kept * vocabulary);
		for (uint32_t i = 0; i < n; i++)
			kept += rows[i].wants_logits;
	}
	assert_int_equal(kept, LAST);
	sequence_close(&s);
	sequence_close(&companion);
	okv_graph_destroy(graph);
	return logits;
}

static void bits_do_not_depend_on_how_they_are_computed(void **state)
{
	(void)state;
	static const struct way ways[] = {
		{"avx2", 1, 16, 512, 0, 0},    {"avx2", 2, 32, 64, 3, 2},    {"avx512", 2, 16, 512, 0, 0},
		{"avx512", 1, 8, 37, LAST, 0}, {"avx512", 3, 24, 100, 2, 5},
	};
	uint32_t count = IS_SLOW ? 20 : 290, compared = 0;
	size_t size;
	float *first = NULL;

	if (!model)
		skip();
	size = (size_t)LAST * okv_model_shape(model)->vocabulary * sizeof(float);
	for (size_t i = 0; i < sizeof ways / sizeof *ways; i++) {
		float *logits;

		if (!okv_kernels_named(ways[i].kernels)) {
			print_message("this processor has no %s: left out\n", ways[i].kernels);
			continue;
		}
		logits = logits_of(&ways[i], count);
		if (first && memcmp(first, logits, size) != 0)
			fail_msg("way %zu gives other bits", i);
		compared += first != NULL;
		if (first)
			free(logits);
		else
			first = logits;
	}
	free(first);
	assert_true(compared >= 1);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(logits_with_f32_kv_are_within_2e_3_of_float64),
		cmocka_unit_test(logits_with_f16_kv_are_within_5e_2_of_float64),
		cmocka_unit_test(bits_do_not_depend_on_how_they_are_computed),
	};
	return cmocka_run_group_tests_name("model_real", tests, open_model, close_model);
}
