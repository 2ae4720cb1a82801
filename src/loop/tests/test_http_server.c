/*
 * The HTTP server against a raw socket client in the same thread: the loop is turned until what is expected has
 * happened, and its clock is moved by hand.
 */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <string.h>

#include <cmocka.h>

#include <stdio.h>
#include <stdlib.h>
#include <sys/socket.h>

#include "okv/base/buf.h"
#include "okv/loop/http_server.h"

#include "http_client.h"

enum { BODY_BYTES_MAX = 40000, CONNECTIONS_MAX = 4, TURNS_MAX = 20000 };

struct fixture {
	uint64_t now_ns;
	struct okv_loop *loop;
	struct okv_http_server *server;
	unsigned handled, hangups, drains;
	struct okv_http_exchange *open; /* of the paths that answer later */
	struct okv_buf last_body;
};

static void on_gone(void *context)
{
	struct fixture *fixture = context;

	fixture->hangups++;
}

static void on_gone_abort(void *context)
{
	struct fixture *fixture = context;

	fixture->hangups++;
	okv_http_abort(fixture->open);
	fixture->open = NULL;
}

/* What the server does is chosen by the path. */
static void handle(void *context, struct okv_http_exchange *exchange)
{
	struct fixture *fixture = context;
	const struct okv_http_request *request = okv_http_exchange_request(exchange);

	fixture->handled++;
	okv_buf_clear(&fixture->last_body);
	okv_buf_append(&fixture->last_body, request->body, request->body_size);
	if (strcmp(request->path, "/echo") == 0) {
		okv_http_exchange_add_header(exchange, "X-Query", request->query);
		okv_http_respond(exchange, 200, "text/plain", request->body, request->body_size);
	} else if (strcmp(request->path, "/later") == 0 || strcmp(request->path, "/stream") == 0) {
		fixture->open = exchange;
		okv_http_on_hangup(exchange, on_gone, fixture);
		if (request->path[1] == 's')
			okv_http_stream_start(exchange, 200, "text/event-stream");
	} else if (strcmp(request->path, "/abort") == 0) {
		okv_http_abort(exchange);
	} else {
		okv_http_respond_error(exchange, 404, "no such path", "invalid_request_error", NULL, NULL);
	}
}

static int open_server(void **state)
{
	struct fixture *fixture = calloc(1, sizeof(*fixture));
	struct okv_reason reason;
	struct okv_http_options options = {
		.address = "127.0.0.1",
		.body_bytes_max = BODY_BYTES_MAX,
		.connections_max = CONNECTIONS_MAX,
		.handle = handle,
		.context = fixture,
	};

	*state = fixture;
	if (!fixture || okv_loop_create(okv_clock_virtual(&fixture->now_ns), &fixture->loop, &reason) != OKV_OK)
		return -1;
	return okv_http_server_create(fixture->loop, &options, &fixture->server, &reason) == OKV_OK ? 0 : -1;
}

static int close_server(void **state)
{
	struct fixture *fixture = *state;

	okv_http_server_destroy(fixture->server);
	okv_loop_destroy(fixture->loop);
	okv_buf_done(&fixture->last_body);
	free(fixture);
	return 0;
}

/* ---- the client ---- */

static struct http_client connected(struct fixture *fixture)
{
	return http_client_connect(fixture->loop, okv_http_server_port(fixture->server));
}

static void await(struct http_client *client, const char *text)
{
	if (!http_client_await(client, text))
		fail_msg("never came: %s; got: %s", text ? text : "(the end)", client->got.data);
}

static void await_count(struct fixture *fixture, const unsigned *count, unsigned value)
{
	for (int turn = 0; turn < TURNS_MAX && *count != value; turn++)
		okv_loop_turn(fixture->loop);
	assert_int_equal(*count, value);
}

static void await_connections(struct fixture *fixture, unsigned count)
{
	for (int turn = 0; turn < TURNS_MAX && okv_http_server_connections(fixture->server) != count; turn++)
		okv_loop_turn(fixture->loop);
	assert_int_equal(okv_http_server_connections(fixture->server), count);
}

