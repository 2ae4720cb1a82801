#include "okv/mover/mover.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>
#include <sys/epoll.h>
#include <sys/eventfd.h>
#include <unistd.h>

#include "internal.h"
#include "okv/base/fault.h"
#include "okv/base/rng.h"

/*
 * Owner's thread to mover's thread and back: two lists under one lock, an eventfd each. An eventfd is raised when its
 * list stops being empty and cleared when it is found empty, so that a burst of work costs one wake-up.
 */

static void raise_fd(int fd)
{
	uint64_t one = 1;
	ssize_t written = write(fd, &one, sizeof(one));

	OKV_ASSERT(written == sizeof(one) || errno == EAGAIN);
}

static void clear_fd(int fd)
{
	uint64_t value;
	ssize_t got = read(fd, &value, sizeof(value));

	OKV_ASSERT(got == sizeof(value) || errno == EAGAIN);
}

static void operation_free(struct okv__operation *operation)
{
	if (!operation)
		return;
	free(operation->event);
	free(operation->range);
	free(operation);
}

/* Drops a reference. Call with the lock held. */
static void operation_unref(struct okv__operation *operation)
{
	if (--operation->references == 0)
		operation_free(operation);
}

static void push_event(struct okv_mover *mover, struct okv__operation *operation, struct okv_mover_event event)
{
	struct okv__event *node = &operation->event[operation->events_used++];

	event.id = operation->id;
	node->operation = operation;
	node->event = event;
	pthread_mutex_lock(&mover->lock);
	mover->has_news |= okv_list_is_empty(&mover->events);
	okv_list_push_back(&mover->events, &node->node);
	pthread_mutex_unlock(&mover->lock);
}

/* One wake-up for all events of a step, so that the owner does not take the first and go back to sleep. */
static void tell_news(struct okv_mover *mover)
{
	if (!mover->has_news)
		return;
	mover->has_news = false;
	raise_fd(mover->event_fd);
}

void okv__operation_landed(struct okv_mover *mover, struct okv__operation *read, uint32_t index, struct okv_crc crc)
{
	push_event(mover, read, (struct okv_mover_event){.kind = OKV_MOVER_RANGE_LANDED, .index = index, .crc = crc});
}

void okv__operation_ended(struct okv_mover *mover, struct okv__operation *operation, enum okv_status status,
			  bool reader_gone)
{
	OKV_ASSERT(!operation->is_ended);
	operation->is_ended = true;
	push_event(mover, operation,
		   (struct okv_mover_event){
			   .kind = operation->kind == OKV__GRANT ? OKV_MOVER_GRANT_ENDED : OKV_MOVER_READ_ENDED,
			   .status = status,
			   .reader_gone = reader_gone,
			   .bytes = operation->moved,
		   });
}

static void post_command(struct okv_mover *mover, struct okv__operation *operation, bool start)
{
	pthread_mutex_lock(&mover->lock);
	bool was_empty = okv_list_is_empty(&mover->commands);
	if (start)
		operation->wants_start = true;
	else
		operation->wants_end = true;
	if (okv_list_is_empty(&operation->command)) {
		okv_list_push_back(&mover->commands, &operation->command);
		operation->references++;
	}
	pthread_mutex_unlock(&mover->lock);
	if (was_empty)
		raise_fd(mover->command_fd);
}

static void obey(struct okv_mover *mover, struct okv__operation *operation, bool start, bool end)
{
	bool is_grant = operation->kind == OKV__GRANT;

	if (start)
		(is_grant ? okv__source_start : okv__requester_start)(mover, operation);
	if (end && !operation->is_ended)
		(is_grant ? okv__source_end : okv__requester_end)(mover, operation);
}

void okv__take_commands(struct okv_mover *mover)
{
	pthread_mutex_lock(&mover->lock);
	while (!okv_list_is_empty(&mover->commands)) {
		struct okv__operation *operation =
			OKV_CONTAINER_OF(mover->commands.next, struct okv__operation, command);
		bool start = operation->wants_start, end = operation->wants_end;

		okv_list_remove(&operation->command);
		operation->wants_start = operation->wants_end = false;
		pthread_mutex_unlock(&mover->lock);
		obey(mover, operation, start, end);
		pthread_mutex_lock(&mover->lock);
		operation_unref(operation);
	}
	mover->has_stopped = mover->is_stopping;
	pthread_mutex_unlock(&mover->lock);
}

static void connection_ready(struct okv_mover *mover, struct okv__connection *connection, uint32_t events)
{
	if (connection->fd < 0) /* closed in this turn */
		return;
	if (connection->peer)
		okv__requester_ready(mover, connection, events);
	else
		okv__source_ready(mover, connection, events);
}

static void free_closed(struct okv_mover *mover)
{
	OKV_LIST_EACH_SAFE(node, &mover->closed)
	{
		okv_list_remove(node);
		free(OKV_CONTAINER_OF(node, struct okv__connection, node));
	}
}

