#include "http_internal.h"

#include <inttypes.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <unistd.h>

#include <event2/buffer.h>
#include <event2/bufferevent.h>
#include <event2/event.h>

#include "loop_internal.h"

enum {
	INPUT_BYTES_MAX = 2 * OKV_HTTP_HEAD_BYTES_MAX, /* H3; must hold a whole head */
	LINGER_MS = 2000, /* for the client to read the answer to a request that we did not read to its end */
};

/* ---- states ---- */

static uint64_t now_ns(const struct okv_http_exchange *exchange)
{
	return okv_loop_now_ns(exchange->server->loop);
}

static void start_timer(struct okv_http_exchange *exchange, uint64_t wait_ns)
{
	okv_timer_start(&exchange->timer, now_ns(exchange) + wait_ns);
}

static void drop_stream(struct okv_http_exchange *exchange)
{
	if (exchange->stream)
		bufferevent_free(exchange->stream);
	exchange->stream = NULL;
}

/* H2: the timer frees it. */
static void die(struct okv_http_exchange *exchange)
{
	drop_stream(exchange);
	exchange->state = OKV__HTTP_DEAD;
	start_timer(exchange, 0);
}

static void hang_up(struct okv_http_exchange *exchange)
{
	drop_stream(exchange);
	okv_timer_stop(&exchange->timer);
	exchange->state = OKV__HTTP_GONE;
	if (exchange->gone)
		exchange->gone(exchange->gone_context);
}

static void await_request(struct okv_http_exchange *exchange)
{
	exchange->state = OKV__HTTP_HEAD;
	exchange->head_seen = 0;
	bufferevent_enable(exchange->stream, EV_READ);
	start_timer(exchange, exchange->server->options.idle_ns);
}

/* The answer is queued; what comes next is decided when the socket has taken it. */
static void flush(struct okv_http_exchange *exchange)
{
	exchange->state = OKV__HTTP_FLUSHING;
	start_timer(exchange, okv_http_pending_bytes(exchange) ? exchange->server->options.stall_ns : 0);
}

static void linger(struct okv_http_exchange *exchange)
{
	exchange->state = OKV__HTTP_LINGERING;
	bufferevent_enable(exchange->stream, EV_READ);
	shutdown(bufferevent_getfd(exchange->stream), SHUT_WR);
	start_timer(exchange, LINGER_MS * OKV_NS_PER_MS);
}

/* ---- answers ---- */

static void queue(struct okv_http_exchange *exchange, const void *bytes, size_t size)
{
	if (!exchange->stream || size == 0)
		return;
	exchange->queued_bytes += size;
	if (bufferevent_write(exchange->stream, bytes, size) == 0)
		return;
	/* No memory. A cut answer must not look whole, so the connection goes; on_timer() tells the owner. */
	drop_stream(exchange);
	start_timer(exchange, 0);
}

static void queue_head(struct okv_http_exchange *exchange, unsigned http_status, const char *content_type,
		       const char *framing)
{
	struct okv_buf head = {0};

	OKV_ASSERT(!exchange->is_started);
	exchange->is_started = true;
	okv_buf_print(&head, "HTTP/1.1 %u %s\r\nContent-Type: %s\r\n%s%sConnection: %s\r\n\r\n", http_status,
		      okv_http_status_text(http_status), content_type, framing,
		      exchange->answer_headers.data ? exchange->answer_headers.data : "",
		      exchange->keep_alive ? "keep-alive" : "close");
	queue(exchange, head.data, head.size);
	okv_buf_done(&head);
}

static void queue_answer(struct okv_http_exchange *exchange, unsigned http_status, const char *content_type,
			 const void *body, size_t body_size)
{
	char framing[48];

	snprintf(framing, sizeof(framing), "Content-Length: %zu\r\n", body_size);
	queue_head(exchange, http_status, content_type, framing);
	if (!exchange->omits_body)
		queue(exchange, body, body_size);
}

