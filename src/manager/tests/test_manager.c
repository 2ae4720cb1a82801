/* The local half of a manager: what an engine may do, what a hostile one may not, and who keeps a pin. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#include <signal.h>
#include <sys/fsuid.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cmocka.h>

#include "engine_stand_in.h"

enum { MIB = 1 << 20 };

static void what_is_published_is_prepared_and_read_byte_for_byte(void **state)
{
	(void)state;
	struct stage stage;
	struct engine engine, other;
	struct okv_ring_reply reply;

	stage_open(&stage, 4 * MIB, NULL);
	engine_attach(&stage, &engine, 0);
	assert_int_equal(engine_chain(&engine, OKV_RING_QUERY, 1, 5).count, 0);
	reply = engine_chain(&engine, OKV_RING_PUBLISH, 1, 5);
	assert_int_equal(reply.status, OKV_OK);
	assert_int_equal(reply.count, 5);
	assert_int_equal(engine_chain(&engine, OKV_RING_QUERY, 1, 7).count, 5);
	assert_true(stage_metric(&stage, "orbitkv_cache_candidate_hits_total") == 5);
	assert_true(stage_metric(&stage, "orbitkv_cache_candidate_misses_total") == 5 + 2);

	engine_attach(&stage, &other, 0); /* another engine of the same identity */
	reply = engine_chain(&other, OKV_RING_PREPARE, 1, 7);
	assert_int_equal(reply.count, 5);
	assert_true(reply.lease != 0);
	assert_int_equal(reply.remote_bytes, 0);
	assert_true(stage_metric(&stage, "orbitkv_query_reserved_bytes") == 5 * PAGE);
	uint64_t lease = reply.lease;
	reply = engine_lease(&other, OKV_RING_RESTORE, lease);
	assert_int_equal(reply.count, 5);
	for (uint32_t i = 0; i < 5; i++) {
		const uint8_t *bytes = other.pool.base + other.grants[i].pool_offset;
		struct okv_crc crc = okv_crc_of(bytes, PAGE);

		assert_int_equal(other.grants[i].length, PAGE);
		assert_true(okv_crc_equal(&crc, &other.grants[i].crc));
		assert_int_equal(bytes[0], engine_byte(1, i));
		assert_int_equal(bytes[PAGE - 1], engine_byte(1, i));
	}
	assert_true(stage_metric(&stage, "orbitkv_leases{phase=\"restoring\"}") == 1);
	assert_int_equal(engine_lease(&other, OKV_RING_RESTORE, lease).status, OKV_ERR_EXISTS);
	assert_int_equal(engine_lease(&engine, OKV_RING_RELEASE, lease).status, OKV_ERR_PERMISSION);
	assert_int_equal(engine_lease(&other, OKV_RING_RELEASE, lease).status, OKV_OK);
	assert_int_equal(engine_lease(&other, OKV_RING_RELEASE, lease).status, OKV_ERR_STALE);
	assert_true(stage_metric(&stage, "orbitkv_query_reserved_bytes") == 0);
	assert_true(stage_metric(&stage, "orbitkv_pinned_for_load_refs") == 0);
	assert_true(stage_metric(&stage, "orbitkv_cache_tier_block_requests_total{tier=\"ram\"}") == 5);
	assert_true(stage_metric(&stage, "orbitkv_cache_tier_block_requests_total{tier=\"miss\"}") == 2);
	assert_true(stage_metric(&stage, "orbitkv_save_bytes_total") == 5 * PAGE);
	assert_true(stage_metric(&stage, "orbitkv_load_bytes_total") == 5 * PAGE);
	engine_drop(&engine);
	engine_drop(&other);
	stage_close(&stage);
}

static void a_second_publish_of_the_same_blocks_copies_nothing(void **state)
{
	(void)state;
	struct stage stage;
	struct engine engine;

	stage_open(&stage, 4 * MIB, NULL);
	engine_attach(&stage, &engine, 0);
	assert_int_equal(engine_chain(&engine, OKV_RING_PUBLISH, 1, 3).count, 3);
	assert_int_equal(engine_chain(&engine, OKV_RING_PUBLISH, 1, 4).count, 4);
	assert_true(stage_metric(&stage, "orbitkv_save_bytes_total") == 4 * PAGE);
	assert_true(stage_metric(&stage, "orbitkv_cache_block_insertions_total") == 4);
	engine_drop(&engine);
	stage_close(&stage);
}

static void an_engine_of_another_user_is_refused(void **state)
{
	(void)state;
	struct stage stage;
	struct engine engine;

	if (geteuid() != 0)
		skip();
	stage_open(&stage, 4 * MIB, NULL);
	assert_int_equal(seteuid(65534), 0);
	setfsuid(0); /* it may open the socket, as if the file's mode were another */
	engine_connect(&stage, &engine);
	assert_int_equal(seteuid(0), 0);
	STAGE_UNTIL(&stage, !engine_read_socket(&engine));
	assert_int_equal(engine.refusal.status, OKV_ERR_PERMISSION);
	assert_non_null(strstr(engine.refusal.text, "run both as one user"));
	assert_true(stage_metric(&stage, "orbitkv_session_refusals_total") == 1);
	engine_drop(&engine);
	stage_close(&stage);
}

