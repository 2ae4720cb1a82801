#include <stdlib.h>
#include <string.h>

#include "gguf_object.h"
#include "tokenizer_object.h"

/* Positions within a word are 32 bits, and a word of this size takes about 30 bytes of scratch a byte. */
#define TEXT_BYTES_MAX (64u << 20)

enum okv_status okv_tokens_push(struct okv_tokens *tokens, uint32_t id)
{
	if (tokens->count == tokens->room) {
		size_t room = tokens->room ? 2 * tokens->room : 64;
		uint32_t *grown = realloc(tokens->id, room * sizeof(*grown));

		if (!grown)
			return OKV_ERR_NO_MEMORY;
		tokens->id = grown;
		tokens->room = room;
	}
	tokens->id[tokens->count++] = id;
	return OKV_OK;
}

void okv_tokens_done(struct okv_tokens *tokens)
{
	free(tokens->id);
	*tokens = (struct okv_tokens){0};
}

enum okv_status okv_tokenizer_create(const struct okv_gguf *gguf, struct okv_tokenizer **ret_tokenizer,
				     struct okv_reason *reason)
{
	struct okv_tokenizer *tokenizer = calloc(1, sizeof(*tokenizer));

	if (!tokenizer)
		return okv_refuse(reason, OKV_ERR_NO_MEMORY, "model", "no memory for a tokenizer");
	enum okv_status status = okv__tokenizer_read(gguf, tokenizer, reason);
	if (status) {
		okv_tokenizer_destroy(tokenizer);
		return okv__gguf_blame(gguf, status, reason);
	}
	*ret_tokenizer = tokenizer;
	return OKV_OK;
}

void okv_tokenizer_destroy(struct okv_tokenizer *tokenizer)
{
	if (!tokenizer)
		return;
	okv__bpe_done(&tokenizer->bpe);
	okv__vocabulary_done(&tokenizer->vocabulary);
	free(tokenizer);
}

const struct okv_hash *okv_tokenizer_digest(const struct okv_tokenizer *tokenizer)
{
	return &tokenizer->digest;
}

uint32_t okv_tokenizer_vocabulary(const struct okv_tokenizer *tokenizer)
{
	return tokenizer->vocabulary.count;
}

enum okv_status okv_tokenizer_encode(const struct okv_tokenizer *tokenizer, const char *text, size_t size,
				     struct okv_tokens *tokens, struct okv_reason *reason)
{
	struct okv__bpe_scratch scratch = {0};
	size_t before = tokens->count, word_size;
	const uint8_t *word;
	enum okv_status status = OKV_OK;

	if (size > TEXT_BYTES_MAX)
		return okv_refuse(reason, OKV_ERR_BUDGET, "text", "%zu bytes of text, at most %u are read", size,
				  TEXT_BYTES_MAX);
	if (!okv_utf8_is_valid(text, size))
		return okv_refuse(reason, OKV_ERR_INVALID, "text", "the text is not valid UTF-8; send it as UTF-8");

	struct okv__split split = okv__split_start(tokenizer->splitter, (const uint8_t *)text, size);
	while (!status && okv__split_next(&split, &word, &word_size))
		status = okv__bpe_word(&tokenizer->bpe, word, word_size, &scratch, tokens);
	okv__bpe_scratch_done(&scratch);
	if (status) {
		tokens->count = before;
		return okv_refuse(reason, status, "text", "no memory to tokenize %zu bytes", size);
	}
	return OKV_OK;
}

bool okv_tokenizer_bos(const struct okv_tokenizer *tokenizer, uint32_t *ret_id)
{
	if (tokenizer->add_bos)
		*ret_id = tokenizer->bos;
	return tokenizer->add_bos;
}

bool okv_tokenizer_is_end(const struct okv_tokenizer *tokenizer, uint32_t id)
{
	for (unsigned i = 0; i < tokenizer->end_count; i++)
		if (tokenizer->end[i] == id)
			return true;
	return false;
}

bool okv_tokenizer_special(const struct okv_tokenizer *tokenizer, const char *text, uint32_t *ret_id)
{
	const struct okv__vocabulary *vocabulary = &tokenizer->vocabulary;
	size_t size = strlen(text);

	for (uint32_t id = 0; id < vocabulary->count; id++) {
		if (vocabulary->type[id] != OKV__TOKEN_CONTROL && vocabulary->type[id] != OKV__TOKEN_USER_DEFINED)
			continue;
		struct okv_bytes own = okv__vocabulary_bytes(vocabulary, id);

		if (own.size == size && memcmp(own.data, text, size) == 0) {
			*ret_id = id;
			return true;
		}
	}
	return false;
}

bool okv_tokenizer_is_control(const struct okv_tokenizer *tokenizer, uint32_t id)
{
	return id < tokenizer->vocabulary.count && (tokenizer->vocabulary.type[id] == OKV__TOKEN_CONTROL ||
						    tokenizer->vocabulary.type[id] == OKV__TOKEN_UNKNOWN);
}

struct okv_bytes okv__tokenizer_text(const struct okv_tokenizer *tokenizer, uint32_t id)
{
	if (id >= tokenizer->vocabulary.count || okv_tokenizer_is_control(tokenizer, id))
		return (struct okv_bytes){NULL, 0};
	return okv__vocabulary_bytes(&tokenizer->vocabulary, id);
}

size_t okv_tokenizer_token_bytes_max(const struct okv_tokenizer *tokenizer)
{
	size_t most = 1;

	for (uint32_t id = 0; id < tokenizer->vocabulary.count; id++) {
		size_t size = okv__tokenizer_text(tokenizer, id).size;

		most = size > most ? size : most;
	}
	return most;
}

void okv_tokenizer_decode(const struct okv_tokenizer *tokenizer, uint32_t id, struct okv_buf *bytes)
{
	struct okv_bytes text = okv__tokenizer_text(tokenizer, id);

	okv_buf_append(bytes, text.data, text.size);
}
