/*
 * The API over a scripted engine: the test is the engine, says which tokens come when, and sees what the client gets.
 * The tokenizer is the real one on the vocabulary of the tiny model.
 */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <string.h>

#include <cmocka.h>

#include <stdio.h>
#include <stdlib.h>

#include "okv/codec/json.h"
#include "okv/model/gguf.h"
#include "okv/serve/serve.h"

#include "gguf_builder.h"
#include "http_client.h"

enum { CONTEXT = 300, LONG_CONTEXT = 100000, LITTLE_CONTEXT = 10, REQUESTS_MAX = 8, TURNS_MAX = 20000 };

struct scripted {
	struct okv_request request;
	uint32_t prompt[CONTEXT];
	bool is_cancelled;
};

struct fixture {
	uint64_t now_ns;
	struct okv_loop *loop;
	struct okv_metrics *metrics;
	struct okv_tokenizer *tokenizer;
	struct okv_chat_template chat_template;
	struct okv_serve *serve;
	struct scripted admitted[REQUESTS_MAX];
	unsigned admitted_count;
	uint32_t context;
	enum okv_status refuse_with; /* what admit() answers */
	unsigned drains;
};

/* ---- the engine ---- */

static enum okv_status admit(void *context, const struct okv_request *request, uint64_t *ret_id,
			     struct okv_reason *reason)
{
	struct fixture *fixture = context;
	struct scripted *scripted = &fixture->admitted[fixture->admitted_count];

	if (fixture->refuse_with != OKV_OK)
		return okv_refuse(reason, fixture->refuse_with, "", "said by the engine");
	assert_true(fixture->admitted_count < REQUESTS_MAX && request->prompt_count < CONTEXT);
	*scripted = (struct scripted){.request = *request};
	memcpy(scripted->prompt, request->prompt, request->prompt_count * sizeof(uint32_t));
	scripted->request.prompt = scripted->prompt;
	*ret_id = ++fixture->admitted_count; /* ids from 1 */
	return OKV_OK;
}

static void cancel(void *context, uint64_t request_id)
{
	struct fixture *fixture = context;

	assert_false(fixture->admitted[request_id - 1].is_cancelled);
	fixture->admitted[request_id - 1].is_cancelled = true;
}

static struct okv_driver_caps caps(void *context)
{
	struct fixture *fixture = context;

	return (struct okv_driver_caps){.context = fixture->context,
					.vocabulary = okv_tokenizer_vocabulary(fixture->tokenizer)};
}

static void say_token(struct fixture *fixture, unsigned request, uint32_t token)
{
	const struct okv_request *asked = &fixture->admitted[request].request;
	struct okv_event event = {.kind = OKV_EVENT_TOKEN, .token = token};

	asked->sink(asked->sink_context, request + 1, &event);
}

/* Delivers the tokens of `text`. */
static void say(struct fixture *fixture, unsigned request, const char *text)
{
	struct okv_tokens tokens = {0};

	assert_int_equal(okv_tokenizer_encode(fixture->tokenizer, text, strlen(text), &tokens, NULL), OKV_OK);
	for (size_t i = 0; i < tokens.count; i++)
		say_token(fixture, request, tokens.id[i]);
	okv_tokens_done(&tokens);
}

static void end(struct fixture *fixture, unsigned request, enum okv_end how)
{
	const struct okv_request *asked = &fixture->admitted[request].request;
	struct okv_event event = {
		.kind = OKV_EVENT_END,
		.end = how,
		.status = how == OKV_END_FAILED ? OKV_ERR_NO_SPACE : OKV_OK,
		.usage = {.prompt_tokens = 40,
			  .generated_tokens = 5,
			  .computed_tokens = 8,
			  .prefix_hit_tokens = 16,
			  .restored_tokens = 16,
			  .restored_remote_bytes = 368640,
			  .queued_ns = 1500000,
			  .first_token_ns = 2000000},
	};

	asked->sink(asked->sink_context, request + 1, &event);
}

/* ---- the fixture ---- */

static int load_vocabulary(struct fixture *fixture)
{
	struct gguf_builder builder = {0};
	struct okv_buf file = {0};
	struct okv_gguf *gguf;
	struct okv_reason reason;
	int failed;

	tiny_vocabulary_add(&builder, "smollm");
	gguf_write(&builder, &file);
	gguf_builder_done(&builder);
	if (okv_gguf_parse(file.data, file.size, &gguf, &reason) != OKV_OK)
		return -1;
	failed = okv_tokenizer_create(gguf, &fixture->tokenizer, &reason) != OKV_OK ||
		 okv_chat_template_read(gguf, fixture->tokenizer, &fixture->chat_template, &reason) != OKV_OK;
	okv_gguf_close(gguf);
	okv_buf_done(&file);
	return failed ? -1 : 0;
}

static void start(struct fixture *fixture)
{
	struct okv_serve_engine engine = {
		.driver = {.context = fixture, .admit = admit, .cancel = cancel, .caps = caps},
		.tokenizer = fixture->tokenizer,
		.chat_template = &fixture->chat_template,
	};

	okv_serve_start(fixture->serve, &engine);
}

