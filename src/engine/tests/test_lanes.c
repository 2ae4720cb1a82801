/* Lanes on a fake model: whatever the schedule, a lane answers as if it were alone, and leaves nothing behind. */
#include "fake_model.h"
#include "lane_rig.h"

static const struct okv_tokenizer tokenizer = {.digest = {{9}}};

static void fill_prompt(uint32_t *prompt, uint32_t count, uint64_t seed)
{
	for (uint32_t i = 0; i < count; i++)
		prompt[i] = 1 + (uint32_t)(okv_mix64(seed * 1000 + i) % (FAKE_VOCABULARY - 1));
}

struct rig_state {
	struct okv_model model;
	struct rig rig;
	struct solo solo;
};

static int open_rig(void **state)
{
	struct rig_state *s = calloc(1, sizeof(*s));

	s->model = fake_model();
	rig_prepare(&s->rig, &s->model, &tokenizer);
	rig_open(&s->rig);
	solo_open(&s->solo, &s->rig);
	*state = s;
	return 0;
}

static int close_rig(void **state)
{
	struct rig_state *s = *state;

	solo_close(&s->solo);
	rig_close(&s->rig);
	free(s);
	return 0;
}

/* One random life of an engine: its size, its requests, when they come and which are cancelled all depend on `seed`. */
static void run_random_schedule(uint64_t seed)
{
	enum { REQUESTS = 24, PROMPT_MAX = 150 };
	static struct reply reply[REQUESTS];
	static uint32_t prompt[REQUESTS][PROMPT_MAX];
	struct okv_request request[REQUESTS];
	bool is_cancelled[REQUESTS] = {false};
	struct okv_rng rng = okv_rng_seeded(seed);
	struct okv_model model = fake_model();
	struct memory_source source;
	struct rig rig;
	struct solo solo;
	uint32_t admitted = 0, over = 0;

	rig_prepare(&rig, &model, &tokenizer);
	model.now_ns = &rig.now_ns;
	model.row_ns = 1 + okv_rng_below(&rng, 3 * OKV_NS_PER_MS);
	rig.options.graph.page_tokens = okv_rng_below(&rng, 2) ? 8 : 16;
	rig.options.graph.rows_max = 17 + (uint32_t)okv_rng_below(&rng, 100);
	rig.options.running_max = 1 + (uint32_t)okv_rng_below(&rng, 16);
	rig.options.arena_bytes = (28 + okv_rng_below(&rng, 100)) * 4096;
	rig_open(&rig);
	solo_open(&solo, &rig);
	memory_source_init(&source);
	if (okv_rng_below(&rng, 2))
		rig_attach(&rig, &source);
	for (uint32_t i = 0; i < REQUESTS; i++) {
		uint32_t count = 1 + (uint32_t)okv_rng_below(&rng, PROMPT_MAX);
		uint32_t shared = (uint32_t)okv_rng_below(&rng, count + 1);

		fill_prompt(prompt[i], count, 100 + i);
		fill_prompt(prompt[i], shared, okv_rng_below(&rng, 3));
		request[i] = request_of(prompt[i], count, 1 + (uint32_t)okv_rng_below(&rng, 40), &reply[i]);
		request[i].cache = (enum okv_cache_use)okv_rng_below(&rng, 3);
		request[i].ignore_end = okv_rng_below(&rng, 2);
		if (okv_rng_below(&rng, 2))
			request[i].sampling = (struct okv_sampling){
				.temperature = 0.8f, .top_p = 0.9f, .top_k = 20, .seed = okv_rng_next(&rng)};
	}
	while (over < REQUESTS) {
		source.holds_restores = okv_rng_below(&rng, 4) != 0;
		source.holds_publishes = okv_rng_below(&rng, 4) != 0;
		source.garbles_held = true;
		if (admitted < REQUESTS && okv_rng_below(&rng, 3) == 0) {
			admit_request(&rig, &request[admitted]);
			admitted++;
		}
		if (admitted > 0 && okv_rng_below(&rng, 40) == 0) {
			uint32_t i = (uint32_t)okv_rng_below(&rng, admitted);

			is_cancelled[i] = true;
			rig.driver.cancel(rig.driver.context, reply[i].id);
		}
		if (okv_rng_below(&rng, 30) == 0)
			okv_engine_forget(rig.engine);
		rig.now_ns += okv_rng_below(&rng, 500 * OKV_NS_PER_MS);
		(void)okv__engine_turn(rig.engine);
		for (over = 0; over < REQUESTS && reply[over].ends;)
			over++;
	}
	for (uint32_t i = 0; i < REQUESTS; i++) {
		if (reply[i].end == OKV_END_CANCELLED) {
			assert_true(is_cancelled[i]);
			continue;
		}
		assert_usage_adds_up(&reply[i]);
		assert_answers_like_solo(&solo, &rig, &request[i]);
	}
	source.holds_restores = source.holds_publishes = false;
	(void)okv__engine_turn(rig.engine);
	assert_drained(&rig);
	solo_close(&solo);
	rig_close(&rig);
	memory_source_done(&source);
}

