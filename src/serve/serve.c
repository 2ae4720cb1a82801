#include "serve_internal.h"

#include <inttypes.h>
#include <stdlib.h>
#include <string.h>
#include <strings.h>
#include <time.h>

#include "okv/codec/json.h"

enum {
	DEFAULT_CONNECTIONS = 1024,
	DEFAULT_BODY_BYTES = 4 << 20,
	DEFAULT_PENDING_BYTES = 256 << 10, /* about a thousand tokens */
	LAST_WORDS_S = 1,		   /* after the deadline of a shutdown, for cancelled requests to be told */
};

uint64_t okv__unix_now_s(void)
{
	return (uint64_t)time(NULL);
}

void okv__serve_refuse(struct okv_http_exchange *exchange, const struct okv__refusal *refusal)
{
	if (refusal->http_status == 429 || refusal->http_status == 503)
		okv_http_exchange_add_header(exchange, "Retry-After", "1");
	okv_http_respond_error(exchange, refusal->http_status, refusal->reason.text, refusal->type,
			       refusal->param[0] ? refusal->param : NULL, refusal->code);
}

static void respond_json(struct okv_http_exchange *exchange, unsigned http_status, struct okv_buf *body)
{
	if (body->failed)
		okv_http_respond_error(exchange, 503, "no memory for the answer", "server_error", NULL, NULL);
	else
		okv_http_respond(exchange, http_status, "application/json", body->data, body->size);
	okv_buf_done(body);
}

/* ---- endpoints ---- */

static void do_chat(struct okv_serve *serve, struct okv_http_exchange *exchange)
{
	okv__generation_start(serve, exchange, true);
}

static void do_completion(struct okv_serve *serve, struct okv_http_exchange *exchange)
{
	okv__generation_start(serve, exchange, false);
}

static void do_health(struct okv_serve *serve, struct okv_http_exchange *exchange)
{
	const char *word = serve->is_draining ? "draining" : serve->is_ready ? "ok" : "loading";
	struct okv_buf body = {0};
	struct okv_json_writer writer = {.buf = &body};

	okv_json_begin_object(&writer);
	okv_json_key(&writer, "status");
	okv_json_write_text(&writer, word);
	okv_json_end_object(&writer);
	respond_json(exchange, serve->is_ready && !serve->is_draining ? 200 : 503, &body);
}

static void do_metrics(struct okv_serve *serve, struct okv_http_exchange *exchange)
{
	struct okv_buf text = {0};

	okv_metric_set(serve->connections, okv_http_server_connections(serve->http));
	okv_metrics_render(serve->options.metrics, &text);
	if (text.failed)
		okv_http_respond_error(exchange, 503, "no memory for the answer", "server_error", NULL, NULL);
	else
		okv_http_respond(exchange, 200, "text/plain; version=0.0.4", text.data, text.size);
	okv_buf_done(&text);
}

static void write_model(const struct okv_serve *serve, struct okv_json_writer *writer)
{
	okv_json_begin_object(writer);
	okv_json_key(writer, "id");
	okv_json_write_text(writer, serve->options.model_name);
	okv_json_key(writer, "object");
	okv_json_write_text(writer, "model");
	okv_json_key(writer, "created");
	okv_json_write_u64(writer, serve->started_unix_s);
	okv_json_key(writer, "owned_by");
	okv_json_write_text(writer, "orbitkv");
	okv_json_key(writer, "context_length");
	okv_json_write_u64(writer, serve->caps.context);
	okv_json_end_object(writer);
}

static void do_models(struct okv_serve *serve, struct okv_http_exchange *exchange)
{
	struct okv_buf body = {0};
	struct okv_json_writer writer = {.buf = &body};

	okv_json_begin_object(&writer);
	okv_json_key(&writer, "object");
	okv_json_write_text(&writer, "list");
	okv_json_key(&writer, "data");
	okv_json_begin_array(&writer);
	write_model(serve, &writer);
	okv_json_end_array(&writer);
	okv_json_end_object(&writer);
	respond_json(exchange, 200, &body);
}

