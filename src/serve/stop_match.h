/*
 * Stop strings: text goes in piece by piece, and comes out except for what is, or might still become, a stop string. So
 * that stop text never leaks, the longest end of the text that begins some stop string is held back.
 *
 * The first stop string to be complete ends the text, where it begins; of several that complete together, the one that
 * begins first. Pure; one owner.
 */
#ifndef OKV_SERVE_STOP_MATCH_H
#define OKV_SERVE_STOP_MATCH_H

#include <stdbool.h>
#include <stddef.h>

#include "okv/base/buf.h"

enum {
	OKV__STOPS_MAX = 16,
	OKV__STOP_BYTES_MAX = 1024,
};

/* Zero-initialised: no stop strings, everything passes. */
struct okv__stops {
	struct okv_buf stop[OKV__STOPS_MAX]; /* owned; none is empty */
	size_t count;
	struct okv_buf held; /* text taken in and not given out */
	bool is_stopped;
};

/* Appends to `text` what is known not to be part of a stop string. Nothing once stopped. */
void okv__stops_feed(struct okv__stops *stops, const char *piece, size_t size, struct okv_buf *text);
/* The text is over: what was held back goes out, unless a stop string ended it. */
void okv__stops_finish(struct okv__stops *stops, struct okv_buf *text);
void okv__stops_done(struct okv__stops *stops);

#endif
