/*
 * A rig for lanes: an engine without its thread on a virtual clock, replies that remember what came, and the oracle:
 * the same prompt alone, one row at a time, in memory of its own.
 *
 * Included by one file of a test executable, after the model (the fake one or the real one's headers).
 */
#ifndef OKV_ENGINE_LANE_RIG_H
#define OKV_ENGINE_LANE_RIG_H

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "lane.h"
#include "memory_source.h"
#include "okv/base/rng.h"

enum { REPLY_TOKENS = 512 };

struct reply {
	uint64_t id;
	uint32_t token[REPLY_TOKENS];
	uint32_t count;
	unsigned ends;
	enum okv_end end;
	struct okv_usage usage;
};

static inline void reply_sink(void *context, uint64_t request_id, const struct okv_event *event)
{
	struct reply *reply = context;

	OKV_ASSERT(reply->ends == 0 && request_id != 0);
	if (event->kind == OKV_EVENT_TOKEN) {
		OKV_ASSERT(reply->count < REPLY_TOKENS);
		reply->token[reply->count++] = event->token;
		return;
	}
	reply->ends++;
	reply->end = event->end;
	reply->usage = event->usage;
}

struct rig {
	const struct okv_model *model;
	const struct okv_tokenizer *tokenizer;
	struct okv_metrics *metrics;
	struct okv_engine_options options;
	struct okv_engine *engine;
	struct okv_driver driver;
	uint64_t now_ns;
};

/* Options may be changed between rig_prepare and rig_open. */
static inline void rig_prepare(struct rig *rig, const struct okv_model *model, const struct okv_tokenizer *tokenizer)
{
	*rig = (struct rig){.model = model, .tokenizer = tokenizer, .metrics = okv_metrics_create()};
	rig->options = okv_engine_options_default();
	rig->options.model = model;
	rig->options.tokenizer = tokenizer;
	rig->options.metrics = rig->metrics;
	rig->options.clock = okv_clock_virtual(&rig->now_ns);
	rig->options.arena_bytes = 256 * 4096;
	rig->options.populate_bytes = 0;
	rig->options.graph.threads = 1;
}

static inline void rig_open(struct rig *rig)
{
	struct okv_reason reason = {.field = ""};

	if (okv_engine_create(&rig->options, &rig->engine, &reason) != OKV_OK)
		fail_msg("%s", reason.text);
	rig->driver = okv_engine_driver(rig->engine);
}

static inline void rig_attach(struct rig *rig, struct memory_source *source)
{
	memory_source_attach(source, rig->engine);
	rig->engine->source = &source->ops;
}

static inline void rig_close(struct rig *rig)
{
	okv_engine_stop(rig->engine);
	okv_engine_destroy(rig->engine);
	okv_metrics_destroy(rig->metrics);
}

static inline struct okv_request request_of(const uint32_t *prompt, uint32_t count, uint32_t tokens_max,
					    struct reply *reply)
{
	*reply = (struct reply){.id = 0};
	return (struct okv_request){.prompt = prompt,
				    .prompt_count = count,
				    .tokens_max = tokens_max,
				    .sampling = {.top_p = 1},
				    .sink = reply_sink,
				    .sink_context = reply};
}

static inline void admit_request(struct rig *rig, const struct okv_request *request)
{
	struct okv_reason reason = {.field = ""};
	struct reply *reply = request->sink_context;

	if (rig->driver.admit(rig->driver.context, request, &reply->id, &reason) != OKV_OK)
		fail_msg("%s", reason.text);
}

static inline void turn_until_over(struct rig *rig, const struct reply *reply)
{
	for (unsigned turns = 0; !reply->ends; turns++) {
		assert_true(turns < 100000);
		(void)okv__engine_turn(rig->engine);
	}
}

static inline int64_t gauge_of(struct rig *rig, const char *name, const char *labels)
{
	return okv_metric_value(okv_gauge(rig->metrics, name, labels, ""));
}

static inline int64_t counter_of(struct rig *rig, const char *name, const char *labels)
{
	return okv_metric_value(okv_counter(rig->metrics, name, labels, ""));
}

