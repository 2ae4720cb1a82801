/*
 * The forward pass against the oracle, bit for bit, on tiny random models of every weight type: random batches of
 * several sequences, random chunks, page sizes, page orders, thread counts, kernels and both KV dtypes. Then what the
 * loader refuses.
 */
#include <immintrin.h>
#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "gguf_builder.h"
#include "oracle.h"

#include "okv/base/rng.h"
#include "okv/kernels/kernels.h"
#include "okv/model/graph.h"

#if defined(__SANITIZE_THREAD__)
#define IS_UNDER_TSAN true
#elif defined(__has_feature)
#if __has_feature(thread_sanitizer)
#define IS_UNDER_TSAN true
#endif
#endif
#ifndef IS_UNDER_TSAN
#define IS_UNDER_TSAN false
#endif

#if defined(__SANITIZE_ADDRESS__)
#define IS_UNDER_ASAN true
#elif defined(__has_feature)
#if __has_feature(address_sanitizer)
#define IS_UNDER_ASAN true
#endif
#endif
#ifndef IS_UNDER_ASAN
#define IS_UNDER_ASAN false
#endif

enum { SEQUENCES = 3, TOKENS_MAX = 300, ROWS_MAX = 70, PAGES_MAX = 40 };

static const uint32_t lengths[SEQUENCES] = {41, TOKENS_MAX, 9};

struct fixture {
	struct okv_model *model;
	uint32_t vocabulary;
	uint32_t tokens[SEQUENCES][TOKENS_MAX];
	float *expected[SEQUENCES]; /* [token][vocabulary] */
};

static struct okv_gguf *tiny_gguf(const struct tiny_model_options *options)
{
	struct okv_buf file = {0};
	struct okv_reason reason = {0};
	struct okv_gguf *gguf;

	tiny_model_write(options, &file);
	assert_false(file.failed);
	if (okv_gguf_parse(file.data, file.size, &gguf, &reason) != OKV_OK)
		fail_msg("%s", reason.text);
	okv_buf_done(&file);
	return gguf;
}

/* The model of a file, which is closed. */
static struct okv_model *model_of(struct okv_gguf *gguf)
{
	struct okv_reason reason = {0};
	struct okv_model *model;

	if (okv_model_create(gguf, &model, &reason) != OKV_OK)
		fail_msg("%s", reason.text);
	okv_gguf_close(gguf);
	return model;
}

static void fixture_open(struct fixture *f, const struct tiny_model_options *options, enum okv_kv_dtype dtype,
			 struct okv_rng *rng)
{
	struct okv_gguf *gguf = tiny_gguf(options); /* of the oracle's own: the model takes its tensors */
	struct oracle *oracle;

	f->model = model_of(tiny_gguf(options));
	f->vocabulary = okv_model_shape(f->model)->vocabulary;
	oracle = oracle_create(gguf, okv_model_shape(f->model), dtype);
	for (int s = 0; s < SEQUENCES; s++) {
		f->expected[s] = calloc((size_t)lengths[s] * f->vocabulary, sizeof(float));
		assert_non_null(f->expected[s]);
		oracle_clear(oracle);
		for (uint32_t i = 0; i < lengths[s]; i++) {
			f->tokens[s][i] = (uint32_t)okv_rng_below(rng, f->vocabulary);
			oracle_append(oracle, f->tokens[s][i], f->expected[s] + (size_t)i * f->vocabulary);
		}
	}
	oracle_destroy(oracle);
	okv_gguf_close(gguf);
}

static void fixture_close(struct fixture *f)
{
	for (int s = 0; s < SEQUENCES; s++)
		free(f->expected[s]);
	okv_model_destroy(f->model);
}

static void *take(size_t size)
{
	void *memory = aligned_alloc(64, (size + 63) / 64 * 64);

	assert_non_null(memory);
	return memory;
}

/* The pages of all sequences are cut from one arena in random order. */
struct pages {
	uint8_t *bytes, *rotated;
	struct okv_kv_page page[SEQUENCES][PAGES_MAX];
};

