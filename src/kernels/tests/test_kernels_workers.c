/* Workers: every chunk once, however regions and sleeps fall; also run under ThreadSanitizer. */
#include <immintrin.h>
#include <sched.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdatomic.h>
#include <stddef.h>
#include <stdint.h>
#include <string.h>
#include <time.h>

#include <cmocka.h>

#include "okv/kernels/kernels.h"
#include "okv/kernels/workers.h"

enum { CHUNKS_MAX = 97 };

struct tally {
	unsigned times[CHUNKS_MAX]; /* plain: chunks are disjoint, and a region orders them against its neighbours */
	bool seen[OKV_WORKERS_MAX];
};

static void count(void *context, uint32_t chunk, unsigned thread)
{
	struct tally *tally = context;

	tally->seen[thread] = true;
	tally->times[chunk]++;
}

static void every_chunk_runs_once_in_every_region(void **state)
{
	(void)state;

	for (unsigned threads = 1; threads <= 4; threads++) {
		struct okv_workers *workers;
		struct tally tally = {0};
		unsigned expected[CHUNKS_MAX] = {0};

		assert_int_equal(okv_workers_create(threads, &workers, NULL), OKV_OK);
		assert_int_equal(okv_workers_threads(workers), threads);
		for (uint32_t region = 0; region < 3000; region++) {
			uint32_t chunks = region % (CHUNKS_MAX + 1);

			okv_workers_run(workers, count, &tally, chunks);
			for (uint32_t i = 0; i < chunks; i++)
				expected[i]++;
		}
		assert_memory_equal(tally.times, expected, sizeof expected);
		for (unsigned thread = threads; thread < OKV_WORKERS_MAX; thread++)
			assert_false(tally.seen[thread]);
		okv_workers_destroy(workers);
	}
}

/* The pause makes workers go to sleep between regions: it is what is tested, nothing waits for it to have happened. */
static void a_region_after_a_pause_is_still_complete(void **state)
{
	(void)state;
	struct okv_workers *workers;
	struct tally tally = {0};

	assert_int_equal(okv_workers_create(3, &workers, NULL), OKV_OK);
	for (int region = 0; region < 50; region++) {
		struct timespec pause = {.tv_nsec = 200000};

		nanosleep(&pause, NULL);
		okv_workers_run(workers, count, &tally, 5);
	}
	for (int i = 0; i < 5; i++)
		assert_int_equal(tally.times[i], 50);
	okv_workers_destroy(workers);
}

/* Two chunks that wait for each other, so that owner and worker have one each. */
struct meeting {
	atomic_uint arrived;
	bool mode_was_set[2];
};

static void meet(void *context, uint32_t chunk, unsigned thread)
{
	struct meeting *meeting = context;

	(void)chunk;
	meeting->mode_was_set[thread] = okv_float_mode_is_set();
	atomic_fetch_add(&meeting->arrived, 1);
	while (atomic_load(&meeting->arrived) < 2)
		sched_yield();
}

static void workers_keep_subnormals_whatever_their_owner_does(void **state)
{
	(void)state;
	struct okv_workers *workers;
	struct meeting meeting = {0};

	_mm_setcsr(_mm_getcsr() | 0x8040); /* flush to zero, denormals are zero: a thread inherits it */
	assert_int_equal(okv_workers_create(2, &workers, NULL), OKV_OK);
	okv_float_mode_set();
	okv_workers_run(workers, meet, &meeting, 2);
	okv_workers_destroy(workers);
	assert_true(meeting.mode_was_set[0] && meeting.mode_was_set[1]);
}

static void too_many_threads_are_refused_and_zero_means_processors(void **state)
{
	(void)state;
	struct okv_workers *workers = NULL;
	struct okv_reason reason;

	assert_int_equal(okv_workers_create(OKV_WORKERS_MAX + 1, &workers, &reason), OKV_ERR_INVALID);
	assert_string_equal(reason.field, "threads");
	assert_null(workers);
	assert_int_equal(okv_workers_create(0, &workers, NULL), OKV_OK);
	assert_true(okv_workers_threads(workers) >= 1);
	okv_workers_destroy(workers);
	okv_workers_destroy(NULL);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(every_chunk_runs_once_in_every_region),
		cmocka_unit_test(a_region_after_a_pause_is_still_complete),
		cmocka_unit_test(workers_keep_subnormals_whatever_their_owner_does),
		cmocka_unit_test(too_many_threads_are_refused_and_zero_means_processors),
	};
	return cmocka_run_group_tests_name("kernels_workers", tests, NULL, NULL);
}
