/*
 * Source: who may be reading our memory, decided here and only here.
 *
 * Each control connection of a requester opens windows; a window has 64 slots; a slot has at most one hold: blocks that
 * stay pinned until the requester releases the ticket or is proven to be gone. The requester picks the ticket before it
 * asks, so it can end a hold whose answer was lost.
 *
 *            authorise, newer generation                  release of its ticket, or reader gone
 *   EMPTY(g) ----------------------------> HELD(g') --------------------------------------------> ENDING(g')
 *      |  ^                                                                                           |
 *      +--+ release, newer generation: fences the authorise that it overtook           mover: GRANT_ENDED (at once
 *                                                                                      if the bytes were all sent)
 *                                                                                       EMPTY(g') <---+
 * Invariants (tests refer to them by number)
 *   S1  a slot's generation never decreases.
 *   S2  only the release of its own ticket, or the proof that its reader is gone, ends a hold; time marks it
 *       overdue and does nothing else.
 *   S3  the release of an older ticket, or of another window's, never touches a hold.
 *   S4  blocks are given back only when the mover reads them no more.
 *   S5  reserved_bytes and active_blocks are the sums over holds; reserved_bytes never exceeds limit_bytes.
 *   S6  a window is evicted only while none of its slots is held.
 *
 * Pure: no I/O, no clock, no metrics. The driver on the owner loop calls in with messages and the mover's reports and
 * then takes what is to be done with okv_source_next() until there is nothing left. Messages come from the network:
 * every field is checked and refused, never asserted.
 */
#ifndef OKV_FABRIC_SOURCE_H
#define OKV_FABRIC_SOURCE_H

#include <stdbool.h>
#include <stdint.h>

#include "okv/base/list.h"
#include "okv/fabric/peer_message.h"

enum { OKV_SOURCE_WINDOWS_MAX = 1024, OKV_SOURCE_SESSIONS_MAX = 1024, OKV_SOURCE_SLOTS = 64 };

struct okv_source;

/* What the driver found in its store for one wanted block. */
struct okv_source_block {
	void *block;	     /* the driver's; NULL if nothing with that hash and key is resident */
	uint64_t generation; /* of its residence */
	uint64_t length;
};

/* Where an answer goes; the driver's own words. */
struct okv_source_reply {
	void *connection; /* NULL: nobody waits */
	uint64_t request_id;
};

/* Blocks pinned for one ticket. Fields are for the driver to read, except `grant_id`, which is the driver's. */
struct okv_source_hold {
	struct okv_list node;
	struct okv_source_window *window; /* its window, by the core */
	struct okv_ticket ticket;
	uint64_t bytes; /* unique allocations */
	uint64_t since_ns;
	uint64_t grant_id; /* the mover's */
	bool is_granted;   /* the mover may touch the bytes */
	bool is_ending, is_overdue;
	struct okv_source_reply reply; /* of the release that waits for the mover */
	uint16_t count;
	void *block[OKV_PEER_AUTHORISE_MAX];
};

enum okv_source_action_kind {
	OKV_SOURCE_END_GRANT, /* okv_mover_grant_end(hold->grant_id) */
	OKV_SOURCE_FINISH,    /* unpin every block, answer hold->reply with RELEASED, then okv_source_hold_free() */
};

struct okv_source_action {
	enum okv_source_action_kind kind;
	struct okv_source_hold *hold;
};

/* Read-only for everyone but the core. */
struct okv_source_counts {
	uint64_t windows, sessions, active_blocks, reserved_bytes, overdue_sessions;	    /* now */
	uint64_t authorised, rejections_bytes, rejections_sessions, timeouts, readers_gone; /* ever */
};

/* `owner` is this manager's incarnation. */
OKV_MUST_CHECK enum okv_status okv_source_create(const struct okv_uuid *owner, uint64_t limit_bytes,
						 struct okv_source **ret_source);
/* Frees the core and every hold; only when no mover runs any more. */
void okv_source_destroy(struct okv_source *source);
const struct okv_source_counts *okv_source_counts(const struct okv_source *source);

/* OPEN_WINDOW. `reader` is the driver's name for the connection on which it came: the connection's end is the window's.
 * `fresh` is the new window's name, random. */
enum okv_peer_refusal okv_source_open(struct okv_source *source, const struct okv_uuid *owner,
				      const struct okv_uuid *reader, const struct okv_uuid *fresh);

/*
 * AUTHORISE of `count` blocks. `found[i]` is what the store has for the i-th, `generation[i]` what the requester wants.
 * On OKV_PEER_GRANTED the driver pins hold->block[], grants them to the mover and says okv_source_granted().
 */
enum okv_peer_refusal okv_source_authorise(struct okv_source *source, const struct okv_ticket *ticket,
					   const struct okv_uuid *owner, const struct okv_peer_wanted *wanted,
					   const struct okv_source_block *found, uint16_t count, uint64_t now_ns,
					   struct okv_source_hold **ret_hold);
/* The mover took the grant; or refused it (`granted` false), and the hold is finished. */
void okv_source_granted(struct okv_source *source, struct okv_source_hold *hold, bool granted, uint64_t grant_id);

/*
 * RELEASE. True: answer at once with *ret_refusal and *ret_blocks. False: the answer comes with the hold's FINISH,
 * because the mover has to stop first.
 */
bool okv_source_release(struct okv_source *source, const struct okv_ticket *ticket, struct okv_source_reply reply,
			enum okv_peer_refusal *ret_refusal, uint32_t *ret_blocks);

/* The control connection closed: no more authorise in the windows that were opened on it, and their holds end. */
void okv_source_reader_gone(struct okv_source *source, const struct okv_uuid *reader);
/* No answer can be sent to this connection any more. */
void okv_source_forget_connection(struct okv_source *source, const void *connection);
/* The mover touches the bytes no more. `reader_gone`: because the reader broke off; then this hold is over, and no
 * other: a reader that gives up one read at its deadline still makes its others. */
void okv_source_grant_ended(struct okv_source *source, uint64_t grant_id, bool reader_gone);

/* Marks holds older than `limit_ns`; how many were newly marked. Frees nothing (S2). */
unsigned okv_source_mark_overdue(struct okv_source *source, uint64_t now_ns, uint64_t limit_ns);

/* What is to be done next; false when there is nothing. */
bool okv_source_next(struct okv_source *source, struct okv_source_action *ret_action);
void okv_source_hold_free(struct okv_source_hold *hold);

#endif
