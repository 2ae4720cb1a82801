#include "serve_request.h"

#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum {
	MESSAGES_MAX = 4096,
	DEFAULT_COMPLETION_TOKENS = 16, /* of /v1/completions, as the OpenAI API has it; chat fills what fits */
};

/* ---- refusals ---- */

static const char *type_of(unsigned http_status)
{
	return http_status >= 500 ? "server_error" : http_status == 429 ? "rate_limit_error" : "invalid_request_error";
}

enum okv_status okv__refuse(struct okv__refusal *refusal, unsigned http_status, const char *code, const char *param,
			    const char *format, ...)
{
	va_list arguments;

	*refusal = (struct okv__refusal){
		.http_status = http_status, .type = type_of(http_status), .code = code, .reason.field = ""};
	snprintf(refusal->param, sizeof(refusal->param), "%s", param ? param : "");
	va_start(arguments, format);
	vsnprintf(refusal->reason.text, sizeof(refusal->reason.text), format, arguments);
	va_end(arguments);
	return OKV_ERR_INVALID;
}

enum okv_status okv__refuse_at(struct okv__refusal *refusal, const struct okv_json_at *at)
{
	struct okv_buf path = {0};

	okv_json_path(at, &path);
	refusal->http_status = 400;
	refusal->type = "invalid_request_error";
	refusal->code = NULL;
	snprintf(refusal->param, sizeof(refusal->param), "%s", path.data ? path.data : "");
	okv_buf_done(&path);
	return OKV_ERR_INVALID;
}

static enum okv_status refuse_value(struct okv__refusal *refusal, const struct okv_json_at *at, const char *code,
				    const char *text)
{
	okv__refuse_at(refusal, at);
	refusal->code = code;
	snprintf(refusal->reason.text, sizeof(refusal->reason.text), "%s %s", refusal->param, text);
	return OKV_ERR_INVALID;
}

static enum okv_status refuse_unsupported(struct okv__refusal *refusal, const struct okv_json_at *at)
{
	return refuse_value(refusal, at, "unsupported_parameter", "is not supported here; leave it out");
}

enum okv_status okv__body_parse(const char *body, size_t size, size_t size_max, struct okv_json **ret_json,
				struct okv__refusal *refusal)
{
	enum okv_status status;

	if (size == 0)
		return okv__refuse(refusal, 400, NULL, NULL,
				   "the body is empty; send a JSON object, with its Content-Length");
	status = okv_json_parse(body, size, size_max, ret_json, &refusal->reason);
	if (status == OKV_OK)
		return OKV_OK;
	refusal->http_status = status == OKV_ERR_BUDGET ? 413 : status == OKV_ERR_NO_MEMORY ? 503 : 400;
	refusal->type = type_of(refusal->http_status);
	refusal->code = NULL;
	refusal->param[0] = '\0';
	return status;
}

/* ---- fields that we know and do not do ---- */

enum harmless {
	HARMLESS_NEVER,
	HARMLESS_FALSE,
	HARMLESS_ZERO,
	HARMLESS_ONE,
	HARMLESS_EMPTY, /* an empty list, object or text */
	HARMLESS_NONE,	/* the text "none" */
	HARMLESS_TEXT,	/* {"type":"text"} or ["text"] */
};

static const struct {
	const char *key;
	enum harmless harmless;
} unsupported[] = {
	{"n", HARMLESS_ONE},
	{"best_of", HARMLESS_ONE},
	{"logprobs", HARMLESS_FALSE},
	{"top_logprobs", HARMLESS_ZERO},
	{"logit_bias", HARMLESS_EMPTY},
	{"presence_penalty", HARMLESS_ZERO},
	{"frequency_penalty", HARMLESS_ZERO},
	{"repetition_penalty", HARMLESS_ONE},
	{"tools", HARMLESS_EMPTY},
	{"tool_choice", HARMLESS_NONE},
	{"functions", HARMLESS_EMPTY},
	{"function_call", HARMLESS_NONE},
	{"response_format", HARMLESS_TEXT},
	{"modalities", HARMLESS_TEXT},
	{"audio", HARMLESS_NEVER},
	{"prediction", HARMLESS_NEVER},
	{"reasoning_effort", HARMLESS_NONE},
	{"web_search_options", HARMLESS_NEVER},
	{"echo", HARMLESS_FALSE},
	{"suffix", HARMLESS_EMPTY},
};

