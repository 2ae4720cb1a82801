#include "okv/span/identity.h"

#include <math.h>
#include <string.h>

#include "okv/base/cursor.h"

/*
 * One row a field, in the order of the encoding. Encoding, decoding and comparison walk this table, so a field cannot
 * be hashed and forgotten in the comparison, or the other way round.
 */
enum field_kind { HASH, NAME, U32, F64 };

static const struct field {
	const char *name;
	enum field_kind kind;
	size_t offset;
} fields[] = {
#define FIELD(name, kind)                                                                                              \
	{                                                                                                              \
#name, kind, offsetof(struct okv_materialisation_key, name)                                            \
	}
	FIELD(weights, HASH),	       FIELD(adapter, HASH),	   FIELD(tokenizer, HASH),
	FIELD(serializer, NAME),       FIELD(rope_type, NAME),	   FIELD(rope_scaling, NAME),
	FIELD(rope_theta, F64),	       FIELD(rope_dims, U32),	   FIELD(layers, U32),
	FIELD(kv_heads, U32),	       FIELD(head_dim, U32),	   FIELD(page_tokens, U32),
	FIELD(kv_dtype, NAME),	       FIELD(tp_rank, U32),	   FIELD(tp_size, U32),
	FIELD(numerics, NAME),	       FIELD(policy_version, U32), FIELD(admitter_version, U32),
	FIELD(isolation_domain, NAME),
#undef FIELD
};
enum { FIELDS = sizeof(fields) / sizeof(fields[0]) };

static const void *field_of(const struct okv_materialisation_key *key, const struct field *field)
{
	return (const char *)key + field->offset;
}

static uint32_t field_bytes(const struct okv_materialisation_key *key, const struct field *field)
{
	switch (field->kind) {
	case HASH:
		return sizeof(struct okv_hash);
	case NAME:
		return (uint32_t)strnlen(field_of(key, field), OKV_KEY_NAME_MAX - 1);
	case U32:
		return sizeof(uint32_t);
	case F64:
		return sizeof(double);
	}
	return 0;
}

size_t okv_key_encode(const struct okv_materialisation_key *key, uint8_t *ret_bytes)
{
	struct okv_writer writer = okv_writer_of(ret_bytes, OKV_KEY_ENCODED_MAX);

	for (int i = 0; i < FIELDS; i++) {
		uint32_t size = field_bytes(key, &fields[i]);

		okv_write_u16(&writer, (uint16_t)i);
		okv_write_u32(&writer, size);
		okv_write_bytes(&writer, field_of(key, &fields[i]), size);
	}
	OKV_ASSERT(writer.ok);
	return (size_t)(writer.at - ret_bytes);
}

static enum okv_status decode_field(struct okv_reader *reader, uint16_t number, struct okv_materialisation_key *key,
				    struct okv_reason *reason)
{
	const struct field *field = &fields[number];
	uint16_t found = okv_read_u16(reader);
	uint32_t size = okv_read_u32(reader);
	const uint8_t *bytes = okv_read_view(reader, size);
	uint32_t wanted = field->kind == NAME ? size : field_bytes(key, field);

	if (!bytes || found != number || size != wanted || size >= OKV_KEY_NAME_MAX)
		return okv_refuse(reason, OKV_ERR_INVALID, field->name, "the key's field %s is malformed", field->name);
	if (field->kind == NAME && memchr(bytes, 0, size))
		return okv_refuse(reason, OKV_ERR_INVALID, field->name, "the key's field %s holds a NUL", field->name);
	memcpy((char *)key + field->offset, bytes, size);
	return OKV_OK;
}

enum okv_status okv_key_decode(const uint8_t *bytes, size_t size, struct okv_materialisation_key *ret_key,
			       struct okv_reason *reason)
{
	struct okv_materialisation_key key = {0};
	struct okv_reader reader = okv_reader_of(bytes, size);

	for (int i = 0; i < FIELDS; i++) {
		enum okv_status status = decode_field(&reader, (uint16_t)i, &key, reason);

		if (status != OKV_OK)
			return status;
	}
	if (okv_reader_left(&reader) != 0)
		return okv_refuse(reason, OKV_ERR_INVALID, "key", "the key has bytes behind its last field");
	if (!isfinite(key.rope_theta))
		return okv_refuse(reason, OKV_ERR_INVALID, "rope_theta", "the key's rope_theta is not a finite number");
	*ret_key = key;
	return OKV_OK;
}

/* Hashes a domain tag with its terminating NUL, then the parts. */
static struct okv_hash hash_of(const char *tag, const void *first, size_t first_size, const void *second,
			       size_t second_size)
{
	uint8_t bytes[32 + OKV_KEY_ENCODED_MAX + 3 * sizeof(struct okv_hash) + 4 + 4 * OKV_BLOCK_TOKENS_MAX];
	struct okv_writer writer = okv_writer_of(bytes, sizeof(bytes));

	okv_write_bytes(&writer, tag, strlen(tag) + 1);
	okv_write_bytes(&writer, first, first_size);
	okv_write_bytes(&writer, second, second_size);
	OKV_ASSERT(writer.ok);
	return okv_sha256_of(bytes, (size_t)(writer.at - bytes));
}

struct okv_hash okv_key_digest(const struct okv_materialisation_key *key)
{
	uint8_t encoded[OKV_KEY_ENCODED_MAX];
	size_t size = okv_key_encode(key, encoded);

	return hash_of("orbitkv key 1", encoded, size, NULL, 0);
}

enum okv_status okv_key_compare(const struct okv_materialisation_key *ours,
				const struct okv_materialisation_key *theirs, struct okv_reason *reason)
{
	for (int i = 0; i < FIELDS; i++) {
		uint32_t size = field_bytes(ours, &fields[i]);

		if (size != field_bytes(theirs, &fields[i]) ||
		    memcmp(field_of(ours, &fields[i]), field_of(theirs, &fields[i]), size) != 0)
			return okv_refuse(reason, OKV_ERR_MISMATCH, fields[i].name, "the keys differ in %s",
					  fields[i].name);
	}
	return OKV_OK;
}

size_t okv_key_page_bytes(const struct okv_materialisation_key *key)
{
	const size_t limit = (size_t)1 << 30;
	size_t bytes = strcmp(key->kv_dtype, "f16") == 0 ? 2 : strcmp(key->kv_dtype, "f32") == 0 ? 4 : 0;
	const uint32_t factors[] = {2, key->layers, key->page_tokens, key->kv_heads, key->head_dim};

	for (size_t i = 0; i < sizeof(factors) / sizeof(factors[0]); i++) {
		if (factors[i] != 0 && bytes > limit / factors[i])
			return 0;
		bytes *= factors[i];
	}
	return bytes;
}

struct okv_hash okv_block_hash(const struct okv_hash *key_digest, const struct okv_hash *parent,
			       const struct okv_hash *lineage, const uint32_t *tokens, uint32_t count)
{
	OKV_ASSERT(count >= 1 && count <= OKV_BLOCK_TOKENS_MAX);
	uint8_t head[3 * sizeof(struct okv_hash) + sizeof(uint32_t)];
	struct okv_writer writer = okv_writer_of(head, sizeof(head));

	okv_write_bytes(&writer, key_digest, sizeof(*key_digest));
	okv_write_bytes(&writer, parent, sizeof(*parent));
	okv_write_bytes(&writer, lineage, sizeof(*lineage));
	okv_write_u32(&writer, count);
	return hash_of("orbitkv block 1", head, sizeof(head), tokens, count * sizeof(uint32_t));
}
