/*
 * Listener: the socket path at which engines attach. A path that something lives behind is refused, what a dead manager
 * left is replaced, and what belongs to another user, or is no socket, is neither used nor removed. Looking, removing
 * and listening are three steps: the folder is locked meanwhile, or two managers that start at one moment could each
 * find the socket dead and the later one would remove the socket of the earlier.
 */
#ifndef OKV_MANAGER_LISTENER_H
#define OKV_MANAGER_LISTENER_H

#include <sys/types.h>

#include "okv/base/status.h"

struct okv__listener {
	int fd;	    /* owned; -1 when closed */
	char *path; /* owned */
	dev_t device;
	ino_t inode; /* of our socket, so that a later one is not removed */
};

OKV_MUST_CHECK enum okv_status okv__listener_open(const char *path, struct okv__listener *ret_listener,
						  struct okv_reason *reason);
/* Closes and removes the path if it is still ours. Harmless on a closed one. */
void okv__listener_close(struct okv__listener *listener);

#endif
