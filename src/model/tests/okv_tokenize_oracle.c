/*
 * okv-tokenize-oracle MODEL encode|decode: what this tokenizer does, for comparison with others.
 *
 * encode: standard input holds texts, each a u32 little-endian size and its bytes; a line of ids follows for each, or
 * "refused: REASON". decode: standard input holds lists, each a u32 count and u32 ids; a line with the text in hex
 * follows for each, made by the incremental detokeniser.
 */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "okv/model/gguf.h"
#include "okv/model/tokenizer.h"

static bool read_exactly(void *bytes, size_t size)
{
	return fread(bytes, 1, size, stdin) == size;
}

static bool encode(const struct okv_tokenizer *tokenizer, uint32_t size)
{
	char *text = malloc((size_t)size + 1);
	struct okv_tokens tokens = {0};
	struct okv_reason reason = {0};
	bool complete = text && read_exactly(text, size);

	if (complete && okv_tokenizer_encode(tokenizer, text, size, &tokens, &reason))
		printf("refused: %s", reason.text);
	for (size_t i = 0; i < tokens.count; i++)
		printf("%s%u", i ? " " : "", tokens.id[i]);
	putchar('\n');
	okv_tokens_done(&tokens);
	free(text);
	return complete;
}

static bool decode(const struct okv_tokenizer *tokenizer, uint32_t count)
{
	struct okv_detokenizer detokenizer = {0};
	struct okv_buf text = {0};

	for (uint32_t i = 0, id; i < count; i++) {
		if (!read_exactly(&id, sizeof(id)))
			return false;
		okv_detokenizer_feed(&detokenizer, tokenizer, id, &text);
	}
	okv_detokenizer_finish(&detokenizer, &text);
	for (size_t i = 0; i < text.size; i++)
		printf("%02x", (unsigned char)text.data[i]);
	putchar('\n');
	okv_buf_done(&text);
	return true;
}

static bool run(const struct okv_tokenizer *tokenizer, const char *verb)
{
	bool complete = true;

	for (uint32_t size; complete && read_exactly(&size, sizeof(size));)
		complete = strcmp(verb, "decode") == 0 ? decode(tokenizer, size) : encode(tokenizer, size);
	return complete;
}

int main(int argc, char **argv)
{
	struct okv_gguf *gguf = NULL;
	struct okv_tokenizer *tokenizer = NULL;
	struct okv_reason reason = {0};
	int result = 1;

	if (argc != 3 || (strcmp(argv[2], "encode") != 0 && strcmp(argv[2], "decode") != 0)) {
		fprintf(stderr, "usage: okv-tokenize-oracle MODEL encode|decode\n");
		return 2;
	}
	if (okv_gguf_open(argv[1], &gguf, &reason) || okv_tokenizer_create(gguf, &tokenizer, &reason))
		fprintf(stderr, "%s\n", reason.text);
	else if (!run(tokenizer, argv[2]))
		fprintf(stderr, "the input ends within an item\n");
	else
		result = 0;
	okv_tokenizer_destroy(tokenizer);
	okv_gguf_close(gguf);
	return result;
}