static void queue_error(struct okv_http_exchange *exchange, unsigned http_status, const char *message, const char *type,
			const char *param, const char *code)
{
	struct okv_buf body = {0};

	okv_http_error_body(&body, message, type, param, code);
	queue_answer(exchange, http_status, "application/json", body.data, body.size);
	okv_buf_done(&body);
}

/* The server's own answer to a request that the handler never sees. Where the next one would start is unknown. */
static void refuse_request(struct okv_http_exchange *exchange, unsigned http_status, const char *message)
{
	exchange->keep_alive = false;
	queue_error(exchange, http_status, message,
		    http_status >= 500 && http_status != 501 ? "server_error" : "invalid_request_error", NULL, NULL);
	flush(exchange);
}

/* The owner has ended the exchange. */
static void finish(struct okv_http_exchange *exchange)
{
	exchange->server->exchanges--;
	exchange->gone = NULL;
	if (exchange->stream)
		flush(exchange);
	else
		die(exchange);
}

static bool is_owned(const struct okv_http_exchange *exchange)
{
	return exchange->state == OKV__HTTP_ANSWERING || exchange->state == OKV__HTTP_GONE;
}

void okv_http_respond(struct okv_http_exchange *exchange, unsigned http_status, const char *content_type,
		      const void *body, size_t body_size)
{
	OKV_ASSERT(is_owned(exchange));
	queue_answer(exchange, http_status, content_type, body, body_size);
	finish(exchange);
}

void okv_http_respond_error(struct okv_http_exchange *exchange, unsigned http_status, const char *message,
			    const char *type, const char *param, const char *code)
{
	OKV_ASSERT(is_owned(exchange));
	queue_error(exchange, http_status, message, type, param, code);
	finish(exchange);
}

void okv_http_stream_start(struct okv_http_exchange *exchange, unsigned http_status, const char *content_type)
{
	OKV_ASSERT(is_owned(exchange));
	exchange->is_streaming_chunks = !exchange->head.is_http_1_0;
	if (!exchange->is_streaming_chunks)
		exchange->keep_alive = false; /* the end of the connection is the end of the body */
	queue_head(exchange, http_status, content_type,
		   exchange->is_streaming_chunks ? "Transfer-Encoding: chunked\r\n" : "");
}

void okv_http_stream_write(struct okv_http_exchange *exchange, const void *bytes, size_t size)
{
	char chunk_size[24];

	OKV_ASSERT(is_owned(exchange) && exchange->is_started);
	if (size == 0 || exchange->omits_body) /* an empty chunk would end the body */
		return;
	if (exchange->is_streaming_chunks) {
		snprintf(chunk_size, sizeof(chunk_size), "%zx\r\n", size);
		queue(exchange, chunk_size, strlen(chunk_size));
	}
	queue(exchange, bytes, size);
	if (exchange->is_streaming_chunks)
		queue(exchange, "\r\n", 2);
	if (exchange->stream && !okv_timer_is_running(&exchange->timer))
		start_timer(exchange, exchange->server->options.stall_ns);
}

void okv_http_stream_end(struct okv_http_exchange *exchange)
{
	OKV_ASSERT(is_owned(exchange) && exchange->is_started);
	if (exchange->is_streaming_chunks && !exchange->omits_body)
		queue(exchange, "0\r\n\r\n", 5);
	finish(exchange);
}

void okv_http_abort(struct okv_http_exchange *exchange)
{
	OKV_ASSERT(is_owned(exchange));
	drop_stream(exchange);
	finish(exchange);
}

void okv_http_exchange_add_header(struct okv_http_exchange *exchange, const char *name, const char *value)
{
	OKV_ASSERT(!exchange->is_started);
	okv_buf_print(&exchange->answer_headers, "%s: %s\r\n", name, value);
}

void okv_http_on_hangup(struct okv_http_exchange *exchange, void (*gone)(void *context), void *context)
{
	exchange->gone = gone;
	exchange->gone_context = context;
}

size_t okv_http_pending_bytes(const struct okv_http_exchange *exchange)
{
	return exchange->stream ? evbuffer_get_length(bufferevent_get_output(exchange->stream)) : 0;
}

