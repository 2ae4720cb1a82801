/* Two and three managers over loopback: what is fetched is what was put, whatever the other side does in between. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <arpa/inet.h>
#include <errno.h>
#include <signal.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cmocka.h>

#include "okv/base/clock.h"
#include "peer_stand_in.h"

/* Two nodes, the second of which reads from the first. */
struct pair {
	struct okv_loop *loop;
	struct node source, reader;
};

static void pair_open(struct pair *pair, const char *source_faults, unsigned deadline_ms)
{
	pair->loop = test_loop();
	node_open(&pair->source, pair->loop, 0, 0, source_faults, deadline_ms);
	node_open(&pair->reader, pair->loop, okv__peers_port(pair->source.peers), 0, "", deadline_ms);
	UNTIL(pair->loop, is_connected(&pair->reader));
}

static void pair_close(struct pair *pair)
{
	UNTIL(pair->loop, is_quiet(&pair->source) && is_quiet(&pair->reader));
	node_close(&pair->reader);
	node_close(&pair->source);
	okv_loop_destroy(pair->loop);
}

static const struct okv_requester_counts *counts(const struct node *node)
{
	return okv_requester_counts(node->peers->requester);
}

/* `line` without its prefix stands in the node's metrics. */
static void expect_metric(const struct node *node, const char *line)
{
	struct okv_buf text = {0};
	char whole[160];

	snprintf(whole, sizeof(whole), "orbitkv_%s\n", line);
	okv_metrics_render(node->metrics, &text);
	okv_buf_append(&text, "", 1);
	if (!strstr((const char *)text.data, whole))
		fail_msg("%s is not in\n%s", line, text.data);
	okv_buf_done(&text);
}

static void a_chain_is_fetched_byte_for_byte_and_released(void **state)
{
	(void)state;
	struct pair pair;
	struct outcome outcome;

	pair_open(&pair, "", 3000);
	put_chain(&pair.source, 1, 40);
	fetch_chain(&pair.reader, 1, 40, &outcome);
	assert_int_equal(outcome.status, OKV_OK);
	assert_int_equal(outcome.leading, 40);
	assert_int_equal(outcome.remote_bytes, 40 * BLOCK_BYTES);
	UNTIL(pair.loop, is_quiet(&pair.source) && is_quiet(&pair.reader));
	assert_int_equal(okv_metric_value(pair.reader.peers->metrics.fetch_bytes), 40 * BLOCK_BYTES);
	assert_int_equal(okv_metric_value(pair.reader.peers->metrics.completions), 0);
	assert_int_equal(okv_metric_value(pair.source.peers->metrics.lock_active), 0);
	assert_int_equal(okv_metric_value(pair.source.peers->metrics.authorised), 1);
	static const char *const stages[] = {"authorization", "allocation", "read", "release"};
	for (int i = 0; i < 4; i++) { /* one of each */
		char line[120];

		snprintf(line, sizeof(line), "remote_stage_duration_seconds_count{stage=\"%s\",status=\"ok\"} 1",
			 stages[i]);
		expect_metric(&pair.reader, line);
	}
	expect_metric(&pair.reader, "remote_fetch_plan_segments_sum 1");
	expect_metric(&pair.reader, "remote_fetch_total{status=\"ok\"} 1");
	expect_metric(&pair.reader, "remote_fetch_duration_seconds_count 1");
	pair_close(&pair);
}

/* What is counted in the cores, each with a number of its own: none may be shown under another's name. */
static void every_count_of_the_cores_is_shown_under_its_name(void **state)
{
	(void)state;
	struct pair pair;

	pair_open(&pair, "", 3000);
	struct okv_peers *peers = pair.reader.peers;
	const struct okv_source_counts *source = okv_source_counts(peers->source);
	const struct okv_requester_counts *requester = okv_requester_counts(peers->requester);
	const struct okv_source_counts source_before = *source;
	const struct okv_requester_counts requester_before = *requester;
	const struct okv_source_counts of_source = {
		.active_blocks = 101,
		.reserved_bytes = 102,
		.overdue_sessions = 103,
		.timeouts = 104,
		.rejections_bytes = 105,
		.rejections_sessions = 106,
		.authorised = 107,
		.readers_gone = 108,
	};
	const struct okv_requester_counts of_requester = {
		.completions_outstanding = 201,
		.completion_retries = 202,
		.completion_rejections = 203,
		.peers_gone = 204,
		.fetched_bytes = 205,
		.coalesced_wants = 206,
		.replans = 207,
		.bad_crc = 208,
		.bad_length = 209,
		.bad_identity = 210,
	};
	static const char *const lines[] = {
		"transfer_lock_active 101",
		"transfer_reserved_bytes 102",
		"transfer_expired_sessions 103",
		"transfer_lock_timeouts_total 104",
		"transfer_lock_rejections_total{reason=\"bytes\"} 105",
		"transfer_lock_rejections_total{reason=\"sessions\"} 106",
		"transfer_locks_total 107",
		"transfer_readers_gone_total 108",
		"transfer_completion_outstanding 201",
		"transfer_completion_retries_total 202",
		"transfer_completion_rejections_total 203",
		"transfer_completion_peers_gone_total 204",
		"remote_fetch_bytes_total 205",
		"query_coalesced_reads_total 206",
		"remote_fetch_replans_total 207",
		"remote_verification_failures_total{reason=\"crc\"} 208",
		"remote_verification_failures_total{reason=\"length\"} 209",
		"remote_verification_failures_total{reason=\"identity\"} 210",
		"peers_connected 1",
	};

	/* The cores give their counts to read only; this test is who may write them. */
	memcpy((void *)(uintptr_t)source, &of_source, sizeof(of_source));
	memcpy((void *)(uintptr_t)requester, &of_requester, sizeof(of_requester));
	okv__peers_act(peers);
	for (size_t i = 0; i < sizeof(lines) / sizeof(lines[0]); i++)
		expect_metric(&pair.reader, lines[i]);
	memcpy((void *)(uintptr_t)source, &source_before, sizeof(source_before));
	memcpy((void *)(uintptr_t)requester, &requester_before, sizeof(requester_before));
	pair_close(&pair);
}

