/*
 * The client's one object, shared by its files. An operation's index is its ring slot, so an operation can always send
 * its next request; slots OPERATIONS_MAX .. OKV_RING_SLOTS - 1 are left for cancel requests.
 *
 *     FREE -> ASKED (a request is outstanding) -> COPYING -> ASKED (report damaged, release) -> FREE
 *
 * `due` counts operations that were started and whose completion was not taken yet; it is at most OPERATIONS_MAX, so
 * the queue of completions cannot overflow.
 */
#ifndef ORBITKV_CLIENT_OBJECT_H
#define ORBITKV_CLIENT_OBJECT_H

#include <sys/un.h>

#include "okv/base/region.h"
#include "okv/session/message.h"
#include "okv/session/ring.h"
#include "orbitkv/client.h"

enum { OPERATIONS_MAX = 24 };

#define SOCKET_PATH_SIZE sizeof(((struct sockaddr_un *)0)->sun_path)

enum operation_state { OPERATION_FREE, OPERATION_ASKED, OPERATION_COPYING };

struct operation {
	enum operation_state state;
	enum okv_ring_op call;	/* what the engine asked for; fetch is PREPARE with is_fetch */
	enum okv_ring_op asked; /* the request that is outstanding */
	bool is_fetch, is_cancelled, cancel_is_due, is_completed;
	uint64_t generation; /* of the outstanding request */
	struct orbitkv_completion completion;
	/* Restoring: `count` places in the arena, the grants, and how far the copy got. */
	uint32_t count;
	uint64_t *arena_offset;	       /* owned; NULL unless restoring */
	struct okv_ring_grant *grants; /* owned; NULL before the answer */
	uint32_t copied;
};

enum connection_state { CONNECTION_NONE, CONNECTION_GREETED, CONNECTION_READY };

struct orbitkv_client {
	/* What never changes. */
	char socket_path[SOCKET_PATH_SIZE];
	struct okv_session_hello hello;
	int arena_fd;			 /* owned */
	uint8_t *arena;			 /* borrowed */
	int epoll_fd, timer_fd, work_fd; /* owned; epoll_fd watches the other two and the socket */

	/* The connection. */
	enum connection_state state;
	int socket; /* owned; -1 without connection */
	struct okv_region ring_region, pool;
	struct okv_ring_client ring;
	uint64_t backoff_ms;
	struct okv_reason problem;

	/* The operations. */
	struct operation operation[OPERATIONS_MAX];
	uint32_t next_copy; /* takes turns among those that copy */
	uint64_t next_handle;
	uint32_t due;
	struct orbitkv_completion completed[OPERATIONS_MAX]; /* a ring: completed_first, completed_count */
	uint32_t completed_first, completed_count;
	struct okv_ring_grant grants[OKV_RING_BLOCKS_MAX]; /* scratch of one take */
	bool work_is_signalled;
};

/* connection.c: one non-blocking step towards, or with, the manager. */
void okv__client_connect_step(struct orbitkv_client *client);
/* Rings the manager's bell. */
void okv__client_ring_bell(struct orbitkv_client *client);
/* Leaves the manager, ends every operation with ORBITKV_DISCONNECTED and plans the next try. */
void okv__client_disconnect(struct orbitkv_client *client);

/* operation.c */
/* A free operation with its slot taken, its call set and a handle; NULL if none can be started now. */
struct operation *okv__operation_start(struct orbitkv_client *client, enum okv_ring_op call);
/* Undoes a start of which nothing was sent. */
void okv__operation_abandon(struct orbitkv_client *client, struct operation *operation);
void okv__operation_ask(struct orbitkv_client *client, struct operation *operation, struct okv_ring_request request);
/* Takes every answer that is there. */
void okv__operations_take_answers(struct orbitkv_client *client);
/* Sends cancels that are due and copies one slice. */
void okv__operations_work(struct orbitkv_client *client);
/* True while another call of okv__operations_work() has something to do. */
bool okv__operations_have_work(const struct orbitkv_client *client);
void okv__operations_disconnected(struct orbitkv_client *client);

#endif
