/*
 * HTTP/1.1 messages (RFC 9112): reading of request heads and chunked bodies, as pure functions over bytes.
 *
 * Strict on purpose, because two readers that disagree about where a request ends can be played against each other:
 * lines end in CRLF, no folded headers, no blank before a colon, Content-Length once and only digits, never together
 * with Transfer-Encoding, "chunked" is the only transfer coding, an HTTP/1.1 request names one Host. A refusal says
 * which HTTP status answers it.
 *
 * okv_http_read_head() reads in place: it writes NULs into the bytes it is given, and every pointer in the struct
 * okv_http_head points into them. Nothing is allocated, nothing is kept.
 */
#ifndef OKV_CODEC_HTTP_H
#define OKV_CODEC_HTTP_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "okv/base/buf.h"
#include "okv/base/status.h"

enum {
	OKV_HTTP_HEADERS_MAX = 100,
	OKV_HTTP_HEAD_BYTES_MAX = 64 << 10, /* request line and headers */
};

struct okv_http_header {
	const char *name, *value; /* value without surrounding blanks */
};

struct okv_http_head {
	const char *method; /* as sent; methods are case-sensitive */
	const char *path;   /* percent-decoded; holds no NUL and starts with '/' */
	const char *query;  /* as sent, after '?'; "" if none */
	struct okv_http_header header[OKV_HTTP_HEADERS_MAX];
	unsigned header_count;
	uint64_t content_length; /* 0 when absent or chunked */
	bool is_chunked;
	bool is_http_1_0;
	bool keep_alive;       /* the client expects to send another request on the connection */
	bool expects_continue; /* wants "100 Continue" before it sends the body */
};

/*
 * Looks for the blank line that ends a head. Returns the head's size with that line, or 0 if `bytes` holds no whole
 * head yet. `size_seen` bytes were searched before without success.
 */
size_t okv_http_head_size(const void *bytes, size_t size, size_t size_seen);

/*
 * Reads a whole head of `size` bytes (okv_http_head_size). On a refusal *ret_http_status, and nothing else, is written:
 * the status of the answer (400, 417, 431, 501, 505); the connection cannot go on.
 */
OKV_MUST_CHECK enum okv_status okv_http_read_head(char *bytes, size_t size, struct okv_http_head *ret_head,
						  unsigned *ret_http_status, struct okv_reason *reason);

/* The value of a header, name compared without case; NULL if absent. The first, if it is there twice. */
const char *okv_http_find_header(const struct okv_http_head *head, const char *name);

/* A chunked body being decoded. Zero-initialised is ready. */
struct okv_http_chunked {
	int state;	    /* of the decoder; private */
	uint64_t left;	    /* bytes of the current chunk not yet seen */
	unsigned line_size; /* bytes of the current size or trailer line */
	unsigned trailer_size;
	unsigned digits;
	bool is_done; /* the last chunk and its trailer have been read */
};

/*
 * Decodes from `bytes` and appends body bytes to `body` until the input or the body ends; *ret_used bytes were taken.
 * OKV_ERR_INVALID: not chunked coding. OKV_ERR_BUDGET: the body would exceed body_bytes_max, or a trailer is too long.
 */
OKV_MUST_CHECK enum okv_status okv_http_chunked_feed(struct okv_http_chunked *chunked, const void *bytes, size_t size,
						     size_t body_bytes_max, struct okv_buf *body, size_t *ret_used,
						     struct okv_reason *reason);

/* "OK" for 200, and so on; "Status" for a status that we never send. */
const char *okv_http_status_text(unsigned http_status);

/*
 * Appends the error body that every HTTP surface of ours answers with, in the shape of the OpenAI API:
 * {"error":{"message":...,"type":...,"param":...,"code":...}}. `param` and `code` may be NULL.
 */
void okv_http_error_body(struct okv_buf *body, const char *message, const char *type, const char *param,
			 const char *code);

#endif
