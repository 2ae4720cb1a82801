/*
 * Which processors the two ends of a comparison may use.
 *
 * Over loopback, whether the scheduler happens to keep both processes on one processor decides how fast a small message
 * is: there a wake-up is a switch of tasks, across processors it is an interrupt, which a virtual machine pays dearly.
 * That luck is taken out: every setting is measured under each placement.
 */
#ifndef OKV_BENCH_PLACEMENT_H
#define OKV_BENCH_PLACEMENT_H

#include <sched.h>
#include <stdbool.h>

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
