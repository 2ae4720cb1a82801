/*
 * The client against a manager that the test plays by hand, step by step on one thread: it sees every request and
 * decides every answer, good, late, damaged or absurd.
 */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <poll.h>
#include <sys/socket.h>
#include <sys/un.h>
#include <unistd.h>

#include <cmocka.h>

#include "failing_alloc.h"
#include "okv/base/region.h"
#include "okv/session/channel.h"
#include "okv/session/message.h"
#include "okv/session/ring.h"
#include "orbitkv/client.h"
#include "tiny_key.h"

enum { PAGE = 16384, PAGES = 40, POOL_PAGES = 40, TOKENS = 4 };

struct stage {
	char folder[32], path[64];
	int listener, socket;
	struct okv_region arena, pool, manager_arena, manager_ring;
	struct okv_ring_manager ring;
	uint8_t *scratch;
	struct okv_session_hello hello;
	struct orbitkv_client *client;
	uint8_t key[OKV_KEY_ENCODED_MAX];
	size_t key_size;
	struct okv_hash key_digest;
	struct okv_reason reason;
};

static struct orbitkv_client_options options_of(const struct stage *stage)
{
	return (struct orbitkv_client_options){.socket_path = stage->path,
					       .name = "test",
					       .key = stage->key,
					       .key_size = stage->key_size,
					       .arena_fd = stage->arena.fd,
					       .arena = stage->arena.base,
					       .arena_bytes = stage->arena.size};
}

static void listen_again(struct stage *stage)
{
	struct sockaddr_un address = {.sun_family = AF_UNIX};

	unlink(stage->path);
	strcpy(address.sun_path, stage->path);
	stage->listener = socket(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC | SOCK_NONBLOCK, 0);
	assert_int_equal(bind(stage->listener, (struct sockaddr *)&address, sizeof(address)), 0);
	assert_int_equal(listen(stage->listener, 8), 0);
}

static int set_up(void **state)
{
	struct stage *stage = calloc(1, sizeof(*stage));
	struct okv_materialisation_key key = tiny_key();

	strcpy(stage->folder, "okv-client-XXXXXX");
	assert_non_null(mkdtemp(stage->folder));
	snprintf(stage->path, sizeof(stage->path), "%s/manager", stage->folder);
	stage->key_size = okv_key_encode(&key, stage->key);
	stage->key_digest = okv_key_digest(&key);
	assert_int_equal(okv_key_page_bytes(&key), PAGE);
	assert_int_equal(okv_region_create("arena", PAGES * PAGE, &stage->arena, NULL), OKV_OK);
	assert_int_equal(okv_region_create("pool", POOL_PAGES * PAGE, &stage->pool, NULL), OKV_OK);
	assert_int_equal(okv_region_seal_for_readers(&stage->pool, NULL), OKV_OK);
	stage->scratch = malloc(OKV_RING_REQUEST_BYTES);
	stage->socket = stage->manager_arena.fd = stage->manager_ring.fd = -1;
	listen_again(stage);

	struct orbitkv_client_options options = options_of(stage);
	assert_int_equal(orbitkv_client_open(ORBITKV_CLIENT_VERSION, &options, &stage->client, NULL, 0), ORBITKV_OK);
	*state = stage;
	return 0;
}

static void hang_up(struct stage *stage)
{
	if (stage->socket >= 0)
		close(stage->socket);
	stage->socket = -1;
	okv_region_close(&stage->manager_arena);
	okv_region_close(&stage->manager_ring);
}

static int tear_down(void **state)
{
	struct stage *stage = *state;

	orbitkv_client_close(stage->client);
	hang_up(stage);
	close(stage->listener);
	okv_region_close(&stage->arena);
	okv_region_close(&stage->pool);
	unlink(stage->path);
	rmdir(stage->folder);
	free(stage->scratch);
	free(stage);
	return 0;
}

/* Waits until the client's descriptor says that there is something to do, then polls once. */
static bool poll_client(struct stage *stage, struct orbitkv_completion *completion)
{
	struct pollfd ready = {.fd = orbitkv_client_fd(stage->client), .events = POLLIN};

	assert_int_equal(poll(&ready, 1, 10000), 1);
	return orbitkv_client_poll(stage->client, completion);
}

