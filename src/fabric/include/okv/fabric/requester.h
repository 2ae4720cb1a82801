/*
 * Requester: how blocks get from other managers into our pool, and how what they cost over there is given back.
 *
 * A caller starts a *fetch*: a list of block hashes under one key. The core finds owners, splits the list into
 * contiguous spans of one owner each, and runs one *transfer* a span:
 *
 *   WAIT_WINDOW -> AUTHORISING -> READY -> READING -> RELEASING -> gone
 *        |             |           |                     ^
 *        |             |           +-- nobody wants it --+   RELEASING repeats until the source answers, or its
 *        |             +-- no answer, connection lost ---+   incarnation is proven over. No deadline ends it.
 *        +-- no ticket yet: gone
 *
 * Each hash that is being fetched is a *want*, shared by every fetch that asks for it. A fetch ends at its deadline,
 * when it is cancelled, or when its wants are settled; transfers go their own way to the end.
 *
 * Invariants (tests refer to them by number)
 *   R1  a block is committed only after its range landed with the authorised crc, under the hash that was asked for.
 *   R2  a ticket that may have pinned something is released until the source answers or is proven over.
 *   R3  ticket generations of a slot only grow; a slot is used again only after its transfer is gone.
 *   R4  a fetch ends exactly once; cancelling one never ends another's read.
 *   R5  another owner is tried only before a READ was submitted, and at most OKV_REQUESTER_REPLANS_MAX times a job.
 *   R6  at most two transfers of a job are open at a time, and one of them reads.
 *
 * Pure: no I/O, no clock, no metrics. The driver on the owner loop tells what happened, with the time, and then takes
 * what is to be done with okv_requester_next() until there is nothing left. Only okv_requester_fetch() and
 * okv_requester_peer() allocate for a caller that can be told; later failures of memory end the fetch with a miss.
 */
#ifndef OKV_FABRIC_REQUESTER_H
#define OKV_FABRIC_REQUESTER_H

#include <stdbool.h>
#include <stdint.h>

#include "okv/base/list.h"
#include "okv/fabric/peer_message.h"

enum {
	OKV_REQUESTER_PEERS_MAX = 64,
	OKV_REQUESTER_SLOTS = 64,
	OKV_REQUESTER_TRANSFERS_MAX = 1024,
	OKV_REQUESTER_REPLANS_MAX = 2,
};

struct okv_requester;
struct okv_fetch;

/* One hash on its way. `handle` is the driver's: the committed block, which stays pinned until OKV_REQUESTER_UNPIN. */
struct okv_want;

struct okv_transfer {
	/* For the driver to read. */
	unsigned peer;
	struct okv_uuid owner; /* the peer's incarnation at authorise */
	struct okv_ticket ticket;
	uint8_t token[16];
	uint16_t count;
	struct okv_peer_authorised block[OKV_PEER_AUTHORISE_MAX];
	uint64_t asked_ns; /* when AUTHORISE was sent */
	/* The driver's own: its destinations and the mover's read. */
	void *driver;
};

struct okv_requester_options {
	struct okv_uuid incarnation;
	uint64_t rpc_timeout_ns;   /* 3 s */
	uint64_t locate_wait_ns;   /* how long one silent peer may hold up a plan */
	uint64_t backoff_first_ns; /* 100 ms, doubling */
	uint64_t backoff_last_ns;  /* 5 s */
};

/* What the manual says; the incarnation is the caller's to fill in. */
struct okv_requester_options okv_requester_defaults(void);

enum okv_requester_action_kind {
	OKV_REQUESTER_SEND,	   /* `message` to `peer` */
	OKV_REQUESTER_SUBMIT,	   /* reserve destinations for transfer->block[], start the READ, then _submitted() */
	OKV_REQUESTER_CANCEL_READ, /* okv_mover_read_cancel(); the READ_ENDED event is the answer */
	OKV_REQUESTER_DONE,  /* `fetch` has ended; the driver tells its caller and then okv_requester_fetch_free() */
	OKV_REQUESTER_UNPIN, /* no fetch refers to `handle` any more */
};

struct okv_requester_action {
	enum okv_requester_action_kind kind;
	unsigned peer;
	struct okv_transfer *transfer;
	struct okv_fetch *fetch;
	void *handle;
};

struct okv_fetch_result {
	enum okv_status status; /* OK: every block; ABSENT: some; DEADLINE, CANCELLED, MISMATCH (of the key), ... */
	uint32_t leading;	/* blocks from the first on that are committed: what a prefix can use */
	uint64_t bytes;		/* of them */
	/* Of the plan for the blocks that no other fetch was fetching: spans of one owner that were tried, those tried
	 * again elsewhere too, and how many came whole. */
	uint32_t segments, segments_completed;
	char field[OKV_PEER_NAME_MAX]; /* MISMATCH: the first differing field of the key */
};

