/*
 * The whole local path, as two programs would take it: an engine's KV source, the client, shared memory, and a real
 * manager on a thread of its own.
 */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <poll.h>
#include <pthread.h>
#include <unistd.h>

#include <cmocka.h>

#include "kv_client.h"
#include "okv/base/clock.h"
#include "okv/loop/loop.h"
#include "okv/manager/manager.h"
#include "tiny_key.h"

enum { PAGE = 16384, PAGES = 64, TOKENS = 4, BLOCKS = 20 };

struct host {
	struct okv_loop *loop;
	struct okv_manager *manager;
	struct okv_task stop;
	pthread_t thread;
};

struct stage {
	char folder[32], path[64];
	struct host host;
	struct okv_region arena;
	struct okv__kv_client *client;
	struct okv_kv_source source;
	struct okv_hash key_digest;
};

static void stopped(void *context)
{
	okv_loop_stop(((struct host *)context)->loop);
}

static void stop(void *context)
{
	struct host *host = context;

	okv_manager_shutdown(host->manager, stopped, host);
}

static void *run_host(void *context)
{
	okv_loop_run(((struct host *)context)->loop);
	return NULL;
}

/* `peer` may be NULL. */
static void start_manager(struct stage *stage, const char *faults, const char *peer)
{
	struct host *host = &stage->host;
	struct okv_reason reason = {.field = ""};
	const struct okv_manager_options options = {
		.socket_path = stage->path,
		.pool_bytes = 4 << 20,
		.http_address = "127.0.0.1",
		.listen_address = "127.0.0.1",
		.peers = &peer,
		.peer_count = peer != NULL,
		.peer_deadline_ns = OKV_NS_PER_S,
		.faults = faults,
	};

	assert_int_equal(okv_loop_create(okv_clock_boottime(), &host->loop, &reason), OKV_OK);
	if (okv_manager_create(host->loop, &options, &host->manager, &reason) != OKV_OK)
		fail_msg("%s", reason.text);
	host->stop = (struct okv_task){.run = stop, .context = host};
	assert_int_equal(pthread_create(&host->thread, NULL, run_host, host), 0);
}

static void stop_manager(struct stage *stage)
{
	okv_loop_post(stage->host.loop, &stage->host.stop);
	pthread_join(stage->host.thread, NULL);
	okv_manager_destroy(stage->host.manager);
	okv_loop_destroy(stage->host.loop);
}

static int set_up(void **state)
{
	struct stage *stage = calloc(1, sizeof(*stage));
	struct okv_materialisation_key key = tiny_key();
	struct okv__kv_client_options options = {
		.socket_path = stage->path, .name = "test", .arena = &stage->arena, .key = &key};

	strcpy(stage->folder, "okv-kv-client-XXXXXX");
	assert_non_null(mkdtemp(stage->folder));
	snprintf(stage->path, sizeof(stage->path), "%s/manager", stage->folder);
	stage->key_digest = okv_key_digest(&key);
	assert_int_equal(okv_region_create("arena", PAGES * PAGE, &stage->arena, NULL), OKV_OK);
	assert_int_equal(okv__kv_client_create(&options, &stage->client, NULL), OKV_OK);
	stage->source = okv__kv_client_source(stage->client);
	*state = stage;
	return 0;
}

static int tear_down(void **state)
{
	struct stage *stage = *state;

	okv__kv_client_destroy(stage->client);
	okv_region_close(&stage->arena);
	rmdir(stage->folder);
	free(stage);
	return 0;
}

/* A chain of blocks of `seed`, from arena page `first` on. */
static void chain(const struct stage *stage, uint32_t seed, uint32_t first, uint32_t tokens[BLOCKS][TOKENS],
		  struct okv_kv_block blocks[BLOCKS])
{
	struct okv_hash parent = {{0}};

	for (uint32_t i = 0; i < BLOCKS; i++) {
		tokens[i][0] = seed;
		tokens[i][1] = i;
		blocks[i] = (struct okv_kv_block){.parent = parent,
						  .tokens = tokens[i],
						  .token_count = TOKENS,
						  .page_offset = (first + i) * PAGE};
		blocks[i].hash = parent =
			okv_block_hash(&stage->key_digest, &parent, &blocks[i].lineage, tokens[i], TOKENS);
	}
}

typedef uint64_t starter(void *context, const struct okv_kv_block *blocks, uint32_t count);

