/*
 * The tokenizer on small vocabularies: the splitters' words, merges against a naive oracle, the detokeniser, the digest
 * and what is refused. tests/blackbox/test_tokenizer.py compares real vocabularies with other tokenizers.
 */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "gguf_builder.h"
#include "okv/base/rng.h"
#include "okv/model/tokenizer.h"
#include "splitter.h"

enum { SPECIALS = 3, SEED = 20240611 };

static struct okv_gguf *parsed(struct gguf_builder *builder)
{
	struct okv_buf file = {0};
	struct okv_gguf *gguf = NULL;
	struct okv_reason reason;

	gguf_write(builder, &file);
	if (okv_gguf_parse(file.data, file.size, &gguf, &reason))
		fail_msg("%s", reason.text);
	okv_buf_done(&file);
	gguf_builder_done(builder);
	return gguf;
}

static struct okv_tokenizer *tiny(const char *splitter)
{
	struct gguf_builder builder = {0};
	struct okv_tokenizer *tokenizer = NULL;
	struct okv_reason reason;

	tiny_vocabulary_add(&builder, splitter);
	struct okv_gguf *gguf = parsed(&builder);
	if (okv_tokenizer_create(gguf, &tokenizer, &reason))
		fail_msg("%s", reason.text);
	okv_gguf_close(gguf); /* nothing of it may be needed from here on */
	return tokenizer;
}

/* The words of `text`, joined by '|'. */
static void assert_words(enum okv__splitter splitter, const char *text, const char *expected)
{
	struct okv__split split = okv__split_start(splitter, (const uint8_t *)text, strlen(text));
	struct okv_buf words = {0};
	const uint8_t *word;
	size_t size;

	okv_buf_text(&words, "");
	while (okv__split_next(&split, &word, &size)) {
		if (words.size)
			okv_buf_text(&words, "|");
		okv_buf_append(&words, word, size);
	}
	assert_string_equal(words.data, expected);
	okv_buf_done(&words);
}

static void splitters_cut_where_their_pattern_does(void **state)
{
	(void)state;
	/* Checked with the tokenizers package: ByteLevel, and Digits(individual_digits) before it. */
	static const struct {
		const char *text, *gpt2, *smollm;
	} cases[] = {
		{"", "", ""},
		{"Hello world", "Hello| world", "Hello| world"},
		{"  two", " | two", " | two"},
		{"a \n b", "a| \n| b", "a| \n| b"},
		{"a\n\nb", "a|\n|\n|b", "a|\n|\n|b"},
		{"end   ", "end|   ", "end|   "},
		{"it's we'll I'M", "it|'s| we|'ll| I|'|M", "it|'s| we|'ll| I|'|M"},
		{"!'s '", "!'|s| '", "!'|s| '"},
		{"'r", "'|r", "'|r"},
		{"x 123.45", "x| 123|.|45", "x| |1|2|3|.|4|5"},
		{"  7 8", " | 7| 8", "  |7| |8"},
		{"v2!", "v|2|!", "v|2|!"},
		{"\u00e9t\u00e9 \u4e2d\u6587\uff0c\u4e16", "\u00e9t\u00e9| \u4e2d\u6587|\uff0c|\u4e16",
		 "\u00e9t\u00e9| \u4e2d\u6587|\uff0c|\u4e16"},
		{"a\u00a0b\u2003\u2003c", "a|\u00a0|b|\u2003|\u2003|c", "a|\u00a0|b|\u2003|\u2003|c"},
		{"\u0661\u0662 \u00bd\u2167", "\u0661\u0662| \u00bd\u2167", "\u0661|\u0662| |\u00bd|\u2167"},
		{"e\u0301x \u0301", "e|\u0301|x| \u0301", "e|\u0301|x| \u0301"},
		{"\U0001f600\U0001f600 a", "\U0001f600\U0001f600| a", "\U0001f600\U0001f600| a"},
	};

	for (size_t i = 0; i < sizeof(cases) / sizeof(cases[0]); i++) {
		assert_words(OKV__SPLIT_GPT2, cases[i].text, cases[i].gpt2);
		assert_words(OKV__SPLIT_SMOLLM, cases[i].text, cases[i].smollm);
	}
}