static void a_long_chain_takes_several_authorisations(void **state)
{
	(void)state;
	struct pair pair;
	struct outcome outcome;

	pair_open(&pair, "", 10000);
	put_chain(&pair.source, 1, 260);
	fetch_chain(&pair.reader, 1, 280, &outcome);
	assert_int_equal(outcome.status, OKV_OK); /* nobody has the last twenty */
	assert_int_equal(outcome.leading, 260);
	assert_int_equal(okv_source_counts(pair.source.peers->source)->authorised, 3);
	pair_close(&pair);
}

static void received_blocks_are_served_to_others(void **state)
{
	(void)state;
	struct okv_loop *loop = test_loop();
	struct node first, second, third;
	struct outcome outcome;

	node_open(&first, loop, 0, 0, "", 3000);
	node_open(&second, loop, okv__peers_port(first.peers), 0, "", 3000);
	node_open(&third, loop, okv__peers_port(second.peers), 0, "", 3000);
	UNTIL(loop, is_connected(&second) && is_connected(&third));
	put_chain(&first, 5, 10);
	fetch_chain(&second, 5, 10, &outcome);
	UNTIL(loop, is_quiet(&first) && is_quiet(&second));
	node_close(&first);
	fetch_chain(&third, 5, 10, &outcome);
	assert_int_equal(outcome.leading, 10);
	node_close(&third);
	UNTIL(loop, is_quiet(&second));
	node_close(&second);
	okv_loop_destroy(loop);
}

static void a_chain_is_put_together_from_two_owners(void **state)
{
	(void)state;
	struct okv_loop *loop = test_loop();
	struct node first, second, reader;
	struct outcome outcome;

	node_open(&first, loop, 0, 0, "", 3000);
	node_open(&second, loop, 0, 0, "", 3000);
	node_open(&reader, loop, okv__peers_port(first.peers), okv__peers_port(second.peers), "", 3000);
	UNTIL(loop, is_connected(&reader));
	put_chain(&first, 5, 7);
	put_chain(&second, 5, 30);
	okv_store_condemn(second.store, okv_store_find(second.store, &(struct okv_hash){{5}})); /* its first is gone */
	fetch_chain(&reader, 5, 30, &outcome);
	assert_int_equal(outcome.leading, 30);
	assert_int_equal(okv_source_counts(first.peers->source)->authorised, 1);
	assert_int_equal(okv_source_counts(second.peers->source)->authorised, 1);
	expect_metric(&reader, "remote_fetch_plan_segments_sum 2");
	expect_metric(&reader, "remote_fetch_plan_segments_count 1");
	expect_metric(&reader, "remote_fetch_plan_completed_segments_sum 2");
	UNTIL(loop, is_quiet(&first) && is_quiet(&second) && is_quiet(&reader));
	node_close(&reader);
	node_close(&first);
	node_close(&second);
	okv_loop_destroy(loop);
}

static void equal_fetches_share_one_read_and_each_has_its_pins(void **state)
{
	(void)state;
	struct pair pair;
	struct outcome outcome[3];

	pair_open(&pair, "", 3000);
	put_chain(&pair.source, 1, 20);
	for (int i = 0; i < 3; i++)
		start_fetch(&pair.reader, 1, 20, &outcome[i]);
	okv__peers_cancel(pair.reader.peers, outcome[0].id);
	assert_false(outcome[0].is_done); /* never from inside */
	for (int i = 0; i < 3; i++)
		end_fetch(&outcome[i], 1);
	assert_int_equal(outcome[0].status, OKV_ERR_CANCELLED);
	assert_int_equal(outcome[1].leading, 20);
	assert_int_equal(outcome[2].leading, 20);
	assert_int_equal(okv_metric_value(pair.reader.peers->metrics.fetch_bytes), 20 * BLOCK_BYTES);
	expect_metric(&pair.reader, "query_coalesced_reads_total 40");
	pair_close(&pair);
}

