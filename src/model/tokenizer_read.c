#include <stdlib.h>
#include <string.h>

#include "gguf_object.h"
#include "okv/base/buf.h"
#include "tokenizer_object.h"

#define MERGES_KEY "tokenizer.ggml.merges"

static const struct {
	const char *name;
	enum okv__splitter splitter;
} splitters[] = {
	{"smollm", OKV__SPLIT_SMOLLM},	  {"starcoder", OKV__SPLIT_SMOLLM}, {"refact", OKV__SPLIT_SMOLLM},
	{"command-r", OKV__SPLIT_SMOLLM}, {"gpt-2", OKV__SPLIT_GPT2},
};

static bool is_text(struct okv_bytes bytes, const char *text)
{
	return bytes.size == strlen(text) && memcmp(bytes.data, text, bytes.size) == 0;
}

static enum okv_status read_kind(const struct okv_gguf *gguf, struct okv_tokenizer *tokenizer,
				 struct okv_reason *reason)
{
	struct okv_bytes model, splitter;
	enum okv_status status = okv_gguf_string(gguf, "tokenizer.ggml.model", &model, reason);

	if (status)
		return status;
	if (!is_text(model, "gpt2"))
		return okv_refuse(reason, OKV_ERR_UNSUPPORTED, "model",
				  "tokenizer.ggml.model is \"%s\"; only byte-level BPE (\"gpt2\") is read",
				  okv__show(model).text);
	status = okv_gguf_string(gguf, "tokenizer.ggml.pre", &splitter, reason);
	if (status)
		return status;
	for (size_t i = 0; i < sizeof(splitters) / sizeof(splitters[0]); i++)
		if (is_text(splitter, splitters[i].name)) {
			tokenizer->splitter = splitters[i].splitter;
			return OKV_OK;
		}
	return okv_refuse(reason, OKV_ERR_UNSUPPORTED, "model",
			  "tokenizer.ggml.pre is \"%s\"; smollm, starcoder, refact, command-r and gpt-2 are read",
			  okv__show(splitter).text);
}

static uint32_t find_text(const struct okv_tokenizer *tokenizer, const struct okv_buf *text, size_t from, size_t to)
{
	return okv__vocabulary_find(&tokenizer->vocabulary, (const uint8_t *)text->data + from, to - from);
}

/* One merge, "left right" in byte letters. `text` is scratch. */
static enum okv_status read_merge(const struct okv_tokenizer *tokenizer, struct okv_bytes line, struct okv_buf *text,
				  struct okv__merge *ret_merge)
{
	const uint8_t *space = memchr(line.data, ' ', line.size);

	if (!space)
		return OKV_ERR_INVALID;
	struct okv_bytes left = {line.data, (size_t)(space - line.data)};
	struct okv_bytes right = {space + 1, line.size - left.size - 1};
	size_t left_size, right_size;

	okv_buf_clear(text);
	okv_buf_append(text, line.data, line.size); /* as much room as both can need */
	if (text->failed)
		return OKV_ERR_NO_MEMORY;
	uint8_t *bytes = (uint8_t *)text->data;
	if (!okv__byte_letters_decode(left, bytes, &left_size) ||
	    !okv__byte_letters_decode(right, bytes + left_size, &right_size))
		return OKV_ERR_INVALID;
	*ret_merge = (struct okv__merge){.left = find_text(tokenizer, text, 0, left_size),
					 .right = find_text(tokenizer, text, left_size, left_size + right_size),
					 .result = find_text(tokenizer, text, 0, left_size + right_size)};
	bool known = ret_merge->left != OKV__NO_TOKEN && ret_merge->right != OKV__NO_TOKEN &&
		     ret_merge->result != OKV__NO_TOKEN;
	return known ? OKV_OK : OKV_ERR_ABSENT;
}

static enum okv_status refuse_merge(struct okv_reason *reason, enum okv_status status, uint64_t rank,
				    struct okv_bytes line)
{
	const char *why = status == OKV_ERR_INVALID  ? "is not two texts in byte letters"
			  : status == OKV_ERR_ABSENT ? "names or makes a token that no ordinary token is"
						     : "stands there twice";

