/*
 * The parts of `serve`, private to this module: serve.c routes and owns the life of the server, serve_request.c reads
 * what is asked (pure), serve_generation.c carries one completion from admission to its end, serve_answer.c writes JSON
 * (pure).
 */
#ifndef OKV_SERVE_INTERNAL_H
#define OKV_SERVE_INTERNAL_H

#include <pthread.h>

#include "okv/base/list.h"
#include "okv/loop/http_server.h"
#include "okv/serve/serve.h"

#include "serve_answer.h"
#include "serve_request.h"

struct okv_serve {
	struct okv_loop *loop; /* borrowed */
	struct okv_serve_options options;
	struct okv_serve_engine engine;
	struct okv_driver_caps caps; /* of the engine */
	uint64_t text_bytes_max;     /* more text than this has more tokens than the context */
	bool is_ready, is_draining, connections_drained;
	uint64_t started_unix_s; /* "created" of the model */
	struct okv_http_server *http;
	struct okv_list generations; /* with the engine; the drain waits for them */
	void (*drained)(void *context);
	void *drained_context; /* borrowed */
	struct okv_timer deadline, drained_timer;

	struct okv_metric *running, *connections;
	struct okv_metric *answered, *refused, *cancelled, *slow_readers, *failed;
};

/* Answers with a refusal and ends the exchange. */
void okv__serve_refuse(struct okv_http_exchange *exchange, const struct okv__refusal *refusal);

/* Refuses text that cannot fit whatever its tokens are, so that the loop never spends a second on it. */
OKV_MUST_CHECK enum okv_status okv__serve_check_text(const struct okv_serve *serve, size_t size, const char *param,
						     struct okv__refusal *refusal);

/* Takes over the exchange of a completion request. */
void okv__generation_start(struct okv_serve *serve, struct okv_http_exchange *exchange, bool is_chat);

/* Cancels every request that the engine has. */
void okv__generations_cancel(struct okv_serve *serve);

/* A generation has ended; a drain may be complete. */
void okv__serve_lost_generation(struct okv_serve *serve);

/* Seconds of the wall clock, for "created" fields only. */
uint64_t okv__unix_now_s(void);

#endif