static void another_key_is_a_miss_with_a_reason(void **state)
{
	(void)state;
	struct pair pair;
	struct outcome outcome;
	struct okv_materialisation_key key = test_key(), other = test_key();

	pair_open(&pair, "", 3000);
	put_chain(&pair.source, 1, 5);
	okv__peers_add_key(pair.source.peers, &key);
	okv__peers_add_key(pair.source.peers, &key);
	other.rope_theta = 500000;
	start_fetch_of(&pair.reader, &other, 1, 5, &outcome);
	end_fetch(&outcome, 1);
	assert_int_equal(outcome.status, OKV_ERR_MISMATCH);
	assert_int_equal(outcome.brought, 0);
	assert_int_equal(counts(&pair.reader)->refusals[OKV_PEER_REFUSED_KEY], 1);
	pair_close(&pair);
}

static void without_a_connection_nothing_is_waited_for(void **state)
{
	(void)state;
	struct okv_loop *loop = test_loop();
	struct node node;
	struct okv_materialisation_key key = test_key();
	struct okv_block_record wanted = chain_record(1, 0);

	node_open(&node, loop, 1, 0, "", 3000); /* nobody listens on port 1 */
	turn_for_ms(loop, 20);
	assert_int_equal(okv__peers_fetch(node.peers, &key, &wanted, 1, NULL, NULL), 0);
	node_close(&node);
	okv_loop_destroy(loop);
}

static void a_manager_leaves_itself_out_of_its_peers(void **state)
{
	(void)state;
	struct okv_loop *loop = test_loop();
	struct node probe, node;

	node_open(&probe, loop, 0, 0, "", 3000);
	uint16_t port = okv__peers_port(probe.peers);
	node_close(&probe);
	memset(&node, 0, sizeof(node));
	node_open(&node, loop, port, 0, "", 3000);
	/* The port is free again: let the node listen there and meet itself. */
	okv__peers_stop_listening(node.peers);
	struct okv_reason reason;
	assert_int_equal(okv__peers_listen(node.peers, "127.0.0.1", port, &reason), OKV_OK);
	UNTIL(loop, node.peers->remote[0].is_self);
	turn_for_ms(loop, 150);
	assert_false(node.peers->remote[0].is_up);
	assert_int_equal(node.peers->inbound_count, 0);
	node_close(&node);
	okv_loop_destroy(loop);
}

/* ---- what can go wrong at the source ---- */

static void a_flipped_bit_is_refused_and_counted(void **state)
{
	(void)state;
	struct pair pair;
	struct outcome outcome;

	pair_open(&pair, "pool_flip_bit_on_authorise=1", 3000);
	put_chain(&pair.source, 1, 9);
	fetch_chain(&pair.reader, 1, 9, &outcome);
	assert_int_equal(outcome.status, OKV_ERR_DAMAGED);
	assert_int_equal(outcome.leading, 4);
	expect_metric(&pair.reader, "remote_fetch_total{status=\"error\"} 1");
	assert_int_equal(outcome.brought, 8); /* those behind the damaged one are sound, and of use later */
	assert_int_equal(okv_metric_value(pair.reader.peers->metrics.verification_failures[0]), 1);
	assert_null(okv_store_peek(pair.reader.store, &(struct okv_hash){{1, 0, 0, 0, 4}}));
	pair_close(&pair);
}

static void a_wrong_length_is_refused(void **state)
{
	(void)state;
	struct pair pair;
	struct outcome outcome;

	pair_open(&pair, "mover_short=1", 3000);
	put_chain(&pair.source, 1, 9);
	fetch_chain(&pair.reader, 1, 9, &outcome);
	assert_int_equal(outcome.status, OKV_ERR_PROTOCOL);
	assert_int_equal(outcome.brought, 0);
	pair_close(&pair);
}

/* Puts a block into the source that has the name of block 0 of chain 1, and is another one. */
static void put_impostor(struct node *source, const struct okv_block_record *record)
{
	struct okv_block *block;

	okv_store_clean(source->store);
	assert_int_equal(okv_store_reserve(source->store, record, OKV_CLASS_NORMAL, &block), OKV_OK);
	memset(block->bytes, 1, record->length);
	struct okv_crc crc = okv_crc_of(block->bytes, record->length);
	okv_store_commit(source->store, block, &crc);
	okv_store_unpin(source->store, block);
}

