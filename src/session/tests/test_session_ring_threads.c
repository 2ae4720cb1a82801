/*
 * Both ends of a ring as two threads, so that ThreadSanitizer sees what it cannot see between two processes: every byte
 * that crosses is ordered by the counters.
 */
#include <pthread.h>
#include <sched.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "okv/session/ring.h"

enum { REQUESTS = 5000, BLOCKS = 3 };

struct manager_side {
	struct okv_ring_manager ring;
	uint64_t sum;
	bool is_failed;
};

static void *manager_thread(void *context)
{
	struct manager_side *side = context;
	struct okv_reason reason;

	for (uint32_t answered = 0; answered < REQUESTS;) {
		struct okv_ring_call call;
		struct okv_ring_grant grants[BLOCKS];
		enum okv_status status = okv_ring_manager_take(&side->ring, &call, &reason);

		if (status == OKV_ERR_ABSENT) {
			sched_yield();
			continue;
		}
		if (status != OKV_OK) {
			side->is_failed = true;
			return NULL;
		}
		struct okv_ring_reply reply = {.op = OKV_RING_RESTORE, .slot = call.request.slot, .count = BLOCKS};
		for (uint32_t i = 0; i < BLOCKS; i++) {
			side->sum += call.blocks[i].arena_offset;
			grants[i] = (struct okv_ring_grant){.pool_offset = call.blocks[i].arena_offset + 1};
		}
		if (okv_ring_manager_reply(&side->ring, &reply, grants, &reason) != OKV_OK) {
			side->is_failed = true;
			return NULL;
		}
		answered++;
	}
	return NULL;
}

static void every_request_and_reply_crosses_between_threads_intact(void **state)
{
	(void)state;
	struct manager_side side = {0};
	struct okv_ring_client client;
	struct okv_ring_limits limits = {.page_bytes = 1, .arena_bytes = 1 << 20, .page_tokens = 16};
	struct okv_reason reason;
	uint8_t *base = aligned_alloc(4096, okv_ring_bytes()), *scratch = malloc(OKV_RING_REQUEST_BYTES);
	struct okv_ring_grant *grants = calloc(OKV_RING_BLOCKS_MAX, sizeof(*grants));
	uint64_t offset_of[OKV_RING_SLOTS], sum = 0;
	uint32_t sent = 0, taken = 0;
	pthread_t thread;

	assert_true(base && scratch && grants);
	memset(base, 0, okv_ring_bytes());
	okv_ring_client_init(&client, base);
	assert_int_equal(okv_ring_manager_init(&side.ring, base, scratch, &limits, &reason), OKV_OK);
	assert_int_equal(pthread_create(&thread, NULL, manager_thread, &side), 0);
	while (taken < REQUESTS) {
		struct okv_ring_request request = {.op = OKV_RING_PREPARE, .count = BLOCKS};
		struct okv_ring_reply reply;

		if (sent < REQUESTS && okv_ring_client_take_slot(&client, &request.slot)) {
			struct okv_ring_block *block = okv_ring_client_blocks(&client, request.slot);

			offset_of[request.slot] = sent;
			for (uint32_t i = 0; i < BLOCKS; i++) {
				block[i] = (struct okv_ring_block){.arena_offset = sent + i, .token_count = 1};
				sum += sent + i;
			}
			okv_ring_client_send(&client, &request);
			sent++;
		}
		enum okv_status status = okv_ring_client_take(&client, &reply, grants, &reason);
		if (status == OKV_ERR_ABSENT) {
			sched_yield();
			continue;
		}
		assert_int_equal(status, OKV_OK);
		for (uint32_t i = 0; i < BLOCKS; i++)
			assert_int_equal(grants[i].pool_offset, offset_of[reply.slot] + i + 1);
		okv_ring_client_give_slot(&client, reply.slot);
		taken++;
	}
	pthread_join(thread, NULL);
	assert_false(side.is_failed);
	assert_int_equal(side.sum, sum);
	free(grants);
	free(base);
	free(scratch);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(every_request_and_reply_crosses_between_threads_intact),
	};
	return cmocka_run_group_tests_name("session_ring_threads", tests, NULL, NULL);
}