static void a_block_of_another_key_is_a_miss(void **state)
{
	(void)state;
	struct stage stage;
	struct engine engine;

	stage_open(&stage, 4 * MIB, NULL);
	engine_attach(&stage, &engine, 0);
	assert_int_equal(engine_chain(&engine, OKV_RING_PUBLISH, 1, 1).count, 1);
	struct okv_materialisation_key key = tiny_key();
	struct okv_hash digest = okv_key_digest(&key), root = {{0}};
	const uint32_t page[TOKENS] = {1, 0, 3, 4};
	struct okv_hash hash = okv_block_hash(&digest, &root, &root, page, TOKENS);
	struct okv_block_record record = okv_store_peek(stage.manager->store, &hash)->record;

	/* The same, as an engine with larger pages would have published it. */
	okv_store_clean(stage.manager->store);
	record.key_digest.bytes[0] ^= 1;
	record.length = 4 * PAGE;
	struct okv_block *block;
	assert_int_equal(okv_store_reserve(stage.manager->store, &record, OKV_CLASS_NORMAL, &block), OKV_OK);
	okv_store_commit(stage.manager->store, block, &record.crc);
	okv_store_unpin(stage.manager->store, block);
	assert_int_equal(engine_chain(&engine, OKV_RING_QUERY, 1, 1).count, 0);
	assert_int_equal(engine_chain(&engine, OKV_RING_PREPARE, 1, 1).count, 0);
	assert_int_equal(okv_store_counts(stage.manager->store)->pinned_blocks, 0);
	engine_drop(&engine);
	stage_close(&stage);
}

static void a_full_pool_of_pinned_blocks_takes_what_fits_and_says_so(void **state)
{
	(void)state;
	struct stage stage;
	struct engine engine;
	struct okv_ring_reply reply;

	stage_open(&stage, MIB, NULL); /* 64 pages */
	engine_attach(&stage, &engine, 0);
	assert_int_equal(engine_chain(&engine, OKV_RING_PUBLISH, 1, 60).count, 60);
	reply = engine_chain(&engine, OKV_RING_PREPARE, 1, 60);
	assert_int_equal(reply.count, 48); /* three quarters of the pool */
	assert_int_equal(engine_chain(&engine, OKV_RING_PREPARE, 1, 60).status, OKV_ERR_BUDGET);
	reply = engine_chain(&engine, OKV_RING_PUBLISH, 2, 30);
	assert_int_equal(reply.status, OKV_ERR_NO_SPACE);
	assert_int_equal(reply.count, 16);
	assert_true(stage_metric(&stage, "orbitkv_query_budget_bypasses_total") == 2);
	/* The tiers add up to what was asked for: 60 and 60. */
	assert_true(stage_metric(&stage, "orbitkv_cache_tier_block_requests_total{tier=\"ram\"}") == 48);
	assert_true(stage_metric(&stage, "orbitkv_cache_tier_block_requests_total{tier=\"miss\"}") == 12 + 60);
	engine_drop(&engine);
	STAGE_UNTIL(&stage, stage.manager->leases.held_bytes == 0); /* nobody was told where the blocks are */
	stage_close(&stage);
}

static void of_blocks_that_were_used_together_the_last_are_evicted_first(void **state)
{
	(void)state;
	struct stage stage;
	struct engine engine;

	stage_open(&stage, MIB, NULL); /* 64 pages */
	engine_attach(&stage, &engine, 0);
	engine_chain(&engine, OKV_RING_PUBLISH, 1, 40);
	engine_chain(&engine, OKV_RING_PUBLISH, 2, 30);
	assert_int_equal(engine_chain(&engine, OKV_RING_QUERY, 1, 40).count, 34);

	uint64_t lease = engine_chain(&engine, OKV_RING_PREPARE, 1, 34).lease;
	engine_lease(&engine, OKV_RING_RELEASE, lease);
	engine_chain(&engine, OKV_RING_PUBLISH, 3, 36); /* takes all of chain 2 and six of what was released */
	assert_int_equal(engine_chain(&engine, OKV_RING_QUERY, 2, 30).count, 0);
	assert_int_equal(engine_chain(&engine, OKV_RING_QUERY, 1, 40).count, 28);
	engine_drop(&engine);
	stage_close(&stage);
}