static int open_listening(void **state)
{
	struct fixture *fixture = calloc(1, sizeof(*fixture));
	struct okv_reason reason;
	struct okv_serve_options options = {
		.address = "127.0.0.1", .model_name = "tiny", .body_bytes_max = 4000, .pending_bytes_max = 100000};

	*state = fixture;
	if (!fixture)
		return -1;
	fixture->context = CONTEXT;
	if (load_vocabulary(fixture) != 0)
		return -1;
	fixture->metrics = okv_metrics_create();
	options.metrics = fixture->metrics;
	if (okv_loop_create(okv_clock_virtual(&fixture->now_ns), &fixture->loop, &reason) != OKV_OK)
		return -1;
	return okv_serve_create(fixture->loop, &options, &fixture->serve, &reason) == OKV_OK ? 0 : -1;
}

static int open_ready(void **state)
{
	int failed = open_listening(state);

	if (!failed)
		start(*state);
	return failed;
}

static int close_all(void **state)
{
	struct fixture *fixture = *state;

	okv_serve_destroy(fixture->serve);
	okv_loop_destroy(fixture->loop);
	okv_metrics_destroy(fixture->metrics);
	okv_tokenizer_destroy(fixture->tokenizer);
	free(fixture);
	return 0;
}

/* ---- the client ---- */

static struct http_client ask(struct fixture *fixture, const char *method, const char *path, const char *body)
{
	struct http_client client = http_client_connect(fixture->loop, okv_serve_port(fixture->serve));
	struct okv_buf text = {0};

	okv_buf_print(
		&text,
		"%s %s HTTP/1.1\r\nHost: h\r\nConnection: close\r\nContent-Type: application/json; charset=utf-8\r\n"
		"Content-Length: %zu\r\n\r\n%s",
		method, path, strlen(body), body);
	http_client_send(&client, text.data, text.size);
	okv_buf_done(&text);
	return client;
}

static void await(struct http_client *client, const char *text)
{
	if (!http_client_await(client, text))
		fail_msg("never came: %s; got: %s", text ? text : "(the end)", client->got.data);
}

static void await_admission(struct fixture *fixture, unsigned count)
{
	for (int turn = 0; turn < TURNS_MAX && fixture->admitted_count < count; turn++)
		okv_loop_turn(fixture->loop);
	assert_int_equal(fixture->admitted_count, count);
}

static void await_cancel(struct fixture *fixture, unsigned request)
{
	for (int turn = 0; turn < TURNS_MAX && !fixture->admitted[request].is_cancelled; turn++)
		okv_loop_turn(fixture->loop);
	assert_true(fixture->admitted[request].is_cancelled);
}

/* The whole answer holds each of `words`; the connection is closed. */
static void expect(struct http_client *client, const char *const *words)
{
	await(client, NULL);
	for (; *words; words++)
		if (!client->got.data || !strstr(client->got.data, *words))
			fail_msg("%s is not in: %s", *words, client->got.data);
	http_client_done(client);
}

#define EXPECT(client, ...) expect(client, (const char *const[]){__VA_ARGS__, NULL})

static int64_t metric(struct fixture *fixture, const char *name, const char *labels)
{
	struct okv_metric *known = okv_counter(fixture->metrics, name, labels, "");

	return okv_metric_value(known);
}

#define MESSAGES "\"messages\":[{\"role\":\"user\",\"content\":\"hi\"}]"

/* ---- answers ---- */

static void a_chat_is_answered_whole_with_its_usage(void **state)
{
	struct fixture *fixture = *state;
	struct http_client client =
		ask(fixture, "POST", "/v1/chat/completions",
		    "{\"model\":\"tiny\"," MESSAGES ",\"temperature\":0,\"seed\":3,\"max_tokens\":20,"
		    "\"ignore_eos\":true,\"orbitkv\":{\"cache\":\"off\"}}");
	const struct okv_request *request = &fixture->admitted[0].request;

	await_admission(fixture, 1);
	assert_true(request->sampling.temperature == 0 && request->sampling.seed == 3);
	assert_int_equal(request->tokens_max, 20);
	assert_true(request->ignore_end);
	assert_int_equal(request->cache, OKV_CACHE_OFF);
	assert_int_equal(request->prompt[0], fixture->chat_template.start_id);
	assert_int_equal(metric(fixture, "orbitkv_serve_requests_running", ""), 1);
	say(fixture, 0, "Hello");
	say(fixture, 0, " \"you\"\n");
	end(fixture, 0, OKV_END_STOP);
	EXPECT(&client, "HTTP/1.1 200 OK\r\n", "\"id\":\"chatcmpl-", "\"object\":\"chat.completion\"",
	       "\"model\":\"tiny\"",
	       "\"message\":{\"role\":\"assistant\",\"content\":\"Hello \\\"you\\\"\\n\"},\"logprobs\":null,"
	       "\"finish_reason\":\"stop\"}]",
	       "\"prompt_tokens\":40,\"completion_tokens\":5,\"total_tokens\":45,"
	       "\"prompt_tokens_details\":{\"cached_tokens\":32}",
	       "\"orbitkv\":{\"computed_tokens\":8,\"prefix_hit_tokens\":16,\"restored_tokens\":16,"
	       "\"restored_remote_bytes\":368640,\"queued_ms\":1.5,\"restore_ms\":0,\"first_token_ms\":2");
	assert_int_equal(metric(fixture, "orbitkv_serve_requests_running", ""), 0);
	assert_int_equal(metric(fixture, "orbitkv_serve_requests_total", "outcome=\"answered\""), 1);
}

