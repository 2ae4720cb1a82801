/*
 * Session messages: how an engine and its manager meet on a Unix socket (SOCK_SEQPACKET: one packet is one message).
 *
 *     engine                                     manager
 *       | HELLO + arena fd + ring fd               |   same user (SO_PEERCRED), same version, known key, sealed fds
 *       |----------------------------------------->|
 *       |                        ACCEPT + pool fd  |   or REFUSE with a status and a sentence, then close
 *       |<-----------------------------------------|
 *       | DOORBELL  ("look into the ring")         |   both ways, any number
 *       |<---------------------------------------->|
 *       | BYE       (all leases are given back)    |   else the close itself ends the session
 *       |----------------------------------------->|
 *
 * The doorbell is a packet and not an eventfd, because the flags of a passed descriptor are shared: an engine could
 * clear O_NONBLOCK on an eventfd and stall the manager in write(). A packet is sent with MSG_DONTWAIT, which is ours.
 *
 * Every message starts with a magic, the version and its type; versions match exactly or the message is refused by
 * name. Byte forms: docs/formats/session.md. Pure; safe from any thread.
 */
#ifndef OKV_SESSION_MESSAGE_H
#define OKV_SESSION_MESSAGE_H

#include <stddef.h>
#include <stdint.h>

#include "okv/base/digest.h"
#include "okv/base/status.h"
#include "okv/span/identity.h"

enum { OKV_SESSION_VERSION = 1, OKV_SESSION_MESSAGE_MAX = 1024, OKV_SESSION_NAME_MAX = 40 };

#define OKV_SESSION_ARENA_BYTES_MAX ((uint64_t)1 << 44)

enum okv_session_message_type {
	OKV_SESSION_HELLO = 1,
	OKV_SESSION_ACCEPT,
	OKV_SESSION_REFUSE,
	OKV_SESSION_DOORBELL,
	OKV_SESSION_BYE,
};

/* Descriptors that come with a message: HELLO the arena, then the ring; ACCEPT the pool; the others none. */
enum { OKV_SESSION_HELLO_FDS = 2, OKV_SESSION_ACCEPT_FDS = 1 };

enum okv_session_verification { OKV_SESSION_VERIFY_CRC = 1 };

struct okv_session_hello {
	struct okv_materialisation_key key;
	uint64_t page_bytes;  /* what okv_key_page_bytes() says */
	uint64_t arena_bytes; /* at least one page */
	/* A session of this very process that is over, 0 if none: nothing granted in it is being read any more. */
	uint64_t previous_session;
	char name[OKV_SESSION_NAME_MAX]; /* printable; for people */
};

struct okv_session_accept {
	uint64_t session; /* never 0, never used twice by one incarnation */
	uint64_t pool_bytes;
	struct okv_uuid incarnation;
	enum okv_session_verification verification;
};

struct okv_session_refuse {
	enum okv_status status;
	char text[OKV_REASON_TEXT_BYTES];
};

struct okv_session_message {
	enum okv_session_message_type type;
	union {
		struct okv_session_hello hello;
		struct okv_session_accept accept;
		struct okv_session_refuse refuse;
	};
};

/* Writes at most OKV_SESSION_MESSAGE_MAX bytes and returns how many. */
size_t okv_session_encode(const struct okv_session_message *message, uint8_t *ret_bytes);

/*
 * OKV_ERR_VERSION: the other end speaks another version (the reason names both). OKV_ERR_PROTOCOL: not a message of
 * ours. OKV_ERR_INVALID: well formed, but a field contradicts another or a limit; the reason names it.
 */
OKV_MUST_CHECK enum okv_status okv_session_decode(const uint8_t *bytes, size_t size,
						  struct okv_session_message *ret_message, struct okv_reason *reason);

#endif
