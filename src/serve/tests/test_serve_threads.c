/*
 * The API with its real threads: the loop in one, an engine that steps in another, clients in several, of which some
 * hang up. Also run under ThreadSanitizer. Every token must arrive once and in order, and nothing may be left with the
 * engine.
 */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <string.h>

#include <cmocka.h>

#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <unistd.h>

#include "okv/model/gguf.h"
#include "okv/serve/serve.h"

#include "gguf_builder.h"
#include "http_client.h"

enum { CLIENTS = 4, ROUNDS = 12, TOKENS = 26, LANES = 8 };

struct lane {
	uint64_t id; /* 0: free */
	struct okv_request request;
	uint32_t said;
	bool is_cancelled;
};

/* An engine of LANES lanes that says one letter a step for each request: a, b, c, ... */
struct stepper {
	pthread_mutex_t lock; /* guards the following */
	struct lane lane[LANES];
	uint64_t last_id;
	bool is_over;
	uint32_t letter[TOKENS]; /* constant */
	uint32_t vocabulary;
	pthread_t thread;
};

static enum okv_status admit(void *context, const struct okv_request *request, uint64_t *ret_id,
			     struct okv_reason *reason)
{
	struct stepper *stepper = context;
	enum okv_status status = OKV_ERR_BUDGET;

	pthread_mutex_lock(&stepper->lock);
	for (int i = 0; i < LANES && status != OKV_OK; i++) {
		if (stepper->lane[i].id)
			continue;
		stepper->lane[i] = (struct lane){.id = ++stepper->last_id, .request = *request};
		*ret_id = stepper->last_id;
		status = OKV_OK;
	}
	pthread_mutex_unlock(&stepper->lock);
	return status == OKV_OK ? OKV_OK : okv_refuse(reason, status, "", "every lane is taken");
}

static void cancel(void *context, uint64_t request_id)
{
	struct stepper *stepper = context;

	pthread_mutex_lock(&stepper->lock);
	for (int i = 0; i < LANES; i++)
		if (stepper->lane[i].id == request_id)
			stepper->lane[i].is_cancelled = true;
	pthread_mutex_unlock(&stepper->lock);
}

static struct okv_driver_caps caps(void *context)
{
	struct stepper *stepper = context;

	return (struct okv_driver_caps){.context = 1000, .vocabulary = stepper->vocabulary};
}

/* Returns true once the request is over. */
static bool step_lane(const struct stepper *stepper, struct lane *lane)
{
	struct okv_event event = {.kind = OKV_EVENT_TOKEN};

	if (!lane->is_cancelled && lane->said < lane->request.tokens_max) {
		event.token = stepper->letter[lane->said++ % TOKENS];
	} else {
		event.kind = OKV_EVENT_END;
		event.end = lane->is_cancelled ? OKV_END_CANCELLED : OKV_END_LENGTH;
		event.usage.generated_tokens = lane->said;
	}
	lane->request.sink(lane->request.sink_context, lane->id, &event);
	return event.kind == OKV_EVENT_END;
}

static void *run_engine(void *context)
{
	struct stepper *stepper = context;
	bool is_over = false;

	while (!is_over) {
		pthread_mutex_lock(&stepper->lock);
		for (int i = 0; i < LANES; i++)
			if (stepper->lane[i].id && step_lane(stepper, &stepper->lane[i]))
				stepper->lane[i].id = 0;
		is_over = stepper->is_over;
		pthread_mutex_unlock(&stepper->lock);
		usleep(50);
	}
	return NULL;
}

struct world {
	struct okv_loop *loop;
	struct okv_metrics *metrics;
	struct okv_tokenizer *tokenizer;
	struct okv_serve *serve;
	struct stepper stepper;
	uint16_t port;
};

struct caller {
	struct world *world;
	pthread_t thread;
	unsigned number, whole_answers, hangups;
};

/* All texts of a stream in order, or the one text of an answer. */
static bool has_letters(const char *got, bool is_stream)
{
	char letters[TOKENS + 1] = {0};
	size_t count = 0;

	for (const char *at = got; count < TOKENS && (at = strstr(at, "\"text\":\"")); at += 8)
		for (const char *letter = at + 8; *letter != '"' && count < TOKENS; letter++)
			letters[count++] = *letter;
	return strcmp(letters, "abcdefghijklmnopqrstuvwxyz") == 0 &&
	       strstr(got, is_stream ? "data: [DONE]" : "\"finish_reason\":\"length\"");
}