static void a_stream_carries_each_token_when_it_comes(void **state)
{
	struct fixture *fixture = *state;
	struct http_client client = ask(fixture, "POST", "/v1/chat/completions",
					"{" MESSAGES ",\"stream\":true,\"stream_options\":{\"include_usage\":true}}");

	await_admission(fixture, 1);
	say(fixture, 0, "A");
	await(&client,
	      "\"delta\":{\"role\":\"assistant\",\"content\":\"A\"},\"logprobs\":null,\"finish_reason\":null}],"
	      "\"usage\":null}\n\n");
	assert_null(strstr(client.got.data, "\"content\":\"B\""));
	say(fixture, 0, "B");
	await(&client, "\"delta\":{\"content\":\"B\"}");
	end(fixture, 0, OKV_END_LENGTH);
	EXPECT(&client, "Content-Type: text/event-stream", "\"object\":\"chat.completion.chunk\"",
	       "\"delta\":{},\"logprobs\":null,\"finish_reason\":\"length\"}]",
	       "\"choices\":[],\"usage\":{\"prompt_tokens\":40", "data: [DONE]\n\n\r\n0\r\n\r\n");
}

static void a_completion_streams_text_and_no_usage_unless_asked(void **state)
{
	struct fixture *fixture = *state;
	struct http_client client =
		ask(fixture, "POST", "/v1/completions", "{\"prompt\":[5,6,7],\"max_tokens\":3,\"stream\":true}");

	await_admission(fixture, 1);
	assert_int_equal(fixture->admitted[0].request.prompt_count, 3);
	assert_int_equal(fixture->admitted[0].prompt[2], 7);
	say(fixture, 0, "x");
	end(fixture, 0, OKV_END_STOP);
	await(&client, NULL);
	assert_null(strstr(client.got.data, "usage"));
	EXPECT(&client, "\"object\":\"text_completion\"", "\"text\":\"x\"",
	       "\"text\":\"\",\"logprobs\":null,"
	       "\"finish_reason\":\"stop\"");
}

static void an_answer_without_text_is_an_answer(void **state)
{
	struct fixture *fixture = *state;
	struct http_client stream = ask(fixture, "POST", "/v1/chat/completions", "{" MESSAGES ",\"stream\":true}");

	await_admission(fixture, 1);
	end(fixture, 0, OKV_END_STOP);
	EXPECT(&stream, "\"delta\":{\"role\":\"assistant\",\"content\":\"\"}", "\"finish_reason\":\"stop\"", "[DONE]");
	struct http_client whole = ask(fixture, "POST", "/v1/completions", "{\"prompt\":\"x\"}");
	await_admission(fixture, 2);
	end(fixture, 1, OKV_END_LENGTH);
	EXPECT(&whole, "\"text\":\"\"", "\"finish_reason\":\"length\"");
}

static void characters_of_several_tokens_are_never_broken(void **state)
{
	struct fixture *fixture = *state;
	struct http_client client = ask(fixture, "POST", "/v1/completions", "{\"prompt\":\"x\",\"stream\":true}");
	struct okv_tokens tokens = {0};

	await_admission(fixture, 1);
	assert_int_equal(okv_tokenizer_encode(fixture->tokenizer, "\xf0\x9f\x98\x80", 4, &tokens, NULL), OKV_OK);
	assert_true(tokens.count > 1);
	for (size_t i = 0; i < tokens.count; i++) {
		say_token(fixture, 0, tokens.id[i]);
		for (int turn = 0; turn < 10; turn++)
			okv_loop_turn(fixture->loop);
	}
	say_token(fixture, 0, tokens.id[0]); /* a character that is never finished */
	end(fixture, 0, OKV_END_STOP);
	await(&client, NULL);
	assert_non_null(strstr(client.got.data, "\"text\":\"\xf0\x9f\x98\x80\""));
	assert_non_null(strstr(client.got.data, "\"text\":\"\xef\xbf\xbd\""));
	okv_tokens_done(&tokens);
	http_client_done(&client);
}

static void text_ends_before_a_stop_string_and_the_engine_is_told(void **state)
{
	struct fixture *fixture = *state;
	struct http_client client = ask(fixture, "POST", "/v1/completions",
					"{\"prompt\":\"x\",\"stream\":true,\"stop\":[\"END\",\"never\"]}");

	await_admission(fixture, 1);
	say(fixture, 0, "oneE");
	await(&client, "\"text\":\"ne\"");
	say(fixture, 0, "NDtail");
	await_cancel(fixture, 0);
	end(fixture, 0, OKV_END_CANCELLED);
	await(&client, NULL);
	assert_null(strstr(client.got.data, "\"text\":\"E\""));
	assert_null(strstr(client.got.data, "\"text\":\"t\""));
	EXPECT(&client, "\"finish_reason\":\"stop\"", "[DONE]");
	assert_int_equal(metric(fixture, "orbitkv_serve_requests_total", "outcome=\"answered\""), 1);
}

static void a_held_back_beginning_of_a_stop_string_comes_out_at_the_end(void **state)
{
	struct fixture *fixture = *state;
	struct http_client client = ask(fixture, "POST", "/v1/completions", "{\"prompt\":\"x\",\"stop\":\"END\"}");

	await_admission(fixture, 1);
	say(fixture, 0, "an EN");
	end(fixture, 0, OKV_END_LENGTH);
	EXPECT(&client, "\"text\":\"an EN\"", "\"finish_reason\":\"length\"");
	assert_false(fixture->admitted[0].is_cancelled);
}