static void a_lane_answers_like_solo_under_any_schedule(void **state)
{
	(void)state;
	for (uint64_t seed = 1; seed <= 60; seed++)
		run_random_schedule(seed);
}

static void equal_prompts_prefill_once(void **state)
{
	struct rig_state *s = *state;
	uint32_t prompt[100];
	struct reply reply[3];
	struct okv_request request[3];
	uint32_t computed = 0;

	fill_prompt(prompt, 100, 1);
	for (unsigned i = 0; i < 3; i++) {
		request[i] = request_of(prompt, 100, 5, &reply[i]);
		request[i].ignore_end = true;
		admit_request(&s->rig, &request[i]);
	}
	for (unsigned i = 0; i < 3; i++) {
		turn_until_over(&s->rig, &reply[i]);
		assert_answers_like_solo(&s->solo, &s->rig, &request[i]);
		assert_usage_adds_up(&reply[i]);
		computed += reply[i].usage.computed_tokens;
	}
	/* Six whole pages of 16 once; the last four tokens by each. */
	assert_int_equal(computed, 96 + 3 * 4);
	assert_drained(&s->rig);
}

static void a_page_that_begins_the_same_is_copied_and_both_lanes_stay_right(void **state)
{
	struct rig_state *s = *state;
	uint32_t prompt[60];
	struct reply first, second;
	struct okv_request a, b;

	fill_prompt(prompt, 60, 1);
	a = request_of(prompt, 60, 10, &first);
	a.ignore_end = true;
	admit_request(&s->rig, &a);
	turn_until_over(&s->rig, &first);
	assert_answers_like_solo(&s->solo, &s->rig, &a);
	/* The first 41 tokens again, then others: two whole pages and nine tokens of the third are there. */
	fill_prompt(prompt + 41, 15, 2);
	b = request_of(prompt, 56, 10, &second);
	admit_request(&s->rig, &b);
	turn_until_over(&s->rig, &second);
	assert_answers_like_solo(&s->solo, &s->rig, &b);
	assert_int_equal(second.usage.prefix_hit_tokens, 41);
	assert_int_equal(second.usage.computed_tokens, 15);
	/* The first prompt's own pages were not touched. */
	fill_prompt(prompt, 60, 1);
	a = request_of(prompt, 60, 10, &first);
	a.ignore_end = true;
	admit_request(&s->rig, &a);
	turn_until_over(&s->rig, &first);
	assert_answers_like_solo(&s->solo, &s->rig, &a);
	assert_int_equal(first.usage.prefix_hit_tokens, 59);
	assert_drained(&s->rig);
}

static void a_prompt_computes_its_last_token_whatever_is_cached(void **state)
{
	struct rig_state *s = *state;
	uint32_t prompt[32];
	struct reply reply;
	struct okv_request request;

	fill_prompt(prompt, 32, 3);
	for (unsigned i = 0; i < 2; i++) {
		request = request_of(prompt, 32, 3, &reply);
		admit_request(&s->rig, &request);
		turn_until_over(&s->rig, &reply);
		assert_answers_like_solo(&s->solo, &s->rig, &request);
	}
	assert_int_equal(reply.usage.computed_tokens, 1);
	assert_int_equal(reply.usage.prefix_hit_tokens, 31);
}

static void cache_off_neither_reads_nor_writes(void **state)
{
	struct rig_state *s = *state;
	uint32_t prompt[64];
	struct reply reply;
	struct okv_request request;
	static const enum okv_cache_use order[] = {OKV_CACHE_OFF, OKV_CACHE_LOCAL, OKV_CACHE_OFF, OKV_CACHE_LOCAL};
	static const uint32_t hits[] = {0, 0, 0, 63};

	fill_prompt(prompt, 64, 4);
	for (unsigned i = 0; i < 4; i++) {
		request = request_of(prompt, 64, 3, &reply);
		request.ignore_end = true;
		request.cache = order[i];
		admit_request(&s->rig, &request);
		turn_until_over(&s->rig, &reply);
		assert_answers_like_solo(&s->solo, &s->rig, &request);
		assert_int_equal(reply.usage.prefix_hit_tokens, hits[i]);
	}
}

