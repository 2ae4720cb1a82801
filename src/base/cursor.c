#include "okv/base/cursor.h"

#include <string.h>

/* All our machines are little-endian; a big-endian one would need byte swaps here and nowhere else. */
_Static_assert(__BYTE_ORDER__ == __ORDER_LITTLE_ENDIAN__, "cursors copy integers as they lie in memory");

struct okv_reader okv_reader_of(const void *bytes, size_t size)
{
	const uint8_t *at = bytes;

	return (struct okv_reader){.at = at, .end = size ? at + size : at, .ok = true};
}

size_t okv_reader_left(const struct okv_reader *reader)
{
	return (size_t)(reader->end - reader->at);
}

const uint8_t *okv_read_view(struct okv_reader *reader, size_t size)
{
	const uint8_t *view = reader->at;

	if (!reader->ok || size > okv_reader_left(reader)) {
		reader->ok = false;
		return NULL;
	}
	if (size)
		reader->at += size;
	return view;
}

void okv_read_bytes(struct okv_reader *reader, void *ret_bytes, size_t size)
{
	const uint8_t *view = okv_read_view(reader, size);

	if (size == 0)
		return;
	if (view)
		memcpy(ret_bytes, view, size);
	else
		memset(ret_bytes, 0, size);
}

uint8_t okv_read_u8(struct okv_reader *reader)
{
	uint8_t value;

	okv_read_bytes(reader, &value, sizeof(value));
	return value;
}

uint16_t okv_read_u16(struct okv_reader *reader)
{
	uint16_t value;

	okv_read_bytes(reader, &value, sizeof(value));
	return value;
}

uint32_t okv_read_u32(struct okv_reader *reader)
{
	uint32_t value;

	okv_read_bytes(reader, &value, sizeof(value));
	return value;
}

uint64_t okv_read_u64(struct okv_reader *reader)
{
	uint64_t value;

	okv_read_bytes(reader, &value, sizeof(value));
	return value;
}

struct okv_writer okv_writer_of(void *bytes, size_t size)
{
	uint8_t *at = bytes;

	return (struct okv_writer){.at = at, .end = size ? at + size : at, .ok = true};
}

void okv_write_bytes(struct okv_writer *writer, const void *bytes, size_t size)
{
	if (!writer->ok || size > (size_t)(writer->end - writer->at)) {
		writer->ok = false;
		return;
	}
	if (size == 0)
		return;
	memcpy(writer->at, bytes, size);
	writer->at += size;
}

void okv_write_u8(struct okv_writer *writer, uint8_t value)
{
	okv_write_bytes(writer, &value, sizeof(value));
}

void okv_write_u16(struct okv_writer *writer, uint16_t value)
{
	okv_write_bytes(writer, &value, sizeof(value));
}

void okv_write_u32(struct okv_writer *writer, uint32_t value)
{
	okv_write_bytes(writer, &value, sizeof(value));
}

void okv_write_u64(struct okv_writer *writer, uint64_t value)
{
	okv_write_bytes(writer, &value, sizeof(value));
}
