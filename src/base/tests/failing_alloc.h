/*
 * Failing alloc: okv_alloc() of a test that asks for it, in which one allocation fails. A fault loop makes the first
 * fail, then the second, until a run has none that does:
 *
 *     for (int n = 0; run(n); n++)
 *             ;
 *
 * where run() begins with fail_alloc(n) and gives what end_fail_alloc() says.
 */
#ifndef OKV_BASE_TESTS_FAILING_ALLOC_H
#define OKV_BASE_TESTS_FAILING_ALLOC_H

#include <stdbool.h>

/* The allocation after the next `n` fails, and no other. */
void fail_alloc(int n);
/* From now on none does. Whether one has. */
bool end_fail_alloc(void);

#endif