static bool client_is_idle(struct stage *stage)
{
	struct pollfd ready = {.fd = orbitkv_client_fd(stage->client), .events = POLLIN};

	return poll(&ready, 1, 0) == 0;
}

static void send_message(struct stage *stage, const struct okv_session_message *message, const int *fds, unsigned count)
{
	uint8_t bytes[OKV_SESSION_MESSAGE_MAX];

	assert_int_equal(okv_channel_send(stage->socket, bytes, okv_session_encode(message, bytes), fds, count),
			 OKV_OK);
}

/* Takes the client's connection and HELLO. */
static void take_hello(struct stage *stage)
{
	struct orbitkv_completion completion;
	struct okv_channel_packet packet;
	struct okv_session_message message;
	uint8_t bytes[OKV_SESSION_MESSAGE_MAX];
	struct pollfd ready = {.fd = stage->listener, .events = POLLIN};

	while (poll(&ready, 1, 0) == 0)
		assert_false(poll_client(stage, &completion));
	stage->socket = accept(stage->listener, NULL, NULL);
	assert_int_equal(okv_channel_receive(stage->socket, bytes, sizeof(bytes), OKV_SESSION_HELLO_FDS, &packet),
			 OKV_OK);
	assert_int_equal(okv_session_decode(bytes, packet.size, &message, &stage->reason), OKV_OK);
	assert_int_equal(message.type, OKV_SESSION_HELLO);
	assert_int_equal(packet.fd_count, OKV_SESSION_HELLO_FDS);
	stage->hello = message.hello;
	assert_int_equal(okv_region_open(packet.fd[0], stage->hello.arena_bytes, false, &stage->manager_arena, NULL),
			 OKV_OK);
	assert_int_equal(okv_region_open(packet.fd[1], okv_ring_bytes(), true, &stage->manager_ring, NULL), OKV_OK);
}

static void meet(struct stage *stage)
{
	struct okv_session_message accept = {
		.type = OKV_SESSION_ACCEPT,
		.accept = {.session = 5, .pool_bytes = stage->pool.size, .verification = 1}};
	struct orbitkv_completion completion;
	struct okv_ring_limits limits = {.page_tokens = TOKENS, .key_digest = stage->key_digest};

	take_hello(stage);
	limits.page_bytes = stage->hello.page_bytes;
	limits.arena_bytes = stage->hello.arena_bytes;
	assert_int_equal(
		okv_ring_manager_init(&stage->ring, stage->manager_ring.base, stage->scratch, &limits, &stage->reason),
		OKV_OK);
	send_message(stage, &accept, &stage->pool.fd, 1);
	assert_false(poll_client(stage, &completion));
	assert_true(orbitkv_client_is_connected(stage->client));
	assert_string_equal(orbitkv_client_problem(stage->client), "");
}

static struct okv_ring_call take_request(struct stage *stage, enum okv_ring_op op)
{
	struct okv_ring_call call;

	assert_int_equal(okv_ring_manager_take(&stage->ring, &call, &stage->reason), OKV_OK);
	assert_int_equal(call.request.op, op);
	assert_int_equal(okv_ring_manager_check(&stage->ring, &call, &stage->reason), OKV_OK);
	return call;
}

static void answer(struct stage *stage, const struct okv_ring_call *call, struct okv_ring_reply reply,
		   const struct okv_ring_grant *grants)
{
	struct okv_session_message bell = {.type = OKV_SESSION_DOORBELL};

	reply.op = call->request.op;
	reply.slot = call->request.slot;
	assert_int_equal(okv_ring_manager_reply(&stage->ring, &reply, grants, &stage->reason), OKV_OK);
	send_message(stage, &bell, NULL, 0);
}

static const uint32_t tokens[TOKENS] = {10, 20, 30, 40};

