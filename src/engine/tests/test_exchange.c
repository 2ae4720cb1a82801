/* Restores and publishes against a KV source in memory: exact answers, exact numbers, and pages that outlive deadlines.
 */
#include "fake_model.h"
#include "lane_rig.h"

static const struct okv_tokenizer tokenizer = {.digest = {{9}}};

enum { PROMPT = 100, WHOLE = 6 }; /* floor((100 - 1) / 16) */

struct two_engines {
	struct okv_model model;
	struct memory_source source;
	struct rig first, second;
	struct solo solo;
	uint32_t prompt[PROMPT];
	struct reply reply;
	struct okv_request request;
};

/* The first engine computes the prompt and publishes it; the second is attached and knows nothing. */
static int open_two(void **state)
{
	struct two_engines *s = calloc(1, sizeof(*s));

	s->model = fake_model();
	memory_source_init(&s->source);
	rig_prepare(&s->first, &s->model, &tokenizer);
	rig_prepare(&s->second, &s->model, &tokenizer);
	s->second.options.arena_bytes = 24 * 4096;
	rig_open(&s->first);
	rig_open(&s->second);
	solo_open(&s->solo, &s->first);
	for (uint32_t i = 0; i < PROMPT; i++)
		s->prompt[i] = 1 + i * 7 % (FAKE_VOCABULARY - 1);
	s->request = request_of(s->prompt, PROMPT, 30, &s->reply);
	s->request.ignore_end = true;
	rig_attach(&s->first, &s->source);
	admit_request(&s->first, &s->request);
	turn_until_over(&s->first, &s->reply);
	assert_drained(&s->first);
	rig_attach(&s->second, &s->source);
	*state = s;
	return 0;
}

static int close_two(void **state)
{
	struct two_engines *s = *state;

	solo_close(&s->solo);
	rig_close(&s->first);
	rig_close(&s->second);
	memory_source_done(&s->source);
	free(s);
	return 0;
}

static void ask_second(struct two_engines *s)
{
	struct okv_request request = request_of(s->prompt, PROMPT, 30, &s->reply);

	request.ignore_end = true;
	request.cache = s->request.cache;
	s->request = request;
	admit_request(&s->second, &s->request);
}

static void every_full_page_is_published_once(void **state)
{
	struct two_engines *s = *state;

	/* 129 tokens have KV: eight full pages, prompt and completion alike. */
	assert_int_equal(s->source.block_count, 8);
	assert_int_equal(s->source.published_blocks, 8);
	assert_int_equal(counter_of(&s->first, "orbitkv_engine_published_pages_total", ""), 8);
	memory_source_attach(&s->source, s->first.engine);
	s->request = request_of(s->prompt, PROMPT, 30, &s->reply);
	s->request.ignore_end = true;
	admit_request(&s->first, &s->request);
	turn_until_over(&s->first, &s->reply);
	assert_drained(&s->first);
	assert_int_equal(s->source.published_blocks, 8);
}

static void a_restored_prompt_answers_like_a_computed_one_and_the_numbers_are_exact(void **state)
{
	struct two_engines *s = *state;

	ask_second(s);
	turn_until_over(&s->second, &s->reply);
	assert_answers_like_solo(&s->solo, &s->second, &s->request);
	assert_usage_adds_up(&s->reply);
	assert_int_equal(s->reply.usage.restored_tokens, WHOLE * 16);
	assert_int_equal(s->reply.usage.prefix_hit_tokens, 0);
	assert_int_equal(s->reply.usage.computed_tokens, PROMPT - WHOLE * 16);
	assert_int_equal(s->reply.usage.restored_remote_bytes, WHOLE * okv_engine_page_bytes(s->second.engine));
	assert_drained(&s->second);
	/* What came from the cache is not offered to it; the completion's pages are. */
	assert_int_equal(s->source.published_blocks, 8 + 2);
	/* And it serves the local prefix tree: nothing is restored a second time. */
	ask_second(s);
	turn_until_over(&s->second, &s->reply);
	assert_int_equal(s->reply.usage.prefix_hit_tokens, PROMPT - 1);
	assert_int_equal(s->source.restores, 2); /* the first engine's miss and the second's hit */
}

static void what_a_restore_does_not_bring_is_computed(void **state)
{
	struct two_engines *s = *state;

	s->source.restore_max = 2;
	ask_second(s);
	turn_until_over(&s->second, &s->reply);
	assert_answers_like_solo(&s->solo, &s->second, &s->request);
	assert_int_equal(s->reply.usage.restored_tokens, 32);
	assert_int_equal(s->reply.usage.computed_tokens, PROMPT - 32);
	assert_drained(&s->second);
}

