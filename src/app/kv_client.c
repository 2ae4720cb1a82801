#include "kv_client.h"

#include <errno.h>
#include <poll.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/eventfd.h>
#include <unistd.h>

#include "okv/base/list.h"
#include "okv/base/log.h"
#include "orbitkv/client.h"

/* As many as the client itself runs at once. */
enum { OUTSTANDING_MAX = 24 };

enum order_kind { ORDER_RESTORE, ORDER_PUBLISH, ORDER_CANCEL };

struct order {
	struct okv_list node;
	enum order_kind kind;
	uint64_t handle;
	uint32_t count;
	struct orbitkv_block *blocks; /* owned, the token ids behind them too */
};

struct okv__kv_client {
	pthread_t thread;
	int order_fd, completion_fd; /* eventfds: wake the copy thread, the step thread */
	uint32_t blocks_max;

	pthread_mutex_t lock; /* guards what follows */
	struct okv_list orders;
	struct okv_kv_completion completed[OUTSTANDING_MAX]; /* a ring */
	uint32_t completed_first, completed_count;
	uint32_t outstanding; /* orders whose completion was not taken; at most OUTSTANDING_MAX */
	uint64_t next_handle;
	bool is_connected, is_stopping;

	/* The copy thread's own. */
	struct orbitkv_client *client;
	struct running {
		uint64_t handle, of_client; /* 0: free */
	} running[OUTSTANDING_MAX];
	char problem[OKV_REASON_TEXT_BYTES]; /* the last one that was logged */
};

static void wake(int fd)
{
	uint64_t one = 1;

	(void)!write(fd, &one, sizeof(one)); /* full means awake already */
}

static void clear(int fd)
{
	uint64_t count;

	(void)!read(fd, &count, sizeof(count));
}

/* ---- the step thread ---- */

/* An order about blocks, at least one of them, with copies of their token ids behind it; NULL without memory. */
static struct order *order_of(enum order_kind kind, const struct okv_kv_block *blocks, uint32_t count)
{
	struct order *order;
	size_t tokens = 0;

	OKV_ASSERT(count > 0);
	order = calloc(1, sizeof(*order));
	for (uint32_t i = 0; i < count; i++)
		tokens += blocks[i].token_count;
	if (order)
		order->blocks = malloc(count * sizeof(struct orbitkv_block) + tokens * sizeof(uint32_t));
	if (!order || !order->blocks) {
		free(order);
		return NULL;
	}
	order->kind = kind;
	order->count = count;

	uint32_t *ids = (uint32_t *)(void *)(order->blocks + count);
	for (uint32_t i = 0; i < count; i++) {
		struct orbitkv_block *block = &order->blocks[i];

		memcpy(block->hash, &blocks[i].hash, sizeof(block->hash));
		memcpy(block->parent, &blocks[i].parent, sizeof(block->parent));
		memcpy(block->lineage, &blocks[i].lineage, sizeof(block->lineage));
		block->token_count = blocks[i].token_count;
		block->arena_offset = blocks[i].page_offset;
		block->tokens = ids;
		memcpy(ids, blocks[i].tokens, blocks[i].token_count * sizeof(uint32_t));
		ids += blocks[i].token_count;
	}
	return order;
}

static void free_order(struct order *order)
{
	free(order->blocks);
	free(order);
}

static uint64_t give_order(struct okv__kv_client *client, enum order_kind kind, const struct okv_kv_block *blocks,
			   uint32_t count)
{
	struct order *order;
	uint64_t handle = 0;

	if (count == 0)
		return 0;
	order = order_of(kind, blocks, count < client->blocks_max ? count : client->blocks_max);
	if (!order)
		return 0;
	pthread_mutex_lock(&client->lock);
	if (client->is_connected && client->outstanding < OUTSTANDING_MAX) {
		handle = order->handle = client->next_handle++;
		client->outstanding++;
		okv_list_push_back(&client->orders, &order->node);
	}
	pthread_mutex_unlock(&client->lock);
	if (handle)
		wake(client->order_fd);
	else
		free_order(order);
	return handle;
}

static uint64_t source_restore(void *context, const struct okv_kv_block *blocks, uint32_t count)
{
	return give_order(context, ORDER_RESTORE, blocks, count);
}

static uint64_t source_publish(void *context, const struct okv_kv_block *blocks, uint32_t count)
{
	return give_order(context, ORDER_PUBLISH, blocks, count);
}

static void source_cancel(void *context, uint64_t handle)
{
	struct okv__kv_client *client = context;
	struct order *order = calloc(1, sizeof(*order));

	if (!order)
		return; /* it ends by itself, later */
	order->kind = ORDER_CANCEL;
	order->handle = handle;
	pthread_mutex_lock(&client->lock);
	okv_list_push_back(&client->orders, &order->node);
	pthread_mutex_unlock(&client->lock);
	wake(client->order_fd);
}

