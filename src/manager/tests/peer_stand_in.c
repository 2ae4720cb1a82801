#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <poll.h>

#include <cmocka.h>

#include "peer_stand_in.h"
#include "tiny_key.h"

struct okv_loop *test_loop(void)
{
	struct okv_loop *loop;

	assert_int_equal(okv_loop_create(okv_clock_boottime(), &loop, NULL), OKV_OK);
	return loop;
}

void turn(struct okv_loop *loop)
{
	okv_loop_turn(loop);
	poll(NULL, 0, 1);
}

void turn_for_ms(struct okv_loop *loop, unsigned ms)
{
	uint64_t end = okv_clock_now(okv_clock_boottime()) + ms * OKV_NS_PER_MS;

	while (okv_clock_now(okv_clock_boottime()) < end)
		turn(loop);
}

void node_open(struct node *node, struct okv_loop *loop, uint16_t peer_port, uint16_t second_port, const char *faults,
	       unsigned deadline_ms)
{
	char name[2][32];
	const char *const names[] = {name[0], name[1]};
	struct okv_reason reason;

	memset(node, 0, sizeof(*node));
	node->loop = loop;
	snprintf(name[0], sizeof(name[0]), "127.0.0.1:%u", peer_port);
	snprintf(name[1], sizeof(name[1]), "127.0.0.1:%u", second_port);
	assert_int_equal(okv_store_create(64 << 20, &node->store, &reason), OKV_OK);
	node->metrics = okv_metrics_create();
	assert_int_equal(okv_faults_parse(faults, &node->faults, NULL), OKV_OK);
	struct okv_peers_options options = {
		.loop = loop,
		.store = node->store,
		.metrics = node->metrics,
		.faults = &node->faults,
		.incarnation = okv_uuid_random(),
		.listen_address = "127.0.0.1",
		.peers = names,
		.peer_count = (peer_port != 0 ? 1U : 0U) + (second_port != 0 ? 1U : 0U),
		.deadline_ns = deadline_ms * OKV_NS_PER_MS,
	};
	if (okv__peers_create(&options, &node->peers, &reason) != OKV_OK)
		fail_msg("%s", reason.text);
}

static void drained(void *context)
{
	((struct node *)context)->is_drained = true;
}

void node_close(struct node *node)
{
	okv__peers_shutdown(node->peers, drained, node);
	UNTIL(node->loop, node->is_drained);
	assert_int_equal(okv_store_counts(node->store)->pinned_blocks, 0);
	assert_int_equal(okv_store_counts(node->store)->incoming_bytes, 0);
	okv__peers_destroy(node->peers);
	okv_store_destroy(node->store);
	okv_metrics_destroy(node->metrics);
}

struct okv_materialisation_key test_key(void)
{
	struct okv_materialisation_key key = tiny_key();

	key.page_tokens = 16;
	return key;
}

struct okv_block_record chain_record(uint32_t seed, uint32_t i)
{
	struct okv_materialisation_key key = test_key();
	struct okv_block_record record = {
		.key_digest = okv_key_digest(&key),
		.token_count = 16,
		.length = BLOCK_BYTES,
	};

	memcpy(record.hash.bytes, &seed, sizeof(seed));
	memcpy(record.hash.bytes + 4, &i, sizeof(i));
	if (i > 0) {
		record.parent = record.hash;
		i--;
		memcpy(record.parent.bytes + 4, &i, sizeof(i));
	}
	return record;
}

static uint8_t chain_byte(uint32_t seed, uint32_t block, uint32_t at)
{
	return (uint8_t)(seed * 31 + block * 7 + at * 3 + (at >> 8));
}

void put_chain(struct node *node, uint32_t seed, uint32_t count)
{
	for (uint32_t i = 0; i < count; i++) {
		struct okv_block_record record = chain_record(seed, i);
		struct okv_block *block;

		assert_int_equal(okv_store_reserve(node->store, &record, OKV_CLASS_NORMAL, &block), OKV_OK);
		for (uint32_t at = 0; at < BLOCK_BYTES; at++)
			block->bytes[at] = chain_byte(seed, i, at);
		struct okv_crc crc = okv_crc_of(block->bytes, BLOCK_BYTES);
		okv_store_commit(node->store, block, &crc);
		okv_store_unpin(node->store, block);
	}
}

static void done(void *context, enum okv_status status, struct okv_block *const *blocks, uint32_t count,
		 uint64_t remote_bytes)
{
	struct outcome *outcome = context;

	assert_false(outcome->is_done);
	assert_int_equal(count, outcome->count);
	outcome->is_done = true;
	outcome->status = status;
	outcome->remote_bytes = remote_bytes;
	memcpy(outcome->block, blocks, count * sizeof(blocks[0]));
}

void start_fetch_of(struct node *node, const struct okv_materialisation_key *key, uint32_t seed, uint32_t count,
		    struct outcome *outcome)
{
	struct okv_block_record wanted[CHAIN_BLOCKS_MAX];

	memset(outcome, 0, sizeof(*outcome));
	for (uint32_t i = 0; i < count; i++) {
		wanted[i] = chain_record(seed, i);
		wanted[i].key_digest = okv_key_digest(key);
	}
	outcome->node = node;
	outcome->count = count;
	outcome->id = okv__peers_fetch(node->peers, key, wanted, count, done, outcome);
	assert_int_not_equal(outcome->id, 0);
	assert_false(outcome->is_done);
}

void start_fetch(struct node *node, uint32_t seed, uint32_t count, struct outcome *outcome)
{
	struct okv_materialisation_key key = test_key();

	start_fetch_of(node, &key, seed, count, outcome);
}

void end_fetch(struct outcome *outcome, uint32_t seed)
{
	UNTIL(outcome->node->loop, outcome->is_done);
	while (outcome->leading < outcome->count && outcome->block[outcome->leading])
		outcome->leading++;
	for (uint32_t i = 0; i < outcome->count; i++) {
		const struct okv_block *block = outcome->block[i];

		if (!block)
			continue;
		outcome->brought++;
		assert_int_equal(block->class, OKV_CLASS_RECLAIMABLE);
		for (uint32_t at = 0; at < BLOCK_BYTES; at++)
			assert_int_equal(block->bytes[at], chain_byte(seed, i, at));
		okv_store_unpin(outcome->node->store, outcome->block[i]);
	}
}

void fetch_chain(struct node *node, uint32_t seed, uint32_t count, struct outcome *outcome)
{
	start_fetch(node, seed, count, outcome);
	end_fetch(outcome, seed);
}

bool is_connected(const struct node *node)
{
	for (size_t i = 0; i < node->peers->remote_count; i++)
		if (!node->peers->remote[i].is_up)
			return false;
	return true;
}

bool is_quiet(const struct node *node)
{
	const struct okv_source_counts *source = okv_source_counts(node->peers->source);
	const struct okv_requester_counts *requester = okv_requester_counts(node->peers->requester);

	return source->sessions == 0 && source->reserved_bytes == 0 && requester->transfers == 0 &&
	       requester->wants == 0 && requester->fetches == 0 && okv_list_is_empty(&node->peers->reads) &&
	       okv_store_counts(node->store)->pinned_blocks == 0;
}