/* A chain of blocks; block i goes to arena page i. */
static void chain(const struct stage *stage, struct orbitkv_block *blocks, uint32_t count)
{
	struct okv_hash parent = {{0}}, lineage = {{0}};

	for (uint32_t i = 0; i < count; i++) {
		struct okv_hash hash = okv_block_hash(&stage->key_digest, &parent, &lineage, tokens, TOKENS);

		blocks[i] = (struct orbitkv_block){.tokens = tokens, .token_count = TOKENS, .arena_offset = i * PAGE};
		memcpy(blocks[i].hash, &hash, sizeof(hash));
		memcpy(blocks[i].parent, &parent, sizeof(parent));
		parent = hash;
	}
}

/* Fills pool pages with patterns and describes them, last page first. */
static void grant(struct stage *stage, struct okv_ring_grant *grants, uint32_t count)
{
	for (uint32_t i = 0; i < count; i++) {
		uint64_t offset = (POOL_PAGES - 1 - i) * PAGE;

		memset(stage->pool.base + offset, (int)i + 1, PAGE);
		grants[i] = (struct okv_ring_grant){offset, PAGE, okv_crc_of(stage->pool.base + offset, PAGE)};
	}
}

static void publish_query_and_release_say_what_the_manager_said(void **state)
{
	struct stage *stage = *state;
	struct orbitkv_completion completion;
	struct orbitkv_block blocks[3];
	struct okv_ring_call call;
	uint64_t handle;

	chain(stage, blocks, 3);
	assert_int_equal(orbitkv_client_publish(stage->client, blocks, 3), 0); /* not connected: go on without */
	meet(stage);
	assert_string_equal(stage->hello.name, "test");
	assert_int_equal(stage->hello.previous_session, 0);

	memset(stage->arena.base + PAGE, 0x77, PAGE);
	handle = orbitkv_client_publish(stage->client, blocks, 3);
	call = take_request(stage, OKV_RING_PUBLISH);
	assert_int_equal(call.request.tokens, 3 * TOKENS);
	assert_int_equal(stage->manager_arena.base[call.blocks[1].arena_offset], 0x77);
	answer(stage, &call, (struct okv_ring_reply){.count = 2, .status = OKV_ERR_NO_SPACE}, NULL);
	assert_true(poll_client(stage, &completion));
	assert_int_equal(completion.handle, handle);
	assert_int_equal(completion.blocks, 2);
	assert_int_equal(completion.status, ORBITKV_NO_SPACE);

	handle = orbitkv_client_query(stage->client, blocks, 3);
	call = take_request(stage, OKV_RING_QUERY);
	answer(stage, &call, (struct okv_ring_reply){.count = 3}, NULL);
	assert_true(poll_client(stage, &completion));
	assert_int_equal(completion.blocks, 3);
	assert_int_equal(completion.status, ORBITKV_OK);

	handle = orbitkv_client_release(stage->client, 123);
	call = take_request(stage, OKV_RING_RELEASE);
	assert_int_equal(call.request.lease, 123);
	answer(stage, &call, (struct okv_ring_reply){.status = OKV_ERR_STALE}, NULL);
	assert_true(poll_client(stage, &completion));
	assert_int_equal(completion.handle, handle);
	assert_int_equal(completion.status, ORBITKV_STALE);
	assert_true(client_is_idle(stage));
}

static void prepare_then_restore_copies_every_page_to_its_place(void **state)
{
	struct stage *stage = *state;
	struct orbitkv_completion completion;
	struct orbitkv_block blocks[10];
	struct okv_ring_grant grants[10];
	struct okv_ring_call call;
	uint64_t places[10], handle;

	meet(stage);
	chain(stage, blocks, 10);
	orbitkv_client_prepare(stage->client, blocks, 10);
	call = take_request(stage, OKV_RING_PREPARE);
	answer(stage, &call, (struct okv_ring_reply){.count = 10, .lease = 9, .remote_bytes = 4 * PAGE}, NULL);
	assert_true(poll_client(stage, &completion));
	assert_int_equal(completion.lease, 9);
	assert_int_equal(completion.remote_bytes, 4 * PAGE);

	for (uint32_t i = 0; i < 10; i++)
		places[i] = (20 - i) * PAGE;
	grant(stage, grants, 10);
	handle = orbitkv_client_restore(stage->client, 9, places, 10);
	call = take_request(stage, OKV_RING_RESTORE);
	answer(stage, &call, (struct okv_ring_reply){.count = 10}, grants);
	int polls = 1;
	while (!poll_client(stage, &completion))
		polls++;
	assert_int_equal(polls, 3); /* four pages a slice */
	assert_int_equal(completion.handle, handle);
	assert_int_equal(completion.status, ORBITKV_OK);
	assert_int_equal(completion.blocks, 10);
	for (uint32_t i = 0; i < 10; i++) {
		assert_int_equal(stage->arena.base[places[i]], i + 1);
		assert_int_equal(stage->arena.base[places[i] + PAGE - 1], i + 1);
	}
}

