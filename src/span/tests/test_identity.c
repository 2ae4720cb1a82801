/* Identity: golden bytes made with Python's struct and hashlib, and a mutation of every field as negative control. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <string.h>

#include <cmocka.h>

#include "okv/span/identity.h"

static struct okv_materialisation_key sample(void)
{
	struct okv_materialisation_key key = {
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
		.numerics = "okv-f32-1",
		.policy_version = 1,
		.admitter_version = 1,
		.isolation_domain = "default",
	};
	memset(&key.weights, 0x11, sizeof(key.weights));
	memset(&key.tokenizer, 0x22, sizeof(key.tokenizer));
	return key;
}

static void golden_digests_hold(void **state)
{
	(void)state;
	struct okv_materialisation_key key = sample();
	struct okv_hash digest = okv_key_digest(&key), zero = {{0}};
	uint32_t tokens[] = {504, 3575, 282, 4649, 314};
	char text[65];

	okv_hex(digest.bytes, 32, text);
	assert_string_equal(text, "7115e0f0900948cfc7b52f8379431d0e9cf576536b2f77f2ada68cf091498e8d");
	struct okv_hash block = okv_block_hash(&digest, &zero, &zero, tokens, 5);
	okv_hex(block.bytes, 32, text);
	assert_string_equal(text, "a93279c1769b72e9a793deef40b73e5e1a17af7c32fd8f226d932c67104897f1");
	assert_int_equal(okv_key_page_bytes(&key), 368640);
}

static void encoding_round_trips_and_every_truncation_is_refused(void **state)
{
	(void)state;
	struct okv_materialisation_key key = sample(), back;
	struct okv_reason reason;
	uint8_t bytes[OKV_KEY_ENCODED_MAX + 1];
	size_t size = okv_key_encode(&key, bytes);

	assert_int_equal(okv_key_decode(bytes, size, &back, &reason), OKV_OK);
	assert_int_equal(okv_key_compare(&key, &back, &reason), OKV_OK);
	for (size_t cut = 0; cut < size; cut++)
		assert_int_equal(okv_key_decode(bytes, cut, &back, &reason), OKV_ERR_INVALID);
	bytes[size] = 0;
	assert_int_equal(okv_key_decode(bytes, size + 1, &back, &reason), OKV_ERR_INVALID);
}

static void any_field_changes_the_digest_and_is_named(void **state)
{
	(void)state;
	struct okv_reason reason;
	struct okv_materialisation_key ours = sample(), theirs;
	struct okv_hash digest = okv_key_digest(&ours), other;

#define DIFFERS(field, value)                                                                                          \
	theirs = ours;                                                                                                 \
	theirs.field = value;                                                                                          \
	other = okv_key_digest(&theirs);                                                                               \
	assert_false(okv_hash_equal(&digest, &other));                                                                 \
	assert_int_equal(okv_key_compare(&ours, &theirs, &reason), OKV_ERR_MISMATCH)
	DIFFERS(weights.bytes[31], 0);
	assert_string_equal(reason.field, "weights");
	DIFFERS(adapter.bytes[0], 1);
	assert_string_equal(reason.field, "adapter");
	DIFFERS(tokenizer.bytes[0], 1);
	assert_string_equal(reason.field, "tokenizer");
	DIFFERS(serializer[0], 'q');
	assert_string_equal(reason.field, "serializer");
	DIFFERS(rope_type[0], 'q');
	assert_string_equal(reason.field, "rope_type");
	DIFFERS(rope_scaling[0], 'q');
	assert_string_equal(reason.field, "rope_scaling");
	DIFFERS(rope_theta, 10000.0);
	assert_string_equal(reason.field, "rope_theta");
	DIFFERS(rope_dims, 32);
	assert_string_equal(reason.field, "rope_dims");
	DIFFERS(layers, 31);
	assert_string_equal(reason.field, "layers");
	DIFFERS(kv_heads, 4);
	assert_string_equal(reason.field, "kv_heads");
	DIFFERS(head_dim, 32);
	assert_string_equal(reason.field, "head_dim");
	DIFFERS(page_tokens, 8);
	assert_string_equal(reason.field, "page_tokens");
	DIFFERS(kv_dtype[1], '3');
	assert_string_equal(reason.field, "kv_dtype");
	DIFFERS(tp_rank, 1);
	assert_string_equal(reason.field, "tp_rank");
	DIFFERS(tp_size, 2);
	assert_string_equal(reason.field, "tp_size");
	DIFFERS(numerics[0], 'q');
	assert_string_equal(reason.field, "numerics");
	DIFFERS(policy_version, 2);
	assert_string_equal(reason.field, "policy_version");
	DIFFERS(admitter_version, 2);
	assert_string_equal(reason.field, "admitter_version");
	DIFFERS(isolation_domain[0], 'q');
	assert_string_equal(reason.field, "isolation_domain");
#undef DIFFERS
}

static void a_block_hash_depends_on_everything_before_it(void **state)
{
	(void)state;
	struct okv_hash key = {{1}}, zero = {{0}}, one = {{1}};
	uint32_t tokens[] = {1, 2, 3, 4}, swapped[] = {2, 1, 3, 4};
	struct okv_hash base = okv_block_hash(&key, &zero, &zero, tokens, 4);
	struct okv_hash others[] = {
		okv_block_hash(&zero, &zero, &zero, tokens, 4), okv_block_hash(&key, &one, &zero, tokens, 4),
		okv_block_hash(&key, &zero, &one, tokens, 4),	okv_block_hash(&key, &zero, &zero, swapped, 4),
		okv_block_hash(&key, &zero, &zero, tokens, 3),
	};

	for (size_t i = 0; i < sizeof(others) / sizeof(others[0]); i++)
		assert_false(okv_hash_equal(&base, &others[i]));
}

static void unreasonable_page_sizes_are_zero(void **state)
{
	(void)state;
	struct okv_materialisation_key key = sample();

	key.layers = UINT32_MAX;
	key.page_tokens = UINT32_MAX;
	assert_int_equal(okv_key_page_bytes(&key), 0);
	key = sample();
	key.kv_dtype[1] = '9';
	assert_int_equal(okv_key_page_bytes(&key), 0);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(golden_digests_hold),
		cmocka_unit_test(encoding_round_trips_and_every_truncation_is_refused),
		cmocka_unit_test(any_field_changes_the_digest_and_is_named),
		cmocka_unit_test(a_block_hash_depends_on_everything_before_it),
		cmocka_unit_test(unreasonable_page_sizes_are_zero),
	};
	return cmocka_run_group_tests_name("identity", tests, NULL, NULL);
}
