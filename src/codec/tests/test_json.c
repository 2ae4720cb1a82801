/* JSON in and out, and SSE. The reader's oracle is RFC 8259; the writer's is the reader. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <string.h>

#include <cmocka.h>

#include <math.h>

#include "okv/base/rng.h"
#include "okv/codec/json.h"
#include "okv/codec/sse.h"

static struct okv_json *parsed(const char *text)
{
	struct okv_json *json = NULL;
	struct okv_reason reason;
	enum okv_status status = okv_json_parse(text, strlen(text), 1 << 20, &json, &reason);

	if (status != OKV_OK)
		fail_msg("%s: %s", text, reason.text);
	return json;
}

static void typed_reads_give_what_was_written(void **state)
{
	(void)state;
	struct okv_json *json = parsed("{\"a\":[1,-9223372036854775808,2.5,5.0],\"b\":{\"c\":\"x\\u0000\\u00e9\"},"
				       "\"yes\":true,\"none\":null}");
	struct okv_json_at root = okv_json_root(json), a, b, c, at;
	const char *text;
	size_t size;
	int64_t whole;
	double number;
	bool yes;

	assert_true(okv_json_find(&root, "a", &a));
	assert_int_equal(okv_json_size(&a), 4);
	at = okv_json_item(&a, 1);
	assert_int_equal(okv_json_i64(&at, INT64_MIN, INT64_MAX, &whole, NULL), OKV_OK);
	assert_true(whole == INT64_MIN);
	at = okv_json_item(&a, 2);
	assert_int_equal(okv_json_f64(&at, 0, 3, &number, NULL), OKV_OK);
	assert_true(number == 2.5);
	at = okv_json_item(&a, 3);
	assert_int_equal(okv_json_i64(&at, 0, 9, &whole, NULL), OKV_OK);
	assert_int_equal(whole, 5);
	assert_int_equal(okv_json_require(&root, "b", &b, NULL), OKV_OK);
	assert_int_equal(okv_json_require(&b, "c", &c, NULL), OKV_OK);
	assert_int_equal(okv_json_text(&c, &text, &size, NULL), OKV_OK);
	assert_int_equal(size, 4);
	assert_memory_equal(text, "x\0\xc3\xa9", 5);
	assert_true(okv_json_find(&root, "yes", &at));
	assert_int_equal(okv_json_bool(&at, &yes, NULL), OKV_OK);
	assert_true(yes);
	assert_false(okv_json_find(&root, "none", &at));
	assert_false(okv_json_find(&root, "absent", &at));
	assert_false(okv_json_find(&a, "not an object", &at));
	okv_json_destroy(json);
}

static void refusals_name_the_place(void **state)
{
	(void)state;
	struct okv_json *json = parsed("{\"messages\":[{\"role\":\"user\"},{\"role\":7}],\"n\":99}");
	struct okv_json_at root = okv_json_root(json), messages, second, role, at;
	struct okv_reason reason;
	struct okv_buf path = {0};
	const char *text;
	size_t size;
	int64_t whole;
	double number;
	bool yes;

	assert_true(okv_json_find(&root, "messages", &messages));
	second = okv_json_item(&messages, 1);
	assert_true(okv_json_find(&second, "role", &role));
	assert_int_equal(okv_json_text(&role, &text, &size, &reason), OKV_ERR_INVALID);
	assert_string_equal(reason.text, "messages[1].role must be text, but is a number");
	assert_string_equal(reason.field, "role");
	okv_json_path(&role, &path);
	assert_string_equal(path.data, "messages[1].role");
	okv_buf_done(&path);
	assert_int_equal(okv_json_require(&second, "content", &at, &reason), OKV_ERR_INVALID);
	assert_string_equal(reason.text, "messages[1].content is required");
	assert_int_equal(okv_json_require(&messages, "content", &at, &reason), OKV_ERR_INVALID);
	assert_string_equal(reason.text, "messages must be an object, but is a list");
	assert_true(okv_json_find(&root, "n", &at));
	assert_int_equal(okv_json_i64(&at, 1, 16, &whole, &reason), OKV_ERR_INVALID);
	assert_string_equal(reason.text, "n must be from 1 to 16");
	assert_int_equal(okv_json_f64(&at, 0, 2.5, &number, &reason), OKV_ERR_INVALID);
	assert_string_equal(reason.text, "n must be from 0 to 2.5");
	assert_int_equal(okv_json_bool(&at, &yes, &reason), OKV_ERR_INVALID);
	assert_int_equal(okv_json_i64(&messages, 0, 9, &whole, &reason), OKV_ERR_INVALID);
	assert_int_equal(okv_json_f64(&messages, 0, 9, &number, &reason), OKV_ERR_INVALID);
	assert_int_equal(okv_json_expect(&root, OKV_JSON_ARRAY, &reason), OKV_ERR_INVALID);
	assert_string_equal(reason.text, "the request must be a list, but is an object");
	okv_json_destroy(json);
	for (const char *const *bad = (const char *const[]){"2.5", "1e300", "true", "\"5\"", NULL}; *bad; bad++) {
		json = parsed(*bad);
		root = okv_json_root(json);
		assert_int_equal(okv_json_i64(&root, INT64_MIN, INT64_MAX, &whole, &reason), OKV_ERR_INVALID);
		okv_json_destroy(json);
	}
}

static void malformed_text_is_refused(void **state)
{
	(void)state;
	static const char *const bad[] = {
		"",
		"{",
		"{\"a\":1,}",
		"[1 2]",
		"{\"a\":1}x",
		"nul",
		"01",
		"\"\x80\"",
		"\"\xed\xa0\x80\"",
		"\"\\ud800\"",
		"\"\n\"",
		"1e999",
		"\"abc",
		"99999999999999999999",
		"'a'",
		"\xef\xbb\xbf{}",
		"{\"a\":1,\"a\":2}",
		"[NaN]",
		"{1:2}",
		"\"\xc0\x80\"",
	};
	struct okv_json *json;
	struct okv_reason reason;

	for (size_t i = 0; i < sizeof(bad) / sizeof(bad[0]); i++) {
		if (okv_json_parse(bad[i], strlen(bad[i]), 1000, &json, &reason) != OKV_ERR_INVALID)
			fail_msg("accepted: %s", bad[i]);
		assert_null(strchr(reason.text, '\n'));
		assert_null(strstr(reason.text, " near ")); /* what the parser quotes of the text */
	}
}

