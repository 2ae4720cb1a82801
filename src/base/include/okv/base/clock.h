/*
 * Clock: time is passed in at creation, so that a test can own it. Fencing uses boot time, which goes on through a
 * suspend; a virtual clock moves only when its owner says so.
 */
#ifndef OKV_BASE_CLOCK_H
#define OKV_BASE_CLOCK_H

#include <stdint.h>

#define OKV_NS_PER_US 1000ULL
#define OKV_NS_PER_MS 1000000ULL
#define OKV_NS_PER_S  1000000000ULL

/* Value type, copied freely; `context` is borrowed. */
struct okv_clock {
	uint64_t (*now_ns)(void *context);
	void *context;
};

static inline uint64_t okv_clock_now(struct okv_clock clock)
{
	return clock.now_ns(clock.context);
}

struct okv_clock okv_clock_boottime(void);

/* A clock that reads *now_ns (borrowed); the owner advances it by writing. */
struct okv_clock okv_clock_virtual(uint64_t *now_ns);

#endif