static void of_a_prefix_that_was_published_in_pieces_the_last_are_evicted_first(void **state)
{
	(void)state;
	struct stage stage;
	struct engine engine;

	stage_open(&stage, MIB, NULL); /* 64 pages */
	engine_attach(&stage, &engine, 0);
	for (uint32_t count = 8; count <= 40; count += 8) /* eight new ones each time */
		engine_chain(&engine, OKV_RING_PUBLISH, 1, count);
	engine_chain(&engine, OKV_RING_PUBLISH, 2, 30);
	assert_int_equal(engine_chain(&engine, OKV_RING_QUERY, 1, 40).count, 34);
	engine_chain(&engine, OKV_RING_PUBLISH, 1, 34); /* all there */
	engine_chain(&engine, OKV_RING_PUBLISH, 3, 36);
	assert_int_equal(engine_chain(&engine, OKV_RING_QUERY, 2, 30).count, 0);
	assert_int_equal(engine_chain(&engine, OKV_RING_QUERY, 1, 40).count, 28);
	engine_drop(&engine);
	stage_close(&stage);
}

static void room_for_new_blocks_is_not_made_of_those_before_them(void **state)
{
	(void)state;

	for (uint32_t first = 0; first <= 10; first += 10) { /* what is there is in the call, or before it */
		struct stage stage;
		struct engine engine;

		stage_open(&stage, MIB, NULL); /* 64 pages */
		engine_attach(&stage, &engine, 0);
		engine_chain(&engine, OKV_RING_PUBLISH, 1, 10);
		engine_chain(&engine, OKV_RING_PUBLISH, 2, 54);
		engine_answer(&engine, engine_send_piece(&engine, OKV_RING_PUBLISH, 1, first, 20));
		assert_int_equal(engine_chain(&engine, OKV_RING_QUERY, 1, 20).count, 20);
		assert_int_equal(engine_chain(&engine, OKV_RING_QUERY, 2, 54).count, 44);
		engine_drop(&engine);
		stage_close(&stage);
	}
}

static void who_reads_the_end_of_a_prefix_uses_its_beginning(void **state)
{
	(void)state;
	struct stage stage;
	struct engine engine;

	stage_open(&stage, MIB, NULL); /* 64 pages */
	engine_attach(&stage, &engine, 0);
	engine_chain(&engine, OKV_RING_PUBLISH, 1, 20);
	engine_chain(&engine, OKV_RING_PUBLISH, 2, 30);
	uint64_t lease = engine_answer(&engine, engine_send_piece(&engine, OKV_RING_PREPARE, 1, 10, 20)).lease;
	engine_lease(&engine, OKV_RING_RELEASE, lease);
	engine_chain(&engine, OKV_RING_PUBLISH, 3, 40);
	assert_int_equal(engine_chain(&engine, OKV_RING_QUERY, 1, 20).count, 20);
	assert_int_equal(engine_chain(&engine, OKV_RING_QUERY, 2, 30).count, 4);
	engine_drop(&engine);
	stage_close(&stage);
}

static void the_pool_and_its_leases_are_shown_as_they_are(void **state)
{
	(void)state;
	struct stage stage;
	struct engine engine;

	stage_open(&stage, MIB, NULL); /* 64 pages */
	engine_attach(&stage, &engine, 0);
	engine_chain(&engine, OKV_RING_PUBLISH, 1, 40);
	assert_true(stage_metric(&stage, "orbitkv_cache_resident_bytes") == 40 * PAGE);
	assert_true(stage_metric(&stage, "orbitkv_cache_resident_blocks{class=\"normal\"}") == 40);
	assert_true(stage_metric(&stage, "orbitkv_pool_used_bytes") == 40 * PAGE);
	assert_true(stage_metric(&stage, "orbitkv_pool_largest_free_bytes") == 24 * PAGE);

	/* Two leases, which share ten blocks; the second asks for two that are not there. */
	uint64_t first = engine_chain(&engine, OKV_RING_PREPARE, 1, 30).lease;
	assert_int_equal(engine_chain(&engine, OKV_RING_PREPARE, 1, 10).count, 10);
	assert_int_equal(engine_chain(&engine, OKV_RING_PREPARE, 9, 2).count, 0);
	assert_true(stage_metric(&stage, "orbitkv_cache_block_hits_total") == 40);
	assert_true(stage_metric(&stage, "orbitkv_cache_block_misses_total") == 2);
	engine_lease(&engine, OKV_RING_RESTORE, first);
	assert_true(stage_metric(&stage, "orbitkv_query_reserved_bytes_by_phase{phase=\"restoring\"}") == 30 * PAGE);
	assert_true(stage_metric(&stage, "orbitkv_query_reserved_bytes_by_phase{phase=\"ready\"}") == 10 * PAGE);
	assert_true(stage_metric(&stage, "orbitkv_pinned_for_load_entries") == 2);
	assert_true(stage_metric(&stage, "orbitkv_pinned_for_load_refs") == 40);
	assert_true(stage_metric(&stage, "orbitkv_pinned_for_load_unique_blocks") == 30);
	assert_true(stage_metric(&stage, "orbitkv_pinned_for_load_unique_bytes") == 30 * PAGE);

	/* 34 pages are free or can be: ten blocks go, and the rest of the publish finds only pins. */
	stage.now_ns += 5 * OKV_NS_PER_S;
	assert_int_equal(engine_chain(&engine, OKV_RING_PUBLISH, 2, 40).count, 34);
	assert_true(stage_metric(&stage, "orbitkv_cache_block_evictions_by_class_total{class=\"normal\"}") == 10);
	assert_true(stage_metric(&stage, "orbitkv_cache_block_evictions_by_class_total{class=\"reclaimable\"}") == 0);
	assert_true(stage_metric(&stage, "orbitkv_cache_eviction_reclaimed_bytes_total") == 10 * PAGE);
	assert_true(stage_metric(&stage, "orbitkv_cache_residence_duration_seconds_sum{reason=\"pressure\"}") ==
		    10 * 5);
	assert_true(stage_metric(&stage, "orbitkv_pool_alloc_failures_total") == 1);
	assert_true(stage_metric(&stage, "orbitkv_cache_block_evictions_still_referenced_total") == 30);
	assert_true(stage_metric(&stage, "orbitkv_save_duration_seconds_count") == 2);

	engine_lease(&engine, OKV_RING_RELEASE, first);
	assert_true(stage_metric(&stage, "orbitkv_load_duration_seconds_sum") == 5);
	assert_true(stage_metric(&stage, "orbitkv_pinned_for_load_unique_blocks") == 10);
	engine_drop(&engine);
	stage_close(&stage);
}

