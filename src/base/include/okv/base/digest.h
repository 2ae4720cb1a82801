/*
 * Digests: SHA-256 for identity (libcrypto) and XXH3-128 for damage (xxhash). Nothing else in the tree includes either
 * library. Value types are plain bytes; okv_hash is compared with okv_hash_equal, never by pointer.
 */
#ifndef OKV_BASE_DIGEST_H
#define OKV_BASE_DIGEST_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

struct okv_hash {
	uint8_t bytes[32];
};

struct okv_uuid {
	uint8_t bytes[16];
};

/* XXH3-128 in canonical (big-endian) byte order, so that a digest on the wire is the same on every machine. */
struct okv_crc {
	uint8_t bytes[16];
};

bool okv_hash_equal(const struct okv_hash *a, const struct okv_hash *b);
bool okv_hash_is_zero(const struct okv_hash *hash);
bool okv_uuid_equal(const struct okv_uuid *a, const struct okv_uuid *b);
bool okv_crc_equal(const struct okv_crc *a, const struct okv_crc *b);

/* A random (version 4) UUID. */
struct okv_uuid okv_uuid_random(void);

/* Writes 2 * size lower-case hex digits and a NUL to `ret_text`. */
void okv_hex(const uint8_t *bytes, size_t size, char *ret_text);

/* Incremental SHA-256; heap object of libcrypto. create may return NULL (no memory). finish also destroys. */
struct okv_sha256;
struct okv_sha256 *okv_sha256_create(void);
void okv_sha256_update(struct okv_sha256 *sha, const void *bytes, size_t size);
struct okv_hash okv_sha256_finish(struct okv_sha256 *sha);

struct okv_hash okv_sha256_of(const void *bytes, size_t size);

struct okv_crc okv_crc_of(const void *bytes, size_t size);

/* Incremental XXH3-128 for bytes hashed while they are warm. 64-byte aligned, embedded by its owner. */
struct okv_crc_stream {
	_Alignas(64) uint8_t opaque[640];
};
void okv_crc_stream_init(struct okv_crc_stream *stream);
void okv_crc_stream_update(struct okv_crc_stream *stream, const void *bytes, size_t size);
struct okv_crc okv_crc_stream_value(const struct okv_crc_stream *stream);

/* A 64-bit hash for tables in memory (XXH3-64); never stored, never sent. */
uint64_t okv_table_hash(const void *bytes, size_t size);

#endif