static void a_stop_string_that_the_last_token_completes_ends_the_answer(void **state)
{
	struct fixture *fixture = *state;
	struct http_client client = ask(fixture, "POST", "/v1/completions", "{\"prompt\":\"x\",\"stop\":\"END\"}");

	await_admission(fixture, 1);
	say(fixture, 0, "an END");
	end(fixture, 0, OKV_END_LENGTH);
	EXPECT(&client, "\"text\":\"an \"", "\"finish_reason\":\"stop\"");
}

static void the_answer_is_limited_to_what_fits(void **state)
{
	struct fixture *fixture = *state;
	struct http_client client =
		ask(fixture, "POST", "/v1/completions", "{\"prompt\":[1,2,3,4],\"max_tokens\":5000}");

	await_admission(fixture, 1);
	assert_int_equal(fixture->admitted[0].request.tokens_max, CONTEXT - 4);
	end(fixture, 0, OKV_END_LENGTH);
	EXPECT(&client, "200 OK");
}

/* ---- clients that go away or do not read ---- */

static void a_client_that_hangs_up_cancels_its_request(void **state)
{
	struct fixture *fixture = *state;
	struct http_client stream = ask(fixture, "POST", "/v1/completions", "{\"prompt\":\"x\",\"stream\":true}");
	struct http_client whole;

	await_admission(fixture, 1);
	say(fixture, 0, "a");
	await(&stream, "\"text\":\"a\"");
	http_client_done(&stream);
	await_cancel(fixture, 0);
	say(fixture, 0, "b"); /* of the step that was running */
	whole = ask(fixture, "POST", "/v1/completions", "{\"prompt\":\"x\"}");
	await_admission(fixture, 2);
	http_client_done(&whole);
	await_cancel(fixture, 1);
	assert_int_equal(metric(fixture, "orbitkv_serve_requests_running", ""), 2); /* the engine still has them */
	end(fixture, 0, OKV_END_CANCELLED);
	end(fixture, 1, OKV_END_STOP);
	okv_loop_turn(fixture->loop);
	assert_int_equal(metric(fixture, "orbitkv_serve_requests_running", ""), 0);
	assert_int_equal(metric(fixture, "orbitkv_serve_requests_total", "outcome=\"cancelled\""), 2);
}

static void a_slow_reader_is_given_up_and_others_go_on(void **state)
{
	struct fixture *fixture = *state;
	struct http_client slow, good;
	struct okv_tokens tokens = {0};

	fixture->context = LONG_CONTEXT;
	start(fixture);
	slow = ask(fixture, "POST", "/v1/completions", "{\"prompt\":\"x\",\"stream\":true,\"max_tokens\":90000}");
	await_admission(fixture, 1);
	good = ask(fixture, "POST", "/v1/completions", "{\"prompt\":\"x\",\"stream\":true}");
	await_admission(fixture, 2);
	assert_int_equal(okv_tokenizer_encode(fixture->tokenizer, "a", 1, &tokens, NULL), OKV_OK);
	for (int i = 0; i < 90000 && !fixture->admitted[0].is_cancelled; i++) {
		say_token(fixture, 0, tokens.id[0]);
		if (i % 50 == 0)
			okv_loop_turn(fixture->loop);
	}
	assert_true(fixture->admitted[0].is_cancelled);
	assert_int_equal(metric(fixture, "orbitkv_serve_slow_readers_total", ""), 1);
	say(fixture, 1, "b");
	await(&good, "\"text\":\"b\"");
	end(fixture, 0, OKV_END_CANCELLED);
	end(fixture, 1, OKV_END_STOP);
	EXPECT(&good, "[DONE]");
	await(&slow, NULL);
	assert_null(strstr(slow.got.data, "[DONE]"));
	http_client_done(&slow);
	okv_tokens_done(&tokens);
}

/* ---- refusals ---- */

static void expect_error(struct fixture *fixture, const char *method, const char *path, const char *body,
			 const char *const *words)
{
	struct http_client client = ask(fixture, method, path, body);

	expect(&client, words);
	assert_int_equal(fixture->admitted_count, 0);
}

#define EXPECT_ERROR(fixture, method, path, body, ...)                                                                 \
	expect_error(fixture, method, path, body, (const char *const[]){__VA_ARGS__, NULL})

static void a_reader_given_up_at_the_end_was_not_answered(void **state)
{
	struct fixture *fixture = *state;
	struct okv_tokens tokens = {0};
	struct http_client slow;

	fixture->context = LONG_CONTEXT;
	start(fixture);
	slow = ask(fixture, "POST", "/v1/completions", "{\"prompt\":\"x\",\"stream\":true,\"max_tokens\":90000}");
	await_admission(fixture, 1);
	assert_int_equal(okv_tokenizer_encode(fixture->tokenizer, "a", 1, &tokens, NULL), OKV_OK);
	for (int i = 0; i < 89999; i++) /* all of one turn: far more than a socket takes */
		say_token(fixture, 0, tokens.id[0]);
	okv_loop_turn(fixture->loop);
	end(fixture, 0, OKV_END_STOP);
	okv_loop_turn(fixture->loop);
	assert_int_equal(metric(fixture, "orbitkv_serve_slow_readers_total", ""), 1);
	assert_int_equal(metric(fixture, "orbitkv_serve_requests_total", "outcome=\"cancelled\""), 1);
	assert_int_equal(metric(fixture, "orbitkv_serve_requests_total", "outcome=\"answered\""), 0);
	http_client_done(&slow);
	okv_tokens_done(&tokens);
}