static void pages_open(struct pages *p, const struct okv_kv_layout *layout, struct okv_rng *rng)
{
	uint32_t order[SEQUENCES * PAGES_MAX], count = SEQUENCES * PAGES_MAX;

	p->bytes = take(count * layout->page_bytes);
	p->rotated = take(count * layout->rotated_bytes);
	memset(p->bytes, 0xff, count * layout->page_bytes); /* NaN wherever nothing was written */
	memset(p->rotated, 0xff, count * layout->rotated_bytes);
	for (uint32_t i = 0; i < count; i++) {
		uint32_t other = (uint32_t)okv_rng_below(rng, i + 1);

		order[i] = order[other];
		order[other] = i;
	}
	for (uint32_t i = 0; i < count; i++)
		p->page[i / PAGES_MAX][i % PAGES_MAX] =
			(struct okv_kv_page){.bytes = p->bytes + order[i] * layout->page_bytes,
					     .rotated = p->rotated + order[i] * layout->rotated_bytes};
}

static void pages_close(struct pages *p)
{
	free(p->bytes);
	free(p->rotated);
}

struct batch {
	struct okv_graph_row rows[ROWS_MAX];
	int sequence[ROWS_MAX]; /* of each row */
	uint32_t count;
};

/* A random mix: from each sequence with tokens left, sometimes nothing, sometimes one token, sometimes a chunk. */
static void fill_batch(struct batch *b, const struct fixture *f, struct pages *pages, uint32_t done[SEQUENCES],
		       struct okv_rng *rng)
{
	b->count = 0;
	for (int s = 0; s < SEQUENCES; s++) {
		uint32_t left = lengths[s] - done[s], room = ROWS_MAX - b->count, take_now;

		take_now = okv_rng_below(rng, 3) ? (uint32_t)okv_rng_below(rng, 60) : 1;
		take_now = take_now < left ? take_now : left;
		take_now = take_now < room ? take_now : room;
		for (uint32_t i = 0; i < take_now; i++, done[s]++) {
			b->sequence[b->count] = s;
			b->rows[b->count++] = (struct okv_graph_row){.token = f->tokens[s][done[s]],
								     .position = done[s],
								     .pages = pages->page[s],
								     .wants_logits = okv_rng_below(rng, 2)};
		}
	}
}

static void check_batch(const struct batch *b, const struct fixture *f, const float *logits)
{
	for (uint32_t row = 0; row < b->count; row++) {
		const float *expected = f->expected[b->sequence[row]] + (size_t)b->rows[row].position * f->vocabulary;

		if (!b->rows[row].wants_logits)
			continue;
		if (memcmp(logits, expected, f->vocabulary * sizeof(float)) != 0)
			fail_msg("sequence %d, position %u, in a batch of %u: bits differ from the oracle's",
				 b->sequence[row], b->rows[row].position, b->count);
		logits += f->vocabulary;
	}
}

/* Planes derived from the pages alone, some pages in one call, equal those that were written with the rows. */
static void check_rotation(struct okv_graph *graph, struct pages *pages, size_t rotated_bytes)
{
	enum { PAGES_A_CALL = 3 };
	uint32_t page_tokens = okv_graph_layout(graph)->page_tokens, step = PAGES_A_CALL * page_tokens;
	uint8_t *again = take(PAGES_A_CALL * rotated_bytes);

	for (int s = 0; s < SEQUENCES; s++)
		for (uint32_t start = 0; start < lengths[s]; start += step) {
			struct okv_kv_page page[PAGES_A_CALL];
			const struct okv_kv_page *written = &pages->page[s][start / page_tokens];
			uint32_t left = lengths[s] - start, tokens = left < step ? left : step;

			memset(again, 0xff, PAGES_A_CALL * rotated_bytes);
			for (uint32_t i = 0; i * page_tokens < tokens; i++)
				page[i] = (struct okv_kv_page){.bytes = written[i].bytes,
							       .rotated = again + i * rotated_bytes};
			okv_graph_rotate(graph, page, start, tokens);
			for (uint32_t i = 0; i * page_tokens < tokens; i++)
				assert_memory_equal(page[i].rotated, written[i].rotated, rotated_bytes);
		}
	free(again);
}