static void expect_only_answer(struct fixture *fixture, const char *request, size_t size, const char *status_line)
{
	struct http_client client = connected(fixture);

	http_client_send(&client, request, size);
	await(&client, NULL);
	if (!client.got.data || strncmp(client.got.data, status_line, strlen(status_line)) != 0)
		fail_msg("expected %s, got %s", status_line, client.got.data);
	http_client_done(&client);
	await_connections(fixture, 0);
}

/* ---- tests ---- */

static void requests_on_one_connection_are_answered_in_turn(void **state)
{
	struct fixture *fixture = *state;
	struct http_client client = connected(fixture);

	http_client_send_text(&client, "POST /echo?a=1 HTTP/1.1\r\nHost: h\r\nContent-Length: 5\r\n\r\nhello"
				       "POST /echo HTTP/1.1\r\nHost: h\r\nTransfer-Encoding: chunked\r\n\r\n"
				       "3\r\nabc\r\n4\r\ndefg\r\n0\r\n\r\nGET /none HTTP/1.1\r\nHost: h\r\n\r\n");
	await(&client, "no such path");
	assert_int_equal(fixture->handled, 3);
	assert_non_null(strstr(client.got.data, "HTTP/1.1 200 OK\r\nContent-Type: text/plain\r\nContent-Length: 5\r\n"
						"X-Query: a=1\r\nConnection: keep-alive\r\n\r\nhelloHTTP/1.1 200"));
	assert_non_null(strstr(client.got.data, "\r\n\r\nabcdefgHTTP/1.1 404 Not Found\r\n"));
	assert_false(client.ended);
	http_client_done(&client);
	await_connections(fixture, 0);
	assert_int_equal(fixture->hangups, 0);
}

static void a_request_may_arrive_byte_by_byte(void **state)
{
	struct fixture *fixture = *state;
	struct http_client client = connected(fixture);
	const char text[] = "POST /echo HTTP/1.1\r\nHost: h\r\nContent-Length: 3\r\nConnection: close\r\n\r\nxyz";

	for (size_t i = 0; i < sizeof(text) - 1; i++)
		http_client_send(&client, text + i, 1);
	await(&client, NULL);
	assert_non_null(strstr(client.got.data, "Connection: close\r\n\r\nxyz"));
	http_client_done(&client);
}

static void http_1_0_and_head_are_answered_their_way(void **state)
{
	struct fixture *fixture = *state;
	struct http_client client = connected(fixture);

	http_client_send_text(&client, "HEAD /none HTTP/1.1\r\nHost: h\r\n\r\nGET /stream HTTP/1.0\r\n\r\n");
	await(&client, "text/event-stream\r\nConnection: close\r\n\r\n");
	assert_null(strstr(client.got.data, "no such path"));
	okv_http_stream_write(fixture->open, "whole", 5);
	okv_http_stream_end(fixture->open);
	await(&client, NULL);
	assert_string_equal(strstr(client.got.data, "close\r\n\r\n"), "close\r\n\r\nwhole");
	http_client_done(&client);
}

static void a_client_that_waits_to_send_is_told_to_continue(void **state)
{
	struct fixture *fixture = *state;
	struct http_client client = connected(fixture);

	http_client_send_text(&client,
			      "POST /echo HTTP/1.1\r\nHost: h\r\nContent-Length: 2\r\nExpect: 100-continue\r\n\r\n");
	await(&client, "HTTP/1.1 100 Continue\r\n\r\n");
	http_client_send_text(&client, "ok");
	await(&client, "keep-alive\r\n\r\nok");
	http_client_done(&client);
}

static void a_stream_arrives_in_chunks_and_the_connection_goes_on(void **state)
{
	struct fixture *fixture = *state;
	struct http_client client = connected(fixture);

	http_client_send_text(&client, "GET /stream HTTP/1.1\r\nHost: h\r\n\r\n");
	await(&client, "Transfer-Encoding: chunked\r\n");
	okv_http_stream_write(fixture->open, "0123456789abcdefXYZ", 19);
	await(&client, "13\r\n0123456789abcdefXYZ\r\n");
	assert_int_equal(okv_http_pending_bytes(fixture->open), 0);
	okv_http_stream_write(fixture->open, "", 0);
	okv_http_stream_end(fixture->open);
	await(&client, "\r\n0\r\n\r\n");
	http_client_send_text(&client, "GET /none HTTP/1.1\r\nHost: h\r\n\r\n");
	await(&client, "no such path");
	assert_int_equal(fixture->hangups, 0);
	http_client_done(&client);
}

