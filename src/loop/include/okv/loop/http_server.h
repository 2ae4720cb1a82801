/*
 * HTTP server: HTTP/1.1 on a loop, with answers given at once, later, or as a stream.
 *
 * A whole request becomes an exchange, and `handle` is called with it. From then on the exchange is the handler's: it
 * is ended exactly once, by okv_http_respond(), okv_http_stream_end() or okv_http_abort(), at any later time on the
 * loop's thread, and stays valid until then whatever the client does.
 *
 *      handle() --+-- respond ------------------------------> ended
 *                 +-- stream_start -- stream_write* -- stream_end
 *                 +-- abort (drops the connection)
 *
 * A client that hangs up before the end is reported once to the callback of okv_http_on_hangup(); what is written after
 * that goes nowhere. A client that shuts down only its sending half counts as gone. A client that does not read is seen
 * in okv_http_pending_bytes(), which the producer bounds as it likes, and is hung up on when nothing moves for
 * `stall_ns`.
 *
 * Malformed requests, oversized ones (431, 413), slow ones (408) and connections beyond the limit (503) are answered by
 * the server itself with okv_http_error_body() and never reach `handle`. The server serves one request of a connection
 * at a time; pipelined ones wait their turn in the socket.
 *
 * Everything runs on the loop's thread. The server logs nothing.
 */
#ifndef OKV_LOOP_HTTP_SERVER_H
#define OKV_LOOP_HTTP_SERVER_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "okv/base/status.h"
#include "okv/loop/loop.h"

struct okv_http_server;
struct okv_http_exchange;

/* The request of an exchange; everything is borrowed and valid until the exchange ends. */
struct okv_http_request {
	const char *method;
	const char *path;  /* percent-decoded */
	const char *query; /* as sent; "" if none */
	const char *body;  /* followed by a NUL that does not count; never NULL */
	size_t body_size;
};

struct okv_http_options {
	const char *address; /* numeric, IPv4 or IPv6, such as "127.0.0.1"; copied */
	uint16_t port;	     /* 0: the system chooses */
	size_t body_bytes_max;
	unsigned connections_max;
	uint64_t stall_ns; /* 0: 30 s, for a head, each 16 KiB of a body at least, or a client that does not read */
	uint64_t idle_ns;  /* 0: 75 s. How long a connection may stay open without a request */
	void (*handle)(void *context, struct okv_http_exchange *exchange);
	void *context; /* borrowed */
};

/*
 * Listens. OKV_ERR_EXISTS: the port is taken, OKV_ERR_INVALID: no numeric address; the reason names address and port
 * and says what to do.
 */
OKV_MUST_CHECK enum okv_status okv_http_server_create(struct okv_loop *loop, const struct okv_http_options *options,
						      struct okv_http_server **ret_server, struct okv_reason *reason);

/* The port that is listened on, also when the system chose it. */
uint16_t okv_http_server_port(const struct okv_http_server *server);
/* Open connections now. */
unsigned okv_http_server_connections(const struct okv_http_server *server);

/*
 * Stops accepting and closes idle connections. Running exchanges go on until deadline_ns (absolute); then the rest are
 * told of a hang-up. `drained` is called once on the loop, when no connection is left, and may destroy the server.
 * Until then another call moves the deadline.
 */
void okv_http_server_shutdown(struct okv_http_server *server, uint64_t deadline_ns, void (*drained)(void *context),
			      void *context);

/* Closes everything at once. Open exchanges are told of a hang-up and must end in that callback. NULL is harmless. */
void okv_http_server_destroy(struct okv_http_server *server);

const struct okv_http_request *okv_http_exchange_request(const struct okv_http_exchange *exchange);
/* A request header, name compared without case; NULL if absent. */
const char *okv_http_exchange_header(const struct okv_http_exchange *exchange, const char *name);
/* Adds a header to the answer, before it starts; name and value are ours, never a client's. */
void okv_http_exchange_add_header(struct okv_http_exchange *exchange, const char *name, const char *value);

/* `gone` is called at most once, on the loop, never from inside a call of the owner on this exchange (also not from a
 * write that fails). It may end the exchange; else its owner still has to. */
void okv_http_on_hangup(struct okv_http_exchange *exchange, void (*gone)(void *context), void *context);

/* Ends the exchange with a whole answer. Bytes are copied. */
void okv_http_respond(struct okv_http_exchange *exchange, unsigned http_status, const char *content_type,
		      const void *body, size_t body_size);
/* Ends the exchange with okv_http_error_body(). */
void okv_http_respond_error(struct okv_http_exchange *exchange, unsigned http_status, const char *message,
			    const char *type, const char *param, const char *code);

void okv_http_stream_start(struct okv_http_exchange *exchange, unsigned http_status, const char *content_type);
/* Bytes are copied and sent as the client reads. */
void okv_http_stream_write(struct okv_http_exchange *exchange, const void *bytes, size_t size);
void okv_http_stream_end(struct okv_http_exchange *exchange);
/* Ends the exchange by dropping the connection, so that the client sees a cut answer and not a complete one. */
void okv_http_abort(struct okv_http_exchange *exchange);

/* Bytes of the answer that the client's socket has not taken yet; 0 once it hung up. */
size_t okv_http_pending_bytes(const struct okv_http_exchange *exchange);

#endif