static void a_source_that_refuses_costs_nothing(void **state)
{
	struct two_engines *s = *state;

	s->source.refuses_restores = s->source.refuses_publishes = true;
	ask_second(s);
	turn_until_over(&s->second, &s->reply);
	assert_answers_like_solo(&s->solo, &s->second, &s->request);
	assert_int_equal(s->reply.usage.computed_tokens, PROMPT);
	assert_int_equal(s->reply.usage.restore_ns, 0);
	assert_drained(&s->second);
	assert_true(counter_of(&s->second, "orbitkv_engine_publish_failures_total", "") > 0);
}

static void other_cache_modes_never_touch_the_source(void **state)
{
	struct two_engines *s = *state;
	uint32_t restores = s->source.restores, published = s->source.published_blocks;

	for (unsigned i = 0; i < 2; i++) {
		s->request.cache = i ? OKV_CACHE_OFF : OKV_CACHE_LOCAL;
		ask_second(s);
		turn_until_over(&s->second, &s->reply);
		assert_answers_like_solo(&s->solo, &s->second, &s->request);
		assert_int_equal(s->reply.usage.computed_tokens, PROMPT);
	}
	assert_int_equal(s->source.restores, restores);
	assert_int_equal(s->source.published_blocks, published);
}

static void a_waiting_restore_holds_up_nobody(void **state)
{
	struct two_engines *s = *state;
	uint32_t prompt[20];
	struct reply other;
	struct okv_request request;

	s->source.holds_restores = true;
	ask_second(s);
	assert_false(okv__engine_turn(s->second.engine));
	for (uint32_t i = 0; i < 20; i++)
		prompt[i] = 30 + i;
	request = request_of(prompt, 20, 10, &other);
	request.cache = OKV_CACHE_LOCAL;
	admit_request(&s->second, &request);
	turn_until_over(&s->second, &other);
	assert_answers_like_solo(&s->solo, &s->second, &request);
	assert_int_equal(s->reply.ends, 0);
	s->source.holds_restores = false;
	turn_until_over(&s->second, &s->reply);
	assert_answers_like_solo(&s->solo, &s->second, &s->request);
	assert_int_equal(s->reply.usage.restored_tokens, WHOLE * 16);
}

static void a_source_that_copies_in_slices_gets_many_of_them_in_a_turn(void **state)
{
	struct two_engines *s = *state;

	s->source.slices = 50;
	ask_second(s);
	assert_false(okv__engine_turn(s->second.engine)); /* starts the restore */
	assert_true(okv__engine_turn(s->second.engine));
	assert_int_equal(s->source.slices, 0);
	turn_until_over(&s->second, &s->reply);
	assert_int_equal(s->reply.usage.restored_tokens, WHOLE * 16);
}

/* The heart of rule 1: a deadline moves the lane on; only the completion frees the pages it was promised. */
static void an_overdue_restore_is_recomputed_elsewhere_and_its_pages_wait_for_the_completion(void **state)
{
	struct two_engines *s = *state;

	s->source.holds_restores = s->source.garbles_held = true;
	ask_second(s);
	assert_false(okv__engine_turn(s->second.engine));
	s->second.now_ns += s->second.options.restore_limit_ns - 1;
	assert_false(okv__engine_turn(s->second.engine));
	s->second.now_ns += 1;
	assert_true(okv__engine_turn(s->second.engine));
	assert_int_equal(s->source.cancels, 1);
	turn_until_over(&s->second, &s->reply);
	assert_answers_like_solo(&s->solo, &s->second, &s->request);
	assert_usage_adds_up(&s->reply);
	assert_int_equal(s->reply.usage.computed_tokens, PROMPT);
	assert_int_equal(s->reply.usage.restored_remote_bytes, 0);
	assert_int_equal(counter_of(&s->second, "orbitkv_engine_restore_deadlines_total", ""), 1);

	/* A year later the pages are still the transfer's, and a late write into them hurts nobody. */
	s->second.now_ns += 365 * 86400 * OKV_NS_PER_S;
	(void)okv__engine_turn(s->second.engine);
	assert_int_equal(gauge_of(&s->second, "orbitkv_engine_kv_pages", "state=\"held\""), WHOLE);
	assert_int_equal(gauge_of(&s->second, "orbitkv_engine_transfers", "kind=\"restore\""), 1);
	s->source.holds_restores = false;
	assert_drained(&s->second);
	assert_int_equal(counter_of(&s->second, "orbitkv_engine_restore_failures_total", ""), 0);
	ask_second(s);
	turn_until_over(&s->second, &s->reply);
	assert_answers_like_solo(&s->solo, &s->second, &s->request);
	assert_int_equal(s->reply.usage.prefix_hit_tokens, PROMPT - 1);
}