static void run_schedule(const struct fixture *f, const struct okv_graph_options *options, struct okv_rng *rng)
{
	struct okv_reason reason = {0};
	struct okv_graph *graph;
	struct pages pages;
	uint32_t done[SEQUENCES] = {0};
	float *logits = take((size_t)ROWS_MAX * f->vocabulary * sizeof(float));

	if (okv_graph_create(f->model, options, &graph, &reason) != OKV_OK)
		fail_msg("%s", reason.text);
	pages_open(&pages, okv_graph_layout(graph), rng);
	while (memcmp(done, lengths, sizeof done) != 0) {
		struct batch batch;

		fill_batch(&batch, f, &pages, done, rng);
		if (batch.count == 0)
			continue;
		okv_graph_step(graph, batch.rows, batch.count, logits);
		check_batch(&batch, f, logits);
	}
	check_rotation(graph, &pages, okv_graph_layout(graph)->rotated_bytes);
	pages_close(&pages);
	okv_graph_destroy(graph);
	free(logits);
}

/* With 1 .. threads_max threads, and kernel tables in turn. */
static void run_model(const struct tiny_model_options *options, enum okv_kv_dtype dtype, unsigned threads_max)
{
	static const uint32_t page_sizes[] = {8, 16, 32, 24};
	static const char *const names[] = {"avx2", "avx512"};
	struct okv_rng rng = okv_rng_seeded(options->seed);
	struct fixture f;

	print_message("seed %llu\n", (unsigned long long)options->seed);
	fixture_open(&f, options, dtype, &rng);
	for (unsigned threads = 1; threads <= threads_max; threads++) {
		/* The scalar kernels call the C library for each fused multiply-add: one schedule of them is enough. */
		bool is_scalar = threads == 3 && dtype == OKV_KV_F16;
		struct okv_graph_options graph = {
			.threads = threads,
			.rows_max = ROWS_MAX,
			.dtype = dtype,
			.page_tokens = page_sizes[okv_rng_below(&rng, 4)],
			.kernels = okv_kernels_named(is_scalar ? "reference" : names[(threads + options->seed) % 2])};

		run_schedule(&f, &graph, &rng);
	}
	fixture_close(&f);
}

static void run_type(enum okv_tensor_type type, enum okv_kv_dtype dtype, uint64_t seed)
{
	struct tiny_model_options options = tiny_model_default(type);

	options.seed = seed;
	options.ffn = 96; /* three blocks over two groups: one and two */
	options.separate_output = seed % 2;
	run_model(&options, dtype, 3);
}

/* Heads alone and many to a KV head, one group and more groups than blocks, RoPE over a part of a head, odd counts of
 * layers and units. */
static void every_shape_gives_the_oracles_bits(void **state)
{
	(void)state;
	static const struct tiny_model_options shapes[] = {
		{.heads = 6, .kv_heads = 1, .head_dim = 16, .ffn = 32, .layers = 1},
		{.heads = 3, .kv_heads = 3, .head_dim = 32, .ffn = 160, .layers = 3},
		{.heads = 4, .kv_heads = 4, .head_dim = 32, .ffn = 64, .layers = 1, .rope_dims = 18},
		{.heads = 2, .kv_heads = 1, .head_dim = 48, .ffn = 224, .layers = 2, .rope_dims = 2},
	};

	if (IS_UNDER_TSAN || !oracle_can_run()) /* shapes add nothing to what threads do */
		skip();
	for (unsigned i = 0; i < sizeof shapes / sizeof *shapes; i++) {
		struct tiny_model_options options = shapes[i];

		options.seed = 300 + i;
		options.type = i % 2 ? OKV_TENSOR_Q8_0 : OKV_TENSOR_Q4_1;
		options.separate_output = i < 2;
		options.context = 512;
		options.splitter = "gpt-2";
		run_model(&options, i == 1 ? OKV_KV_F32 : OKV_KV_F16, 1);
	}
}