static void fetch_completes_with_the_pages_and_releases_by_itself(void **state)
{
	struct stage *stage = *state;
	struct orbitkv_completion completion;
	struct orbitkv_block blocks[6];
	struct okv_ring_grant grants[5];
	struct okv_ring_call call;
	uint64_t handle;

	meet(stage);
	chain(stage, blocks, 6);
	grant(stage, grants, 5);
	handle = orbitkv_client_fetch(stage->client, blocks, 6);
	call = take_request(stage, OKV_RING_PREPARE);
	answer(stage, &call, (struct okv_ring_reply){.count = 5, .lease = 77, .remote_bytes = PAGE}, NULL);
	assert_false(poll_client(stage, &completion));
	call = take_request(stage, OKV_RING_RESTORE);
	assert_int_equal(call.request.lease, 77);
	answer(stage, &call, (struct okv_ring_reply){.count = 5}, grants);
	while (!poll_client(stage, &completion))
		;
	assert_int_equal(completion.handle, handle);
	assert_int_equal(completion.status, ORBITKV_OK);
	assert_int_equal(completion.blocks, 5);
	assert_int_equal(completion.remote_bytes, PAGE);
	assert_int_equal(completion.lease, 0);
	assert_int_equal(stage->arena.base[4 * PAGE], 5);
	call = take_request(stage, OKV_RING_RELEASE);
	assert_int_equal(call.request.lease, 77);
	answer(stage, &call, (struct okv_ring_reply){0}, NULL);
	assert_false(poll_client(stage, &completion));
	assert_true(client_is_idle(stage));
}

static void a_fetch_of_what_nobody_has_is_an_ordinary_answer(void **state)
{
	struct stage *stage = *state;
	struct orbitkv_completion completion;
	struct orbitkv_block blocks[2];
	struct okv_ring_call call;

	meet(stage);
	chain(stage, blocks, 2);
	orbitkv_client_fetch(stage->client, blocks, 2);
	call = take_request(stage, OKV_RING_PREPARE);
	answer(stage, &call, (struct okv_ring_reply){0}, NULL);
	assert_true(poll_client(stage, &completion));
	assert_int_equal(completion.status, ORBITKV_OK);
	assert_int_equal(completion.blocks, 0);
	assert_true(client_is_idle(stage));
}

static void a_damaged_page_ends_the_copy_is_reported_and_then_released(void **state)
{
	struct stage *stage = *state;
	struct orbitkv_completion completion;
	struct orbitkv_block blocks[4];
	struct okv_ring_grant grants[4];
	struct okv_ring_call call;

	meet(stage);
	chain(stage, blocks, 4);
	grant(stage, grants, 4);
	stage->pool.base[grants[2].pool_offset + 5000] ^= 0x10; /* one bit of the third page */
	orbitkv_client_fetch(stage->client, blocks, 4);
	call = take_request(stage, OKV_RING_PREPARE);
	answer(stage, &call, (struct okv_ring_reply){.count = 4, .lease = 7}, NULL);
	assert_false(poll_client(stage, &completion));
	call = take_request(stage, OKV_RING_RESTORE);
	answer(stage, &call, (struct okv_ring_reply){.count = 4}, grants);
	assert_false(poll_client(stage, &completion));

	call = take_request(stage, OKV_RING_REPORT_DAMAGED);
	assert_int_equal(call.request.lease, 7);
	assert_int_equal(call.request.index, 2);
	answer(stage, &call, (struct okv_ring_reply){0}, NULL);
	assert_true(poll_client(stage, &completion));
	assert_int_equal(completion.status, ORBITKV_DAMAGED);
	assert_int_equal(completion.blocks, 2);
	call = take_request(stage, OKV_RING_RELEASE);
	answer(stage, &call, (struct okv_ring_reply){0}, NULL);
	assert_false(poll_client(stage, &completion));
}