static void an_overdue_restore_waits_for_pages_when_the_arena_has_no_others(void **state)
{
	struct two_engines *s = *state;
	struct rig small;

	rig_prepare(&small, &s->model, &tokenizer);
	small.options.arena_bytes = 10 * 4096; /* nine are needed, six are the restore's */
	rig_open(&small);
	rig_attach(&small, &s->source);
	s->source.holds_restores = s->source.garbles_held = true;
	s->request = request_of(s->prompt, PROMPT, 30, &s->reply);
	s->request.ignore_end = true;
	admit_request(&small, &s->request);
	assert_false(okv__engine_turn(small.engine));
	small.now_ns += small.options.restore_limit_ns;
	for (unsigned i = 0; i < 10; i++)
		assert_false(okv__engine_turn(small.engine));
	assert_int_equal(gauge_of(&small, "orbitkv_engine_requests_waiting", ""), 1);
	s->source.holds_restores = false;
	turn_until_over(&small, &s->reply);
	assert_answers_like_solo(&s->solo, &small, &s->request);
	assert_int_equal(s->reply.usage.computed_tokens, PROMPT);
	assert_drained(&small);
	rig_close(&small);
}

static void a_request_cancelled_during_its_restore_leaves_the_pages_with_the_transfer(void **state)
{
	struct two_engines *s = *state;

	s->source.holds_restores = s->source.garbles_held = true;
	ask_second(s);
	assert_false(okv__engine_turn(s->second.engine));
	s->second.driver.cancel(s->second.driver.context, s->reply.id);
	assert_false(okv__engine_turn(s->second.engine));
	assert_int_equal(s->reply.end, OKV_END_CANCELLED);
	assert_int_equal(s->source.cancels, 1);
	assert_int_equal(gauge_of(&s->second, "orbitkv_engine_kv_pages", "state=\"held\""), WHOLE);
	s->source.holds_restores = false;
	assert_drained(&s->second);
}

static void a_failed_publish_is_counted_and_tried_again_by_the_next_request(void **state)
{
	struct two_engines *s = *state;

	s->source.block_count = 0; /* nothing to restore, and it leaks no memory: see below */
	for (uint32_t i = 0; i < 8; i++)
		free(s->source.block[i].bytes);
	s->source.fails_publishes = true;
	ask_second(s);
	turn_until_over(&s->second, &s->reply);
	assert_drained(&s->second);
	assert_answers_like_solo(&s->solo, &s->second, &s->request);
	assert_true(counter_of(&s->second, "orbitkv_engine_publish_failures_total", "") > 0);
	assert_int_equal(counter_of(&s->second, "orbitkv_engine_published_pages_total", ""), 0);
	s->source.fails_publishes = false;
	ask_second(s);
	turn_until_over(&s->second, &s->reply);
	assert_drained(&s->second);
	assert_int_equal(counter_of(&s->second, "orbitkv_engine_published_pages_total", ""), 8);
	assert_int_equal(s->source.block_count, 8);
}

static void published_pages_stay_until_the_completion(void **state)
{
	struct two_engines *s = *state;

	s->source.holds_publishes = true;
	ask_second(s);
	turn_until_over(&s->second, &s->reply);
	(void)okv__engine_turn(s->second.engine);
	assert_int_equal(gauge_of(&s->second, "orbitkv_engine_kv_pages", "state=\"held\""), 2);
	assert_int_equal(gauge_of(&s->second, "orbitkv_engine_unpublished_pages", ""), 2);
	okv_engine_forget(s->second.engine);
	(void)okv__engine_turn(s->second.engine);
	assert_int_equal(gauge_of(&s->second, "orbitkv_engine_kv_pages", "state=\"held\""), 2);
	assert_int_equal(gauge_of(&s->second, "orbitkv_engine_kv_pages", "state=\"idle\""), 0);
	s->source.holds_publishes = false;
	assert_drained(&s->second);
}