static void only_completions_are_counted_as_refused(void **state)
{
	struct fixture *fixture = *state;

	EXPECT_ERROR(fixture, "GET", "/nothing", "", "HTTP/1.1 404 ");
	EXPECT_ERROR(fixture, "GET", "/v1/models/another", "", "HTTP/1.1 404 ");
	EXPECT_ERROR(fixture, "POST", "/tokenize", "{}", "HTTP/1.1 400 ");
	assert_int_equal(metric(fixture, "orbitkv_serve_requests_total", "outcome=\"refused\""), 0);
	EXPECT_ERROR(fixture, "POST", "/v1/completions", "{}", "HTTP/1.1 400 ");
	EXPECT_ERROR(fixture, "GET", "/v1/chat/completions", "", "HTTP/1.1 405 ");
	assert_int_equal(metric(fixture, "orbitkv_serve_requests_total", "outcome=\"refused\""), 2);
}

static void paths_methods_and_types_are_refused_as_http_has_it(void **state)
{
	struct fixture *fixture = *state;
	struct http_client client;

	EXPECT_ERROR(fixture, "GET", "/nothing", "", "HTTP/1.1 404 Not Found", "there is nothing at /nothing");
	EXPECT_ERROR(fixture, "GET", "/v1/completions/x", "", "HTTP/1.1 404 ");
	EXPECT_ERROR(fixture, "GET", "/v1/completions", "", "HTTP/1.1 405 ", "Allow: POST\r\n", "takes POST only");
	EXPECT_ERROR(fixture, "DELETE", "/metrics", "", "HTTP/1.1 405 ", "Allow: GET\r\n");
	client = http_client_connect(fixture->loop, okv_serve_port(fixture->serve));
	http_client_send_text(&client, "POST /tokenize HTTP/1.1\r\nHost: h\r\nConnection: close\r\n"
				       "Content-Type: text/plain\r\nContent-Length: 2\r\n\r\n{}");
	EXPECT(&client, "HTTP/1.1 415 ", "Content-Type: application/json\",");
	client = http_client_connect(fixture->loop, okv_serve_port(fixture->serve));
	http_client_send_text(&client, "POST /tokenize HTTP/1.1\r\nHost: h\r\nConnection: close\r\n"
				       "Content-Encoding: gzip\r\nContent-Length: 2\r\n\r\n\x1f\x8b");
	EXPECT(&client, "HTTP/1.1 415 ", "send the body as it is, without the header Content-Encoding");
	EXPECT_ERROR(fixture, "POST", "/tokenize", "[]", "400 Bad Request", "must be an object, but is a list");
	client = http_client_connect(fixture->loop, okv_serve_port(fixture->serve));
	http_client_send_text(&client, "POST /v1/completions HTTP/1.1\r\nHost: h\r\nContent-Length: 4001\r\n\r\n");
	await(&client, "HTTP/1.1 413 ");
	http_client_done(&client);
}

static void prompts_that_cannot_be_served_are_refused_with_the_numbers(void **state)
{
	struct fixture *fixture = *state;
	struct okv_buf body = {0};

	EXPECT_ERROR(fixture, "POST", "/v1/completions", "{\"prompt\":\"\"}", "400 Bad Request", "the prompt is empty",
		     "\"param\":\"prompt\"");
	EXPECT_ERROR(fixture, "POST", "/v1/completions", "{\"prompt\":[]}", "the prompt is empty");
	okv_buf_text(&body, "{\"prompt\":[1");
	for (int i = 1; i < CONTEXT; i++)
		okv_buf_text(&body, ",1");
	okv_buf_text(&body, "]}");
	EXPECT_ERROR(fixture, "POST", "/v1/completions", body.data, "400 Bad Request",
		     "\"code\":\"context_length_exceeded\"", "the prompt has 300 tokens", "takes 300 tokens in all");
	okv_buf_done(&body);
	EXPECT_ERROR(fixture, "POST", "/v1/completions", "{\"prompt\":[1,4000000]}", "400 Bad Request",
		     "prompt[1] is 4000000");
	EXPECT_ERROR(fixture, "POST", "/v1/completions", "{\"prompt\":\"\xff\"}", "400 Bad Request", "not valid JSON");
	EXPECT_ERROR(fixture, "POST", "/v1/chat/completions",
		     "{\"messages\":[{\"role\":\"wizard\",\"content\":\"x\"}]}", "400 Bad Request",
		     "messages[0].role is \\\"wizard\\\"; it must be system, user or assistant");
	EXPECT_ERROR(fixture, "POST", "/v1/chat/completions", "{" MESSAGES ",\"n\":2}", "400 Bad Request",
		     "\"param\":\"n\"", "\"type\":\"invalid_request_error\"", "\"code\":\"unsupported_parameter\"");
	assert_int_equal(metric(fixture, "orbitkv_serve_requests_total", "outcome=\"refused\""), 7);
}

