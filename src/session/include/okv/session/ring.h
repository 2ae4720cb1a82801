/*
 * Ring: how requests and replies cross between an engine and its manager once they met, in one shared memfd.
 *
 *     head | requests (engine -> manager) | replies (manager -> engine) | slot 0 .. 31: request area, reply area
 *
 * Each direction is a single-producer single-consumer ring of 64-byte messages with two counters that only grow: the
 * producer writes entries, then stores its counter with release; the consumer loads it with acquire, takes entries,
 * then stores its own. A request occupies a slot until its reply, so neither ring can overflow. A slot's generation is
 * odd in the request and the next even number in the reply; a reused slot goes on from there, so nothing late can be
 * taken for an answer. Block descriptors and token ids lie in the slot's areas.
 *
 * The engine may be hostile and may write anything at any time. The manager's end therefore keeps its own counters and
 * generations, copies a request out of shared memory once, and checks and uses only the copy. What an honest engine
 * could never write (a counter beyond the ring, a stale or even generation, an unknown operation, a count over the
 * limit) is OKV_ERR_PROTOCOL and the end of that session; a request that is well formed but wrong is refused by itself.
 *
 * Invariants (tests refer to them by number)
 *   R1  a request is taken once, in order, and only with a generation above every earlier one of its slot.
 *   R2  the manager reads shared memory of a request once; later writes change nothing.
 *   R3  no value in shared memory makes either end read or write outside its own memory or the ring.
 *   R4  each request gets one reply, and a reply is taken only for the request that is outstanding in its slot.
 *
 * Pure: no I/O; the doorbell (message.h) is the driver's. Each end belongs to one thread.
 */
#ifndef OKV_SESSION_RING_H
#define OKV_SESSION_RING_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "okv/base/digest.h"
#include "okv/base/status.h"

enum {
	OKV_RING_SLOTS = 32,
	OKV_RING_BLOCKS_MAX = 1024,	    /* of one request: 16,384 tokens in pages of 16 */
	OKV_RING_REQUEST_BYTES = 256 << 10, /* area a slot: blocks, then token ids */
	OKV_RING_REPLY_BYTES = 64 << 10,    /* area a slot: grants */
};

/* What goes with each operation, and what its reply says beside its status. */
enum okv_ring_op {
	OKV_RING_PUBLISH = 1, /* blocks, token ids; count: leading blocks that were taken or are there already */
	OKV_RING_QUERY,	      /* blocks; count: leading blocks in this host's pool */
	OKV_RING_PREPARE,     /* blocks; count of leading blocks, remote_bytes, and a lease if count > 0 */
	OKV_RING_RESTORE,     /* lease; count grants: from here on the engine may read */
	OKV_RING_RELEASE,     /* lease: the engine reads nothing of it any more */
	OKV_RING_CANCEL,      /* target_slot, target_generation of an outstanding PREPARE, which gets its own reply */
	OKV_RING_REPORT_DAMAGED, /* lease, index: that block's bytes do not match its digest */
	OKV_RING_OPS,
};

struct okv_ring_request {
	uint32_t op, slot;
	uint64_t generation;
	uint32_t count, tokens; /* blocks and, for PUBLISH, token ids behind them */
	uint64_t lease;
	uint32_t index, target_slot;
	uint64_t target_generation;
	uint64_t reserved[2];
};

struct okv_ring_reply {
	uint32_t op, slot;
	uint64_t generation;
	uint32_t status, count; /* enum okv_status */
	uint64_t lease, remote_bytes;
	uint64_t reserved[3];
};

/* One page of a sequence. Its length is the session's page_bytes. */
struct okv_ring_block {
	struct okv_hash hash, parent, lineage;
	uint64_t arena_offset; /* PUBLISH: where the bytes are */
	uint32_t token_count;
	uint32_t reserved;
};

struct okv_ring_grant {
	uint64_t pool_offset, length;
	struct okv_crc crc;
};

_Static_assert(sizeof(struct okv_ring_request) == 64, "one cache line");
_Static_assert(sizeof(struct okv_ring_reply) == 64, "one cache line");
_Static_assert(sizeof(struct okv_ring_block) == 112, "docs/formats/session.md");
_Static_assert(sizeof(struct okv_ring_grant) == 32, "docs/formats/session.md");
_Static_assert(__BYTE_ORDER__ == __ORDER_LITTLE_ENDIAN__, "the ring is little-endian");