const struct okv_http_request *okv_http_exchange_request(const struct okv_http_exchange *exchange)
{
	return &exchange->request;
}

const char *okv_http_exchange_header(const struct okv_http_exchange *exchange, const char *name)
{
	return okv_http_find_header(&exchange->head, name);
}

/* ---- requests ---- */

static void dispatch(struct okv_http_exchange *exchange)
{
	struct okv_http_server *server = exchange->server;

	if (exchange->head_bytes.failed || exchange->body.failed) {
		refuse_request(exchange, 503, "no memory for the request; try again later");
		return;
	}
	exchange->request = (struct okv_http_request){
		.method = exchange->head.method,
		.path = exchange->head.path,
		.query = exchange->head.query,
		.body = exchange->body.data ? exchange->body.data : "",
		.body_size = exchange->body.size,
	};
	exchange->state = OKV__HTTP_ANSWERING;
	okv_timer_stop(&exchange->timer);
	exchange->keep_alive = exchange->head.keep_alive && !server->is_shutting_down;
	server->exchanges++;
	server->options.handle(server->options.context, exchange);
}

static void begin_body(struct okv_http_exchange *exchange)
{
	const char proceed[] = "HTTP/1.1 100 Continue\r\n\r\n";

	if (exchange->head.content_length > exchange->server->options.body_bytes_max) {
		char message[96];

		snprintf(message, sizeof(message), "the body of %" PRIu64 " bytes is longer than the %zu allowed",
			 exchange->head.content_length, exchange->server->options.body_bytes_max);
		refuse_request(exchange, 413, message);
		return;
	}
	if (exchange->head.expects_continue)
		queue(exchange, proceed, sizeof(proceed) - 1);
	exchange->state = OKV__HTTP_BODY;
	exchange->body_seen = 0;
	start_timer(exchange, exchange->server->options.stall_ns);
}

/* False if more input is needed. */
static bool read_head(struct okv_http_exchange *exchange, struct evbuffer *input)
{
	size_t size = evbuffer_get_length(input), head_size;
	struct okv_reason reason;
	unsigned http_status;

	if (size == 0)
		return false;
	if (size > OKV_HTTP_HEAD_BYTES_MAX)
		size = OKV_HTTP_HEAD_BYTES_MAX;
	if (exchange->head_seen == 0)
		start_timer(exchange, exchange->server->options.stall_ns); /* for the whole head, however it drips */
	head_size = okv_http_head_size(evbuffer_pullup(input, (ev_ssize_t)size), size, exchange->head_seen);
	if (head_size == 0) {
		exchange->head_seen = size;
		if (size == OKV_HTTP_HEAD_BYTES_MAX)
			refuse_request(exchange, 431, "request line and headers are longer than 64 KiB");
		return false;
	}

	okv_buf_append(&exchange->head_bytes, evbuffer_pullup(input, (ev_ssize_t)head_size), head_size);
	evbuffer_drain(input, head_size);
	if (exchange->head_bytes.failed) {
		refuse_request(exchange, 503, "no memory for the request; try again later");
		return false;
	}
	if (okv_http_read_head(exchange->head_bytes.data, head_size, &exchange->head, &http_status, &reason) !=
	    OKV_OK) {
		refuse_request(exchange, http_status, reason.text);
		return false;
	}
	exchange->omits_body = strcmp(exchange->head.method, "HEAD") == 0;
	begin_body(exchange);
	return true;
}

static bool body_is_whole(const struct okv_http_exchange *exchange)
{
	return exchange->head.is_chunked ? exchange->chunked.is_done
					 : exchange->body.size >= exchange->head.content_length;
}

/* Takes one contiguous piece of the input. */
static enum okv_status read_body_piece(struct okv_http_exchange *exchange, struct evbuffer *input,
				       struct okv_reason *reason)
{
	size_t size = evbuffer_get_contiguous_space(input);
	const unsigned char *bytes = evbuffer_pullup(input, (ev_ssize_t)size);
	enum okv_status status = OKV_OK;