static void depth_and_size_are_limited(void **state)
{
	(void)state;
	struct okv_buf text = {0};
	struct okv_json *json;
	struct okv_reason reason;

	for (int depth = 0; depth < OKV_JSON_DEPTH_MAX; depth++)
		okv_buf_text(&text, "[");
	okv_buf_text(&text, "\"[[[[\\\"[[\""); /* brackets in text do not count */
	for (int depth = 0; depth < OKV_JSON_DEPTH_MAX; depth++)
		okv_buf_text(&text, "]");
	assert_int_equal(okv_json_parse(text.data, text.size, text.size, &json, &reason), OKV_OK);
	okv_json_destroy(json);
	assert_int_equal(okv_json_parse(text.data, text.size, text.size - 1, &json, &reason), OKV_ERR_BUDGET);
	okv_buf_text(&text, "]");
	struct okv_buf deeper = {0};
	okv_buf_text(&deeper, "[");
	okv_buf_append(&deeper, text.data, text.size);
	assert_int_equal(okv_json_parse(deeper.data, deeper.size, 1000, &json, &reason), OKV_ERR_INVALID);
	assert_string_equal(reason.text, "JSON is nested more than 64 levels deep");
	okv_buf_done(&deeper);
	okv_buf_done(&text);
}

static void writer_places_commas_and_escapes(void **state)
{
	(void)state;
	struct okv_buf buf = {0};
	struct okv_json_writer writer = {.buf = &buf};

	okv_json_begin_object(&writer);
	okv_json_key(&writer, "a");
	okv_json_begin_array(&writer);
	okv_json_write_u64(&writer, UINT64_MAX);
	okv_json_write_i64(&writer, -1);
	okv_json_begin_object(&writer);
	okv_json_end_object(&writer);
	okv_json_write_bool(&writer, true);
	okv_json_write_null(&writer);
	okv_json_end_array(&writer);
	okv_json_key(&writer, "b\"");
	okv_json_write_text(&writer, "\\ \n\x01\t\xc3\xa9\x80\xf0\x9f\x98\x80\xed\xa0\x80");
	okv_json_end_object(&writer);
	assert_string_equal(buf.data, "{\"a\":[18446744073709551615,-1,{},true,null],\"b\\\"\":"
				      "\"\\\\ \\n\\u0001\\t\xc3\xa9\xef\xbf\xbd\xf0\x9f\x98\x80"
				      "\xef\xbf\xbd\xef\xbf\xbd\xef\xbf\xbd\"}");
	okv_buf_done(&buf);
}

