#include "okv/base/digest.h"

#include <string.h>

#include <openssl/evp.h>
#include <openssl/sha.h>
#define XXH_STATIC_LINKING_ONLY
#include <xxhash.h>
#ifdef __x86_64__
#include <xxh_x86dispatch.h> /* the same digests by the widest vectors of the processor: 2.5 times as fast here */
#endif

#include "okv/base/rng.h"
#include "okv/base/status.h"

_Static_assert(sizeof(XXH3_state_t) <= sizeof(struct okv_crc_stream), "okv_crc_stream must hold the library's state");

bool okv_hash_equal(const struct okv_hash *a, const struct okv_hash *b)
{
	return memcmp(a, b, sizeof(*a)) == 0;
}

bool okv_hash_is_zero(const struct okv_hash *hash)
{
	static const struct okv_hash zero;

	return okv_hash_equal(hash, &zero);
}

bool okv_uuid_equal(const struct okv_uuid *a, const struct okv_uuid *b)
{
	return memcmp(a, b, sizeof(*a)) == 0;
}

bool okv_crc_equal(const struct okv_crc *a, const struct okv_crc *b)
{
	return memcmp(a, b, sizeof(*a)) == 0;
}

struct okv_uuid okv_uuid_random(void)
{
	struct okv_uuid uuid;

	okv_random_bytes(&uuid, sizeof(uuid));
	uuid.bytes[6] = (uint8_t)((uuid.bytes[6] & 0x0f) | 0x40);
	uuid.bytes[8] = (uint8_t)((uuid.bytes[8] & 0x3f) | 0x80);
	return uuid;
}

void okv_hex(const uint8_t *bytes, size_t size, char *ret_text)
{
	static const char digits[] = "0123456789abcdef";

	for (size_t i = 0; i < size; i++) {
		ret_text[2 * i] = digits[bytes[i] >> 4];
		ret_text[2 * i + 1] = digits[bytes[i] & 15];
	}
	ret_text[2 * size] = '\0';
}

/* struct okv_sha256 is libcrypto's context under another name: nothing is added to it. */
struct okv_sha256 *okv_sha256_create(void)
{
	EVP_MD_CTX *context = EVP_MD_CTX_new();

	if (context && EVP_DigestInit_ex(context, EVP_sha256(), NULL) != 1) {
		EVP_MD_CTX_free(context);
		context = NULL;
	}
	return (struct okv_sha256 *)context;
}

void okv_sha256_update(struct okv_sha256 *sha, const void *bytes, size_t size)
{
	OKV_ASSERT(EVP_DigestUpdate((EVP_MD_CTX *)sha, bytes, size) == 1);
}

struct okv_hash okv_sha256_finish(struct okv_sha256 *sha)
{
	struct okv_hash hash;

	OKV_ASSERT(EVP_DigestFinal_ex((EVP_MD_CTX *)sha, hash.bytes, NULL) == 1);
	EVP_MD_CTX_free((EVP_MD_CTX *)sha);
	return hash;
}

struct okv_hash okv_sha256_of(const void *bytes, size_t size)
{
	struct okv_hash hash;

	SHA256(bytes, size, hash.bytes);
	return hash;
}

static struct okv_crc crc_of(XXH128_hash_t value)
{
	XXH128_canonical_t canonical;
	struct okv_crc crc;

	XXH128_canonicalFromHash(&canonical, value);
	memcpy(crc.bytes, canonical.digest, sizeof(crc.bytes));
	return crc;
}

struct okv_crc okv_crc_of(const void *bytes, size_t size)
{
	return crc_of(XXH3_128bits(bytes, size));
}

void okv_crc_stream_init(struct okv_crc_stream *stream)
{
	XXH3_INITSTATE((XXH3_state_t *)stream);
	XXH3_128bits_reset((XXH3_state_t *)stream);
}

void okv_crc_stream_update(struct okv_crc_stream *stream, const void *bytes, size_t size)
{
	XXH3_128bits_update((XXH3_state_t *)stream, bytes, size);
}

struct okv_crc okv_crc_stream_value(const struct okv_crc_stream *stream)
{
	return crc_of(XXH3_128bits_digest((const XXH3_state_t *)stream));
}

uint64_t okv_table_hash(const void *bytes, size_t size)
{
	return XXH3_64bits(bytes, size);
}