static void a_grant_outside_the_pool_is_never_read(void **state)
{
	struct stage *stage = *state;
	struct orbitkv_completion completion;
	struct okv_ring_grant grant = {.pool_offset = POOL_PAGES * PAGE - 1, .length = PAGE};
	uint64_t place = 0;

	meet(stage);
	for (int i = 0; i < 3; i++) {
		orbitkv_client_restore(stage->client, 1, &place, 1);
		struct okv_ring_call call = take_request(stage, OKV_RING_RESTORE);
		answer(stage, &call, (struct okv_ring_reply){.count = 1}, &grant);
		assert_true(poll_client(stage, &completion));
		assert_int_equal(completion.status, ORBITKV_INVALID);
		assert_int_equal(completion.blocks, 0);
		grant = i == 0 ? (struct okv_ring_grant){.pool_offset = UINT64_MAX - 5, .length = PAGE}
			       : (struct okv_ring_grant){.pool_offset = 0, .length = PAGE - 1};
	}
}

static void a_cancelled_prepare_asks_the_manager_and_takes_its_answer(void **state)
{
	struct stage *stage = *state;
	struct orbitkv_completion completion;
	struct orbitkv_block blocks[2];
	struct okv_ring_call prepare, cancel;
	uint64_t handle;

	meet(stage);
	chain(stage, blocks, 2);
	handle = orbitkv_client_fetch(stage->client, blocks, 2);
	prepare = take_request(stage, OKV_RING_PREPARE);
	orbitkv_client_cancel(stage->client, handle);
	orbitkv_client_cancel(stage->client, handle);
	orbitkv_client_cancel(stage->client, 999);
	assert_false(poll_client(stage, &completion));
	cancel = take_request(stage, OKV_RING_CANCEL);
	assert_int_equal(cancel.request.target_slot, prepare.request.slot);
	assert_int_equal(cancel.request.target_generation, prepare.request.generation);
	answer(stage, &prepare, (struct okv_ring_reply){.status = OKV_ERR_CANCELLED}, NULL);
	answer(stage, &cancel, (struct okv_ring_reply){0}, NULL);
	assert_true(poll_client(stage, &completion));
	assert_int_equal(completion.status, ORBITKV_CANCELLED);

	/* The answer was on its way already: the lease that came is given back. */
	handle = orbitkv_client_fetch(stage->client, blocks, 2);
	prepare = take_request(stage, OKV_RING_PREPARE);
	orbitkv_client_cancel(stage->client, handle);
	answer(stage, &prepare, (struct okv_ring_reply){.count = 2, .lease = 4}, NULL);
	assert_true(poll_client(stage, &completion));
	assert_int_equal(completion.status, ORBITKV_CANCELLED);
	assert_int_equal(completion.blocks, 0);
	assert_int_equal(take_request(stage, OKV_RING_RELEASE).request.lease, 4);
}

static void a_cancelled_copy_stops_between_slices(void **state)
{
	struct stage *stage = *state;
	struct orbitkv_completion completion;
	struct okv_ring_grant grants[10];
	uint64_t places[10], handle;

	meet(stage);
	grant(stage, grants, 10);
	for (uint32_t i = 0; i < 10; i++)
		places[i] = i * PAGE;
	handle = orbitkv_client_restore(stage->client, 1, places, 10);
	struct okv_ring_call call = take_request(stage, OKV_RING_RESTORE);
	answer(stage, &call, (struct okv_ring_reply){.count = 10}, grants);
	assert_false(poll_client(stage, &completion));
	orbitkv_client_cancel(stage->client, handle);
	assert_true(poll_client(stage, &completion));
	assert_int_equal(completion.status, ORBITKV_CANCELLED);
	assert_int_equal(completion.blocks, 4);
	assert_int_equal(stage->arena.base[4 * PAGE], 0);
}

