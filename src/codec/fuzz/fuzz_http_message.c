/* A request head is read or refused; a chunked body decodes to the same bytes whether fed whole or byte by byte. */
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#include "okv/codec/http.h"

enum { BODY_BYTES_MAX = 4096 };

static void feed_both_ways(const uint8_t *data, size_t size)
{
	struct okv_http_chunked whole = {0}, slow = {0};
	struct okv_buf whole_body = {0}, slow_body = {0};
	struct okv_reason reason;
	size_t used = 0, at = 0, one;
	enum okv_status status, slow_status = OKV_OK;

	status = okv_http_chunked_feed(&whole, data, size, BODY_BYTES_MAX, &whole_body, &used, &reason);
	while (at < size && slow_status == OKV_OK && !slow.is_done) {
		slow_status = okv_http_chunked_feed(&slow, data + at, 1, BODY_BYTES_MAX, &slow_body, &one, &reason);
		at++;
	}
	if (status != slow_status || (status == OKV_OK && used != at) || whole_body.size != slow_body.size ||
	    whole_body.size > BODY_BYTES_MAX)
		abort();
	if (whole_body.size && memcmp(whole_body.data, slow_body.data, whole_body.size) != 0)
		abort();
	okv_buf_done(&whole_body);
	okv_buf_done(&slow_body);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
	size_t head_size = okv_http_head_size(data, size, 0);
	struct okv_http_head head;
	struct okv_reason reason;
	unsigned http_status = 0;

	if (head_size > 0) {
		char *copy = malloc(head_size);
		if (!copy)
			abort();
		memcpy(copy, data, head_size);
		if (okv_http_read_head(copy, head_size, &head, &http_status, &reason) != OKV_OK) {
			if (http_status < 400)
				abort();
		} else if (head.path[0] != '/' || (head.is_chunked && head.content_length)) {
			abort();
		}
		free(copy);
	}
	feed_both_ways(data + head_size, size - head_size);
	return 0;
}