static void cancel_frees_pages_at_the_next_turn(void **state)
{
	struct rig_state *s = *state;
	uint32_t prompt[300];
	struct reply reply;
	struct okv_request request;

	fill_prompt(prompt, 300, 5);
	request = request_of(prompt, 300, 100, &reply);
	request.cache = OKV_CACHE_OFF;
	admit_request(&s->rig, &request);
	assert_true(okv__engine_turn(s->rig.engine));
	assert_true(gauge_of(&s->rig, "orbitkv_engine_kv_pages", "state=\"held\"") > 0);
	s->rig.driver.cancel(s->rig.driver.context, reply.id);
	assert_false(okv__engine_turn(s->rig.engine));
	assert_int_equal(reply.end, OKV_END_CANCELLED);
	assert_int_equal(reply.ends, 1);
	assert_drained(&s->rig);
	assert_int_equal(s->rig.engine->pages.free_count, s->rig.engine->pages.count);
	s->rig.driver.cancel(s->rig.driver.context, reply.id); /* of a request that is over: nothing happens */
	s->rig.driver.cancel(s->rig.driver.context, 4711);
}

static void a_full_queue_refuses_and_says_so(void **state)
{
	struct okv_model model = fake_model();
	struct rig rig;
	struct reply reply[5];
	struct okv_request request;
	struct okv_reason reason;
	uint32_t prompt[8];
	uint64_t id = 0;

	(void)state;
	fill_prompt(prompt, 8, 6);
	rig_prepare(&rig, &model, &tokenizer);
	rig.options.running_max = 1;
	rig.options.queue_max = 2;
	rig_open(&rig);
	for (unsigned i = 0; i < 3; i++) { /* one that will run, though it does not yet, and two that wait */
		request = request_of(prompt, 8, 50, &reply[i]);
		admit_request(&rig, &request);
	}
	request = request_of(prompt, 8, 50, &reply[4]);
	assert_int_equal(rig.driver.admit(rig.driver.context, &request, &id, &reason), OKV_ERR_BUDGET);
	assert_string_equal(reason.field, "queue");
	assert_int_equal(id, 0);
	(void)okv__engine_turn(rig.engine);
	assert_int_equal(rig.driver.admit(rig.driver.context, &request, &id, &reason), OKV_ERR_BUDGET);
	turn_until_over(&rig, &reply[0]);
	request = request_of(prompt, 8, 50, &reply[3]);
	admit_request(&rig, &request);
	turn_until_over(&rig, &reply[3]);
	assert_int_equal(reply[4].ends, 0);
	assert_drained(&rig);
	rig_close(&rig);
}

static void assert_refused(struct rig *rig, const struct okv_request *request, const char *field, const char *words)
{
	struct okv_reason reason;
	uint64_t id = 0;

	assert_int_equal(rig->driver.admit(rig->driver.context, request, &id, &reason), OKV_ERR_INVALID);
	assert_string_equal(reason.field, field);
	assert_non_null(strstr(reason.text, words));
}

static void bad_requests_are_refused_by_name(void **state)
{
	struct rig_state *s = *state;
	static uint32_t prompt[FAKE_CONTEXT];
	struct reply reply;
	struct okv_request good, bad;

	fill_prompt(prompt, FAKE_CONTEXT, 7);
	good = request_of(prompt, 8, 4, &reply);
	bad = good;
	bad.prompt_count = 0;
	assert_refused(&s->rig, &bad, "prompt", "empty");
	bad = good;
	bad.tokens_max = 0;
	assert_refused(&s->rig, &bad, "max_tokens", "at least 1");
	bad = good;
	bad.prompt_count = FAKE_CONTEXT;
	assert_refused(&s->rig, &bad, "prompt",
		       "512 tokens; prompt and completion together may have 512 (the model's context); shorten it");
	bad = good;
	bad.sampling.temperature = -1;
	assert_refused(&s->rig, &bad, "temperature", "between");
	bad = good;
	bad.sampling.top_p = 0;
	assert_refused(&s->rig, &bad, "top_p", "above 0");
	bad = good;
	bad.sampling.min_p = 1.5f;
	assert_refused(&s->rig, &bad, "min_p", "between");
	prompt[3] = FAKE_VOCABULARY;
	assert_refused(&s->rig, &good, "prompt", "token 64");
	assert_drained(&s->rig);
}