static void another_identity_or_length_under_the_same_name_is_refused_unread(void **state)
{
	(void)state;
	struct pair pair;
	struct outcome outcome;
	struct okv_block_record impostor[4];

	pair_open(&pair, "", 3000);
	for (int i = 0; i < 4; i++)
		impostor[i] = chain_record(1, 0);
	impostor[0].parent.bytes[0] ^= 1;
	impostor[1].lineage.bytes[0] ^= 1;
	impostor[2].token_count--;
	impostor[3].length /= 2;
	for (int i = 0; i < 4; i++) {
		put_impostor(&pair.source, &impostor[i]);
		fetch_chain(&pair.reader, 1, 1, &outcome);
		assert_int_equal(outcome.brought, 0);
		UNTIL(pair.loop, is_quiet(&pair.reader) && is_quiet(&pair.source));
	}
	assert_int_equal(okv_source_counts(pair.source.peers->source)->authorised, 4);
	expect_metric(&pair.reader, "remote_verification_failures_total{reason=\"identity\"} 3");
	expect_metric(&pair.reader, "remote_verification_failures_total{reason=\"length\"} 1");
	expect_metric(&pair.reader, "remote_fetch_bytes_total 0");
	put_chain(&pair.source, 2, 1);
	fetch_chain(&pair.reader, 2, 1, &outcome); /* the peer is still asked for what else it has */
	assert_int_equal(outcome.leading, 1);
	pair_close(&pair);
}

static void a_reset_in_the_middle_keeps_what_was_whole(void **state)
{
	(void)state;
	struct pair pair;
	struct outcome outcome;

	pair_open(&pair, "mover_cut_after_bytes=300000", 3000);
	put_chain(&pair.source, 1, 9);
	fetch_chain(&pair.reader, 1, 9, &outcome);
	assert_int_equal(outcome.status, OKV_ERR_DISCONNECTED);
	assert_true(outcome.leading <= 4);
	pair_close(&pair);
}

static void a_source_that_falls_silent_costs_the_deadline_and_no_more(void **state)
{
	(void)state;
	struct pair pair;
	struct outcome outcome;
	uint64_t begun = okv_clock_now(okv_clock_boottime());

	pair_open(&pair, "mover_stall_ms=60000", 300);
	put_chain(&pair.source, 1, 9);
	fetch_chain(&pair.reader, 1, 9, &outcome);
	assert_int_equal(outcome.status, OKV_ERR_DEADLINE);
	assert_true(outcome.leading <= 4);
	expect_metric(&pair.reader, "remote_fetch_plan_segments_sum 1");
	expect_metric(&pair.reader, "remote_fetch_plan_completed_segments_sum 0");
	assert_true(okv_clock_now(okv_clock_boottime()) - begun < 10 * OKV_NS_PER_S);
	pair_close(&pair);
}

static void a_block_that_was_replaced_meanwhile_is_not_read(void **state)
{
	(void)state;
	struct pair pair;
	struct outcome outcome;

	pair_open(&pair, "", 3000);
	put_chain(&pair.source, 1, 5);
	start_fetch(&pair.reader, 1, 5, &outcome);
	UNTIL(pair.loop, okv_source_counts(pair.source.peers->source)->windows == 1);
	okv_store_clean(pair.source.store);
	put_chain(&pair.source, 1, 5); /* the same bytes, another generation */
	end_fetch(&outcome, 1);
	assert_int_equal(outcome.status, OKV_OK);
	assert_int_equal(outcome.brought, 0);
	assert_int_equal(counts(&pair.reader)->refusals[OKV_PEER_REFUSED_RESIDENCE], 1);
	expect_metric(&pair.reader, "remote_fetch_total{status=\"rejected\"} 1");
	expect_metric(&pair.reader, "remote_fetch_replans_total 1");
	fetch_chain(&pair.reader, 1, 5, &outcome);
	assert_int_equal(outcome.leading, 5);
	pair_close(&pair);
}

static void a_cleanup_at_the_source_during_the_read_leaves_what_is_read(void **state)
{
	(void)state;
	struct pair pair;
	struct outcome outcome;

	pair_open(&pair, "mover_stall_ms=100", 3000);
	put_chain(&pair.source, 1, 20);
	start_fetch(&pair.reader, 1, 20, &outcome);
	UNTIL(pair.loop, okv_source_counts(pair.source.peers->source)->sessions == 1);
	assert_int_equal(okv_store_clean(pair.source.store).still_referenced_blocks, 20);
	end_fetch(&outcome, 1);
	assert_int_equal(outcome.leading, 20);
	pair_close(&pair);
}