static void a_hangup_is_reported_while_nothing_is_being_written(void **state)
{
	struct fixture *fixture = *state;
	struct http_client client = connected(fixture);

	http_client_send_text(&client, "GET /later HTTP/1.1\r\nHost: h\r\n\r\n");
	await_count(fixture, &fixture->handled, 1);
	http_client_done(&client);
	await_count(fixture, &fixture->hangups, 1);
	assert_int_equal(okv_http_server_connections(fixture->server), 1); /* its owner has not ended it */
	okv_http_respond(fixture->open, 200, "text/plain", "x", 1);
	await_connections(fixture, 0);
}

static void a_hangup_is_reported_in_the_middle_of_a_stream(void **state)
{
	struct fixture *fixture = *state;
	struct http_client client = connected(fixture);

	http_client_send_text(&client, "GET /stream HTTP/1.1\r\nHost: h\r\n\r\n");
	await(&client, "chunked");
	okv_http_on_hangup(fixture->open, on_gone_abort, fixture);
	okv_http_stream_write(fixture->open, "more", 4);
	await(&client, "more");
	okv_http_stream_write(fixture->open, "unread", 6); /* so that the client's close is a reset */
	okv_loop_turn(fixture->loop);
	http_client_done(&client);
	await_count(fixture, &fixture->hangups, 1);
	await_connections(fixture, 0);
}

static void a_hangup_is_reported_although_the_client_sent_another_request(void **state)
{
	struct fixture *fixture = *state;
	struct http_client client = connected(fixture);

	http_client_send_text(&client, "GET /stream HTTP/1.1\r\nHost: h\r\n\r\nGET /none HTTP/1.1\r\nHost: h\r\n\r\n");
	await(&client, "chunked");
	okv_http_on_hangup(fixture->open, on_gone_abort, fixture);
	http_client_done(&client);
	await_count(fixture, &fixture->hangups, 1);
	await_connections(fixture, 0);
	assert_int_equal(fixture->handled, 1);
}

static void a_client_that_does_not_read_is_seen_and_given_up(void **state)
{
	struct fixture *fixture = *state;
	struct http_client client = connected(fixture);
	static char bytes[1 << 20];
	size_t pending = 0;

	http_client_send_text(&client, "GET /stream HTTP/1.1\r\nHost: h\r\n\r\n");
	await(&client, "chunked");
	for (int i = 0; i < 16; i++)
		okv_http_stream_write(fixture->open, bytes, sizeof(bytes));
	do { /* until the socket takes no more */
		pending = okv_http_pending_bytes(fixture->open);
		okv_loop_turn(fixture->loop);
	} while (okv_http_pending_bytes(fixture->open) < pending);
	assert_true(pending > 0);
	for (int i = 0; i < 2; i++) {
		assert_int_equal(fixture->hangups, 0);
		fixture->now_ns += 30 * OKV_NS_PER_S;
		okv_loop_turn(fixture->loop);
	}
	assert_int_equal(fixture->hangups, 1);
	assert_int_equal(okv_http_pending_bytes(fixture->open), 0);
	okv_http_stream_end(fixture->open);
	await_connections(fixture, 0);
	http_client_done(&client);
}

static void an_abort_cuts_the_answer(void **state)
{
	struct fixture *fixture = *state;
	struct http_client client = connected(fixture);

	http_client_send_text(&client, "GET /abort HTTP/1.1\r\nHost: h\r\n\r\n");
	await(&client, NULL);
	assert_int_equal(client.got.size, 0);
	await_connections(fixture, 0);
	http_client_done(&client);
}