static void a_prompt_that_can_never_fit_the_arena_is_refused_with_numbers(void **state)
{
	struct okv_model model = fake_model();
	struct rig rig;
	struct reply reply;
	struct okv_request request;
	uint32_t prompt[64];

	(void)state;
	fill_prompt(prompt, 64, 8);
	rig_prepare(&rig, &model, &tokenizer);
	rig.options.arena_bytes = 4 * 4096;
	rig_open(&rig);
	assert_int_equal(rig.driver.caps(rig.driver.context).context, 64);
	request = request_of(prompt, 64, 1, &reply);
	assert_refused(&rig, &request, "prompt", "the size of the KV arena");
	/* One less fits exactly, and ends where the arena ends. */
	request = request_of(prompt, 63, 100, &reply);
	request.ignore_end = true;
	admit_request(&rig, &request);
	turn_until_over(&rig, &reply);
	assert_int_equal(reply.end, OKV_END_LENGTH);
	assert_int_equal(reply.count, 1);
	rig_close(&rig);
}

static void a_request_waits_until_there_are_pages(void **state)
{
	struct okv_model model = fake_model();
	struct rig rig;
	struct solo solo;
	struct reply reply[3];
	struct okv_request request[3];
	uint32_t prompt[3][100];

	(void)state;
	rig_prepare(&rig, &model, &tokenizer);
	rig.options.arena_bytes = 10 * 4096;
	rig_open(&rig);
	solo_open(&solo, &rig);
	for (unsigned i = 0; i < 3; i++) {
		fill_prompt(prompt[i], 100, 10 + i);
		request[i] = request_of(prompt[i], 100, 20, &reply[i]);
		request[i].ignore_end = true;
		admit_request(&rig, &request[i]);
	}
	(void)okv__engine_turn(rig.engine);
	assert_int_equal(gauge_of(&rig, "orbitkv_engine_requests_running", ""), 1);
	assert_int_equal(gauge_of(&rig, "orbitkv_engine_requests_waiting", ""), 2);
	turn_until_over(&rig, &reply[2]);
	for (unsigned i = 0; i < 3; i++)
		assert_answers_like_solo(&solo, &rig, &request[i]);
	assert_true(counter_of(&rig, "orbitkv_engine_kv_pages_evicted_total", "") > 0);
	assert_drained(&rig);
	solo_close(&solo);
	rig_close(&rig);
}

static void an_end_token_ends_and_is_not_delivered(void **state)
{
	struct rig_state *s = *state;
	uint32_t prompt[4];
	struct reply reply;
	struct okv_request request;
	bool seen = false;

	for (uint64_t seed = 0; seed < 20 && !seen; seed++) {
		fill_prompt(prompt, 4, seed);
		request = request_of(prompt, 4, 200, &reply);
		admit_request(&s->rig, &request);
		turn_until_over(&s->rig, &reply);
		assert_answers_like_solo(&s->solo, &s->rig, &request);
		for (uint32_t i = 0; i < reply.count; i++)
			assert_int_not_equal(reply.token[i], FAKE_END);
		seen = reply.end == OKV_END_STOP;
	}
	assert_true(seen);
}

static void stop_ends_every_request_once_and_admits_no_more(void **state)
{
	struct okv_model model = fake_model();
	struct rig rig;
	struct reply reply[3];
	struct okv_request request;
	uint32_t prompt[40];
	uint64_t id;

	(void)state;
	fill_prompt(prompt, 40, 9);
	rig_prepare(&rig, &model, &tokenizer);
	rig.options.running_max = 1;
	rig_open(&rig);
	for (unsigned i = 0; i < 3; i++) {
		request = request_of(prompt, 40, 50, &reply[i]);
		request.ignore_end = true;
		admit_request(&rig, &request);
		(void)okv__engine_turn(rig.engine);
	}
	okv_engine_stop(rig.engine);
	for (unsigned i = 0; i < 3; i++) {
		assert_int_equal(reply[i].ends, 1);
		assert_int_equal(reply[i].end, OKV_END_CANCELLED);
	}
	assert_int_equal(rig.driver.admit(rig.driver.context, &request, &id, NULL), OKV_ERR_CANCELLED);
	okv_engine_destroy(rig.engine);
	okv_metrics_destroy(rig.metrics);
}

