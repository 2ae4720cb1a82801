/*
 * Splitter: cuts text into the words that byte-level BPE merges within. Both splitters use the pattern of GPT-2
 * (Radford and others 2019, encoder.py):
 *
 *     's|'t|'re|'ve|'m|'ll|'d| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)|\s+
 *
 * "smollm" first cuts every \p{N} off as a piece of its own and applies the pattern to the pieces. The scanner is
 * written by hand: one pass, linear whatever the text is. Character classes are those of utf8proc's Unicode version.
 */
#ifndef OKV_MODEL_SPLITTER_H
#define OKV_MODEL_SPLITTER_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

enum okv__splitter { OKV__SPLIT_GPT2, OKV__SPLIT_SMOLLM };

struct okv__split {
	enum okv__splitter splitter;
	const uint8_t *at, *piece_end, *end; /* borrowed */
};

/* `text` must be valid UTF-8 and outlive the walk. */
struct okv__split okv__split_start(enum okv__splitter splitter, const uint8_t *text, size_t size);

/* The next word, never empty; the words together are the text. False at the end. */
bool okv__split_next(struct okv__split *split, const uint8_t **ret_word, size_t *ret_size);

#endif
