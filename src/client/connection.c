#include <errno.h>
#include <string.h>
#include <sys/epoll.h>
#include <sys/socket.h>
#include <sys/timerfd.h>
#include <sys/un.h>
#include <unistd.h>

#include "client_object.h"
#include "okv/session/channel.h"

/* Between two tries, and how long a manager may take to answer a HELLO. */
enum { BACKOFF_MIN_MS = 100, BACKOFF_MAX_MS = 3000, ANSWER_MS = 5000 };

static void set_timer(struct orbitkv_client *client, uint64_t ms)
{
	struct itimerspec when = {.it_value = {.tv_sec = (time_t)(ms / 1000), .tv_nsec = (long)(ms % 1000) * 1000000}};

	timerfd_settime(client->timer_fd, 0, &when, NULL);
}

static bool timer_is_due(struct orbitkv_client *client)
{
	uint64_t times;

	return read(client->timer_fd, &times, sizeof(times)) == (ssize_t)sizeof(times);
}

static void leave(struct orbitkv_client *client)
{
	if (client->socket >= 0) {
		/* A shutdown is seen by the manager also if a child process has inherited the socket. */
		shutdown(client->socket, SHUT_RDWR);
		close(client->socket); /* leaves the epoll set with it */
	}
	client->socket = -1;
	okv_region_close(&client->ring_region);
	okv_region_close(&client->pool);
	client->state = CONNECTION_NONE;
}

void okv__client_disconnect(struct orbitkv_client *client)
{
	leave(client);
	okv__operations_disconnected(client);
	/* The first try of all is made at once. */
	set_timer(client, client->backoff_ms ? client->backoff_ms : 1);
	client->backoff_ms = client->backoff_ms == 0		       ? BACKOFF_MIN_MS
			     : client->backoff_ms * 2 < BACKOFF_MAX_MS ? client->backoff_ms * 2
								       : BACKOFF_MAX_MS;
}

void okv__client_ring_bell(struct orbitkv_client *client)
{
	struct okv_session_message bell = {.type = OKV_SESSION_DOORBELL};
	uint8_t bytes[OKV_SESSION_MESSAGE_MAX];

	/* Busy: earlier bells wait there, one is enough. Gone: the next receive says so. */
	(void)!okv_channel_send(client->socket, bytes, okv_session_encode(&bell, bytes), NULL, 0);
}

static enum okv_status os_refusal(struct orbitkv_client *client, const char *what)
{
	int error = errno;

	return okv_refuse(&client->problem, okv_status_from_errno(error), "manager", "%s %s: %s", what,
			  client->socket_path, strerror(error));
}

static enum okv_status greet(struct orbitkv_client *client)
{
	struct sockaddr_un address = {.sun_family = AF_UNIX};
	struct epoll_event readable = {.events = EPOLLIN};
	struct okv_session_message message = {.type = OKV_SESSION_HELLO, .hello = client->hello};
	uint8_t bytes[OKV_SESSION_MESSAGE_MAX];
	enum okv_status status;

	memcpy(address.sun_path, client->socket_path, strlen(client->socket_path));
	client->socket = socket(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC | SOCK_NONBLOCK, 0);
	if (client->socket < 0 || connect(client->socket, (struct sockaddr *)&address, sizeof(address)) != 0)
		return os_refusal(client, "no manager answers at");
	if (epoll_ctl(client->epoll_fd, EPOLL_CTL_ADD, client->socket, &readable) != 0)
		return os_refusal(client, "no descriptor for");
	/* Its own ring for each connection, so that no late write of an old one can meet it. */
	status = okv_region_create("orbitkv-ring", okv_ring_bytes(), &client->ring_region, &client->problem);
	if (status != OKV_OK)
		return status;
	okv_ring_client_init(&client->ring, client->ring_region.base);

	const int fds[OKV_SESSION_HELLO_FDS] = {client->arena_fd, client->ring_region.fd};
	status = okv_channel_send(client->socket, bytes, okv_session_encode(&message, bytes), fds,
				  OKV_SESSION_HELLO_FDS);
	if (status != OKV_OK)
		return okv_refuse(&client->problem, status, "manager", "the manager at %s does not listen",
				  client->socket_path);
	client->state = CONNECTION_GREETED;
	set_timer(client, ANSWER_MS);
	return OKV_OK;
}

static enum okv_status enter(struct orbitkv_client *client, const struct okv_session_accept *accept,
			     struct okv_channel_packet *packet)
{
	enum okv_status status;

	if (packet->fd_count != OKV_SESSION_ACCEPT_FDS)
		return okv_refuse(&client->problem, OKV_ERR_PROTOCOL, "manager", "the manager sent no pool");
	packet->fd_count = 0; /* the region owns it now */
	status = okv_region_open(packet->fd[0], accept->pool_bytes, false, &client->pool, &client->problem);
	if (status != OKV_OK)
		return status;
	client->hello.previous_session = accept->session;
	client->state = CONNECTION_READY;
	client->backoff_ms = BACKOFF_MIN_MS;
	set_timer(client, 0);
	return OKV_OK;
}

/* Handles one packet of the manager; anything but OKV_OK ends the connection. */
static enum okv_status take_packet(struct orbitkv_client *client, const uint8_t *bytes,
				   struct okv_channel_packet *packet)
{
	struct okv_session_message message;
	enum okv_status status = okv_session_decode(bytes, packet->size, &message, &client->problem);

	if (status != OKV_OK)
		return status;
	if (message.type == OKV_SESSION_DOORBELL)
		return OKV_OK;
	if (message.type == OKV_SESSION_ACCEPT && client->state == CONNECTION_GREETED)
		return enter(client, &message.accept, packet);
	if (message.type == OKV_SESSION_REFUSE)
		return okv_refuse(&client->problem, OKV_ERR_DISCONNECTED, "manager", "the manager refuses: %.200s",
				  message.refuse.text);
	return okv_refuse(&client->problem, OKV_ERR_PROTOCOL, "manager", "the manager sent a message out of turn");
}

void okv__client_connect_step(struct orbitkv_client *client)
{
	uint8_t bytes[OKV_SESSION_MESSAGE_MAX];
	struct okv_channel_packet packet;
	enum okv_status status = OKV_OK;

	if (client->state == CONNECTION_NONE) {
		if (timer_is_due(client) && greet(client) != OKV_OK)
			okv__client_disconnect(client);
		return;
	}
	if (client->state == CONNECTION_GREETED && timer_is_due(client)) {
		(void)okv_refuse(&client->problem, OKV_ERR_DEADLINE, "manager", "the manager at %s does not answer",
				 client->socket_path);
		okv__client_disconnect(client);
		return;
	}
	while (status == OKV_OK) {
		status = okv_channel_receive(client->socket, bytes, sizeof(bytes), OKV_SESSION_ACCEPT_FDS, &packet);
		if (status == OKV_ERR_ABSENT)
			return;
		if (status != OKV_OK) {
			(void)okv_refuse(&client->problem, status, "manager", "the manager at %s is gone",
					 client->socket_path);
			break;
		}
		status = take_packet(client, bytes, &packet);
		okv_channel_close_fds(&packet);
	}
	okv__client_disconnect(client);
}
