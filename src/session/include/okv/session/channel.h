/*
 * Channel: packets with descriptors over a Unix SOCK_SEQPACKET socket, sent and received without ever blocking,
 * whatever flags the descriptor has. Received descriptors belong to the caller; those that were not asked for are
 * closed. Any thread, one at a time a socket.
 */
#ifndef OKV_SESSION_CHANNEL_H
#define OKV_SESSION_CHANNEL_H

#include <stddef.h>
#include <sys/types.h>

#include "okv/base/status.h"

enum { OKV_CHANNEL_FDS_MAX = 4, OKV_CHANNEL_PACKET_MAX = 4096 };

/* OKV_ERR_BUSY: the other end does not read, nothing was sent. OKV_ERR_DISCONNECTED: it is gone. */
OKV_MUST_CHECK enum okv_status okv_channel_send(int socket, const void *bytes, size_t size, const int *fds,
						unsigned fd_count);

struct okv_channel_packet {
	size_t size;
	int fd[OKV_CHANNEL_FDS_MAX];
	unsigned fd_count;
};

/*
 * Takes one packet of at most `room` bytes. OKV_ERR_ABSENT: none is there now. OKV_ERR_DISCONNECTED: the other end
 * closed. OKV_ERR_PROTOCOL: the packet is longer than `room`, empty, or brings more than `fds_max` descriptors.
 */
OKV_MUST_CHECK enum okv_status okv_channel_receive(int socket, void *ret_bytes, size_t room, unsigned fds_max,
						   struct okv_channel_packet *ret_packet);

void okv_channel_close_fds(struct okv_channel_packet *packet);

struct okv_channel_peer {
	uid_t uid;
	pid_t pid;
	int pidfd; /* owned; readable once the process is dead; -1 if the kernel gives none */
};

/* Who is at the other end, by the kernel's word. */
OKV_MUST_CHECK enum okv_status okv_channel_peer_open(int socket, struct okv_channel_peer *ret_peer,
						     struct okv_reason *reason);

#endif
