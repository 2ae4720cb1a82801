#include "okv/loop/acceptor.h"

#include <arpa/inet.h>
#include <errno.h>
#include <string.h>
#include <sys/socket.h>
#include <unistd.h>

enum { ACCEPTS_A_TURN = 16, PAUSE_MS = 100 };

static void acceptable(void *context, bool readable, bool writable)
{
	struct okv_acceptor *acceptor = context;

	(void)readable;
	(void)writable;
	for (int i = 0; i < ACCEPTS_A_TURN; i++) {
		int fd = accept4(acceptor->fd, NULL, NULL, SOCK_NONBLOCK | SOCK_CLOEXEC);

		if (fd < 0) {
			if (errno != EAGAIN && errno != EINTR && errno != ECONNABORTED) {
				okv_watch_set(acceptor->watch, false, false);
				okv_timer_start(&acceptor->pause,
						okv_loop_now_ns(acceptor->pause.loop) + PAUSE_MS * OKV_NS_PER_MS);
			}
			return;
		}
		acceptor->accepted(acceptor->context, fd);
	}
}

static void pause_is_over(void *context)
{
	struct okv_acceptor *acceptor = context;

	okv_watch_set(acceptor->watch, true, false);
}

enum okv_status okv_acceptor_start(struct okv_acceptor *acceptor, struct okv_loop *loop, int fd,
				   void (*accepted)(void *context, int fd), void *context, struct okv_reason *reason)
{
	*acceptor = (struct okv_acceptor){.fd = fd, .accepted = accepted, .context = context};
	okv_timer_init(&acceptor->pause, loop, pause_is_over, acceptor);
	enum okv_status status = okv_watch_create(loop, fd, acceptable, acceptor, &acceptor->watch, reason);
	if (status == OKV_OK)
		okv_watch_set(acceptor->watch, true, false);
	return status;
}

void okv_acceptor_stop(struct okv_acceptor *acceptor)
{
	if (!acceptor->watch)
		return;
	okv_timer_stop(&acceptor->pause);
	okv_watch_destroy(acceptor->watch);
	acceptor->watch = NULL;
}

static enum okv_status refuse(const char *option, const char *address, uint16_t port, int error,
			      struct okv_reason *reason)
{
	if (error == EADDRINUSE)
		return okv_refuse(reason, OKV_ERR_EXISTS, option,
				  "port %u of %.80s is in use by another program; stop it, choose another port, or "
				  "give 0 to let the system choose",
				  port, address);
	if (error == EACCES)
		return okv_refuse(reason, OKV_ERR_PERMISSION, option,
				  "port %u may not be listened on by this user; choose one above 1023", port);
	if (error == EADDRNOTAVAIL)
		return okv_refuse(reason, OKV_ERR_INVALID, option,
				  "%.80s is no address of this machine; give one such as 127.0.0.1", address);
	return okv_refuse(reason, okv_status_from_errno(error), option, "port %u of %.80s cannot be listened on: %s",
			  port, address, strerror(error));
}

enum okv_status okv_tcp_listen(const char *option, const char *address, uint16_t port, int *ret_fd, uint16_t *ret_port,
			       struct okv_reason *reason)
{
	union {
		struct sockaddr any;
		struct sockaddr_in v4;
		struct sockaddr_in6 v6;
	} at = {.v4 = {.sin_family = AF_INET, .sin_port = htons(port)}};
	socklen_t size = sizeof(at.v4);
	int fd, on = 1;

	if (inet_pton(AF_INET, address, &at.v4.sin_addr) != 1) {
		at.v6 = (struct sockaddr_in6){.sin6_family = AF_INET6, .sin6_port = htons(port)};
		size = sizeof(at.v6);
		if (inet_pton(AF_INET6, address, &at.v6.sin6_addr) != 1)
			return okv_refuse(reason, OKV_ERR_INVALID, option,
					  "%.80s is not a numeric address to listen on; give one such as 127.0.0.1 or "
					  "::1",
					  address);
	}
	fd = socket(at.any.sa_family, SOCK_STREAM | SOCK_NONBLOCK | SOCK_CLOEXEC, 0);
	if (fd < 0)
		return refuse(option, address, port, errno, reason);
	if (setsockopt(fd, SOL_SOCKET, SO_REUSEADDR, &on, sizeof(on)) != 0 || bind(fd, &at.any, size) != 0 ||
	    listen(fd, SOMAXCONN) != 0 || getsockname(fd, &at.any, &size) != 0) {
		enum okv_status status = refuse(option, address, port, errno, reason);

		close(fd);
		return status;
	}
	*ret_fd = fd;
	*ret_port = ntohs(at.any.sa_family == AF_INET ? at.v4.sin_port : at.v6.sin6_port);
	return OKV_OK;
}
