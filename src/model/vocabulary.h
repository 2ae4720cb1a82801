/*
 * Vocabulary: the tokens of a GGUF with their types and bytes, checked, and the table that finds an ordinary token by
 * its text while merges are read. A token's text in the file is written in the byte letters of GPT-2 (one printable
 * character stands for each byte); it is kept here as the bytes it stands for.
 */
#ifndef OKV_MODEL_VOCABULARY_H
#define OKV_MODEL_VOCABULARY_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "okv/base/map.h"
#include "okv/model/gguf.h"

/* tokenizer.ggml.token_type. Type 6 (byte tokens of SentencePiece) is refused. */
enum okv__token_type {
	OKV__TOKEN_NORMAL = 1,
	OKV__TOKEN_UNKNOWN = 2,
	OKV__TOKEN_CONTROL = 3,
	OKV__TOKEN_USER_DEFINED = 4,
	OKV__TOKEN_UNUSED = 5,
};

struct okv__vocabulary {
	uint32_t count;
	uint8_t *type;		   /* owned: [count] enum okv__token_type */
	size_t *offset;		   /* owned: [count + 1] into `bytes` */
	uint8_t *bytes;		   /* owned: what each token stands for; control tokens by their own text */
	struct okv_map by_text;	   /* while loading: ordinary tokens by the bytes they stand for */
	struct okv_map_node *node; /* owned: [count] */
};

/* Reads tokenizer.ggml.tokens and .token_type. The caller calls done also on failure. */
OKV_MUST_CHECK enum okv_status okv__vocabulary_read(const struct okv_gguf *gguf, struct okv__vocabulary *vocabulary,
						    struct okv_reason *reason);
/* Forgets the table that only loading needs. */
void okv__vocabulary_forget_texts(struct okv__vocabulary *vocabulary);
void okv__vocabulary_done(struct okv__vocabulary *vocabulary);

/* The ordinary token that stands for these bytes; UINT32_MAX if there is none. */
uint32_t okv__vocabulary_find(const struct okv__vocabulary *vocabulary, const uint8_t *bytes, size_t size);
/* The bytes of a token as they are kept. */
struct okv_bytes okv__vocabulary_bytes(const struct okv__vocabulary *vocabulary, uint32_t id);

/*
 * Translates text in byte letters to the bytes they stand for; `ret_bytes` has room for text.size. False if the text
 * holds anything else, and then nothing useful is written.
 */
bool okv__byte_letters_decode(struct okv_bytes text, uint8_t *ret_bytes, size_t *ret_size);

#endif