static void text_that_cannot_fit_is_refused_before_it_is_tokenized(void **state)
{
	static const struct {
		const char *path, *before, *after;
	} places[] = {
		{"/v1/completions", "{\"prompt\":\"", "\"}"},
		{"/v1/chat/completions",
		 "{\"messages\":[{\"role\":\"user\",\"content\":\"x\"},{\"role\":\"user\",\"content\":\"", "\"}]}"},
		{"/tokenize", "{\"content\":\"", "\"}"},
	};
	struct fixture *fixture = *state;
	size_t fits = (size_t)LITTLE_CONTEXT * okv_tokenizer_token_bytes_max(fixture->tokenizer);

	fixture->context = LITTLE_CONTEXT;
	start(fixture);
	for (size_t i = 0; i < sizeof(places) / sizeof(places[0]); i++) {
		struct okv_buf body = {0};
		struct http_client client;

		okv_buf_text(&body, places[i].before);
		for (size_t size = 0; size < fits + 1; size++)
			okv_buf_text(&body, "x");
		okv_buf_text(&body, places[i].after);
		client = ask(fixture, "POST", places[i].path, body.data);
		EXPECT(&client, "400 Bad Request", "context_length_exceeded", "bytes of text cannot fit",
		       "takes 10 tokens");
		okv_buf_done(&body);
	}
}

static void text_that_might_fit_is_tokenized(void **state)
{
	struct fixture *fixture = *state;
	size_t fits = (size_t)LITTLE_CONTEXT * okv_tokenizer_token_bytes_max(fixture->tokenizer);
	struct okv_buf body = {0};
	struct http_client client;

	fixture->context = LITTLE_CONTEXT;
	start(fixture);
	okv_buf_text(&body, "{\"content\":\"");
	for (size_t size = 0; size < fits; size++)
		okv_buf_text(&body, "x");
	okv_buf_text(&body, "\"}");
	client = ask(fixture, "POST", "/tokenize", body.data);
	EXPECT(&client, "200 OK", "{\"tokens\":[");
	okv_buf_done(&body);
}

static void another_model_does_not_exist_here(void **state)
{
	struct fixture *fixture = *state;

	EXPECT_ERROR(fixture, "POST", "/v1/completions", "{\"model\":\"huge\",\"prompt\":\"x\"}", "HTTP/1.1 404 ",
		     "\"code\":\"model_not_found\"", "ask for tiny");
	EXPECT_ERROR(fixture, "GET", "/v1/models/huge", "", "HTTP/1.1 404 ", "\"code\":\"model_not_found\"");
}

static void the_engines_refusals_have_their_statuses(void **state)
{
	struct fixture *fixture = *state;

	fixture->refuse_with = OKV_ERR_BUDGET;
	EXPECT_ERROR(fixture, "POST", "/v1/completions", "{\"prompt\":\"x\"}", "HTTP/1.1 429 ", "Retry-After: 1\r\n",
		     "\"type\":\"rate_limit_error\"", "said by the engine");
	fixture->refuse_with = OKV_ERR_CANCELLED;
	EXPECT_ERROR(fixture, "POST", "/v1/completions", "{\"prompt\":\"x\"}", "HTTP/1.1 503 ", "server_error");
	fixture->refuse_with = OKV_ERR_INVALID;
	EXPECT_ERROR(fixture, "POST", "/v1/completions", "{\"prompt\":\"x\"}", "HTTP/1.1 400 ", "said by the engine");
}

static void a_failure_of_the_engine_is_never_a_whole_answer(void **state)
{
	struct fixture *fixture = *state;
	struct http_client before = ask(fixture, "POST", "/v1/completions", "{\"prompt\":\"x\",\"stream\":true}");
	struct http_client within;

	await_admission(fixture, 1);
	end(fixture, 0, OKV_END_FAILED);
	EXPECT(&before, "HTTP/1.1 500 ", "\"code\":\"no_space\"");
	within = ask(fixture, "POST", "/v1/completions", "{\"prompt\":\"x\",\"stream\":true}");
	await_admission(fixture, 2);
	say(fixture, 1, "a");
	await(&within, "\"text\":\"a\"");
	end(fixture, 1, OKV_END_FAILED);
	await(&within, NULL);
	assert_null(strstr(within.got.data, "[DONE]"));
	assert_null(strstr(within.got.data, "finish_reason\":\"stop"));
	EXPECT(&within, "data: {\"error\":{\"message\":\"the engine lost the request; send it again\"");
	assert_int_equal(metric(fixture, "orbitkv_serve_requests_total", "outcome=\"failed\""), 2);
}

/* ---- the small endpoints and life ---- */

static void text_that_looks_like_a_special_token_is_only_text(void **state)
{
	struct fixture *fixture = *state;
	struct http_client client =
		ask(fixture, "POST", "/tokenize", "{\"content\":\"<|im_start|>\",\"add_special\":false}");
	char special[48];

	await(&client, NULL);
	snprintf(special, sizeof(special), "{\"tokens\":[%u]}", fixture->chat_template.start_id);
	assert_null(strstr(client.got.data, special));
	EXPECT(&client, "200 OK", "{\"tokens\":[");
	client = ask(fixture, "POST", "/tokenize", "{\"content\":\"\"}");
	EXPECT(&client, "{\"tokens\":[]}");
	EXPECT_ERROR(fixture, "POST", "/tokenize", "{}", "400 Bad", "content is required");
	EXPECT_ERROR(fixture, "POST", "/tokenize", "{\"content\":5}", "400 Bad", "content must be text");
	EXPECT_ERROR(fixture, "POST", "/tokenize", "{\"content\":\"\",\"add_special\":5}", "400 Bad", "true or false");
	EXPECT_ERROR(fixture, "POST", "/tokenize", "[", "400 Bad", "not valid JSON");
}

