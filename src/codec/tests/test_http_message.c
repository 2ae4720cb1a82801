/* Request heads and chunked bodies: what is read, and one case for each refusal (RFC 9112). */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "okv/codec/http.h"

struct reading {
	char *bytes; /* owned */
	struct okv_http_head head;
	unsigned http_status;
	enum okv_status status;
	struct okv_reason reason;
};

static struct reading read_head(const char *text)
{
	struct reading reading = {.bytes = strdup(text)};

	assert_int_equal(okv_http_head_size(text, strlen(text), 0), strlen(text));
	reading.status =
		okv_http_read_head(reading.bytes, strlen(text), &reading.head, &reading.http_status, &reading.reason);
	return reading;
}

static void a_head_is_read_in_place(void **state)
{
	(void)state;
	struct reading reading = read_head("POST /v1/a%20b?x=%41&y HTTP/1.1\r\nHost: h\r\nContent-Length:  12 \r\n"
					   "X-Empty:\r\nExpect: 100-Continue\r\n\r\n");

	assert_int_equal(reading.status, OKV_OK);
	assert_string_equal(reading.head.method, "POST");
	assert_string_equal(reading.head.path, "/v1/a b");
	assert_string_equal(reading.head.query, "x=%41&y");
	assert_int_equal(reading.head.content_length, 12);
	assert_true(reading.head.keep_alive && reading.head.expects_continue && !reading.head.is_chunked);
	assert_string_equal(okv_http_find_header(&reading.head, "x-EMPTY"), "");
	assert_null(okv_http_find_header(&reading.head, "X"));
	free(reading.bytes);
}

static void connection_persistence_follows_version_and_header(void **state)
{
	(void)state;
	static const struct {
		const char *head;
		bool keep_alive;
	} cases[] = {
		{"GET / HTTP/1.1\r\nHost: h\r\n\r\n", true},
		{"GET / HTTP/1.1\r\nHost: h\r\nConnection: x, Close\r\n\r\n", false},
		{"GET / HTTP/1.0\r\n\r\n", false},
		{"GET / HTTP/1.0\r\nConnection: Keep-Alive\r\n\r\n", true},
	};

	for (size_t i = 0; i < sizeof(cases) / sizeof(cases[0]); i++) {
		struct reading reading = read_head(cases[i].head);

		assert_int_equal(reading.status, OKV_OK);
		assert_int_equal(reading.head.keep_alive, cases[i].keep_alive);
		free(reading.bytes);
	}
}