static void of_blocks_that_a_peer_has_read_the_last_are_evicted_first(void **state)
{
	(void)state;
	struct pair pair;
	struct outcome outcome;

	pair_open(&pair, "", 3000);
	put_chain(&pair.source, 1, 10);
	fetch_chain(&pair.reader, 1, 10, &outcome);
	assert_int_equal(outcome.leading, 10);
	UNTIL(pair.loop, is_quiet(&pair.source));
	for (uint32_t seed = 2; seed < 5; seed++)
		put_chain(&pair.source, seed, CHAIN_BLOCKS_MAX);
	put_chain(&pair.source, 5, (64 << 20) / BLOCK_BYTES - 3 * CHAIN_BLOCKS_MAX - 6); /* leaves six of the ten */
	for (uint32_t i = 0; i < 10; i++) {
		struct okv_hash hash = chain_record(1, i).hash;

		assert_int_equal(okv_store_peek(pair.source.store, &hash) != NULL, i < 6);
	}
	pair_close(&pair);
}

struct piece {
	struct okv_store *store;
	bool is_done;
};

static void piece_came(void *context, enum okv_status status, struct okv_block *const *blocks, uint32_t count,
		       uint64_t remote_bytes)
{
	struct piece *piece = context;

	(void)remote_bytes;
	assert_int_equal(status, OKV_OK);
	for (uint32_t i = 0; i < count; i++)
		okv_store_unpin(piece->store, blocks[i]);
	piece->is_done = true;
}

static void a_peer_that_reads_the_end_of_a_prefix_uses_its_beginning(void **state)
{
	(void)state;
	struct pair pair;
	struct okv_materialisation_key key = test_key();
	struct okv_block_record end[10];

	pair_open(&pair, "", 3000);
	put_chain(&pair.source, 1, 20);
	for (uint32_t seed = 2; seed < 5; seed++)
		put_chain(&pair.source, seed, CHAIN_BLOCKS_MAX);
	for (uint32_t i = 0; i < 10; i++)
		end[i] = chain_record(1, 10 + i);
	struct piece piece = {.store = pair.reader.store};
	assert_true(okv__peers_fetch(pair.reader.peers, &key, end, 10, piece_came, &piece) != 0);
	UNTIL(pair.loop, piece.is_done && is_quiet(&pair.source));
	put_chain(&pair.source, 5, (64 << 20) / BLOCK_BYTES - 3 * CHAIN_BLOCKS_MAX - 15); /* five must go */
	for (uint32_t i = 0; i < 20; i++) {
		struct okv_hash hash = chain_record(1, i).hash;

		assert_non_null(okv_store_peek(pair.source.store, &hash));
	}
	pair_close(&pair);
}

static void a_block_published_here_during_the_read_is_kept_and_the_rest_comes(void **state)
{
	(void)state;
	struct pair pair;
	struct outcome outcome;
	struct okv_block_record record = chain_record(1, 2);
	struct okv_block *mine;

	pair_open(&pair, "", 3000);
	put_chain(&pair.source, 1, 6);
	start_fetch(&pair.reader, 1, 6, &outcome);
	assert_int_equal(okv_store_reserve(pair.reader.store, &record, OKV_CLASS_NORMAL, &mine), OKV_OK);
	UNTIL(pair.loop, outcome.is_done);
	assert_int_equal(outcome.status, OKV_OK);
	assert_null(outcome.block[2]); /* still being written here */
	for (int i = 0; i < 6; i++)
		if (outcome.block[i])
			okv_store_unpin(pair.reader.store, outcome.block[i]);
	okv_store_abort(pair.reader.store, mine);
	pair_close(&pair);
}

static void a_pool_that_is_full_of_pins_is_a_miss(void **state)
{
	(void)state;
	struct pair pair;
	struct outcome outcome;
	struct okv_block_record record = chain_record(99, 0);
	struct okv_block *large;

	pair_open(&pair, "", 3000);
	put_chain(&pair.source, 1, 3);
	record.length = (64 << 20) - BLOCK_BYTES;
	assert_int_equal(okv_store_reserve(pair.reader.store, &record, OKV_CLASS_NORMAL, &large), OKV_OK);
	fetch_chain(&pair.reader, 1, 3, &outcome);
	assert_int_equal(outcome.status, OKV_ERR_NO_SPACE);
	assert_int_equal(outcome.brought, 0);
	okv_store_abort(pair.reader.store, large);
	pair_close(&pair);
}

static void a_reader_that_shuts_down_in_the_middle_drains_both_sides(void **state)
{
	(void)state;
	struct pair pair;
	struct outcome outcome;

	pair_open(&pair, "mover_stall_ms=60000", 30000);
	put_chain(&pair.source, 1, 20);
	start_fetch(&pair.reader, 1, 20, &outcome);
	UNTIL(pair.loop, counts(&pair.reader)->fetched_blocks > 0);
	okv__peers_shutdown(pair.reader.peers, NULL, NULL);
	end_fetch(&outcome, 1);
	assert_int_equal(outcome.status, OKV_ERR_CANCELLED);
	pair_close(&pair);
}

