/* The ring's two ends, honest and not. The numbers are the invariants of ring.h. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "okv/session/ring.h"
#include "okv/span/identity.h"
#include "ring_layout.h"

struct pair {
	uint8_t *base, *scratch;
	struct okv_ring_client client;
	struct okv_ring_manager manager;
	struct okv_ring_grant grants[OKV_RING_BLOCKS_MAX];
	struct okv_reason reason;
};

static const struct okv_hash key_digest = {{42}};

static int set_up(void **state)
{
	struct pair *pair = calloc(1, sizeof(*pair));
	struct okv_ring_limits limits = {
		.page_bytes = 4096, .arena_bytes = 65536, .page_tokens = 16, .key_digest = key_digest};

	pair->base = aligned_alloc(4096, okv_ring_bytes());
	pair->scratch = malloc(OKV_RING_REQUEST_BYTES);
	memset(pair->base, 0, okv_ring_bytes());
	okv_ring_client_init(&pair->client, pair->base);
	*state = pair;
	return okv_ring_manager_init(&pair->manager, pair->base, pair->scratch, &limits, &pair->reason) == OKV_OK ? 0
														  : -1;
}

static int tear_down(void **state)
{
	struct pair *pair = *state;

	free(pair->base);
	free(pair->scratch);
	free(pair);
	return 0;
}

/* Writes `count` chained blocks of 16 tokens and sends them. */
static uint32_t send_blocks(struct pair *pair, enum okv_ring_op op, uint32_t count)
{
	struct okv_ring_request request = {.op = op, .count = count, .tokens = op == OKV_RING_PUBLISH ? count * 16 : 0};
	struct okv_hash parent = {{0}};

	assert_true(okv_ring_client_take_slot(&pair->client, &request.slot));
	struct okv_ring_block *block = okv_ring_client_blocks(&pair->client, request.slot);
	uint32_t *tokens = (uint32_t *)(void *)(block + count);

	for (uint32_t i = 0; i < count; i++) {
		uint32_t page[16];

		for (uint32_t t = 0; t < 16; t++)
			page[t] = i * 16 + t;
		block[i] = (struct okv_ring_block){.parent = parent, .arena_offset = i % 16 * 4096, .token_count = 16};
		block[i].hash = parent = okv_block_hash(&key_digest, &block[i].parent, &block[i].lineage, page, 16);
		if (op == OKV_RING_PUBLISH)
			memcpy(tokens + i * 16, page, sizeof(page));
	}
	okv_ring_client_send(&pair->client, &request);
	return request.slot;
}

static void a_request_and_its_reply_cross_once(void **state)
{
	struct pair *pair = *state;
	struct okv_ring_call call;
	struct okv_ring_reply reply, got;
	uint32_t slot = send_blocks(pair, OKV_RING_PUBLISH, 3);

	assert_int_equal(okv_ring_manager_take(&pair->manager, &call, &pair->reason), OKV_OK);
	assert_int_equal(call.request.count, 3);
	assert_int_equal(call.tokens[47], 47);
	assert_int_equal(okv_ring_manager_check(&pair->manager, &call, &pair->reason), OKV_OK);
	assert_true(okv_ring_manager_is_open(&pair->manager, slot, call.request.generation));
	assert_int_equal(okv_ring_manager_take(&pair->manager, &call, &pair->reason), OKV_ERR_ABSENT); /* R1 */
	assert_int_equal(okv_ring_client_take(&pair->client, &got, pair->grants, &pair->reason), OKV_ERR_ABSENT);

	reply = (struct okv_ring_reply){.op = OKV_RING_PUBLISH, .slot = slot, .count = 3};
	assert_int_equal(okv_ring_manager_reply(&pair->manager, &reply, NULL, &pair->reason), OKV_OK);
	assert_int_equal(okv_ring_client_take(&pair->client, &got, pair->grants, &pair->reason), OKV_OK);
	assert_int_equal(got.generation, 2);
	assert_int_equal(got.count, 3);
	assert_int_equal(okv_ring_client_take(&pair->client, &got, pair->grants, &pair->reason),
			 OKV_ERR_ABSENT); /* R4 */
	okv_ring_client_give_slot(&pair->client, slot);
}

