/*
 * Lanes on real models: a tiny one of random weights through many schedules, and SmolLM2 briefly where it is cached
 * (ORBITKV_MODEL). The oracle is the same graph, alone, one row at a time, in memory of its own.
 */
#include "lane_rig.h"

#include "gguf_builder.h"

enum { LANES = 10, PROMPT_MAX = 70 };

struct loaded {
	struct okv_model *model;
	struct okv_tokenizer *tokenizer;
};

static void load(struct okv_gguf *gguf, struct loaded *loaded)
{
	struct okv_reason reason = {.field = ""};

	if (okv_model_create(gguf, &loaded->model, &reason) != OKV_OK ||
	    okv_tokenizer_create(gguf, &loaded->tokenizer, &reason) != OKV_OK)
		fail_msg("%s", reason.text);
	okv_gguf_close(gguf);
}

static void unload(struct loaded *loaded)
{
	okv_model_destroy(loaded->model);
	okv_tokenizer_destroy(loaded->tokenizer);
}

static void load_tiny(struct loaded *loaded)
{
	struct tiny_model_options options = tiny_model_default(OKV_TENSOR_Q4_1);
	struct okv_buf file = {.data = NULL};
	struct okv_gguf *gguf = NULL;

	tiny_model_write(&options, &file);
	assert_int_equal(okv_gguf_parse(file.data, file.size, &gguf, NULL), OKV_OK);
	okv_buf_done(&file);
	load(gguf, loaded);
}

/* Two engines share one source, so that lanes of the second restore what lanes of the first published. */
struct pair {
	struct rig rig[2];
	struct memory_source source;
	struct solo solo;
	struct reply reply[LANES];
	uint32_t prompt[LANES][PROMPT_MAX];
	struct okv_request request[LANES];
};

static void open_pair(struct pair *pair, const struct loaded *loaded, struct okv_rng *rng)
{
	memory_source_init(&pair->source);
	for (unsigned i = 0; i < 2; i++) {
		struct rig *rig = &pair->rig[i];

		rig_prepare(rig, loaded->model, loaded->tokenizer);
		rig->options.graph.threads = 1 + (unsigned)okv_rng_below(rng, 2);
		rig->options.graph.rows_max = 17 + (uint32_t)okv_rng_below(rng, 60);
		rig->options.running_max = 1 + (uint32_t)okv_rng_below(rng, 8);
		rig->options.arena_bytes = 64ULL << 20;
		rig_open(rig);
		rig->engine->scheduler.row_ns = 1 + okv_rng_below(rng, 3 * OKV_NS_PER_MS); /* the cut of prompts */
	}
	solo_open(&pair->solo, &pair->rig[0]);
}

static void close_pair(struct pair *pair)
{
	solo_close(&pair->solo);
	rig_close(&pair->rig[0]);
	rig_close(&pair->rig[1]);
	memory_source_done(&pair->source);
}

static void make_requests(struct pair *pair, uint32_t vocabulary, struct okv_rng *rng)
{
	for (uint32_t i = 0; i < LANES; i++) {
		uint32_t count = 1 + (uint32_t)okv_rng_below(rng, PROMPT_MAX);

		for (uint32_t k = 0; k < count; k++)
			pair->prompt[i][k] = k < 40 ? 5 + k : (uint32_t)okv_rng_below(rng, vocabulary);
		pair->request[i] =
			request_of(pair->prompt[i], count, 1 + (uint32_t)okv_rng_below(rng, 12), &pair->reply[i]);
		pair->request[i].cache =
			okv_rng_below(rng, 4) ? OKV_CACHE_FULL : (enum okv_cache_use)okv_rng_below(rng, 3);
		pair->request[i].ignore_end = true;
		if (okv_rng_below(rng, 2))
			pair->request[i].sampling =
				(struct okv_sampling){.temperature = 0.9f, .top_p = 0.95f, .seed = i};
	}
}

/* Lanes [first, end) on one engine; admitted at random moments. */
static void run_lanes(struct pair *pair, unsigned engine, uint32_t first, uint32_t end, struct okv_rng *rng)
{
	struct rig *rig = &pair->rig[engine];
	uint32_t over = first, admitted = first;

	rig_attach(rig, &pair->source);
	while (over < end) {
		if (admitted < end && okv_rng_below(rng, 2))
			admit_request(rig, &pair->request[admitted++]);
		(void)okv__engine_turn(rig->engine);
		for (over = first; over < admitted && pair->reply[over].ends;)
			over++;
	}
	for (uint32_t i = first; i < end; i++) {
		assert_usage_adds_up(&pair->reply[i]);
		assert_answers_like_solo(&pair->solo, rig, &pair->request[i]);
	}
	assert_drained(rig);
}

static void lanes_of_the_tiny_model_answer_like_solo(void **state)
{
	struct loaded loaded;
	uint32_t restored = 0, hits = 0;

	(void)state;
	load_tiny(&loaded);
	for (uint64_t seed = 1; seed <= 12; seed++) {
		static struct pair pair;
		struct okv_rng rng = okv_rng_seeded(seed);

		open_pair(&pair, &loaded, &rng);
		make_requests(&pair, okv_model_shape(loaded.model)->vocabulary, &rng);
		run_lanes(&pair, 0, 0, LANES / 2, &rng);
		run_lanes(&pair, 1, LANES / 2, LANES, &rng);
		for (uint32_t i = 0; i < LANES; i++) {
			restored += pair.reply[i].usage.restored_tokens;
			hits += pair.reply[i].usage.prefix_hit_tokens;
		}
		close_pair(&pair);
	}
	assert_true(restored > 100 && hits > 100);
	unload(&loaded);
}

static void lanes_of_the_real_model_answer_like_solo(void **state)
{
	static struct pair pair;
	const char *path = getenv("ORBITKV_MODEL");
	struct okv_rng rng = okv_rng_seeded(1);
	struct okv_gguf *gguf = NULL;
	struct loaded loaded;

	(void)state;
	if (!path || access(path, R_OK) != 0) {
		print_message("# the model is not cached here; `./run setup` fetches it\n");
		skip();
	}
	assert_int_equal(okv_gguf_open(path, &gguf, NULL), OKV_OK);
	load(gguf, &loaded);
	open_pair(&pair, &loaded, &rng);
	make_requests(&pair, 49152, &rng);
	run_lanes(&pair, 0, 0, 3, &rng);
	run_lanes(&pair, 1, 3, 6, &rng);
	close_pair(&pair);
	unload(&loaded);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(lanes_of_the_tiny_model_answer_like_solo),
		cmocka_unit_test(lanes_of_the_real_model_answer_like_solo),
	};

	return cmocka_run_group_tests_name("model_lanes", tests, NULL, NULL);
}
