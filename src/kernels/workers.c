/*
 * One 64-bit word says everything a worker needs to know before it commits: (region number, chunks not yet taken). A
 * chunk is taken by a compare-and-swap of the whole word, so a worker that slept through a region can never take a
 * chunk of the next one under the old function: the numbers differ.
 *
 *   owner    writes run, context, total, done = 0; stores word = (n + 1, chunks); wakes sleepers; takes chunks; waits
 *            until done == total
 *   worker   sees a new number; takes a chunk, and only then reads run, context and total: its untaken share of `done`
 *            keeps the owner from changing them
 *
 * Sleeping, both ways: the sleeper announces itself, then looks again, then sleeps on the value it saw; the waker
 * changes the value, then looks for sleepers. All four are sequentially consistent, so one of the two sees the other.
 */
#include "okv/kernels/workers.h"

#include <immintrin.h>
#include <limits.h>
#include <linux/futex.h>
#include <pthread.h>
#include <sched.h>
#include <stdatomic.h>
#include <stdbool.h>
#include <stdlib.h>
#include <sys/syscall.h>
#include <unistd.h>

#include "okv/base/clock.h"
#include "okv/kernels/kernels.h"

enum { SPIN_NS = 50000, SPINS_A_LOOK = 32 };

struct worker {
	struct okv_workers *workers;
	unsigned thread;
	pthread_t id;
};

struct okv_workers {
	/* Written by the owner between regions, read by holders of a chunk. */
	okv_chunk_run run;
	void *context;
	uint32_t total;

	_Alignas(64) _Atomic uint64_t word;
	_Atomic uint32_t region; /* the word's upper half again: what workers sleep on */
	_Atomic uint32_t sleepers;
	_Atomic bool stops;
	_Alignas(64) _Atomic uint32_t done; /* what the owner sleeps on */
	_Atomic bool owner_sleeps;

	_Alignas(64) unsigned threads;
	unsigned started;
	uint64_t spin_ns; /* 0 where threads outnumber processors */
	struct worker worker[];
};

static void futex_wait(_Atomic uint32_t *at, uint32_t value)
{
	syscall(SYS_futex, at, FUTEX_WAIT_PRIVATE, value, NULL, NULL, 0); /* woken or not, callers look again */
}

static void futex_wake_all(_Atomic uint32_t *at)
{
	syscall(SYS_futex, at, FUTEX_WAKE_PRIVATE, INT_MAX, NULL, NULL, 0);
}

/* Spins until *at differs from `value`; false if that took too long. */
static bool spin_while(const struct okv_workers *workers, _Atomic uint32_t *at, uint32_t value)
{
	struct okv_clock clock = okv_clock_boottime();
	uint64_t start = 0;

	for (;;) {
		for (int i = 0; i < SPINS_A_LOOK; i++) {
			if (atomic_load_explicit(at, memory_order_acquire) != value)
				return true;
			_mm_pause();
		}
		if (!start)
			start = okv_clock_now(clock);
		if (okv_clock_now(clock) - start >= workers->spin_ns)
			return false;
	}
}

static void finish_chunk(struct okv_workers *workers, uint32_t total)
{
	if (atomic_fetch_add(&workers->done, 1) + 1 == total && atomic_load(&workers->owner_sleeps))
		futex_wake_all(&workers->done);
}

/* Takes and runs chunks of region `region` while there are any. */
static void take_chunks(struct okv_workers *workers, uint32_t region, unsigned thread)
{
	uint64_t word = atomic_load(&workers->word);

	while (word >> 32 == region && (uint32_t)word) {
		uint32_t total;

		if (!atomic_compare_exchange_weak(&workers->word, &word, word - 1))
			continue;
		total = workers->total;
		workers->run(workers->context, total - (uint32_t)word, thread);
		finish_chunk(workers, total);
		word = atomic_load(&workers->word);
	}
}

static void sleep_until_next(struct okv_workers *workers, uint32_t region)
{
	atomic_fetch_add(&workers->sleepers, 1);
	while (atomic_load(&workers->region) == region)
		futex_wait(&workers->region, region);
	atomic_fetch_sub(&workers->sleepers, 1);
}