static bool is_text(const struct okv_json_at *at, const char *wanted)
{
	const char *text;
	size_t size;

	return okv_json_text(at, &text, &size, NULL) == OKV_OK && size == strlen(wanted) &&
	       memcmp(text, wanted, size) == 0;
}

static bool is_number(const struct okv_json_at *at, double wanted)
{
	double number;

	return okv_json_f64(at, wanted, wanted, &number, NULL) == OKV_OK;
}

static bool asks_for_text_only(const struct okv_json_at *at)
{
	struct okv_json_at inner;

	if (okv_json_find(at, "type", &inner))
		return is_text(&inner, "text");
	if (okv_json_kind(at) != OKV_JSON_ARRAY || okv_json_size(at) != 1)
		return false;
	inner = okv_json_item(at, 0);
	return is_text(&inner, "text");
}

static bool asks_for_nothing(const struct okv_json_at *at, enum harmless harmless)
{
	bool truth;

	switch (harmless) {
	case HARMLESS_NEVER:
		return false;
	case HARMLESS_FALSE:
		return okv_json_bool(at, &truth, NULL) == OKV_OK && !truth;
	case HARMLESS_ZERO:
		return is_number(at, 0);
	case HARMLESS_ONE:
		return is_number(at, 1);
	case HARMLESS_EMPTY:
		return okv_json_kind(at) == OKV_JSON_TEXT
			       ? is_text(at, "")
			       : okv_json_kind(at) >= OKV_JSON_ARRAY && okv_json_size(at) == 0;
	case HARMLESS_NONE:
		return is_text(at, "none");
	case HARMLESS_TEXT:
		return asks_for_text_only(at);
	}
	return false;
}

static enum okv_status refuse_what_we_do_not_do(const struct okv_json_at *root, struct okv__refusal *refusal)
{
	for (size_t i = 0; i < sizeof(unsupported) / sizeof(unsupported[0]); i++) {
		struct okv_json_at at;

		if (okv_json_find(root, unsupported[i].key, &at) && !asks_for_nothing(&at, unsupported[i].harmless))
			return refuse_unsupported(refusal, &at);
	}
	return OKV_OK;
}

/* ---- single fields ---- */

static enum okv_status read_bool(const struct okv_json_at *object, const char *key, bool *value,
				 struct okv__refusal *refusal)
{
	struct okv_json_at at;

	if (okv_json_find(object, key, &at) && okv_json_bool(&at, value, &refusal->reason) != OKV_OK)
		return okv__refuse_at(refusal, &at);
	return OKV_OK;
}

static enum okv_status read_float(const struct okv_json_at *object, const char *key, double max, float *value,
				  struct okv__refusal *refusal)
{
	struct okv_json_at at;
	double number;

	if (!okv_json_find(object, key, &at))
		return OKV_OK;
	if (okv_json_f64(&at, 0, max, &number, &refusal->reason) != OKV_OK)
		return okv__refuse_at(refusal, &at);
	*value = (float)number;
	return OKV_OK;
}

static enum okv_status read_tokens_max(const struct okv_json_at *root, struct okv__ask *ask,
				       struct okv__refusal *refusal)
{
	struct okv_json_at at;
	int64_t number;

	ask->tokens_max = ask->is_chat ? 0 : DEFAULT_COMPLETION_TOKENS;
	if (!okv_json_find(root, "max_completion_tokens", &at) && !okv_json_find(root, "max_tokens", &at))
		return OKV_OK;
	if (okv_json_i64(&at, 1, UINT32_MAX, &number, &refusal->reason) != OKV_OK)
		return okv__refuse_at(refusal, &at);
	ask->tokens_max = (uint32_t)number;
	return OKV_OK;
}

static enum okv_status read_sampling(const struct okv_json_at *root, struct okv__ask *ask, struct okv__refusal *refusal)
{
	struct okv_sampling *sampling = &ask->sampling;
	struct okv_json_at at;
	int64_t number;