static void a_closed_socket_of_a_live_process_keeps_its_pins_until_it_disclaims_them(void **state)
{
	(void)state;
	struct stage stage;
	struct engine engine, again;
	struct okv_ring_reply reply;

	stage_open(&stage, 4 * MIB, NULL);
	engine_attach(&stage, &engine, 0);
	engine_chain(&engine, OKV_RING_PUBLISH, 1, 4);
	reply = engine_chain(&engine, OKV_RING_PREPARE, 1, 4);
	engine_lease(&engine, OKV_RING_RESTORE, reply.lease);
	uint64_t session = engine.session;
	engine_drop(&engine);
	STAGE_UNTIL(&stage, stage.manager->leases.count[OKV_LEASE_QUARANTINED] == 1);
	stage.now_ns += 3600 * OKV_NS_PER_S;
	stage_turn(&stage);
	assert_true(stage_metric(&stage, "orbitkv_query_reserved_bytes") == 4 * PAGE);
	assert_true(stage_metric(&stage, "orbitkv_leases{phase=\"quarantined\"}") == 1);

	engine_attach(&stage, &again, session);
	assert_true(again.session != 0);
	assert_int_equal(stage.manager->leases.held_bytes, 0);
	assert_int_equal(okv_store_counts(stage.manager->store)->pinned_blocks, 0);
	engine_drop(&again);
	stage_close(&stage);
}

static void the_death_of_a_process_frees_what_it_was_reading(void **state)
{
	(void)state;
	struct stage stage;
	struct engine engine;
	int to_parent[2], to_child[2];
	char byte = 0;

	stage_open(&stage, 4 * MIB, NULL);
	engine_attach(&stage, &engine, 0);
	engine_chain(&engine, OKV_RING_PUBLISH, 1, 4);
	assert_true(pipe(to_parent) == 0 && pipe(to_child) == 0);

	pid_t child = fork();
	if (child == 0) {
		/* The same steps as engine_attach(), but the manager's loop is turned by the other process. */
		struct engine reader;
		struct okv_session_message hello = {.type = OKV_SESSION_HELLO,
						    .hello = {.key = tiny_key(),
							      .page_bytes = PAGE,
							      .arena_bytes = ARENA_PAGES * PAGE,
							      .name = "child"}};
		uint8_t bytes[OKV_SESSION_MESSAGE_MAX];
		struct okv_ring_reply reply;
		struct okv_reason reason;

		engine_connect(&stage, &reader);
		const int fds[] = {reader.arena.fd, reader.ring_region.fd};
		if (okv_channel_send(reader.socket, bytes, okv_session_encode(&hello, bytes), fds, 2) != OKV_OK)
			_exit(1);
		while (!reader.session && engine_read_socket(&reader))
			usleep(1000);
		engine_send_chain(&reader, OKV_RING_PREPARE, 1, 4);
		while (okv_ring_client_take(&reader.ring, &reply, reader.grants, &reason) != OKV_OK)
			usleep(1000);
		okv_ring_client_give_slot(&reader.ring, reply.slot);
		engine_send(&reader, (struct okv_ring_request){.op = OKV_RING_RESTORE, .lease = reply.lease});
		while (okv_ring_client_take(&reader.ring, &reply, reader.grants, &reason) != OKV_OK)
			usleep(1000);
		if (write(to_parent[1], &byte, 1) < 0 || read(to_child[0], &byte, 1) < 0)
			_exit(1);
		close(reader.socket);
		if (write(to_parent[1], &byte, 1) < 0)
			_exit(1);
		pause();
		_exit(0);
	}
	STAGE_UNTIL(&stage, stage.manager->leases.count[OKV_LEASE_ACTIVE] == 1);
	assert_int_equal(read(to_parent[0], &byte, 1), 1);
	assert_int_equal(write(to_child[1], &byte, 1), 1);
	assert_int_equal(read(to_parent[0], &byte, 1), 1);
	STAGE_UNTIL(&stage, stage.manager->leases.count[OKV_LEASE_QUARANTINED] == 1);
	assert_int_equal(okv_store_counts(stage.manager->store)->pinned_blocks, 4);

	assert_int_equal(kill(child, SIGKILL), 0);
	STAGE_UNTIL(&stage, stage.manager->leases.held_bytes == 0);
	assert_int_equal(okv_store_counts(stage.manager->store)->pinned_blocks, 0);
	assert_int_equal(waitpid(child, NULL, 0), child);
	for (int i = 0; i < 2; i++) {
		close(to_parent[i]);
		close(to_child[i]);
	}
	engine_drop(&engine);
	stage_close(&stage);
}

