#include <fcntl.h>
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/epoll.h>
#include <sys/eventfd.h>
#include <sys/timerfd.h>
#include <unistd.h>

#include "client_object.h"
#include "okv/base/alloc.h"
#include "okv/session/channel.h"

static enum okv_status check_options(const struct orbitkv_client_options *options, struct okv_session_hello *hello,
				     struct okv_reason *reason)
{
	enum okv_status status = okv_key_decode(options->key, options->key_size, &hello->key, reason);

	if (status != OKV_OK)
		return status;
	if (strlen(options->socket_path) >= SOCKET_PATH_SIZE)
		return okv_refuse(reason, OKV_ERR_INVALID, "socket",
				  "the manager's socket path has more than the %zu bytes that the system allows",
				  SOCKET_PATH_SIZE - 1);
	hello->page_bytes = okv_key_page_bytes(&hello->key);
	hello->arena_bytes = options->arena_bytes;
	snprintf(hello->name, sizeof(hello->name), "%s", options->name);

	/* The manager's own checks, so that a wrong option is known here and not at each connection. */
	struct okv_session_message message = {.type = OKV_SESSION_HELLO, .hello = *hello};
	uint8_t bytes[OKV_SESSION_MESSAGE_MAX];
	return okv_session_decode(bytes, okv_session_encode(&message, bytes), &message, reason);
}

/* An epoll instance that is readable while the timer is due or work is signalled. */
static enum okv_status open_fds(struct orbitkv_client *client, int arena_fd)
{
	struct epoll_event readable = {.events = EPOLLIN};

	client->arena_fd = fcntl(arena_fd, F_DUPFD_CLOEXEC, 0);
	client->epoll_fd = epoll_create1(EPOLL_CLOEXEC);
	client->timer_fd = timerfd_create(CLOCK_MONOTONIC, TFD_CLOEXEC | TFD_NONBLOCK);
	client->work_fd = eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK);
	if (client->arena_fd < 0 || client->epoll_fd < 0 || client->timer_fd < 0 || client->work_fd < 0 ||
	    epoll_ctl(client->epoll_fd, EPOLL_CTL_ADD, client->timer_fd, &readable) != 0 ||
	    epoll_ctl(client->epoll_fd, EPOLL_CTL_ADD, client->work_fd, &readable) != 0)
		return OKV_ERR_IO;
	return OKV_OK;
}

static void close_fd(int fd)
{
	if (fd >= 0)
		close(fd);
}

static void free_client(struct orbitkv_client *client)
{
	close_fd(client->arena_fd);
	close_fd(client->timer_fd);
	close_fd(client->work_fd);
	close_fd(client->epoll_fd);
	free(client);
}

/* Keeps work_fd readable exactly while poll has something to do beside the socket. */
static void signal_work(struct orbitkv_client *client)
{
	bool is_due = client->completed_count > 0 || okv__operations_have_work(client);
	uint64_t value = 1;

	if (is_due == client->work_is_signalled)
		return;
	client->work_is_signalled = is_due;
	if (is_due ? write(client->work_fd, &value, sizeof(value)) < 0
		   : read(client->work_fd, &value, sizeof(value)) < 0)
		client->work_is_signalled = !is_due; /* tried again at the next poll */
}

enum orbitkv_status orbitkv_client_open(int version, const struct orbitkv_client_options *options,
					struct orbitkv_client **ret_client, char *ret_problem, size_t problem_size)
{
	struct okv_session_hello hello = {0};
	struct okv_reason reason = {0};
	enum orbitkv_status status = ORBITKV_INVALID;
	struct orbitkv_client *client = NULL;