static void each_malformed_head_is_refused_with_its_status(void **state)
{
	(void)state;
	static const struct {
		const char *head;
		unsigned http_status;
	} cases[] = {
		{"\r\n\r\n", 400},
		{"GET /\r\n\r\n", 400},
		{"G(T / HTTP/1.1\r\nHost: h\r\n\r\n", 400},
		{" / HTTP/1.1\r\nHost: h\r\n\r\n", 400},
		{"GET * HTTP/1.1\r\nHost: h\r\n\r\n", 400},
		{"GET http://h/ HTTP/1.1\r\nHost: h\r\n\r\n", 400},
		{"GET /a\tb HTTP/1.1\r\nHost: h\r\n\r\n", 400},
		{"GET /#x HTTP/1.1\r\nHost: h\r\n\r\n", 400},
		{"GET /%4 HTTP/1.1\r\nHost: h\r\n\r\n", 400},
		{"GET /%00 HTTP/1.1\r\nHost: h\r\n\r\n", 400},
		{"GET / HTTP/2.0\r\nHost: h\r\n\r\n", 505},
		{"GET / HTTP/1.1 x\r\nHost: h\r\n\r\n", 505},
		{"GET / FTP\r\nHost: h\r\n\r\n", 400},
		{"GET / HTTP/1.1\r\n\r\n", 400},
		{"GET / HTTP/1.1\r\nHost: h\r\nHost: h\r\n\r\n", 400},
		{"GET / HTTP/1.1\nHost: h\r\n\r\n", 400},
		{"GET / HTTP/1.1\r\nHost: h\nX: y\r\n\r\n", 400},
		{"GET / HTTP/1.1\r\nHost: h\r\n folded\r\n\r\n", 400},
		{"GET / HTTP/1.1\r\nHost : h\r\n\r\n", 400},
		{"GET / HTTP/1.1\r\nHost: h\r\nX\r\n\r\n", 400},
		{"GET / HTTP/1.1\r\nHost: h\r\nX: \x01\r\n\r\n", 400},
		{"GET / HTTP/1.1\r\nHost: h\r\nContent-Length: 1\r\nContent-Length: 1\r\n\r\n", 400},
		{"GET / HTTP/1.1\r\nHost: h\r\nContent-Length: 1\r\nTransfer-Encoding: chunked\r\n\r\n", 400},
		{"GET / HTTP/1.1\r\nHost: h\r\nContent-Length: -1\r\n\r\n", 400},
		{"GET / HTTP/1.1\r\nHost: h\r\nContent-Length: 1,1\r\n\r\n", 400},
		{"GET / HTTP/1.1\r\nHost: h\r\nContent-Length:\r\n\r\n", 400},
		{"GET / HTTP/1.1\r\nHost: h\r\nContent-Length: 99999999999999999999\r\n\r\n", 400},
		{"GET / HTTP/1.1\r\nHost: h\r\nTransfer-Encoding: gzip, chunked\r\n\r\n", 501},
		{"GET / HTTP/1.0\r\nTransfer-Encoding: chunked\r\n\r\n", 400},
		{"GET / HTTP/1.1\r\nHost: h\r\nExpect: gold\r\n\r\n", 417},
	};

	for (size_t i = 0; i < sizeof(cases) / sizeof(cases[0]); i++) {
		struct reading reading = read_head(cases[i].head);

		if (reading.status != OKV_ERR_INVALID || reading.http_status != cases[i].http_status)
			fail_msg("%s: status %d, http %u", cases[i].head, reading.status, reading.http_status);
		free(reading.bytes);
	}
}

static void a_hundred_headers_are_the_limit(void **state)
{
	(void)state;
	struct okv_buf text = {0};

	okv_buf_text(&text, "GET / HTTP/1.1\r\nHost: h\r\n");
	for (int i = 1; i < OKV_HTTP_HEADERS_MAX; i++)
		okv_buf_print(&text, "X-%d: y\r\n", i);
	struct okv_buf more = {0};
	okv_buf_append(&more, text.data, text.size);
	okv_buf_text(&text, "\r\n");
	okv_buf_text(&more, "X: y\r\n\r\n");

	struct reading reading = read_head(text.data);
	assert_int_equal(reading.status, OKV_OK);
	free(reading.bytes);
	reading = read_head(more.data);
	assert_int_equal(reading.http_status, 431);
	free(reading.bytes);
	okv_buf_done(&text);
	okv_buf_done(&more);
}

static void the_end_of_a_head_is_found_wherever_the_search_resumes(void **state)
{
	(void)state;
	const char text[] = "GET / HTTP/1.1\r\nHost: h\r\n\r\nbody";

	for (size_t seen = 0; seen < sizeof(text) - 7; seen++)
		assert_int_equal(okv_http_head_size(text, sizeof(text) - 1, seen), sizeof(text) - 5);
	assert_int_equal(okv_http_head_size(text, sizeof(text) - 6, 0), 0);
	assert_int_equal(okv_http_head_size(text, 0, 0), 0);
}

static void a_chunked_body_is_decoded_at_any_split(void **state)
{
	(void)state;
	const char text[] = "4\r\nWiki\r\n5;ext=1\r\npedia\r\n0\r\nTrailer: x\r\n\r\nGET next";
	size_t whole = sizeof(text) - 1 - strlen("GET next");

	for (size_t cut = 0; cut <= whole; cut++) {
		struct okv_http_chunked chunked = {0};
		struct okv_buf body = {0};
		size_t first, second = 0;

		assert_int_equal(okv_http_chunked_feed(&chunked, text, cut, 100, &body, &first, NULL), OKV_OK);
		assert_int_equal(first, cut);
		assert_int_equal(
			okv_http_chunked_feed(&chunked, text + cut, sizeof(text) - 1 - cut, 100, &body, &second, NULL),
			OKV_OK);
		assert_true(chunked.is_done);
		assert_int_equal(first + second, whole);
		assert_string_equal(body.data, "Wikipedia");
		okv_buf_done(&body);
	}
}

