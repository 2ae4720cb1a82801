/*
 * One libevent base without locks, used by the loop's thread only. What other threads touch is the task queue (`lock`),
 * the stop flag and the eventfd that wakes the loop.
 *
 * Timers do not live in libevent, because their time is the loop's clock: before each wait one libevent timer is set to
 * the distance to the earliest deadline, and after each wait the due ones are fired.
 */
#include "loop_internal.h"

#include <errno.h>
#include <pthread.h>
#include <signal.h>
#include <stdatomic.h>
#include <stdlib.h>
#include <string.h>
#include <sys/eventfd.h>
#include <sys/signalfd.h>
#include <unistd.h>

#include <event2/event.h>

/* With a clock that a test moves, libevent's waiting and ours may differ; look at the clock at least this often. */
enum { WAIT_MS_MAX = 60000 };

struct okv_loop {
	struct event_base *base;   /* owned */
	struct event *wait_limit;  /* owned; ends a wait when the earliest timer is due */
	struct okv_watch *wake;	   /* owned; on wake_fd */
	struct okv_watch *signals; /* owned; on signal_fd; NULL until signals are caught */
	struct okv_clock clock;	   /* copied */
	struct okv_list timers;	   /* by deadline, earliest first */
	void (*on_signal)(void *context, int signal);
	void *signal_context;	/* borrowed */
	int wake_fd, signal_fd; /* owned; -1 when absent */
	_Atomic bool stop;	/* any thread sets it, run() clears it */

	pthread_mutex_t lock; /* guards the queue; taken last, held for a few instructions */
	struct okv_task *first, **last;
};

struct okv_watch {
	struct okv_loop *loop; /* borrowed */
	struct event *event;   /* owned; its current set is `watched` */
	int fd;		       /* borrowed */
	short watched;
	void (*ready)(void *context, bool readable, bool writable);
	void *context; /* borrowed */
};

/* ---- watches ---- */

static void on_event(evutil_socket_t fd, short what, void *context)
{
	struct okv_watch *watch = context;

	(void)fd;
	watch->ready(watch->context, (what & EV_READ) != 0, (what & EV_WRITE) != 0);
}

enum okv_status okv_watch_create(struct okv_loop *loop, int fd,
				 void (*ready)(void *context, bool readable, bool writable), void *context,
				 struct okv_watch **ret_watch, struct okv_reason *reason)
{
	struct okv_watch *watch = calloc(1, sizeof(*watch));

	if (!watch)
		return okv_refuse(reason, OKV_ERR_NO_MEMORY, "", "no memory to watch a descriptor");
	*watch = (struct okv_watch){.loop = loop, .fd = fd, .ready = ready, .context = context};
	watch->event = event_new(loop->base, fd, EV_PERSIST, on_event, watch);
	if (!watch->event) {
		free(watch);
		return okv_refuse(reason, OKV_ERR_NO_MEMORY, "", "no memory to watch a descriptor");
	}
	*ret_watch = watch;
	return OKV_OK;
}

void okv_watch_set(struct okv_watch *watch, bool readable, bool writable)
{
	short wanted = (short)((readable ? EV_READ : 0) | (writable ? EV_WRITE : 0));

	if (wanted == watch->watched)
		return;
	event_del(watch->event);
	watch->watched = wanted;
	if (!wanted)
		return;
	/* Neither can fail: the event is valid and not pending, and epoll takes any descriptor that can be watched. */
	OKV_ASSERT(event_assign(watch->event, watch->loop->base, watch->fd, (short)(wanted | EV_PERSIST), on_event,
				watch) == 0);
	OKV_ASSERT(event_add(watch->event, NULL) == 0);
}

void okv_watch_destroy(struct okv_watch *watch)
{
	if (!watch)
		return;
	event_free(watch->event);
	free(watch);
}

/* ---- timers ---- */

void okv_timer_init(struct okv_timer *timer, struct okv_loop *loop, void (*fire)(void *context), void *context)
{
	*timer = (struct okv_timer){.loop = loop, .fire = fire, .context = context};
	okv_list_init(&timer->node);
}

static struct okv_timer *timer_of(struct okv_list *node)
{
	return OKV_CONTAINER_OF(node, struct okv_timer, node);
}