	*sampling = (struct okv_sampling){.temperature = 1, .top_p = 1};
	if (read_float(root, "temperature", 2, &sampling->temperature, refusal) != OKV_OK ||
	    read_float(root, "top_p", 1, &sampling->top_p, refusal) != OKV_OK ||
	    read_float(root, "min_p", 1, &sampling->min_p, refusal) != OKV_OK)
		return OKV_ERR_INVALID;
	if (sampling->top_p <= 0)
		return okv__refuse(refusal, 400, NULL, "top_p", "top_p must be above 0");
	if (okv_json_find(root, "top_k", &at)) {
		if (okv_json_i64(&at, -1, INT32_MAX, &number, &refusal->reason) != OKV_OK)
			return okv__refuse_at(refusal, &at);
		sampling->top_k = number > 0 ? (uint32_t)number : 0; /* others write "off" as -1 or 0 */
	}
	if (okv_json_find(root, "seed", &at)) {
		if (okv_json_i64(&at, INT64_MIN, INT64_MAX, &number, &refusal->reason) != OKV_OK)
			return okv__refuse_at(refusal, &at);
		sampling->seed = (uint64_t)number;
		ask->has_seed = true;
	}
	return OKV_OK;
}

static enum okv_status add_stop(const struct okv_json_at *at, struct okv__ask *ask, struct okv__refusal *refusal)
{
	const char *text;
	size_t size;

	if (okv_json_text(at, &text, &size, &refusal->reason) != OKV_OK)
		return okv__refuse_at(refusal, at);
	if (size == 0 || size > OKV__STOP_BYTES_MAX)
		return refuse_value(refusal, at, NULL, "must have from 1 to 1024 bytes");
	okv_buf_append(&ask->stops.stop[ask->stops.count], text, size);
	if (ask->stops.stop[ask->stops.count].failed)
		return okv__refuse(refusal, 503, NULL, NULL, "no memory for the request");
	ask->stops.count++;
	return OKV_OK;
}

static enum okv_status read_stops(const struct okv_json_at *root, struct okv__ask *ask, struct okv__refusal *refusal)
{
	struct okv_json_at stop;

	if (!okv_json_find(root, "stop", &stop))
		return OKV_OK;
	if (okv_json_kind(&stop) != OKV_JSON_ARRAY)
		return add_stop(&stop, ask, refusal);
	if (okv_json_size(&stop) > OKV__STOPS_MAX)
		return refuse_value(refusal, &stop, NULL, "may hold at most 16 strings");
	for (size_t i = 0; i < okv_json_size(&stop); i++) {
		struct okv_json_at item = okv_json_item(&stop, i);

		if (add_stop(&item, ask, refusal) != OKV_OK)
			return OKV_ERR_INVALID;
	}
	return OKV_OK;
}

static enum okv_status read_stream_options(const struct okv_json_at *root, struct okv__ask *ask,
					   struct okv__refusal *refusal)
{
	struct okv_json_at options;

	if (!okv_json_find(root, "stream_options", &options))
		return OKV_OK;
	if (okv_json_expect(&options, OKV_JSON_OBJECT, &refusal->reason) != OKV_OK)
		return okv__refuse_at(refusal, &options);
	if (!ask->stream)
		return refuse_value(refusal, &options, NULL, "is only allowed when stream is true");
	return read_bool(&options, "include_usage", &ask->include_usage, refusal);
}

static enum okv_status read_cache_use(const struct okv_json_at *root, struct okv__ask *ask,
				      struct okv__refusal *refusal)
{
	struct okv_json_at extension, cache;

	if (!okv_json_find(root, "orbitkv", &extension))
		return OKV_OK;
	if (okv_json_expect(&extension, OKV_JSON_OBJECT, &refusal->reason) != OKV_OK)
		return okv__refuse_at(refusal, &extension);
	if (!okv_json_find(&extension, "cache", &cache))
		return OKV_OK;
	if (is_text(&cache, "full"))
		ask->cache = OKV_CACHE_FULL;
	else if (is_text(&cache, "local"))
		ask->cache = OKV_CACHE_LOCAL;
	else if (is_text(&cache, "off"))
		ask->cache = OKV_CACHE_OFF;
	else
		return refuse_value(refusal, &cache, NULL, "must be \"off\", \"local\" or \"full\"");
	return OKV_OK;
}

/* ---- messages and prompts ---- */

static enum okv_status append_part(const struct okv_json_at *part, struct okv_buf *content,
				   struct okv__refusal *refusal)
{
	struct okv_json_at type, text_at;
	const char *text;
	size_t size;