static void a_source_that_shuts_down_in_the_middle_drains_both_sides(void **state)
{
	(void)state;
	struct pair pair;
	struct outcome outcome;

	pair_open(&pair, "mover_stall_ms=60000", 30000);
	put_chain(&pair.source, 1, 20);
	start_fetch(&pair.reader, 1, 20, &outcome);
	UNTIL(pair.loop, counts(&pair.reader)->fetched_bytes > 0); /* or the source has no such token any more */
	node_close(&pair.source);
	end_fetch(&outcome, 1);
	assert_int_equal(outcome.status, OKV_ERR_DISCONNECTED);
	UNTIL(pair.loop, is_quiet(&pair.reader)); /* its address refuses connections, so its tickets are over */
	assert_true(counts(&pair.reader)->peers_gone >= 1);
	node_close(&pair.reader);
	okv_loop_destroy(pair.loop);
}

/* ---- processes that die or stand still ---- */

/* A source in a process of its own, which says its port and then serves until it is killed. */
static pid_t fork_source(const char *faults, uint32_t seed, uint32_t blocks, uint16_t *ret_port)
{
	int to_parent[2];

	assert_int_equal(pipe(to_parent), 0);
	pid_t pid = fork();
	assert_true(pid >= 0);
	if (pid == 0) {
		struct okv_loop *loop = test_loop();
		struct node node;

		node_open(&node, loop, 0, 0, faults, 3000);
		put_chain(&node, seed, blocks);
		uint16_t port = okv__peers_port(node.peers);
		if (write(to_parent[1], &port, sizeof(port)) == sizeof(port))
			okv_loop_run(loop);
		_exit(1);
	}
	close(to_parent[1]);
	assert_int_equal(read(to_parent[0], ret_port, sizeof(*ret_port)), sizeof(*ret_port));
	close(to_parent[0]);
	return pid;
}

/* A reader in a process of its own that fetches one chain from `port`, told when to begin. */
static pid_t fork_reader(int *ret_begin, uint32_t seed, uint32_t blocks)
{
	int to_child[2];

	assert_int_equal(pipe(to_child), 0);
	pid_t pid = fork();
	assert_true(pid >= 0);
	if (pid == 0) {
		struct okv_loop *loop = test_loop();
		struct node node;
		struct outcome outcome;
		uint16_t port;

		close(to_child[1]);
		if (read(to_child[0], &port, sizeof(port)) != sizeof(port))
			_exit(1);
		node_open(&node, loop, port, 0, "", 60000);
		UNTIL(loop, is_connected(&node));
		start_fetch(&node, seed, blocks, &outcome);
		okv_loop_run(loop);
		_exit(1);
	}
	close(to_child[0]);
	*ret_begin = to_child[1];
	return pid;
}

static void kill_and_reap(pid_t pid)
{
	assert_int_equal(kill(pid, SIGKILL), 0);
	assert_int_equal(waitpid(pid, NULL, 0), pid);
}

static void a_source_killed_in_the_middle_is_a_miss_and_its_ticket_is_over(void **state)
{
	(void)state;
	uint16_t port;
	pid_t pid = fork_source("mover_stall_ms=60000", 1, 20, &port);
	struct okv_loop *loop = test_loop();
	struct node reader;
	struct outcome outcome;

	node_open(&reader, loop, port, 0, "", 30000);
	UNTIL(loop, is_connected(&reader));
	start_fetch(&reader, 1, 20, &outcome);
	UNTIL(loop, counts(&reader)->fetched_blocks > 0);
	kill_and_reap(pid);
	end_fetch(&outcome, 1);
	assert_int_equal(outcome.status, OKV_ERR_DISCONNECTED);
	assert_true(outcome.leading >= 1 && outcome.leading < 20);
	UNTIL(loop, is_quiet(&reader));
	node_close(&reader);
	okv_loop_destroy(loop);
}

static void a_source_that_stands_still_costs_a_moment_once(void **state)
{
	(void)state;
	uint16_t port;
	pid_t pid = fork_source("", 1, 5, &port);
	struct okv_loop *loop = test_loop();
	struct node reader;
	struct outcome outcome;

	node_open(&reader, loop, port, 0, "", 3000);
	UNTIL(loop, is_connected(&reader));
	kill(pid, SIGSTOP);
	uint64_t begun = okv_clock_now(okv_clock_boottime());
	fetch_chain(&reader, 1, 5, &outcome);
	assert_int_equal(outcome.brought, 0);
	assert_true(okv_clock_now(okv_clock_boottime()) - begun < 2500 * OKV_NS_PER_MS);
	kill(pid, SIGCONT);
	UNTIL(loop, !reader.peers->remote[0].is_up || okv_requester_counts(reader.peers->requester)->wants == 0);
	/* It answers what it was asked, late, and is asked again. */
	for (int i = 0; i < 100 && outcome.brought == 0; i++) {
		turn_for_ms(loop, 20);
		fetch_chain(&reader, 1, 5, &outcome);
	}
	assert_int_equal(outcome.leading, 5);
	kill_and_reap(pid);
	node_close(&reader);
	okv_loop_destroy(loop);
}

