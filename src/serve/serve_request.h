/*
 * What a client asked for, read from the JSON of a completion request. Pure: bytes in, a struct okv__ask or a refusal
 * out; it knows neither the model nor the engine, so names, token ids and lengths are checked by the caller.
 *
 * The three kinds of field: read here; known and not done, which is refused by name unless its value asks for nothing
 * (n = 1, an empty list of tools); and all others, which are ignored.
 */
#ifndef OKV_SERVE_REQUEST_H
#define OKV_SERVE_REQUEST_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "okv/base/buf.h"
#include "okv/base/status.h"
#include "okv/codec/json.h"
#include "okv/engine/driver.h"
#include "okv/model/chat.h"

#include "stop_match.h"

/* An answer that is an error, in the words of the OpenAI API. */
struct okv__refusal {
	unsigned http_status;
	const char *type, *code; /* static; code may be NULL */
	char param[80];		 /* the path of the field at fault; "" if none */
	struct okv_reason reason;
};

struct okv__ask {
	struct okv_json *json; /* owned; texts point into it */
	bool is_chat, stream, include_usage, ignore_end, has_seed;
	const char *model; /* NULL: not named */
	struct okv_sampling sampling;
	uint32_t tokens_max; /* 0: as many as fit */
	enum okv_cache_use cache;
	struct okv__stops stops;

	/* Chat: messages. Otherwise: a text, or, when text is NULL, token ids. */
	struct okv_chat_message *messages; /* owned array */
	struct okv_buf *contents;	   /* owned array: content that came in several parts */
	size_t message_count;
	const char *text;
	size_t text_size;
	struct okv_tokens ids; /* owned */
};

/* Reads a request for chat or completion. On a refusal *ret_ask is untouched. */
OKV_MUST_CHECK enum okv_status okv__ask_read(bool is_chat, const char *body, size_t size, size_t size_max,
					     struct okv__ask *ret_ask, struct okv__refusal *refusal);
void okv__ask_done(struct okv__ask *ask);

/* Parses a body; a refusal gets its HTTP status (413 if it is too long, else 400). */
OKV_MUST_CHECK enum okv_status okv__body_parse(const char *body, size_t size, size_t size_max,
					       struct okv_json **ret_json, struct okv__refusal *refusal);

/* Fills a refusal, its type by the status; `param` and `code` may be NULL. Returns OKV_ERR_INVALID. */
enum okv_status okv__refuse(struct okv__refusal *refusal, unsigned http_status, const char *code, const char *param,
			    const char *format, ...) __attribute__((format(printf, 5, 6)));

/* Turns refusal->reason, as an accessor of codec/json.h left it for `at`, into a 400. Returns OKV_ERR_INVALID. */
enum okv_status okv__refuse_at(struct okv__refusal *refusal, const struct okv_json_at *at);

#endif