static void call_once(struct caller *caller, unsigned round)
{
	bool is_stream = (caller->number + round) % 2 == 0, hangs_up = round % 3 == 2;
	const char *body = is_stream ? "{\"prompt\":\"x\",\"max_tokens\":26,\"stream\":true}"
				     : "{\"prompt\":\"x\",\"max_tokens\":26,\"stream\":false}";
	struct http_client client = http_client_connect(NULL, caller->world->port);
	struct okv_buf text = {0};

	okv_buf_print(&text,
		      "POST /v1/completions HTTP/1.1\r\nHost: h\r\nConnection: close\r\nContent-Length: %zu\r\n\r\n%s",
		      strlen(body), body);
	http_client_send(&client, text.data, text.size);
	okv_buf_done(&text);
	if (hangs_up) {
		if (is_stream)
			OKV_ASSERT(http_client_await(&client, "\"text\""));
		caller->hangups++;
	} else {
		OKV_ASSERT(http_client_await(&client, NULL));
		OKV_ASSERT(has_letters(client.got.data, is_stream));
		caller->whole_answers++;
	}
	http_client_done(&client);
}

static void *call(void *context)
{
	struct caller *caller = context;

	for (unsigned round = 0; round < ROUNDS; round++)
		call_once(caller, round);
	return NULL;
}

static void *run_loop(void *context)
{
	okv_loop_run(context);
	return NULL;
}

static void open_world(struct world *world)
{
	struct gguf_builder builder = {0};
	struct okv_buf file = {0};
	struct okv_gguf *gguf;
	struct okv_tokens letters = {0};
	struct okv_reason reason;

	tiny_vocabulary_add(&builder, "smollm");
	gguf_write(&builder, &file);
	gguf_builder_done(&builder);
	assert_int_equal(okv_gguf_parse(file.data, file.size, &gguf, &reason), OKV_OK);
	assert_int_equal(okv_tokenizer_create(gguf, &world->tokenizer, &reason), OKV_OK);
	okv_gguf_close(gguf);
	okv_buf_done(&file);
	for (const char *letter = "abcdefghijklmnopqrstuvwxyz"; *letter; letter++)
		assert_int_equal(okv_tokenizer_encode(world->tokenizer, letter, 1, &letters, &reason), OKV_OK);
	assert_int_equal(letters.count, TOKENS);
	memcpy(world->stepper.letter, letters.id, sizeof(world->stepper.letter));
	okv_tokens_done(&letters);
	world->stepper.vocabulary = okv_tokenizer_vocabulary(world->tokenizer);
	pthread_mutex_init(&world->stepper.lock, NULL);
	world->metrics = okv_metrics_create();

	struct okv_serve_options options = {.address = "127.0.0.1", .model_name = "tiny", .metrics = world->metrics};
	struct okv_serve_engine engine = {
		.driver = {.context = &world->stepper, .admit = admit, .cancel = cancel, .caps = caps},
		.tokenizer = world->tokenizer,
		.no_chat = "no chat here",
	};
	assert_int_equal(okv_loop_create(okv_clock_boottime(), &world->loop, &reason), OKV_OK);
	assert_int_equal(okv_serve_create(world->loop, &options, &world->serve, &reason), OKV_OK);
	okv_serve_start(world->serve, &engine);
	world->port = okv_serve_port(world->serve);
}

static void close_world(struct world *world)
{
	okv_serve_destroy(world->serve);
	okv_loop_destroy(world->loop);
	okv_metrics_destroy(world->metrics);
	okv_tokenizer_destroy(world->tokenizer);
	pthread_mutex_destroy(&world->stepper.lock);
}

static void on_drained(void *context)
{
	okv_loop_stop(context);
}

static void shut_down(void *context)
{
	struct world *world = context;

	okv_serve_shutdown(world->serve, okv_loop_now_ns(world->loop) + 20 * OKV_NS_PER_S, on_drained, world->loop);
}

static void clients_get_every_token_once_and_nothing_is_left(void **state)
{
	(void)state;
	static struct world world;
	struct caller callers[CLIENTS];
	pthread_t loop_thread;
	struct okv_task shutdown = {.run = shut_down, .context = &world};

	open_world(&world);
	assert_int_equal(pthread_create(&loop_thread, NULL, run_loop, world.loop), 0);
	assert_int_equal(pthread_create(&world.stepper.thread, NULL, run_engine, &world.stepper), 0);
	for (unsigned i = 0; i < CLIENTS; i++) {
		callers[i] = (struct caller){.world = &world, .number = i};
		assert_int_equal(pthread_create(&callers[i].thread, NULL, call, &callers[i]), 0);
	}
	for (unsigned i = 0; i < CLIENTS; i++) {
		pthread_join(callers[i].thread, NULL);
		assert_int_equal(callers[i].whole_answers, ROUNDS - ROUNDS / 3);
	}
	okv_loop_post(world.loop, &shutdown);
	pthread_join(loop_thread, NULL);
	pthread_mutex_lock(&world.stepper.lock);
	world.stepper.is_over = true;
	for (int i = 0; i < LANES; i++)
		assert_int_equal(world.stepper.lane[i].id, 0);
	pthread_mutex_unlock(&world.stepper.lock);
	pthread_join(world.stepper.thread, NULL);
	assert_int_equal(okv_metric_value(okv_gauge(world.metrics, "orbitkv_serve_requests_running", "", "")), 0);
	close_world(&world);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(clients_get_every_token_once_and_nothing_is_left),
	};
	return cmocka_run_group_tests_name("serve_threads", tests, NULL, NULL);
}