	if (okv_json_require(part, "type", &type, &refusal->reason) != OKV_OK)
		return okv__refuse_at(refusal, part);
	if (!is_text(&type, "text"))
		return refuse_value(refusal, &type, "unsupported_content",
				    "must be \"text\": this model reads nothing else");
	if (okv_json_require(part, "text", &text_at, &refusal->reason) != OKV_OK)
		return okv__refuse_at(refusal, part);
	if (okv_json_text(&text_at, &text, &size, &refusal->reason) != OKV_OK)
		return okv__refuse_at(refusal, &text_at);
	okv_buf_append(content, text, size);
	return OKV_OK;
}

/* Content is a text, or a list of parts that are joined. */
static enum okv_status read_content(const struct okv_json_at *at, struct okv_buf *joined,
				    struct okv_chat_message *message, struct okv__refusal *refusal)
{
	if (okv_json_kind(at) != OKV_JSON_ARRAY) {
		if (okv_json_text(at, &message->content, &message->content_size, &refusal->reason) != OKV_OK)
			return okv__refuse_at(refusal, at);
		return OKV_OK;
	}
	for (size_t i = 0; i < okv_json_size(at); i++) {
		struct okv_json_at part = okv_json_item(at, i);

		if (append_part(&part, joined, refusal) != OKV_OK)
			return OKV_ERR_INVALID;
	}
	if (joined->failed)
		return okv__refuse(refusal, 503, NULL, NULL, "no memory for the request");
	message->content = joined->data ? joined->data : "";
	message->content_size = joined->size;
	return OKV_OK;
}

static enum okv_status read_message(const struct okv_json_at *at, struct okv_buf *joined,
				    struct okv_chat_message *ret_message, struct okv__refusal *refusal)
{
	static const char *const not_done[] = {"tool_calls", "function_call", "audio", "tool_call_id"};
	struct okv_json_at role, content, inner;
	size_t size;

	if (okv_json_require(at, "role", &role, &refusal->reason) != OKV_OK)
		return okv__refuse_at(refusal, at);
	if (okv_json_text(&role, &ret_message->role, &size, &refusal->reason) != OKV_OK)
		return okv__refuse_at(refusal, &role);
	if (strlen(ret_message->role) != size)
		return refuse_value(refusal, &role, NULL, "holds a NUL");
	for (size_t i = 0; i < sizeof(not_done) / sizeof(not_done[0]); i++)
		if (okv_json_find(at, not_done[i], &inner))
			return refuse_unsupported(refusal, &inner);
	if (okv_json_require(at, "content", &content, &refusal->reason) != OKV_OK)
		return okv__refuse_at(refusal, at);
	return read_content(&content, joined, ret_message, refusal);
}

static enum okv_status read_messages(const struct okv_json_at *root, struct okv__ask *ask, struct okv__refusal *refusal)
{
	struct okv_json_at messages;

	if (okv_json_require(root, "messages", &messages, &refusal->reason) != OKV_OK)
		return okv__refuse(refusal, 400, NULL, "messages", "messages is required");
	if (okv_json_expect(&messages, OKV_JSON_ARRAY, &refusal->reason) != OKV_OK)
		return okv__refuse_at(refusal, &messages);

	size_t count = okv_json_size(&messages);
	if (count == 0 || count > MESSAGES_MAX)
		return refuse_value(refusal, &messages, NULL, "must hold from 1 to 4096 messages");
	ask->messages = calloc(count, sizeof(*ask->messages));
	ask->contents = calloc(count, sizeof(*ask->contents));
	if (!ask->messages || !ask->contents)
		return okv__refuse(refusal, 503, NULL, NULL, "no memory for the request");
	for (ask->message_count = 0; ask->message_count < count; ask->message_count++) {
		struct okv_json_at at = okv_json_item(&messages, ask->message_count);

		if (read_message(&at, &ask->contents[ask->message_count], &ask->messages[ask->message_count],
				 refusal) != OKV_OK) {
			ask->message_count++; /* its content may be half built */
			return OKV_ERR_INVALID;
		}
	}
	return OKV_OK;
}

static enum okv_status read_ids(const struct okv_json_at *list, struct okv__ask *ask, struct okv__refusal *refusal)
{
	for (size_t i = 0; i < okv_json_size(list); i++) {
		struct okv_json_at item = okv_json_item(list, i);
		int64_t id;

		if (okv_json_i64(&item, 0, UINT32_MAX, &id, &refusal->reason) != OKV_OK)
			return okv__refuse_at(refusal, &item);
		if (okv_tokens_push(&ask->ids, (uint32_t)id) != OKV_OK)
			return okv__refuse(refusal, 503, NULL, NULL, "no memory for the request");
	}
	return OKV_OK;
}

