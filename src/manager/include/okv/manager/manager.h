/*
 * Manager: the cache manager of one host, on an owner loop of its caller's.
 *
 *     engines of this host --(Unix socket, shared memory)--> manager <--(control and data connections)--> other
 * managers
 *                                                               |
 *                                                               +-- HTTP on loopback: /health /metrics /instances
 *                                                                   /cache/sync /cache/memory/cleanup
 *
 * okv_manager_create() listens everywhere and is ready when it returns; everything then happens on the loop's thread,
 * except copies and digests (one worker thread) and bytes between hosts (the mover's thread).
 *
 * okv_manager_shutdown() takes nothing new, ends the sessions, lets copies that run end, and says when it is done. An
 * engine that still copies out of the pool is not waited for: its mapping keeps the memory, and nobody writes to it.
 */
#ifndef OKV_MANAGER_MANAGER_H
#define OKV_MANAGER_MANAGER_H

#include <stddef.h>
#include <stdint.h>

#include "okv/base/status.h"

struct okv_loop;
struct okv_manager;

/* Everything is copied. */
struct okv_manager_options {
	const char *socket_path; /* where engines attach; its folder exists */
	uint64_t pool_bytes;
	const char *http_address;   /* loopback only: the interface has no access control */
	uint16_t http_port;	    /* 0: any */
	const char *listen_address; /* where other managers connect; "" for not at all */
	uint16_t listen_port;	    /* 0: any */
	const char *const *peers;   /* "HOST:PORT" of other managers */
	size_t peer_count;
	uint64_t peer_deadline_ns; /* how long a request waits for a silent peer */
	const char *faults;	   /* fault points to arm, as in okv/base/fault.h; NULL or "" for none */
};

OKV_MUST_CHECK enum okv_status okv_manager_create(struct okv_loop *loop, const struct okv_manager_options *options,
						  struct okv_manager **ret_manager, struct okv_reason *reason);
uint16_t okv_manager_http_port(const struct okv_manager *manager);
uint16_t okv_manager_peer_port(const struct okv_manager *manager);

/* `done` is called once, on the loop, when nothing runs any more. Once only. */
void okv_manager_shutdown(struct okv_manager *manager, void (*done)(void *context), void *context);
/* After `done`, or after a create that nothing has used yet. NULL is harmless. */
void okv_manager_destroy(struct okv_manager *manager);

#endif