static void a_lost_manager_completes_everything_and_is_found_again(void **state)
{
	struct stage *stage = *state;
	struct orbitkv_completion completion;
	struct orbitkv_block blocks[2];
	uint64_t handles[3];

	meet(stage);
	chain(stage, blocks, 2);
	handles[0] = orbitkv_client_publish(stage->client, blocks, 2);
	handles[1] = orbitkv_client_fetch(stage->client, blocks, 2);
	handles[2] = orbitkv_client_query(stage->client, blocks, 2);
	hang_up(stage);
	for (int i = 0; i < 3; i++) {
		assert_true(poll_client(stage, &completion));
		assert_int_equal(completion.handle, handles[i]);
		assert_int_equal(completion.status, ORBITKV_DISCONNECTED);
		assert_int_equal(completion.blocks, 0);
	}
	assert_false(orbitkv_client_is_connected(stage->client));
	assert_non_null(strstr(orbitkv_client_problem(stage->client), "is gone"));
	assert_int_equal(orbitkv_client_query(stage->client, blocks, 2), 0);

	/* Nobody listens for a while. */
	close(stage->listener);
	unlink(stage->path);
	assert_false(poll_client(stage, &completion));
	assert_non_null(strstr(orbitkv_client_problem(stage->client), "no manager answers at"));
	listen_again(stage);
	meet(stage);
	assert_int_equal(stage->hello.previous_session, 5); /* nothing of it is read any more */
	assert_true(orbitkv_client_query(stage->client, blocks, 2) != 0);
}

static void a_refusal_is_told_and_tried_again(void **state)
{
	struct stage *stage = *state;
	struct orbitkv_completion completion;
	struct okv_session_message refuse = {.type = OKV_SESSION_REFUSE,
					     .refuse = {.status = OKV_ERR_BUSY, .text = "too many engines"}};

	take_hello(stage);
	send_message(stage, &refuse, NULL, 0);
	assert_false(poll_client(stage, &completion));
	assert_string_equal(orbitkv_client_problem(stage->client), "the manager refuses: too many engines");
	hang_up(stage);
	meet(stage);
}

static void a_manager_that_breaks_the_protocol_is_left(void **state)
{
	struct stage *stage = *state;
	struct orbitkv_completion completion;
	struct okv_session_message bye = {.type = OKV_SESSION_BYE};

	meet(stage);
	send_message(stage, &bye, NULL, 0);
	assert_false(poll_client(stage, &completion));
	assert_false(orbitkv_client_is_connected(stage->client));
	hang_up(stage);

	take_hello(stage);
	assert_int_equal(okv_channel_send(stage->socket, "what?", 5, NULL, 0), OKV_OK);
	assert_false(poll_client(stage, &completion));
	assert_non_null(strstr(orbitkv_client_problem(stage->client), "does not speak"));
	hang_up(stage);

	struct okv_session_message accept = {
		.type = OKV_SESSION_ACCEPT,
		.accept = {.session = 5, .pool_bytes = stage->pool.size + 4096, .verification = 1}};
	take_hello(stage);
	send_message(stage, &accept, &stage->pool.fd, 1); /* a pool of another size than it says */
	assert_false(poll_client(stage, &completion));
	assert_non_null(strstr(orbitkv_client_problem(stage->client), "announced"));
	hang_up(stage);
	take_hello(stage);
	send_message(stage, &accept, NULL, 0);
	assert_false(poll_client(stage, &completion));
	assert_non_null(strstr(orbitkv_client_problem(stage->client), "no pool"));
}