/* A text, a list of token ids, or a list with one of these in it. */
static enum okv_status read_prompt(const struct okv_json_at *root, struct okv__ask *ask, struct okv__refusal *refusal)
{
	struct okv_json_at prompt, first;

	if (okv_json_require(root, "prompt", &prompt, &refusal->reason) != OKV_OK)
		return okv__refuse(refusal, 400, NULL, "prompt", "prompt is required");
	if (okv_json_kind(&prompt) == OKV_JSON_ARRAY && okv_json_size(&prompt) > 0) {
		first = okv_json_item(&prompt, 0);
		if (okv_json_kind(&first) != OKV_JSON_TEXT && okv_json_kind(&first) != OKV_JSON_ARRAY)
			return read_ids(&prompt, ask, refusal);
		if (okv_json_size(&prompt) > 1)
			return refuse_value(refusal, &prompt, "unsupported_parameter",
					    "may hold one prompt only; send one request for each");
		if (okv_json_kind(&first) == OKV_JSON_ARRAY)
			return read_ids(&first, ask, refusal);
		prompt = first;
		prompt.parent = root;
		prompt.key = "prompt";
	}
	if (okv_json_kind(&prompt) == OKV_JSON_ARRAY)
		return OKV_OK; /* empty: no ids */
	if (okv_json_text(&prompt, &ask->text, &ask->text_size, &refusal->reason) != OKV_OK)
		return okv__refuse_at(refusal, &prompt);
	return OKV_OK;
}

static enum okv_status read_model(const struct okv_json_at *root, struct okv__ask *ask, struct okv__refusal *refusal)
{
	struct okv_json_at at;
	size_t size;

	if (!okv_json_find(root, "model", &at))
		return OKV_OK;
	if (okv_json_text(&at, &ask->model, &size, &refusal->reason) != OKV_OK)
		return okv__refuse_at(refusal, &at);
	if (strlen(ask->model) != size)
		return refuse_value(refusal, &at, NULL, "holds a NUL");
	return OKV_OK;
}

static enum okv_status read_fields(const struct okv_json_at *root, struct okv__ask *ask, struct okv__refusal *refusal)
{
	if (okv_json_expect(root, OKV_JSON_OBJECT, &refusal->reason) != OKV_OK)
		return okv__refuse_at(refusal, root);
	if (read_model(root, ask, refusal) != OKV_OK || refuse_what_we_do_not_do(root, refusal) != OKV_OK ||
	    read_bool(root, "stream", &ask->stream, refusal) != OKV_OK ||
	    read_stream_options(root, ask, refusal) != OKV_OK ||
	    read_bool(root, "ignore_eos", &ask->ignore_end, refusal) != OKV_OK ||
	    read_tokens_max(root, ask, refusal) != OKV_OK || read_sampling(root, ask, refusal) != OKV_OK ||
	    read_stops(root, ask, refusal) != OKV_OK || read_cache_use(root, ask, refusal) != OKV_OK)
		return OKV_ERR_INVALID;
	return ask->is_chat ? read_messages(root, ask, refusal) : read_prompt(root, ask, refusal);
}

enum okv_status okv__ask_read(bool is_chat, const char *body, size_t size, size_t size_max, struct okv__ask *ret_ask,
			      struct okv__refusal *refusal)
{
	struct okv__ask ask = {.is_chat = is_chat, .cache = OKV_CACHE_FULL};
	enum okv_status status = okv__body_parse(body, size, size_max, &ask.json, refusal);

	if (status != OKV_OK)
		return status;

	struct okv_json_at root = okv_json_root(ask.json);
	status = read_fields(&root, &ask, refusal);
	if (status != OKV_OK) {
		okv__ask_done(&ask);
		return status;
	}
	*ret_ask = ask;
	return OKV_OK;
}

void okv__ask_done(struct okv__ask *ask)
{
	for (size_t i = 0; i < ask->message_count; i++)
		okv_buf_done(&ask->contents[i]);
	free(ask->contents);
	free(ask->messages);
	okv__stops_done(&ask->stops);
	okv_tokens_done(&ask->ids);
	okv_json_destroy(ask->json);
	*ask = (struct okv__ask){0};
}
