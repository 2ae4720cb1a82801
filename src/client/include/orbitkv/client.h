/*
 * orbitkv/client.h: what an engine links to share its KV cache through the cache manager of its host.
 *
 * The engine owns an arena: one memfd, sealed against growth and shrinking, in which its KV pages lie. The manager maps
 * it read-only and copies pages out at publish; the client copies pages in at restore. The client verifies each page
 * while it copies (XXH3-128) and reports a damaged one to the manager.
 *
 * Nothing here blocks. Each call that starts work returns a handle (0: cannot be started now, go on without) and ends
 * with exactly one completion from orbitkv_client_poll(), also after a cancel and when the manager is lost. Until that
 * completion the pages named in the call are in use: only the completion gives them back, never time.
 *
 *      publish  offer pages that will not change any more
 *      query    how many leading pages are in this host's pool
 *      prepare  bring the leading pages into the pool, from another host if need be, and pin them: gives a lease
 *      restore  copy a lease's pages into the arena
 *      release  end a lease, which unpins the pages
 *      fetch    prepare, restore and release in one
 *
 * All work is done inside poll, in slices of a few pages, by the thread that calls it. A client is used by one thread
 * at a time. When the manager goes away, everything outstanding completes with ORBITKV_DISCONNECTED, and poll keeps
 * trying to come back (100 ms to 3 s apart) with the same arena.
 *
 * The client maps the manager's whole pool read-only. Plain C; no other header of OrbitKV is needed.
 */
#ifndef ORBITKV_CLIENT_H
#define ORBITKV_CLIENT_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif

/* Changes when a program compiled against an older header could not use the library. */
#define ORBITKV_CLIENT_VERSION 1

#define ORBITKV_API __attribute__((visibility("default")))

enum orbitkv_status {
	ORBITKV_OK = 0,
	ORBITKV_INVALID,      /* what was asked contradicts itself or the session; the manager refused it */
	ORBITKV_NO_SPACE,     /* the pool or a budget is full; a later try may succeed */
	ORBITKV_STALE,	      /* the lease is over or was never given */
	ORBITKV_DAMAGED,      /* a page did not match its digest; the pages before it are good */
	ORBITKV_CANCELLED,    /* as asked */
	ORBITKV_DISCONNECTED, /* the manager is gone or left */
	ORBITKV_NO_MEMORY,    /* this process is short of it */
	ORBITKV_FAILED,	      /* anything else that the manager reports, such as a peer that did not answer */
};

struct orbitkv_client;

struct orbitkv_client_options {
	const char *socket_path; /* of the manager; copied */
	const char *name;	 /* printable, for people; copied */
	const void *key;	 /* encoded materialisation key (docs/formats/identity.md); copied */
	size_t key_size;
	int arena_fd; /* memfd sealed with F_SEAL_GROW and F_SEAL_SHRINK; duplicated */
	void *arena;  /* its writable mapping; borrowed until close */
	size_t arena_bytes;
};

/* One page of a sequence. Hashes as docs/formats/identity.md says. */
struct orbitkv_block {
	uint8_t hash[32], parent[32], lineage[32];
	const uint32_t *tokens; /* publish: token_count ids; borrowed until the call returns */
	uint32_t token_count;
	uint64_t arena_offset; /* of the page, bytes */
};

struct orbitkv_completion {
	uint64_t handle;
	enum orbitkv_status status;
	uint32_t blocks;       /* leading blocks that are done, also when status is not OK */
	uint64_t lease;	       /* prepare: to be released, 0 if blocks is 0 */
	uint64_t remote_bytes; /* prepare, fetch: bytes of these blocks that came from another host for this call */
};

/*
 * Makes a client; connecting is left to poll. `ret_problem` (may be NULL) gets a sentence that says what is wrong.
 * `version` is ORBITKV_CLIENT_VERSION.
 */
ORBITKV_API enum orbitkv_status orbitkv_client_open(int version, const struct orbitkv_client_options *options,
						    struct orbitkv_client **ret_client, char *ret_problem,
						    size_t problem_size);
/* Leaves the manager and frees the client. What is outstanding gets no completion any more: afterwards every page is
 * the engine's. NULL is harmless. */
ORBITKV_API void orbitkv_client_close(struct orbitkv_client *client);

/* Most pages of one call: 1,024, and fewer when a page has more than 36 tokens. */
ORBITKV_API uint32_t orbitkv_client_blocks_max(const struct orbitkv_client *client);

ORBITKV_API uint64_t orbitkv_client_publish(struct orbitkv_client *client, const struct orbitkv_block *blocks,
					    uint32_t count);
ORBITKV_API uint64_t orbitkv_client_query(struct orbitkv_client *client, const struct orbitkv_block *blocks,
					  uint32_t count);
ORBITKV_API uint64_t orbitkv_client_prepare(struct orbitkv_client *client, const struct orbitkv_block *blocks,
					    uint32_t count);
/* Copies the first `count` pages of the lease to the given places, which must not overlap. */
ORBITKV_API uint64_t orbitkv_client_restore(struct orbitkv_client *client, uint64_t lease,
					    const uint64_t *arena_offsets, uint32_t count);
ORBITKV_API uint64_t orbitkv_client_release(struct orbitkv_client *client, uint64_t lease);
/* The completion comes as soon as the pages are there; the release follows by itself. */
ORBITKV_API uint64_t orbitkv_client_fetch(struct orbitkv_client *client, const struct orbitkv_block *blocks,
					  uint32_t count);

/* Asks that `handle` end early: a prepare stops waiting, a copy stops. Its completion still comes, ORBITKV_CANCELLED or
 * what it was going to be. A handle that is over is ignored. */
ORBITKV_API void orbitkv_client_cancel(struct orbitkv_client *client, uint64_t handle);

/* Does a slice of work and takes one completion if there is one. */
ORBITKV_API bool orbitkv_client_poll(struct orbitkv_client *client, struct orbitkv_completion *ret_completion);
/* A descriptor that is readable while poll has something to do; for poll(2) and its kin, not to be read. */
ORBITKV_API int orbitkv_client_fd(const struct orbitkv_client *client);

ORBITKV_API bool orbitkv_client_is_connected(const struct orbitkv_client *client);
/* Why the client is not connected, one sentence; "" while it is. Valid until the next call. */
ORBITKV_API const char *orbitkv_client_problem(const struct orbitkv_client *client);

#ifdef __cplusplus
}
#endif

#endif