/* Joins by reading the merge list from the top again and again, on texts in byte letters as the file has them. */
static size_t merge_naively(const struct okv_gguf_array *merges, struct okv_buf *parts, size_t count)
{
	for (uint64_t rank = 0; rank < merges->count;) {
		bool joined = false;

		for (size_t i = 0; i + 1 < count && !joined; i++) {
			struct okv_buf pair = {0};

			okv_buf_print(&pair, "%s %s", parts[i].data, parts[i + 1].data);
			joined = pair.size == merges->strings[rank].size &&
				 memcmp(pair.data, merges->strings[rank].data, pair.size) == 0;
			okv_buf_done(&pair);
			if (!joined)
				continue;
			okv_buf_text(&parts[i], parts[i + 1].data);
			okv_buf_done(&parts[i + 1]);
			memmove(&parts[i + 1], &parts[i + 2], (count - i - 2) * sizeof(*parts));
			count--;
		}
		rank = joined ? 0 : rank + 1;
	}
	return count;
}

static void assert_word_merges_as_the_oracle_says(const struct okv_tokenizer *tokenizer, const struct okv_gguf *gguf,
						  const char *word, size_t size)
{
	struct okv_gguf_array merges, texts;
	struct okv_buf parts[64];
	struct okv_tokens tokens = {0};

	assert_int_equal(okv_gguf_array(gguf, "tokenizer.ggml.merges", OKV_GGUF_STRING, &merges, NULL), OKV_OK);
	assert_int_equal(okv_gguf_array(gguf, "tokenizer.ggml.tokens", OKV_GGUF_STRING, &texts, NULL), OKV_OK);
	memset(parts, 0, sizeof(parts));
	for (size_t i = 0; i < size; i++) {
		const struct okv_bytes *letter = &texts.strings[SPECIALS + (uint8_t)word[i]];

		okv_buf_append(&parts[i], letter->data, letter->size);
	}
	size_t count = merge_naively(&merges, parts, size);

	assert_int_equal(okv_tokenizer_encode(tokenizer, word, size, &tokens, NULL), OKV_OK);
	assert_int_equal(tokens.count, count);
	for (size_t i = 0; i < count; i++) {
		const struct okv_bytes *text = &texts.strings[tokens.id[i]];

		assert_int_equal(text->size, parts[i].size);
		assert_memory_equal(text->data, parts[i].data, text->size);
		okv_buf_done(&parts[i]);
	}
	okv_tokens_done(&tokens);
}

static void words_merge_as_a_naive_oracle_does(void **state)
{
	(void)state;
	struct gguf_builder builder = {0};
	struct okv_tokenizer *tokenizer = tiny("gpt-2");
	struct okv_rng rng = okv_rng_seeded(SEED);
	static const char letters[] = "theandiorslwcg";

	printf("# seed %d\n", SEED);
	tiny_vocabulary_add(&builder, "gpt-2");
	struct okv_gguf *gguf = parsed(&builder);
	for (int i = 0; i < 3000; i++) {
		char word[64];
		size_t size = 1 + (size_t)okv_rng_below(&rng, i % 10 ? 12 : 63);

		for (size_t at = 0; at < size; at++)
			word[at] = letters[okv_rng_below(&rng, sizeof(letters) - 1)];
		if (i % 2)
			word[0] = ' ';
		assert_word_merges_as_the_oracle_says(tokenizer, gguf, word, size);
	}
	okv_gguf_close(gguf);
	okv_tokenizer_destroy(tokenizer);
}

static void equal_ranks_join_from_the_left(void **state)
{
	(void)state;
	struct okv_tokenizer *tokenizer = tiny("gpt-2");
	struct okv_tokens tokens = {0};
	struct okv_buf text = {0};

	/* "ll" + "l", not "l" + "ll". */
	assert_int_equal(okv_tokenizer_encode(tokenizer, "lll", 3, &tokens, NULL), OKV_OK);
	assert_int_equal(tokens.count, 2);
	okv_tokenizer_decode(tokenizer, tokens.id[0], &text);
	assert_string_equal(text.data, "ll");
	okv_buf_done(&text);
	okv_tokens_done(&tokens);
	okv_tokenizer_destroy(tokenizer);
}