static void each_malformed_chunk_is_refused(void **state)
{
	(void)state;
	static const struct {
		const char *text;
		enum okv_status status;
	} cases[] = {
		{"x\r\n", OKV_ERR_INVALID},
		{"\r\n", OKV_ERR_INVALID},
		{"-1\r\n", OKV_ERR_INVALID},
		{"4\n", OKV_ERR_INVALID},
		{"4\rW", OKV_ERR_INVALID},
		{"1\r\nab", OKV_ERR_INVALID},
		{"1\r\na\rb", OKV_ERR_INVALID},
		{"1;a\nb", OKV_ERR_INVALID},
		{"fffffffffffffffff\r\n", OKV_ERR_INVALID},
		{"0\r\nA\n", OKV_ERR_INVALID},
		{"0\r\nA\rB", OKV_ERR_INVALID},
		{"11\r\n", OKV_ERR_BUDGET},
		{"fffffffffffffff\r\n", OKV_ERR_BUDGET},
	};

	for (size_t i = 0; i < sizeof(cases) / sizeof(cases[0]); i++) {
		struct okv_http_chunked chunked = {0};
		struct okv_buf body = {0};
		struct okv_reason reason;
		size_t used;

		if (okv_http_chunked_feed(&chunked, cases[i].text, strlen(cases[i].text), 16, &body, &used, &reason) !=
		    cases[i].status)
			fail_msg("case %zu", i);
		okv_buf_done(&body);
	}
}

static void endless_extensions_and_trailers_are_refused(void **state)
{
	(void)state;
	static const char *const starts[] = {"1;", "0\r\nA: "};
	char filler[10000];

	memset(filler, 'a', sizeof(filler));
	for (size_t i = 0; i < 2; i++) {
		struct okv_http_chunked chunked = {0};
		struct okv_buf body = {0};
		size_t used;

		assert_int_equal(okv_http_chunked_feed(&chunked, starts[i], strlen(starts[i]), 16, &body, &used, NULL),
				 OKV_OK);
		assert_int_not_equal(okv_http_chunked_feed(&chunked, filler, sizeof(filler), 16, &body, &used, NULL),
				     OKV_OK);
		okv_buf_done(&body);
	}
}

static void error_bodies_have_the_shape_of_openai(void **state)
{
	(void)state;
	struct okv_buf body = {0};

	okv_http_error_body(&body, "no \"x\"", "invalid_request_error", "model", NULL);
	assert_string_equal(body.data, "{\"error\":{\"message\":\"no \\\"x\\\"\",\"type\":\"invalid_request_error\","
				       "\"param\":\"model\",\"code\":null}}");
	assert_string_equal(okv_http_status_text(429), "Too Many Requests");
	assert_string_equal(okv_http_status_text(299), "Status");
	okv_buf_done(&body);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(a_head_is_read_in_place),
		cmocka_unit_test(connection_persistence_follows_version_and_header),
		cmocka_unit_test(each_malformed_head_is_refused_with_its_status),
		cmocka_unit_test(a_hundred_headers_are_the_limit),
		cmocka_unit_test(the_end_of_a_head_is_found_wherever_the_search_resumes),
		cmocka_unit_test(a_chunked_body_is_decoded_at_any_split),
		cmocka_unit_test(each_malformed_chunk_is_refused),
		cmocka_unit_test(endless_extensions_and_trailers_are_refused),
		cmocka_unit_test(error_bodies_have_the_shape_of_openai),
	};
	return cmocka_run_group_tests_name("http_message", tests, NULL, NULL);
}
