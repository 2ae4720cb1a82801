/* Tasks posted from several threads while the loop runs; also run under ThreadSanitizer. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include <pthread.h>
#include <stdlib.h>

#include "okv/base/status.h"
#include "okv/loop/loop.h"

enum { THREADS = 4, TASKS = 5000 };

struct numbered {
	struct okv_task task;
	struct poster *poster;
	unsigned number;
};

struct poster {
	pthread_t thread;
	struct okv_loop *loop;
	struct numbered *tasks;
	unsigned ran;	   /* the loop's */
	unsigned *running; /* the loop's; posters not yet through */
};

static void run_numbered(void *context)
{
	struct numbered *numbered = context;
	struct poster *poster = numbered->poster;

	OKV_ASSERT(numbered->number == poster->ran); /* the order of one thread is kept */
	if (++poster->ran == TASKS && --*poster->running == 0)
		okv_loop_stop(poster->loop);
}

static void *post_all(void *context)
{
	struct poster *poster = context;

	for (unsigned i = 0; i < TASKS; i++) {
		poster->tasks[i] = (struct numbered){.poster = poster, .number = i};
		poster->tasks[i].task = (struct okv_task){.run = run_numbered, .context = &poster->tasks[i]};
		okv_loop_post(poster->loop, &poster->tasks[i].task);
	}
	return NULL;
}

static void tasks_of_many_threads_all_run_in_the_order_of_each(void **state)
{
	(void)state;
	struct poster posters[THREADS];
	struct okv_reason reason;
	struct okv_loop *loop;
	unsigned running = THREADS;

	assert_int_equal(okv_loop_create(okv_clock_boottime(), &loop, &reason), OKV_OK);
	for (int i = 0; i < THREADS; i++) {
		posters[i] = (struct poster){.loop = loop, .running = &running};
		posters[i].tasks = calloc(TASKS, sizeof(*posters[i].tasks));
		assert_non_null(posters[i].tasks);
		assert_int_equal(pthread_create(&posters[i].thread, NULL, post_all, &posters[i]), 0);
	}
	okv_loop_run(loop);
	for (int i = 0; i < THREADS; i++) {
		pthread_join(posters[i].thread, NULL);
		assert_int_equal(posters[i].ran, TASKS);
		free(posters[i].tasks);
	}
	okv_loop_destroy(loop);
}

static void *stop_soon(void *context)
{
	okv_loop_stop(context);
	return NULL;
}

static void another_thread_can_stop_a_loop(void **state)
{
	(void)state;
	struct okv_reason reason;
	struct okv_loop *loop;
	pthread_t thread;

	assert_int_equal(okv_loop_create(okv_clock_boottime(), &loop, &reason), OKV_OK);
	for (int i = 0; i < 100; i++) {
		assert_int_equal(pthread_create(&thread, NULL, stop_soon, loop), 0);
		okv_loop_run(loop);
		pthread_join(thread, NULL);
	}
	okv_loop_destroy(loop);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(tasks_of_many_threads_all_run_in_the_order_of_each),
		cmocka_unit_test(another_thread_can_stop_a_loop),
	};
	return cmocka_run_group_tests_name("loop_threads", tests, NULL, NULL);
}
