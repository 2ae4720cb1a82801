/*
 * Text into ids and back: any bytes are refused as invalid UTF-8 or come back as they were, whatever the splitter, and
 * an id is never a special one. The same bytes as ids of byte tokens make a text that is valid UTF-8, however cut.
 */
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#include "gguf_builder.h"
#include "okv/model/tokenizer.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

enum { SPECIALS = 3 };

static struct okv_tokenizer *make(const char *splitter)
{
	struct gguf_builder builder = {0};
	struct okv_buf file = {0};
	struct okv_gguf *gguf;
	struct okv_tokenizer *tokenizer;

	tiny_vocabulary_add(&builder, splitter);
	gguf_write(&builder, &file);
	if (okv_gguf_parse(file.data, file.size, &gguf, NULL) || okv_tokenizer_create(gguf, &tokenizer, NULL))
		abort();
	okv_gguf_close(gguf);
	okv_buf_done(&file);
	gguf_builder_done(&builder);
	return tokenizer;
}

static void round_trip(const struct okv_tokenizer *tokenizer, const char *text, size_t size)
{
	struct okv_tokens tokens = {0};
	struct okv_buf back = {0};
	enum okv_status status = okv_tokenizer_encode(tokenizer, text, size, &tokens, NULL);

	if ((status == OKV_OK) != okv_utf8_is_valid(text, size))
		abort();
	for (size_t i = 0; i < tokens.count; i++) {
		if (tokens.id[i] < SPECIALS)
			abort();
		okv_tokenizer_decode(tokenizer, tokens.id[i], &back);
	}
	if (!status && (back.size != size || (size && memcmp(back.data, text, size) != 0)))
		abort();
	okv_buf_done(&back);
	okv_tokens_done(&tokens);
}

static void stream_bytes(const struct okv_tokenizer *tokenizer, const uint8_t *data, size_t size)
{
	struct okv_detokenizer detokenizer = {0};
	struct okv_buf text = {0};

	for (size_t i = 0; i < size; i++) {
		size_t before = text.size;

		okv_detokenizer_feed(&detokenizer, tokenizer, SPECIALS + data[i], &text);
		if (detokenizer.held_count > 3 ||
		    (text.size > before && !okv_utf8_is_valid(text.data + before, text.size - before)))
			abort();
	}
	okv_detokenizer_finish(&detokenizer, &text);
	if (text.size && !okv_utf8_is_valid(text.data, text.size))
		abort();
	if (okv_utf8_is_valid((const char *)data, size) && text.size != size)
		abort();
	okv_buf_done(&text);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
	static struct okv_tokenizer *smollm, *gpt2;

	if (!smollm) {
		smollm = make("smollm");
		gpt2 = make("gpt-2");
	}
	round_trip(smollm, (const char *)data, size);
	round_trip(gpt2, (const char *)data, size);
	stream_bytes(smollm, data, size);
	return 0;
}
