/*
 * One completion, from admission to the END event of the engine.
 *
 *      request --admitted--> RUNNING --END--> answered, freed
 *                               |
 *                               +-- hang-up, slow reader: cancelled, exchange gone; still waits for END
 *                               +-- stop string: cancelled, answered at END with what came before it
 *
 * Two threads meet here. The engine's thread appends tokens under `lock` and posts the task if it is not posted; the
 * loop's thread takes what is there. `tokens` has room for all that were asked for, so the engine's thread never
 * allocates and never waits for the loop. The engine calls no more after END, so what the loop finds then is complete
 * and can be freed.
 */
#include "serve_internal.h"

#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "okv/base/log.h"
#include "okv/base/rng.h"
#include "okv/codec/http.h"
#include "okv/codec/sse.h"

struct generation {
	struct okv_list node; /* in serve->generations */
	struct okv_serve *serve;
	struct okv_http_exchange *exchange; /* ours until answered; NULL once the client is gone */
	struct okv__ask ask;
	uint64_t request_id;
	char id[40];
	struct okv__answer_head head;

	struct okv_detokenizer detokenizer;
	struct okv_buf piece; /* text of one token */
	struct okv_buf text;  /* that may go out; the whole of it, when not streamed */
	struct okv_buf out;   /* events of one turn */
	size_t tokens_taken;
	bool is_stream_started, is_cancelled;

	pthread_mutex_t lock; /* guards the following; held for a few instructions, nothing is taken inside but the
				 loop's queue */
	uint32_t *tokens;     /* owned */
	size_t token_count, tokens_max;
	struct okv_event end;
	bool has_ended, is_posted;
	struct okv_task task;
};

/* ---- the engine's thread ---- */

static void on_engine_event(void *context, uint64_t request_id, const struct okv_event *event)
{
	struct generation *generation = context;

	(void)request_id;
	pthread_mutex_lock(&generation->lock);
	OKV_ASSERT(!generation->has_ended);
	if (event->kind == OKV_EVENT_TOKEN) {
		OKV_ASSERT(generation->token_count < generation->tokens_max);
		generation->tokens[generation->token_count++] = event->token;
	} else {
		generation->end = *event;
		generation->has_ended = true;
	}
	/* Posted inside the lock: outside of it the loop could already have freed a generation that has ended. */
	if (!generation->is_posted) {
		generation->is_posted = true;
		okv_loop_post(generation->serve->loop, &generation->task);
	}
	pthread_mutex_unlock(&generation->lock);
}

/* ---- the loop's thread ---- */

static void destroy(struct generation *generation)
{
	if (!generation)
		return;
	pthread_mutex_destroy(&generation->lock);
	okv__ask_done(&generation->ask);
	okv_buf_done(&generation->piece);
	okv_buf_done(&generation->text);
	okv_buf_done(&generation->out);
	free(generation->tokens);
	free(generation);
}

static void cancel(struct generation *generation)
{
	const struct okv_driver *driver = &generation->serve->engine.driver;

	if (generation->is_cancelled)
		return;
	generation->is_cancelled = true;
	driver->cancel(driver->context, generation->request_id);
}

void okv__generations_cancel(struct okv_serve *serve)
{
	OKV_LIST_EACH(node, &serve->generations)
	cancel(OKV_CONTAINER_OF(node, struct generation, node));
}

/* The client is gone, or is not worth waiting for. */
static void abandon(struct generation *generation)
{
	okv_http_abort(generation->exchange);
	generation->exchange = NULL;
	cancel(generation);
}

static void on_hangup(void *context)
{
	abandon(context);
}

static void send_events(struct generation *generation)
{
	struct okv_serve *serve = generation->serve;

	if (generation->out.failed) { /* no memory: a cut stream must not look whole */
		abandon(generation);
		return;
	}
	if (generation->out.size == 0)
		return;
	if (!generation->is_stream_started) {
		okv_http_exchange_add_header(generation->exchange, "Cache-Control", "no-cache");
		okv_http_stream_start(generation->exchange, 200, "text/event-stream; charset=utf-8");
		generation->is_stream_started = true;
	}
	/* Of earlier turns: what this one adds has not been offered to the socket yet. */
	if (okv_http_pending_bytes(generation->exchange) > serve->options.pending_bytes_max) {
		okv_metric_add(serve->slow_readers, 1);
		abandon(generation);
		return;
	}
	okv_http_stream_write(generation->exchange, generation->out.data, generation->out.size);
	okv_buf_clear(&generation->out);
}