static void every_schedule_gives_the_oracles_bits(void **state)
{
	(void)state;
	static const enum okv_tensor_type types[] = {OKV_TENSOR_F32, OKV_TENSOR_F16, OKV_TENSOR_Q4_0, OKV_TENSOR_Q4_1,
						     OKV_TENSOR_Q8_0};

	if (!oracle_can_run())
		skip();
	/* Sanitizers make the oracle slow. Under TSan threads are what counts; under ASan each type has one dtype. */
	for (unsigned i = 0; i < 5; i++) {
		if (IS_UNDER_TSAN && types[i] != OKV_TENSOR_Q4_1)
			continue;
		if (!IS_UNDER_ASAN || i % 2)
			run_type(types[i], OKV_KV_F16, 100 + i);
		if (!IS_UNDER_TSAN && !(IS_UNDER_ASAN && i % 2))
			run_type(types[i], OKV_KV_F32, 200 + i);
	}
}

/* The negative control: the oracle of another model, or of another dtype, does not agree. */
static void another_dtype_or_model_has_other_bits(void **state)
{
	(void)state;
	struct tiny_model_options options = tiny_model_default(OKV_TENSOR_Q4_1);
	float *logits[3];

	for (int i = 0; i < 3; i++) {
		struct okv_gguf *gguf;
		struct okv_model *model;
		struct oracle *oracle;

		options.seed = i == 2 ? 2 : 1;
		gguf = tiny_gguf(&options);
		model = model_of(tiny_gguf(&options));
		logits[i] = calloc(okv_model_shape(model)->vocabulary, sizeof(float));
		oracle = oracle_create(gguf, okv_model_shape(model), i == 1 ? OKV_KV_F32 : OKV_KV_F16);
		for (uint32_t token = 0; token < 4; token++)
			oracle_append(oracle, token, logits[i]);
		oracle_destroy(oracle);
		okv_model_destroy(model);
		okv_gguf_close(gguf);
	}
	assert_memory_not_equal(logits[0], logits[1], 200 * sizeof(float));
	assert_memory_not_equal(logits[0], logits[2], 200 * sizeof(float));
	for (int i = 0; i < 3; i++)
		free(logits[i]);
}

static void weights_digest_depends_on_weights_only(void **state)
{
	(void)state;
	struct okv_hash digest[3];

	for (int i = 0; i < 3; i++) {
		struct tiny_model_options options = tiny_model_default(OKV_TENSOR_Q8_0);
		struct okv_gguf *gguf;
		struct okv_model *model;

		options.seed = i == 2 ? 8 : 7;
		options.splitter = i == 1 ? "gpt-2" : "smollm";
		gguf = tiny_gguf(&options);
		assert_int_equal(okv_model_create(gguf, &model, NULL), OKV_OK);
		digest[i] = *okv_model_weights_digest(model);
		okv_model_destroy(model);
		okv_gguf_close(gguf);
	}
	assert_true(okv_hash_equal(&digest[0], &digest[1]));
	assert_false(okv_hash_equal(&digest[0], &digest[2]));
}

static void loading_takes_the_tensors_and_leaves_the_metadata(void **state)
{
	(void)state;
	struct tiny_model_options options = tiny_model_default(OKV_TENSOR_Q4_0);
	struct okv_gguf *gguf = tiny_gguf(&options);
	struct okv_gguf_array tokens;
	struct okv_model *model;

	assert_int_equal(okv_model_create(gguf, &model, NULL), OKV_OK);
	for (size_t i = 0; i < okv_gguf_tensor_count(gguf); i++)
		assert_null(okv_gguf_tensor_at(gguf, i)->data);
	assert_int_equal(okv_gguf_array(gguf, "tokenizer.ggml.tokens", OKV_GGUF_STRING, &tokens, NULL), OKV_OK);
	assert_memory_equal(tokens.strings[0].data, "<|endoftext|>", 13);
	okv_model_destroy(model);
	okv_gguf_close(gguf);
}