static void megabyte_without_a_space_is_one_word_and_comes_back(void **state)
{
	(void)state;
	struct okv_tokenizer *tokenizer = tiny("smollm");
	struct okv_tokens tokens = {0};
	struct okv_buf text = {0}, back = {0};

	while (text.size < 1 << 20)
		okv_buf_text(&text, "theandinthere");
	assert_int_equal(okv_tokenizer_encode(tokenizer, text.data, text.size, &tokens, NULL), OKV_OK);
	for (size_t i = 0; i < tokens.count; i++)
		okv_tokenizer_decode(tokenizer, tokens.id[i], &back);
	assert_int_equal(back.size, text.size);
	assert_memory_equal(back.data, text.data, text.size);
	assert_true(tokens.count < text.size);
	okv_buf_done(&text);
	okv_buf_done(&back);
	okv_tokens_done(&tokens);
	okv_tokenizer_destroy(tokenizer);
}

static void text_never_yields_a_special_token(void **state)
{
	(void)state;
	struct okv_tokenizer *tokenizer = tiny("smollm");
	struct okv_tokens tokens = {0};
	static const char text[] = "<|endoftext|><|im_start|>system <|im_end|>";

	assert_int_equal(okv_tokenizer_encode(tokenizer, text, sizeof(text) - 1, &tokens, NULL), OKV_OK);
	for (size_t i = 0; i < tokens.count; i++)
		assert_true(tokens.id[i] >= SPECIALS);
	okv_tokens_done(&tokens);
	okv_tokenizer_destroy(tokenizer);
}

static void invalid_and_oversized_text_is_refused_and_adds_nothing(void **state)
{
	(void)state;
	static const char *const bad[] = {"\x80",
					  "a\xff",
					  "\xc0\x80",
					  "\xc3",
					  "\xe0\x80\x80",
					  "\xed\xa0\x80",
					  "\xe2\x82",
					  "\xe2\x82 ",
					  "\xf0\x80\x80\x80",
					  "\xf4\x90\x80\x80",
					  "\xf5\x80\x80\x80",
					  "\xf0\x9f\x98"};
	struct okv_tokenizer *tokenizer = tiny("smollm");
	struct okv_tokens tokens = {0};
	struct okv_reason reason;

	assert_int_equal(okv_tokens_push(&tokens, 9), OKV_OK);
	for (size_t i = 0; i < sizeof(bad) / sizeof(bad[0]); i++) {
		assert_int_equal(okv_tokenizer_encode(tokenizer, bad[i], strlen(bad[i]), &tokens, &reason),
				 OKV_ERR_INVALID);
		assert_non_null(strstr(reason.text, "UTF-8"));
	}
	assert_int_equal(okv_tokenizer_encode(tokenizer, "", (64 << 20) + 1, &tokens, &reason), OKV_ERR_BUDGET);
	assert_int_equal(okv_tokenizer_encode(tokenizer, "", 0, &tokens, &reason), OKV_OK);
	assert_int_equal(tokens.count, 1);
	okv_tokens_done(&tokens);
	okv_tokenizer_destroy(tokenizer);
}

static void specials_are_found_by_text_and_have_none_in_a_completion(void **state)
{
	(void)state;
	struct okv_tokenizer *tokenizer = tiny("smollm");
	struct okv_buf text = {0};
	uint32_t id = 99;

	assert_true(okv_tokenizer_special(tokenizer, "<|im_start|>", &id));
	assert_int_equal(id, 1);
	assert_false(okv_tokenizer_special(tokenizer, "the", &id));
	assert_true(okv_tokenizer_is_control(tokenizer, 2));
	assert_false(okv_tokenizer_is_control(tokenizer, 3));
	assert_true(okv_tokenizer_is_end(tokenizer, 2));
	assert_false(okv_tokenizer_is_end(tokenizer, 0));
	assert_false(okv_tokenizer_bos(tokenizer, &id));
	okv_tokenizer_decode(tokenizer, 1, &text);
	okv_tokenizer_decode(tokenizer, 1000000, &text);
	assert_int_equal(text.size, 0);
	okv_buf_done(&text);
	okv_tokenizer_destroy(tokenizer);
}

