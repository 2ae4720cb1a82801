#include "engine_stand_in.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <arpa/inet.h>
#include <errno.h>
#include <netinet/in.h>
#include <poll.h>
#include <sched.h>
#include <sys/socket.h>
#include <sys/un.h>
#include <unistd.h>

#include <cmocka.h>

void stage_prepare(struct stage *stage)
{
	struct okv_reason reason = {0};

	*stage = (struct stage){.folder = "okv-manager-XXXXXX", .now_ns = 1000 * OKV_NS_PER_S};
	assert_non_null(mkdtemp(stage->folder));
	snprintf(stage->path, sizeof(stage->path), "%s/manager", stage->folder);
	assert_int_equal(okv_loop_create(okv_clock_virtual(&stage->now_ns), &stage->loop, &reason), OKV_OK);
}

void stage_start(struct stage *stage, uint64_t pool_bytes, const char *faults, uint16_t peer_port)
{
	struct okv_reason reason = {0};
	char peer[32];
	const char *const peers[] = {peer};

	snprintf(peer, sizeof(peer), "127.0.0.1:%u", peer_port);
	const struct okv_manager_options options = {
		.socket_path = stage->path,
		.pool_bytes = pool_bytes,
		.http_address = "127.0.0.1",
		.listen_address = "",
		.peers = peers,
		.peer_count = peer_port ? 1 : 0,
		.peer_deadline_ns = 3 * OKV_NS_PER_S,
		.faults = faults,
	};
	assert_int_equal(okv_manager_create(stage->loop, &options, &stage->manager, &reason), OKV_OK);
}

void stage_open(struct stage *stage, uint64_t pool_bytes, const char *faults)
{
	stage_prepare(stage);
	stage_start(stage, pool_bytes, faults, 0);
}

static void stopped(void *context)
{
	((struct stage *)context)->is_stopped = true;
}

void stage_close(struct stage *stage)
{
	okv_manager_shutdown(stage->manager, stopped, stage);
	STAGE_UNTIL(stage, stage->is_stopped);
	okv_manager_destroy(stage->manager);
	okv_loop_destroy(stage->loop);
	assert_int_not_equal(access(stage->path, F_OK), 0);
	assert_int_equal(rmdir(stage->folder), 0);
}

void stage_turn(struct stage *stage)
{
	okv_loop_turn(stage->loop);
	poll(NULL, 0, stage->manager && stage->manager->jobs_done != stage->manager->jobs_submitted ? 1 : 0);
}

void engine_connect(struct stage *stage, struct engine *engine)
{
	struct sockaddr_un address = {.sun_family = AF_UNIX};

	*engine = (struct engine){.stage = stage};
	engine->pool.fd = -1;
	assert_int_equal(okv_region_create("arena", ARENA_PAGES * PAGE, &engine->arena, NULL), OKV_OK);
	assert_int_equal(okv_region_create("ring", okv_ring_bytes(), &engine->ring_region, NULL), OKV_OK);
	okv_ring_client_init(&engine->ring, engine->ring_region.base);
	strcpy(address.sun_path, stage->path);
	engine->socket = socket(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0);
	assert_int_equal(connect(engine->socket, (struct sockaddr *)&address, sizeof(address)), 0);
}

bool engine_read_socket(struct engine *engine)
{
	uint8_t bytes[OKV_SESSION_MESSAGE_MAX];
	struct okv_session_message message;
	struct okv_channel_packet packet;
	struct okv_reason reason;
	enum okv_status status;

	while ((status = okv_channel_receive(engine->socket, bytes, sizeof(bytes), 1, &packet)) == OKV_OK) {
		assert_int_equal(okv_session_decode(bytes, packet.size, &message, &reason), OKV_OK);
		if (message.type == OKV_SESSION_REFUSE)
			engine->refusal = message.refuse;
		if (message.type == OKV_SESSION_ACCEPT) {
			engine->session = message.accept.session;
			assert_int_equal(packet.fd_count, 1);
			assert_int_equal(
				okv_region_open(packet.fd[0], message.accept.pool_bytes, false, &engine->pool, NULL),
				OKV_OK);
		}
	}
	return status == OKV_ERR_ABSENT;
}

void engine_attach(struct stage *stage, struct engine *engine, uint64_t previous_session)
{
	struct okv_session_message hello = {
		.type = OKV_SESSION_HELLO,
		.hello = {.key = tiny_key(),
			  .page_bytes = PAGE,
			  .arena_bytes = ARENA_PAGES * PAGE,
			  .previous_session = previous_session,
			  .name = "stand-in"},
	};
	uint8_t bytes[OKV_SESSION_MESSAGE_MAX];

	engine_connect(stage, engine);
	const int fds[] = {engine->arena.fd, engine->ring_region.fd};
	assert_int_equal(okv_channel_send(engine->socket, bytes, okv_session_encode(&hello, bytes), fds, 2), OKV_OK);
	STAGE_UNTIL(stage, engine_read_socket(engine) ? engine->session != 0 : engine->refusal.status != OKV_OK);
}

void engine_drop(struct engine *engine)
{
	close(engine->socket);
	okv_region_close(&engine->arena);
	okv_region_close(&engine->ring_region);
	okv_region_close(&engine->pool);
}

