/*
 * Loop: one thread's event loop. It watches file descriptors, fires timers, and runs tasks that other threads post.
 *
 * A loop belongs to the thread that runs it: everything here is called from that thread (or before it starts), except
 * okv_loop_post() and okv_loop_stop(), which any thread may call. Callbacks run on the loop's thread, one at a time,
 * and must not block. A callback may start, stop or destroy any timer or watch, its own included.
 *
 * Time comes from the clock given at creation. With a virtual clock a test moves the clock and calls okv_loop_turn():
 * timers fire by that clock, and only descriptors are real.
 *
 * Timers and tasks are embedded in their owner's objects, so starting or posting one cannot fail; the owner keeps them
 * alive until they fired, ran or were stopped. Watches are heap objects. The loop owns no descriptor given to it.
 *
 * Creating a loop makes the process ignore SIGPIPE, since a peer that hangs up must be a status and not a signal.
 * libevent is inside and nothing outside this module sees it.
 */
#ifndef OKV_LOOP_LOOP_H
#define OKV_LOOP_LOOP_H

#include <stdbool.h>
#include <stdint.h>

#include "okv/base/clock.h"
#include "okv/base/list.h"
#include "okv/base/status.h"

struct okv_loop;
struct okv_watch;

OKV_MUST_CHECK enum okv_status okv_loop_create(struct okv_clock clock, struct okv_loop **ret_loop,
					       struct okv_reason *reason);
/* Watches and HTTP servers on the loop must be gone; tasks still posted are dropped without being run. */
void okv_loop_destroy(struct okv_loop *loop);

/* Runs until okv_loop_stop(). A loop that was stopped may be run again. */
void okv_loop_run(struct okv_loop *loop);
/* One turn without waiting: what is ready now, the tasks posted by now, the timers due now. */
void okv_loop_turn(struct okv_loop *loop);
/* Any thread. run() returns after the current turn; a stop before run() makes that run return at once. */
void okv_loop_stop(struct okv_loop *loop);

uint64_t okv_loop_now_ns(const struct okv_loop *loop);

/* A one-shot timer; zero-initialise, then init. */
struct okv_timer {
	struct okv_list node;
	struct okv_loop *loop; /* borrowed */
	uint64_t deadline_ns;
	void (*fire)(void *context);
	void *context;
};

void okv_timer_init(struct okv_timer *timer, struct okv_loop *loop, void (*fire)(void *context), void *context);
/* Starts, or restarts with another deadline (absolute, by the loop's clock). One already past fires in the next turn.
 * Linear in the number of later timers: made for hundreds, most of which start last in line. */
void okv_timer_start(struct okv_timer *timer, uint64_t deadline_ns);
/* Harmless on a timer that is not running. */
void okv_timer_stop(struct okv_timer *timer);
bool okv_timer_is_running(const struct okv_timer *timer);

/* Watches `fd` (borrowed, non-blocking). Nothing is reported until okv_watch_set(); then level-triggered. */
OKV_MUST_CHECK enum okv_status okv_watch_create(struct okv_loop *loop, int fd,
						void (*ready)(void *context, bool readable, bool writable),
						void *context, struct okv_watch **ret_watch, struct okv_reason *reason);
/* A hang-up or error of the descriptor is reported as readable and writable, if either is watched. */
void okv_watch_set(struct okv_watch *watch, bool readable, bool writable);
/* Before the descriptor is closed. NULL is harmless. */
void okv_watch_destroy(struct okv_watch *watch);

/* A message to the loop's thread. Owned by the poster's object; not to be posted again before it ran. */
struct okv_task {
	struct okv_task *next;
	void (*run)(void *context);
	void *context;
};

/* Any thread. Tasks of one thread run in the order in which they were posted. */
void okv_loop_post(struct okv_loop *loop, struct okv_task *task);

/*
 * Calls `on_signal` on the loop for each SIGTERM and SIGINT from now on, in place of their default action. Call before
 * other threads start (the signals are blocked in the calling thread, and threads inherit that). Once per loop.
 */
OKV_MUST_CHECK enum okv_status okv_loop_catch_signals(struct okv_loop *loop,
						      void (*on_signal)(void *context, int signal), void *context,
						      struct okv_reason *reason);

#endif