static void malformed_and_oversized_requests_are_refused(void **state)
{
	struct fixture *fixture = *state;
	static const char *const cases[][2] = {
		{"nonsense\r\n\r\n", "HTTP/1.1 400 Bad Request\r\n"},
		{"GET / HTTP/1.1\r\nHost: h\r\nContent-Length: x\r\n\r\n", "HTTP/1.1 400 "},
		{"GET / HTTP/3.0\r\nHost: h\r\n\r\n", "HTTP/1.1 505 "},
		{"POST / HTTP/1.1\r\nHost: h\r\nContent-Length: 40001\r\n\r\n", "HTTP/1.1 413 Content Too Large\r\n"},
		{"POST / HTTP/1.1\r\nHost: h\r\nTransfer-Encoding: chunked\r\n\r\n9c41\r\n", "HTTP/1.1 413 "},
		{"POST / HTTP/1.1\r\nHost: h\r\nTransfer-Encoding: chunked\r\n\r\nzz\r\n", "HTTP/1.1 400 "},
		{"POST / HTTP/1.1\r\nHost: h\r\nTransfer-Encoding: br\r\n\r\n", "HTTP/1.1 501 "},
	};

	for (size_t i = 0; i < sizeof(cases) / sizeof(cases[0]); i++)
		expect_only_answer(fixture, cases[i][0], strlen(cases[i][0]), cases[i][1]);
	assert_int_equal(fixture->handled, 0);
}

static void a_head_of_more_than_64_kib_is_refused(void **state)
{
	struct fixture *fixture = *state;
	struct okv_buf text = {0};

	okv_buf_text(&text, "GET / HTTP/1.1\r\nHost: h\r\nX: ");
	for (int i = 0; i < 70000; i++)
		okv_buf_text(&text, "a");
	expect_only_answer(fixture, text.data, text.size, "HTTP/1.1 431 ");
	okv_buf_done(&text);
}

static void a_refused_body_may_go_on_being_sent_and_the_answer_is_still_read(void **state)
{
	struct fixture *fixture = *state;
	struct okv_buf text = {0};

	okv_buf_text(&text, "POST /echo HTTP/1.1\r\nHost: h\r\nContent-Length: 900000\r\n\r\n");
	for (int i = 0; i < 90000; i++)
		okv_buf_text(&text, "0123456789");
	struct http_client client = connected(fixture);
	http_client_send(&client, text.data, text.size);
	await(&client, "the body of 900000 bytes is longer than the 40000 allowed");
	fixture->now_ns += 3 * OKV_NS_PER_S;
	await_connections(fixture, 0);
	http_client_done(&client);
	okv_buf_done(&text);
}

static void slow_requests_time_out_and_idle_connections_are_closed(void **state)
{
	struct fixture *fixture = *state;
	struct http_client idle = connected(fixture), head = connected(fixture), body = connected(fixture);

	http_client_send_text(&head, "GET / HT");
	http_client_send_text(&body, "POST / HTTP/1.1\r\nHost: h\r\nContent-Length: 5\r\n\r\nab");
	await_connections(fixture, 3);
	fixture->now_ns += 20 * OKV_NS_PER_S;
	http_client_send_text(&head, "TP/1.1\r\n"); /* a dripping head gains no time */
	http_client_send_text(&body, "c");	    /* nor does a dripping body */
	fixture->now_ns += 11 * OKV_NS_PER_S;
	await(&head, "HTTP/1.1 408 Request Timeout\r\n");
	await(&body, "HTTP/1.1 408 ");
	assert_false(idle.ended);
	fixture->now_ns += 50 * OKV_NS_PER_S;
	await(&idle, NULL);
	assert_int_equal(idle.got.size, 0);
	http_client_done(&head);
	http_client_done(&body);
	http_client_done(&idle);
	await_connections(fixture, 0);
}

/* More than a client may take, after what was sent has come. */
static void let_time_pass(struct fixture *fixture)
{
	for (int turn = 0; turn < 400; turn++) {
		okv_loop_turn(fixture->loop);
		if (turn == 200)
			fixture->now_ns += 31 * OKV_NS_PER_S;
	}
}