void okv_timer_start(struct okv_timer *timer, uint64_t deadline_ns)
{
	struct okv_list *timers = &timer->loop->timers, *before;

	okv_list_remove(&timer->node);
	timer->deadline_ns = deadline_ns;
	before = timers->prev;
	while (before != timers && timer_of(before)->deadline_ns > deadline_ns)
		before = before->prev;
	okv_list_push_front(before, &timer->node);
}

void okv_timer_stop(struct okv_timer *timer)
{
	if (timer->loop)
		okv_list_remove(&timer->node);
}

bool okv_timer_is_running(const struct okv_timer *timer)
{
	return timer->loop && !okv_list_is_empty(&timer->node);
}

/* Timers that a callback starts wait for the next turn, even if due, so that one turn always ends. */
static void fire_due_timers(struct okv_loop *loop)
{
	uint64_t now_ns = okv_loop_now_ns(loop);
	struct okv_list due;

	okv_list_init(&due);
	while (!okv_list_is_empty(&loop->timers) && timer_of(loop->timers.next)->deadline_ns <= now_ns) {
		struct okv_list *node = loop->timers.next;

		okv_list_remove(node);
		okv_list_push_back(&due, node);
	}
	while (!okv_list_is_empty(&due)) {
		struct okv_timer *timer = timer_of(due.next);

		okv_list_remove(&timer->node);
		timer->fire(timer->context);
	}
}

/* ---- tasks ---- */

static void wake(struct okv_loop *loop)
{
	uint64_t one = 1;

	/* It can only fail with EAGAIN when the counter is full, and then the loop is awake. */
	if (write(loop->wake_fd, &one, sizeof(one)) < 0)
		OKV_ASSERT(errno == EAGAIN || errno == EINTR);
}

void okv_loop_post(struct okv_loop *loop, struct okv_task *task)
{
	task->next = NULL;
	pthread_mutex_lock(&loop->lock);
	bool was_empty = loop->first == NULL;
	*loop->last = task;
	loop->last = &task->next;
	/* Inside the lock: once the loop has run the task it may be destroyed by whoever waited for it. */
	if (was_empty)
		wake(loop);
	pthread_mutex_unlock(&loop->lock);
}

static void on_wake(void *context, bool readable, bool writable)
{
	struct okv_loop *loop = context;
	uint64_t count;

	(void)readable;
	(void)writable;
	if (read(loop->wake_fd, &count, sizeof(count)) < 0)
		OKV_ASSERT(errno == EAGAIN || errno == EINTR);

	pthread_mutex_lock(&loop->lock);
	struct okv_task *task = loop->first;
	loop->first = NULL;
	loop->last = &loop->first;
	pthread_mutex_unlock(&loop->lock);

	while (task) {
		struct okv_task *next = task->next; /* the task may be gone, or posted again, once it ran */

		task->run(task->context);
		task = next;
	}
}

/* ---- signals ---- */

static void on_signal_readable(void *context, bool readable, bool writable)
{
	struct okv_loop *loop = context;
	struct signalfd_siginfo info;

	(void)readable;
	(void)writable;
	if (read(loop->signal_fd, &info, sizeof(info)) == sizeof(info))
		loop->on_signal(loop->signal_context, (int)info.ssi_signo);
}

enum okv_status okv_loop_catch_signals(struct okv_loop *loop, void (*on_signal)(void *context, int signal),
				       void *context, struct okv_reason *reason)
{
	sigset_t signals;
	enum okv_status status;

	OKV_ASSERT(loop->signal_fd < 0);
	sigemptyset(&signals);
	sigaddset(&signals, SIGTERM);
	sigaddset(&signals, SIGINT);
	int fd = signalfd(-1, &signals, SFD_NONBLOCK | SFD_CLOEXEC);
	if (fd < 0)
		return okv_refuse(reason, okv_status_from_errno(errno), "", "signals cannot be caught: %s",
				  strerror(errno));
	status = okv_watch_create(loop, fd, on_signal_readable, loop, &loop->signals, reason);
	if (status != OKV_OK) {
		close(fd);
		return status;
	}
	pthread_sigmask(SIG_BLOCK, &signals, NULL);
	loop->signal_fd = fd;
	loop->on_signal = on_signal;
	loop->signal_context = context;
	okv_watch_set(loop->signals, true, false);
	return OKV_OK;
}

/* ---- life and running ---- */

static void on_wait_limit(evutil_socket_t fd, short what, void *context)
{
	(void)fd;
	(void)what;
	(void)context; /* waking up was all that was wanted */
}

