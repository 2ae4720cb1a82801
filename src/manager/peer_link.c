#include "peer_link.h"

#include <errno.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <string.h>
#include <unistd.h>

#include "okv/loop/loop.h"

enum {
	OUT_BYTES_MAX = 4 << 20,
	/* A host that acknowledges nothing for so long is gone, not slow; its kernel answers for a process that is. A
	 * link with nothing to say is probed, so that there is something to acknowledge: three lost probes are no
	 * answer. */
	UNANSWERED_MS = 10000,
	PROBE_AFTER_S = 5,
	PROBE_EVERY_S = 2,
};

void okv__link_init(struct okv__link *link, const struct okv__link_ops *ops, void *context,
		    struct okv_peer_message *scratch)
{
	memset(link, 0, sizeof(*link));
	link->fd = -1;
	link->ops = ops;
	link->context = context;
	link->scratch = scratch;
}

bool okv__link_is_open(const struct okv__link *link)
{
	return link->fd >= 0 && !link->is_connecting;
}

void okv__link_close(struct okv__link *link)
{
	if (link->fd < 0)
		return;
	okv_watch_destroy(link->watch);
	link->watch = NULL;
	close(link->fd);
	link->fd = -1;
	okv_buf_done(&link->out);
	link->in_size = 0;
}

static void fail(struct okv__link *link, int error, const char *why)
{
	okv__link_close(link);
	link->ops->closed(link->context, error, why);
}

static void look_for(struct okv__link *link)
{
	okv_watch_set(link->watch, !link->is_connecting, link->is_connecting || link->out.size > 0);
}

/* Hands the whole frames to the owner. False: the link is gone. */
static bool take_frames(struct okv__link *link)
{
	size_t at = 0, size;

	for (;;) {
		struct okv_reason reason;
		enum okv_status status = okv_peer_frame_size(link->in + at, link->in_size - at, &size, &reason);

		if (status == OKV_OK && (size == 0 || size > link->in_size - at))
			break;
		if (status == OKV_OK)
			status = okv_peer_decode(link->in + at, size, link->scratch, &reason);
		if (status != OKV_OK) {
			fail(link, EPROTO, reason.text);
			return false;
		}
		at += size;
		if (!link->ops->message(link->context, link->scratch))
			return false;
	}
	memmove(link->in, link->in + at, link->in_size - at);
	link->in_size -= at;
	return true;
}

/* False: the link is gone. */
static bool receive(struct okv__link *link)
{
	ssize_t got = recv(link->fd, link->in + link->in_size, sizeof(link->in) - link->in_size, 0);

	if (got < 0 && (errno == EAGAIN || errno == EINTR))
		return true;
	if (got <= 0) {
		fail(link, got < 0 ? errno : 0, got < 0 ? strerror(errno) : "it hung up");
		return false;
	}
	link->in_size += (size_t)got;
	return take_frames(link);
}

/* Errors come out again when reading. */
static void send_waiting(struct okv__link *link)
{
	ssize_t sent = send(link->fd, link->out.data, link->out.size, MSG_NOSIGNAL);

	if (sent > 0)
		okv_buf_consume(&link->out, (size_t)sent);
}

static void connect_ready(struct okv__link *link)
{
	int error = 0;
	socklen_t size = sizeof(error);

	if (getsockopt(link->fd, SOL_SOCKET, SO_ERROR, &error, &size) != 0)
		error = errno;
	if (error) {
		fail(link, error, strerror(error));
		return;
	}
	link->is_connecting = false;
	look_for(link);
	link->ops->connected(link->context);
}

static void ready(void *context, bool readable, bool writable)
{
	struct okv__link *link = context;

	if (link->is_connecting) {
		connect_ready(link);
		return;
	}
	if (readable && !receive(link))
		return;
	if (writable && link->out.size > 0)
		send_waiting(link);
	look_for(link);
}

static void tune(int fd)
{
	static const struct {
		int level, name, value;
	} options[] = {
		{IPPROTO_TCP, TCP_NODELAY, 1},
		{SOL_SOCKET, SO_KEEPALIVE, 1},
		{IPPROTO_TCP, TCP_KEEPIDLE, PROBE_AFTER_S},
		{IPPROTO_TCP, TCP_KEEPINTVL, PROBE_EVERY_S},
		{IPPROTO_TCP, TCP_USER_TIMEOUT, UNANSWERED_MS}, /* for probes it takes the place of a count */
	};

	for (size_t i = 0; i < sizeof(options) / sizeof(*options); i++)
		setsockopt(fd, options[i].level, options[i].name, &options[i].value, sizeof(options[i].value));
}

static enum okv_status start(struct okv__link *link, struct okv_loop *loop, int fd, bool is_connecting)
{
	enum okv_status status = okv_watch_create(loop, fd, ready, link, &link->watch, NULL);

	if (status != OKV_OK) {
		close(fd);
		return status;
	}
	link->fd = fd;
	link->is_connecting = is_connecting;
	look_for(link);
	return OKV_OK;
}

enum okv_status okv__link_accept(struct okv__link *link, struct okv_loop *loop, int fd)
{
	tune(fd);
	return start(link, loop, fd, false);
}

int okv__link_connect(struct okv__link *link, struct okv_loop *loop, const struct sockaddr *address, socklen_t size)
{
	int fd = socket(address->sa_family, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0);

	if (fd < 0)
		return errno;
	tune(fd);
	if (connect(fd, address, size) != 0 && errno != EINPROGRESS) {
		int error = errno;

		close(fd);
		return error;
	}
	return start(link, loop, fd, true) == OKV_OK ? 0 : ENOMEM;
}

void okv__link_send(struct okv__link *link, const struct okv_peer_message *message)
{
	uint8_t frame[OKV_PEER_FRAME_BYTES_MAX];
	size_t size = okv_peer_encode(message, frame);
	ssize_t sent = 0;

	if (!okv__link_is_open(link))
		return;
	if (link->out.size == 0)
		sent = send(link->fd, frame, size, MSG_NOSIGNAL);
	if (sent < 0)
		sent = 0;
	okv_buf_append(&link->out, frame + sent, size - (size_t)sent);
	if (link->out.failed || link->out.size > OUT_BYTES_MAX)
		shutdown(link->fd,
			 SHUT_RDWR); /* a half message must not be followed by another; reading tells the owner */
	look_for(link);
}