static void graph_options_out_of_range_are_refused_by_name(void **state)
{
	(void)state;
	struct tiny_model_options tiny = tiny_model_default(OKV_TENSOR_F32);
	struct okv_gguf *gguf = tiny_gguf(&tiny);
	struct okv_model *model;
	struct okv_graph *graph = NULL;
	struct okv_reason reason;
	static const struct {
		struct okv_graph_options options;
		const char *field;
	} bad[] = {
		{{.threads = 1, .rows_max = 8, .page_tokens = 12}, "page_tokens"},
		{{.threads = 1, .rows_max = 8, .page_tokens = 0}, "page_tokens"},
		{{.threads = 1, .rows_max = 8, .page_tokens = 264}, "page_tokens"},
		{{.threads = 1, .rows_max = 0, .page_tokens = 16}, "rows_max"},
		{{.threads = 1, .rows_max = 8, .page_tokens = 16, .dtype = (enum okv_kv_dtype)7}, "dtype"},
		{{.threads = 1000, .rows_max = 8, .page_tokens = 16}, "threads"},
	};

	assert_int_equal(okv_model_create(gguf, &model, NULL), OKV_OK);
	for (size_t i = 0; i < sizeof bad / sizeof *bad; i++) {
		assert_int_equal(okv_graph_create(model, &bad[i].options, &graph, &reason), OKV_ERR_INVALID);
		assert_string_equal(reason.field, bad[i].field);
		assert_null(graph);
	}
	okv_model_destroy(model);
	okv_gguf_close(gguf);
}

static void forgetful_exponential(const float *x, uint32_t count, float *ret_x)
{
	okv_kernels_named("reference")->exponential(x, count, ret_x);
	ret_x[0] = -ret_x[0];
}

static void a_graph_that_would_compute_other_bits_does_not_start(void **state)
{
	(void)state;
	struct tiny_model_options tiny = tiny_model_default(OKV_TENSOR_F32);
	struct okv_gguf *gguf = tiny_gguf(&tiny);
	struct okv_kernels changed = *okv_kernels_named("reference");
	struct okv_graph_options options = {.threads = 1, .rows_max = 8, .page_tokens = 16, .kernels = &changed};
	unsigned mode = _mm_getcsr();
	struct okv_model *model;
	struct okv_graph *graph = NULL;
	struct okv_reason reason;

	assert_int_equal(okv_model_create(gguf, &model, NULL), OKV_OK);
	_mm_setcsr(mode | 0x8000); /* flush to zero */
	assert_int_equal(okv_graph_create(model, &options, &graph, &reason), OKV_ERR_UNSUPPORTED);
	_mm_setcsr(mode);
	assert_string_equal(reason.field, "numerics_id");
	changed.exponential = forgetful_exponential;
	assert_int_equal(okv_graph_create(model, &options, &graph, &reason), OKV_ERR_MISMATCH);
	assert_non_null(strstr(reason.text, "exponential"));
	assert_null(graph);
	okv_model_destroy(model);
	okv_gguf_close(gguf);
}

/* ---- what the loader refuses ---- */

/* A one-layer model by hand, with one thing changed. */
struct hand_made {
	const char *architecture, *skip_tensor, *extra_tensor, *scaling;
	const char *number_key;			      /* replaces the number of this key, or adds it */
	uint32_t number, ffn_extent, embedding_width; /* 0: the true one */
	bool norm_is_f16;
	const char *skip_key;
	const char *raw_key; /* added as it is, instead of a pair of that name */
	enum okv_gguf_type raw_type;
	const void *raw;
	size_t raw_size;
};

static bool is_left_out(const struct hand_made *h, const char *key)
{
	return (h->skip_key && !strcmp(h->skip_key, key)) || (h->raw_key && !strcmp(h->raw_key, key));
}

static void add_number(struct gguf_builder *b, const struct hand_made *h, const char *key, uint32_t value)
{
	if (!is_left_out(h, key))
		gguf_add_u32(b, key, h->number_key && !strcmp(h->number_key, key) ? h->number : value);
}

static void add_matrix(struct gguf_builder *b, const struct hand_made *h, const char *name, uint64_t inputs,
		       uint64_t outputs, bool is_norm)
{
	enum okv_tensor_type type = is_norm ? OKV_TENSOR_F32 : OKV_TENSOR_Q8_0;
	struct okv_buf data = {0};

	if (h->skip_tensor && !strcmp(h->skip_tensor, name))
		return;
	if (is_norm && h->norm_is_f16)
		type = OKV_TENSOR_F16;
	tiny_weights_append(&data, type, inputs * outputs, 3);
	gguf_add_tensor(b, name, type, is_norm ? 1 : 2, (const uint64_t[]){inputs, outputs}, data.data, data.size);
	okv_buf_done(&data);
}