static void detokenizer_gives_the_same_text_for_any_cut(void **state)
{
	(void)state;
	/* Bytes and their text by Python's bytes.decode("utf-8", "replace"): a broken character's maximal subpart is
	 * one U+FFFD. The black-box test compares many more. */
	static const struct {
		const char *bytes, *text;
	} cases[] = {
		{"plain", "plain"},
		{"\xf0\x9f\x98\x80 \xe4\xb8\xad \xc3\xa9", "\U0001f600 \u4e2d \u00e9"},
		{"\xf0\x9f\x98", "\ufffd"},
		{"\xf0\x9f\x98x", "\ufffdx"},
		{"\x80\x80", "\ufffd\ufffd"},
		{"\xc0\xaf", "\ufffd\ufffd"},
		{"\xe0\x80\x80", "\ufffd\ufffd\ufffd"},
		{"\xed\xa0\x80", "\ufffd\ufffd\ufffd"},
		{"\xf4\x90\x80\x80", "\ufffd\ufffd\ufffd\ufffd"},
		{"\xf1\x80\x80\xc3\xa9", "\ufffd\u00e9"},
		{"\xe4\xb8\xe4\xb8\xad", "\ufffd\u4e2d"},
		{"\xff\xfe", "\ufffd\ufffd"},
	};
	struct okv_tokenizer *tokenizer = tiny("smollm");

	for (size_t i = 0; i < sizeof(cases) / sizeof(cases[0]); i++) {
		struct okv_detokenizer detokenizer = {0};
		struct okv_buf text = {0};

		for (const char *byte = cases[i].bytes; *byte; byte++) {
			okv_detokenizer_feed(&detokenizer, tokenizer, SPECIALS + (uint8_t)*byte, &text);
			assert_true(detokenizer.held_count <= 3);
			if (text.size)
				assert_true(okv_utf8_is_valid(text.data, text.size));
		}
		okv_detokenizer_finish(&detokenizer, &text);
		assert_string_equal(text.data, cases[i].text);
		okv_buf_done(&text);
	}
	okv_tokenizer_destroy(tokenizer);
}

/* Whatever tokens a text is made of: what comes out is the text, and each piece is valid UTF-8. */
static void detokenizer_streams_what_was_encoded(void **state)
{
	(void)state;
	static const char source[] = "the \U0001f600\U0001f4a9 world \u4e2d\u6587 \u00e9t\u00e9 in\u0301 there";
	struct okv_tokenizer *tokenizer = tiny("smollm");
	struct okv_rng rng = okv_rng_seeded(SEED);

	printf("# seed %d\n", SEED);
	for (int i = 0; i < 200; i++) {
		struct okv_detokenizer detokenizer = {0};
		struct okv_tokens tokens = {0};
		struct okv_buf text = {0};

		/* Encode up to a random cut at once, the rest byte by byte. */
		size_t cut = (size_t)okv_rng_below(&rng, sizeof(source));
		while (((uint8_t)source[cut] & 0xc0) == 0x80)
			cut--;
		assert_int_equal(okv_tokenizer_encode(tokenizer, source, cut, &tokens, NULL), OKV_OK);
		for (size_t at = cut; at < sizeof(source) - 1; at++)
			assert_int_equal(okv_tokens_push(&tokens, SPECIALS + (uint8_t)source[at]), OKV_OK);
		for (size_t at = 0; at < tokens.count; at++) {
			size_t before = text.size;

			okv_detokenizer_feed(&detokenizer, tokenizer, tokens.id[at], &text);
			if (text.size > before)
				assert_true(okv_utf8_is_valid(text.data + before, text.size - before));
		}
		okv_detokenizer_finish(&detokenizer, &text);
		assert_string_equal(text.data, source);
		okv_buf_done(&text);
		okv_tokens_done(&tokens);
	}
	okv_tokenizer_destroy(tokenizer);
}

