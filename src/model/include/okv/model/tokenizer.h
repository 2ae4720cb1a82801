/*
 * Tokenizer: text to token ids and back, byte-level BPE (tokenizer.ggml.model "gpt2") with the splitters "smollm" and
 * "gpt-2"; another one is refused by name. Built once from a GGUF, then immutable and readable from any thread.
 *
 * Text from users never yields a special token: okv_tokenizer_encode() has no option to parse them. Templates, which
 * are ours, ask for specials by id (okv_tokenizer_special). Input must be valid UTF-8 and is refused otherwise.
 */
#ifndef OKV_MODEL_TOKENIZER_H
#define OKV_MODEL_TOKENIZER_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "okv/base/buf.h"
#include "okv/base/digest.h"
#include "okv/base/status.h"

struct okv_gguf;
struct okv_tokenizer;

struct okv_tokens {
	uint32_t *id; /* owned */
	size_t count, room;
};
OKV_MUST_CHECK enum okv_status okv_tokens_push(struct okv_tokens *tokens, uint32_t id);
void okv_tokens_done(struct okv_tokens *tokens);

OKV_MUST_CHECK enum okv_status okv_tokenizer_create(const struct okv_gguf *gguf, struct okv_tokenizer **ret_tokenizer,
						    struct okv_reason *reason);
void okv_tokenizer_destroy(struct okv_tokenizer *tokenizer);

/* SHA-256 over vocabulary, merges, types, splitter and special ids: the tokenizer's identity. */
const struct okv_hash *okv_tokenizer_digest(const struct okv_tokenizer *tokenizer);
uint32_t okv_tokenizer_vocabulary(const struct okv_tokenizer *tokenizer);

/* Appends the ids of `text`; adds nothing before or after it. */
OKV_MUST_CHECK enum okv_status okv_tokenizer_encode(const struct okv_tokenizer *tokenizer, const char *text,
						    size_t size, struct okv_tokens *tokens, struct okv_reason *reason);

/* The most bytes that one token stands for; text whose bytes all have tokens has at least its size / this. Reads the
 * whole vocabulary. */
size_t okv_tokenizer_token_bytes_max(const struct okv_tokenizer *tokenizer);

/* True if completions must begin with the BOS token (tokenizer.ggml.add_bos_token); its id then goes to *ret_id. */
bool okv_tokenizer_bos(const struct okv_tokenizer *tokenizer, uint32_t *ret_id);
/* True for ids that end a generation: eos, eot, and "<|im_end|>" where it exists as a control token. */
bool okv_tokenizer_is_end(const struct okv_tokenizer *tokenizer, uint32_t id);
/* The id of a control or user-defined token by its text; false if there is none. */
bool okv_tokenizer_special(const struct okv_tokenizer *tokenizer, const char *text, uint32_t *ret_id);
/* True for control tokens, which have no text in a completion. */
bool okv_tokenizer_is_control(const struct okv_tokenizer *tokenizer, uint32_t id);

/* Appends the raw bytes of one token (empty for control tokens). They need not be UTF-8 alone. */
void okv_tokenizer_decode(const struct okv_tokenizer *tokenizer, uint32_t id, struct okv_buf *bytes);

/*
 * Incremental detokeniser: feed ids, get the longest text that is complete UTF-8; at most three bytes are held back. A
 * byte that can never become valid turns into U+FFFD. Zero-initialised is ready; nothing is allocated.
 */
struct okv_detokenizer {
	uint8_t held[4];
	uint8_t held_count;
};
void okv_detokenizer_feed(struct okv_detokenizer *detokenizer, const struct okv_tokenizer *tokenizer, uint32_t id,
			  struct okv_buf *text);
/* The end of the text: what is still held becomes U+FFFD. */
void okv_detokenizer_finish(struct okv_detokenizer *detokenizer, struct okv_buf *text);

/* True if the bytes are valid UTF-8 (no surrogates, no overlong forms, at most U+10FFFF). */
bool okv_utf8_is_valid(const char *text, size_t size);

#endif
