#include "utf8.h"

#include "okv/model/tokenizer.h"

/* The narrower range that the second byte has after some first bytes (Unicode 15.0, table 3-7). */
static int second_byte_fits(uint8_t first, uint8_t second)
{
	uint8_t least = 0x80, most = 0xbf;

	if (first == 0xe0)
		least = 0xa0;
	else if (first == 0xed)
		most = 0x9f;
	else if (first == 0xf0)
		least = 0x90;
	else if (first == 0xf4)
		most = 0x8f;
	return second >= least && second <= most;
}

unsigned okv__utf8_length(const uint8_t *bytes, size_t count)
{
	uint8_t first = bytes[0];
	unsigned length = first < 0x80 ? 1 : first < 0xc2 || first > 0xf4 ? 0 : first < 0xe0 ? 2 : first < 0xf0 ? 3 : 4;

	if (count > length || (count > 1 && !second_byte_fits(first, bytes[1])))
		return 0;
	for (size_t i = 2; i < count; i++)
		if ((bytes[i] & 0xc0) != 0x80)
			return 0;
	return length;
}

unsigned okv__utf8_decode(const uint8_t *bytes, int32_t *ret_code_point)
{
	if (bytes[0] < 0x80) {
		*ret_code_point = bytes[0];
		return 1;
	}
	if (bytes[0] < 0xe0) {
		*ret_code_point = (bytes[0] & 0x1f) << 6 | (bytes[1] & 0x3f);
		return 2;
	}
	if (bytes[0] < 0xf0) {
		*ret_code_point = (bytes[0] & 0x0f) << 12 | (bytes[1] & 0x3f) << 6 | (bytes[2] & 0x3f);
		return 3;
	}
	*ret_code_point =
		(bytes[0] & 0x07) << 18 | (bytes[1] & 0x3f) << 12 | (bytes[2] & 0x3f) << 6 | (bytes[3] & 0x3f);
	return 4;
}

bool okv_utf8_is_valid(const char *text, size_t size)
{
	const uint8_t *bytes = (const uint8_t *)text;

	for (size_t at = 0; at < size;) {
		if (bytes[at] < 0x80) {
			at++;
			continue;
		}
		unsigned length = okv__utf8_length(bytes + at, 1);

		if (length == 0 || length > size - at || okv__utf8_length(bytes + at, length) != length)
			return false;
		at += length;
	}
	return true;
}