static void grants_come_with_the_answer_to_a_restore(void **state)
{
	struct pair *pair = *state;
	struct okv_ring_request request = {.op = OKV_RING_RESTORE, .lease = 99};
	struct okv_ring_grant grants[2] = {{4096, 4096, {{1}}}, {8192, 4096, {{2}}}};
	struct okv_ring_reply reply = {.op = OKV_RING_RESTORE, .count = 2}, got;
	struct okv_ring_call call;

	assert_true(okv_ring_client_take_slot(&pair->client, &request.slot));
	okv_ring_client_send(&pair->client, &request);
	assert_int_equal(okv_ring_manager_take(&pair->manager, &call, &pair->reason), OKV_OK);
	assert_int_equal(call.request.lease, 99);
	reply.slot = call.request.slot;
	assert_int_equal(okv_ring_manager_reply(&pair->manager, &reply, grants, &pair->reason), OKV_OK);
	assert_int_equal(okv_ring_client_take(&pair->client, &got, pair->grants, &pair->reason), OKV_OK);
	assert_memory_equal(pair->grants, grants, sizeof(grants));
}

static void all_slots_can_be_used_at_once_and_again_for_ever(void **state)
{
	struct pair *pair = *state;
	struct okv_ring_call call;
	struct okv_ring_reply reply = {0}, got;
	uint32_t slot;

	for (int round = 0; round < 5; round++) {
		for (int i = 0; i < OKV_RING_SLOTS; i++)
			send_blocks(pair, OKV_RING_QUERY, 1);
		assert_false(okv_ring_client_take_slot(&pair->client, &slot));
		for (int i = 0; i < OKV_RING_SLOTS; i++) {
			assert_int_equal(okv_ring_manager_take(&pair->manager, &call, &pair->reason), OKV_OK);
			reply = (struct okv_ring_reply){.op = OKV_RING_QUERY, .slot = call.request.slot};
			assert_int_equal(okv_ring_manager_reply(&pair->manager, &reply, NULL, &pair->reason), OKV_OK);
		}
		for (int i = 0; i < OKV_RING_SLOTS; i++) {
			assert_int_equal(okv_ring_client_take(&pair->client, &got, pair->grants, &pair->reason),
					 OKV_OK);
			okv_ring_client_give_slot(&pair->client, got.slot);
		}
	}
	assert_int_equal(pair->manager.generation[0], 10);
}

static void rewriting_a_request_while_it_is_looked_at_changes_nothing(void **state)
{
	struct pair *pair = *state;
	struct okv_ring_call call;
	uint32_t slot = send_blocks(pair, OKV_RING_PUBLISH, 4);

	assert_int_equal(okv_ring_manager_take(&pair->manager, &call, &pair->reason), OKV_OK);
	memset(okv__ring_request_area(pair->base, slot), 0xff, OKV_RING_REQUEST_BYTES); /* R2 */
	memset(okv__ring_shared(pair->base)->request, 0xff, sizeof(okv__ring_shared(pair->base)->request));
	assert_int_equal(call.request.count, 4);
	assert_int_equal(okv_ring_manager_check(&pair->manager, &call, &pair->reason), OKV_OK);
	assert_int_equal(call.tokens[63], 63);
}

/* Sends a good request, spoils it in shared memory, and expects the session to end with `text`. */
static void expect_corrupt(struct pair *pair, const struct okv_ring_request *bad, const char *text)
{
	struct okv_ring_call call;

	okv__ring_shared(pair->base)->request[pair->manager.requests_taken % OKV_RING_SLOTS] = *bad;
	atomic_store(&okv__ring_shared(pair->base)->requests_sent.value, pair->manager.requests_taken + 1);
	assert_int_equal(okv_ring_manager_take(&pair->manager, &call, &pair->reason), OKV_ERR_PROTOCOL);
	assert_non_null(strstr(pair->reason.text, text));
}

