#include "okv/base/clock.h"

#include <stddef.h>
#include <time.h>

static uint64_t boottime_now_ns(void *context)
{
	struct timespec now;

	(void)context;
	clock_gettime(CLOCK_BOOTTIME, &now);
	return (uint64_t)now.tv_sec * OKV_NS_PER_S + (uint64_t)now.tv_nsec;
}

static uint64_t virtual_now_ns(void *context)
{
	return *(const uint64_t *)context;
}

struct okv_clock okv_clock_boottime(void)
{
	return (struct okv_clock){.now_ns = boottime_now_ns};
}

struct okv_clock okv_clock_virtual(uint64_t *now_ns)
{
	return (struct okv_clock){.now_ns = virtual_now_ns, .context = now_ns};
}
