/*
 * The two halves of the HTTP server, private to this module: http_server.c listens, counts and shuts down;
 * http_connection.c reads requests and writes answers.
 *
 * A connection and its one exchange are the same object, struct okv_http_exchange:
 *
 *      HEAD --head--> BODY --whole--> ANSWERING --owner ends it--> FLUSHING --flushed--> HEAD, the client may go on
 *        |              |                 |                           ^          +-----> LINGERING --> DEAD
 *        +--refused-----+-----------------|---------------------------+
 *                                         +--hang-up--> GONE --owner ends it--> DEAD
 *
 * Invariants
 *   H1  the handler owns the exchange exactly in ANSWERING and GONE; server->exchanges counts those.
 *   H2  nothing frees a connection inside a call or callback that works on it: DEAD frees from its timer, in a later
 *       turn of the loop, or with the server.
 *   H3  unread input is bounded by INPUT_BYTES_MAX and one read in every state. A client that sends more than that
 * ahead is not read any further, and its hang-up is then seen only by a write that fails or does not move.
 */
#ifndef OKV_HTTP_INTERNAL_H
#define OKV_HTTP_INTERNAL_H

#include "okv/base/buf.h"
#include "okv/base/list.h"
#include "okv/codec/http.h"
#include "okv/loop/acceptor.h"
#include "okv/loop/http_server.h"

struct bufferevent;

enum okv__http_state {
	OKV__HTTP_HEAD,
	OKV__HTTP_BODY,
	OKV__HTTP_ANSWERING,
	OKV__HTTP_FLUSHING,
	OKV__HTTP_LINGERING,
	OKV__HTTP_GONE,
	OKV__HTTP_DEAD,
};

struct okv_http_exchange {
	struct okv_list node;		/* in server->connections */
	struct okv_http_server *server; /* borrowed */
	struct bufferevent *stream;	/* owned; NULL in GONE and DEAD */
	enum okv__http_state state;
	struct okv_timer timer; /* what it means depends on the state: on_timer() */

	struct okv_buf head_bytes, body; /* owned; the request points into them */
	struct okv_http_head head;
	struct okv_http_chunked chunked;
	struct okv_http_request request;
	size_t head_seen; /* bytes of the input that hold no end of a head */
	size_t body_seen; /* of the body, when its time was last counted from */

	struct okv_buf answer_headers; /* owned */
	bool is_started;	       /* the head of the answer is queued */
	bool is_streaming_chunks;
	bool omits_body; /* the answer to HEAD */
	bool keep_alive;
	bool saw_end;	       /* the client sends no more */
	uint64_t queued_bytes; /* of all answers */
	uint64_t moved_bytes;  /* what the socket had taken when last looked */
	void (*gone)(void *context);
	void *gone_context; /* borrowed */
};

struct okv_http_server {
	struct okv_loop *loop; /* borrowed */
	struct okv_http_options options;
	int fd; /* owned; -1 once it no longer listens */
	uint16_t port;
	struct okv_acceptor acceptor;
	struct okv_list connections;
	unsigned connection_count, exchanges;
	bool is_shutting_down;
	struct okv_timer deadline;
	void (*drained)(void *context);
	void *drained_context; /* borrowed */
};

/* Takes ownership of `fd`, a connected stream socket, also when it fails, which is silent: a client is lost, no more.
 */
void okv__http_connection_open(struct okv_http_server *server, int fd);
/* Frees at once. Only for DEAD connections, or with the server. */
void okv__http_connection_destroy(struct okv_http_exchange *exchange);
/* Lets idle connections go; with `force`, hangs up on the others. */
void okv__http_connection_retire(struct okv_http_exchange *exchange, bool force);
/* Tells the server that a connection has been freed. May destroy the server. */
void okv__http_server_lost_connection(struct okv_http_server *server);

#endif
