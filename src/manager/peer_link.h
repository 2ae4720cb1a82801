/*
 * Peer link: one control connection, as a stream of whole messages on the owner loop. Bytes that cannot be sent yet
 * wait, up to a limit; a peer that does not read, or breaks the protocol, loses its connection.
 *
 * The owner embeds the link. Its callbacks may close the link, and its owner may go with it: after a callback that
 * returns false the link is not touched. A failure of sending is told later, by `closed`, never from inside
 * okv__link_send().
 */
#ifndef OKV_MANAGER_PEER_LINK_H
#define OKV_MANAGER_PEER_LINK_H

#include <stdbool.h>
#include <stdint.h>
#include <sys/socket.h>

#include "okv/base/buf.h"
#include "okv/base/status.h"
#include "okv/fabric/peer_message.h"

struct okv_loop;
struct okv_watch;

struct okv__link_ops {
	/* The connection that was being opened stands. NULL for accepted ones. */
	void (*connected)(void *context);
	/* False: the link was closed. */
	bool (*message)(void *context, const struct okv_peer_message *message);
	/* The connection is lost, or could not be opened: `error` is errno or 0. `why` says it in words. The link is
	 * closed. */
	void (*closed)(void *context, int error, const char *why);
};

struct okv__link {
	int fd; /* owned; -1 when closed */
	bool is_connecting;
	struct okv_watch *watch;
	const struct okv__link_ops *ops;
	void *context;
	struct okv_peer_message *scratch; /* borrowed: where messages are decoded */
	struct okv_buf out;
	size_t in_size;
	uint8_t in[OKV_PEER_FRAME_BYTES_MAX];
};

/* A link is closed before it is opened: */
void okv__link_init(struct okv__link *link, const struct okv__link_ops *ops, void *context,
		    struct okv_peer_message *scratch);
/* Takes ownership of an accepted socket, also on failure. */
OKV_MUST_CHECK enum okv_status okv__link_accept(struct okv__link *link, struct okv_loop *loop, int fd);
/* Starts to connect: 0, and `connected` or `closed` is the answer; or errno, and there is none. */
OKV_MUST_CHECK int okv__link_connect(struct okv__link *link, struct okv_loop *loop, const struct sockaddr *address,
				     socklen_t size);
void okv__link_send(struct okv__link *link, const struct okv_peer_message *message);
/* Without a callback. Harmless on a closed link. */
void okv__link_close(struct okv__link *link);
bool okv__link_is_open(const struct okv__link *link);

#endif
