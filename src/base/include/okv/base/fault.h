/*
 * Fault points: named places where a test, a demo or an operator can make something go wrong on purpose. They are in
 * release builds, belong to an instance, and are armed by text such as "pool_flip_bit=1,mover_stall_ms=2000" (the value
 * is a count or an argument, as the point's owner documents). Their names stand in one table, in fault.c, so that a
 * misspelt one is refused rather than armed without effect. An armed point is announced in the log by who created the
 * instance, and in the gauge orbitkv_fault_points_armed.
 */
#ifndef OKV_BASE_FAULT_H
#define OKV_BASE_FAULT_H

#include <stdbool.h>
#include <stdint.h>

#include "okv/base/status.h"

enum { OKV_FAULTS_MAX = 16 };

struct okv_faults {
	unsigned count;
	struct okv_fault {
		const char *name; /* static */
		int64_t value;	  /* from 1; 0 when a count is used up */
	} fault[OKV_FAULTS_MAX];
};

/* Reads `text` (may be NULL or "": nothing is armed). Malformed text, an unknown name, or one twice, is refused. */
OKV_MUST_CHECK enum okv_status okv_faults_parse(const char *text, struct okv_faults *ret_faults,
						struct okv_reason *reason);

/* The value of an armed point, 0 if it is not armed. `faults` may be NULL, `name` must be in the table. */
int64_t okv_fault_value(const struct okv_faults *faults, const char *name);

/* True, and one less next time, while an armed point's count is positive. `faults` may be NULL. Owner thread only. */
bool okv_fault_take(struct okv_faults *faults, const char *name);

#endif
