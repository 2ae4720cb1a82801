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
 *
 * What the owner waits for is the epoll instance of its own driver, which holds event_fd too.
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

static void push_event(struct okv__operation *operation, struct okv_mover_event event)
{
	struct okv_mover *mover = operation->driver->mover;
	struct okv__event *node = &operation->event[operation->events_used++];

	event.id = operation->id;
	node->operation = operation;
	node->event = event;
	pthread_mutex_lock(&mover->lock);
	operation->end_is_told = event.kind != OKV_MOVER_RANGE_LANDED;
	okv_list_push_back(&mover->events, &node->node);
	pthread_mutex_unlock(&mover->lock);
}

/* With the lock held. */
static void wake_owner(struct okv_mover *mover)
{
	if (mover->is_event_fd_raised || okv_list_is_empty(&mover->events))
		return;
	mover->is_event_fd_raised = true;
	raise_fd(mover->event_fd);
}

/* One wake-up for all events of a step, so that the owner does not take the first and go back to sleep. */
static void tell_news(struct okv__driver *driver)
{
	if (!driver->has_news)
		return;
	driver->has_news = false;
	pthread_mutex_lock(&driver->mover->lock);
	wake_owner(driver->mover);
	pthread_mutex_unlock(&driver->mover->lock);
}

void okv__operation_landed(struct okv__operation *read, uint32_t index, struct okv_crc crc)
{
	push_event(read, (struct okv_mover_event){.kind = OKV_MOVER_RANGE_LANDED, .index = index, .crc = crc});
	read->driver->has_news = true;
}

/* The operation is the owner's to free from here on. */
void okv__operation_ended(struct okv__operation *operation, enum okv_status status, bool reader_gone)
{
	struct okv__driver *driver = operation->driver;
	bool is_grant = operation->kind == OKV__GRANT;

	OKV_ASSERT(!operation->is_ended);
	operation->is_ended = true;
	push_event(operation, (struct okv_mover_event){
				      .kind = is_grant ? OKV_MOVER_GRANT_ENDED : OKV_MOVER_READ_ENDED,
				      .status = status,
				      .reader_gone = reader_gone,
				      .bytes = operation->moved,
			      });
	/* Who has read a grant to its end says so to the owner next, and the owner asks: waking it now would wake it
	 * twice. */
	driver->has_news |= !is_grant || status != OKV_OK;
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

static void start_operation(struct okv_mover *mover, struct okv__operation *operation)
{
	if (operation->kind == OKV__GRANT)
		okv__source_start(mover, operation);
	else
		okv__requester_start(operation);
}

static void end_operation(struct okv_mover *mover, struct okv__operation *operation)
{
	/* Who asks waits for the event of an operation that has ended, and may not have been woken for it. */
	if (operation->is_ended)
		operation->driver->has_news = true;
	else if (operation->kind == OKV__GRANT)
		okv__source_end(mover, operation);
	else
		okv__requester_end(operation);
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
		if (start)
			start_operation(mover, operation);
		if (end)
			end_operation(mover, operation);
		pthread_mutex_lock(&mover->lock);
		operation_unref(operation);
	}
	mover->has_stopped = mover->is_stopping;
	pthread_mutex_unlock(&mover->lock);
}

static void ready(struct okv_mover *mover, const struct epoll_event *event)
{
	struct okv__connection *connection = event->data.ptr;

	if (event->data.ptr == &mover->command_fd) {
		clear_fd(mover->command_fd);
		okv__take_commands(mover);
	} else if (event->data.ptr == &mover->listen_fd) {
		okv__source_accept(mover);
	} else if (event->data.ptr == &mover->event_fd || connection->fd < 0) {
		/* the owner takes its events; or closed in this turn */
	} else if (connection->peer) {
		okv__requester_ready(connection);
	} else {
		okv__source_ready(mover, connection, event->events);
	}
}

static void free_closed(struct okv__driver *driver)
{
	OKV_LIST_EACH_SAFE(node, &driver->closed)
	{
		okv_list_remove(node);
		free(OKV_CONTAINER_OF(node, struct okv__connection, node));
	}
}

/* One turn: waits at most `wait_ms`, does what is ready. */
static void drive(struct okv__driver *driver, int wait_ms)
{
	struct epoll_event events[64];
	int count = epoll_wait(driver->epoll_fd, events, 64, wait_ms);

	OKV_ASSERT(count >= 0 || errno == EINTR);
	for (int i = 0; i < count; i++) {
		ready(driver->mover, &events[i]);
		if (driver == &driver->mover->threaded)
			tell_news(driver);
	}
	free_closed(driver);
}

static void *mover_main(void *context)
{
	struct okv_mover *mover = context;

	while (!mover->has_stopped) {
		int wait_ms = okv__source_due(mover);

		tell_news(&mover->threaded);
		drive(&mover->threaded, wait_ms);
	}
	return NULL;
}

static enum okv_status watch(struct okv__driver *driver, const int *fd)
{
	struct epoll_event event = {.events = EPOLLIN, .data.ptr = (void *)(uintptr_t)fd};

	return epoll_ctl(driver->epoll_fd, EPOLL_CTL_ADD, *fd, &event) == 0 ? OKV_OK : okv_status_from_errno(errno);
}

