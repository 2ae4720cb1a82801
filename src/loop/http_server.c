#include "http_internal.h"

#include <arpa/inet.h>
#include <errno.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <unistd.h>

enum {
	ACCEPTS_A_TURN = 16, /* so that a flood of connections does not hold up those that are there */
	ACCEPT_WAIT_MS = 100,
	REFUSALS_MAX = 16, /* connections beyond the limit that are told so; further ones are just closed */
	DEFAULT_STALL_S = 30,
	DEFAULT_IDLE_S = 75,
};

union address {
	struct sockaddr any;
	struct sockaddr_in v4;
	struct sockaddr_in6 v6;
};

static enum okv_status read_address(const struct okv_http_options *options, union address *ret_address,
				    struct okv_reason *reason)
{
	union address v4 = {.v4 = {.sin_family = AF_INET, .sin_port = htons(options->port)}};
	union address v6 = {.v6 = {.sin6_family = AF_INET6, .sin6_port = htons(options->port)}};

	if (inet_pton(AF_INET, options->address, &v4.v4.sin_addr) == 1)
		*ret_address = v4;
	else if (inet_pton(AF_INET6, options->address, &v6.v6.sin6_addr) == 1)
		*ret_address = v6;
	else
		return okv_refuse(reason, OKV_ERR_INVALID, "address",
				  "%.80s is not a numeric address to listen on; give one such as 127.0.0.1 or ::1",
				  options->address);
	return OKV_OK;
}

static socklen_t size_of(const union address *address)
{
	return address->any.sa_family == AF_INET ? sizeof(address->v4) : sizeof(address->v6);
}

static enum okv_status refuse_listening(const struct okv_http_options *options, int error, struct okv_reason *reason)
{
	if (error == EADDRINUSE)
		return okv_refuse(reason, OKV_ERR_EXISTS, "port",
				  "port %u of %.80s is in use by another program; stop it, choose another port, or "
				  "give 0 to let the system choose",
				  options->port, options->address);
	if (error == EACCES)
		return okv_refuse(reason, OKV_ERR_PERMISSION, "port",
				  "port %u may not be listened on by this user; choose one above 1023", options->port);
	if (error == EADDRNOTAVAIL)
		return okv_refuse(reason, OKV_ERR_INVALID, "address",
				  "%.80s is no address of this machine; give one such as 127.0.0.1", options->address);
	return okv_refuse(reason, OKV_ERR_IO, "port", "port %u of %.80s cannot be listened on: %s", options->port,
			  options->address, strerror(error));
}

static enum okv_status listen_on(struct okv_http_server *server, struct okv_reason *reason)
{
	union address address = {0};
	socklen_t size = sizeof(address);
	int on = 1;
	enum okv_status status = read_address(&server->options, &address, reason);

	if (status != OKV_OK)
		return status;
	server->fd = socket(address.any.sa_family, SOCK_STREAM | SOCK_NONBLOCK | SOCK_CLOEXEC, 0);
	if (server->fd < 0)
		return refuse_listening(&server->options, errno, reason);
	if (setsockopt(server->fd, SOL_SOCKET, SO_REUSEADDR, &on, sizeof(on)) != 0 ||
	    bind(server->fd, &address.any, size_of(&address)) != 0 || listen(server->fd, SOMAXCONN) != 0 ||
	    getsockname(server->fd, &address.any, &size) != 0)
		return refuse_listening(&server->options, errno, reason);
	server->port = ntohs(address.any.sa_family == AF_INET ? address.v4.sin_port : address.v6.sin6_port);
	return OKV_OK;
}

static void stop_listening(struct okv_http_server *server)
{
	okv_timer_stop(&server->accept_wait);
	okv_watch_destroy(server->watch);
	server->watch = NULL;
	if (server->fd >= 0)
		close(server->fd);
	server->fd = -1;
}