/* Read-only for everyone but the core. */
struct okv_requester_counts {
	uint64_t fetches, wants, transfers, reading, completions_outstanding; /* now */
	uint64_t completion_retries, completion_rejections, peers_gone;	      /* ever */
	uint64_t fetched_blocks, fetched_bytes, coalesced_wants, replans;
	uint64_t releases, last_release_ns; /* acknowledged ones; how long the latest took from its first asking */
	uint64_t bad_crc, bad_length, bad_identity; /* blocks refused */
	uint64_t refusals[OKV_PEER_REFUSAL_COUNT];  /* by sources */
};

OKV_MUST_CHECK enum okv_status okv_requester_create(const struct okv_requester_options *options,
						    struct okv_requester **ret_requester);
/* Frees everything, also what is under way; only when no mover runs any more. */
void okv_requester_destroy(struct okv_requester *requester);
const struct okv_requester_counts *okv_requester_counts(const struct okv_requester *requester);

/* --- peers: a static place each ---------------------------------------------------------------------------------- */

/* Names a new peer, not connected. OKV_ERR_BUDGET over OKV_REQUESTER_PEERS_MAX. */
OKV_MUST_CHECK enum okv_status okv_requester_peer(struct okv_requester *requester, unsigned *ret_peer);
/* A control connection stands and `owner` answered on it. */
void okv_requester_connected(struct okv_requester *requester, unsigned peer, const struct okv_uuid *owner,
			     uint64_t now_ns);
/* The connection is lost; the peer may live. */
void okv_requester_disconnected(struct okv_requester *requester, unsigned peer, uint64_t now_ns);
/* Proof that nobody is there: its address refuses connections. */
void okv_requester_refused(struct okv_requester *requester, unsigned peer, uint64_t now_ns);
/* A reply came. Replies nobody waits for any more are ignored. False if it is not a reply: the peer breaks the
 * protocol. */
bool okv_requester_reply(struct okv_requester *requester, unsigned peer, const struct okv_peer_message *message,
			 uint64_t now_ns);

/* --- fetches ----------------------------------------------------------------------------------------------------- */

/* What a block must be to be taken for the one that is wanted. */
struct okv_fetch_block {
	struct okv_hash hash, parent, lineage;
	uint32_t token_count;
};

/*
 * Starts to fetch `count` (1..OKV_PEER_LOCATE_MAX) blocks of `block_bytes` each, of one prefix and in its order: where
 * one cannot be had, the later ones are not asked for. `context` is the caller's. Ends with one OKV_REQUESTER_DONE.
 */
OKV_MUST_CHECK enum okv_status okv_requester_fetch(struct okv_requester *requester,
						   const struct okv_materialisation_key *key, uint64_t block_bytes,
						   const struct okv_fetch_block *block, uint32_t count,
						   uint64_t deadline_ns, uint64_t now_ns, void *context,
						   struct okv_fetch **ret_fetch);
/* Ends the fetch with CANCELLED; what is being read goes on, since its bytes are useful. Not after its DONE. */
void okv_requester_cancel(struct okv_requester *requester, struct okv_fetch *fetch);
struct okv_fetch_result okv_fetch_result(const struct okv_fetch *fetch);
void *okv_fetch_context(const struct okv_fetch *fetch);
/* Whether the block came; *ret_handle is what okv_requester_committed() was told. After DONE, before the free. */
bool okv_fetch_landed(const struct okv_fetch *fetch, uint32_t index, void **ret_handle);
void okv_requester_fetch_free(struct okv_requester *requester, struct okv_fetch *fetch);

/* --- what the driver did ----------------------------------------------------------------------------------------- */

/* The READ is under way (OKV_OK), or could not start and nothing is reserved. */
void okv_requester_submitted(struct okv_requester *requester, struct okv_transfer *transfer, enum okv_status status,
			     uint64_t now_ns);
/* Range `index` is in memory. OKV_OK: commit it and say okv_requester_committed(); OKV_ERR_DAMAGED: do not. */
OKV_MUST_CHECK enum okv_status okv_requester_landed(struct okv_requester *requester, struct okv_transfer *transfer,
						    uint16_t index, const struct okv_crc *crc);
/* The block is visible and `handle` pinned; NULL if it was there already from elsewhere. */
void okv_requester_committed(struct okv_requester *requester, struct okv_transfer *transfer, uint16_t index,
			     void *handle);
/* The mover touches the destinations no more, and the driver has given back those that were not committed. */
void okv_requester_read_ended(struct okv_requester *requester, struct okv_transfer *transfer, enum okv_status status,
			      uint64_t now_ns);

/* --- time and actions -------------------------------------------------------------------------------------------- */

/* The manager stops: every fetch ends, every READ is called off; nothing may be started after it. */
void okv_requester_stop(struct okv_requester *requester, uint64_t now_ns);
void okv_requester_tick(struct okv_requester *requester, uint64_t now_ns);
/* When to tick next; UINT64_MAX if nothing waits for time. */
uint64_t okv_requester_wake_ns(const struct okv_requester *requester);

/* What is to be done next; false when there is nothing. A SEND's message is written to *ret_message. */
bool okv_requester_next(struct okv_requester *requester, uint64_t now_ns, struct okv_requester_action *ret_action,
			struct okv_peer_message *ret_message);

#endif
