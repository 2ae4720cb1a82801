/*
 * What the programs share that measure a source and a reader: the clock, memory, and which processors each may use.
 *
 * Over loopback, whether the scheduler happens to keep both processes on one processor decides how fast a small message
 * is: there a wake-up is a switch of tasks, across processors it is an interrupt, which a virtual machine pays dearly.
 * That luck is taken out: every setting is measured under each placement.
 */
#ifndef OKV_BENCH_SOURCE_AND_READER_H
#define OKV_BENCH_SOURCE_AND_READER_H

#include <sched.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <sys/mman.h>
#include <time.h>

static inline uint64_t now_ns(void)
{
	struct timespec now;

	clock_gettime(CLOCK_MONOTONIC, &now);
	return (uint64_t)now.tv_sec * 1000000000u + (uint64_t)now.tv_nsec;
}

/* Memory that both processes have and that was written to; NULL if there is none. */
static inline uint8_t *warm_memory(uint64_t size)
{
	uint8_t *bytes = mmap(NULL, size, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS | MAP_POPULATE, -1, 0);

	if (bytes == MAP_FAILED)
		return NULL;
	for (uint64_t i = 0; i < size; i++)
		bytes[i] = (uint8_t)(i * 2654435761u >> 13);
	return bytes;
}

enum placement {
	PLACED_TOGETHER, /* source and reader on one processor */
	PLACED_APART,	 /* the source on one half of the processors, the reader on the other */
	PLACEMENTS,
};

static const char *const placement_name[] = {"together", "apart"};

/* The processors that this process may use; call it before anything is placed. */
static inline cpu_set_t placement_allowed(void)
{
	cpu_set_t allowed;

	CPU_ZERO(&allowed);
	(void)sched_getaffinity(0, sizeof(allowed), &allowed);
	return allowed;
}

/* Places the calling thread and every thread and process that it starts from now on. False if the system refuses. */
static inline bool place(const cpu_set_t *allowed, enum placement placement, bool is_source)
{
	int count = CPU_COUNT(allowed), seen = 0;
	cpu_set_t mine;

	CPU_ZERO(&mine);
	for (size_t cpu = 0; cpu < CPU_SETSIZE; cpu++) {
		if (!CPU_ISSET(cpu, allowed))
			continue;
		if (placement == PLACED_TOGETHER ? seen == 0 : (seen < count / 2) == is_source)
			CPU_SET(cpu, &mine);
		seen++;
	}
	return sched_setaffinity(0, sizeof(mine), &mine) == 0;
}

#endif
