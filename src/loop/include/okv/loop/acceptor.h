/*
 * Acceptor: a listening socket on a loop. Each connection that comes is given to `accepted`, a few in a turn, so that a
 * flood of them does not hold up those that are there. Out of descriptors the socket would stay readable and take the
 * whole loop: it is left alone for a moment instead.
 */
#ifndef OKV_LOOP_ACCEPTOR_H
#define OKV_LOOP_ACCEPTOR_H

#include <stdint.h>

#include "okv/base/status.h"
#include "okv/loop/loop.h"

struct okv_acceptor { /* zero-initialised: stopped */
	struct okv_watch *watch;
	struct okv_timer pause;
	int fd;					 /* borrowed */
	void (*accepted)(void *context, int fd); /* `fd` is its own now, and non-blocking */
	void *context;
};

/* `fd` listens and does not block; it is closed by its owner, after the stop. */
OKV_MUST_CHECK enum okv_status okv_acceptor_start(struct okv_acceptor *acceptor, struct okv_loop *loop, int fd,
						  void (*accepted)(void *context, int fd), void *context,
						  struct okv_reason *reason);
/* Not from inside `accepted`. Harmless on one that is stopped. */
void okv_acceptor_stop(struct okv_acceptor *acceptor);

/*
 * A TCP socket that listens at a numeric address, IPv4 or IPv6; port 0 lets the system choose. OKV_ERR_EXISTS: the port
 * is taken, OKV_ERR_INVALID: no address, or none of this machine. `option` (static) becomes the reason's field.
 */
OKV_MUST_CHECK enum okv_status okv_tcp_listen(const char *option, const char *address, uint16_t port, int *ret_fd,
					      uint16_t *ret_port, struct okv_reason *reason);

#endif