static struct okv_gguf *hand_made_gguf(const struct hand_made *h)
{
	struct gguf_builder b = {0};
	struct okv_buf file = {0};
	struct okv_reason reason = {0};
	struct okv_gguf *gguf;
	uint64_t ffn = h->ffn_extent ? h->ffn_extent : 64;
	uint64_t embedding_width = h->embedding_width ? h->embedding_width : 32;

	if (!is_left_out(h, "general.architecture"))
		gguf_add_string(&b, "general.architecture", h->architecture ? h->architecture : "llama");
	add_number(&b, h, "llama.block_count", 1);
	add_number(&b, h, "llama.context_length", 64);
	add_number(&b, h, "llama.embedding_length", 32);
	add_number(&b, h, "llama.feed_forward_length", 64);
	add_number(&b, h, "llama.attention.head_count", 2);
	add_number(&b, h, "llama.attention.head_count_kv", 1);
	add_number(&b, h, "llama.rope.dimension_count", 16);
	if (h->number_key && !strcmp(h->number_key, "llama.expert_count"))
		gguf_add_u32(&b, h->number_key, h->number);
	if (h->number_key && !strcmp(h->number_key, "llama.attention.value_length"))
		gguf_add_u32(&b, h->number_key, h->number);
	if (!is_left_out(h, "llama.attention.layer_norm_rms_epsilon"))
		gguf_add_f32(&b, "llama.attention.layer_norm_rms_epsilon", 1e-5f);
	if (h->raw_key)
		gguf_add_raw(&b, h->raw_key, h->raw_type, h->raw, h->raw_size);
	if (h->scaling)
		gguf_add_string(&b, "llama.rope.scaling.type", h->scaling);
	add_matrix(&b, h, "token_embd.weight", embedding_width, 40, false);
	add_matrix(&b, h, "output_norm.weight", 32, 1, true);
	add_matrix(&b, h, "blk.0.attn_norm.weight", 32, 1, true);
	add_matrix(&b, h, "blk.0.attn_q.weight", 32, 32, false);
	add_matrix(&b, h, "blk.0.attn_k.weight", 32, 16, false);
	add_matrix(&b, h, "blk.0.attn_v.weight", 32, 16, false);
	add_matrix(&b, h, "blk.0.attn_output.weight", 32, 32, false);
	add_matrix(&b, h, "blk.0.ffn_norm.weight", 32, 1, true);
	add_matrix(&b, h, "blk.0.ffn_gate.weight", 32, ffn, false);
	add_matrix(&b, h, "blk.0.ffn_up.weight", 32, ffn, false);
	add_matrix(&b, h, "blk.0.ffn_down.weight", 64, 32, false);
	if (h->extra_tensor)
		add_matrix(&b, h, h->extra_tensor, 32, 1, true);
	gguf_write(&b, &file);
	if (okv_gguf_parse(file.data, file.size, &gguf, &reason) != OKV_OK)
		fail_msg("%s", reason.text);
	gguf_builder_done(&b);
	okv_buf_done(&file);
	return gguf;
}

static void check_load(size_t i, const struct hand_made *change, enum okv_status expected, const char *word)
{
	struct okv_gguf *gguf = hand_made_gguf(change);
	struct okv_reason reason = {0};
	struct okv_model *model = NULL;
	enum okv_status status = okv_model_create(gguf, &model, &reason);

	if (status != expected || !strstr(reason.text, word))
		fail_msg("case %zu: %s (%s), without \"%s\"", i, okv_status_name(status), reason.text, word);
	okv_model_destroy(model);
	okv_gguf_close(gguf);
}

