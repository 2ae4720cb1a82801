/* Status, clock, rng, digests, cursors and buffers. Digest oracles: FIPS 180-4 example "abc", and xxhsum for XXH3-128.
 */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <string.h>

#include <cmocka.h>

#include "okv/base/buf.h"
#include "okv/base/clock.h"
#include "okv/base/cursor.h"
#include "okv/base/digest.h"
#include "okv/base/fault.h"
#include "okv/base/rng.h"
#include "okv/base/status.h"

static void refusal_carries_field_and_text(void **state)
{
	(void)state;
	struct okv_reason reason;

	assert_int_equal(okv_refuse(&reason, OKV_ERR_MISMATCH, "page_tokens", "%d is not %d", 8, 16), OKV_ERR_MISMATCH);
	assert_string_equal(reason.field, "page_tokens");
	assert_string_equal(reason.text, "8 is not 16");
	assert_int_equal(okv_refuse(NULL, OKV_ERR_BUSY, "", "unused"), OKV_ERR_BUSY);
	assert_string_equal(okv_status_name(OKV_ERR_PEER_GONE), "peer_gone");
}

static void virtual_clock_moves_only_by_its_owner(void **state)
{
	(void)state;
	uint64_t now = 5;
	struct okv_clock clock = okv_clock_virtual(&now);

	assert_int_equal(okv_clock_now(clock), 5);
	now += OKV_NS_PER_S;
	assert_int_equal(okv_clock_now(clock), 5 + OKV_NS_PER_S);
	assert_true(okv_clock_now(okv_clock_boottime()) > 0);
}

static void rng_repeats_with_its_seed_and_stays_below_its_bound(void **state)
{
	(void)state;
	struct okv_rng a = okv_rng_seeded(7), b = okv_rng_seeded(7), c = okv_rng_seeded(8);
	int differ = 0;

	for (int i = 0; i < 1000; i++) {
		uint64_t value = okv_rng_next(&a);

		assert_int_equal(value, okv_rng_next(&b));
		differ += value != okv_rng_next(&c);
		assert_true(okv_rng_below(&a, 3) < 3);
		okv_rng_below(&b, 3);
	}
	assert_true(differ > 990);
}

static void digests_match_published_values(void **state)
{
	(void)state;
	char text[65];
	struct okv_hash hash = okv_sha256_of("abc", 3);

	okv_hex(hash.bytes, 32, text);
	assert_string_equal(text, "ba7816bf8f01cfea414140de5dae2223b00361a396177a9cb410ff61f20015ad");

	struct okv_crc crc = okv_crc_of("", 0);
	okv_hex(crc.bytes, 16, text);
	assert_string_equal(text, "99aa06d3014798d86001c324468d497f");
}

static void incremental_digests_equal_whole_ones(void **state)
{
	(void)state;
	uint8_t bytes[10007];
	struct okv_crc_stream stream;
	struct okv_sha256 *sha = okv_sha256_create();

	for (size_t i = 0; i < sizeof(bytes); i++)
		bytes[i] = (uint8_t)okv_mix64(i);
	okv_crc_stream_init(&stream);
	for (size_t at = 0, step = 1; at < sizeof(bytes); at += step, step = step * 3 % 1001 + 1) {
		size_t size = step < sizeof(bytes) - at ? step : sizeof(bytes) - at;

		okv_crc_stream_update(&stream, bytes + at, size);
		okv_sha256_update(sha, bytes + at, size);
	}
	struct okv_crc crc = okv_crc_of(bytes, sizeof(bytes)), streamed = okv_crc_stream_value(&stream);
	struct okv_hash hash = okv_sha256_of(bytes, sizeof(bytes)), fed = okv_sha256_finish(sha);

	assert_true(okv_crc_equal(&crc, &streamed));
	assert_true(okv_hash_equal(&hash, &fed));
	bytes[5000] ^= 1;
	crc = okv_crc_of(bytes, sizeof(bytes));
	assert_false(okv_crc_equal(&crc, &streamed));
}

static void reader_past_the_end_turns_bad_and_reads_zero(void **state)
{
	(void)state;
	uint8_t bytes[] = {1, 2, 3, 4, 5};
	struct okv_reader reader = okv_reader_of(bytes, sizeof(bytes));

	assert_int_equal(okv_read_u32(&reader), 0x04030201);
	assert_true(reader.ok);
	assert_int_equal(okv_read_u16(&reader), 0);
	assert_false(reader.ok);
	assert_int_equal(okv_read_u8(&reader), 0);
	assert_null(okv_read_view(&reader, 0));
}