/* Sees each event as a client would, at once: the pages before a token are counted when it comes. */
static void counting_sink(void *context, uint64_t request_id, const struct okv_event *event)
{
	struct two_engines *s = OKV_CONTAINER_OF((struct reply *)context, struct two_engines, reply);

	assert_int_equal(gauge_of(&s->second, "orbitkv_engine_unpublished_pages", ""),
			 (PROMPT + s->reply.count - (event->kind == OKV_EVENT_END)) / 16 - WHOLE);
	reply_sink(&s->reply, request_id, event);
}

static void pages_count_as_unpublished_before_the_next_token_comes(void **state)
{
	struct two_engines *s = *state;

	s->source.holds_publishes = true;
	s->request = request_of(s->prompt, PROMPT, 30, &s->reply);
	s->request.ignore_end = true;
	s->request.sink = counting_sink;
	admit_request(&s->second, &s->request);
	turn_until_over(&s->second, &s->reply);
	assert_int_equal(s->reply.count, 30);
	s->source.holds_publishes = false;
	assert_drained(&s->second);
}

/* A prompt of the second engine is cancelled after its first chunk, which is smaller than an offer. */
static void cancel_after_a_chunk(struct two_engines *s, uint32_t prompt_count, uint64_t row_ns)
{
	uint32_t prompt[380], published_blocks = s->source.published_blocks;

	for (uint32_t i = 0; i < prompt_count; i++)
		prompt[i] = 1 + i * 11 % (FAKE_VOCABULARY - 1);
	s->second.engine->scheduler.row_ns = row_ns;
	s->request = request_of(prompt, prompt_count, 1, &s->reply);
	admit_request(&s->second, &s->request);
	while (!okv__engine_turn(s->second.engine)) /* the cache is asked in vain */
		assert_int_equal(s->reply.ends, 0);
	assert_int_equal(s->source.published_blocks, published_blocks);
	s->second.driver.cancel(s->second.driver.context, s->reply.id);
	turn_until_over(&s->second, &s->reply);
	assert_int_equal(s->reply.end, OKV_END_CANCELLED);
}

static void what_a_cancelled_prompt_computed_is_still_offered(void **state)
{
	struct two_engines *s = *state;

	cancel_after_a_chunk(s, 380, 160 * OKV_NS_PER_MS / 64);
	assert_drained(&s->second);
	assert_int_equal(s->reply.usage.computed_tokens, 64);
	assert_int_equal(s->source.published_blocks, 8 + 4);
}

static void what_a_source_takes_at_once_may_be_more_than_a_quarter_of_the_arena(void **state)
{
	struct two_engines *s = *state;

	cancel_after_a_chunk(s, 380, OKV_NS_PER_MS);
	assert_drained(&s->second);
	assert_int_equal(s->reply.usage.computed_tokens, 160); /* ten pages of the arena's twenty-four */
	assert_int_equal(s->source.published_blocks, 8 + 10);
	assert_int_equal(counter_of(&s->second, "orbitkv_engine_publish_failures_total", ""), 0);
}

static void what_waits_to_be_published_is_at_most_a_quarter_of_the_arena(void **state)
{
	struct two_engines *s = *state;

	s->source.holds_publishes = true;
	ask_second(s);
	turn_until_over(&s->second, &s->reply);
	(void)okv__engine_turn(s->second.engine);
	assert_int_equal(s->source.published_blocks, 8 + 2);
	s->source.refuses_publishes = true; /* as a source whose slots are all taken */
	cancel_after_a_chunk(s, 300, OKV_NS_PER_MS);
	(void)okv__engine_turn(s->second.engine);
	assert_int_equal(counter_of(&s->second, "orbitkv_engine_publish_failures_total", ""), 1);
	assert_int_equal(gauge_of(&s->second, "orbitkv_engine_unpublished_pages", ""), 2);
	assert_int_equal(gauge_of(&s->second, "orbitkv_engine_kv_pages", "state=\"held\""), 2);
	s->source.holds_publishes = s->source.refuses_publishes = false;
	assert_drained(&s->second);
	assert_int_equal(s->source.published_blocks, 8 + 2);
}

