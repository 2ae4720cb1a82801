/* HOST:PORT of the command line: what is taken, and what is refused with the option's name. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <string.h>

#include <cmocka.h>

#include "okv/base/address.h"

static void hosts_with_ports_are_taken_apart(void **state)
{
	(void)state;
	struct okv_address address;

	assert_int_equal(okv_address_read("http", "127.0.0.1:9091", &address, NULL), OKV_OK);
	assert_string_equal(address.host, "127.0.0.1");
	assert_int_equal(address.port, 9091);
	assert_int_equal(okv_address_read("http", "[::1]:0", &address, NULL), OKV_OK);
	assert_string_equal(address.host, "::1");
	assert_int_equal(address.port, 0);
	assert_int_equal(okv_address_read("peer", "a.example:65535", &address, NULL), OKV_OK);
	assert_string_equal(address.host, "a.example");
}

static void anything_else_is_refused_under_the_options_name(void **state)
{
	(void)state;
	static const char *const wrong[] = {
		"",
		"nowhere",
		":1",
		"::1:9091",
		"[]:1",
		"h:",
		"h:65536",
		"h:-1",
		"h: 1",
		"h:1x",
		"127.0.0.1",
		"[::1]",
		"hosts-of-more-than-sixty-three-bytes-are-not-what-anybody-types-here-at-all:1"};
	struct okv_address address;
	struct okv_reason reason;

	for (size_t i = 0; i < sizeof(wrong) / sizeof(wrong[0]); i++) {
		assert_int_equal(okv_address_read("peer", wrong[i], &address, &reason), OKV_ERR_INVALID);
		assert_string_equal(reason.field, "peer");
		assert_non_null(strstr(reason.text, "--peer"));
	}
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(hosts_with_ports_are_taken_apart),
		cmocka_unit_test(anything_else_is_refused_under_the_options_name),
	};
	return cmocka_run_group_tests_name("base_address", tests, NULL, NULL);
}