static void what_no_honest_engine_writes_ends_the_session(void **state)
{
	struct pair *pair = *state;
	struct okv_ring_request good = {.op = OKV_RING_QUERY, .generation = 1, .count = 1}, bad;
	struct okv_ring_call call;

#define EXPECT(field, value, text)                                                                                     \
	bad = good;                                                                                                    \
	bad.field = value;                                                                                             \
	expect_corrupt(pair, &bad, text)
	EXPECT(op, 0, "unknown operation");
	EXPECT(op, OKV_RING_OPS, "unknown operation");
	EXPECT(slot, OKV_RING_SLOTS, "slot beyond");
	EXPECT(slot, UINT32_MAX, "slot beyond");
	EXPECT(generation, 0, "stale generation");
	EXPECT(generation, 2, "stale generation");
	EXPECT(count, 0, "count of blocks");
	EXPECT(count, OKV_RING_BLOCKS_MAX + 1, "count of blocks");
	EXPECT(count, UINT32_MAX, "count of blocks");
	EXPECT(tokens, 1, "token ids where none");
	good.op = OKV_RING_PUBLISH;
	EXPECT(tokens, UINT32_MAX, "count of token ids");
	good.op = OKV_RING_RELEASE;
	EXPECT(count, 1, "blocks where none");
#undef EXPECT

	/* A generation twice, and a slot twice before its reply. */
	uint32_t slot = send_blocks(pair, OKV_RING_QUERY, 1);
	assert_int_equal(okv_ring_manager_take(&pair->manager, &call, &pair->reason), OKV_OK);
	bad = call.request;
	expect_corrupt(pair, &bad, "again before its reply");
	struct okv_ring_reply reply = {.op = OKV_RING_QUERY, .slot = slot};
	assert_int_equal(okv_ring_manager_reply(&pair->manager, &reply, NULL, &pair->reason), OKV_OK);
	expect_corrupt(pair, &bad, "stale generation");

	atomic_store(&okv__ring_shared(pair->base)->requests_sent.value,
		     pair->manager.requests_taken + OKV_RING_SLOTS + 1);
	assert_int_equal(okv_ring_manager_take(&pair->manager, &call, &pair->reason), OKV_ERR_PROTOCOL);
	atomic_store(&okv__ring_shared(pair->base)->requests_sent.value, pair->manager.requests_taken - 1);
	assert_int_equal(okv_ring_manager_take(&pair->manager, &call, &pair->reason), OKV_ERR_PROTOCOL);
}

static void an_impossible_counter_of_replies_ends_the_session(void **state)
{
	struct pair *pair = *state;
	struct okv_ring_call call;
	struct okv_ring_reply reply = {.op = OKV_RING_QUERY};
	const uint64_t impossible[] = {1, UINT64_MAX, (uint64_t)-OKV_RING_SLOTS};

	reply.slot = send_blocks(pair, OKV_RING_QUERY, 1);
	assert_int_equal(okv_ring_manager_take(&pair->manager, &call, &pair->reason), OKV_OK);
	for (size_t i = 0; i < sizeof(impossible) / sizeof(impossible[0]); i++) {
		atomic_store(&okv__ring_shared(pair->base)->replies_taken.value, impossible[i]);
		assert_int_equal(okv_ring_manager_reply(&pair->manager, &reply, NULL, &pair->reason), OKV_ERR_PROTOCOL);
	}
}

/* Takes the request just sent after `spoil` has changed one of its blocks. */
static enum okv_status check_spoiled(struct pair *pair, enum okv_ring_op op, void (*spoil)(struct okv_ring_block *))
{
	struct okv_ring_call call;
	struct okv_ring_reply reply = {.op = op};
	enum okv_status status;

