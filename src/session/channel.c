#include "okv/session/channel.h"

#include <errno.h>
#include <stdbool.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/syscall.h>
#include <sys/uio.h>
#include <unistd.h>

/* Linux 6.5; older kernels answer ENOPROTOOPT. Debian 12's headers do not have the name. */
#ifndef SO_PEERPIDFD
#define SO_PEERPIDFD 77
#endif

union control {
	struct cmsghdr align;
	char bytes[CMSG_SPACE(sizeof(int) * OKV_CHANNEL_FDS_MAX)];
};

enum okv_status okv_channel_send(int socket, const void *bytes, size_t size, const int *fds, unsigned fd_count)
{
	char copy[OKV_CHANNEL_PACKET_MAX];
	union control control = {0};
	struct iovec io = {.iov_base = copy, .iov_len = size};
	struct msghdr message = {.msg_iov = &io, .msg_iovlen = 1};

	OKV_ASSERT(size > 0 && size <= OKV_CHANNEL_PACKET_MAX && fd_count <= OKV_CHANNEL_FDS_MAX);
	memcpy(copy, bytes, size);
	if (fd_count) {
		message.msg_control = control.bytes;
		message.msg_controllen = CMSG_SPACE(sizeof(int) * fd_count);

		struct cmsghdr *head = CMSG_FIRSTHDR(&message);
		head->cmsg_level = SOL_SOCKET;
		head->cmsg_type = SCM_RIGHTS;
		head->cmsg_len = CMSG_LEN(sizeof(int) * fd_count);
		memcpy(CMSG_DATA(head), fds, sizeof(int) * fd_count);
	}
	for (;;) {
		if (sendmsg(socket, &message, MSG_DONTWAIT | MSG_NOSIGNAL) >= 0)
			return OKV_OK;
		if (errno == EAGAIN || errno == ENOBUFS || errno == ETOOMANYREFS)
			return OKV_ERR_BUSY;
		if (errno != EINTR)
			return OKV_ERR_DISCONNECTED;
	}
}

/* Moves the received descriptors to the packet; every one is either there or closed. */
static bool collect_fds(struct msghdr *message, unsigned fds_max, struct okv_channel_packet *packet)
{
	bool is_within = true;

	packet->fd_count = 0;
	for (struct cmsghdr *head = CMSG_FIRSTHDR(message); head; head = CMSG_NXTHDR(message, head)) {
		if (head->cmsg_level != SOL_SOCKET || head->cmsg_type != SCM_RIGHTS)
			continue;
		size_t count = (head->cmsg_len - CMSG_LEN(0)) / sizeof(int);

		for (size_t i = 0; i < count; i++) {
			int fd;

			memcpy(&fd, CMSG_DATA(head) + i * sizeof(int), sizeof(int));
			if (packet->fd_count < fds_max) {
				packet->fd[packet->fd_count++] = fd;
			} else {
				close(fd);
				is_within = false;
			}
		}
	}
	return is_within;
}

enum okv_status okv_channel_receive(int socket, void *ret_bytes, size_t room, unsigned fds_max,
				    struct okv_channel_packet *ret_packet)
{
	union control control;
	struct iovec io = {.iov_base = ret_bytes, .iov_len = room};
	struct msghdr message = {
		.msg_iov = &io,
		.msg_iovlen = 1,
		.msg_control = control.bytes,
		.msg_controllen = sizeof(control.bytes),
	};
	struct okv_channel_packet packet;
	ssize_t size;

	OKV_ASSERT(fds_max <= OKV_CHANNEL_FDS_MAX);
	do
		size = recvmsg(socket, &message, MSG_DONTWAIT | MSG_CMSG_CLOEXEC);
	while (size < 0 && errno == EINTR);
	if (size < 0)
		return errno == EAGAIN ? OKV_ERR_ABSENT : OKV_ERR_DISCONNECTED;

	bool is_within = collect_fds(&message, fds_max, &packet);
	packet.size = (size_t)size;
	if (size == 0 && packet.fd_count == 0 && is_within)
		return OKV_ERR_DISCONNECTED;
	if (size == 0 || !is_within || (message.msg_flags & (MSG_TRUNC | MSG_CTRUNC))) {
		okv_channel_close_fds(&packet);
		return OKV_ERR_PROTOCOL;
	}
	*ret_packet = packet;
	return OKV_OK;
}

void okv_channel_close_fds(struct okv_channel_packet *packet)
{
	while (packet->fd_count)
		close(packet->fd[--packet->fd_count]);
}

enum okv_status okv_channel_peer_open(int socket, struct okv_channel_peer *ret_peer, struct okv_reason *reason)
{
	struct ucred credentials;
	socklen_t size = sizeof(credentials);
	int pidfd = -1;

	if (getsockopt(socket, SOL_SOCKET, SO_PEERCRED, &credentials, &size) != 0) {
		int error = errno;

		return okv_refuse(reason, okv_status_from_errno(error), "peer",
				  "the peer's credentials cannot be read: %s", strerror(error));
	}
	size = sizeof(pidfd);
	if (getsockopt(socket, SOL_SOCKET, SO_PEERPIDFD, &pidfd, &size) != 0)
		pidfd = (int)syscall(SYS_pidfd_open, credentials.pid, 0);
	*ret_peer = (struct okv_channel_peer){.uid = credentials.uid, .pid = credentials.pid, .pidfd = pidfd};
	return OKV_OK;
}