static void a_large_body_may_take_its_time_as_long_as_it_goes_on(void **state)
{
	struct fixture *fixture = *state;
	struct http_client client = connected(fixture);
	static char part[18000];

	memset(part, 'x', sizeof(part));
	http_client_send_text(&client, "POST /echo HTTP/1.1\r\nHost: h\r\nContent-Length: 36003\r\n\r\n");
	for (int i = 0; i < 2; i++) {
		http_client_send(&client, part, sizeof(part));
		let_time_pass(fixture);
		assert_int_equal(client.got.size, 0);
	}
	http_client_send_text(&client, "end");
	await(&client, "xend");
	http_client_done(&client);
}

static void a_body_that_stops_later_or_on_a_used_connection_times_out_too(void **state)
{
	struct fixture *fixture = *state;
	struct http_client client = connected(fixture), other = connected(fixture);
	static char part[18000];

	memset(part, 'x', sizeof(part));
	http_client_send_text(&client, "POST /echo HTTP/1.1\r\nHost: h\r\nContent-Length: 36003\r\n\r\n");
	http_client_send_text(&other, "POST /echo HTTP/1.1\r\nHost: h\r\nContent-Length: 18002\r\n\r\n");
	http_client_send(&client, part, sizeof(part));
	http_client_send(&other, part, sizeof(part));
	let_time_pass(fixture);
	http_client_send(&client, part, sizeof(part) / 2); /* less than what gains time */
	http_client_send_text(&other, "!\n");
	await(&other, "x!\n");
	http_client_send_text(&other, "POST /echo HTTP/1.1\r\nHost: h\r\nContent-Length: 5\r\n\r\nab");
	let_time_pass(fixture);
	await(&client, "HTTP/1.1 408 ");
	await(&other, "HTTP/1.1 408 ");
	http_client_done(&client);
	http_client_done(&other);
}

static void connections_beyond_the_limit_are_told_to_come_back(void **state)
{
	struct fixture *fixture = *state;
	struct http_client clients[CONNECTIONS_MAX], more;

	for (int i = 0; i < CONNECTIONS_MAX; i++)
		clients[i] = connected(fixture);
	await_connections(fixture, CONNECTIONS_MAX);
	more = connected(fixture);
	http_client_send_text(&more, "GET /none HTTP/1.1\r\nHost: h\r\n\r\n");
	await(&more, NULL);
	assert_non_null(strstr(more.got.data, "HTTP/1.1 503 Service Unavailable\r\n"));
	assert_non_null(strstr(more.got.data, "Retry-After: 1\r\n"));
	assert_int_equal(fixture->handled, 0);
	http_client_done(&more);
	http_client_done(&clients[0]);
	await_connections(fixture, CONNECTIONS_MAX - 1);
	clients[0] = connected(fixture);
	http_client_send_text(&clients[0], "GET /none HTTP/1.1\r\nHost: h\r\n\r\n");
	await(&clients[0], "no such path");
	for (int i = 0; i < CONNECTIONS_MAX; i++)
		http_client_done(&clients[i]);
}

static void on_drained(void *context)
{
	struct fixture *fixture = context;

	fixture->drains++;
	okv_http_server_destroy(fixture->server);
	fixture->server = NULL;
}

/* H3. Sockets hold a few MiB of their own. */
static void what_is_sent_behind_a_running_request_is_left_in_the_socket(void **state)
{
	const size_t much = 64 << 20;
	struct fixture *fixture = *state;
	struct http_client busy = connected(fixture);
	char bytes[64 << 10];
	size_t total = 0;

	memset(bytes, 'x', sizeof(bytes));
	http_client_send_text(&busy, "GET /later HTTP/1.1\r\nHost: h\r\n\r\n");
	await_count(fixture, &fixture->handled, 1);
	for (int refused = 0; refused < 100 && total < much;) {
		ssize_t sent = send(busy.fd, bytes, sizeof(bytes), MSG_NOSIGNAL);

		refused = sent < 0 ? refused + 1 : 0;
		total += sent > 0 ? (size_t)sent : 0;
		okv_loop_turn(fixture->loop);
	}
	assert_true(total < much);
	okv_http_respond(fixture->open, 200, "text/plain", "", 0);
	http_client_done(&busy);
	await_connections(fixture, 0);
}

