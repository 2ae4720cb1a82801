/* Bootstrap messages: each survives the way there and back, their bytes are fixed, and every bad one is refused by
 * name. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <string.h>

#include <cmocka.h>

#include "okv/session/message.h"

static struct okv_session_message hello(void)
{
	struct okv_session_message message = {.type = OKV_SESSION_HELLO};
	struct okv_materialisation_key *key = &message.hello.key;

	*key = (struct okv_materialisation_key){
		.weights = {{1, 2, 3}},
		.tokenizer = {{4, 5, 6}},
		.serializer = "page-lkvt-1",
		.rope_type = "adjacent",
		.rope_scaling = "none",
		.rope_theta = 100000.0,
		.rope_dims = 64,
		.layers = 30,
		.kv_heads = 3,
		.head_dim = 64,
		.page_tokens = 16,
		.kv_dtype = "f16",
		.tp_size = 1,
		.numerics = "okv-1",
		.isolation_domain = "default",
	};
	message.hello.page_bytes = 368640;
	message.hello.arena_bytes = 10 * 368640;
	message.hello.previous_session = 77;
	strcpy(message.hello.name, "orbitkv serve 4711");
	return message;
}

static void each_message_survives_the_way_there_and_back(void **state)
{
	(void)state;
	struct okv_session_message sent[] = {
		hello(),
		{.type = OKV_SESSION_ACCEPT,
		 .accept = {.session = 5,
			    .pool_bytes = 1 << 30,
			    .incarnation = {{9}},
			    .verification = OKV_SESSION_VERIFY_CRC}},
		{.type = OKV_SESSION_REFUSE,
		 .refuse = {.status = OKV_ERR_MISMATCH, .text = "the keys differ in weights"}},
		{.type = OKV_SESSION_DOORBELL},
		{.type = OKV_SESSION_BYE},
	};

	for (size_t i = 0; i < sizeof(sent) / sizeof(sent[0]); i++) {
		uint8_t bytes[OKV_SESSION_MESSAGE_MAX], again[OKV_SESSION_MESSAGE_MAX];
		struct okv_session_message got;
		struct okv_reason reason;
		size_t size = okv_session_encode(&sent[i], bytes);

		assert_int_equal(okv_session_decode(bytes, size, &got, &reason), OKV_OK);
		assert_int_equal(got.type, sent[i].type);
		assert_int_equal(okv_session_encode(&got, again), size);
		assert_memory_equal(bytes, again, size);

		for (size_t cut = 0; cut < size; cut++)
			assert_int_not_equal(okv_session_decode(bytes, cut, &got, &reason), OKV_OK);
		bytes[size] = 0;
		assert_int_equal(okv_session_decode(bytes, size + 1, &got, &reason), OKV_ERR_PROTOCOL);
	}
}

static void the_bytes_of_the_format_page_do_not_change(void **state)
{
	(void)state;
	struct okv_session_message accept = {
		.type = OKV_SESSION_ACCEPT,
		.accept = {.session = 0x0102,
			   .pool_bytes = 0x40000000,
			   .incarnation = {{0xaa, 0xbb}},
			   .verification = 1},
	};
	static const uint8_t golden[] = {
		'O',  'K',  'V', 'S',  1, 0, 2, 0, 0, 0, 0, 0,			 /* magic, version, type, reserved */
		0x02, 0x01, 0,	 0,    0, 0, 0, 0,				 /* session */
		0,    0,    0,	 0x40, 0, 0, 0, 0,				 /* pool bytes */
		0xaa, 0xbb, 0,	 0,    0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 1, 0, /* incarnation, verification */
	};
	struct okv_session_message message = hello();
	uint8_t bytes[OKV_SESSION_MESSAGE_MAX];
	char hex[65];

	assert_int_equal(okv_session_encode(&accept, bytes), sizeof(golden));
	assert_memory_equal(bytes, golden, sizeof(golden));

	/* Encoded independently, in Python, from docs/formats/session.md. */
	struct okv_hash digest = okv_sha256_of(bytes, okv_session_encode(&message, bytes));
	okv_hex(digest.bytes, sizeof(digest.bytes), hex);
	assert_string_equal(hex, "a11865a5333c7e383fcd0ab10cd0a9b6c64a9ebad6ca4333f436e499cbcb452f");
}

static enum okv_status decode_changed(const struct okv_session_message *message, size_t at, uint8_t value,
				      struct okv_reason *reason)
{
	uint8_t bytes[OKV_SESSION_MESSAGE_MAX];
	struct okv_session_message got;
	size_t size = okv_session_encode(message, bytes);

