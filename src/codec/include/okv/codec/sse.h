/*
 * SSE: encoding of server-sent events (WHATWG HTML, section 9.2). One event is one or more "data:" lines and a blank
 * line; a line break inside the data (LF, CR or CRLF) starts another "data:" line, so that the reader gets LF for it.
 */
#ifndef OKV_CODEC_SSE_H
#define OKV_CODEC_SSE_H

#include "okv/base/buf.h"

void okv_sse_event(struct okv_buf *buf, const char *data, size_t size);

#endif