static inline void assert_drained(struct rig *rig)
{
	(void)okv__engine_turn(rig->engine);
	assert_int_equal(gauge_of(rig, "orbitkv_engine_kv_pages", "state=\"held\""), 0);
	assert_int_equal(gauge_of(rig, "orbitkv_engine_kv_pages", "state=\"shared\""), 0);
	assert_int_equal(gauge_of(rig, "orbitkv_engine_kv_pages", "state=\"reserved\""), 0);
	assert_int_equal(gauge_of(rig, "orbitkv_engine_requests_running", ""), 0);
	assert_int_equal(gauge_of(rig, "orbitkv_engine_requests_waiting", ""), 0);
	assert_int_equal(gauge_of(rig, "orbitkv_engine_transfers", "kind=\"restore\""), 0);
	assert_int_equal(gauge_of(rig, "orbitkv_engine_transfers", "kind=\"publish\""), 0);
	assert_int_equal(gauge_of(rig, "orbitkv_engine_unpublished_pages", ""), 0);
}

static inline void assert_usage_adds_up(const struct reply *reply)
{
	const struct okv_usage *usage = &reply->usage;

	assert_int_equal(usage->computed_tokens + usage->prefix_hit_tokens + usage->restored_tokens,
			 usage->prompt_tokens);
	assert_int_equal(usage->generated_tokens, reply->count);
}

/* The oracle: what the request must answer, computed alone, row by row, without an engine. */
struct solo {
	struct okv_graph *graph;
	struct okv_kv_page *pages;
	uint8_t *memory, *rotated;
	float *logits;
	struct okv__sampler sampler;
};

static inline void solo_open(struct solo *solo, const struct rig *rig)
{
	const struct okv_model_shape *shape = okv_model_shape(rig->model);
	struct okv_graph_options options = rig->options.graph;
	const struct okv_kv_layout *layout;
	uint32_t count;

	options.rows_max = 1;
	assert_int_equal(okv_graph_create(rig->model, &options, &solo->graph, NULL), OKV_OK);
	layout = okv_graph_layout(solo->graph);
	count = (shape->context < 1024 ? shape->context : 1024) / layout->page_tokens;
	solo->pages = calloc(count, sizeof(*solo->pages));
	solo->memory = aligned_alloc(4096, count * ((layout->page_bytes + 4095) / 4096 * 4096));
	solo->rotated = aligned_alloc(64, count * ((layout->rotated_bytes + 63) / 64 * 64));
	solo->logits = calloc(shape->vocabulary, sizeof(*solo->logits));
	assert_true(solo->pages && solo->memory && solo->rotated && solo->logits);
	for (uint32_t i = 0; i < count; i++) {
		solo->pages[i].bytes = solo->memory + i * ((layout->page_bytes + 4095) / 4096 * 4096);
		solo->pages[i].rotated = solo->rotated + i * ((layout->rotated_bytes + 63) / 64 * 64);
	}
	assert_int_equal(okv__sampler_init(&solo->sampler, shape->vocabulary, NULL), OKV_OK);
}

static inline void solo_close(struct solo *solo)
{
	okv__sampler_done(&solo->sampler);
	okv_graph_destroy(solo->graph);
	free(solo->pages);
	free(solo->memory);
	free(solo->rotated);
	free(solo->logits);
}

/* Writes the answer to `ret_tokens` (room for tokens_max) and returns its length. */
static inline uint32_t solo_answer(struct solo *solo, const struct rig *rig, const struct okv_request *request,
				   uint32_t *ret_tokens)
{
	uint32_t count = 0, position = 0, token = request->prompt[0];

	for (;;) {
		struct okv_graph_row row = {
			.token = token, .position = position, .pages = solo->pages, .wants_logits = true};

		okv_graph_step(solo->graph, &row, 1, solo->logits);
		position++;
		if (position < request->prompt_count) {
			token = request->prompt[position];
			continue;
		}
		token = okv__sample(&solo->sampler, &request->sampling, solo->logits, position);
		if (!request->ignore_end && okv_tokenizer_is_end(rig->tokenizer, token))
			return count;
		ret_tokens[count++] = token;
		if (count == request->tokens_max)
			return count;
	}
}

static inline void assert_answers_like_solo(struct solo *solo, const struct rig *rig, const struct okv_request *request)
{
	const struct reply *reply = request->sink_context;
	uint32_t expected[REPLY_TOKENS];
	uint32_t count = solo_answer(solo, rig, request, expected);

	assert_int_equal(reply->ends, 1);
	assert_int_equal(reply->count, count);
	assert_memory_equal(reply->token, expected, count * sizeof(*expected));
}

#endif