/* What of `text` has come since the last event becomes one. */
static void add_chunk(struct generation *generation)
{
	bool is_first = !generation->is_stream_started && generation->out.size == 0;

	if (!generation->ask.stream || generation->text.size == 0)
		return;
	okv__answer_chunk(&generation->head, generation->text.data, generation->text.size, is_first, &generation->out);
	generation->out.failed |= generation->text.failed;
	okv_buf_clear(&generation->text);
}

static void take_tokens(struct generation *generation, size_t count)
{
	struct okv__stops *stops = &generation->ask.stops;

	for (; generation->tokens_taken < count && !stops->is_stopped; generation->tokens_taken++) {
		okv_buf_clear(&generation->piece);
		okv_detokenizer_feed(&generation->detokenizer, generation->serve->engine.tokenizer,
				     generation->tokens[generation->tokens_taken], &generation->piece);
		okv__stops_feed(stops, generation->piece.data, generation->piece.size, &generation->text);
		add_chunk(generation);
	}
}

static void take_rest(struct generation *generation)
{
	struct okv__stops *stops = &generation->ask.stops;

	okv_buf_clear(&generation->piece);
	okv_detokenizer_finish(&generation->detokenizer, &generation->piece);
	okv__stops_feed(stops, generation->piece.data, generation->piece.size, &generation->text);
	okv__stops_finish(stops, &generation->text);
	add_chunk(generation);
}

static void answer_stream(struct generation *generation, const char *finish_reason)
{
	struct okv_buf *out = &generation->out;

	if (!generation->is_stream_started && out->size == 0) /* no text at all: the role still comes first */
		okv__answer_chunk(&generation->head, "", 0, true, out);
	okv__answer_last_chunk(&generation->head, finish_reason, out);
	if (generation->ask.include_usage)
		okv__answer_usage_chunk(&generation->head, &generation->end.usage, out);
	okv_sse_event(out, "[DONE]", 6);
	send_events(generation);
	if (generation->exchange)
		okv_http_stream_end(generation->exchange);
}

static void answer_whole(struct generation *generation, const char *finish_reason)
{
	struct okv_buf body = {0};

	okv__answer_whole(&generation->head, generation->text.data ? generation->text.data : "", generation->text.size,
			  finish_reason, &generation->end.usage, &body);
	if (body.failed || generation->text.failed)
		okv_http_respond_error(generation->exchange, 503, "no memory for the answer", "server_error", NULL,
				       NULL);
	else
		okv_http_respond(generation->exchange, 200, "application/json", body.data, body.size);
	okv_buf_done(&body);
}

/* The engine did not finish. Once the stream has started, the error goes into it, and [DONE] does not follow. */
static void answer_failure(struct generation *generation)
{
	const struct okv_event *end = &generation->end;
	bool is_draining = end->end == OKV_END_CANCELLED;
	const char *message = is_draining ? "the server is shutting down; send the request again, to another server"
					  : "the engine lost the request; send it again";
	const char *code = is_draining ? "shutting_down" : okv_status_name(end->status);
	struct okv_buf body = {0};

	if (!is_draining)
		okv_log(OKV_LOG_ERROR, "serve", "request %s failed: %s", generation->id, okv_status_name(end->status));
	if (!generation->is_stream_started) {
		okv_http_respond_error(generation->exchange, is_draining ? 503 : 500, message, "server_error", NULL,
				       code);
		return;
	}
	okv_http_error_body(&body, message, "server_error", NULL, code);
	okv_sse_event(&generation->out, body.data, body.size);
	okv_buf_done(&body);
	send_events(generation);
	if (generation->exchange)
		okv_http_stream_end(generation->exchange);
}

static void answer(struct generation *generation)
{
	struct okv_serve *serve = generation->serve;
	enum okv_end end = generation->end.end;
	bool is_stopped = generation->ask.stops.is_stopped;

	if (!generation->exchange) {
		okv_metric_add(serve->cancelled, 1);
		return;
	}
	if (end == OKV_END_FAILED || (end == OKV_END_CANCELLED && !is_stopped)) {
		okv_metric_add(end == OKV_END_FAILED ? serve->failed : serve->cancelled, 1);
		answer_failure(generation);
		return;
	}
	take_rest(generation);

	const char *finish_reason = end == OKV_END_LENGTH && !generation->ask.stops.is_stopped ? "length" : "stop";
	if (generation->ask.stream)
		answer_stream(generation, finish_reason);
	else
		answer_whole(generation, finish_reason);
	/* No exchange: it was given up just now, at the last of its events. */
	okv_metric_add(generation->exchange ? serve->answered : serve->cancelled, 1);
}