static void models_and_metrics_are_listed(void **state)
{
	struct fixture *fixture = *state;
	struct http_client client = ask(fixture, "GET", "/v1/models", "");

	EXPECT(&client, "{\"object\":\"list\",\"data\":[{\"id\":\"tiny\",\"object\":\"model\",",
	       "\"context_length\":300}]}");
	client = ask(fixture, "GET", "/v1/models/tiny", "");
	EXPECT(&client, "\r\n\r\n{\"id\":\"tiny\"");
	client = ask(fixture, "GET", "/metrics", "");
	EXPECT(&client, "Content-Type: text/plain; version=0.0.4", "orbitkv_serve_requests_running 0",
	       "orbitkv_http_connections 1", "orbitkv_serve_requests_total{outcome=\"answered\"} 0");
	client = ask(fixture, "HEAD", "/health", "");
	await(&client, NULL);
	assert_null(strstr(client.got.data, "\r\n\r\n{"));
	http_client_done(&client);
}

static void nothing_is_answered_about_the_model_until_it_is_there(void **state)
{
	struct fixture *fixture = *state;
	struct http_client client;

	EXPECT_ERROR(fixture, "GET", "/health", "", "HTTP/1.1 503 ", "{\"status\":\"loading\"}");
	EXPECT_ERROR(fixture, "GET", "/v1/models", "", "HTTP/1.1 503 ", "Retry-After", "still loading");
	EXPECT_ERROR(fixture, "POST", "/v1/completions", "{\"prompt\":\"x\"}", "HTTP/1.1 503 ");
	start(fixture);
	client = ask(fixture, "GET", "/health", "");
	EXPECT(&client, "HTTP/1.1 200 OK", "{\"status\":\"ok\"}");
}

static void a_model_without_chat_says_so(void **state)
{
	struct fixture *fixture = *state;
	struct okv_serve_engine engine = {
		.driver = {.context = fixture, .admit = admit, .cancel = cancel, .caps = caps},
		.tokenizer = fixture->tokenizer,
		.no_chat = "this model has no chat template",
	};

	okv_serve_start(fixture->serve, &engine);
	EXPECT_ERROR(fixture, "POST", "/v1/chat/completions", "{" MESSAGES "}", "400 Bad Request",
		     "this model has no chat template; use /v1/completions");
}

static void on_drained(void *context)
{
	struct fixture *fixture = context;

	fixture->drains++;
}

static void await_drain(struct fixture *fixture)
{
	for (int turn = 0; turn < TURNS_MAX && fixture->drains == 0; turn++)
		okv_loop_turn(fixture->loop);
	assert_int_equal(fixture->drains, 1);
}

static void a_drain_lets_running_requests_finish(void **state)
{
	struct fixture *fixture = *state;
	struct http_client client = ask(fixture, "POST", "/v1/completions", "{\"prompt\":\"x\",\"stream\":true}");

	await_admission(fixture, 1);
	okv_serve_shutdown(fixture->serve, 5 * OKV_NS_PER_S, on_drained, fixture);
	say(fixture, 0, "a");
	end(fixture, 0, OKV_END_STOP);
	EXPECT(&client, "\"text\":\"a\"", "[DONE]");
	await_drain(fixture);
}

static void a_drain_refuses_new_completions(void **state)
{
	struct fixture *fixture = *state;
	struct http_client late = http_client_connect(fixture->loop, okv_serve_port(fixture->serve));

	http_client_send_text(&late, "POST /v1/completions HTTP/1.1\r\n"); /* not idle, so it is kept */
	for (int turn = 0; turn < 100; turn++)
		okv_loop_turn(fixture->loop);
	okv_serve_shutdown(fixture->serve, 5 * OKV_NS_PER_S, on_drained, fixture);
	http_client_send_text(&late, "Host: h\r\nContent-Length: 14\r\n\r\n{\"prompt\":\"x\"}");
	EXPECT(&late, "HTTP/1.1 503 ", "Retry-After: 1\r\n", "send the request to another server", "shutting_down");
	await_drain(fixture);
	assert_int_equal(fixture->admitted_count, 0);
}

static void a_drain_cancels_at_its_deadline_and_tells_the_client(void **state)
{
	struct fixture *fixture = *state;
	struct http_client client = ask(fixture, "POST", "/v1/completions", "{\"prompt\":\"x\",\"stream\":true}");
	struct http_client late = http_client_connect(fixture->loop, okv_serve_port(fixture->serve));

	await_admission(fixture, 1);
	say(fixture, 0, "a");
	await(&client, "\"text\":\"a\"");
	http_client_send_text(&late, "GET /health HTTP/1.1\r\n"); /* not idle, so it is kept */
	for (int turn = 0; turn < 100; turn++)
		okv_loop_turn(fixture->loop);
	okv_serve_shutdown(fixture->serve, 5 * OKV_NS_PER_S, on_drained, fixture);
	http_client_send_text(&late, "Host: h\r\n\r\n");
	EXPECT(&late, "HTTP/1.1 503 ", "{\"status\":\"draining\"}");
	fixture->now_ns = 5 * OKV_NS_PER_S;
	await_cancel(fixture, 0);
	end(fixture, 0, OKV_END_CANCELLED);
	await(&client, NULL);
	assert_null(strstr(client.got.data, "[DONE]"));
	EXPECT(&client, "data: {\"error\":{\"message\":\"the server is shutting down", "\r\n0\r\n\r\n");
	await_drain(fixture);
}

