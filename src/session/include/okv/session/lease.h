/*
 * Leases: who may be reading which pinned blocks of the pool, and what ends that.
 *
 *            open                 ready                  activate
 *   FREE ----------> PREPARING ----------> READY ------------------------> ACTIVE ------------> FREE
 *                       |    |               |  release, orphan               |    release,
 *                       |    | drop          +-----------------> FREE         |    orphan (reader gone)
 *        cancel, orphan |    +-> FREE                                         |
 *                       v                                   orphan            v            orphan (reader gone)
 *                    UNWANTED ---------------> FREE   (the reader lives)  QUARANTINED ------------> FREE
 *                               ready or drop
 *
 * PREPARING: blocks are pinned as they arrive, some may still come from a peer. READY: all are pinned, nobody was told
 * where they are. ACTIVE: the engine knows the offsets and may be reading. A session that closes makes its leases
 * orphans: a READY one was never read and ends, an ACTIVE one is quarantined, still charged, until its process is
 * proven dead or says in a new session that it reads nothing of the old one any more.
 *
 * Invariants (tests refer to them by number)
 *   L1  an ACTIVE or QUARANTINED lease ends by its holder's release or by proof that the reader is gone; never by time,
 *       never by a closed socket alone.
 *   L2  an id is never used twice; an operation on a lease that is over is STALE and changes nothing.
 *   L3  only the session that opened a lease can act on it.
 *   L4  held_bytes is the sum over leases that are not FREE, and never exceeds limit_bytes.
 *
 * The table holds no blocks: its owner keeps them beside it, indexed by okv_lease_index(), and unpins them exactly when
 * a call here says that the lease became FREE. Pure; one owner.
 */
#ifndef OKV_SESSION_LEASE_H
#define OKV_SESSION_LEASE_H

#include <stdbool.h>
#include <stdint.h>

#include "okv/base/status.h"

enum { OKV_LEASES = 1024, OKV_LEASES_PER_SESSION = 128 };

enum okv_lease_state {
	OKV_LEASE_FREE,
	OKV_LEASE_PREPARING,
	OKV_LEASE_UNWANTED,
	OKV_LEASE_READY,
	OKV_LEASE_ACTIVE,
	OKV_LEASE_QUARANTINED,
	OKV_LEASE_STATES,
};

struct okv_lease {
	enum okv_lease_state state;
	uint64_t generation; /* of the place; 0 before its first use */
	uint64_t session, bytes;
};

/* Zeroed with limit_bytes set is ready. About 32 KiB: embed it in something on the heap. */
struct okv_leases {
	uint64_t limit_bytes, held_bytes;
	uint32_t count[OKV_LEASE_STATES]; /* by state; count[OKV_LEASE_FREE] stays 0 */
	uint32_t next;			  /* where the search for a free place starts */
	struct okv_lease lease[OKV_LEASES];
};

/* OKV_ERR_BUDGET: `bytes` more would exceed the limit. OKV_ERR_BUSY: the session, or all together, have too many. */
OKV_MUST_CHECK enum okv_status okv_lease_open(struct okv_leases *leases, uint64_t session, uint64_t bytes,
					      uint64_t *ret_id);

/* The owner's own step: PREPARING becomes READY with `bytes` (at most what it was opened with). OKV_ERR_CANCELLED:
 * nobody wants it any more; it is FREE now. */
OKV_MUST_CHECK enum okv_status okv_lease_ready(struct okv_leases *leases, uint64_t id, uint64_t bytes);
/* The owner's own step: PREPARING or UNWANTED becomes FREE, since nothing came. */
void okv_lease_drop(struct okv_leases *leases, uint64_t id);

/*
 * The client's steps; every id comes from outside. OKV_ERR_STALE: over already. OKV_ERR_AHEAD: was never given out.
 * OKV_ERR_PERMISSION: another session's. OKV_ERR_BUSY: not in a state for it (release or activate while PREPARING,
 * cancel after it). OKV_ERR_EXISTS: active already.
 */
OKV_MUST_CHECK enum okv_status okv_lease_cancel(struct okv_leases *leases, uint64_t session, uint64_t id);
OKV_MUST_CHECK enum okv_status okv_lease_activate(struct okv_leases *leases, uint64_t session, uint64_t id);
/* OKV_OK: FREE now. */
OKV_MUST_CHECK enum okv_status okv_lease_release(struct okv_leases *leases, uint64_t session, uint64_t id);
/* OKV_OK if the lease is an ACTIVE one of this session. */
OKV_MUST_CHECK enum okv_status okv_lease_check_active(const struct okv_leases *leases, uint64_t session, uint64_t id);

/* The session's socket is closed. `is_reader_gone`: its process is proven dead, or disclaims it. True: FREE now. */
bool okv_lease_orphan(struct okv_leases *leases, uint64_t id, bool is_reader_gone);

/* The ids of a session's leases, in any order: start with 0; 0 at the end. The one just returned may be ended. */
uint64_t okv_lease_next(const struct okv_leases *leases, uint64_t session, uint64_t after);

/* Place of an id in the table. */
static inline uint32_t okv_lease_index(uint64_t id)
{
	return (uint32_t)(id % OKV_LEASES);
}

#endif