uint8_t engine_byte(uint32_t seed, uint32_t page)
{
	return (uint8_t)(seed * 31 + page * 7 + 1);
}

static void ring_bell(struct engine *engine)
{
	struct okv_session_message bell = {.type = OKV_SESSION_DOORBELL};
	uint8_t bytes[OKV_SESSION_MESSAGE_MAX];

	assert_int_equal(okv_channel_send(engine->socket, bytes, okv_session_encode(&bell, bytes), NULL, 0), OKV_OK);
}

uint32_t engine_send(struct engine *engine, struct okv_ring_request request)
{
	assert_true(okv_ring_client_take_slot(&engine->ring, &request.slot));
	okv_ring_client_send(&engine->ring, &request);
	ring_bell(engine);
	return request.slot;
}

static void page_tokens(uint32_t seed, uint32_t i, uint32_t ret_token[TOKENS])
{
	ret_token[0] = seed;
	ret_token[1] = i;
	ret_token[2] = 3;
	ret_token[3] = 4;
}

struct okv_ring_block engine_block(uint32_t seed, uint32_t i, const struct okv_hash *parent)
{
	struct okv_ring_block block = {.parent = *parent, .arena_offset = i * PAGE, .token_count = TOKENS};
	struct okv_materialisation_key key = tiny_key();
	struct okv_hash digest = okv_key_digest(&key);
	uint32_t token[TOKENS];

	page_tokens(seed, i, token);
	block.hash = okv_block_hash(&digest, parent, &block.lineage, token, TOKENS);
	return block;
}

uint32_t engine_send_piece(struct engine *engine, enum okv_ring_op op, uint32_t seed, uint32_t first, uint32_t end)
{
	uint32_t count = end - first;
	struct okv_ring_request request = {.op = op, .count = count};
	struct okv_hash parent = {{0}};

	for (uint32_t i = 0; i < first; i++)
		parent = engine_block(seed, i, &parent).hash;
	assert_true(okv_ring_client_take_slot(&engine->ring, &request.slot));
	struct okv_ring_block *block = okv_ring_client_blocks(&engine->ring, request.slot);
	uint32_t *tokens = (uint32_t *)(void *)(block + count);

	for (uint32_t i = first; i < end; i++, block++) {
		*block = engine_block(seed, i, &parent);
		parent = block->hash;
		if (op == OKV_RING_PUBLISH) {
			memset(engine->arena.base + i * PAGE, engine_byte(seed, i), PAGE);
			page_tokens(seed, i, tokens + request.tokens);
			request.tokens += TOKENS;
		}
	}
	okv_ring_client_send(&engine->ring, &request);
	ring_bell(engine);
	return request.slot;
}

uint32_t engine_send_chain(struct engine *engine, enum okv_ring_op op, uint32_t seed, uint32_t count)
{
	return engine_send_piece(engine, op, seed, 0, count);
}

struct okv_ring_reply engine_answer(struct engine *engine, uint32_t slot)
{
	struct okv_ring_reply reply = {.slot = UINT32_MAX};
	struct okv_reason reason;

	while (reply.slot != slot) {
		STAGE_UNTIL(engine->stage,
			    okv_ring_client_take(&engine->ring, &reply, engine->grants, &reason) == OKV_OK);
		okv_ring_client_give_slot(&engine->ring, reply.slot);
	}
	return reply;
}

struct okv_ring_reply engine_chain(struct engine *engine, enum okv_ring_op op, uint32_t seed, uint32_t count)
{
	return engine_answer(engine, engine_send_chain(engine, op, seed, count));
}

struct okv_ring_reply engine_lease(struct engine *engine, enum okv_ring_op op, uint64_t lease)
{
	return engine_answer(engine, engine_send(engine, (struct okv_ring_request){.op = op, .lease = lease}));
}

char *stage_http(struct stage *stage, const char *request_line)
{
	struct sockaddr_in address = {.sin_family = AF_INET,
				      .sin_port = htons(okv_manager_http_port(stage->manager)),
				      .sin_addr.s_addr = htonl(INADDR_LOOPBACK)};
	int fd = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
	char *text = calloc(1, 1 << 20);
	size_t size = 0;

	assert_non_null(text);
	assert_int_equal(connect(fd, (struct sockaddr *)&address, sizeof(address)), 0);
	size = (size_t)snprintf(text, 1000, "%s HTTP/1.1\r\nHost: x\r\nConnection: close\r\nContent-Length: 0\r\n\r\n",
				request_line);
	assert_int_equal(send(fd, text, size, 0), size);
	for (size = 0;;) {
		ssize_t got = recv(fd, text + size, (1 << 20) - size - 1, MSG_DONTWAIT);

		if (got == 0)
			break;
		if (got > 0)
			size += (size_t)got;
		else
			assert_int_equal(errno, EAGAIN);
		stage_turn(stage);
	}
	text[size] = '\0';
	close(fd);
	return text;
}

double stage_metric(struct stage *stage, const char *name)
{
	char *text = stage_http(stage, "GET /metrics");
	size_t length = strlen(name);
	double value = -1;

	for (char *line = text; line; line = strchr(line, '\n')) {
		line += *line == '\n';
		if (strncmp(line, name, length) == 0 && line[length] == ' ')
			value = strtod(line + length, NULL);
	}
	free(text);
	return value;
}
