/* UTF-8 as RFC 3629 has it: no overlong forms, no surrogates, nothing above U+10FFFF. */
#ifndef OKV_MODEL_UTF8_H
#define OKV_MODEL_UTF8_H

#include <stddef.h>
#include <stdint.h>

/*
 * The length of the character that begins with these `count` bytes (1..4), which may be fewer than it has. 0 if no
 * character begins like that, or if `count` is more than it has.
 */
unsigned okv__utf8_length(const uint8_t *bytes, size_t count);

/* Decodes one character of text that is known to be valid; gives its length. */
unsigned okv__utf8_decode(const uint8_t *bytes, int32_t *ret_code_point);

#endif
