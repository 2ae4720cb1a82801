/*
 * Memory limit: how much memory this process may still make resident, by what the kernel says in /proc/meminfo and in
 * the memory control group (version 2 or 1) of the process and its parents.
 */
#ifndef OKV_STORE_MEMORY_LIMIT_H
#define OKV_STORE_MEMORY_LIMIT_H

#include <stdbool.h>
#include <stdint.h>

struct okv_memory_limit {
	uint64_t available_bytes; /* UINT64_MAX if the kernel does not say */
	bool is_control_group;	  /* the control group is what limits, not the machine */
};

/* `root` is put before every path: "" on a real machine, a made-up tree in tests. */
struct okv_memory_limit okv__memory_limit(const char *root);

#endif