static void a_publish_whose_engine_leaves_during_the_copy_is_not_stored(void **state)
{
	(void)state;
	struct stage stage;
	struct engine engine;

	stage_open(&stage, 4 * MIB, NULL);
	engine_attach(&stage, &engine, 0);
	engine_send_chain(&engine, OKV_RING_PUBLISH, 1, 8);
	/* Taken, but its end has not reached the loop: the socket closes in between, and the pages may change now. */
	while (stage.manager->jobs_submitted == 0)
		okv_loop_turn(stage.loop);
	if (stage.manager->jobs_done == 0) {
		engine_drop(&engine);
		STAGE_UNTIL(&stage, stage.manager->jobs_done == 1);
		assert_int_equal(okv_store_counts(stage.manager->store)->insertions, 0);
		assert_int_equal(okv_store_counts(stage.manager->store)->incoming_bytes, 0);
		assert_int_equal(okv_store_counts(stage.manager->store)->used_bytes, 0);
		assert_true(stage_metric(&stage, "orbitkv_save_cancelled_blocks_total") == 8);
	}
	stage_close(&stage);
}

static void a_damaged_block_is_looked_at_and_taken_out_of_service(void **state)
{
	(void)state;
	struct stage stage;
	struct engine engine;
	struct okv_ring_reply reply;

	stage_open(&stage, 4 * MIB, "pool_flip_bit=1");
	assert_true(stage_metric(&stage, "orbitkv_fault_points_armed") == 1);
	engine_attach(&stage, &engine, 0);
	engine_chain(&engine, OKV_RING_PUBLISH, 1, 3); /* the first block's bit flips */
	reply = engine_chain(&engine, OKV_RING_PREPARE, 1, 3);
	uint64_t lease = reply.lease;
	struct okv_ring_request report = {.op = OKV_RING_REPORT_DAMAGED, .lease = lease};
	assert_int_equal(engine_answer(&engine, engine_send(&engine, report)).status, OKV_ERR_BUSY); /* not granted */
	engine_lease(&engine, OKV_RING_RESTORE, lease);

	struct okv_crc crc = okv_crc_of(engine.pool.base + engine.grants[0].pool_offset, PAGE);
	assert_false(okv_crc_equal(&crc, &engine.grants[0].crc));
	assert_int_equal(engine_answer(&engine, engine_send(&engine, report)).status, OKV_OK);
	assert_int_equal(engine_answer(&engine, engine_send(&engine, report)).status, OKV_OK); /* and again */
	report.index = 1; /* a good one: the engine is wrong */
	assert_int_equal(engine_answer(&engine, engine_send(&engine, report)).status, OKV_OK);
	report.index = 3;
	assert_int_equal(engine_answer(&engine, engine_send(&engine, report)).status, OKV_ERR_INVALID);
	assert_true(stage_metric(&stage, "orbitkv_cache_blocks_damaged_total") == 1);
	assert_true(stage_metric(&stage, "orbitkv_load_failures_total") == 3);
	assert_int_equal(engine_chain(&engine, OKV_RING_QUERY, 1, 3).count, 0);
	assert_int_equal(engine_lease(&engine, OKV_RING_RELEASE, lease).status, OKV_OK);
	assert_int_equal(okv_store_counts(stage.manager->store)->used_bytes, 2 * PAGE);

	assert_int_equal(engine_chain(&engine, OKV_RING_PUBLISH, 1, 3).count, 3);
	assert_int_equal(engine_chain(&engine, OKV_RING_QUERY, 1, 3).count, 3);
	engine_drop(&engine);
	stage_close(&stage);
}