static void requests_left_in_the_socket_are_served_in_their_turn(void **state)
{
	enum { BEHIND = 8000 };
	struct fixture *fixture = *state;
	struct http_client busy = connected(fixture);
	struct okv_buf requests = {0};

	http_client_send_text(&busy, "GET /later HTTP/1.1\r\nHost: h\r\n\r\n");
	await_count(fixture, &fixture->handled, 1);
	for (int i = 1; i < BEHIND; i++)
		okv_buf_text(&requests, "GET /echo HTTP/1.1\r\nHost: h\r\n\r\n");
	okv_buf_text(&requests, "GET /echo HTTP/1.1\r\nHost: h\r\nConnection: close\r\n\r\n");
	http_client_send(&busy, requests.data, requests.size);
	okv_buf_done(&requests);
	for (int turn = 0; turn < 100; turn++)
		okv_loop_turn(fixture->loop);
	assert_int_equal(fixture->handled, 1);
	okv_http_respond(fixture->open, 200, "text/plain", "", 0);
	for (int i = 0; i < 20 && !busy.ended; i++) /* each waits a limited number of turns */
		(void)http_client_await(&busy, NULL);
	assert_int_equal(fixture->handled, 1 + BEHIND);
	http_client_done(&busy);
}

static void a_stream_to_http_1_0_ends_with_the_connection(void **state)
{
	struct fixture *fixture = *state;
	struct http_client old = connected(fixture);

	http_client_send_text(&old, "GET /stream HTTP/1.0\r\nConnection: keep-alive\r\n\r\n");
	await(&old, "Connection: close\r\n\r\n");
	okv_http_stream_write(fixture->open, "text", 4);
	okv_http_stream_end(fixture->open);
	await(&old, NULL);
	assert_null(strstr(old.got.data, "chunked"));
	assert_string_equal(strstr(old.got.data, "\r\n\r\n"), "\r\n\r\ntext");
	http_client_done(&old);
}

static void shutdown_waits_for_running_answers_only(void **state)
{
	struct fixture *fixture = *state;
	struct http_client idle = connected(fixture), busy = connected(fixture);

	http_client_send_text(&busy, "GET /stream HTTP/1.1\r\nHost: h\r\n\r\n");
	await(&busy, "chunked");
	okv_http_server_shutdown(fixture->server, 10 * OKV_NS_PER_S, on_drained, fixture);
	await(&idle, NULL);
	okv_http_stream_write(fixture->open, "last", 4);
	okv_http_stream_end(fixture->open);
	await(&busy, NULL);
	assert_non_null(strstr(busy.got.data, "last"));
	assert_int_equal(fixture->hangups, 0);
	http_client_done(&busy);
	await_count(fixture, &fixture->drains, 1);
	http_client_done(&idle);
}

static void shutdown_hangs_up_at_its_deadline(void **state)
{
	struct fixture *fixture = *state;
	struct http_client busy = connected(fixture);

	http_client_send_text(&busy, "GET /later HTTP/1.1\r\nHost: h\r\n\r\n");
	await_count(fixture, &fixture->handled, 1);
	okv_http_server_shutdown(fixture->server, 10 * OKV_NS_PER_S, on_drained, fixture);
	okv_loop_turn(fixture->loop);
	assert_int_equal(fixture->hangups, 0);
	fixture->now_ns = 10 * OKV_NS_PER_S;
	await_count(fixture, &fixture->hangups, 1);
	assert_int_equal(fixture->drains, 0); /* the owner still has to end it */
	okv_http_abort(fixture->open);
	await_count(fixture, &fixture->drains, 1);
	http_client_done(&busy);
}

static void shutdown_of_an_idle_server_drains_in_the_next_turn(void **state)
{
	struct fixture *fixture = *state;

	okv_http_server_shutdown(fixture->server, 10 * OKV_NS_PER_S, on_drained, fixture);
	assert_int_equal(fixture->drains, 0);
	await_count(fixture, &fixture->drains, 1);
}