static void too_many_calls_and_impossible_blocks_are_not_started(void **state)
{
	struct stage *stage = *state;
	struct orbitkv_completion completion;
	static struct orbitkv_block blocks[OKV_RING_BLOCKS_MAX + 1];
	uint64_t place = PAGES * PAGE;
	int started = 0;

	meet(stage);
	chain(stage, blocks, 2);
	assert_int_equal(orbitkv_client_blocks_max(stage->client), OKV_RING_BLOCKS_MAX);
	assert_int_equal(orbitkv_client_query(stage->client, blocks, 0), 0);
	assert_int_equal(orbitkv_client_query(stage->client, blocks, OKV_RING_BLOCKS_MAX + 1), 0);
	blocks[1].arena_offset = PAGES * PAGE - 1;
	assert_int_equal(orbitkv_client_fetch(stage->client, blocks, 2), 0);
	chain(stage, blocks, 2);
	blocks[1].token_count = TOKENS + 1;
	assert_int_equal(orbitkv_client_publish(stage->client, blocks, 2), 0);
	assert_int_equal(orbitkv_client_restore(stage->client, 1, &place, 1), 0);
	assert_int_equal(orbitkv_client_restore(stage->client, 1, &place, 0), 0);

	chain(stage, blocks, 2);
	while (orbitkv_client_query(stage->client, blocks, 1))
		started++;
	assert_int_equal(started, 24);
	for (int i = 0; i < started; i++) {
		struct okv_ring_call call = take_request(stage, OKV_RING_QUERY);

		answer(stage, &call, (struct okv_ring_reply){.count = 1}, NULL);
	}
	for (int i = 0; i < started; i++)
		assert_true(poll_client(stage, &completion));
	assert_true(client_is_idle(stage));
	assert_true(orbitkv_client_query(stage->client, blocks, 1) != 0);
}

/* ---- fault loops ---- */

/* Polls as long as there is something to do; counts completions, of which the last is left. */
static unsigned poll_until_idle(struct stage *stage, struct orbitkv_completion *completion)
{
	unsigned completed = 0;

	while (!client_is_idle(stage))
		completed += orbitkv_client_poll(stage->client, completion);
	return completed;
}

/* A fetch of three pages by a manager that hangs up after so many answers: three are all. False: not started. */
static bool fetch_three(struct stage *stage, int answers, struct orbitkv_completion *completion)
{
	static const enum okv_ring_op asked[] = {OKV_RING_PREPARE, OKV_RING_RESTORE, OKV_RING_RELEASE};
	static const struct okv_ring_reply reply[] = {{.count = 3, .lease = 7}, {.count = 3}, {0}};
	struct okv_ring_grant grants[3];
	struct orbitkv_block blocks[3];
	unsigned completed = 0;

	chain(stage, blocks, 3);
	grant(stage, grants, 3);
	uint64_t handle = orbitkv_client_fetch(stage->client, blocks, 3);
	if (handle == 0)
		return false;
	for (int i = 0; i < 3; i++) {
		struct okv_ring_call call = take_request(stage, asked[i]);

		if (i < answers)
			answer(stage, &call, reply[i], asked[i] == OKV_RING_RESTORE ? grants : NULL);
		else
			hang_up(stage);
		completed += poll_until_idle(stage, completion);
		if (i == answers)
			break;
	}
	assert_int_equal(completed, 1);
	assert_int_equal(completion->handle, handle);
	return true;
}

/* One client's life, in which one allocation fails. False: there was none left to fail. */
static bool live_with_a_failure(struct stage *stage, int n)
{
	struct orbitkv_client_options options = options_of(stage);
	struct orbitkv_completion completion;

	fail_alloc(n);
	enum orbitkv_status status = orbitkv_client_open(ORBITKV_CLIENT_VERSION, &options, &stage->client, NULL, 0);
	if (status != ORBITKV_OK) {
		assert_int_equal(status, ORBITKV_NO_MEMORY);
		return end_fail_alloc();
	}
	meet(stage);
	bool is_started = fetch_three(stage, 3, &completion);
	bool has_failed = end_fail_alloc();
	if (is_started)
		assert_int_equal(completion.status, has_failed ? ORBITKV_NO_MEMORY : ORBITKV_OK);
	assert_true(is_started || has_failed);
	assert_true(fetch_three(stage, 3, &completion));
	assert_int_equal(completion.status, ORBITKV_OK);
	assert_int_equal(completion.blocks, 3);
	orbitkv_client_close(stage->client);
	stage->client = NULL;
	hang_up(stage);
	return has_failed;
}