static void of_what_waits_to_be_published_the_last_is_dropped(void **state)
{
	struct two_engines *s = *state;

	s->source.holds_publishes = true;
	ask_second(s);
	turn_until_over(&s->second, &s->reply);
	(void)okv__engine_turn(s->second.engine);
	s->source.refuses_publishes = true; /* as a source whose slots are all taken */
	for (unsigned i = 0; i < 2; i++)    /* four pages, and the four after them */
		cancel_after_a_chunk(s, 200, 160 * OKV_NS_PER_MS / 64);
	assert_int_equal(counter_of(&s->second, "orbitkv_engine_publish_failures_total", ""), 1);
	assert_int_equal(gauge_of(&s->second, "orbitkv_engine_unpublished_pages", ""), 2 + 4);
	s->source.holds_publishes = s->source.refuses_publishes = false;
	(void)okv__engine_turn(s->second.engine);
	assert_drained(&s->second);
	assert_int_equal(s->source.published_blocks, 8 + 2 + 4);
	okv_engine_forget(s->second.engine);
	cancel_after_a_chunk(s, 200, 160 * OKV_NS_PER_MS / 64);
	assert_int_equal(s->reply.usage.restored_tokens, 64);
}

/* Nothing else happens afterwards, so nobody would wake the thread. */
static void a_lane_that_waits_for_pages_of_dropped_offers_is_asked_again_at_once(void **state)
{
	struct two_engines *s = *state;
	uint32_t prompt[300];
	struct reply cancelled;
	struct okv_request request = request_of(prompt, 300, 1, &cancelled);

	for (uint32_t i = 0; i < 300; i++)
		prompt[i] = 1 + i * 11 % (FAKE_VOCABULARY - 1);
	s->source.refuses_restores = s->source.refuses_publishes = true; /* as a source that is not attached */
	admit_request(&s->second, &request);
	assert_true(okv__engine_turn(s->second.engine)); /* ten of twenty-four pages, which are too few for an offer */
	s->request = request_of(s->prompt, PROMPT, 200, &s->reply);
	s->request.ignore_end = true;
	admit_request(&s->second, &s->request);
	s->second.driver.cancel(s->second.driver.context, cancelled.id);
	while (!s->reply.ends)
		assert_true(okv__engine_turn(s->second.engine));
	assert_int_equal(cancelled.end, OKV_END_CANCELLED);
	assert_drained(&s->second);
}

/* A check that can fail: one damaged byte of one restored block changes the answer. */
static void a_damaged_block_would_change_the_answer(void **state)
{
	struct two_engines *s = *state;
	uint32_t expected[REPLY_TOKENS];

	s->source.block[3].bytes[5] ^= 1;
	ask_second(s);
	turn_until_over(&s->second, &s->reply);
	assert_int_equal(solo_answer(&s->solo, &s->second, &s->request, expected), s->reply.count);
	assert_memory_not_equal(expected, s->reply.token, s->reply.count * sizeof(*expected));
}

#define RIGGED(test) cmocka_unit_test_setup_teardown(test, open_two, close_two)

int main(void)
{
	const struct CMUnitTest tests[] = {
		RIGGED(every_full_page_is_published_once),
		RIGGED(a_restored_prompt_answers_like_a_computed_one_and_the_numbers_are_exact),
		RIGGED(what_a_restore_does_not_bring_is_computed),
		RIGGED(a_source_that_refuses_costs_nothing),
		RIGGED(other_cache_modes_never_touch_the_source),
		RIGGED(a_waiting_restore_holds_up_nobody),
		RIGGED(a_source_that_copies_in_slices_gets_many_of_them_in_a_turn),
		RIGGED(an_overdue_restore_is_recomputed_elsewhere_and_its_pages_wait_for_the_completion),
		RIGGED(an_overdue_restore_waits_for_pages_when_the_arena_has_no_others),
		RIGGED(a_request_cancelled_during_its_restore_leaves_the_pages_with_the_transfer),
		RIGGED(a_failed_publish_is_counted_and_tried_again_by_the_next_request),
		RIGGED(published_pages_stay_until_the_completion),
		RIGGED(pages_count_as_unpublished_before_the_next_token_comes),
		RIGGED(what_a_cancelled_prompt_computed_is_still_offered),
		RIGGED(what_a_source_takes_at_once_may_be_more_than_a_quarter_of_the_arena),
		RIGGED(what_waits_to_be_published_is_at_most_a_quarter_of_the_arena),
		RIGGED(of_what_waits_to_be_published_the_last_is_dropped),
		RIGGED(a_lane_that_waits_for_pages_of_dropped_offers_is_asked_again_at_once),
		RIGGED(a_damaged_block_would_change_the_answer),
	};

	return cmocka_run_group_tests_name("exchange", tests, NULL, NULL);
}