	if (status == OKV_ERR_NO_MEMORY)
		return okv_refuse(reason, status, "model", "no memory for " MERGES_KEY);
	return okv_refuse(reason, OKV_ERR_INVALID, "model", "merge %llu of " MERGES_KEY " (%s) %s",
			  (unsigned long long)rank, okv__show(line).text, why);
}

static enum okv_status read_merges(const struct okv_gguf *gguf, struct okv_tokenizer *tokenizer,
				   struct okv_reason *reason)
{
	struct okv_gguf_array merges;
	struct okv_buf text = {0};
	enum okv_status status = okv_gguf_array(gguf, MERGES_KEY, OKV_GGUF_STRING, &merges, reason);

	if (status)
		return status;
	if (okv__bpe_init(&tokenizer->bpe, (uint32_t)merges.count))
		return okv_refuse(reason, OKV_ERR_NO_MEMORY, "model", "no memory for " MERGES_KEY);
	for (uint64_t rank = 0; rank < merges.count && !status; rank++) {
		struct okv__merge merge = {0};

		status = read_merge(tokenizer, merges.strings[rank], &text, &merge);
		if (!status)
			status = okv__bpe_add(&tokenizer->bpe, merge);
		if (status)
			status = refuse_merge(reason, status, rank, merges.strings[rank]);
	}
	okv_buf_done(&text);
	for (unsigned byte = 0; byte < 256; byte++)
		tokenizer->bpe.byte_token[byte] =
			okv__vocabulary_find(&tokenizer->vocabulary, &(uint8_t){(uint8_t)byte}, 1);
	return status;
}

/* A token id; OKV__NO_TOKEN where the key is absent. */
static enum okv_status read_id(const struct okv_gguf *gguf, const struct okv_tokenizer *tokenizer, const char *key,
			       uint32_t *ret_id, struct okv_reason *reason)
{
	uint64_t id;
	enum okv_status status = okv_gguf_uint(gguf, key, tokenizer->vocabulary.count - 1, &id, reason);

	if (status && status != OKV_ERR_ABSENT)
		return status;
	*ret_id = status ? OKV__NO_TOKEN : (uint32_t)id;
	return OKV_OK;
}

/* A bool; false where the key is absent. */
static enum okv_status read_flag(const struct okv_gguf *gguf, const char *key, bool *ret_flag,
				 struct okv_reason *reason)
{
	enum okv_status status = okv_gguf_bool(gguf, key, ret_flag, reason);

	if (status == OKV_ERR_ABSENT) {
		*ret_flag = false;
		return OKV_OK;
	}
	return status;
}

static void add_end(struct okv_tokenizer *tokenizer, uint32_t id)
{
	if (id != OKV__NO_TOKEN && !okv_tokenizer_is_end(tokenizer, id))
		tokenizer->end[tokenizer->end_count++] = id;
}

static enum okv_status read_ids(const struct okv_gguf *gguf, struct okv_tokenizer *tokenizer, struct okv_reason *reason)
{
	static const char *const keys[] = {"tokenizer.ggml.bos_token_id", "tokenizer.ggml.eos_token_id",
					   "tokenizer.ggml.eot_token_id", "tokenizer.ggml.unknown_token_id",
					   "tokenizer.ggml.padding_token_id"};
	uint32_t id[5], im_end;

	for (size_t i = 0; i < 5; i++) {
		enum okv_status status = read_id(gguf, tokenizer, keys[i], &id[i], reason);

		if (status)
			return status;
	}
	tokenizer->bos = id[0];
	add_end(tokenizer, id[1]);
	add_end(tokenizer, id[2]);
	if (okv_tokenizer_special(tokenizer, "<|im_end|>", &im_end) && okv_tokenizer_is_control(tokenizer, im_end))
		add_end(tokenizer, im_end);
	return OKV_OK;
}

