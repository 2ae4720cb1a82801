#include "okv/codec/sse.h"

#include <stddef.h>

void okv_sse_event(struct okv_buf *buf, const char *data, size_t size)
{
	size_t line = 0;

	okv_buf_append(buf, "data: ", 6);
	for (size_t at = 0; at < size; at++) {
		if (data[at] != '\n' && data[at] != '\r')
			continue;
		okv_buf_append(buf, data + line, at - line);
		okv_buf_append(buf, "\ndata: ", 7);
		if (data[at] == '\r' && at + 1 < size && data[at + 1] == '\n')
			at++;
		line = at + 1;
	}
	okv_buf_append(buf, data + line, size - line);
	okv_buf_append(buf, "\n\n", 2);
}