static void destroy_tells_the_owners_of_open_exchanges(void **state)
{
	struct fixture *fixture = *state;
	struct http_client busy = connected(fixture);

	http_client_send_text(&busy, "GET /stream HTTP/1.1\r\nHost: h\r\n\r\n");
	await(&busy, "chunked");
	okv_http_on_hangup(fixture->open, on_gone_abort, fixture);
	okv_http_server_destroy(fixture->server);
	fixture->server = NULL;
	assert_int_equal(fixture->hangups, 1);
	http_client_done(&busy);
}

static void an_address_that_cannot_be_listened_on_is_refused(void **state)
{
	struct fixture *fixture = *state;
	struct okv_http_options options = {.address = "127.0.0.1", .port = okv_http_server_port(fixture->server)};
	struct okv_http_server *server;
	struct okv_reason reason;
	char text[32];

	assert_int_equal(okv_http_server_create(fixture->loop, &options, &server, &reason), OKV_ERR_EXISTS);
	snprintf(text, sizeof(text), "port %u of 127.0.0.1", options.port);
	assert_non_null(strstr(reason.text, text));
	assert_non_null(strstr(reason.text, "choose another port"));
	assert_string_equal(reason.field, "http");
	options.address = "localhost";
	assert_int_equal(okv_http_server_create(fixture->loop, &options, &server, &reason), OKV_ERR_INVALID);
	assert_non_null(strstr(reason.text, "localhost is not a numeric address"));
	options.address = "0"; /* to some, all addresses */
	assert_int_equal(okv_http_server_create(fixture->loop, &options, &server, &reason), OKV_ERR_INVALID);
	options.address = "192.0.2.1";
	assert_int_equal(okv_http_server_create(fixture->loop, &options, &server, &reason), OKV_ERR_INVALID);
	options = (struct okv_http_options){.address = "::1"};
	if (okv_http_server_create(fixture->loop, &options, &server, &reason) == OKV_OK) { /* if there is IPv6 */
		assert_int_not_equal(okv_http_server_port(server), 0);
		okv_http_server_destroy(server);
	}
}

#define SERVED(test) cmocka_unit_test_setup_teardown(test, open_server, close_server)

int main(void)
{
	const struct CMUnitTest tests[] = {
		SERVED(requests_on_one_connection_are_answered_in_turn),
		SERVED(a_request_may_arrive_byte_by_byte),
		SERVED(http_1_0_and_head_are_answered_their_way),
		SERVED(a_client_that_waits_to_send_is_told_to_continue),
		SERVED(a_stream_arrives_in_chunks_and_the_connection_goes_on),
		SERVED(a_hangup_is_reported_while_nothing_is_being_written),
		SERVED(a_hangup_is_reported_in_the_middle_of_a_stream),
		SERVED(a_hangup_is_reported_although_the_client_sent_another_request),
		SERVED(a_client_that_does_not_read_is_seen_and_given_up),
		SERVED(an_abort_cuts_the_answer),
		SERVED(malformed_and_oversized_requests_are_refused),
		SERVED(a_head_of_more_than_64_kib_is_refused),
		SERVED(a_refused_body_may_go_on_being_sent_and_the_answer_is_still_read),
		SERVED(slow_requests_time_out_and_idle_connections_are_closed),
		SERVED(a_large_body_may_take_its_time_as_long_as_it_goes_on),
		SERVED(a_body_that_stops_later_or_on_a_used_connection_times_out_too),
		SERVED(connections_beyond_the_limit_are_told_to_come_back),
		SERVED(what_is_sent_behind_a_running_request_is_left_in_the_socket),
		SERVED(requests_left_in_the_socket_are_served_in_their_turn),
		SERVED(a_stream_to_http_1_0_ends_with_the_connection),
		SERVED(shutdown_waits_for_running_answers_only),
		SERVED(shutdown_hangs_up_at_its_deadline),
		SERVED(shutdown_of_an_idle_server_drains_in_the_next_turn),
		SERVED(destroy_tells_the_owners_of_open_exchanges),
		SERVED(an_address_that_cannot_be_listened_on_is_refused),
	};
	return cmocka_run_group_tests_name("http_server", tests, NULL, NULL);
}