	if (exchange->head.is_chunked) {
		size_t used = size;

		status =
			okv_http_chunked_feed(&exchange->chunked, bytes, size, exchange->server->options.body_bytes_max,
					      &exchange->body, &used, reason);
		size = used;
	} else {
		uint64_t left = exchange->head.content_length - exchange->body.size;

		size = size < left ? size : (size_t)left;
		okv_buf_append(&exchange->body, bytes, size);
	}
	evbuffer_drain(input, size);
	return status;
}

/* False if more input is needed, or the request is refused. */
static bool read_body(struct okv_http_exchange *exchange, struct evbuffer *input)
{
	struct okv_reason reason;

	while (!body_is_whole(exchange)) {
		if (evbuffer_get_length(input) == 0)
			return false;
		enum okv_status status = read_body_piece(exchange, input, &reason);
		if (status != OKV_OK) {
			refuse_request(exchange, status == OKV_ERR_BUDGET ? 413 : 400, reason.text);
			return false;
		}
		if (exchange->body.failed) /* its size would stand still */
			break;
	}
	dispatch(exchange);
	return true;
}

static void forget_request(struct okv_http_exchange *exchange)
{
	okv_buf_done(&exchange->head_bytes);
	okv_buf_done(&exchange->body);
	okv_buf_done(&exchange->answer_headers);
	exchange->head = (struct okv_http_head){0};
	exchange->chunked = (struct okv_http_chunked){0};
	exchange->request = (struct okv_http_request){0};
	exchange->is_started = exchange->is_streaming_chunks = exchange->omits_body = false;
}

static void read_requests(struct okv_http_exchange *exchange)
{
	bool goes_on = true;

	while (goes_on && exchange->stream) {
		struct evbuffer *input = bufferevent_get_input(exchange->stream);

		if (exchange->state == OKV__HTTP_HEAD)
			goes_on = read_head(exchange, input);
		else if (exchange->state == OKV__HTTP_BODY)
			goes_on = read_body(exchange, input);
		else
			goes_on = false;
	}
}

/* ---- events ---- */

static void on_flushed(struct okv_http_exchange *exchange)
{
	if (exchange->saw_end) {
		die(exchange);
	} else if (exchange->keep_alive && !exchange->server->is_shutting_down) {
		forget_request(exchange);
		await_request(exchange);
		read_requests(exchange);
	} else {
		linger(exchange);
	}
}

static void on_read(struct bufferevent *stream, void *context)
{
	struct okv_http_exchange *exchange = context;

	if (exchange->state == OKV__HTTP_LINGERING)
		evbuffer_drain(bufferevent_get_input(stream), SIZE_MAX);
	else
		read_requests(exchange);
	/* H3. Not by libevent's read watermark: while that is reached, it calls us again and again within one turn. */
	if (exchange->stream && evbuffer_get_length(bufferevent_get_input(stream)) >= INPUT_BYTES_MAX)
		bufferevent_disable(stream, EV_READ);
}

static void on_written(struct bufferevent *stream, void *context)
{
	struct okv_http_exchange *exchange = context;

	(void)stream;
	if (exchange->state == OKV__HTTP_FLUSHING && okv_http_pending_bytes(exchange) == 0)
		on_flushed(exchange);
}

static void on_event(struct bufferevent *stream, short what, void *context)
{
	struct okv_http_exchange *exchange = context;

	(void)stream;
	if (exchange->state == OKV__HTTP_ANSWERING)
		hang_up(exchange);
	else if (exchange->state == OKV__HTTP_FLUSHING && !(what & BEV_EVENT_ERROR))
		exchange->saw_end = true; /* it sends no more, but may still read */
	else
		die(exchange);
}

/* Nothing has moved since the last look, although something could. */
static bool is_stalled(struct okv_http_exchange *exchange)
{
	uint64_t moved_bytes = exchange->queued_bytes - okv_http_pending_bytes(exchange);
	bool is_stalled = moved_bytes == exchange->moved_bytes;

	exchange->moved_bytes = moved_bytes;
	return is_stalled;
}