static void written_numbers_are_short_and_read_back_exactly(void **state)
{
	(void)state;
	static const struct {
		double value;
		const char *text;
	} cases[] = {{0.1, "0.1"}, {1, "1"}, {-2.5, "-2.5"}, {1e300, "1e+300"}, {NAN, "null"}, {INFINITY, "null"}};
	struct okv_rng rng = okv_rng_seeded(11);
	struct okv_buf buf = {0};

	for (size_t i = 0; i < sizeof(cases) / sizeof(cases[0]); i++) {
		okv_buf_clear(&buf);
		okv_json_write_f64(&(struct okv_json_writer){.buf = &buf}, cases[i].value);
		assert_string_equal(buf.data, cases[i].text);
	}
	for (int i = 0; i < 10000; i++) {
		uint64_t bits = okv_rng_next(&rng);
		double value, back;

		memcpy(&value, &bits, sizeof(value));
		if (!isfinite(value))
			continue;
		okv_buf_clear(&buf);
		okv_json_write_f64(&(struct okv_json_writer){.buf = &buf}, value);
		struct okv_json *json = parsed(buf.data);
		struct okv_json_at root = okv_json_root(json);
		assert_int_equal(okv_json_f64(&root, -INFINITY, INFINITY, &back, NULL), OKV_OK);
		assert_true(back == value);
		okv_json_destroy(json);
	}
	okv_buf_done(&buf);
}

static void any_bytes_become_text_that_parses(void **state)
{
	(void)state;
	struct okv_rng rng = okv_rng_seeded(12);
	struct okv_buf buf = {0};

	for (int round = 0; round < 2000; round++) {
		char bytes[24];
		size_t size = okv_rng_below(&rng, sizeof(bytes));

		for (size_t i = 0; i < size; i++) /* half of them lead or continue a character */
			bytes[i] = (char)(okv_rng_next(&rng) | (okv_rng_next(&rng) & 0x80));
		okv_buf_clear(&buf);
		okv_json_write_bytes(&(struct okv_json_writer){.buf = &buf}, bytes, size);
		okv_json_destroy(parsed(buf.data));
	}
	okv_buf_done(&buf);
}

static void sse_splits_data_at_line_breaks(void **state)
{
	(void)state;
	struct okv_buf buf = {0};

	okv_sse_event(&buf, "{}", 2);
	okv_sse_event(&buf, "a\nb\r\nc\rd", 8);
	okv_sse_event(&buf, "", 0);
	assert_string_equal(buf.data, "data: {}\n\ndata: a\ndata: b\ndata: c\ndata: d\n\ndata: \n\n");
	okv_buf_done(&buf);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(typed_reads_give_what_was_written),
		cmocka_unit_test(refusals_name_the_place),
		cmocka_unit_test(malformed_text_is_refused),
		cmocka_unit_test(depth_and_size_are_limited),
		cmocka_unit_test(writer_places_commas_and_escapes),
		cmocka_unit_test(written_numbers_are_short_and_read_back_exactly),
		cmocka_unit_test(any_bytes_become_text_that_parses),
		cmocka_unit_test(sse_splits_data_at_line_breaks),
	};
	return cmocka_run_group_tests_name("json", tests, NULL, NULL);
}