static void a_stopped_reader_keeps_its_pins_and_a_killed_one_loses_them(void **state)
{
	(void)state;
	int begin;
	pid_t pid = fork_reader(&begin, 1, 20);
	struct okv_loop *loop = test_loop();
	struct node source;

	node_open(&source, loop, 0, 0, "mover_stall_ms=60000", 3000);
	put_chain(&source, 1, 20);
	uint16_t port = okv__peers_port(source.peers);
	assert_int_equal(write(begin, &port, sizeof(port)), sizeof(port));
	UNTIL(loop, okv_source_counts(source.peers->source)->sessions == 1);
	kill(pid, SIGSTOP);
	turn_for_ms(loop, 500);
	assert_int_equal(okv_store_counts(source.store)->pinned_blocks, 20);
	assert_int_equal(okv_metric_value(source.peers->metrics.lock_active), 20);
	expect_metric(&source, "transfer_reserved_bytes 1310720");
	kill_and_reap(pid);
	UNTIL(loop, is_quiet(&source));
	assert_int_equal(okv_metric_value(source.peers->metrics.lock_active), 0);
	assert_int_equal(okv_metric_value(source.peers->metrics.readers_gone), 1);
	close(begin);
	node_close(&source);
	okv_loop_destroy(loop);
}

/* ---- hostile connections ---- */

static int connect_to(uint16_t port)
{
	struct sockaddr_in at = {
		.sin_family = AF_INET, .sin_port = htons(port), .sin_addr.s_addr = htonl(INADDR_LOOPBACK)};
	int fd = socket(AF_INET, SOCK_STREAM, 0);

	assert_int_equal(connect(fd, (struct sockaddr *)&at, sizeof(at)), 0);
	return fd;
}

/* Sends the bytes and turns the loop until the manager hangs up; what it said before. */
static size_t last_words(struct okv_loop *loop, uint16_t port, const void *bytes, size_t size, uint8_t *ret_words)
{
	int fd = connect_to(port);
	size_t got = 0;

	assert_int_equal(write(fd, bytes, size), (ssize_t)size);
	for (int i = 0; i < 10000; i++) {
		ssize_t more = recv(fd, ret_words + got, OKV_PEER_FRAME_BYTES_MAX - got, MSG_DONTWAIT);

		if (more == 0 || (more < 0 && errno == ECONNRESET)) {
			close(fd);
			return got;
		}
		if (more > 0)
			got += (size_t)more;
		turn(loop);
	}
	fail_msg("the manager never hung up");
	return 0;
}

static void a_peer_that_breaks_the_protocol_loses_its_connection(void **state)
{
	(void)state;
	struct okv_loop *loop = test_loop();
	struct node node;
	static struct okv_peer_message message;
	uint8_t frame[2 * OKV_PEER_FRAME_BYTES_MAX], words[OKV_PEER_FRAME_BYTES_MAX];

	node_open(&node, loop, 0, 0, "", 3000);
	uint16_t port = okv__peers_port(node.peers);
	assert_int_equal(last_words(loop, port, "GET / HTTP/1.1\r\nHost: x\r\n\r\n", 27, words), 0);

	message = (struct okv_peer_message){.type = OKV_PEER_RELEASE}; /* before HELLO */
	size_t size = okv_peer_encode(&message, frame);
	assert_int_equal(last_words(loop, port, frame, size, words), 0);

	message = (struct okv_peer_message){.type = OKV_PEER_HELLO};
	strcpy(message.hello.cluster, "orbitkv");
	size = okv_peer_encode(&message, frame);
	frame[4] = 9; /* another version */
	assert_int_equal(last_words(loop, port, frame, size, words), 0);

	frame[4] = OKV_PEER_VERSION;
	memcpy(frame + size, frame, size); /* HELLO twice */
	assert_true(last_words(loop, port, frame, 2 * size, words) > 0);

	static const enum okv_peer_type answers[] = {OKV_PEER_WELCOME, OKV_PEER_LOCATED, OKV_PEER_RELEASED};
	for (int i = 0; i < 3; i++) { /* an answer to nothing */
		struct okv_peer_message answer = {.type = answers[i]};

		last_words(loop, port, frame, size + okv_peer_encode(&answer, frame + size), words);
	}
	struct okv_peer_message locate = {.type = OKV_PEER_LOCATE};
	locate.locate.key_size = 3; /* no key at all */
	last_words(loop, port, frame, size + okv_peer_encode(&locate, frame + size), words);

	strcpy(message.hello.cluster, "another");
	size = okv_peer_encode(&message, frame);
	size_t got = last_words(loop, port, frame, size, words);
	struct okv_peer_message welcome;
	assert_int_equal(okv_peer_decode(words, got, &welcome, NULL), OKV_OK);
	assert_int_equal(welcome.welcome.refusal, OKV_PEER_REFUSED_CLUSTER);
	assert_int_equal(node.peers->inbound_count, 0);
	node_close(&node);
	okv_loop_destroy(loop);
}

