/*
 * The chunked transfer coding (RFC 9112, 7.1). States of the decoder:
 *
 *   SIZE --hex digits--> SIZE --';'--> EXTENSION --CR--> SIZE_LF --LF--> DATA --left = 0--> DATA_CR --> DATA_LF -->
 * SIZE |                                |
 *                          +------------CR------------------+--LF, size was 0--> TRAILER (lines until an empty one)
 *
 * Extensions and trailers are read, bounded and ignored.
 */
#include "okv/codec/http.h"

enum { SIZE, EXTENSION, SIZE_LF, DATA, DATA_CR, DATA_LF, TRAILER, TRAILER_LF };

enum {
	LINE_BYTES_MAX = 256,	  /* a size with its extensions */
	TRAILER_BYTES_MAX = 8192, /* all trailer lines */
	SIZE_DIGITS_MAX = 15,	  /* so that `left` cannot overflow */
};

static int hex_digit(uint8_t byte)
{
	if (byte >= '0' && byte <= '9')
		return byte - '0';
	if (byte >= 'a' && byte <= 'f')
		return byte - 'a' + 10;
	if (byte >= 'A' && byte <= 'F')
		return byte - 'A' + 10;
	return -1;
}

static bool take_size_byte(struct okv_http_chunked *chunked, uint8_t byte)
{
	int digit = hex_digit(byte);

	if (digit >= 0) {
		chunked->left = chunked->left * 16 + (uint64_t)digit;
		return ++chunked->digits <= SIZE_DIGITS_MAX;
	}
	if (chunked->digits == 0)
		return false;
	if (byte == '\r')
		chunked->state = SIZE_LF;
	else if (byte == ';')
		chunked->state = EXTENSION;
	else
		return false;
	return true;
}

static bool take_trailer_byte(struct okv_http_chunked *chunked, uint8_t byte)
{
	if (byte == '\n')
		return false;
	if (byte == '\r')
		chunked->state = TRAILER_LF;
	else
		chunked->line_size++;
	return true;
}

/* One byte that is not chunk data. False: it does not belong there. */
static bool take_framing_byte(struct okv_http_chunked *chunked, uint8_t byte)
{
	switch (chunked->state) {
	case SIZE:
		return take_size_byte(chunked, byte);
	case EXTENSION:
		if (byte == '\r')
			chunked->state = SIZE_LF;
		return byte != '\n' && ++chunked->line_size <= LINE_BYTES_MAX;
	case SIZE_LF:
		chunked->state = chunked->left > 0 ? DATA : TRAILER;
		chunked->digits = chunked->line_size = 0;
		return byte == '\n';
	case DATA_CR:
		chunked->state = DATA_LF;
		return byte == '\r';
	case DATA_LF:
		chunked->state = SIZE;
		return byte == '\n';
	case TRAILER:
		return take_trailer_byte(chunked, byte);
	default: /* TRAILER_LF */
		chunked->is_done = chunked->line_size == 0;
		chunked->line_size = 0;
		chunked->state = TRAILER;
		return byte == '\n';
	}
}

enum okv_status okv_http_chunked_feed(struct okv_http_chunked *chunked, const void *bytes, size_t size,
				      size_t body_bytes_max, struct okv_buf *body, size_t *ret_used,
				      struct okv_reason *reason)
{
	const uint8_t *input = bytes;
	size_t at = 0;

	while (at < size && !chunked->is_done) {
		if (chunked->state == DATA) {
			size_t take = size - at < chunked->left ? size - at : (size_t)chunked->left;

			okv_buf_append(body, input + at, take);
			at += take;
			chunked->left -= take;
			if (chunked->left == 0)
				chunked->state = DATA_CR;
			continue;
		}
		if (!take_framing_byte(chunked, input[at++]))
			return okv_refuse(reason, OKV_ERR_INVALID, "Transfer-Encoding",
					  "the body is not in chunked coding");
		if (chunked->state == TRAILER && ++chunked->trailer_size > TRAILER_BYTES_MAX)
			return okv_refuse(reason, OKV_ERR_BUDGET, "Transfer-Encoding", "more than %d bytes of trailers",
					  TRAILER_BYTES_MAX);
		if (chunked->state == DATA && chunked->left > body_bytes_max - body->size)
			return okv_refuse(reason, OKV_ERR_BUDGET, "Transfer-Encoding",
					  "the body is longer than the %zu bytes allowed", body_bytes_max);
	}
	*ret_used = at;
	return OKV_OK;
}