	if (version != ORBITKV_CLIENT_VERSION) {
		(void)okv_refuse(&reason, OKV_ERR_VERSION, "version",
				 "the program was compiled for client version %d, this library has version %d", version,
				 ORBITKV_CLIENT_VERSION);
		goto refuse;
	}
	if (check_options(options, &hello, &reason) != OKV_OK)
		goto refuse;
	client = okv_alloc(1, sizeof(*client));
	if (!client) {
		status = ORBITKV_NO_MEMORY;
		goto refuse;
	}
	client->hello = hello;
	client->arena = options->arena;
	client->socket = client->ring_region.fd = client->pool.fd = -1;
	client->next_handle = 1;
	memcpy(client->socket_path, options->socket_path, strlen(options->socket_path) + 1); /* it was checked */
	if (open_fds(client, options->arena_fd) != OKV_OK) {
		(void)okv_refuse(&reason, OKV_ERR_IO, "client", "no descriptors for the client");
		status = ORBITKV_NO_MEMORY;
		goto refuse;
	}
	okv__client_disconnect(client); /* plans the first try */
	(void)okv_refuse(&client->problem, OKV_ERR_DISCONNECTED, "manager", "not connected yet");
	*ret_client = client;
	return ORBITKV_OK;

refuse:
	if (client)
		free_client(client);
	if (ret_problem && problem_size)
		snprintf(ret_problem, problem_size, "%s", reason.text[0] ? reason.text : "no memory for the client");
	return status;
}

void orbitkv_client_close(struct orbitkv_client *client)
{
	uint8_t bytes[OKV_SESSION_MESSAGE_MAX];
	struct okv_session_message bye = {.type = OKV_SESSION_BYE};

	if (!client)
		return;
	if (client->state == CONNECTION_READY)
		(void)!okv_channel_send(client->socket, bytes, okv_session_encode(&bye, bytes), NULL, 0);
	okv__client_disconnect(client);
	free_client(client);
}

/* Writes the blocks of a request, token ids too for a publish. Returns how many token ids. */
static uint32_t write_blocks(struct orbitkv_client *client, uint32_t slot, const struct orbitkv_block *blocks,
			     uint32_t count, bool with_tokens)
{
	struct okv_ring_block *to = okv_ring_client_blocks(&client->ring, slot);
	uint32_t *tokens = (uint32_t *)(void *)(to + count), written = 0;

	for (uint32_t i = 0; i < count; i++) {
		memcpy(&to[i].hash, blocks[i].hash, sizeof(to[i].hash));
		memcpy(&to[i].parent, blocks[i].parent, sizeof(to[i].parent));
		memcpy(&to[i].lineage, blocks[i].lineage, sizeof(to[i].lineage));
		to[i].arena_offset = blocks[i].arena_offset;
		to[i].token_count = blocks[i].token_count;
		to[i].reserved = 0;
		if (with_tokens) {
			memcpy(tokens + written, blocks[i].tokens, blocks[i].token_count * sizeof(uint32_t));
			written += blocks[i].token_count;
		}
	}
	return written;
}

static bool are_places(const struct orbitkv_client *client, const struct orbitkv_block *blocks, uint32_t count)
{
	if (count == 0 || count > orbitkv_client_blocks_max(client))
		return false;
	for (uint32_t i = 0; i < count; i++)
		if (blocks[i].token_count < 1 || blocks[i].token_count > client->hello.key.page_tokens ||
		    blocks[i].arena_offset > client->hello.arena_bytes - client->hello.page_bytes)
			return false;
	return true;
}

static uint64_t start_with_blocks(struct orbitkv_client *client, enum okv_ring_op call,
				  const struct orbitkv_block *blocks, uint32_t count, bool is_fetch)
{
	struct okv_ring_request request = {.op = call, .count = count};
	struct operation *operation;

	if (!are_places(client, blocks, count))
		return 0;
	operation = okv__operation_start(client, call);
	if (!operation)
		return 0;
	if (is_fetch) {
		operation->is_fetch = true;
		operation->count = count;
		operation->arena_offset = okv_alloc(count, sizeof(uint64_t));
		if (!operation->arena_offset) {
			okv__operation_abandon(client, operation);
			return 0;
		}
		for (uint32_t i = 0; i < count; i++)
			operation->arena_offset[i] = blocks[i].arena_offset;
	}
	request.tokens = write_blocks(client, (uint32_t)(operation - client->operation), blocks, count,
				      call == OKV_RING_PUBLISH);
	okv__operation_ask(client, operation, request);
	return operation->completion.handle;
}

