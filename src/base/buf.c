#include "okv/base/buf.h"

#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* Makes room for `more` bytes and the NUL behind them. */
static bool reserve(struct okv_buf *buf, size_t more)
{
	if (buf->failed || more > SIZE_MAX / 2 - buf->size) {
		buf->failed = true;
		return false;
	}
	if (buf->size + more < buf->room)
		return true;

	size_t room = buf->room ? buf->room : 128;
	while (room <= buf->size + more)
		room *= 2;

	char *grown = realloc(buf->data, room);
	if (!grown) {
		buf->failed = true;
		return false;
	}
	buf->data = grown;
	buf->room = room;
	return true;
}

void okv_buf_append(struct okv_buf *buf, const void *bytes, size_t size)
{
	if (!reserve(buf, size))
		return;
	if (size)
		memcpy(buf->data + buf->size, bytes, size);
	buf->size += size;
	buf->data[buf->size] = '\0';
}

void okv_buf_text(struct okv_buf *buf, const char *text)
{
	okv_buf_append(buf, text, strlen(text));
}

void okv_buf_print(struct okv_buf *buf, const char *format, ...)
{
	va_list arguments;

	va_start(arguments, format);
	int size = vsnprintf(NULL, 0, format, arguments);
	va_end(arguments);
	if (size < 0 || !reserve(buf, (size_t)size))
		return;

	va_start(arguments, format);
	vsnprintf(buf->data + buf->size, (size_t)size + 1, format, arguments);
	va_end(arguments);
	buf->size += (size_t)size;
}

void okv_buf_consume(struct okv_buf *buf, size_t size)
{
	if (size == 0)
		return;
	memmove(buf->data, buf->data + size, buf->size - size + 1);
	buf->size -= size;
}

void okv_buf_clear(struct okv_buf *buf)
{
	buf->size = 0;
	buf->failed = false;
	if (buf->data)
		buf->data[0] = '\0';
}

void okv_buf_done(struct okv_buf *buf)
{
	free(buf->data);
	*buf = (struct okv_buf){0};
}