/* A vocabulary of a few tokens of which a test changes one thing. NULL or -1 leaves a key out. */
struct sketch {
	const char *model, *splitter;
	const char *token[8];
	const char *merge[4];
	size_t types_less;
	int64_t bos, eos, eot, padding;
	int32_t type[8];
	int add_bos, add_eos, add_space;
	bool types_are_floats, no_merges;
};

static struct sketch sketch(void)
{
	return (struct sketch){.model = "gpt2",
			       .splitter = "gpt-2",
			       .token = {"<end>", "a", "b", "c", "ab", "abc"},
			       .type = {3, 1, 1, 1, 1, 1, 1, 1},
			       .merge = {"a b", "ab c"},
			       .bos = 0,
			       .eos = 0,
			       .eot = -1,
			       .padding = -1,
			       .add_bos = -1,
			       .add_eos = -1,
			       .add_space = -1};
}

static size_t count_texts(const char *const *texts, size_t most)
{
	size_t count = 0;

	while (count < most && texts[count])
		count++;
	return count;
}

static struct okv_gguf *drawn(const struct sketch *sketch)
{
	struct gguf_builder builder = {0};
	size_t tokens = count_texts(sketch->token, 8);
	const struct {
		const char *key;
		int64_t value;
	} ids[] = {{"tokenizer.ggml.bos_token_id", sketch->bos},
		   {"tokenizer.ggml.eos_token_id", sketch->eos},
		   {"tokenizer.ggml.eot_token_id", sketch->eot},
		   {"tokenizer.ggml.padding_token_id", sketch->padding}},
	  flags[] = {{"tokenizer.ggml.add_bos_token", sketch->add_bos},
		     {"tokenizer.ggml.add_eos_token", sketch->add_eos},
		     {"tokenizer.ggml.add_space_prefix", sketch->add_space}};

	if (sketch->model)
		gguf_add_string(&builder, "tokenizer.ggml.model", sketch->model);
	if (sketch->splitter)
		gguf_add_string(&builder, "tokenizer.ggml.pre", sketch->splitter);
	gguf_add_strings(&builder, "tokenizer.ggml.tokens", sketch->token, tokens);
	gguf_add_array(&builder, "tokenizer.ggml.token_type", sketch->types_are_floats ? OKV_GGUF_F32 : OKV_GGUF_I32,
		       sketch->type, tokens - sketch->types_less, 4);
	if (!sketch->no_merges)
		gguf_add_strings(&builder, "tokenizer.ggml.merges", sketch->merge, count_texts(sketch->merge, 4));
	for (size_t i = 0; i < 4; i++)
		if (ids[i].value >= 0)
			gguf_add_u32(&builder, ids[i].key, (uint32_t)ids[i].value);
	for (size_t i = 0; i < 3; i++)
		if (flags[i].value >= 0)
			gguf_add_bool(&builder, flags[i].key, flags[i].value == 1);
	return parsed(&builder);
}

static struct okv_tokenizer *accepted(const struct sketch *sketch)
{
	struct okv_gguf *gguf = drawn(sketch);
	struct okv_tokenizer *tokenizer = NULL;
	struct okv_reason reason;

	if (okv_tokenizer_create(gguf, &tokenizer, &reason))
		fail_msg("%s", reason.text);
	okv_gguf_close(gguf);
	return tokenizer;
}

static void assert_sketch_refused(const struct sketch *sketch, enum okv_status status, const char *words)
{
	struct okv_gguf *gguf = drawn(sketch);
	struct okv_tokenizer *tokenizer = NULL;
	struct okv_reason reason = {0};

	assert_int_equal(okv_tokenizer_create(gguf, &tokenizer, &reason), status);
	if (!strstr(reason.text, words))
		fail_msg("\"%s\" does not say \"%s\"", reason.text, words);
	okv_gguf_close(gguf);
}

#define REFUSED(status, words, ...)                                                                                    \
	do {                                                                                                           \
		struct sketch s = sketch();                                                                            \
		__VA_ARGS__;                                                                                           \
		assert_sketch_refused(&s, status, words);                                                              \
	} while (0)