static void finish(struct generation *generation)
{
	struct okv_serve *serve = generation->serve;

	answer(generation);
	okv_list_remove(&generation->node);
	okv_metric_add(serve->running, -1);
	destroy(generation);
	okv__serve_lost_generation(serve);
}

static void on_task(void *context)
{
	struct generation *generation = context;

	pthread_mutex_lock(&generation->lock);
	size_t count = generation->token_count;
	bool has_ended = generation->has_ended;
	generation->is_posted = false;
	pthread_mutex_unlock(&generation->lock);

	if (has_ended)
		generation->is_cancelled = true; /* its id means nothing to the engine any more */
	/* Tokens below `count` do not change any more, so they are read without the lock. */
	if (generation->exchange) {
		take_tokens(generation, count);
		if (generation->ask.stops.is_stopped)
			cancel(generation);
		if (generation->ask.stream && !has_ended)
			send_events(generation);
	}
	if (has_ended)
		finish(generation);
}

/* ---- admission ---- */

static size_t text_size(const struct okv__ask *ask)
{
	size_t size = ask->text_size;

	for (size_t i = 0; i < ask->message_count; i++)
		size += ask->messages[i].content_size;
	return size;
}

static enum okv_status encode_prompt(struct okv_serve *serve, const struct okv__ask *ask, struct okv_tokens *tokens,
				     struct okv__refusal *refusal)
{
	const struct okv_serve_engine *engine = &serve->engine;
	const char *param = ask->is_chat ? "messages" : "prompt";
	struct okv_reason reason = {.text = "no memory for the prompt"};
	enum okv_status status = OKV_OK;
	uint32_t bos;

	if (ask->is_chat && !engine->chat_template)
		return okv__refuse(refusal, 400, "no_chat_template", NULL, "%s; use /v1/completions", engine->no_chat);
	if (okv__serve_check_text(serve, text_size(ask), param, refusal) != OKV_OK)
		return OKV_ERR_INVALID;
	if (ask->is_chat) {
		status = okv_chat_render(engine->chat_template, engine->tokenizer, ask->messages, ask->message_count,
					 tokens, &reason);
	} else if (ask->text && ask->text_size > 0) {
		if (okv_tokenizer_bos(engine->tokenizer, &bos))
			status = okv_tokens_push(tokens, bos);
		if (status == OKV_OK)
			status = okv_tokenizer_encode(engine->tokenizer, ask->text, ask->text_size, tokens, &reason);
	}
	for (size_t i = 0; status == OKV_OK && i < ask->ids.count; i++) {
		if (ask->ids.id[i] >= serve->caps.vocabulary)
			return okv__refuse(refusal, 400, NULL, param,
					   "prompt[%zu] is %" PRIu32 ", and the model has %" PRIu32 " tokens", i,
					   ask->ids.id[i], serve->caps.vocabulary);
		status = okv_tokens_push(tokens, ask->ids.id[i]);
	}
	if (status != OKV_OK)
		return okv__refuse(refusal, status == OKV_ERR_NO_MEMORY ? 503 : 400, NULL, param, "%s", reason.text);
	return OKV_OK;
}

static enum okv_status check_length(struct okv_serve *serve, const struct okv__ask *ask, size_t count,
				    struct okv__refusal *refusal)
{
	const char *param = ask->is_chat ? "messages" : "prompt";

	if (count == 0)
		return okv__refuse(refusal, 400, NULL, param, "the prompt is empty; give at least one token");
	if (count >= serve->caps.context)
		return okv__refuse(refusal, 400, "context_length_exceeded", param,
				   "the prompt has %zu tokens, but this model takes %" PRIu32
				   " tokens in all, of which one is left for the answer; shorten the prompt",
				   count, serve->caps.context);
	return OKV_OK;
}

static struct generation *create(struct okv_serve *serve, struct okv__ask *ask, uint32_t tokens_max)
{
	struct generation *generation = calloc(1, sizeof(*generation));
	uint8_t random[12];
	char hex[2 * sizeof(random) + 1];

