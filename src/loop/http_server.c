#include "http_internal.h"

#include <stdlib.h>
#include <unistd.h>

enum {
	REFUSALS_MAX = 16, /* connections beyond the limit that are told so; further ones are just closed */
	DEFAULT_STALL_S = 30,
	DEFAULT_IDLE_S = 75,
};

static void stop_listening(struct okv_http_server *server)
{
	okv_acceptor_stop(&server->acceptor);
	if (server->fd >= 0)
		close(server->fd);
	server->fd = -1;
}

static void accepted(void *context, int fd)
{
	struct okv_http_server *server = context;

	if (server->connection_count >= server->options.connections_max + REFUSALS_MAX)
		close(fd);
	else
		okv__http_connection_open(server, fd);
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
	okv_timer_init(&server->deadline, loop, on_deadline, server);

	status = okv_tcp_listen("http", options->address, options->port, &server->fd, &server->port, reason);
	if (status == OKV_OK)
		status = okv_acceptor_start(&server->acceptor, loop, server->fd, accepted, server, reason);
	if (status != OKV_OK)
		goto destroy;
	server->options.address = NULL; /* the caller's; not needed any more */
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