static void *mover_main(void *context)
{
	struct okv_mover *mover = context;
	struct epoll_event ready[64];

	while (!mover->has_stopped) {
		int wait_ms = okv__source_due(mover);

		tell_news(mover);
		int count = epoll_wait(mover->epoll_fd, ready, 64, wait_ms);
		OKV_ASSERT(count >= 0 || errno == EINTR);
		for (int i = 0; i < count; i++) {
			if (ready[i].data.ptr == &mover->command_fd) {
				clear_fd(mover->command_fd);
				okv__take_commands(mover);
			} else if (ready[i].data.ptr == &mover->listen_fd) {
				okv__source_accept(mover);
			} else {
				connection_ready(mover, ready[i].data.ptr, ready[i].events);
			}
			tell_news(mover);
		}
		free_closed(mover);
	}
	return NULL;
}

static enum okv_status watch(struct okv_mover *mover, const int *fd)
{
	struct epoll_event event = {.events = EPOLLIN, .data.ptr = (void *)(uintptr_t)fd};

	return epoll_ctl(mover->epoll_fd, EPOLL_CTL_ADD, *fd, &event) == 0 ? OKV_OK : okv_status_from_errno(errno);
}

static enum okv_status open_descriptors(struct okv_mover *mover, const struct okv_mover_options *options,
					struct okv_reason *reason)
{
	mover->epoll_fd = epoll_create1(EPOLL_CLOEXEC);
	mover->command_fd = eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK);
	mover->event_fd = eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK);
	if (mover->epoll_fd < 0 || mover->command_fd < 0 || mover->event_fd < 0)
		return okv_refuse(reason, okv_status_from_errno(errno), "mover", "cannot open a descriptor: %s",
				  strerror(errno));

	enum okv_status status = watch(mover, &mover->command_fd);
	if (status == OKV_OK && options->listen_address && options->listen_address[0]) {
		status = okv__source_listen(mover, options->listen_address, options->listen_port, reason);
		if (status == OKV_OK)
			status = watch(mover, &mover->listen_fd);
		mover->is_accepting = true;
	}
	return status;
}

static void close_if_open(int fd)
{
	if (fd >= 0)
		close(fd);
}

/* Frees what is left when no thread runs. */
static void mover_free(struct okv_mover *mover)
{
	OKV_LIST_EACH_SAFE(node, &mover->connections)
	{
		okv_list_remove(node);
		struct okv__connection *connection = OKV_CONTAINER_OF(node, struct okv__connection, node);
		close(connection->fd);
		free(connection);
	}
	free_closed(mover);
	OKV_LIST_EACH_SAFE(node, &mover->peers)
	{
		okv_list_remove(node);
		free(OKV_CONTAINER_OF(node, struct okv__peer, node));
	}
	for (struct okv_map_node *node; (node = okv_map_walk(&mover->operations, NULL));) {
		okv_map_remove(&mover->operations, node);
		operation_free(OKV_CONTAINER_OF(node, struct okv__operation, by_id));
	}
	okv_map_done(&mover->operations);
	okv_map_done(&mover->grants);
	close_if_open(mover->listen_fd);
	close_if_open(mover->command_fd);
	close_if_open(mover->event_fd);
	close_if_open(mover->epoll_fd);
	pthread_mutex_destroy(&mover->lock);
	free(mover);
}

enum okv_status okv_mover_create(const struct okv_mover_options *options, struct okv_mover **ret_mover,
				 struct okv_reason *reason)
{
	struct okv_mover *mover = calloc(1, sizeof(*mover));
	enum okv_status status;

	if (!mover)
		return okv_refuse(reason, OKV_ERR_NO_MEMORY, "mover", "out of memory");
	mover->connections_max = options->connections ? options->connections : OKV__DEFAULT_CONNECTIONS;
	mover->listen_fd = mover->command_fd = mover->event_fd = mover->epoll_fd = -1;
	mover->fault_stall_ms = okv_fault_value(options->faults, "mover_stall_ms");
	mover->fault_cut_bytes = okv_fault_value(options->faults, "mover_cut_after_bytes");
	mover->fault_short = okv_fault_value(options->faults, "mover_short");
	mover->fault_from = okv_fault_value(options->faults, "mover_fault_from");
	pthread_mutex_init(&mover->lock, NULL);
	okv_list_init(&mover->commands);
	okv_list_init(&mover->events);
	okv_list_init(&mover->idle);
	okv_list_init(&mover->connections);
	okv_list_init(&mover->closed);
	okv_list_init(&mover->peers);

	status = okv_map_init(&mover->operations);
	if (status == OKV_OK)
		status = okv_map_init(&mover->grants);
	if (status == OKV_OK)
		status = open_descriptors(mover, options, reason);
	if (status != OKV_OK)
		goto free_mover;
	if (pthread_create(&mover->thread, NULL, mover_main, mover) != 0) {
		status = okv_refuse(reason, OKV_ERR_NO_MEMORY, "mover", "cannot start a thread");
		goto free_mover;
	}
	*ret_mover = mover;
	return OKV_OK;

free_mover:
	mover_free(mover);
	return status;
}