static void on_sending_timer(struct okv_http_exchange *exchange)
{
	bool is_answering = exchange->state == OKV__HTTP_ANSWERING;
	bool is_idle = exchange->stream && okv_http_pending_bytes(exchange) == 0;

	if (is_idle && is_answering)
		return; /* waits for its owner; the next write starts the timer again */
	if (is_idle)
		on_flushed(exchange);
	else if (exchange->stream && !is_stalled(exchange))
		start_timer(exchange, exchange->server->options.stall_ns);
	else if (is_answering)
		hang_up(exchange);
	else
		die(exchange);
}

/* A body gains time by so much that came since, not by a byte now and then. */
static void on_body_timer(struct okv_http_exchange *exchange)
{
	enum { GAIN_BYTES = 16 << 10 };

	if (exchange->body.size - exchange->body_seen < GAIN_BYTES) {
		refuse_request(exchange, 408, "the request did not arrive in time");
		return;
	}
	exchange->body_seen = exchange->body.size;
	start_timer(exchange, exchange->server->options.stall_ns);
}

static void on_timer(void *context)
{
	struct okv_http_exchange *exchange = context;
	struct okv_http_server *server = exchange->server;

	switch (exchange->state) {
	case OKV__HTTP_HEAD:
		if (exchange->head_seen > 0)
			refuse_request(exchange, 408, "the request did not arrive in time");
		else
			die(exchange);
		break;
	case OKV__HTTP_BODY:
		on_body_timer(exchange);
		break;
	case OKV__HTTP_ANSWERING:
	case OKV__HTTP_FLUSHING:
		on_sending_timer(exchange);
		break;
	case OKV__HTTP_LINGERING:
		die(exchange);
		break;
	case OKV__HTTP_GONE:
		break;
	case OKV__HTTP_DEAD:
		okv__http_connection_destroy(exchange);
		okv__http_server_lost_connection(server);
		break;
	}
}

/* ---- life ---- */

void okv__http_connection_open(struct okv_http_server *server, int fd)
{
	struct okv_http_exchange *exchange = calloc(1, sizeof(*exchange));
	int on = 1;

	if (!exchange) {
		close(fd);
		return;
	}
	/* Tokens are small and each one is waited for. Not every socket has the option, and none needs it. */
	(void)setsockopt(fd, IPPROTO_TCP, TCP_NODELAY, &on, sizeof(on));
	exchange->stream = bufferevent_socket_new(okv__loop_base(server->loop), fd, BEV_OPT_CLOSE_ON_FREE);
	if (!exchange->stream) {
		close(fd);
		free(exchange);
		return;
	}
	exchange->server = server;
	okv_timer_init(&exchange->timer, server->loop, on_timer, exchange);
	okv_list_push_back(&server->connections, &exchange->node);
	server->connection_count++;
	bufferevent_setcb(exchange->stream, on_read, on_written, on_event, exchange);
	await_request(exchange);
	if (bufferevent_enable(exchange->stream, EV_READ | EV_WRITE) != 0) {
		die(exchange);
	} else if (server->connection_count > server->options.connections_max) {
		okv_http_exchange_add_header(exchange, "Retry-After", "1");
		refuse_request(exchange, 503, "too many connections; try again later");
	}
}

void okv__http_connection_destroy(struct okv_http_exchange *exchange)
{
	okv_list_remove(&exchange->node);
	exchange->server->connection_count--;
	okv_timer_stop(&exchange->timer);
	drop_stream(exchange);
	forget_request(exchange);
	free(exchange);
}

void okv__http_connection_retire(struct okv_http_exchange *exchange, bool force)
{
	bool is_idle = exchange->state == OKV__HTTP_HEAD && exchange->head_seen == 0;

	if (exchange->state == OKV__HTTP_GONE || exchange->state == OKV__HTTP_DEAD)
		return;
	exchange->keep_alive = false;
	if (force && exchange->state == OKV__HTTP_ANSWERING)
		hang_up(exchange);
	else if (force || is_idle)
		die(exchange);
}
