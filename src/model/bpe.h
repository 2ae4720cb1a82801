/*
 * Byte-level BPE within one word: start with one token a byte; join the neighbours whose merge has the lowest rank,
 * the leftmost of equals first; until none can be joined. A linked list over the word and a heap of (rank, position)
 * make that O(n log n), so that a megabyte without a space is only a long word.
 */
#ifndef OKV_MODEL_BPE_H
#define OKV_MODEL_BPE_H

#include <stddef.h>
#include <stdint.h>

#include "okv/model/tokenizer.h"

#define OKV__NO_TOKEN UINT32_MAX

struct okv__merge {
	uint32_t left, right, result;
};

struct okv__bpe {
	uint32_t byte_token[256]; /* OKV__NO_TOKEN: the vocabulary has none, and the byte is left out */
	struct okv__merge *merge; /* owned, in rank order */
	uint32_t merge_count;
	uint32_t *slot; /* owned: open addressing over (left, right), holds rank + 1, 0 is free */
	size_t slot_mask;
};

/* Memory for words, reused from one to the next. Zero-initialised is ready. */
struct okv__bpe_scratch {
	struct okv__symbol *symbol; /* owned */
	uint64_t *heap;		    /* owned; as many entries as two per symbol */
	size_t room;		    /* symbols */
	size_t heap_count;
};

/* Makes the table for `merge_count` merges; they are then added in rank order. */
OKV_MUST_CHECK enum okv_status okv__bpe_init(struct okv__bpe *bpe, uint32_t merge_count);
/* OKV_ERR_EXISTS: the pair has a rank already. */
OKV_MUST_CHECK enum okv_status okv__bpe_add(struct okv__bpe *bpe, struct okv__merge merge);
void okv__bpe_done(struct okv__bpe *bpe);

/* Appends the tokens of one word of at most UINT32_MAX - 1 bytes. */
OKV_MUST_CHECK enum okv_status okv__bpe_word(const struct okv__bpe *bpe, const uint8_t *word, size_t size,
					     struct okv__bpe_scratch *scratch, struct okv_tokens *tokens);
void okv__bpe_scratch_done(struct okv__bpe_scratch *scratch);

#endif