static void kinds_of_tokenizer_we_do_not_have_are_refused_by_name(void **state)
{
	(void)state;
	REFUSED(OKV_ERR_UNSUPPORTED, "\"llama\"", s.model = "llama");
	REFUSED(OKV_ERR_UNSUPPORTED, "\"qwen2\"", s.splitter = "qwen2");
	REFUSED(OKV_ERR_ABSENT, "tokenizer.ggml.model", s.model = NULL);
	REFUSED(OKV_ERR_ABSENT, "tokenizer.ggml.pre", s.splitter = NULL);
	REFUSED(OKV_ERR_UNSUPPORTED, "add_eos_token", s.add_eos = 1);
	REFUSED(OKV_ERR_UNSUPPORTED, "add_space_prefix", s.add_space = 1);
}

static void lying_vocabularies_are_refused(void **state)
{
	(void)state;
	REFUSED(OKV_ERR_INVALID, "6 entries", s.types_less = 1);
	REFUSED(OKV_ERR_INVALID, "0 entries", s.token[0] = NULL);
	REFUSED(OKV_ERR_INVALID, "token_type", s.types_are_floats = true);
	REFUSED(OKV_ERR_UNSUPPORTED, "token 2 has type 6", s.type[2] = 6);
	REFUSED(OKV_ERR_UNSUPPORTED, "token 0 has type 0", s.type[0] = 0);
	REFUSED(OKV_ERR_UNSUPPORTED, "token 1 has type -1", s.type[1] = -1);
	REFUSED(OKV_ERR_INVALID, "token 3 of tokenizer.ggml.tokens is empty", s.token[3] = "");
	REFUSED(OKV_ERR_INVALID, "tokens 1 and 6", s.token[6] = "a");
}

static void lying_merges_are_refused(void **state)
{
	(void)state;
	REFUSED(OKV_ERR_ABSENT, "tokenizer.ggml.merges", s.no_merges = true);
	REFUSED(OKV_ERR_INVALID, "merge 0", s.merge[0] = "ab");
	REFUSED(OKV_ERR_INVALID, "merge 0", s.merge[0] = "");
	REFUSED(OKV_ERR_INVALID, "merge 0", s.merge[0] = " b");
	REFUSED(OKV_ERR_INVALID, "merge 0", s.merge[0] = "a ");
	REFUSED(OKV_ERR_INVALID, "merge 1", s.merge[1] = "a b c");
	REFUSED(OKV_ERR_INVALID, "merge 1", s.merge[1] = "a \xff");
	REFUSED(OKV_ERR_INVALID, "merge 1", s.merge[1] = "b c");
	REFUSED(OKV_ERR_INVALID, "merge 1", s.merge[1] = "a x");
	REFUSED(OKV_ERR_INVALID, "stands there twice", s.merge[1] = "a b");
	/* A merge must not make a control token out of ordinary text. */
	REFUSED(OKV_ERR_INVALID, "no ordinary token", s.type[5] = 3);
}

static void token_ids_outside_the_vocabulary_are_refused(void **state)
{
	(void)state;
	REFUSED(OKV_ERR_INVALID, "bos_token_id", s.bos = 6);
	REFUSED(OKV_ERR_INVALID, "eos_token_id", s.eos = 6);
	REFUSED(OKV_ERR_INVALID, "eot_token_id", s.eot = UINT32_MAX);
	REFUSED(OKV_ERR_INVALID, "padding_token_id", s.padding = 6);
	REFUSED(OKV_ERR_INVALID, "no tokenizer.ggml.bos_token_id", s.add_bos = 1; s.bos = -1);
}

