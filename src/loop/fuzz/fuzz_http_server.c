/*
 * Any bytes on a connection are answered or dropped, and nothing is left over: the input goes to a server through a
 * socket pair, in two pieces split where its first byte says, while a handler answers at once, later or as a stream.
 */
#include <fcntl.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <unistd.h>

#include "http_internal.h"

struct world {
	uint64_t now_ns;
	struct okv_loop *loop;
	struct okv_http_server *server;
	struct okv_http_exchange *open;
};

static void on_gone(void *context)
{
	struct world *world = context;

	okv_http_abort(world->open);
	world->open = NULL;
}

static void handle(void *context, struct okv_http_exchange *exchange)
{
	struct world *world = context;
	const struct okv_http_request *request = okv_http_exchange_request(exchange);

	if (request->path[1] == 's') {
		okv_http_stream_start(exchange, 200, "text/plain");
		okv_http_stream_write(exchange, request->body, request->body_size);
		okv_http_stream_end(exchange);
	} else if (request->path[1] == 'l') {
		world->open = exchange;
		okv_http_on_hangup(exchange, on_gone, world);
	} else {
		okv_http_respond(exchange, 200, "text/plain", request->body, request->body_size);
	}
}

static void send_and_turn(struct world *world, int fd, const uint8_t *bytes, size_t size)
{
	char answer[4096];

	if (size > 0 && send(fd, bytes, size, MSG_NOSIGNAL) < 0)
		return;
	for (int turn = 0; turn < 4; turn++)
		okv_loop_turn(world->loop);
	while (recv(fd, answer, sizeof(answer), 0) > 0)
		okv_loop_turn(world->loop);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
	struct world world = {0};
	struct okv_reason reason;
	struct okv_http_options options = {.address = "127.0.0.1",
					   .body_bytes_max = 1000,
					   .connections_max = 4,
					   .handle = handle,
					   .context = &world};
	int pair[2];

	if (okv_loop_create(okv_clock_virtual(&world.now_ns), &world.loop, &reason) != OKV_OK ||
	    okv_http_server_create(world.loop, &options, &world.server, &reason) != OKV_OK ||
	    socketpair(AF_UNIX, SOCK_STREAM | SOCK_NONBLOCK | SOCK_CLOEXEC, 0, pair) != 0)
		abort();
	okv__http_connection_open(world.server, pair[0]);

	size_t split = size ? data[0] % (size + 1) : 0;
	send_and_turn(&world, pair[1], data, split);
	send_and_turn(&world, pair[1], data + split, size - split);
	if (size % 2 == 0)
		close(pair[1]);
	for (int turn = 0; turn < 8; turn++) {
		okv_loop_turn(world.loop);
		world.now_ns += 40 * OKV_NS_PER_S;
	}
	if (world.open && okv_http_server_connections(world.server) != 1)
		abort();
	if (!world.open && okv_http_server_connections(world.server) != 0)
		abort();
	okv_http_server_destroy(world.server);
	okv_loop_destroy(world.loop);
	if (size % 2 == 1)
		close(pair[1]);
	return 0;
}
