/*
 * Identity: what a block is, so that a byte can never be served under a wrong name.
 *
 * The materialisation key says how KV bytes came to be: every input that could change a bit of them, by content digest
 * and never by a name that a user typed. The block hash chains it with the token ids of the page and the hash of the
 * page before, so equal hashes mean equal keys, equal prefixes and equal tokens.
 *
 *     key digest = SHA-256("orbitkv key 1"   || each field with its length)
 *     block hash = SHA-256("orbitkv block 1" || key digest || parent hash || lineage || token count || token ids)
 *
 * The first page's parent is the zero hash. Lineage is zero for a sequence that was only appended to; an edit that is
 * not exact against a fresh run makes it non-zero. Hashes are 256 bits and never truncated. Byte forms:
 * docs/formats/identity.md.
 *
 * Pure functions over value types; safe from any thread.
 */
#ifndef OKV_SPAN_IDENTITY_H
#define OKV_SPAN_IDENTITY_H

#include <stddef.h>
#include <stdint.h>

#include "okv/base/digest.h"
#include "okv/base/status.h"

enum { OKV_KEY_NAME_MAX = 40, OKV_KEY_ENCODED_MAX = 512, OKV_BLOCK_TOKENS_MAX = 256 };

struct okv_materialisation_key {
	struct okv_hash weights, adapter, tokenizer; /* content digests; adapter is zero when there is none */
	char serializer[OKV_KEY_NAME_MAX];	     /* id and version of the page layout, e.g. "page-lkvt-1" */
	/* Position regime. */
	char rope_type[OKV_KEY_NAME_MAX];    /* "adjacent" or "half" */
	char rope_scaling[OKV_KEY_NAME_MAX]; /* "none" */
	double rope_theta;
	uint32_t rope_dims;
	/* Shape and storage. */
	uint32_t layers, kv_heads, head_dim, page_tokens;
	char kv_dtype[OKV_KEY_NAME_MAX]; /* "f16" or "f32" */
	uint32_t tp_rank, tp_size;
	char numerics[OKV_KEY_NAME_MAX]; /* id of the arithmetic */
	/* Trust: hashed from the start, so that a later policy can never meet a block of an earlier one. */
	uint32_t policy_version, admitter_version;
	char isolation_domain[OKV_KEY_NAME_MAX];
};

/*
 * Canonical encoding: every field in the order above as u16 field number, u32 length, bytes (docs/formats/identity.md).
 * Writes at most OKV_KEY_ENCODED_MAX bytes to `ret_bytes` and returns how many.
 */
size_t okv_key_encode(const struct okv_materialisation_key *key, uint8_t *ret_bytes);

/* OKV_ERR_INVALID for anything that okv_key_encode() would not have written. */
OKV_MUST_CHECK enum okv_status okv_key_decode(const uint8_t *bytes, size_t size,
					      struct okv_materialisation_key *ret_key, struct okv_reason *reason);

struct okv_hash okv_key_digest(const struct okv_materialisation_key *key);

/* OKV_OK if equal; else OKV_ERR_MISMATCH, and the reason names the first field that differs. */
OKV_MUST_CHECK enum okv_status okv_key_compare(const struct okv_materialisation_key *ours,
					       const struct okv_materialisation_key *theirs, struct okv_reason *reason);

/* Bytes of one page under this key: 2 * layers * page_tokens * kv_heads * head_dim * element size; 0 if the dtype is
 * unknown or the product is unreasonable (over 1 GiB). */
size_t okv_key_page_bytes(const struct okv_materialisation_key *key);

/* The hash of a block of `count` (1..OKV_BLOCK_TOKENS_MAX) tokens. */
struct okv_hash okv_block_hash(const struct okv_hash *key_digest, const struct okv_hash *parent,
			       const struct okv_hash *lineage, const uint32_t *tokens, uint32_t count);

#endif