void okv_mover_destroy(struct okv_mover *mover)
{
	if (!mover)
		return;
	pthread_mutex_lock(&mover->lock);
	mover->is_stopping = true;
	pthread_mutex_unlock(&mover->lock);
	raise_fd(mover->command_fd);
	pthread_join(mover->thread, NULL);
	mover_free(mover);
}

uint16_t okv_mover_port(const struct okv_mover *mover)
{
	return mover->port;
}

static struct okv__operation *operation_create(struct okv_mover *mover, enum okv__operation_kind kind,
					       const struct okv_mover_token *token,
					       const struct okv_mover_range *ranges, uint32_t count)
{
	struct okv__operation *operation = calloc(1, sizeof(*operation));

	if (!operation)
		return NULL;
	operation->range = calloc(count, sizeof(*operation->range));
	operation->event = calloc(kind == OKV__READ ? (size_t)count + 1 : 1, sizeof(*operation->event));
	if (!operation->range || !operation->event) {
		operation_free(operation);
		return NULL;
	}
	memcpy(operation->range, ranges, count * sizeof(*ranges));
	for (uint32_t i = 0; i < count; i++) {
		OKV_ASSERT(ranges[i].size > 0);
		operation->size += ranges[i].size;
	}
	operation->kind = kind;
	operation->id = ++mover->last_id;
	operation->token = *token;
	operation->range_count = count;
	operation->references = 1;
	okv_list_init(&operation->command);
	okv_list_init(&operation->waiting);
	return operation;
}

static void operation_start(struct okv_mover *mover, struct okv__operation *operation, uint64_t *ret_id)
{
	bool is_started = false;

	okv_map_insert(&mover->operations, &operation->by_id, okv_mix64(operation->id));
	*ret_id = operation->id;
	if (operation->kind == OKV__READ) {
		pthread_mutex_lock(&mover->lock);
		is_started = okv__requester_start_at_once(mover, operation);
		pthread_mutex_unlock(&mover->lock);
	}
	if (!is_started)
		post_command(mover, operation, true);
}

enum okv_status okv_mover_grant(struct okv_mover *mover, const struct okv_mover_token *token,
				const struct okv_mover_range *ranges, uint32_t count, uint64_t *ret_id)
{
	if (count == 0)
		return OKV_ERR_INVALID;
	struct okv__operation *grant = operation_create(mover, OKV__GRANT, token, ranges, count);
	if (!grant)
		return OKV_ERR_NO_MEMORY;
	operation_start(mover, grant, ret_id);
	return OKV_OK;
}

enum okv_status okv_mover_read(struct okv_mover *mover, const char *address, uint16_t port,
			       const struct okv_mover_token *token, const struct okv_mover_range *ranges,
			       uint32_t count, uint64_t *ret_id)
{
	struct sockaddr_storage peer_address;
	socklen_t peer_address_size;

	if (count == 0 || !okv__parse_address(address, port, &peer_address, &peer_address_size))
		return OKV_ERR_INVALID;
	struct okv__operation *read = operation_create(mover, OKV__READ, token, ranges, count);
	if (!read)
		return OKV_ERR_NO_MEMORY;
	read->peer_address = peer_address;
	read->peer_address_size = peer_address_size;
	operation_start(mover, read, ret_id);
	return OKV_OK;
}

static struct okv__operation *operation_of(struct okv_mover *mover, uint64_t id)
{
	struct okv_map_node *node = okv_map_first(&mover->operations, okv_mix64(id));

	return node ? OKV_CONTAINER_OF(node, struct okv__operation, by_id) : NULL;
}

/* Asks once; an operation whose ENDED event was taken is no longer known, and needs no asking. */
static void ask_end(struct okv_mover *mover, uint64_t id)
{
	struct okv__operation *operation = operation_of(mover, id);

	if (!operation || operation->is_end_asked)
		return;
	operation->is_end_asked = true;
	post_command(mover, operation, false);
}

void okv_mover_grant_end(struct okv_mover *mover, uint64_t grant_id)
{
	ask_end(mover, grant_id);
}

void okv_mover_read_cancel(struct okv_mover *mover, uint64_t read_id)
{
	ask_end(mover, read_id);
}

bool okv_mover_poll(struct okv_mover *mover, struct okv_mover_event *ret_event)
{
	pthread_mutex_lock(&mover->lock);
	if (okv_list_is_empty(&mover->events)) {
		clear_fd(mover->event_fd);
		pthread_mutex_unlock(&mover->lock);
		return false;
	}
	struct okv__event *node = OKV_CONTAINER_OF(mover->events.next, struct okv__event, node);
	struct okv__operation *operation = node->operation;
	okv_list_remove(&node->node);
	*ret_event = node->event;
	if (node->event.kind != OKV_MOVER_RANGE_LANDED) {
		okv_map_remove(&mover->operations, &operation->by_id);
		operation_unref(operation);
	}
	pthread_mutex_unlock(&mover->lock);
	return true;
}

int okv_mover_wait_fd(const struct okv_mover *mover)
{
	return mover->event_fd;
}
