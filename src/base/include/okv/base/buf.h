/*
 * Buf: a growable byte buffer with one owner. Zero-initialised is ready. Allocation failure is remembered in `failed`
 * and later appends do nothing, so a builder checks once at the end. The bytes are always followed by a NUL that does
 * not count, so a text can be read as a C string.
 */
#ifndef OKV_BASE_BUF_H
#define OKV_BASE_BUF_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

struct okv_buf {
	char *data; /* owned; NULL while empty and never grown */
	size_t size, room;
	bool failed;
};

void okv_buf_append(struct okv_buf *buf, const void *bytes, size_t size);
void okv_buf_text(struct okv_buf *buf, const char *text);
void okv_buf_print(struct okv_buf *buf, const char *format, ...) __attribute__((format(printf, 2, 3)));
/* Removes the first `size` bytes (size <= buf->size). */
void okv_buf_consume(struct okv_buf *buf, size_t size);
/* Forgets the content, keeps the room. */
void okv_buf_clear(struct okv_buf *buf);
/* Frees; the buf is empty and usable again. */
void okv_buf_done(struct okv_buf *buf);

#endif