	bytes[at] = value;
	return okv_session_decode(bytes, size, &got, reason);
}

static void another_version_is_refused_by_name(void **state)
{
	(void)state;
	struct okv_session_message message = hello();
	struct okv_reason reason;

	assert_int_equal(decode_changed(&message, 4, 9, &reason), OKV_ERR_VERSION);
	assert_string_equal(reason.field, "version");
	assert_non_null(strstr(reason.text, "version 1, the other end version 9"));
}

static void what_is_no_message_of_ours_is_a_protocol_error(void **state)
{
	(void)state;
	struct okv_session_message bye = {.type = OKV_SESSION_BYE}, message = hello();
	struct okv_reason reason;

	assert_int_equal(decode_changed(&bye, 0, 'X', &reason), OKV_ERR_PROTOCOL);
	assert_int_equal(decode_changed(&bye, 6, 0, &reason), OKV_ERR_PROTOCOL);
	assert_int_equal(decode_changed(&bye, 6, 6, &reason), OKV_ERR_PROTOCOL);
	assert_int_equal(decode_changed(&bye, 8, 1, &reason), OKV_ERR_PROTOCOL);
	assert_int_equal(decode_changed(&message, 12 + 24 + 2, '\n', &reason), OKV_ERR_PROTOCOL); /* in the name */
	assert_int_equal(decode_changed(&message, 12 + 24 + 1, 0xff, &reason), OKV_ERR_PROTOCOL); /* its length */
}

static enum okv_status decode_hello(const struct okv_session_message *message, struct okv_reason *reason)
{
	return decode_changed(message, 0, 'O', reason);
}

static void a_hello_that_contradicts_itself_names_the_field(void **state)
{
	(void)state;
	struct okv_session_message message = hello();
	struct okv_reason reason;

	message.hello.page_bytes++;
	assert_int_equal(decode_hello(&message, &reason), OKV_ERR_INVALID);
	assert_string_equal(reason.field, "page_bytes");

	message = hello();
	message.hello.arena_bytes = 368639;
	assert_int_equal(decode_hello(&message, &reason), OKV_ERR_INVALID);
	assert_string_equal(reason.field, "arena_bytes");
	message.hello.arena_bytes = OKV_SESSION_ARENA_BYTES_MAX + 1;
	assert_int_equal(decode_hello(&message, &reason), OKV_ERR_INVALID);

	message = hello();
	message.hello.key.page_tokens = OKV_BLOCK_TOKENS_MAX + 1;
	assert_int_equal(decode_hello(&message, &reason), OKV_ERR_INVALID);
	assert_string_equal(reason.field, "page_tokens");
	message.hello.key.page_tokens = 0;
	assert_int_equal(decode_hello(&message, &reason), OKV_ERR_INVALID);

	message = hello();
	strcpy(message.hello.key.kv_dtype, "f8");
	assert_int_equal(decode_hello(&message, &reason), OKV_ERR_INVALID);
	assert_string_equal(reason.field, "page_bytes");
}

static void an_answer_without_session_or_of_an_unknown_mode_is_refused(void **state)
{
	(void)state;
	struct okv_session_message accept = {.type = OKV_SESSION_ACCEPT,
					     .accept = {.session = 1, .pool_bytes = 1, .verification = 1}};
	struct okv_session_message refuse = {.type = OKV_SESSION_REFUSE, .refuse = {.status = OKV_ERR_BUSY}};
	struct okv_reason reason;

	assert_int_equal(decode_changed(&accept, 12, 0, &reason), OKV_ERR_PROTOCOL);
	assert_int_equal(decode_changed(&accept, 20, 0, &reason), OKV_ERR_PROTOCOL);
	assert_int_equal(decode_changed(&accept, 44, 2, &reason), OKV_ERR_UNSUPPORTED);
	assert_int_equal(decode_changed(&refuse, 12, OKV_OK, &reason), OKV_ERR_PROTOCOL);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(each_message_survives_the_way_there_and_back),
		cmocka_unit_test(the_bytes_of_the_format_page_do_not_change),
		cmocka_unit_test(another_version_is_refused_by_name),
		cmocka_unit_test(what_is_no_message_of_ours_is_a_protocol_error),
		cmocka_unit_test(a_hello_that_contradicts_itself_names_the_field),
		cmocka_unit_test(an_answer_without_session_or_of_an_unknown_mode_is_refused),
	};
	return cmocka_run_group_tests_name("session_message", tests, NULL, NULL);
}