uint32_t orbitkv_client_blocks_max(const struct orbitkv_client *client)
{
	return okv_ring_publish_blocks_max(client->hello.key.page_tokens);
}

uint64_t orbitkv_client_publish(struct orbitkv_client *client, const struct orbitkv_block *blocks, uint32_t count)
{
	return start_with_blocks(client, OKV_RING_PUBLISH, blocks, count, false);
}

uint64_t orbitkv_client_query(struct orbitkv_client *client, const struct orbitkv_block *blocks, uint32_t count)
{
	return start_with_blocks(client, OKV_RING_QUERY, blocks, count, false);
}

uint64_t orbitkv_client_prepare(struct orbitkv_client *client, const struct orbitkv_block *blocks, uint32_t count)
{
	return start_with_blocks(client, OKV_RING_PREPARE, blocks, count, false);
}

uint64_t orbitkv_client_fetch(struct orbitkv_client *client, const struct orbitkv_block *blocks, uint32_t count)
{
	return start_with_blocks(client, OKV_RING_PREPARE, blocks, count, true);
}

uint64_t orbitkv_client_restore(struct orbitkv_client *client, uint64_t lease, const uint64_t *arena_offsets,
				uint32_t count)
{
	struct operation *operation;

	if (count == 0 || count > orbitkv_client_blocks_max(client))
		return 0;
	for (uint32_t i = 0; i < count; i++)
		if (arena_offsets[i] > client->hello.arena_bytes - client->hello.page_bytes)
			return 0;
	operation = okv__operation_start(client, OKV_RING_RESTORE);
	if (!operation)
		return 0;
	operation->count = count;
	operation->arena_offset = okv_alloc(count, sizeof(uint64_t));
	if (!operation->arena_offset) {
		okv__operation_abandon(client, operation);
		return 0;
	}
	memcpy(operation->arena_offset, arena_offsets, count * sizeof(uint64_t));
	operation->completion.lease = lease;
	okv__operation_ask(client, operation, (struct okv_ring_request){.op = OKV_RING_RESTORE, .lease = lease});
	return operation->completion.handle;
}

uint64_t orbitkv_client_release(struct orbitkv_client *client, uint64_t lease)
{
	struct operation *operation = okv__operation_start(client, OKV_RING_RELEASE);

	if (!operation)
		return 0;
	okv__operation_ask(client, operation, (struct okv_ring_request){.op = OKV_RING_RELEASE, .lease = lease});
	return operation->completion.handle;
}

void orbitkv_client_cancel(struct orbitkv_client *client, uint64_t handle)
{
	for (int i = 0; i < OPERATIONS_MAX; i++) {
		struct operation *operation = &client->operation[i];

		if (operation->state == OPERATION_FREE || operation->is_completed ||
		    operation->completion.handle != handle || operation->is_cancelled)
			continue;
		operation->is_cancelled = true;
		operation->cancel_is_due = operation->state == OPERATION_ASKED && operation->asked == OKV_RING_PREPARE;
	}
	signal_work(client);
}

bool orbitkv_client_poll(struct orbitkv_client *client, struct orbitkv_completion *ret_completion)
{
	bool is_taken = false;

	okv__client_connect_step(client);
	if (client->state == CONNECTION_READY)
		okv__operations_take_answers(client);
	if (client->state == CONNECTION_READY)
		okv__operations_work(client);
	if (client->completed_count) {
		*ret_completion = client->completed[client->completed_first];
		client->completed_first = (client->completed_first + 1) % OPERATIONS_MAX;
		client->completed_count--;
		client->due--;
		is_taken = true;
	}
	signal_work(client);
	return is_taken;
}

int orbitkv_client_fd(const struct orbitkv_client *client)
{
	return client->epoll_fd;
}

bool orbitkv_client_is_connected(const struct orbitkv_client *client)
{
	return client->state == CONNECTION_READY;
}

const char *orbitkv_client_problem(const struct orbitkv_client *client)
{
	return client->state == CONNECTION_READY ? "" : client->problem.text;
}