static void a_drain_waits_for_the_engine_however_long(void **state)
{
	struct fixture *fixture = *state;
	struct http_client client = ask(fixture, "POST", "/v1/completions", "{\"prompt\":\"x\",\"stream\":true}");

	await_admission(fixture, 1);
	okv_serve_shutdown(fixture->serve, 5 * OKV_NS_PER_S, on_drained, fixture);
	fixture->now_ns = 60 * OKV_NS_PER_S;
	await(&client, NULL);
	for (int turn = 0; turn < 100; turn++)
		okv_loop_turn(fixture->loop);
	assert_true(fixture->admitted[0].is_cancelled);
	assert_int_equal(fixture->drains, 0);
	end(fixture, 0, OKV_END_CANCELLED);
	await_drain(fixture);
	http_client_done(&client);
}

static void a_second_call_ends_a_drain_sooner(void **state)
{
	struct fixture *fixture = *state;
	struct http_client client = ask(fixture, "POST", "/v1/completions", "{\"prompt\":\"x\",\"stream\":true}");

	await_admission(fixture, 1);
	okv_serve_shutdown(fixture->serve, 5 * OKV_NS_PER_S, on_drained, fixture);
	for (int turn = 0; turn < 100; turn++)
		okv_loop_turn(fixture->loop);
	assert_false(fixture->admitted[0].is_cancelled);
	okv_serve_shutdown(fixture->serve, 0, on_drained, fixture);
	await_cancel(fixture, 0);
	end(fixture, 0, OKV_END_CANCELLED);
	EXPECT(&client, "the server is shutting down");
	await_drain(fixture);
}

static void a_second_call_after_the_clients_have_gone_still_waits_for_the_engine(void **state)
{
	struct fixture *fixture = *state;
	struct http_client client = ask(fixture, "POST", "/v1/completions", "{\"prompt\":\"x\"}");

	await_admission(fixture, 1);
	http_client_done(&client);
	await_cancel(fixture, 0);
	for (int call = 0; call < 2; call++) {
		okv_serve_shutdown(fixture->serve, 5 * OKV_NS_PER_S, on_drained, fixture);
		for (int turn = 0; turn < 100; turn++)
			okv_loop_turn(fixture->loop);
		assert_int_equal(fixture->drains, 0);
	}
	end(fixture, 0, OKV_END_CANCELLED);
	await_drain(fixture);
	for (int turn = 0; turn < 100; turn++)
		okv_loop_turn(fixture->loop);
	assert_int_equal(fixture->drains, 1);
}

#define READY(test) cmocka_unit_test_setup_teardown(test, open_ready, close_all)

int main(void)
{
	const struct CMUnitTest tests[] = {
		READY(a_chat_is_answered_whole_with_its_usage),
		READY(a_stream_carries_each_token_when_it_comes),
		READY(a_completion_streams_text_and_no_usage_unless_asked),
		READY(an_answer_without_text_is_an_answer),
		READY(characters_of_several_tokens_are_never_broken),
		READY(text_ends_before_a_stop_string_and_the_engine_is_told),
		READY(a_held_back_beginning_of_a_stop_string_comes_out_at_the_end),
		READY(a_stop_string_that_the_last_token_completes_ends_the_answer),
		READY(the_answer_is_limited_to_what_fits),
		READY(a_client_that_hangs_up_cancels_its_request),
		cmocka_unit_test_setup_teardown(a_slow_reader_is_given_up_and_others_go_on, open_listening, close_all),
		cmocka_unit_test_setup_teardown(a_reader_given_up_at_the_end_was_not_answered, open_listening,
						close_all),
		READY(only_completions_are_counted_as_refused),
		READY(paths_methods_and_types_are_refused_as_http_has_it),
		READY(prompts_that_cannot_be_served_are_refused_with_the_numbers),
		cmocka_unit_test_setup_teardown(text_that_cannot_fit_is_refused_before_it_is_tokenized, open_listening,
						close_all),
		cmocka_unit_test_setup_teardown(text_that_might_fit_is_tokenized, open_listening, close_all),
		READY(another_model_does_not_exist_here),
		READY(the_engines_refusals_have_their_statuses),
		READY(a_failure_of_the_engine_is_never_a_whole_answer),
		READY(text_that_looks_like_a_special_token_is_only_text),
		READY(models_and_metrics_are_listed),
		cmocka_unit_test_setup_teardown(nothing_is_answered_about_the_model_until_it_is_there, open_listening,
						close_all),
		cmocka_unit_test_setup_teardown(a_model_without_chat_says_so, open_listening, close_all),
		READY(a_drain_lets_running_requests_finish),
		READY(a_drain_refuses_new_completions),
		READY(a_drain_cancels_at_its_deadline_and_tells_the_client),
		READY(a_drain_waits_for_the_engine_however_long),
		READY(a_second_call_ends_a_drain_sooner),
		READY(a_second_call_after_the_clients_have_gone_still_waits_for_the_engine),
	};
	return cmocka_run_group_tests_name("serve", tests, NULL, NULL);
}
