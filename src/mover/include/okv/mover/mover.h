/*
 * Mover: moves byte ranges between the pools of two hosts, and knows nothing else about them.
 *
 * The source grants ranges of its memory under an unguessable token; whoever presents the token on a data connection
 * may READ them once, straight into memory of its own. The owner gives orders through these calls (any one owner
 * thread) and, when wait_fd is readable, takes events with okv_mover_poll() until it says that there are none.
 *
 * What is served and large reads move on a thread of the mover's own. Small reads, of at most 1 MiB, are received
 * inside okv_mover_poll(), without waking another thread: a call takes of each what has come, and never waits.
 *
 * Ownership, never time, frees memory. A grant ends with exactly one OKV_MOVER_GRANT_ENDED, and a read with exactly one
 * OKV_MOVER_READ_ENDED; until then the ranges belong to the mover. After it, no byte of them is touched any more: the
 * mover itself is who copies between socket and memory, so a send or receive that it has finished or cancelled is a
 * completion. okv_mover_grant_end() and okv_mover_read_cancel() only ask; the event is the answer.
 */
#ifndef OKV_MOVER_MOVER_H
#define OKV_MOVER_MOVER_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "okv/base/digest.h"
#include "okv/base/status.h"

struct okv_mover;
struct okv_faults;

struct okv_mover_token {
	uint8_t bytes[16];
};

struct okv_mover_range {
	uint8_t *bytes; /* borrowed until the ENDED event */
	uint64_t size;
};

enum okv_mover_event_kind {
	OKV_MOVER_RANGE_LANDED, /* read: range `index` is complete; its crc was computed while the bytes were warm */
	OKV_MOVER_READ_ENDED,	/* read: the destination is the owner's again */
	OKV_MOVER_GRANT_ENDED,	/* grant: the source is the owner's again */
};

struct okv_mover_event {
	enum okv_mover_event_kind kind;
	uint64_t id;		/* of the read or grant */
	uint32_t index;		/* RANGE_LANDED */
	struct okv_crc crc;	/* RANGE_LANDED: XXH3-128 of the range */
	enum okv_status status; /* ENDED: OKV_OK when every byte moved; DISCONNECTED, CANCELLED, PROTOCOL, ABSENT (no
				   such token) */
	bool reader_gone;	/* GRANT_ENDED: the reader's connection broke while it was reading */
	uint64_t bytes;		/* ENDED: moved */
};

struct okv_mover_options {
	const char *listen_address; /* IPv4 or IPv6 literal; "" for no source side */
	uint16_t listen_port;	    /* 0: any */
	unsigned connections;	    /* to a peer, for small reads and for large ones each; 0: the measured default */
	struct okv_faults *faults;  /* borrowed; may be NULL */
};

OKV_MUST_CHECK enum okv_status okv_mover_create(const struct okv_mover_options *options, struct okv_mover **ret_mover,
						struct okv_reason *reason);
/* Cancels everything, takes all events itself, joins its thread. After it no memory is referenced. */
void okv_mover_destroy(struct okv_mover *mover);
uint16_t okv_mover_port(const struct okv_mover *mover);

/* Source: lets one reader who knows `token` read `count` ranges in order. Copies the array, not the bytes. */
OKV_MUST_CHECK enum okv_status okv_mover_grant(struct okv_mover *mover, const struct okv_mover_token *token,
					       const struct okv_mover_range *ranges, uint32_t count, uint64_t *ret_id);
/* Source: no read may start any more, and one that runs is cut off. Answered by GRANT_ENDED. */
void okv_mover_grant_end(struct okv_mover *mover, uint64_t grant_id);

/* Requester: reads what `token` grants at `address`:`port` into the ranges, whose sizes must add up to the grant's. */
OKV_MUST_CHECK enum okv_status okv_mover_read(struct okv_mover *mover, const char *address, uint16_t port,
					      const struct okv_mover_token *token, const struct okv_mover_range *ranges,
					      uint32_t count, uint64_t *ret_id);
/* Requester: answered by READ_ENDED, at once even if the other end is silent. */
void okv_mover_read_cancel(struct okv_mover *mover, uint64_t read_id);

/* The next event. False if there is none now: only then does wait_fd tell of the next one. */
bool okv_mover_poll(struct okv_mover *mover, struct okv_mover_event *ret_event);
/* Readable (level-triggered) when okv_mover_poll() has something to do. The one event that does not make it so is that
 * of a grant that was read to its end, until okv_mover_grant_end() asks for it: its reader's release comes next anyway.
 */
int okv_mover_wait_fd(const struct okv_mover *mover);

#endif