static void the_loader_names_what_it_refuses(void **state)
{
	(void)state;
	static const struct {
		struct hand_made change;
		enum okv_status status;
		const char *word;
	} bad[] = {
		{{0}, OKV_OK, ""},
		{{.architecture = "mamba"}, OKV_ERR_UNSUPPORTED, "mamba"},
		{{.skip_tensor = "blk.0.attn_v.weight"}, OKV_ERR_INVALID, "blk.0.attn_v.weight"},
		{{.skip_tensor = "output_norm.weight"}, OKV_ERR_INVALID, "output_norm.weight"},
		{{.extra_tensor = "blk.0.attn_q.bias"}, OKV_ERR_UNSUPPORTED, "blk.0.attn_q.bias"},
		{{.extra_tensor = "blk.7.ffn_norm.weight"}, OKV_ERR_UNSUPPORTED, "blk.7.ffn_norm.weight"},
		{{.scaling = "yarn"}, OKV_ERR_UNSUPPORTED, "yarn"},
		{{.scaling = "none"}, OKV_OK, ""},
		{{.ffn_extent = 96}, OKV_ERR_INVALID, "ffn_gate.weight is 32 x 96 where the model needs 32 x 64"},
		{{.embedding_width = 64}, OKV_ERR_INVALID, "is 64 x 40 where the model needs 32 x the vocabulary"},
		{{.norm_is_f16 = true}, OKV_ERR_UNSUPPORTED, "F32"},
		{{.number_key = "llama.block_count", .number = 0}, OKV_ERR_INVALID, "llama.block_count"},
		{{.number_key = "llama.block_count", .number = 5000}, OKV_ERR_INVALID, "llama.block_count"},
		{{.number_key = "llama.embedding_length", .number = 33}, OKV_ERR_UNSUPPORTED, "33"},
		{{.number_key = "llama.attention.head_count_kv", .number = 3}, OKV_ERR_INVALID, "3 KV heads"},
		{{.number_key = "llama.attention.head_count", .number = 4}, OKV_ERR_UNSUPPORTED, "dimensions"},
		{{.number_key = "llama.attention.value_length", .number = 32}, OKV_ERR_UNSUPPORTED, "values of 32"},
		{{.number_key = "llama.rope.dimension_count", .number = 18}, OKV_ERR_INVALID, "18 of 16"},
		{{.number_key = "llama.expert_count", .number = 8}, OKV_ERR_UNSUPPORTED, "experts"},
		{{.number_key = "llama.context_length", .number = 1u << 30}, OKV_ERR_INVALID, "context_length"},
		{{.number_key = "llama.context_length", .number = 0}, OKV_ERR_INVALID, "context_length is 0"},
		{{.number_key = "llama.attention.head_count", .number = 64}, OKV_ERR_UNSUPPORTED, "keys of 0"},
		{{.number_key = "llama.attention.value_length", .number = 0}, OKV_ERR_INVALID, "value_length is 0"},
		{{.architecture = "lla\033[2Jma"}, OKV_ERR_UNSUPPORTED, "lla?[2Jma"},
		{{.scaling = "yarn\n"}, OKV_ERR_UNSUPPORTED, "yarn?"},
		{{.extra_tensor = "blk.0.\033x"}, OKV_ERR_UNSUPPORTED, "blk.0.?x"},
	};

	for (size_t i = 0; i < sizeof bad / sizeof *bad; i++)
		check_load(i, &bad[i].change, bad[i].status, bad[i].word);
}

static void absent_metadata_is_refused_by_name(void **state)
{
	(void)state;
	static const char *const needed[] = {"general.architecture",
					     "llama.block_count",
					     "llama.context_length",
					     "llama.embedding_length",
					     "llama.feed_forward_length",
					     "llama.attention.head_count",
					     "llama.attention.layer_norm_rms_epsilon"};
	static const char *const words[] = {"architecture",	     "block_count",	    "context_length",
					    "embedding_length",	     "feed_forward_length", "head_count",
					    "layer_norm_rms_epsilon"};

	for (size_t i = 0; i < sizeof needed / sizeof *needed; i++)
		check_load(i, &(struct hand_made){.skip_key = needed[i]}, OKV_ERR_INVALID, words[i]);
}