static enum okv_status read_flags(const struct okv_gguf *gguf, struct okv_tokenizer *tokenizer,
				  struct okv_reason *reason)
{
	bool add_eos, add_space;
	enum okv_status status = read_flag(gguf, "tokenizer.ggml.add_bos_token", &tokenizer->add_bos, reason);

	if (!status)
		status = read_flag(gguf, "tokenizer.ggml.add_eos_token", &add_eos, reason);
	if (!status)
		status = read_flag(gguf, "tokenizer.ggml.add_space_prefix", &add_space, reason);
	if (status)
		return status;
	if (add_eos || add_space)
		return okv_refuse(reason, OKV_ERR_UNSUPPORTED, "model",
				  "tokenizer.ggml.add_eos_token or .add_space_prefix is true, which we do not do");
	if (tokenizer->add_bos && tokenizer->bos == OKV__NO_TOKEN)
		return okv_refuse(reason, OKV_ERR_INVALID, "model",
				  "tokenizer.ggml.add_bos_token is true and there is no tokenizer.ggml.bos_token_id");
	return OKV_OK;
}

static void hash_number(struct okv_sha256 *sha, uint64_t number)
{
	okv_sha256_update(sha, &number, sizeof(number));
}

static void hash_bytes(struct okv_sha256 *sha, const void *bytes, size_t size)
{
	hash_number(sha, size);
	okv_sha256_update(sha, bytes, size);
}

/*
 * SHA-256 over, every number as u64 little-endian and every text after its length: the tag "orbitkv tokenizer 1", the
 * splitter, the number of tokens, each token's type and bytes, the number of merges, each merge's left, right and
 * resulting id, whether a BOS is added, its id, the number of ends, each end's id.
 */
static enum okv_status make_digest(struct okv_tokenizer *tokenizer, struct okv_reason *reason)
{
	static const char tag[] = "orbitkv tokenizer 1";
	const struct okv__vocabulary *vocabulary = &tokenizer->vocabulary;
	const struct okv__bpe *bpe = &tokenizer->bpe;
	struct okv_sha256 *sha = okv_sha256_create();

	if (!sha)
		return okv_refuse(reason, OKV_ERR_NO_MEMORY, "model", "no memory for a digest");
	hash_bytes(sha, tag, sizeof(tag) - 1);
	hash_number(sha, tokenizer->splitter);
	hash_number(sha, vocabulary->count);
	for (uint32_t id = 0; id < vocabulary->count; id++) {
		struct okv_bytes bytes = okv__vocabulary_bytes(vocabulary, id);

		hash_number(sha, vocabulary->type[id]);
		hash_bytes(sha, bytes.data, bytes.size);
	}
	hash_number(sha, bpe->merge_count);
	for (uint32_t rank = 0; rank < bpe->merge_count; rank++) {
		hash_number(sha, bpe->merge[rank].left);
		hash_number(sha, bpe->merge[rank].right);
		hash_number(sha, bpe->merge[rank].result);
	}
	hash_number(sha, tokenizer->add_bos);
	hash_number(sha, tokenizer->bos);
	hash_number(sha, tokenizer->end_count);
	for (unsigned i = 0; i < tokenizer->end_count; i++)
		hash_number(sha, tokenizer->end[i]);
	tokenizer->digest = okv_sha256_finish(sha);
	return OKV_OK;
}

enum okv_status okv__tokenizer_read(const struct okv_gguf *gguf, struct okv_tokenizer *tokenizer,
				    struct okv_reason *reason)
{
	enum okv_status status = read_kind(gguf, tokenizer, reason);

	if (!status)
		status = okv__vocabulary_read(gguf, &tokenizer->vocabulary, reason);
	if (!status)
		status = read_merges(gguf, tokenizer, reason);
	if (!status)
		status = read_ids(gguf, tokenizer, reason);
	if (!status)
		status = read_flags(gguf, tokenizer, reason);
	if (!status)
		status = make_digest(tokenizer, reason);
	okv__vocabulary_forget_texts(&tokenizer->vocabulary);
	return status;
}