static struct okv_kv_completion do_once(struct stage *stage, starter *call, const struct okv_kv_block *blocks)
{
	struct okv_kv_completion completion = {0};
	struct pollfd ready = {.fd = stage->source.wait_fd(stage->source.context), .events = POLLIN};
	uint64_t handle = 0;

	for (int i = 0; !handle && i < 10000; i++) {
		handle = call(stage->source.context, blocks, BLOCKS);
		if (!handle)
			poll(NULL, 0, 1);
	}
	assert_true(handle != 0);
	assert_int_equal(poll(&ready, 1, 20000), 1);
	assert_true(stage->source.poll(stage->source.context, &completion));
	assert_int_equal(completion.handle, handle);
	assert_false(stage->source.poll(stage->source.context, &completion));
	assert_int_equal(poll(&ready, 1, 0), 0);
	return completion;
}

/* Until it reaches a manager: the client may still be looking for one, or not have noticed that the last one left. */
static struct okv_kv_completion do_now(struct stage *stage, starter *call, const struct okv_kv_block *blocks)
{
	struct okv_kv_completion completion;

	do
		completion = do_once(stage, call, blocks);
	while (completion.status == OKV_ERR_DISCONNECTED || completion.status == OKV_ERR_BUSY);
	return completion;
}

static void expect_pages(const struct stage *stage, uint32_t first, uint32_t count)
{
	for (uint32_t i = 0; i < count; i++)
		for (uint32_t k = 0; k < PAGE; k += 1000)
			assert_int_equal(stage->arena.base[(first + i) * PAGE + k], (uint8_t)(i + k));
}

static void fill_pages(const struct stage *stage)
{
	for (uint32_t i = 0; i < BLOCKS; i++)
		for (uint32_t k = 0; k < PAGE; k++)
			stage->arena.base[i * PAGE + k] = (uint8_t)(i + k);
}

static void what_an_engine_publishes_it_restores_elsewhere(void **state)
{
	struct stage *stage = *state;
	uint32_t tokens[BLOCKS][TOKENS] = {{0}};
	struct okv_kv_block blocks[BLOCKS];
	struct okv_kv_completion completion;

	chain(stage, 1, 0, tokens, blocks);
	assert_int_equal(stage->source.publish(stage->source.context, blocks, BLOCKS), 0); /* no manager yet */
	start_manager(stage, NULL, NULL);
	fill_pages(stage);
	completion = do_now(stage, stage->source.publish, blocks);
	assert_int_equal(completion.status, OKV_OK);
	assert_int_equal(completion.blocks, BLOCKS);

	chain(stage, 1, 30, tokens, blocks);
	completion = do_now(stage, stage->source.restore, blocks);
	assert_int_equal(completion.status, OKV_OK);
	assert_int_equal(completion.blocks, BLOCKS);
	assert_int_equal(completion.remote_bytes, 0);
	expect_pages(stage, 30, BLOCKS);

	chain(stage, 2, 30, tokens, blocks); /* what nobody has */
	completion = do_now(stage, stage->source.restore, blocks);
	assert_int_equal(completion.status, OKV_OK);
	assert_int_equal(completion.blocks, 0);
	stop_manager(stage);
}

static void a_damaged_block_is_never_given_to_the_engine(void **state)
{
	struct stage *stage = *state;
	uint32_t tokens[BLOCKS][TOKENS] = {{0}};
	struct okv_kv_block blocks[BLOCKS];
	struct okv_kv_completion completion;

	start_manager(stage, "pool_flip_bit=1", NULL);
	chain(stage, 1, 0, tokens, blocks);
	fill_pages(stage);
	completion = do_now(stage, stage->source.publish, blocks);
	assert_int_equal(completion.blocks, BLOCKS);
	completion = do_now(stage, stage->source.restore, blocks);
	assert_int_equal(completion.status, OKV_ERR_DAMAGED);
	assert_int_equal(completion.blocks, 0);
	fill_pages(stage); /* a computed page takes the place of the one that was refused */
	assert_int_equal(do_now(stage, stage->source.publish, blocks).blocks, BLOCKS);
	assert_int_equal(do_now(stage, stage->source.restore, blocks).blocks, BLOCKS);
	expect_pages(stage, 0, BLOCKS);
	stop_manager(stage);
}

