#include "http_client.h"

#include <arpa/inet.h>
#include <errno.h>
#include <fcntl.h>
#include <netinet/in.h>
#include <poll.h>
#include <string.h>
#include <sys/socket.h>
#include <unistd.h>

#include "okv/base/status.h"

enum { TURNS_MAX = 20000, WAIT_MS = 10 };

struct http_client http_client_connect(struct okv_loop *loop, uint16_t port)
{
	struct http_client client = {.loop = loop, .fd = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0)};
	struct sockaddr_in address = {
		.sin_family = AF_INET, .sin_port = htons(port), .sin_addr.s_addr = htonl(INADDR_LOOPBACK)};

	OKV_ASSERT(connect(client.fd, (struct sockaddr *)&address, sizeof(address)) == 0);
	OKV_ASSERT(fcntl(client.fd, F_SETFL, O_NONBLOCK) == 0);
	return client;
}

static void turn(struct http_client *client, short events)
{
	if (client->loop)
		okv_loop_turn(client->loop);
	else
		poll(&(struct pollfd){.fd = client->fd, .events = events}, 1, WAIT_MS);
}

void http_client_send(struct http_client *client, const void *bytes, size_t size)
{
	const char *at = bytes;

	for (int turns = 0; size > 0 && turns < TURNS_MAX; turns++) {
		ssize_t sent = send(client->fd, at, size, MSG_NOSIGNAL);

		if (sent > 0) {
			at += sent;
			size -= (size_t)sent;
		} else if (errno != EAGAIN) {
			return;
		}
		turn(client, POLLOUT);
	}
}

void http_client_send_text(struct http_client *client, const char *text)
{
	http_client_send(client, text, strlen(text));
}

void http_client_receive(struct http_client *client)
{
	char bytes[65536];
	ssize_t size = recv(client->fd, bytes, sizeof(bytes), 0);

	if (size > 0)
		okv_buf_append(&client->got, bytes, (size_t)size);
	else if (size == 0 || errno != EAGAIN)
		client->ended = true;
}

bool http_client_await(struct http_client *client, const char *text)
{
	for (int turns = 0; turns < TURNS_MAX; turns++) {
		if (text ? client->got.size && strstr(client->got.data, text) : client->ended)
			return true;
		turn(client, POLLIN);
		http_client_receive(client);
	}
	return false;
}

void http_client_done(struct http_client *client)
{
	close(client->fd);
	okv_buf_done(&client->got);
}