static void do_model(struct okv_serve *serve, struct okv_http_exchange *exchange)
{
	const char *name = okv_http_exchange_request(exchange)->path + strlen("/v1/models/");
	struct okv_buf body = {0};
	struct okv_json_writer writer = {.buf = &body};
	struct okv__refusal refusal;

	if (strcmp(name, serve->options.model_name) != 0) {
		okv__refuse(&refusal, 404, "model_not_found", "model",
			    "the model %.80s does not exist here; ask for %.80s", name, serve->options.model_name);
		okv__serve_refuse(exchange, &refusal);
		return;
	}
	write_model(serve, &writer);
	respond_json(exchange, 200, &body);
}

enum okv_status okv__serve_check_text(const struct okv_serve *serve, size_t size, const char *param,
				      struct okv__refusal *refusal)
{
	if (size <= serve->text_bytes_max)
		return OKV_OK;
	return okv__refuse(refusal, 400, "context_length_exceeded", param,
			   "%zu bytes of text cannot fit: this model takes %" PRIu32
			   " tokens in all, which hold %" PRIu64 " bytes at the most; shorten the text",
			   size, serve->caps.context, serve->text_bytes_max);
}

static enum okv_status tokenize(struct okv_serve *serve, const struct okv_json_at *root, struct okv_tokens *tokens,
				struct okv__refusal *refusal)
{
	struct okv_json_at at;
	const char *text;
	size_t size;
	bool add_special = false;
	uint32_t bos;

	if (okv_json_expect(root, OKV_JSON_OBJECT, &refusal->reason) != OKV_OK)
		return okv__refuse_at(refusal, root);
	if (okv_json_require(root, "content", &at, &refusal->reason) != OKV_OK)
		return okv__refuse(refusal, 400, NULL, "content", "content is required");
	if (okv_json_text(&at, &text, &size, &refusal->reason) != OKV_OK)
		return okv__refuse_at(refusal, &at);
	if (okv__serve_check_text(serve, size, "content", refusal) != OKV_OK)
		return OKV_ERR_INVALID;
	if (okv_json_find(root, "add_special", &at) && okv_json_bool(&at, &add_special, &refusal->reason) != OKV_OK)
		return okv__refuse_at(refusal, &at);
	if (add_special && okv_tokenizer_bos(serve->engine.tokenizer, &bos) && okv_tokens_push(tokens, bos) != OKV_OK)
		return okv__refuse(refusal, 503, NULL, NULL, "no memory for the tokens");
	if (okv_tokenizer_encode(serve->engine.tokenizer, text, size, tokens, &refusal->reason) != OKV_OK)
		return okv__refuse(refusal, 400, NULL, "content", "the content cannot be tokenized");
	return OKV_OK;
}

static void do_tokenize(struct okv_serve *serve, struct okv_http_exchange *exchange)
{
	const struct okv_http_request *request = okv_http_exchange_request(exchange);
	struct okv_json *json = NULL;
	struct okv_tokens tokens = {0};
	struct okv_buf body = {0};
	struct okv_json_writer writer = {.buf = &body};
	struct okv__refusal refusal;
	enum okv_status status =
		okv__body_parse(request->body, request->body_size, serve->options.body_bytes_max, &json, &refusal);

	if (status == OKV_OK) {
		struct okv_json_at root = okv_json_root(json);

		status = tokenize(serve, &root, &tokens, &refusal);
	}
	if (status != OKV_OK) {
		okv__serve_refuse(exchange, &refusal);
	} else {
		okv_json_begin_object(&writer);
		okv_json_key(&writer, "tokens");
		okv_json_begin_array(&writer);
		for (size_t i = 0; i < tokens.count; i++)
			okv_json_write_u64(&writer, tokens.id[i]);
		okv_json_end_array(&writer);
		okv_json_end_object(&writer);
		respond_json(exchange, 200, &body);
	}
	okv_tokens_done(&tokens);
	okv_json_destroy(json);
}

/* ---- routes ---- */