static bool source_poll(void *context, struct okv_kv_completion *ret_completion)
{
	struct okv__kv_client *client = context;
	bool is_taken = false;

	pthread_mutex_lock(&client->lock);
	if (client->completed_count) {
		*ret_completion = client->completed[client->completed_first];
		client->completed_first = (client->completed_first + 1) % OUTSTANDING_MAX;
		client->completed_count--;
		client->outstanding--;
		is_taken = true;
	}
	if (client->completed_count == 0)
		clear(client->completion_fd);
	pthread_mutex_unlock(&client->lock);
	return is_taken;
}

static int source_wait_fd(void *context)
{
	return ((struct okv__kv_client *)context)->completion_fd;
}

struct okv_kv_source okv__kv_client_source(struct okv__kv_client *client)
{
	return (struct okv_kv_source){
		.context = client,
		.restore = source_restore,
		.publish = source_publish,
		.cancel = source_cancel,
		.poll = source_poll,
		.wait_fd = source_wait_fd,
	};
}

/* ---- the copy thread ---- */

static enum okv_status status_of(enum orbitkv_status status)
{
	switch (status) {
	case ORBITKV_OK:
		return OKV_OK;
	case ORBITKV_INVALID:
		return OKV_ERR_INVALID;
	case ORBITKV_NO_SPACE:
		return OKV_ERR_NO_SPACE;
	case ORBITKV_STALE:
		return OKV_ERR_STALE;
	case ORBITKV_DAMAGED:
		return OKV_ERR_DAMAGED;
	case ORBITKV_CANCELLED:
		return OKV_ERR_CANCELLED;
	case ORBITKV_DISCONNECTED:
		return OKV_ERR_DISCONNECTED;
	case ORBITKV_NO_MEMORY:
		return OKV_ERR_NO_MEMORY;
	case ORBITKV_FAILED:
		return OKV_ERR_FAILED;
	}
	return OKV_ERR_INVALID;
}

static void complete(struct okv__kv_client *client, const struct okv_kv_completion *completion)
{
	pthread_mutex_lock(&client->lock);
	uint32_t at = (client->completed_first + client->completed_count) % OUTSTANDING_MAX;

	client->completed[at] = *completion;
	client->completed_count++;
	wake(client->completion_fd); /* under the lock: poll clears it under the lock */
	pthread_mutex_unlock(&client->lock);
}

/* The running order with `handle`, by our number; with 0 a free place, of which there is always one for an order. */
static struct running *running_of(struct okv__kv_client *client, uint64_t handle)
{
	for (int i = 0; i < OUTSTANDING_MAX; i++)
		if (client->running[i].handle == handle)
			return &client->running[i];
	return NULL;
}

static void start(struct okv__kv_client *client, const struct order *order)
{
	struct running *running;
	uint64_t of_client;

	if (order->kind == ORDER_CANCEL) {
		running = running_of(client, order->handle);
		if (running && order->handle)
			orbitkv_client_cancel(client->client, running->of_client);
		return;
	}
	of_client = order->kind == ORDER_RESTORE ? orbitkv_client_fetch(client->client, order->blocks, order->count)
						 : orbitkv_client_publish(client->client, order->blocks, order->count);
	running = running_of(client, 0);
	if (of_client == 0 || !running) {
		complete(client, &(struct okv_kv_completion){.handle = order->handle, .status = OKV_ERR_BUSY});
		return;
	}
	*running = (struct running){.handle = order->handle, .of_client = of_client};
}

/* Takes all orders. False when the thread is to end. */
static bool take_orders(struct okv__kv_client *client)
{
	struct okv_list orders;
	bool goes_on;

	okv_list_init(&orders);
	clear(client->order_fd);
	pthread_mutex_lock(&client->lock);
	while (!okv_list_is_empty(&client->orders)) {
		struct okv_list *first = client->orders.next;

		okv_list_remove(first);
		okv_list_push_back(&orders, first);
	}
	goes_on = !client->is_stopping;
	pthread_mutex_unlock(&client->lock);
	OKV_LIST_EACH_SAFE(node, &orders)
	{
		struct order *order = OKV_CONTAINER_OF(node, struct order, node);

		if (goes_on)
			start(client, order);
		free_order(order);
	}
	return goes_on;
}