	if (!generation)
		return NULL;
	generation->tokens = calloc(tokens_max, sizeof(*generation->tokens));
	if (!generation->tokens) {
		free(generation);
		return NULL;
	}
	okv_random_bytes(random, sizeof(random));
	okv_hex(random, sizeof(random), hex);
	snprintf(generation->id, sizeof(generation->id), "%s-%s", ask->is_chat ? "chatcmpl" : "cmpl", hex);
	generation->serve = serve;
	generation->tokens_max = tokens_max;
	generation->head = (struct okv__answer_head){.is_chat = ask->is_chat,
						     .with_usage = ask->include_usage,
						     .id = generation->id,
						     .model = serve->options.model_name,
						     .created_unix_s = okv__unix_now_s()};
	generation->ask = *ask;
	*ask = (struct okv__ask){0};
	generation->task = (struct okv_task){.run = on_task, .context = generation};
	okv_list_init(&generation->node);
	pthread_mutex_init(&generation->lock, NULL);
	return generation;
}

static enum okv_status refuse_admission(enum okv_status status, const struct okv_reason *reason,
					struct okv__refusal *refusal)
{
	switch (status) {
	case OKV_ERR_BUDGET:
		okv__refuse(refusal, 429, "queue_full", NULL, "%s", reason->text);
		break;
	case OKV_ERR_INVALID:
		okv__refuse(refusal, 400, NULL, NULL, "%s", reason->text);
		break;
	default:
		okv__refuse(refusal, 503, okv_status_name(status), NULL, "%s", reason->text);
	}
	return status;
}

/* On OKV_OK the engine has the request, and the generation has taken over the exchange and the ask. */
static enum okv_status admit(struct okv_serve *serve, struct okv_http_exchange *exchange, struct okv__ask *ask,
			     const struct okv_tokens *prompt, struct okv__refusal *refusal)
{
	uint32_t room = serve->caps.context - (uint32_t)prompt->count;
	uint32_t tokens_max = ask->tokens_max && ask->tokens_max < room ? ask->tokens_max : room;
	const struct okv_driver *driver = &serve->engine.driver;
	struct okv_request request = {
		.prompt = prompt->id,
		.prompt_count = (uint32_t)prompt->count,
		.tokens_max = tokens_max,
		.sampling = ask->sampling,
		.cache = ask->cache,
		.ignore_end = ask->ignore_end,
		.sink = on_engine_event,
	};
	struct okv_reason reason = {.field = ""};
	struct generation *generation;
	enum okv_status status;

	if (!ask->has_seed)
		okv_random_bytes(&request.sampling.seed, sizeof(request.sampling.seed));
	generation = create(serve, ask, tokens_max);
	if (!generation)
		return okv__refuse(refusal, 503, NULL, NULL, "no memory for the request");
	generation->exchange = exchange;
	request.sink_context = generation;
	status = driver->admit(driver->context, &request, &generation->request_id, &reason);
	if (status != OKV_OK) {
		destroy(generation);
		return refuse_admission(status, &reason, refusal);
	}
	okv_list_push_back(&serve->generations, &generation->node);
	okv_metric_add(serve->running, 1);
	okv_http_on_hangup(exchange, on_hangup, generation);
	return OKV_OK;
}

static enum okv_status check_model(const struct okv_serve *serve, const struct okv__ask *ask,
				   struct okv__refusal *refusal)
{
	if (!ask->model || strcmp(ask->model, serve->options.model_name) == 0)
		return OKV_OK;
	return okv__refuse(refusal, 404, "model_not_found", "model",
			   "the model %.80s does not exist here; ask for %.80s", ask->model, serve->options.model_name);
}

void okv__generation_start(struct okv_serve *serve, struct okv_http_exchange *exchange, bool is_chat)
{
	const struct okv_http_request *request = okv_http_exchange_request(exchange);
	struct okv__ask ask = {0};
	struct okv__refusal refusal;
	struct okv_tokens prompt = {0};
	enum okv_status status = okv__ask_read(is_chat, request->body, request->body_size,
					       serve->options.body_bytes_max, &ask, &refusal);

	if (status == OKV_OK)
		status = check_model(serve, &ask, &refusal);
	if (status == OKV_OK)
		status = encode_prompt(serve, &ask, &prompt, &refusal);
	if (status == OKV_OK)
		status = check_length(serve, &ask, prompt.count, &refusal);
	if (status == OKV_OK)
		status = admit(serve, exchange, &ask, &prompt, &refusal);
	if (status != OKV_OK) {
		okv_metric_add(serve->refused, 1);
		okv__serve_refuse(exchange, &refusal);
	}
	okv_tokens_done(&prompt);
	okv__ask_done(&ask);
}
