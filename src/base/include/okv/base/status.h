/*
 * Status and reason: how every function of OrbitKV says that something went wrong.
 *
 * A function that can fail returns an enum okv_status; results go through `ret_...` arguments, written only on OKV_OK.
 * The status says what is lost and therefore what the caller can still do; the caller-owned okv_reason says, in words a
 * user can act on, which field or thing differed. A reason may be NULL wherever one is taken.
 *
 * OKV_ASSERT states what our own code promises and stays on in release builds. Bytes from disk, network, users and
 * model files are never asserted about: they are checked and refused with a status.
 */
#ifndef OKV_BASE_STATUS_H
#define OKV_BASE_STATUS_H

enum okv_status {
	OKV_OK = 0,

	/* This operation is lost; nothing else is. */
	OKV_ERR_INVALID = 1, /* malformed or contradictory input */
	OKV_ERR_UNSUPPORTED, /* well formed, but we do not do it; the reason names it */
	OKV_ERR_ABSENT,	     /* no such thing: an ordinary answer */
	OKV_ERR_EXISTS,	     /* there already */
	OKV_ERR_MISMATCH,    /* an identity differs; the reason names the first differing field */
	OKV_ERR_DAMAGED,     /* bytes do not match their digest */
	OKV_ERR_STALE,	     /* late: a newer generation has taken the place; nothing was changed */
	OKV_ERR_AHEAD,	     /* names a generation that was never granted */
	OKV_ERR_BUSY,	     /* occupied now; a later try may succeed */
	OKV_ERR_BUDGET,	     /* a configured limit is reached */
	OKV_ERR_NO_SPACE,    /* pool, arena or disk is full */
	OKV_ERR_CANCELLED,   /* the caller asked for it */
	OKV_ERR_DEADLINE,    /* its deadline passed; says nothing about whether the work goes on */
	OKV_ERR_FAILED,	     /* it is over without success, and why is known only to whoever was asked */

	/* A connection is lost; the peer may live. */
	OKV_ERR_DISCONNECTED = 32,
	OKV_ERR_PROTOCOL, /* the other end broke the protocol */
	OKV_ERR_VERSION,  /* the other end speaks another version */

	/* A peer is lost. */
	OKV_ERR_PEER_GONE = 64, /* proven: its incarnation is over */

	/* The process or the machine is short of something. */
	OKV_ERR_NO_MEMORY = 96,
	OKV_ERR_IO, /* the operating system refused; the reason has errno's text */
	OKV_ERR_PERMISSION,
};

#define OKV_REASON_TEXT_BYTES 240

struct okv_reason {
	const char *field;		  /* static string: the field or option at fault; "" if none */
	char text[OKV_REASON_TEXT_BYTES]; /* one sentence, no full stop, no newline */
};

/* A static lower-case word for `status`, e.g. "mismatch". */
const char *okv_status_name(enum okv_status status);

/* The status that stands for `error` (an errno value). */
enum okv_status okv_status_from_errno(int error);

/* Fills `reason` (may be NULL) and returns `status`, so that a refusal is one line. `field` must be a static string. */
enum okv_status okv_refuse(struct okv_reason *reason, enum okv_status status, const char *field, const char *format,
			   ...) __attribute__((format(printf, 4, 5)));

#define OKV_MUST_CHECK __attribute__((warn_unused_result))

_Noreturn void okv_assert_failed(const char *file, int line, const char *what);

#define OKV_ASSERT(condition) ((condition) ? (void)0 : okv_assert_failed(__FILE__, __LINE__, #condition))
#ifdef NDEBUG
#define OKV_DEBUG_ASSERT(condition) ((void)0)
#else
#define OKV_DEBUG_ASSERT(condition) OKV_ASSERT(condition)
#endif

#endif