static void any_allocation_may_fail_and_the_next_fetch_brings_all(void **state)
{
	struct stage *stage = *state;
	int runs = 0;

	orbitkv_client_close(stage->client);
	stage->client = NULL;
	while (live_with_a_failure(stage, runs))
		runs++;
	assert_int_equal(runs, 3); /* the client; the places and the grants of its fetch */
}

static void a_manager_may_hang_up_at_any_answer(void **state)
{
	struct stage *stage = *state;
	struct orbitkv_completion completion;

	for (int answers = 0; answers < 3; answers++) {
		meet(stage);
		assert_true(fetch_three(stage, answers, &completion));
		/* The pages are there before the lease is given back. */
		assert_int_equal(completion.status, answers == 2 ? ORBITKV_OK : ORBITKV_DISCONNECTED);
		meet(stage);
		assert_true(fetch_three(stage, 3, &completion));
		assert_int_equal(completion.status, ORBITKV_OK);
		hang_up(stage);
		poll_until_idle(stage, &completion);
	}
}

static void wrong_options_are_refused_with_a_sentence(void **state)
{
	struct stage *stage = *state;
	struct orbitkv_client_options options = options_of(stage);
	struct orbitkv_client *client;
	char problem[200], longer[200];

	assert_int_equal(orbitkv_client_open(99, &options, &client, problem, sizeof(problem)), ORBITKV_INVALID);
	assert_non_null(strstr(problem, "client version 99"));
	memset(longer, 'x', sizeof(longer) - 1);
	longer[sizeof(longer) - 1] = '\0';
	options.socket_path = longer;
	assert_int_equal(orbitkv_client_open(1, &options, &client, problem, sizeof(problem)), ORBITKV_INVALID);
	assert_non_null(strstr(problem, "107 bytes"));
	options = options_of(stage);
	options.key_size--;
	assert_int_equal(orbitkv_client_open(1, &options, &client, problem, sizeof(problem)), ORBITKV_INVALID);
	assert_non_null(strstr(problem, "isolation_domain"));
	options = options_of(stage);
	options.arena_bytes = PAGE - 1;
	assert_int_equal(orbitkv_client_open(1, &options, &client, problem, sizeof(problem)), ORBITKV_INVALID);
	assert_non_null(strstr(problem, "arena"));
	options = options_of(stage);
	options.arena_fd = -1;
	assert_int_equal(orbitkv_client_open(1, &options, &client, problem, sizeof(problem)), ORBITKV_NO_MEMORY);
	orbitkv_client_close(NULL);
}

#define CLIENT_TEST(name) cmocka_unit_test_setup_teardown(name, set_up, tear_down)

int main(void)
{
	const struct CMUnitTest tests[] = {
		CLIENT_TEST(publish_query_and_release_say_what_the_manager_said),
		CLIENT_TEST(prepare_then_restore_copies_every_page_to_its_place),
		CLIENT_TEST(fetch_completes_with_the_pages_and_releases_by_itself),
		CLIENT_TEST(a_fetch_of_what_nobody_has_is_an_ordinary_answer),
		CLIENT_TEST(a_damaged_page_ends_the_copy_is_reported_and_then_released),
		CLIENT_TEST(a_grant_outside_the_pool_is_never_read),
		CLIENT_TEST(a_cancelled_prepare_asks_the_manager_and_takes_its_answer),
		CLIENT_TEST(a_cancelled_copy_stops_between_slices),
		CLIENT_TEST(a_lost_manager_completes_everything_and_is_found_again),
		CLIENT_TEST(a_refusal_is_told_and_tried_again),
		CLIENT_TEST(a_manager_that_breaks_the_protocol_is_left),
		CLIENT_TEST(too_many_calls_and_impossible_blocks_are_not_started),
		CLIENT_TEST(any_allocation_may_fail_and_the_next_fetch_brings_all),
		CLIENT_TEST(a_manager_may_hang_up_at_any_answer),
		CLIENT_TEST(wrong_options_are_refused_with_a_sentence),
	};
	return cmocka_run_group_tests_name("client", tests, NULL, NULL);
}
