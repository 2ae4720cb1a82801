#include <arpa/inet.h>
#include <errno.h>
#include <netinet/tcp.h>
#include <stdlib.h>
#include <string.h>
#include <sys/epoll.h>
#include <unistd.h>

#include "internal.h"

struct okv__connection *okv__connection_create(struct okv__driver *driver, int fd, enum okv__connection_state state)
{
	struct okv__connection *connection = aligned_alloc(64, sizeof(*connection));
	struct epoll_event event = {.data.ptr = connection};

	if (!connection)
		return NULL;
	memset(connection, 0, sizeof(*connection));
	connection->driver = driver;
	connection->fd = fd;
	connection->state = state;
	okv_list_init(&connection->sibling);
	if (epoll_ctl(driver->epoll_fd, EPOLL_CTL_ADD, fd, &event) != 0) {
		free(connection);
		return NULL;
	}
	okv_list_init(&connection->node);
	okv_list_push_back(&driver->connections, &connection->node);
	return connection;
}

void okv__connection_close(struct okv__connection *connection)
{
	OKV_ASSERT(!connection->operation);
	close(connection->fd);
	connection->fd = -1;
	okv_list_remove(&connection->node);
	okv_list_push_back(&connection->driver->closed, &connection->node);
}

void okv__connection_want(struct okv__connection *connection, uint32_t interest)
{
	struct epoll_event event = {.events = interest, .data.ptr = connection};

	if (connection->interest == interest)
		return;
	connection->interest = interest;
	OKV_ASSERT(epoll_ctl(connection->driver->epoll_fd, EPOLL_CTL_MOD, connection->fd, &event) == 0);
}

void okv__tune_socket(int fd)
{
	int one = 1;

	setsockopt(fd, IPPROTO_TCP, TCP_NODELAY, &one, sizeof(one));
}

bool okv__parse_address(const char *address, uint16_t port, struct sockaddr_storage *ret_address, socklen_t *ret_size)
{
	struct sockaddr_in v4 = {.sin_family = AF_INET, .sin_port = htons(port)};
	struct sockaddr_in6 v6 = {.sin6_family = AF_INET6, .sin6_port = htons(port)};

	memset(ret_address, 0, sizeof(*ret_address));
	if (inet_pton(AF_INET, address, &v4.sin_addr) == 1) {
		memcpy(ret_address, &v4, sizeof(v4));
		*ret_size = sizeof(v4);
		return true;
	}
	if (inet_pton(AF_INET6, address, &v6.sin6_addr) == 1) {
		memcpy(ret_address, &v6, sizeof(v6));
		*ret_size = sizeof(v6);
		return true;
	}
	return false;
}

int okv__head_send(struct okv__connection *connection)
{
	ssize_t sent = send(connection->fd, connection->head + connection->head_at,
			    connection->head_size - connection->head_at, MSG_NOSIGNAL);

	if (sent < 0)
		return errno == EAGAIN || errno == EINTR ? 0 : -1;
	connection->head_at += (size_t)sent;
	return connection->head_at == connection->head_size;
}