static void take_completions(struct okv__kv_client *client)
{
	struct orbitkv_completion completion;

	if (!orbitkv_client_poll(client->client, &completion))
		return;
	for (int i = 0; i < OUTSTANDING_MAX; i++) {
		struct running *running = &client->running[i];

		if (running->handle == 0 || running->of_client != completion.handle)
			continue;
		complete(client, &(struct okv_kv_completion){.handle = running->handle,
							     .status = status_of(completion.status),
							     .blocks = completion.blocks,
							     .remote_bytes = completion.remote_bytes});
		*running = (struct running){0};
		return;
	}
}

static void note_connection(struct okv__kv_client *client)
{
	bool is_connected = orbitkv_client_is_connected(client->client);
	const char *problem = orbitkv_client_problem(client->client);

	if (is_connected && !client->is_connected) {
		okv_log(OKV_LOG_INFO, "cache", "attached to the cache manager");
		client->problem[0] = '\0';
	} else if (!is_connected && strcmp(problem, client->problem) != 0) {
		snprintf(client->problem, sizeof(client->problem), "%s", problem);
		okv_log(OKV_LOG_WARN, "cache", "going on without the shared cache: %s", problem);
	}
	if (is_connected != client->is_connected) {
		pthread_mutex_lock(&client->lock);
		client->is_connected = is_connected; /* written here only, so it was read without the lock above */
		pthread_mutex_unlock(&client->lock);
	}
}

static void *copy_thread(void *context)
{
	struct okv__kv_client *client = context;
	struct pollfd ready[] = {{.fd = client->order_fd, .events = POLLIN},
				 {.fd = orbitkv_client_fd(client->client), .events = POLLIN}};

	for (;;) {
		if (poll(ready, 2, -1) < 0 && errno != EINTR)
			break;
		if (ready[0].revents && !take_orders(client))
			break;
		if (ready[1].revents) {
			take_completions(client);
			note_connection(client);
		}
	}
	return NULL;
}

static void free_client(struct okv__kv_client *client)
{
	OKV_LIST_EACH_SAFE(node, &client->orders)
	free_order(OKV_CONTAINER_OF(node, struct order, node));
	orbitkv_client_close(client->client);
	if (client->order_fd >= 0)
		close(client->order_fd);
	if (client->completion_fd >= 0)
		close(client->completion_fd);
	pthread_mutex_destroy(&client->lock);
	free(client);
}

static enum okv_status open_client(struct okv__kv_client *client, const struct okv__kv_client_options *options,
				   struct okv_reason *reason)
{
	uint8_t key[OKV_KEY_ENCODED_MAX];
	char problem[OKV_REASON_TEXT_BYTES];
	const struct orbitkv_client_options of_client = {
		.socket_path = options->socket_path,
		.name = options->name,
		.key = key,
		.key_size = okv_key_encode(options->key, key),
		.arena_fd = options->arena->fd,
		.arena = options->arena->base,
		.arena_bytes = options->arena->size,
	};

	if (orbitkv_client_open(ORBITKV_CLIENT_VERSION, &of_client, &client->client, problem, sizeof(problem)) !=
	    ORBITKV_OK)
		return okv_refuse(reason, OKV_ERR_INVALID, "manager", "%s", problem);
	client->blocks_max = orbitkv_client_blocks_max(client->client);
	/* That nothing was tried yet is not worth a line. */
	snprintf(client->problem, sizeof(client->problem), "%s", orbitkv_client_problem(client->client));
	return OKV_OK;
}

enum okv_status okv__kv_client_create(const struct okv__kv_client_options *options, struct okv__kv_client **ret_client,
				      struct okv_reason *reason)
{
	struct okv__kv_client *client = calloc(1, sizeof(*client));
	enum okv_status status;

	if (!client)
		return okv_refuse(reason, OKV_ERR_NO_MEMORY, "manager", "no memory for the cache client");
	okv_list_init(&client->orders);
	pthread_mutex_init(&client->lock, NULL);
	client->next_handle = 1;
	client->order_fd = eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK);
	client->completion_fd = eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK);
	status = client->order_fd < 0 || client->completion_fd < 0
			 ? okv_refuse(reason, OKV_ERR_IO, "manager", "no descriptors for the cache client")
			 : open_client(client, options, reason);
	if (status != OKV_OK)
		goto free_client;

	int error = pthread_create(&client->thread, NULL, copy_thread, client);
	if (error) {
		status = okv_refuse(reason, okv_status_from_errno(error), "manager", "the copy thread cannot start: %s",
				    strerror(error));
		goto free_client;
	}
	*ret_client = client;
	return OKV_OK;

free_client:
	free_client(client);
	return status;
}

void okv__kv_client_destroy(struct okv__kv_client *client)
{
	if (!client)
		return;
	pthread_mutex_lock(&client->lock);
	client->is_stopping = true;
	pthread_mutex_unlock(&client->lock);
	wake(client->order_fd);
	pthread_join(client->thread, NULL);
	free_client(client);
}