struct route {
	const char *method, *path;
	bool is_prefix;
	bool needs_engine; /* 503 while the model loads */
	bool is_work;	   /* a completion: 503 while draining, and counted */
	void (*serve)(struct okv_serve *serve, struct okv_http_exchange *exchange);
};

static const struct route routes[] = {
	{"POST", "/v1/chat/completions", false, true, true, do_chat},
	{"POST", "/v1/completions", false, true, true, do_completion},
	{"POST", "/tokenize", false, true, false, do_tokenize},
	{"GET", "/v1/models", false, true, false, do_models},
	{"GET", "/v1/models/", true, true, false, do_model},
	{"GET", "/health", false, false, false, do_health},
	{"GET", "/metrics", false, false, false, do_metrics},
};

static const struct route *find_route(const char *path)
{
	for (size_t i = 0; i < sizeof(routes) / sizeof(routes[0]); i++) {
		size_t size = strlen(routes[i].path);

		if (strncmp(path, routes[i].path, size) == 0 && (routes[i].is_prefix || path[size] == '\0'))
			return &routes[i];
	}
	return NULL;
}

/* A browser sends text or a form to any address without asking first, but not JSON. No header at all is fine. */
static bool is_json(const struct okv_http_exchange *exchange)
{
	const char *type = okv_http_exchange_header(exchange, "Content-Type");
	const char json[] = "application/json";
	size_t size = sizeof(json) - 1;

	return !type || (strncasecmp(type, json, size) == 0 && strspn(type + size, " ;") + (type[size] == '\0') > 0);
}

static enum okv_status check_route(const struct okv_serve *serve, const struct route *route,
				   struct okv_http_exchange *exchange, struct okv__refusal *refusal)
{
	const struct okv_http_request *request = okv_http_exchange_request(exchange);

	if (!route)
		return okv__refuse(refusal, 404, NULL, NULL, "there is nothing at %.100s", request->path);
	if (strcmp(request->method, route->method) != 0 &&
	    !(strcmp(request->method, "HEAD") == 0 && strcmp(route->method, "GET") == 0)) {
		okv_http_exchange_add_header(exchange, "Allow", route->method);
		return okv__refuse(refusal, 405, NULL, NULL, "%s takes %s only", route->path, route->method);
	}
	if (strcmp(route->method, "POST") == 0 && !is_json(exchange))
		return okv__refuse(refusal, 415, NULL, NULL,
				   "send JSON, with the header Content-Type: application/json");
	if (okv_http_exchange_header(exchange, "Content-Encoding"))
		return okv__refuse(refusal, 415, NULL, NULL,
				   "send the body as it is, without the header Content-Encoding");
	if (serve->is_draining && route->is_work)
		return okv__refuse(refusal, 503, "shutting_down", NULL,
				   "the server is shutting down; send the request to another server");
	if (!serve->is_ready && route->needs_engine)
		return okv__refuse(refusal, 503, "loading", NULL, "the model is still loading; try again soon");
	return OKV_OK;
}

static void handle(void *context, struct okv_http_exchange *exchange)
{
	struct okv_serve *serve = context;
	const struct route *route = find_route(okv_http_exchange_request(exchange)->path);
	struct okv__refusal refusal;

	if (check_route(serve, route, exchange, &refusal) == OKV_OK) {
		route->serve(serve, exchange);
		return;
	}
	if (route && route->is_work)
		okv_metric_add(serve->refused, 1);
	okv__serve_refuse(exchange, &refusal);
}

/* ---- life ---- */

static void create_metrics(struct okv_serve *serve)
{
	struct okv_metrics *metrics = serve->options.metrics;
	const char *requests = "orbitkv_serve_requests_total", *requests_help = "Requests for completions, by outcome";

	serve->answered = okv_counter(metrics, requests, "outcome=\"answered\"", requests_help);
	serve->refused = okv_counter(metrics, requests, "outcome=\"refused\"", requests_help);
	serve->cancelled = okv_counter(metrics, requests, "outcome=\"cancelled\"", requests_help);
	serve->failed = okv_counter(metrics, requests, "outcome=\"failed\"", requests_help);
	serve->running = okv_gauge(metrics, "orbitkv_serve_requests_running", "", "Requests that the engine has");
	serve->connections = okv_gauge(metrics, "orbitkv_http_connections", "", "Open client connections");
	serve->slow_readers = okv_counter(metrics, "orbitkv_serve_slow_readers_total", "",
					  "Streams given up because their client did not read");
}