static void a_manager_that_goes_and_comes_back_is_found_again(void **state)
{
	struct stage *stage = *state;
	uint32_t tokens[BLOCKS][TOKENS] = {{0}};
	struct okv_kv_block blocks[BLOCKS];
	struct okv_kv_completion completion;
	uint64_t handle;

	chain(stage, 1, 0, tokens, blocks);
	fill_pages(stage);
	for (int round = 0; round < 3; round++) {
		start_manager(stage, NULL, NULL);
		assert_int_equal(do_now(stage, stage->source.publish, blocks).blocks, BLOCKS);
		assert_int_equal(do_now(stage, stage->source.restore, blocks).blocks, BLOCKS);

		/* One is under way when the manager stops: it completes, whichever is first. */
		handle = stage->source.restore(stage->source.context, blocks, BLOCKS);
		stage->source.cancel(stage->source.context, handle);
		stage->source.cancel(stage->source.context, 12345);
		stop_manager(stage);
		while (!stage->source.poll(stage->source.context, &completion))
			poll(NULL, 0, 1);
		assert_int_equal(completion.handle, handle);
	}
}

static void a_restore_that_a_peer_breaks_off_has_failed(void **state)
{
	struct stage *stage = *state, *other;
	uint32_t tokens[BLOCKS][TOKENS] = {{0}};
	struct okv_kv_block blocks[BLOCKS];
	struct okv_kv_completion completion;
	char peer[32];

	assert_int_equal(set_up((void **)&other), 0);
	start_manager(other, "mover_cut_after_bytes=1", NULL);
	snprintf(peer, sizeof(peer), "127.0.0.1:%u", okv_manager_peer_port(other->host.manager));
	start_manager(stage, NULL, peer);
	chain(other, 1, 0, tokens, blocks);
	assert_int_equal(do_now(other, other->source.publish, blocks).blocks, BLOCKS);
	do
		completion = do_now(stage, stage->source.restore, blocks);
	while (completion.status == OKV_OK); /* the managers have not met yet */
	assert_int_equal(completion.status, OKV_ERR_FAILED);
	assert_int_equal(completion.blocks, 0);
	stop_manager(stage);
	stop_manager(other);
	tear_down((void **)&other);
}

static void more_orders_than_the_client_takes_give_no_handle_and_all_complete(void **state)
{
	struct stage *stage = *state;
	uint32_t tokens[BLOCKS][TOKENS] = {{0}};
	struct okv_kv_block blocks[BLOCKS];
	struct okv_kv_completion completion;
	unsigned given = 0, completed = 0;

	start_manager(stage, NULL, NULL);
	chain(stage, 1, 0, tokens, blocks);
	fill_pages(stage);
	do_now(stage, stage->source.publish, blocks);
	while (stage->source.publish(stage->source.context, blocks, BLOCKS))
		given++;
	assert_int_equal(given, 24);
	while (completed < given) {
		if (stage->source.poll(stage->source.context, &completion))
			completed++;
		else
			poll(NULL, 0, 1);
	}
	assert_false(stage->source.poll(stage->source.context, &completion));
	stop_manager(stage);
}

static void a_wrong_path_is_refused_at_once(void **state)
{
	struct stage *stage = *state;
	struct okv_materialisation_key key = tiny_key();
	char path[300];
	struct okv__kv_client_options options = {
		.socket_path = path, .name = "test", .arena = &stage->arena, .key = &key};
	struct okv__kv_client *client;
	struct okv_reason reason;

	memset(path, 'x', sizeof(path) - 1);
	path[sizeof(path) - 1] = '\0';
	assert_int_equal(okv__kv_client_create(&options, &client, &reason), OKV_ERR_INVALID);
	assert_non_null(strstr(reason.text, "socket path"));
	okv__kv_client_destroy(NULL);
}

#define KV_TEST(name) cmocka_unit_test_setup_teardown(name, set_up, tear_down)

int main(void)
{
	const struct CMUnitTest tests[] = {
		KV_TEST(what_an_engine_publishes_it_restores_elsewhere),
		KV_TEST(a_damaged_block_is_never_given_to_the_engine),
		KV_TEST(a_manager_that_goes_and_comes_back_is_found_again),
		KV_TEST(a_restore_that_a_peer_breaks_off_has_failed),
		KV_TEST(more_orders_than_the_client_takes_give_no_handle_and_all_complete),
		KV_TEST(a_wrong_path_is_refused_at_once),
	};
	return cmocka_run_group_tests_name("kv_client", tests, NULL, NULL);
}