static enum okv_status open_base(struct okv_loop *loop)
{
	struct event_config *config = event_config_new();

	if (!config)
		return OKV_ERR_NO_MEMORY;
	event_config_set_flag(config, EVENT_BASE_FLAG_NOLOCK);
	loop->base = event_base_new_with_config(config);
	event_config_free(config);
	if (!loop->base)
		return OKV_ERR_NO_MEMORY;
	loop->wait_limit = event_new(loop->base, -1, 0, on_wait_limit, NULL);
	return loop->wait_limit ? OKV_OK : OKV_ERR_NO_MEMORY;
}

enum okv_status okv_loop_create(struct okv_clock clock, struct okv_loop **ret_loop, struct okv_reason *reason)
{
	struct okv_loop *loop = calloc(1, sizeof(*loop));
	enum okv_status status;

	if (!loop)
		return okv_refuse(reason, OKV_ERR_NO_MEMORY, "", "no memory for an event loop");
	loop->clock = clock;
	loop->signal_fd = -1;
	loop->last = &loop->first;
	okv_list_init(&loop->timers);
	pthread_mutex_init(&loop->lock, NULL);
	signal(SIGPIPE, SIG_IGN);

	loop->wake_fd = eventfd(0, EFD_NONBLOCK | EFD_CLOEXEC);
	if (loop->wake_fd < 0) {
		status = okv_refuse(reason, okv_status_from_errno(errno), "", "no eventfd for an event loop: %s",
				    strerror(errno));
		goto destroy;
	}
	status = open_base(loop);
	if (status != OKV_OK) {
		okv_refuse(reason, status, "", "libevent gives no event base");
		goto destroy;
	}
	status = okv_watch_create(loop, loop->wake_fd, on_wake, loop, &loop->wake, reason);
	if (status != OKV_OK)
		goto destroy;
	okv_watch_set(loop->wake, true, false);
	*ret_loop = loop;
	return OKV_OK;

destroy:
	okv_loop_destroy(loop);
	return status;
}

void okv_loop_destroy(struct okv_loop *loop)
{
	if (!loop)
		return;
	okv_watch_destroy(loop->wake);
	okv_watch_destroy(loop->signals);
	if (loop->wait_limit)
		event_free(loop->wait_limit);
	if (loop->base)
		event_base_free(loop->base);
	if (loop->wake_fd >= 0)
		close(loop->wake_fd);
	if (loop->signal_fd >= 0)
		close(loop->signal_fd);
	pthread_mutex_destroy(&loop->lock);
	free(loop);
}

uint64_t okv_loop_now_ns(const struct okv_loop *loop)
{
	return okv_clock_now(loop->clock);
}

struct event_base *okv__loop_base(struct okv_loop *loop)
{
	return loop->base;
}

static void limit_next_wait(struct okv_loop *loop)
{
	uint64_t wait_ns = WAIT_MS_MAX * OKV_NS_PER_MS;
	struct timeval wait;

	if (!okv_list_is_empty(&loop->timers)) {
		uint64_t now_ns = okv_loop_now_ns(loop), deadline_ns = timer_of(loop->timers.next)->deadline_ns;
		uint64_t left_ns = deadline_ns > now_ns ? deadline_ns - now_ns : 0;

		wait_ns = left_ns < wait_ns ? left_ns : wait_ns;
	}
	/* Rounded up, or a timer less than a microsecond away would be waited for in a busy loop. */
	wait_ns += OKV_NS_PER_US - 1;
	wait.tv_sec = (time_t)(wait_ns / OKV_NS_PER_S);
	wait.tv_usec = (suseconds_t)(wait_ns % OKV_NS_PER_S / OKV_NS_PER_US);
	event_add(loop->wait_limit, &wait);
}

void okv_loop_run(struct okv_loop *loop)
{
	while (!atomic_exchange(&loop->stop, false)) {
		limit_next_wait(loop);
		event_base_loop(loop->base, EVLOOP_ONCE);
		fire_due_timers(loop);
	}
}

void okv_loop_turn(struct okv_loop *loop)
{
	event_base_loop(loop->base, EVLOOP_ONCE | EVLOOP_NONBLOCK);
	fire_due_timers(loop);
}

void okv_loop_stop(struct okv_loop *loop)
{
	atomic_store(&loop->stop, true);
	wake(loop);
}
