/*
 * Memory limit: how much memory this process may still make resident, by what the kernel says in /proc/meminfo and in
 * the memory control group (version 2 or 1) of the process and its parents.
 */
#ifndef OKV_BASE_MEMORY_LIMIT_H
#define OKV_BASE_MEMORY_LIMIT_H

#include <stdbool.h>
#include <stdint.h>

#include "okv/base/status.h"

struct okv_memory_limit {
	uint64_t available_bytes; /* UINT64_MAX if the kernel does not say */
	bool is_control_group;	  /* the control group is what limits, not the machine */
};

/* `root` is put before every path: "" on a real machine, a made-up tree in tests. */
struct okv_memory_limit okv_memory_limit(const char *root);

/*
 * OKV_ERR_NO_SPACE if `bytes` of memory, taken bit by bit later, are more than there are now. The refusal begins with
 * `what`, such as "a pool", and `remedy` is what to give instead, such as "a smaller --pool-size".
 */
OKV_MUST_CHECK enum okv_status okv_memory_limit_check(uint64_t bytes, const char *field, const char *what,
						      const char *remedy, struct okv_reason *reason);

#endif