static void kinds_of_token_keep_their_text(void **state)
{
	(void)state;
	struct sketch s = sketch();
	static const char *const expected[] = {"", "a", "b", "c", "ab", "abc", "\u0120 \u4e2d", "\xff?"};
	struct okv_tokens tokens = {0};
	uint32_t id = 0;
	size_t longest = 0;

	s.token[6] = expected[6]; /* user-defined: literal */
	s.type[6] = 4;
	s.token[7] = expected[7]; /* ordinary by type, but not in byte letters: literal, and never from text */
	s.eot = 6;
	s.add_bos = 1;
	struct okv_tokenizer *tokenizer = accepted(&s);
	for (uint32_t i = 0; i < 8; i++) {
		struct okv_buf text = {0};

		okv_buf_text(&text, "");
		okv_tokenizer_decode(tokenizer, i, &text);
		assert_string_equal(text.data, expected[i]);
		longest = text.size > longest ? text.size : longest;
		okv_buf_done(&text);
	}
	assert_int_equal(okv_tokenizer_vocabulary(tokenizer), 8);
	assert_int_equal(okv_tokenizer_token_bytes_max(tokenizer), longest);
	assert_true(okv_tokenizer_special(tokenizer, expected[6], &id));
	assert_int_equal(id, 6);
	assert_true(okv_tokenizer_bos(tokenizer, &id));
	assert_int_equal(id, 0);
	assert_true(okv_tokenizer_is_end(tokenizer, 0));
	assert_true(okv_tokenizer_is_end(tokenizer, 6));

	/* Bytes without a token are left out, and what they stood between may join. */
	assert_int_equal(okv_tokenizer_encode(tokenizer, "azbxc", 5, &tokens, NULL), OKV_OK);
	assert_int_equal(tokens.count, 1);
	assert_int_equal(tokens.id[0], 5);
	okv_tokens_done(&tokens);
	okv_tokenizer_destroy(tokenizer);
}

static struct okv_hash digest_of(const struct sketch *sketch)
{
	struct okv_tokenizer *tokenizer = accepted(sketch);
	struct okv_hash digest = *okv_tokenizer_digest(tokenizer);

	okv_tokenizer_destroy(tokenizer);
	return digest;
}

static void digest_changes_with_everything_that_changes_ids_or_text(void **state)
{
	(void)state;
	struct sketch changed[10];
	struct okv_hash digests[11];

	for (size_t i = 0; i < 10; i++)
		changed[i] = sketch();
	changed[0].splitter = "smollm";
	changed[1].token[0] = "<fin>";
	changed[2].type[0] = 2;
	changed[3].merge[1] = NULL;
	changed[4].token[6] = "d";
	changed[5].add_bos = 1;
	changed[6].bos = 1;
	changed[7].eos = 1;
	changed[8].eot = 1;
	changed[9].token[3] = "d", changed[9].token[5] = "abd", changed[9].merge[1] = "ab d";
	for (size_t i = 0; i < 10; i++)
		digests[i] = digest_of(&changed[i]);
	struct sketch plain = sketch();
	digests[10] = digest_of(&plain);
	for (size_t i = 0; i < 11; i++)
		for (size_t other = 0; other < i; other++)
			assert_false(okv_hash_equal(&digests[i], &digests[other]));

	/* Another name of the same splitter, and keys that change nothing. */
	plain.splitter = "starcoder";
	plain.padding = 1;
	plain.add_space = 0;
	struct okv_hash same = digest_of(&plain);
	assert_true(okv_hash_equal(&same, &digests[0]));
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(splitters_cut_where_their_pattern_does),
		cmocka_unit_test(words_merge_as_a_naive_oracle_does),
		cmocka_unit_test(equal_ranks_join_from_the_left),
		cmocka_unit_test(megabyte_without_a_space_is_one_word_and_comes_back),
		cmocka_unit_test(text_never_yields_a_special_token),
		cmocka_unit_test(invalid_and_oversized_text_is_refused_and_adds_nothing),
		cmocka_unit_test(specials_are_found_by_text_and_have_none_in_a_completion),
		cmocka_unit_test(detokenizer_gives_the_same_text_for_any_cut),
		cmocka_unit_test(detokenizer_streams_what_was_encoded),
		cmocka_unit_test(kinds_of_tokenizer_we_do_not_have_are_refused_by_name),
		cmocka_unit_test(lying_vocabularies_are_refused),
		cmocka_unit_test(lying_merges_are_refused),
		cmocka_unit_test(token_ids_outside_the_vocabulary_are_refused),
		cmocka_unit_test(kinds_of_token_keep_their_text),
		cmocka_unit_test(digest_changes_with_everything_that_changes_ids_or_text),
	};
	return cmocka_run_group_tests_name("model_tokenizer", tests, NULL, NULL);
}