static enum okv_status open_descriptors(struct okv_mover *mover, const struct okv_mover_options *options,
					struct okv_reason *reason)
{
	mover->threaded.epoll_fd = epoll_create1(EPOLL_CLOEXEC);
	mover->polled.epoll_fd = epoll_create1(EPOLL_CLOEXEC);
	mover->command_fd = eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK);
	mover->event_fd = eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK);
	if (mover->threaded.epoll_fd < 0 || mover->polled.epoll_fd < 0 || mover->command_fd < 0 || mover->event_fd < 0)
		return okv_refuse(reason, okv_status_from_errno(errno), "mover", "cannot open a descriptor: %s",
				  strerror(errno));

	enum okv_status status = watch(&mover->threaded, &mover->command_fd);
	if (status == OKV_OK)
		status = watch(&mover->polled, &mover->event_fd);
	if (status == OKV_OK && options->listen_address && options->listen_address[0]) {
		status = okv__source_listen(mover, options->listen_address, options->listen_port, reason);
		if (status == OKV_OK)
			status = watch(&mover->threaded, &mover->listen_fd);
		mover->is_accepting = true;
	}
	return status;
}

static void close_if_open(int fd)
{
	if (fd >= 0)
		close(fd);
}

static void driver_init(struct okv__driver *driver, struct okv_mover *mover)
{
	driver->mover = mover;
	driver->epoll_fd = -1;
	okv_list_init(&driver->connections);
	okv_list_init(&driver->closed);
	okv_list_init(&driver->peers);
}

static void driver_done(struct okv__driver *driver)
{
	OKV_LIST_EACH_SAFE(node, &driver->connections)
	{
		okv_list_remove(node);
		struct okv__connection *connection = OKV_CONTAINER_OF(node, struct okv__connection, node);
		close(connection->fd);
		free(connection);
	}
	free_closed(driver);
	OKV_LIST_EACH_SAFE(node, &driver->peers)
	{
		okv_list_remove(node);
		free(OKV_CONTAINER_OF(node, struct okv__peer, node));
	}
	close_if_open(driver->epoll_fd);
}

/* Frees what is left when no thread runs. */
static void mover_free(struct okv_mover *mover)
{
	driver_done(&mover->threaded);
	driver_done(&mover->polled);
	for (struct okv_map_node *node; (node = okv_map_walk(&mover->operations, NULL));) {
		okv_map_remove(&mover->operations, node);
		operation_free(OKV_CONTAINER_OF(node, struct okv__operation, by_id));
	}
	okv_map_done(&mover->operations);
	okv_map_done(&mover->grants);
	close_if_open(mover->listen_fd);
	close_if_open(mover->command_fd);
	close_if_open(mover->event_fd);
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
	mover->listen_fd = mover->command_fd = mover->event_fd = -1;
	driver_init(&mover->threaded, mover);
	driver_init(&mover->polled, mover);
	mover->fault_stall_ms = okv_fault_value(options->faults, "mover_stall_ms");
	mover->fault_cut_bytes = okv_fault_value(options->faults, "mover_cut_after_bytes");
	mover->fault_short = okv_fault_value(options->faults, "mover_short");
	mover->fault_from = okv_fault_value(options->faults, "mover_fault_from");
	pthread_mutex_init(&mover->lock, NULL);
	okv_list_init(&mover->commands);
	okv_list_init(&mover->events);

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
	operation->driver =
		kind == OKV__READ && operation->size <= OKV__POLLED_BYTES ? &mover->polled : &mover->threaded;
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
	okv_map_insert(&mover->operations, &operation->by_id, okv_mix64(operation->id));
	*ret_id = operation->id;
	if (operation->driver == &mover->threaded) {
		post_command(mover, operation, true);
		return;
	}
	start_operation(mover, operation);
	tell_news(&mover->polled);
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
	bool is_told;

	if (!operation || operation->is_end_asked)
		return;
	operation->is_end_asked = true;
	pthread_mutex_lock(&mover->lock);
	is_told = operation->end_is_told;
	if (is_told)
		wake_owner(mover);
	pthread_mutex_unlock(&mover->lock);
	if (is_told)
		return;
	if (operation->driver == &mover->threaded) {
		post_command(mover, operation, false);
		return;
	}
	end_operation(mover, operation);
	tell_news(&mover->polled);
}

void okv_mover_grant_end(struct okv_mover *mover, uint64_t grant_id)
{
	ask_end(mover, grant_id);
}

void okv_mover_read_cancel(struct okv_mover *mover, uint64_t read_id)
{
	ask_end(mover, read_id);
}

static bool take_event(struct okv_mover *mover, struct okv_mover_event *ret_event)
{
	pthread_mutex_lock(&mover->lock);
	if (okv_list_is_empty(&mover->events)) {
		if (mover->is_event_fd_raised)
			clear_fd(mover->event_fd);
		mover->is_event_fd_raised = false;
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

bool okv_mover_poll(struct okv_mover *mover, struct okv_mover_event *ret_event)
{
	if (take_event(mover, ret_event))
		return true;
	drive(&mover->polled, 0);
	mover->polled.has_news = false; /* the owner is awake, and asks until there is nothing */
	return take_event(mover, ret_event);
}

int okv_mover_wait_fd(const struct okv_mover *mover)
{
	return mover->polled.epoll_fd;
}