static void wrong_requests_are_refused_one_by_one(void **state)
{
	(void)state;
	struct stage stage;
	struct engine engine;
	struct okv_ring_reply reply;

	stage_open(&stage, 4 * MIB, NULL);
	engine_attach(&stage, &engine, 0);
	uint32_t slot = engine_send_chain(&engine, OKV_RING_PUBLISH, 1, 2);
	okv_ring_client_blocks(&engine.ring, slot)[1].hash.bytes[0] ^= 1; /* a block under another's name */
	reply = engine_answer(&engine, slot);
	assert_int_equal(reply.status, OKV_ERR_MISMATCH);
	assert_int_equal(reply.count, 0);
	slot = engine_send_chain(&engine, OKV_RING_PUBLISH, 1, 2);
	okv_ring_client_blocks(&engine.ring, slot)[0].arena_offset = UINT64_MAX;
	assert_int_equal(engine_answer(&engine, slot).status, OKV_ERR_INVALID);
	assert_int_equal(engine_lease(&engine, OKV_RING_RESTORE, 12345).status, OKV_ERR_AHEAD);
	assert_int_equal(engine_lease(&engine, OKV_RING_RELEASE, UINT64_MAX).status, OKV_ERR_AHEAD);
	assert_int_equal(engine_lease(&engine, OKV_RING_REPORT_DAMAGED, 7).status, OKV_ERR_AHEAD);
	assert_int_equal(engine_lease(&engine, OKV_RING_CANCEL, 0).status, OKV_ERR_STALE);
	assert_int_equal(okv_store_counts(stage.manager->store)->used_bytes, 0);
	assert_true(stage_metric(&stage, "orbitkv_save_rejections_total") == 2);
	assert_int_equal(engine_chain(&engine, OKV_RING_PUBLISH, 1, 2).count, 2); /* the session goes on */
	engine_drop(&engine);
	stage_close(&stage);
}

static void a_corrupt_ring_ends_its_session_and_no_other(void **state)
{
	(void)state;
	struct stage stage;
	struct engine good, bad;

	stage_open(&stage, 4 * MIB, NULL);
	engine_attach(&stage, &good, 0);
	for (int round = 0; round < 3; round++) {
		engine_attach(&stage, &bad, 0);
		engine_send(&bad, (struct okv_ring_request){.op = OKV_RING_QUERY, .count = 1});
		if (round == 0)
			memset(bad.ring_region.base, 0xff, 4096); /* every counter and the first requests */
		else if (round == 1)
			memset(bad.ring_region.base + 256, 0x55, 8); /* the count of replies taken */
		else
			memset(bad.ring_region.base + 320, 0, 64); /* the request itself */
		STAGE_UNTIL(&stage, !engine_read_socket(&bad));
		engine_drop(&bad);
	}
	assert_true(stage_metric(&stage, "orbitkv_session_protocol_errors_total") == 3);
	assert_true(stage_metric(&stage, "orbitkv_sessions") == 1);
	assert_int_equal(engine_chain(&good, OKV_RING_PUBLISH, 1, 2).count, 2);
	engine_drop(&good);
	stage_close(&stage);
}

/* Says `bytes` with `fds` on a fresh connection and waits to be refused. */
static struct okv_session_refuse refusal_of(struct stage *stage, const void *bytes, size_t size, const int *fds,
					    unsigned count)
{
	struct engine engine;

	engine_connect(stage, &engine);
	assert_int_equal(okv_channel_send(engine.socket, bytes, size, fds, count), OKV_OK);
	STAGE_UNTIL(stage, !engine_read_socket(&engine));
	assert_int_equal(engine.session, 0);
	engine_drop(&engine);
	return engine.refusal;
}