	reply.slot = send_blocks(pair, op, 2);
	spoil(okv_ring_client_blocks(&pair->client, reply.slot));
	assert_int_equal(okv_ring_manager_take(&pair->manager, &call, &pair->reason), OKV_OK);
	status = okv_ring_manager_check(&pair->manager, &call, &pair->reason);
	assert_int_equal(okv_ring_manager_reply(&pair->manager, &reply, NULL, &pair->reason), OKV_OK);
	return status;
}

static void past_the_arena(struct okv_ring_block *block)
{
	block[1].arena_offset = 65536 - 4095;
}

static void far_past_the_arena(struct okv_ring_block *block)
{
	block[0].arena_offset = UINT64_MAX - 100;
}

static void no_tokens(struct okv_ring_block *block)
{
	block[0].token_count = 0;
}

static void many_tokens(struct okv_ring_block *block)
{
	block[1].token_count = 17;
}

static void few_tokens(struct okv_ring_block *block)
{
	block[1].token_count = 15;
}

static void wrong_hash(struct okv_ring_block *block)
{
	block[1].hash.bytes[31] ^= 1;
}

static void wrong_lineage(struct okv_ring_block *block)
{
	block[0].lineage.bytes[0] = 1;
}

static void wrong_token(struct okv_ring_block *block)
{
	((uint32_t *)(void *)(block + 2))[20]++;
}

static void blocks_that_are_wrong_are_refused_one_request_at_a_time(void **state)
{
	struct pair *pair = *state;

	assert_int_equal(check_spoiled(pair, OKV_RING_PUBLISH, past_the_arena), OKV_ERR_INVALID);
	assert_string_equal(pair->reason.field, "arena_offset");
	assert_int_equal(check_spoiled(pair, OKV_RING_PREPARE, far_past_the_arena), OKV_ERR_INVALID);
	assert_int_equal(check_spoiled(pair, OKV_RING_QUERY, no_tokens), OKV_ERR_INVALID);
	assert_string_equal(pair->reason.field, "token_count");
	assert_int_equal(check_spoiled(pair, OKV_RING_PUBLISH, many_tokens), OKV_ERR_INVALID);
	assert_int_equal(check_spoiled(pair, OKV_RING_PUBLISH, few_tokens), OKV_ERR_MISMATCH);
	assert_int_equal(check_spoiled(pair, OKV_RING_PUBLISH, wrong_hash), OKV_ERR_MISMATCH);
	assert_string_equal(pair->reason.field, "hash");
	assert_int_equal(check_spoiled(pair, OKV_RING_PUBLISH, wrong_lineage), OKV_ERR_MISMATCH);
	assert_int_equal(check_spoiled(pair, OKV_RING_PUBLISH, wrong_token), OKV_ERR_MISMATCH);
}

static void token_ids_must_add_up(void **state)
{
	struct pair *pair = *state;
	struct okv_ring_call call;

	send_blocks(pair, OKV_RING_PUBLISH, 2);
	okv__ring_shared(pair->base)->request[0].tokens = 31;
	assert_int_equal(okv_ring_manager_take(&pair->manager, &call, &pair->reason), OKV_OK);
	assert_int_equal(okv_ring_manager_check(&pair->manager, &call, &pair->reason), OKV_ERR_INVALID);
	send_blocks(pair, OKV_RING_PUBLISH, 2);
	okv__ring_shared(pair->base)->request[1].tokens = 33;
	assert_int_equal(okv_ring_manager_take(&pair->manager, &call, &pair->reason), OKV_OK);
	assert_int_equal(okv_ring_manager_check(&pair->manager, &call, &pair->reason), OKV_ERR_INVALID);
	assert_string_equal(pair->reason.field, "tokens");
}

