#include "vocabulary.h"

#include <stdlib.h>
#include <string.h>

#include "gguf_object.h"
#include "okv/base/digest.h"
#include "utf8.h"

#define TOKENS_KEY "tokenizer.ggml.tokens"
#define TYPES_KEY  "tokenizer.ggml.token_type"

/* The byte that a letter stands for; -1 if none. GPT-2's table: printable Latin-1 is itself, the rest counts up from
 * U+0100 in byte order: 0..32, 127..160, 173. */
static int byte_of_letter(int32_t letter)
{
	if ((letter >= 0x21 && letter <= 0x7e) || (letter >= 0xa1 && letter <= 0xac) ||
	    (letter >= 0xae && letter <= 0xff))
		return letter;
	if (letter >= 0x100 && letter <= 0x120)
		return letter - 0x100;
	if (letter >= 0x121 && letter <= 0x142)
		return letter - 0x121 + 127;
	return letter == 0x143 ? 173 : -1;
}

bool okv__byte_letters_decode(struct okv_bytes text, uint8_t *ret_bytes, size_t *ret_size)
{
	size_t size = 0;

	for (size_t at = 0; at < text.size;) {
		unsigned length = okv__utf8_length(text.data + at, 1);
		int32_t letter;

		if (length == 0 || length > text.size - at || okv__utf8_length(text.data + at, length) != length)
			return false;
		at += okv__utf8_decode(text.data + at, &letter);

		int byte = byte_of_letter(letter);
		if (byte < 0)
			return false;
		ret_bytes[size++] = (uint8_t)byte;
	}
	*ret_size = size;
	return true;
}

struct okv_bytes okv__vocabulary_bytes(const struct okv__vocabulary *vocabulary, uint32_t id)
{
	size_t start = vocabulary->offset[id];

	return (struct okv_bytes){vocabulary->bytes + start, vocabulary->offset[id + 1] - start};
}

uint32_t okv__vocabulary_find(const struct okv__vocabulary *vocabulary, const uint8_t *bytes, size_t size)
{
	struct okv_bytes wanted = {bytes, size};
	uint64_t hash = okv_table_hash(bytes, size);

	for (struct okv_map_node *node = okv_map_first(&vocabulary->by_text, hash); node; node = okv_map_next(node)) {
		uint32_t id = (uint32_t)(node - vocabulary->node);

		if (okv__bytes_compare(okv__vocabulary_bytes(vocabulary, id), wanted) == 0)
			return id;
	}
	return UINT32_MAX;
}

static enum okv_status allocate(struct okv__vocabulary *vocabulary, const struct okv_gguf_array *tokens,
				struct okv_reason *reason)
{
	size_t bytes = 1, count = vocabulary->count;

	for (size_t i = 0; i < count; i++)
		bytes += tokens->strings[i].size;
	vocabulary->type = calloc(count + 1, sizeof(*vocabulary->type));
	vocabulary->offset = calloc(count + 1, sizeof(*vocabulary->offset));
	vocabulary->node = calloc(count + 1, sizeof(*vocabulary->node));
	vocabulary->bytes = malloc(bytes);
	if (!vocabulary->type || !vocabulary->offset || !vocabulary->node || !vocabulary->bytes ||
	    okv_map_init(&vocabulary->by_text))
		return okv_refuse(reason, OKV_ERR_NO_MEMORY, "model", "no memory for a vocabulary of %zu tokens",
				  count);
	return OKV_OK;
}

/* Keeps one token, whose type is known, behind the ones before it. */
static enum okv_status add_token(struct okv__vocabulary *vocabulary, uint32_t id, struct okv_bytes text,
				 struct okv_reason *reason)
{
	uint8_t *bytes = vocabulary->bytes + vocabulary->offset[id];
	size_t size = text.size;

	if (text.size == 0)
		return okv_refuse(reason, OKV_ERR_INVALID, "model", "token %u of " TOKENS_KEY " is empty", id);
	bool ordinary = vocabulary->type[id] == OKV__TOKEN_NORMAL && okv__byte_letters_decode(text, bytes, &size);
	if (!ordinary) {
		size = text.size;
		memcpy(bytes, text.data, size);
	}
	vocabulary->offset[id + 1] = vocabulary->offset[id] + size;
	if (!ordinary)
		return OKV_OK;

	uint32_t twin = okv__vocabulary_find(vocabulary, bytes, size);
	if (twin != UINT32_MAX)
		return okv_refuse(reason, OKV_ERR_INVALID, "model",
				  "tokens %u and %u of " TOKENS_KEY " are both \"%s\"", twin, id, okv__show(text).text);
	okv_map_insert(&vocabulary->by_text, &vocabulary->node[id], okv_table_hash(bytes, size));
	return OKV_OK;
}

static enum okv_status read_type(const struct okv_gguf_array *types, uint32_t id, uint8_t *ret_type,
				 struct okv_reason *reason)
{
	int32_t type;

	memcpy(&type, types->data + (size_t)id * sizeof(type), sizeof(type));
	if (type < OKV__TOKEN_NORMAL || type > OKV__TOKEN_UNUSED)
		return okv_refuse(reason, OKV_ERR_UNSUPPORTED, "model",
				  "token %u has type %d in " TYPES_KEY ", only 1 to 5 are read", id, type);
	*ret_type = (uint8_t)type;
	return OKV_OK;
}

enum okv_status okv__vocabulary_read(const struct okv_gguf *gguf, struct okv__vocabulary *vocabulary,
				     struct okv_reason *reason)
{
	struct okv_gguf_array tokens, types;
	enum okv_status status = okv_gguf_array(gguf, TOKENS_KEY, OKV_GGUF_STRING, &tokens, reason);

	if (!status)
		status = okv_gguf_array(gguf, TYPES_KEY, OKV_GGUF_I32, &types, reason);
	if (status)
		return status;
	if (tokens.count == 0 || types.count != tokens.count)
		return okv_refuse(reason, OKV_ERR_INVALID, "model",
				  TOKENS_KEY " has %llu entries and " TYPES_KEY " %llu; both need one a token",
				  (unsigned long long)tokens.count, (unsigned long long)types.count);
	vocabulary->count = (uint32_t)tokens.count;
	status = allocate(vocabulary, &tokens, reason);
	for (uint32_t id = 0; id < vocabulary->count && !status; id++) {
		status = read_type(&types, id, &vocabulary->type[id], reason);
		if (!status)
			status = add_token(vocabulary, id, tokens.strings[id], reason);
	}
	return status;
}

void okv__vocabulary_forget_texts(struct okv__vocabulary *vocabulary)
{
	if (vocabulary->by_text.bucket)
		okv_map_done(&vocabulary->by_text);
	vocabulary->by_text = (struct okv_map){0};
	free(vocabulary->node);
	vocabulary->node = NULL;
}

void okv__vocabulary_done(struct okv__vocabulary *vocabulary)
{
	okv__vocabulary_forget_texts(vocabulary);
	free(vocabulary->type);
	free(vocabulary->offset);
	free(vocabulary->bytes);
}