static void writer_past_the_end_writes_nothing(void **state)
{
	(void)state;
	uint8_t bytes[6] = {9, 9, 9, 9, 9, 9};
	struct okv_writer writer = okv_writer_of(bytes, 5);

	okv_write_u32(&writer, 0x04030201);
	okv_write_u16(&writer, 7);
	okv_write_u8(&writer, 7);
	assert_false(writer.ok);
	assert_memory_equal(bytes, ((uint8_t[]){1, 2, 3, 4, 9, 9}), 6);
}

static void buf_is_always_a_c_string(void **state)
{
	(void)state;
	struct okv_buf buf = {0};

	for (int i = 0; i < 200; i++)
		okv_buf_print(&buf, "%d,", i);
	assert_int_equal(strlen(buf.data), buf.size);
	okv_buf_consume(&buf, 2);
	assert_memory_equal(buf.data, "1,2,", 4);
	okv_buf_clear(&buf);
	assert_string_equal(buf.data, "");
	okv_buf_append(&buf, "a\0b", 3);
	assert_int_equal(buf.size, 3);
	assert_false(buf.failed);
	okv_buf_done(&buf);
}

static void faults_are_read_counted_and_refused_when_malformed(void **state)
{
	(void)state;
	struct okv_faults faults;
	struct okv_reason reason;

	assert_int_equal(okv_faults_parse("pool_flip_bit=2,mover_stall_ms=500", &faults, &reason), OKV_OK);
	assert_true(okv_fault_take(&faults, "pool_flip_bit"));
	assert_true(okv_fault_take(&faults, "pool_flip_bit"));
	assert_false(okv_fault_take(&faults, "pool_flip_bit"));
	assert_int_equal(okv_fault_value(&faults, "mover_stall_ms"), 500);
	assert_int_equal(okv_fault_value(&faults, "mover_short"), 0);
	assert_false(okv_fault_take(&faults, "mover_short"));
	assert_false(okv_fault_take(NULL, "pool_flip_bit"));
	for (const char *const *bad =
		     (const char *const[]){"mover_short", "=1", "mover_short=1,mover_short=2", "mover_short=x",
					   "mover_short=", "mover_short=0", "mover_short=-1", "mover_short=1x", NULL};
	     *bad; bad++)
		assert_int_equal(okv_faults_parse(*bad, &faults, &reason), OKV_ERR_INVALID);
	assert_int_equal(okv_faults_parse(NULL, &faults, NULL), OKV_OK);
	assert_int_equal(faults.count, 0);
}

static void a_misspelt_fault_point_is_refused_with_those_that_there_are(void **state)
{
	(void)state;
	static const char *const points[] = {"pool_flip_bit,",	"pool_flip_bit_on_authorise,",
					     "mover_stall_ms,", "mover_cut_after_bytes,",
					     "mover_short,",	"mover_fault_from"};
	struct okv_faults faults;
	struct okv_reason reason;

	assert_int_equal(okv_faults_parse("mover_short=1,pool_flip_bits_on_authorise=1", &faults, &reason),
			 OKV_ERR_INVALID);
	assert_string_equal(reason.field, "faults");
	assert_non_null(strstr(reason.text, "no fault point pool_flip_bits_on_authorise,"));
	for (size_t i = 0; i < sizeof(points) / sizeof(*points); i++)
		assert_non_null(strstr(reason.text, points[i]));
	assert_int_equal(okv_faults_parse("mover_shor=1", &faults, &reason), OKV_ERR_INVALID);
	assert_int_equal(okv_faults_parse("mover_shortt=1", &faults, &reason), OKV_ERR_INVALID);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(refusal_carries_field_and_text),
		cmocka_unit_test(virtual_clock_moves_only_by_its_owner),
		cmocka_unit_test(rng_repeats_with_its_seed_and_stays_below_its_bound),
		cmocka_unit_test(digests_match_published_values),
		cmocka_unit_test(incremental_digests_equal_whole_ones),
		cmocka_unit_test(reader_past_the_end_turns_bad_and_reads_zero),
		cmocka_unit_test(writer_past_the_end_writes_nothing),
		cmocka_unit_test(buf_is_always_a_c_string),
		cmocka_unit_test(faults_are_read_counted_and_refused_when_malformed),
		cmocka_unit_test(a_misspelt_fault_point_is_refused_with_those_that_there_are),
	};
	return cmocka_run_group_tests_name("base_values", tests, NULL, NULL);
}
