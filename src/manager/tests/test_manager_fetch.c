/* What an engine asks for and the pool lacks: a manager fetches it from a peer, on one loop with it. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <string.h>

#include <cmocka.h>

#include "engine_stand_in.h"
#include "peer_stand_in.h"

enum { MIB = 1 << 20, BLOCKS = 20 };

struct cast {
	struct stage stage;
	struct node peer;
	struct engine engine;
};

/* Puts the engine's chain into the peer's store, as if an engine had published it there. */
static void fill_peer(struct cast *cast, uint32_t seed)
{
	struct okv_materialisation_key key = tiny_key();
	struct okv_hash parent = {{0}};

	for (uint32_t i = 0; i < BLOCKS; i++) {
		const struct okv_ring_block named = engine_block(seed, i, &parent);
		const struct okv_block_record record = {.hash = named.hash,
							.parent = named.parent,
							.lineage = named.lineage,
							.key_digest = okv_key_digest(&key),
							.token_count = TOKENS,
							.length = PAGE};
		struct okv_block *block;

		assert_int_equal(okv_store_reserve(cast->peer.store, &record, OKV_CLASS_NORMAL, &block), OKV_OK);
		memset(block->bytes, engine_byte(seed, i), PAGE);
		struct okv_crc crc = okv_crc_of(block->bytes, PAGE);
		okv_store_commit(cast->peer.store, block, &crc);
		okv_store_unpin(cast->peer.store, block);
		parent = named.hash;
	}
}

static void cast_open(struct cast *cast, const char *peer_faults)
{
	stage_prepare(&cast->stage);
	node_open(&cast->peer, cast->stage.loop, 0, 0, peer_faults, 3000);
	fill_peer(cast, 1);
	stage_start(&cast->stage, 4 * MIB, NULL, okv__peers_port(cast->peer.peers));
	engine_attach(&cast->stage, &cast->engine, 0);
	STAGE_UNTIL(&cast->stage, cast->stage.manager->peers->remote[0].is_up);
}

static const struct okv_requester_counts *counts(const struct cast *cast)
{
	return okv_requester_counts(cast->stage.manager->peers->requester);
}

static void what_a_peer_has_is_brought_and_counted_as_remote(void **state)
{
	(void)state;
	struct cast cast;
	struct okv_ring_reply reply;

	cast_open(&cast, "");
	assert_int_equal(engine_chain(&cast.engine, OKV_RING_PUBLISH, 1, 5).count, 5);
	reply = engine_chain(&cast.engine, OKV_RING_PREPARE, 1, BLOCKS + 3);
	assert_int_equal(reply.status, OKV_OK);
	assert_int_equal(reply.count, BLOCKS);
	assert_int_equal(reply.remote_bytes, (BLOCKS - 5) * PAGE);
	assert_true(stage_metric(&cast.stage, "orbitkv_cache_tier_block_requests_total{tier=\"ram\"}") == 5);
	assert_true(stage_metric(&cast.stage, "orbitkv_cache_tier_block_requests_total{tier=\"remote\"}") ==
		    BLOCKS - 5);
	assert_true(stage_metric(&cast.stage, "orbitkv_cache_tier_block_requests_total{tier=\"miss\"}") == 3);
	assert_true(stage_metric(&cast.stage, "orbitkv_cache_resident_blocks{class=\"reclaimable\"}") == BLOCKS - 5);
	assert_true(stage_metric(&cast.stage, "orbitkv_remote_fetch_bytes_total") == (BLOCKS - 5) * PAGE);

	uint64_t lease = reply.lease;
	reply = engine_lease(&cast.engine, OKV_RING_RESTORE, lease);
	for (uint32_t i = 0; i < BLOCKS; i++)
		assert_int_equal(cast.engine.pool.base[cast.engine.grants[i].pool_offset], engine_byte(1, i));
	engine_lease(&cast.engine, OKV_RING_RELEASE, lease);
	engine_drop(&cast.engine);
	node_close(&cast.peer);
	stage_close(&cast.stage);
}

/* Time stands still, so nothing here ends by a deadline. */
static void an_engine_that_leaves_during_a_prepare_ends_its_fetch(void **state)
{
	(void)state;
	struct cast cast;

	cast_open(&cast, "mover_stall_ms=60000");
	engine_send_chain(&cast.engine, OKV_RING_PREPARE, 1, BLOCKS);
	STAGE_UNTIL(&cast.stage, counts(&cast)->reading == 1);
	assert_true(stage_metric(&cast.stage, "orbitkv_leases{phase=\"preparing\"}") == 1);
	assert_true(stage_metric(&cast.stage, "orbitkv_query_reserved_bytes") == BLOCKS * PAGE);
	engine_drop(&cast.engine);
	STAGE_UNTIL(&cast.stage, counts(&cast)->fetches == 0);
	assert_int_equal(cast.stage.manager->leases.held_bytes, 0);
	assert_int_equal(counts(&cast)->reading, 1); /* the bytes are useful, and their place is the mover's */
	STAGE_UNTIL(&cast.stage, okv_list_is_empty(&cast.stage.manager->sessions));
	node_close(&cast.peer);
	stage_close(&cast.stage);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(what_a_peer_has_is_brought_and_counted_as_remote),
		cmocka_unit_test(an_engine_that_leaves_during_a_prepare_ends_its_fetch),
	};
	return cmocka_run_group_tests_name("manager_fetch", tests, NULL, NULL);
}