static void a_wrong_hello_is_refused_with_a_sentence(void **state)
{
	(void)state;
	struct stage stage;
	struct engine engine;
	struct okv_session_message hello = {.type = OKV_SESSION_HELLO,
					    .hello = {.key = tiny_key(), .page_bytes = PAGE, .arena_bytes = 4 * PAGE}};
	uint8_t bytes[OKV_SESSION_MESSAGE_MAX];
	struct okv_region arena, ring;
	struct okv_session_refuse refusal;
	size_t size = okv_session_encode(&hello, bytes);

	stage_open(&stage, 4 * MIB, NULL);
	assert_int_equal(okv_region_create("arena", 4 * PAGE, &arena, NULL), OKV_OK);
	assert_int_equal(okv_region_create("ring", okv_ring_bytes(), &ring, NULL), OKV_OK);
	const int fds[] = {arena.fd, ring.fd}, swapped[] = {ring.fd, arena.fd}, pipes[] = {0, ring.fd};

	refusal = refusal_of(&stage, bytes, size, fds, 2); /* a ring without head */
	assert_int_equal(refusal.status, OKV_ERR_PROTOCOL);
	assert_int_equal(refusal_of(&stage, bytes, size, fds, 1).status, OKV_ERR_PROTOCOL);
	assert_int_equal(refusal_of(&stage, bytes, size, NULL, 0).status, OKV_ERR_PROTOCOL);
	assert_int_equal(refusal_of(&stage, bytes, size, swapped, 2).status, OKV_ERR_INVALID);
	assert_int_equal(refusal_of(&stage, bytes, size, pipes, 2).status, OKV_ERR_INVALID);
	bytes[4] = 9;
	refusal = refusal_of(&stage, bytes, size, fds, 2);
	assert_int_equal(refusal.status, OKV_ERR_VERSION);
	assert_non_null(strstr(refusal.text, "version 9"));
	assert_int_equal(refusal_of(&stage, "GET / HTTP/1.1", 14, NULL, 0).status, OKV_ERR_PROTOCOL);
	hello.type = OKV_SESSION_BYE;
	assert_int_equal(refusal_of(&stage, bytes, okv_session_encode(&hello, bytes), NULL, 0).status,
			 OKV_ERR_PROTOCOL);

	/* A page that the pool could hold only a few of. */
	hello.type = OKV_SESSION_HELLO;
	hello.hello.key.layers = 4 * 128;
	hello.hello.page_bytes = 128 * PAGE;
	hello.hello.arena_bytes = 128 * PAGE;
	refusal = refusal_of(&stage, bytes, okv_session_encode(&hello, bytes), fds, 2);
	assert_int_equal(refusal.status, OKV_ERR_NO_SPACE);
	assert_non_null(strstr(refusal.text, "--pool-size"));

	/* More descriptors than a HELLO has; and one that says nothing for five seconds. */
	engine_connect(&stage, &engine);
	const int many[] = {0, 0, 0, 0};
	assert_int_equal(okv_channel_send(engine.socket, bytes, size, many, 4), OKV_OK);
	STAGE_UNTIL(&stage, !engine_read_socket(&engine));
	engine_drop(&engine);
	engine_connect(&stage, &engine);
	STAGE_UNTIL(&stage, !okv_list_is_empty(&stage.manager->sessions));
	stage.now_ns += 6 * OKV_NS_PER_S;
	STAGE_UNTIL(&stage, !engine_read_socket(&engine));
	engine_drop(&engine);
	assert_true(okv_list_is_empty(&stage.manager->sessions));
	okv_region_close(&arena);
	okv_region_close(&ring);
	stage_close(&stage);
}

static void too_many_engines_are_refused_and_the_others_stay(void **state)
{
	(void)state;
	struct stage stage;
	static struct engine engines[OKV__SESSIONS_MAX + 1];

	stage_open(&stage, 4 * MIB, NULL);
	for (int i = 0; i < OKV__SESSIONS_MAX; i++) {
		engine_attach(&stage, &engines[i], 0);
		assert_true(engines[i].session != 0);
	}
	engine_attach(&stage, &engines[OKV__SESSIONS_MAX], 0);
	assert_int_equal(engines[OKV__SESSIONS_MAX].session, 0);
	assert_int_equal(engines[OKV__SESSIONS_MAX].refusal.status, OKV_ERR_BUSY);
	assert_true(stage_metric(&stage, "orbitkv_sessions") == OKV__SESSIONS_MAX);
	for (int i = 0; i <= OKV__SESSIONS_MAX; i++)
		engine_drop(&engines[i]);
	STAGE_UNTIL(&stage, okv_list_is_empty(&stage.manager->sessions));
	stage_close(&stage);
}

static void expect_http(struct stage *stage, const char *request, const char *first, const char *second)
{
	char *text = stage_http(stage, request);

	if (!strstr(text, first) || !strstr(text, second))
		fail_msg("%s: %s", request, text);
	free(text);
}

static void the_admin_interface_answers_what_its_page_says(void **state)
{
	(void)state;
	struct stage stage;
	struct engine engine;

	stage_open(&stage, 4 * MIB, NULL);
	engine_attach(&stage, &engine, 0);
	expect_http(&stage, "GET /health", "200 OK", "\r\n\r\nok\n");
	expect_http(&stage, "GET /instances", "200 OK", "\"name\":\"stand-in\"");
	engine_send_chain(&engine, OKV_RING_PUBLISH, 1, 40);
	expect_http(&stage, "POST /cache/sync", "200 OK", "{\"local_flush_complete\":true}");
	assert_int_equal(okv_store_counts(stage.manager->store)->insertions, 40);

	uint64_t lease = engine_chain(&engine, OKV_RING_PREPARE, 1, 3).lease;
	stage.now_ns += 100 * OKV_NS_PER_S;
	expect_http(
		&stage, "POST /cache/memory/cleanup", "200 OK",
		"{\"evicted_blocks\":37,\"evicted_bytes\":606208,\"reclaimed_bytes\":606208,\"still_referenced_blocks\":3}");
	engine_lease(&engine, OKV_RING_RELEASE, lease);
	expect_http(&stage, "POST /cache/memory/cleanup", "200 OK", "\"evicted_blocks\":3,");
	assert_true(stage_metric(&stage, "orbitkv_pool_used_bytes") == 0);
	assert_true(stage_metric(&stage, "orbitkv_pool_capacity_bytes") == 4 * MIB);
	assert_true(stage_metric(&stage, "orbitkv_cache_block_evictions_total") == 40);
	assert_true(stage_metric(&stage, "orbitkv_cache_residence_duration_seconds_sum{reason=\"cleanup\"}") ==
		    40 * 100);
	assert_true(stage_metric(&stage, "orbitkv_cache_residence_duration_seconds_count{reason=\"pressure\"}") == 0);
	assert_true(stage_metric(&stage, "orbitkv_inflight_bytes") == 0);
	expect_http(&stage, "GET /cache/sync", "405", "Allow: POST");
	expect_http(&stage, "GET /nowhere", "404", "/cache/memory/cleanup");
	engine_drop(&engine);
	STAGE_UNTIL(&stage, okv_list_is_empty(&stage.manager->sessions));
	expect_http(&stage, "GET /instances", "200 OK", "{\"instances\":[]}");
	stage_close(&stage);
}

