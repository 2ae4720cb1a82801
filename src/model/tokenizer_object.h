/* The inside of an okv_tokenizer, for the files that read it. */
#ifndef OKV_MODEL_TOKENIZER_OBJECT_H
#define OKV_MODEL_TOKENIZER_OBJECT_H

#include "bpe.h"
#include "okv/model/gguf.h"
#include "okv/model/tokenizer.h"
#include "splitter.h"
#include "vocabulary.h"

enum { OKV__ENDS_MAX = 3 };

struct okv_tokenizer {
	struct okv__vocabulary vocabulary;
	struct okv__bpe bpe;
	enum okv__splitter splitter;
	bool add_bos;
	uint32_t bos; /* OKV__NO_TOKEN if there is none */
	uint32_t end[OKV__ENDS_MAX];
	unsigned end_count;
	struct okv_hash digest;
};

/* The text of a token as bytes: none for control and unknown tokens, and for ids that are none of ours. */
struct okv_bytes okv__tokenizer_text(const struct okv_tokenizer *tokenizer, uint32_t id);

/* Reads the GGUF into a zeroed object (tokenizer_read.c). The caller destroys it also on failure. */
OKV_MUST_CHECK enum okv_status okv__tokenizer_read(const struct okv_gguf *gguf, struct okv_tokenizer *tokenizer,
						   struct okv_reason *reason);

#endif