static void *worker_main(void *argument)
{
	struct worker *self = argument;
	struct okv_workers *workers = self->workers;
	uint32_t region = 0;

	okv_float_mode_set();
	for (;;) {
		if (!spin_while(workers, &workers->region, region))
			sleep_until_next(workers, region);
		if (atomic_load(&workers->stops))
			return NULL;
		region = atomic_load(&workers->region);
		take_chunks(workers, region, self->thread);
	}
}

static void publish(struct okv_workers *workers, uint32_t chunks)
{
	uint32_t region = atomic_load(&workers->region) + 1;

	atomic_store(&workers->word, (uint64_t)region << 32 | chunks);
	atomic_store(&workers->region, region);
	if (atomic_load(&workers->sleepers))
		futex_wake_all(&workers->region);
}

static void wait_for_all(struct okv_workers *workers, uint32_t total)
{
	uint32_t done;

	while ((done = atomic_load(&workers->done)) != total) {
		if (spin_while(workers, &workers->done, done))
			continue;
		atomic_store(&workers->owner_sleeps, true);
		while ((done = atomic_load(&workers->done)) != total)
			futex_wait(&workers->done, done);
		atomic_store(&workers->owner_sleeps, false);
	}
}

void okv_workers_run(struct okv_workers *workers, okv_chunk_run run, void *context, uint32_t chunks)
{
	if (workers->threads == 1 || chunks <= 1) {
		for (uint32_t chunk = 0; chunk < chunks; chunk++)
			run(context, chunk, 0);
		return;
	}
	workers->run = run;
	workers->context = context;
	workers->total = chunks;
	atomic_store(&workers->done, 0);
	publish(workers, chunks);
	take_chunks(workers, atomic_load(&workers->region), 0);
	wait_for_all(workers, chunks);
}

static unsigned processors(void)
{
	cpu_set_t set;

	if (sched_getaffinity(0, sizeof set, &set))
		return 1;
	return CPU_COUNT(&set) > 0 ? (unsigned)CPU_COUNT(&set) : 1;
}

static enum okv_status start(struct okv_workers *workers, struct okv_reason *reason)
{
	for (unsigned thread = 1; thread < workers->threads; thread++) {
		struct worker *worker = &workers->worker[thread];
		int error;

		worker->workers = workers;
		worker->thread = thread;
		error = pthread_create(&worker->id, NULL, worker_main, worker);
		if (error)
			return okv_refuse(reason, okv_status_from_errno(error), "threads",
					  "cannot start thread %u of %u", thread, workers->threads);
		workers->started++;
	}
	return OKV_OK;
}

enum okv_status okv_workers_create(unsigned threads, struct okv_workers **ret_workers, struct okv_reason *reason)
{
	struct okv_workers *workers;
	size_t size;
	enum okv_status status;
	unsigned available = processors();

	if (threads == 0)
		threads = available < OKV_WORKERS_MAX ? available : OKV_WORKERS_MAX;
	if (threads > OKV_WORKERS_MAX)
		return okv_refuse(reason, OKV_ERR_INVALID, "threads", "%u threads are more than the %d we start",
				  threads, OKV_WORKERS_MAX);
	size = (sizeof *workers + threads * sizeof(struct worker) + 63) / 64 * 64;
	workers = aligned_alloc(64, size);
	if (!workers)
		return okv_refuse(reason, OKV_ERR_NO_MEMORY, "threads", "no memory for %u workers", threads);
	*workers = (struct okv_workers){.threads = threads, .spin_ns = threads > available ? 0 : SPIN_NS};

	status = start(workers, reason);
	if (status != OKV_OK) {
		okv_workers_destroy(workers);
		return status;
	}
	*ret_workers = workers;
	return OKV_OK;
}

void okv_workers_destroy(struct okv_workers *workers)
{
	if (!workers)
		return;
	atomic_store(&workers->stops, true);
	publish(workers, 0);
	for (unsigned thread = 1; thread <= workers->started; thread++)
		pthread_join(workers->worker[thread].id, NULL);
	free(workers);
}

unsigned okv_workers_threads(const struct okv_workers *workers)
{
	return workers->threads;
}