static void a_manager_stops_under_load_with_engines_attached(void **state)
{
	(void)state;
	struct stage stage;
	struct engine engines[3];

	stage_open(&stage, 4 * MIB, NULL);
	for (int i = 0; i < 3; i++) {
		engine_attach(&stage, &engines[i], 0);
		engine_chain(&engines[i], OKV_RING_PUBLISH, 1, 4);
		engine_lease(&engines[i], OKV_RING_RESTORE, engine_chain(&engines[i], OKV_RING_PREPARE, 1, 4).lease);
		for (uint32_t k = 0; k < 8; k++)
			engine_send_chain(&engines[i], OKV_RING_PUBLISH, 10 + k, 30);
	}
	okv_loop_turn(stage.loop);
	stage_close(&stage);
	for (int i = 0; i < 3; i++) {
		assert_false(engine_read_socket(&engines[i]));
		engine_drop(&engines[i]);
	}
}

static void what_a_manager_cannot_do_is_refused_at_its_start(void **state)
{
	(void)state;
	uint64_t now_ns = 0;
	struct okv_loop *loop;
	struct okv_manager *manager;
	struct okv_reason reason;
	struct okv_manager_options good = {.socket_path = "okv-refused.sock",
					   .pool_bytes = MIB,
					   .http_address = "127.0.0.1",
					   .listen_address = ""},
				   bad;

	assert_int_equal(okv_loop_create(okv_clock_virtual(&now_ns), &loop, &reason), OKV_OK);
	bad = good;
	bad.http_address = "0.0.0.0";
	assert_int_equal(okv_manager_create(loop, &bad, &manager, &reason), OKV_ERR_INVALID);
	assert_non_null(strstr(reason.text, "loopback"));
	bad = good;
	bad.faults = "what";
	assert_int_equal(okv_manager_create(loop, &bad, &manager, &reason), OKV_ERR_INVALID);
	bad = good;
	bad.pool_bytes = (uint64_t)900 << 40;
	assert_int_equal(okv_manager_create(loop, &bad, &manager, &reason), OKV_ERR_NO_SPACE);
	assert_int_not_equal(access(good.socket_path, F_OK), 0); /* nothing is left behind */
	okv_loop_destroy(loop);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(what_is_published_is_prepared_and_read_byte_for_byte),
		cmocka_unit_test(a_second_publish_of_the_same_blocks_copies_nothing),
		cmocka_unit_test(an_engine_of_another_user_is_refused),
		cmocka_unit_test(a_block_of_another_key_is_a_miss),
		cmocka_unit_test(a_full_pool_of_pinned_blocks_takes_what_fits_and_says_so),
		cmocka_unit_test(of_blocks_that_were_used_together_the_last_are_evicted_first),
		cmocka_unit_test(of_a_prefix_that_was_published_in_pieces_the_last_are_evicted_first),
		cmocka_unit_test(room_for_new_blocks_is_not_made_of_those_before_them),
		cmocka_unit_test(who_reads_the_end_of_a_prefix_uses_its_beginning),
		cmocka_unit_test(the_pool_and_its_leases_are_shown_as_they_are),
		cmocka_unit_test(a_closed_socket_of_a_live_process_keeps_its_pins_until_it_disclaims_them),
		cmocka_unit_test(the_death_of_a_process_frees_what_it_was_reading),
		cmocka_unit_test(a_publish_whose_engine_leaves_during_the_copy_is_not_stored),
		cmocka_unit_test(a_damaged_block_is_looked_at_and_taken_out_of_service),
		cmocka_unit_test(wrong_requests_are_refused_one_by_one),
		cmocka_unit_test(a_corrupt_ring_ends_its_session_and_no_other),
		cmocka_unit_test(a_wrong_hello_is_refused_with_a_sentence),
		cmocka_unit_test(too_many_engines_are_refused_and_the_others_stay),
		cmocka_unit_test(the_admin_interface_answers_what_its_page_says),
		cmocka_unit_test(a_manager_stops_under_load_with_engines_attached),
		cmocka_unit_test(what_a_manager_cannot_do_is_refused_at_its_start),
	};
	return cmocka_run_group_tests_name("manager", tests, NULL, NULL);
}