/* Size of the shared region; both ends insist on it. */
size_t okv_ring_bytes(void);
/* Blocks of `page_tokens` tokens that one PUBLISH can carry. */
uint32_t okv_ring_publish_blocks_max(uint32_t page_tokens);

/* ---- the engine's end ---- */

struct okv_ring_client {
	uint8_t *base; /* borrowed: the region */
	uint64_t requests_sent, replies_taken;
	uint64_t generation[OKV_RING_SLOTS]; /* odd while a request is outstanding */
	bool is_taken[OKV_RING_SLOTS];
};

/* Writes the head of a fresh region of okv_ring_bytes() zeroed bytes. */
void okv_ring_client_init(struct okv_ring_client *ring, uint8_t *base);
/* Takes a slot for a request; false if all are in use. */
bool okv_ring_client_take_slot(struct okv_ring_client *ring, uint32_t *ret_slot);
/* Gives back a slot without outstanding request. */
void okv_ring_client_give_slot(struct okv_ring_client *ring, uint32_t slot);
/* The slot's request area, to be filled before the send. */
struct okv_ring_block *okv_ring_client_blocks(struct okv_ring_client *ring, uint32_t slot);
/* Sends a request whose `slot` is taken; its generation is set here and returned. */
uint64_t okv_ring_client_send(struct okv_ring_client *ring, struct okv_ring_request *request);
/* Takes the next reply. OKV_ERR_ABSENT: none. OKV_ERR_PROTOCOL: the manager's end is broken. `ret_grants` has room for
 * OKV_RING_BLOCKS_MAX and is filled for RESTORE. */
OKV_MUST_CHECK enum okv_status okv_ring_client_take(struct okv_ring_client *ring, struct okv_ring_reply *ret_reply,
						    struct okv_ring_grant *ret_grants, struct okv_reason *reason);

/* ---- the manager's end ---- */

struct okv_ring_limits {
	uint64_t page_bytes, arena_bytes; /* arena_bytes >= page_bytes */
	uint32_t page_tokens;
	struct okv_hash key_digest;
};

struct okv_ring_manager {
	uint8_t *base;	  /* borrowed: the region */
	uint8_t *scratch; /* borrowed: OKV_RING_REQUEST_BYTES, 8-aligned, may be shared by sessions of one thread */
	struct okv_ring_limits limits;
	uint64_t requests_taken, replies_sent;
	uint64_t generation[OKV_RING_SLOTS]; /* last seen; odd while it waits for its reply */
};

/* A private copy of a request, valid until the next take with the same scratch. */
struct okv_ring_call {
	struct okv_ring_request request;
	const struct okv_ring_block *blocks;
	const uint32_t *tokens;
};

/* Refuses a region whose head is not of this version. */
OKV_MUST_CHECK enum okv_status okv_ring_manager_init(struct okv_ring_manager *ring, uint8_t *base, uint8_t *scratch,
						     const struct okv_ring_limits *limits, struct okv_reason *reason);
/* OKV_ERR_ABSENT: nothing to take. OKV_ERR_PROTOCOL: the session must end. */
OKV_MUST_CHECK enum okv_status okv_ring_manager_take(struct okv_ring_manager *ring, struct okv_ring_call *ret_call,
						     struct okv_reason *reason);
/*
 * Looks into the blocks of a call: OKV_ERR_INVALID for a page outside the arena, a token count outside 1..page, or
 * token ids that do not add up; for a PUBLISH also OKV_ERR_MISMATCH when a block's hash does not follow from the
 * session's key and the tokens. The request is to be answered with that status.
 */
OKV_MUST_CHECK enum okv_status okv_ring_manager_check(const struct okv_ring_manager *ring,
						      const struct okv_ring_call *call, struct okv_reason *reason);
/* True if a request with this generation waits in `slot`. */
bool okv_ring_manager_is_open(const struct okv_ring_manager *ring, uint32_t slot, uint64_t generation);
/* Answers the request open in reply->slot; the generation is set here. `grants`: reply->count of them, or NULL.
 * OKV_ERR_PROTOCOL: the engine's counter is impossible; the session must end. */
OKV_MUST_CHECK enum okv_status okv_ring_manager_reply(struct okv_ring_manager *ring, struct okv_ring_reply *reply,
						      const struct okv_ring_grant *grants, struct okv_reason *reason);

#endif