static void options_that_cannot_be_are_refused(void **state)
{
	(void)state;
	struct okv_loop *loop = test_loop();
	struct node node;
	struct okv_peers *none = NULL;
	struct okv_reason reason;
	const char *peer = "nowhere", *twice[] = {"127.0.0.1:9", "[::1]:9", "127.0.0.1:09"};

	node_open(&node, loop, 0, 0, "", 3000);
	struct okv_peers_options options = {
		.loop = loop,
		.store = node.store,
		.metrics = node.metrics,
		.listen_address = "127.0.0.1",
		.listen_port = okv__peers_port(node.peers),
		.peers = &peer,
	};
	assert_int_equal(okv__peers_create(&options, &none, &reason), OKV_ERR_EXISTS);
	assert_string_equal(reason.field, "listen");
	options.listen_address = "everywhere";
	assert_int_not_equal(okv__peers_create(&options, &none, &reason), OKV_OK);
	options.listen_address = "";
	options.peer_count = 1;
	assert_int_equal(okv__peers_create(&options, &none, &reason), OKV_ERR_INVALID);
	assert_string_equal(reason.field, "peer");
	for (const char *const *bad =
		     (const char *const[]){"127.0.0.1:99999", "127.0.0.1:0", "::1:9092", "[]:9092", "h:1x", NULL};
	     *bad; bad++) {
		peer = *bad;
		assert_int_equal(okv__peers_create(&options, &none, &reason), OKV_ERR_INVALID);
		assert_string_equal(reason.field, "peer");
	}
	options.peers = twice;
	options.peer_count = 3;
	assert_int_equal(okv__peers_create(&options, &none, &reason), OKV_ERR_INVALID);
	assert_non_null(strstr(reason.text, "--peer 127.0.0.1:9 and --peer 127.0.0.1:09 are one manager"));
	assert_null(none);
	node_close(&node);
	okv_loop_destroy(loop);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(a_chain_is_fetched_byte_for_byte_and_released),
		cmocka_unit_test(every_count_of_the_cores_is_shown_under_its_name),
		cmocka_unit_test(a_long_chain_takes_several_authorisations),
		cmocka_unit_test(received_blocks_are_served_to_others),
		cmocka_unit_test(a_chain_is_put_together_from_two_owners),
		cmocka_unit_test(equal_fetches_share_one_read_and_each_has_its_pins),
		cmocka_unit_test(another_key_is_a_miss_with_a_reason),
		cmocka_unit_test(without_a_connection_nothing_is_waited_for),
		cmocka_unit_test(a_manager_leaves_itself_out_of_its_peers),
		cmocka_unit_test(a_flipped_bit_is_refused_and_counted),
		cmocka_unit_test(a_wrong_length_is_refused),
		cmocka_unit_test(another_identity_or_length_under_the_same_name_is_refused_unread),
		cmocka_unit_test(a_reset_in_the_middle_keeps_what_was_whole),
		cmocka_unit_test(a_source_that_falls_silent_costs_the_deadline_and_no_more),
		cmocka_unit_test(a_block_that_was_replaced_meanwhile_is_not_read),
		cmocka_unit_test(a_cleanup_at_the_source_during_the_read_leaves_what_is_read),
		cmocka_unit_test(of_blocks_that_a_peer_has_read_the_last_are_evicted_first),
		cmocka_unit_test(a_peer_that_reads_the_end_of_a_prefix_uses_its_beginning),
		cmocka_unit_test(a_block_published_here_during_the_read_is_kept_and_the_rest_comes),
		cmocka_unit_test(a_pool_that_is_full_of_pins_is_a_miss),
		cmocka_unit_test(a_reader_that_shuts_down_in_the_middle_drains_both_sides),
		cmocka_unit_test(a_source_that_shuts_down_in_the_middle_drains_both_sides),
		cmocka_unit_test(a_source_killed_in_the_middle_is_a_miss_and_its_ticket_is_over),
		cmocka_unit_test(a_source_that_stands_still_costs_a_moment_once),
		cmocka_unit_test(a_stopped_reader_keeps_its_pins_and_a_killed_one_loses_them),
		cmocka_unit_test(a_peer_that_breaks_the_protocol_loses_its_connection),
		cmocka_unit_test(options_that_cannot_be_are_refused),
	};
	return cmocka_run_group_tests_name("manager_peers", tests, NULL, NULL);
}