static void the_largest_request_fits_and_the_page_size_bounds_a_publish(void **state)
{
	struct pair *pair = *state;
	struct okv_ring_call call;

	assert_int_equal(okv_ring_publish_blocks_max(16), OKV_RING_BLOCKS_MAX);
	assert_int_equal(okv_ring_publish_blocks_max(256), 256 * 1024 / (112 + 1024));
	send_blocks(pair, OKV_RING_PUBLISH, OKV_RING_BLOCKS_MAX);
	assert_int_equal(okv_ring_manager_take(&pair->manager, &call, &pair->reason), OKV_OK);
	assert_int_equal(okv_ring_manager_check(&pair->manager, &call, &pair->reason), OKV_OK);
}

static void a_ring_of_another_version_or_without_head_is_refused(void **state)
{
	struct pair *pair = *state;
	struct okv_ring_manager manager;
	const struct okv_ring_limits limits = {0};

	okv__ring_shared(pair->base)->version = 2;
	assert_int_equal(okv_ring_manager_init(&manager, pair->base, pair->scratch, &limits, &pair->reason),
			 OKV_ERR_VERSION);
	assert_non_null(strstr(pair->reason.text, "ring version 1, the engine version 2"));
	memset(pair->base, 0, 64);
	assert_int_equal(okv_ring_manager_init(&manager, pair->base, pair->scratch, &limits, &pair->reason),
			 OKV_ERR_PROTOCOL);
}

static void a_manager_that_answers_nonsense_is_left(void **state)
{
	struct pair *pair = *state;
	struct okv_ring_shared *shared = okv__ring_shared(pair->base);
	struct okv_ring_reply got, good = {.op = OKV_RING_QUERY, .generation = 2};

	good.slot = send_blocks(pair, OKV_RING_QUERY, 1);
	atomic_store(&shared->replies_sent.value, 1);
	shared->reply[0] = good;
	shared->reply[0].generation = 4;
	assert_int_equal(okv_ring_client_take(&pair->client, &got, pair->grants, &pair->reason), OKV_ERR_PROTOCOL);
	shared->reply[0] = good;
	shared->reply[0].slot = OKV_RING_SLOTS;
	assert_int_equal(okv_ring_client_take(&pair->client, &got, pair->grants, &pair->reason), OKV_ERR_PROTOCOL);
	shared->reply[0] = good;
	shared->reply[0].count = OKV_RING_BLOCKS_MAX + 1;
	assert_int_equal(okv_ring_client_take(&pair->client, &got, pair->grants, &pair->reason), OKV_ERR_PROTOCOL);
	shared->reply[0] = good;
	atomic_store(&shared->replies_sent.value, OKV_RING_SLOTS + 1);
	assert_int_equal(okv_ring_client_take(&pair->client, &got, pair->grants, &pair->reason), OKV_ERR_PROTOCOL);
	atomic_store(&shared->replies_sent.value, 1);
	assert_int_equal(okv_ring_client_take(&pair->client, &got, pair->grants, &pair->reason), OKV_OK);
}

#define RING_TEST(name) cmocka_unit_test_setup_teardown(name, set_up, tear_down)

int main(void)
{
	const struct CMUnitTest tests[] = {
		RING_TEST(a_request_and_its_reply_cross_once),
		RING_TEST(grants_come_with_the_answer_to_a_restore),
		RING_TEST(all_slots_can_be_used_at_once_and_again_for_ever),
		RING_TEST(rewriting_a_request_while_it_is_looked_at_changes_nothing),
		RING_TEST(what_no_honest_engine_writes_ends_the_session),
		RING_TEST(an_impossible_counter_of_replies_ends_the_session),
		RING_TEST(blocks_that_are_wrong_are_refused_one_request_at_a_time),
		RING_TEST(token_ids_must_add_up),
		RING_TEST(the_largest_request_fits_and_the_page_size_bounds_a_publish),
		RING_TEST(a_ring_of_another_version_or_without_head_is_refused),
		RING_TEST(a_manager_that_answers_nonsense_is_left),
	};
	return cmocka_run_group_tests_name("session_ring", tests, NULL, NULL);
}
