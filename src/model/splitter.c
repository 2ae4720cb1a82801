#include "splitter.h"

#include <utf8proc.h>

#include "utf8.h"

enum char_class { OTHER, LETTER, NUMBER, SPACE };

static enum char_class class_of(int32_t code_point)
{
	if ((code_point >= 9 && code_point <= 13) || code_point == 0x85)
		return SPACE;
	switch (utf8proc_category(code_point)) {
	case UTF8PROC_CATEGORY_LU:
	case UTF8PROC_CATEGORY_LL:
	case UTF8PROC_CATEGORY_LT:
	case UTF8PROC_CATEGORY_LM:
	case UTF8PROC_CATEGORY_LO:
		return LETTER;
	case UTF8PROC_CATEGORY_ND:
	case UTF8PROC_CATEGORY_NL:
	case UTF8PROC_CATEGORY_NO:
		return NUMBER;
	case UTF8PROC_CATEGORY_ZS:
	case UTF8PROC_CATEGORY_ZL:
	case UTF8PROC_CATEGORY_ZP:
		return SPACE;
	default:
		return OTHER;
	}
}

/* The class of the character at `at`, whose length goes to *ret_length. */
static enum char_class class_at(const uint8_t *at, unsigned *ret_length)
{
	int32_t code_point;

	*ret_length = okv__utf8_decode(at, &code_point);
	return class_of(code_point);
}

/* The end of the run of characters of class `wanted` that begins at `at`. */
static const uint8_t *run_end(const uint8_t *at, const uint8_t *end, enum char_class wanted)
{
	unsigned length;

	while (at < end && class_at(at, &length) == wanted)
		at += length;
	return at;
}

/* The length of 's 't 're 've 'm 'll 'd at `at`, 0 if there is none. */
static size_t contraction(const uint8_t *at, const uint8_t *end)
{
	static const uint8_t two[] = {'s', 't', 'm', 'd'}, three[][2] = {{'r', 'e'}, {'v', 'e'}, {'l', 'l'}};

	if (*at != '\'' || end - at < 2)
		return 0;
	for (size_t i = 0; i < sizeof(two); i++)
		if (at[1] == two[i])
			return 2;
	for (size_t i = 0; end - at > 2 && i < 3; i++)
		if (at[1] == three[i][0] && at[2] == three[i][1])
			return 3;
	return 0;
}

/* White space at `at`: all of it at the end of the piece, else all but the last character, which may lead a word. */
static const uint8_t *space_end(const uint8_t *at, const uint8_t *end)
{
	const uint8_t *last = at, *next = at;
	unsigned length;

	while (next < end && class_at(next, &length) == SPACE) {
		last = next;
		next += length;
	}
	return next == end || last == at ? next : last;
}

static const uint8_t *word_end(const uint8_t *at, const uint8_t *end)
{
	size_t size = contraction(at, end);
	unsigned length;

	if (size > 0)
		return at + size;

	const uint8_t *body = *at == ' ' && end - at > 1 ? at + 1 : at;
	enum char_class class = class_at(body, &length);

	return class == SPACE ? space_end(at, end) : run_end(body, end, class);
}

/* A piece is one number, or everything up to the next one. */
static const uint8_t *piece_end(const struct okv__split *split)
{
	const uint8_t *at = split->at;
	unsigned length;

	if (split->splitter == OKV__SPLIT_GPT2)
		return split->end;
	if (class_at(at, &length) == NUMBER)
		return at + length;
	while (at < split->end && class_at(at, &length) != NUMBER)
		at += length;
	return at;
}

struct okv__split okv__split_start(enum okv__splitter splitter, const uint8_t *text, size_t size)
{
	const uint8_t *end = size ? text + size : text;

	return (struct okv__split){.splitter = splitter, .at = text, .piece_end = text, .end = end};
}

bool okv__split_next(struct okv__split *split, const uint8_t **ret_word, size_t *ret_size)
{
	if (split->at == split->end)
		return false;
	if (split->at == split->piece_end)
		split->piece_end = piece_end(split);

	const uint8_t *end = word_end(split->at, split->piece_end);
	*ret_word = split->at;
	*ret_size = (size_t)(end - split->at);
	split->at = end;
	return true;
}
