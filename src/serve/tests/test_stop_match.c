/* Stop strings. The oracle knows the whole text: it ends where the stop string that is complete first begins. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <string.h>

#include <cmocka.h>

#include "okv/base/rng.h"

#include "stop_match.h"

static struct okv__stops stops_of(const char *const *strings)
{
	struct okv__stops stops = {0};

	for (; *strings; strings++)
		okv_buf_text(&stops.stop[stops.count++], *strings);
	return stops;
}

static size_t end_by_oracle(const char *text, const char *const *strings)
{
	size_t size = strlen(text), begin = size;

	for (size_t end = 1; end <= size; end++) {
		for (const char *const *stop = strings; *stop; stop++) {
			size_t length = strlen(*stop);

			if (length <= end && memcmp(text + end - length, *stop, length) == 0 && end - length < begin)
				begin = end - length;
		}
		if (begin < size)
			break;
	}
	return begin;
}

static void what_comes_out_ends_where_the_first_stop_string_begins(void **state)
{
	(void)state;
	static const char *const sets[][4] = {{"ab", NULL},	{"aab", "ba", NULL},  {"a", NULL},
					      {"abcabd", NULL}, {"abcd", "bc", NULL}, {"bbbb", "cb", "ac", NULL}};
	struct okv_rng rng = okv_rng_seeded(5);

	for (int round = 0; round < 20000; round++) {
		const char *const *strings = sets[okv_rng_below(&rng, sizeof(sets) / sizeof(sets[0]))];
		struct okv__stops stops = stops_of(strings);
		struct okv_buf out = {0};
		char text[20] = {0};
		size_t size = okv_rng_below(&rng, sizeof(text)), at = 0;

		for (size_t i = 0; i < size; i++)
			text[i] = (char)('a' + okv_rng_below(&rng, 4));
		size_t expected = end_by_oracle(text, strings);
		while (at < size) { /* in pieces of any size */
			size_t piece = 1 + okv_rng_below(&rng, size - at);
			size_t size_before = out.size;

			okv__stops_feed(&stops, text + at, piece, &out);
			at += piece;
			assert_true(out.size >= size_before && out.size <= expected); /* nothing leaks early */
		}
		assert_int_equal(stops.is_stopped, expected < size);
		okv__stops_finish(&stops, &out);
		if (out.size != expected || (expected && memcmp(out.data, text, expected) != 0))
			fail_msg("%s: got %zu bytes, not %zu", text, out.size, expected);
		okv_buf_done(&out);
		okv__stops_done(&stops);
	}
}

static void only_what_could_become_a_stop_string_is_held_back(void **state)
{
	(void)state;
	struct okv__stops stops = stops_of((const char *const[]){"</end>", NULL});
	struct okv_buf out = {0};

	okv__stops_feed(&stops, "one <", 5, &out);
	assert_string_equal(out.data, "one ");
	okv__stops_feed(&stops, "/enough", 7, &out);
	assert_string_equal(out.data, "one </enough");
	okv__stops_feed(&stops, "</end", 5, &out);
	assert_string_equal(out.data, "one </enough");
	okv__stops_finish(&stops, &out);
	assert_string_equal(out.data, "one </enough</end");
	okv_buf_done(&out);
	okv__stops_done(&stops);
}

static void without_stop_strings_everything_passes(void **state)
{
	(void)state;
	struct okv__stops stops = {0};
	struct okv_buf out = {0};

	okv__stops_feed(&stops, "abc", 3, &out);
	assert_string_equal(out.data, "abc");
	okv__stops_finish(&stops, &out);
	assert_int_equal(out.size, 3);
	okv_buf_done(&out);
	okv__stops_done(&stops);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(what_comes_out_ends_where_the_first_stop_string_begins),
		cmocka_unit_test(only_what_could_become_a_stop_string_is_held_back),
		cmocka_unit_test(without_stop_strings_everything_passes),
	};
	return cmocka_run_group_tests_name("stop_match", tests, NULL, NULL);
}
