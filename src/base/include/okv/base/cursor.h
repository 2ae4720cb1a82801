/*
 * Cursors: bounded little-endian reading and writing of bytes that came from, or go to, somewhere else.
 *
 * A reader or writer that runs out of room turns bad and stays bad: reads give zeroes, writes do nothing. A decoder
 * therefore reads all its fields and checks `ok` once. Neither owns its bytes.
 */
#ifndef OKV_BASE_CURSOR_H
#define OKV_BASE_CURSOR_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

struct okv_reader {
	const uint8_t *at, *end; /* borrowed */
	bool ok;
};

struct okv_writer {
	uint8_t *at, *end; /* borrowed */
	bool ok;
};

struct okv_reader okv_reader_of(const void *bytes, size_t size);
size_t okv_reader_left(const struct okv_reader *reader);
uint8_t okv_read_u8(struct okv_reader *reader);
uint16_t okv_read_u16(struct okv_reader *reader);
uint32_t okv_read_u32(struct okv_reader *reader);
uint64_t okv_read_u64(struct okv_reader *reader);
void okv_read_bytes(struct okv_reader *reader, void *ret_bytes, size_t size);
/* A view of the next `size` bytes without copying; NULL (and bad) if there are fewer. */
const uint8_t *okv_read_view(struct okv_reader *reader, size_t size);

struct okv_writer okv_writer_of(void *bytes, size_t size);
void okv_write_u8(struct okv_writer *writer, uint8_t value);
void okv_write_u16(struct okv_writer *writer, uint16_t value);
void okv_write_u32(struct okv_writer *writer, uint32_t value);
void okv_write_u64(struct okv_writer *writer, uint64_t value);
void okv_write_bytes(struct okv_writer *writer, const void *bytes, size_t size);

#endif