/* A key of the wrong type must not read as an absent one. */
static void metadata_that_cannot_be_read_is_refused_by_name(void **state)
{
	(void)state;
	static const char text[] = "\4\0\0\0\0\0\0\0none", tokens[] = "\10\0\0\0\1\0\0\0\0\0\0\0\1\0\0\0\0\0\0\0a";
	static const float nan_bits = NAN, two = 2, tiny = 1e-44f;
	static const double less_than_a_float = 1e-50;
	static const uint32_t window = 32;
	static const struct {
		struct hand_made change;
		enum okv_status status;
		const char *word;
	} bad[] = {
#define RAW(key, type, value, size) .raw_key = (key), .raw_type = (type), .raw = (value), .raw_size = (size)
		{{RAW("llama.rope.scaling.type", OKV_GGUF_U32, &window, 4)}, OKV_ERR_INVALID, "rope.scaling.type"},
		{{RAW("llama.rope.scaling.factor", OKV_GGUF_F32, &nan_bits, 4)}, OKV_ERR_INVALID, "scaling.factor"},
		{{RAW("llama.rope.scaling.factor", OKV_GGUF_F32, &two, 4)}, OKV_ERR_UNSUPPORTED, "scaling by 2"},
		{{RAW("llama.rope.scale_linear", OKV_GGUF_U32, &window, 4)}, OKV_ERR_INVALID, "scale_linear"},
		{{RAW("llama.expert_count", OKV_GGUF_F32, &two, 4)}, OKV_ERR_INVALID, "expert_count"},
		{{RAW("llama.attention.sliding_window", OKV_GGUF_U32, &window, 4)}, OKV_ERR_UNSUPPORTED, "sliding"},
		{{RAW("llama.block_count", OKV_GGUF_STRING, text, 12)}, OKV_ERR_INVALID, "block_count"},
		{{RAW("llama.attention.key_length", OKV_GGUF_STRING, text, 12)}, OKV_ERR_INVALID, "key_length"},
		{{RAW("llama.rope.freq_base", OKV_GGUF_F32, &nan_bits, 4)}, OKV_ERR_INVALID, "freq_base"},
		{{RAW("llama.rope.freq_base", OKV_GGUF_F32, &tiny, 4)}, OKV_ERR_INVALID, "RoPE base"},
		{{RAW("llama.attention.layer_norm_rms_epsilon", OKV_GGUF_F32, &nan_bits, 4)},
		 OKV_ERR_INVALID,
		 "epsilon"},
		{{RAW("llama.attention.layer_norm_rms_epsilon", OKV_GGUF_F32, &two, 4)},
		 OKV_ERR_INVALID,
		 "epsilon of 2"},
		{{RAW("llama.attention.layer_norm_rms_epsilon", OKV_GGUF_F64, &less_than_a_float, 8)},
		 OKV_ERR_INVALID,
		 "epsilon of 1e-50"},
		{{RAW("llama.attention.layer_norm_rms_epsilon", OKV_GGUF_F32, &tiny, 4)}, OKV_OK, ""},
		/* One token, where the embedding has 40 rows. */
		{{RAW("tokenizer.ggml.tokens", OKV_GGUF_ARRAY, tokens, 21)}, OKV_ERR_INVALID, "rows for 40 tokens"},
#undef RAW
	};

	for (size_t i = 0; i < sizeof bad / sizeof *bad; i++)
		check_load(i, &bad[i].change, bad[i].status, bad[i].word);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(every_schedule_gives_the_oracles_bits),
		cmocka_unit_test(every_shape_gives_the_oracles_bits),
		cmocka_unit_test(another_dtype_or_model_has_other_bits),
		cmocka_unit_test(weights_digest_depends_on_weights_only),
		cmocka_unit_test(loading_takes_the_tensors_and_leaves_the_metadata),
		cmocka_unit_test(graph_options_out_of_range_are_refused_by_name),
		cmocka_unit_test(a_graph_that_would_compute_other_bits_does_not_start),
		cmocka_unit_test(the_loader_names_what_it_refuses),
		cmocka_unit_test(absent_metadata_is_refused_by_name),
		cmocka_unit_test(metadata_that_cannot_be_read_is_refused_by_name),
	};
	return cmocka_run_group_tests_name("model_graph", tests, NULL, NULL);
}