static void tell_drained(void *context)
{
	struct okv_serve *serve = context;

	serve->drained(serve->drained_context);
}

static void on_deadline(void *context)
{
	okv__generations_cancel(context);
}

static void check_drained(struct okv_serve *serve)
{
	if (serve->connections_drained && okv_list_is_empty(&serve->generations))
		okv_timer_start(&serve->drained_timer, okv_loop_now_ns(serve->loop));
}

static void on_connections_drained(void *context)
{
	struct okv_serve *serve = context;

	serve->connections_drained = true;
	check_drained(serve);
}

void okv__serve_lost_generation(struct okv_serve *serve)
{
	check_drained(serve);
}

enum okv_status okv_serve_create(struct okv_loop *loop, const struct okv_serve_options *options,
				 struct okv_serve **ret_serve, struct okv_reason *reason)
{
	struct okv_serve *serve = calloc(1, sizeof(*serve));
	enum okv_status status;

	if (!serve)
		return okv_refuse(reason, OKV_ERR_NO_MEMORY, "", "no memory for the server");
	serve->loop = loop;
	serve->options = *options;
	if (serve->options.connections_max == 0)
		serve->options.connections_max = DEFAULT_CONNECTIONS;
	if (serve->options.body_bytes_max == 0)
		serve->options.body_bytes_max = DEFAULT_BODY_BYTES;
	if (serve->options.pending_bytes_max == 0)
		serve->options.pending_bytes_max = DEFAULT_PENDING_BYTES;
	serve->started_unix_s = okv__unix_now_s();
	okv_list_init(&serve->generations);
	okv_timer_init(&serve->deadline, loop, on_deadline, serve);
	okv_timer_init(&serve->drained_timer, loop, tell_drained, serve);
	create_metrics(serve);

	struct okv_http_options http = {
		.address = options->address,
		.port = options->port,
		.body_bytes_max = serve->options.body_bytes_max,
		.connections_max = serve->options.connections_max,
		.handle = handle,
		.context = serve,
	};
	status = okv_http_server_create(loop, &http, &serve->http, reason);
	if (status != OKV_OK) {
		free(serve);
		return status;
	}
	*ret_serve = serve;
	return OKV_OK;
}

void okv_serve_start(struct okv_serve *serve, const struct okv_serve_engine *engine)
{
	OKV_ASSERT(!serve->is_ready);
	serve->engine = *engine;
	serve->caps = engine->driver.caps(engine->driver.context);
	serve->text_bytes_max = (uint64_t)serve->caps.context * okv_tokenizer_token_bytes_max(engine->tokenizer);
	serve->is_ready = true;
}

uint16_t okv_serve_port(const struct okv_serve *serve)
{
	return okv_http_server_port(serve->http);
}

void okv_serve_shutdown(struct okv_serve *serve, uint64_t deadline_ns, void (*drained)(void *context), void *context)
{
	serve->is_draining = true;
	serve->drained = drained;
	serve->drained_context = context;
	okv_timer_start(&serve->deadline, deadline_ns);
	if (!serve->connections_drained)
		okv_http_server_shutdown(serve->http, deadline_ns + LAST_WORDS_S * OKV_NS_PER_S, on_connections_drained,
					 serve);
}

void okv_serve_destroy(struct okv_serve *serve)
{
	if (!serve)
		return;
	okv_http_server_destroy(serve->http);
	OKV_ASSERT(okv_list_is_empty(&serve->generations));
	okv_timer_stop(&serve->deadline);
	okv_timer_stop(&serve->drained_timer);
	free(serve);
}