static void pages_are_made_resident_ahead_of_their_use(void **state)
{
	struct okv_model model = fake_model();
	struct rig rig;
	struct reply reply;
	struct okv_request request;
	uint32_t prompt[200];
	unsigned turns = 0;

	(void)state;
	fill_prompt(prompt, 200, 1);
	rig_prepare(&rig, &model, &tokenizer);
	rig.options.arena_bytes = 64 * 4096;
	rig.options.populate_bytes = 40 * 4096;
	rig_open(&rig);
	while (okv__engine_populate(rig.engine))
		turns++;
	assert_int_equal(turns, 3);
	assert_int_equal(rig.engine->arena.resident_count, 40);
	request = request_of(prompt, 200, 1, &reply);
	admit_request(&rig, &request);
	turn_until_over(&rig, &reply);
	while (okv__engine_populate(rig.engine))
		turns++;
	assert_int_equal(rig.engine->arena.resident_count, 13 + 40);
	rig_close(&rig);
}

static void bad_options_are_refused_by_name(void **state)
{
	struct okv_model model = fake_model();
	struct okv_engine *engine;
	struct okv_reason reason;
	struct rig rig;

	(void)state;
	rig_prepare(&rig, &model, &tokenizer);
	rig.options.running_max = rig.options.graph.rows_max;
	assert_int_equal(okv_engine_create(&rig.options, &engine, &reason), OKV_ERR_INVALID);
	assert_string_equal(reason.field, "running");
	rig.options.running_max = 4;
	rig.options.queue_max = 0;
	assert_int_equal(okv_engine_create(&rig.options, &engine, &reason), OKV_ERR_INVALID);
	assert_string_equal(reason.field, "queue");
	rig.options.queue_max = 4;
	rig.options.arena_bytes = 4095;
	assert_int_equal(okv_engine_create(&rig.options, &engine, &reason), OKV_ERR_INVALID);
	assert_string_equal(reason.field, "arena");
	rig.options.arena_bytes = 15ULL << 40; /* it fits the page numbers, but no machine */
	assert_int_equal(okv_engine_create(&rig.options, &engine, &reason), OKV_ERR_NO_SPACE);
	assert_non_null(strstr(reason.text, "--arena-size"));
	rig.options.arena_bytes = 1 << 20;
	rig.options.step_ns = 0;
	assert_int_equal(okv_engine_create(&rig.options, &engine, &reason), OKV_ERR_INVALID);
	assert_string_equal(reason.field, "step");
	rig.options.step_ns = 1;
	rig.options.isolation_domain = "a name that is much longer than forty bytes can be";
	assert_int_equal(okv_engine_create(&rig.options, &engine, &reason), OKV_ERR_INVALID);
	assert_string_equal(reason.field, "isolation_domain");
	rig.options.isolation_domain = "default";
	rig.options.graph.page_tokens = 12;
	assert_int_equal(okv_engine_create(&rig.options, &engine, &reason), OKV_ERR_INVALID);
	assert_string_equal(reason.field, "page_tokens");
	okv_metrics_destroy(rig.metrics);
}

#define RIGGED(test) cmocka_unit_test_setup_teardown(test, open_rig, close_rig)

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(a_lane_answers_like_solo_under_any_schedule),
		RIGGED(equal_prompts_prefill_once),
		RIGGED(a_page_that_begins_the_same_is_copied_and_both_lanes_stay_right),
		RIGGED(a_prompt_computes_its_last_token_whatever_is_cached),
		RIGGED(cache_off_neither_reads_nor_writes),
		RIGGED(cancel_frees_pages_at_the_next_turn),
		cmocka_unit_test(a_full_queue_refuses_and_says_so),
		RIGGED(bad_requests_are_refused_by_name),
		cmocka_unit_test(a_prompt_that_can_never_fit_the_arena_is_refused_with_numbers),
		cmocka_unit_test(a_request_waits_until_there_are_pages),
		RIGGED(an_end_token_ends_and_is_not_delivered),
		cmocka_unit_test(stop_ends_every_request_once_and_admits_no_more),
		cmocka_unit_test(pages_are_made_resident_ahead_of_their_use),
		cmocka_unit_test(bad_options_are_refused_by_name),
	};

	return cmocka_run_group_tests_name("lanes", tests, NULL, NULL);
}