static void on_acceptable(void *context, bool readable, bool writable)
{
	struct okv_http_server *server = context;

	(void)readable;
	(void)writable;
	for (int i = 0; i < ACCEPTS_A_TURN; i++) {
		int fd = accept4(server->fd, NULL, NULL, SOCK_NONBLOCK | SOCK_CLOEXEC);

		if (fd < 0) {
			if (errno == EMFILE || errno == ENFILE || errno == ENOBUFS || errno == ENOMEM) {
				okv_watch_set(server->watch, false, false);
				okv_timer_start(&server->accept_wait,
						okv_loop_now_ns(server->loop) + ACCEPT_WAIT_MS * OKV_NS_PER_MS);
			}
			return;
		}
		if (server->connection_count >= server->options.connections_max + REFUSALS_MAX)
			close(fd);
		else
			okv__http_connection_open(server, fd);
	}
}

static void on_accept_again(void *context)
{
	struct okv_http_server *server = context;

	okv_watch_set(server->watch, true, false);
}

/* Both the deadline of a shutdown and, if nothing is left to wait for, its end. */
static void on_deadline(void *context)
{
	struct okv_http_server *server = context;

	if (server->connection_count == 0) {
		server->drained(server->drained_context);
		return;
	}
	OKV_LIST_EACH_SAFE(node, &server->connections)
	okv__http_connection_retire(OKV_CONTAINER_OF(node, struct okv_http_exchange, node), true);
}

enum okv_status okv_http_server_create(struct okv_loop *loop, const struct okv_http_options *options,
				       struct okv_http_server **ret_server, struct okv_reason *reason)
{
	struct okv_http_server *server = calloc(1, sizeof(*server));
	enum okv_status status;

	if (!server)
		return okv_refuse(reason, OKV_ERR_NO_MEMORY, "", "no memory for an HTTP server");
	server->loop = loop;
	server->options = *options;
	if (server->options.stall_ns == 0)
		server->options.stall_ns = DEFAULT_STALL_S * OKV_NS_PER_S;
	if (server->options.idle_ns == 0)
		server->options.idle_ns = DEFAULT_IDLE_S * OKV_NS_PER_S;
	server->fd = -1;
	okv_list_init(&server->connections);
	okv_timer_init(&server->accept_wait, loop, on_accept_again, server);
	okv_timer_init(&server->deadline, loop, on_deadline, server);

	status = listen_on(server, reason);
	if (status != OKV_OK)
		goto destroy;
	server->options.address = NULL; /* the caller's; not needed any more */
	status = okv_watch_create(loop, server->fd, on_acceptable, server, &server->watch, reason);
	if (status != OKV_OK)
		goto destroy;
	okv_watch_set(server->watch, true, false);
	*ret_server = server;
	return OKV_OK;

destroy:
	okv_http_server_destroy(server);
	return status;
}

uint16_t okv_http_server_port(const struct okv_http_server *server)
{
	return server->port;
}

unsigned okv_http_server_connections(const struct okv_http_server *server)
{
	return server->connection_count;
}

void okv_http_server_shutdown(struct okv_http_server *server, uint64_t deadline_ns, void (*drained)(void *context),
			      void *context)
{
	server->is_shutting_down = true;
	server->drained = drained;
	server->drained_context = context;
	stop_listening(server);
	OKV_LIST_EACH_SAFE(node, &server->connections)
	okv__http_connection_retire(OKV_CONTAINER_OF(node, struct okv_http_exchange, node), false);
	okv_timer_start(&server->deadline, server->connection_count == 0 ? okv_loop_now_ns(server->loop) : deadline_ns);
}

void okv__http_server_lost_connection(struct okv_http_server *server)
{
	if (server->is_shutting_down && server->connection_count == 0)
		okv_timer_start(&server->deadline, okv_loop_now_ns(server->loop));
}

void okv_http_server_destroy(struct okv_http_server *server)
{
	if (!server)
		return;
	stop_listening(server);
	okv_timer_stop(&server->deadline);
	OKV_LIST_EACH_SAFE(node, &server->connections)
	okv__http_connection_retire(OKV_CONTAINER_OF(node, struct okv_http_exchange, node), true);
	OKV_ASSERT(server->exchanges == 0);
	while (!okv_list_is_empty(&server->connections))
		okv__http_connection_destroy(
			OKV_CONTAINER_OF(server->connections.next, struct okv_http_exchange, node));
	free(server);
}
