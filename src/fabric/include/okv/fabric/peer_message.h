/*
 * Peer messages: what managers say to each other on a control connection (docs/formats/peer.md).
 *
 * The requester connects and asks; the source answers each request under its request id. A frame is a 20-byte header
 * (magic, version, type, payload length, request id) and a payload of fixed little-endian fields; lists have counts
 * with limits, so a message is a value of bounded size and decoding allocates nothing.
 *
 *     HELLO -> WELCOME                who we are, and where the data port is
 *     LOCATE -> LOCATED               which of these blocks do you hold, under which generation
 *     OPEN_WINDOW -> WINDOW           a window for tickets; pins nothing
 *     AUTHORISE -> AUTHORISED         pin exactly these generations, and tell the mover's token
 *     RELEASE -> RELEASED             the read of this ticket is over; repeated until answered
 *
 * Decoding refuses whatever encoding would not have written. Pure functions; safe from any thread.
 */
#ifndef OKV_FABRIC_PEER_MESSAGE_H
#define OKV_FABRIC_PEER_MESSAGE_H

#include <stddef.h>
#include <stdint.h>

#include "okv/base/digest.h"
#include "okv/base/status.h"
#include "okv/span/identity.h"

enum {
	OKV_PEER_VERSION = 1,
	OKV_PEER_HEADER_BYTES = 20,
	OKV_PEER_FRAME_BYTES_MAX = 34816,
	OKV_PEER_LOCATE_MAX = 1024,   /* hashes a LOCATE */
	OKV_PEER_AUTHORISE_MAX = 128, /* blocks an AUTHORISE */
	OKV_PEER_NAME_MAX = 40,	      /* with its NUL */
};

enum okv_peer_type {
	OKV_PEER_HELLO = 1,
	OKV_PEER_WELCOME,
	OKV_PEER_LOCATE,
	OKV_PEER_LOCATED,
	OKV_PEER_OPEN_WINDOW,
	OKV_PEER_WINDOW,
	OKV_PEER_AUTHORISE,
	OKV_PEER_AUTHORISED,
	OKV_PEER_RELEASE,
	OKV_PEER_RELEASED,
};

/* Why a source said no. On the wire; values never change. */
enum okv_peer_refusal {
	OKV_PEER_GRANTED = 0,
	OKV_PEER_REFUSED_CLUSTER = 1,	      /* another cluster's name */
	OKV_PEER_REFUSED_KEY = 2,	      /* this manager knows only keys that differ; the field says first where */
	OKV_PEER_REFUSED_OWNER = 3,	      /* the request names another incarnation of this manager */
	OKV_PEER_REFUSED_WINDOW = 4,	      /* no such window: open a new one */
	OKV_PEER_REFUSED_TICKET = 5,	      /* the ticket is stale */
	OKV_PEER_REFUSED_RESIDENCE = 6,	      /* a block is not resident under that generation */
	OKV_PEER_REFUSED_BUDGET_BYTES = 7,    /* too many bytes pinned for peers; the ticket is spent */
	OKV_PEER_REFUSED_BUDGET_SESSIONS = 8, /* too many reads or windows; the ticket is spent */
	OKV_PEER_REFUSED_AHEAD = 9,	      /* a release for a hold that was never granted */
	OKV_PEER_REFUSED_MEMORY = 10,	      /* the source is out of memory; the ticket is spent */
	OKV_PEER_REFUSAL_COUNT,
};

enum okv_peer_medium { OKV_PEER_ABSENT = 0, OKV_PEER_DRAM = 1 };

/* Chosen by the requester before it asks, so that it can end a hold even if the answer is lost. */
struct okv_ticket {
	struct okv_uuid window;
	uint32_t slot;
	uint64_t generation; /* from 1 */
};

struct okv_peer_location {
	uint64_t generation; /* 0 if absent */
	uint8_t medium;
	uint64_t length;
	uint32_t token_count;
};

struct okv_peer_wanted {
	struct okv_hash hash;
	uint64_t generation;
};

struct okv_peer_authorised {
	struct okv_hash hash, parent, lineage, key_digest;
	uint32_t token_count;
	uint64_t length;
	struct okv_crc crc;
};

struct okv_peer_message {
	enum okv_peer_type type;
	uint64_t request_id;
	union {
		struct {
			char cluster[OKV_PEER_NAME_MAX];
			struct okv_uuid requester;
		} hello;
		struct {
			enum okv_peer_refusal refusal;
			struct okv_uuid owner;
			uint16_t data_port;
		} welcome;
		struct {
			uint16_t key_size;
			uint8_t key[OKV_KEY_ENCODED_MAX]; /* as okv_key_encode() writes it */
			uint16_t count;
			struct okv_hash hash[OKV_PEER_LOCATE_MAX];
		} locate;
		struct {
			enum okv_peer_refusal refusal;
			char field[OKV_PEER_NAME_MAX]; /* of the key, when that is why */
			uint16_t count;
			struct okv_peer_location location[OKV_PEER_LOCATE_MAX];
		} located;
		struct {
			struct okv_uuid owner, requester;
		} open_window;
		struct {
			enum okv_peer_refusal refusal;
			struct okv_uuid window;
		} window;
		struct {
			struct okv_ticket ticket;
			struct okv_uuid owner;
			struct okv_hash key_digest;
			uint16_t count;
			struct okv_peer_wanted wanted[OKV_PEER_AUTHORISE_MAX];
		} authorise;
		struct {
			enum okv_peer_refusal refusal;
			uint8_t token[16]; /* for the mover */
			uint16_t count;
			struct okv_peer_authorised block[OKV_PEER_AUTHORISE_MAX];
		} authorised;
		struct okv_ticket release;
		struct {
			enum okv_peer_refusal refusal;
			uint32_t blocks; /* that this release ended */
		} released;
	};
};

/* A static lower-case word for metrics and logs, e.g. "budget_bytes". */
const char *okv_peer_refusal_name(enum okv_peer_refusal refusal);

/* Writes the frame (at most OKV_PEER_FRAME_BYTES_MAX) and returns its size. The message must keep the limits. */
size_t okv_peer_encode(const struct okv_peer_message *message, uint8_t *ret_frame);

/*
 * Looks at the first bytes of a stream. OKV_OK: *ret_size is the whole size of the first frame, or 0 if `size` bytes
 * are too few to say. OKV_ERR_PROTOCOL for another magic, an unknown type or a length that no message has;
 * OKV_ERR_VERSION for another version.
 */
OKV_MUST_CHECK enum okv_status okv_peer_frame_size(const uint8_t *bytes, size_t size, size_t *ret_size,
						   struct okv_reason *reason);

/* Decodes one whole frame. */
OKV_MUST_CHECK enum okv_status okv_peer_decode(const uint8_t *frame, size_t size, struct okv_peer_message *ret_message,
					       struct okv_reason *reason);

#endif
