/*
 * Serve: the OpenAI-compatible API over an engine driver.
 *
 *   POST /v1/chat/completions   POST /v1/completions   GET /v1/models   GET /v1/models/NAME
 *   POST /tokenize              GET /health            GET /metrics
 *
 * docs/serve.md lists the parameters. Unknown ones are ignored; known ones that we do not do are refused by name.
 *
 * Threads: everything here is called on the loop's thread. The driver delivers tokens on its own thread; they cross
 * over by okv_loop_post(). Tokens of a step go out together, one event each.
 *
 * Life: okv_serve_create() listens, so that a taken port is known before a model is loaded; until okv_serve_start()
 * every question about the model is answered with 503. okv_serve_shutdown() lets running requests finish until its
 * deadline, then cancels them and gives their clients a second to be told. A request belongs to the engine until its
 * END event, so "drained" waits for those, however long that takes.
 *
 * A client that hangs up, or leaves more than pending_bytes_max unread, has its request cancelled at the next step.
 */
#ifndef OKV_SERVE_SERVE_H
#define OKV_SERVE_SERVE_H

#include <stddef.h>
#include <stdint.h>

#include "okv/base/metrics.h"
#include "okv/base/status.h"
#include "okv/engine/driver.h"
#include "okv/loop/loop.h"
#include "okv/model/chat.h"
#include "okv/model/tokenizer.h"

struct okv_serve;

struct okv_serve_options {
	const char *address;	     /* numeric; copied */
	uint16_t port;		     /* 0: the system chooses */
	const char *model_name;	     /* what clients call the model; borrowed */
	struct okv_metrics *metrics; /* borrowed; rendered by /metrics */
	unsigned connections_max;    /* 0: 1024 */
	size_t body_bytes_max;	     /* 0: 4 MiB */
	size_t pending_bytes_max;    /* 0: 256 KiB */
};

struct okv_serve_engine {
	struct okv_driver driver;
	const struct okv_tokenizer *tokenizer;	       /* borrowed */
	const struct okv_chat_template *chat_template; /* borrowed; NULL: chat is refused with `no_chat` */
	const char *no_chat;			       /* borrowed: a sentence for users, why there is no chat */
};

/* Listens; refusals as those of okv_http_server_create(). */
OKV_MUST_CHECK enum okv_status okv_serve_create(struct okv_loop *loop, const struct okv_serve_options *options,
						struct okv_serve **ret_serve, struct okv_reason *reason);
/* The model is loaded: answers from now on. Once. */
void okv_serve_start(struct okv_serve *serve, const struct okv_serve_engine *engine);
uint16_t okv_serve_port(const struct okv_serve *serve);

/* `drained` is called once on the loop, when no connection and no request is left; it may destroy. Until then another
 * call moves the deadline. */
void okv_serve_shutdown(struct okv_serve *serve, uint64_t deadline_ns, void (*drained)(void *context), void *context);

/* No request may be with the engine any more. NULL is harmless. */
void okv_serve_destroy(struct okv_serve *serve);

#endif
