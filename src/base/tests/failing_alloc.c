#include "failing_alloc.h"

#include <stdlib.h>

#include "okv/base/alloc.h"

static bool is_armed, has_failed;
static int left;

void *okv_alloc(size_t count, size_t size)
{
	if (is_armed && left-- == 0) {
		is_armed = false;
		has_failed = true;
		return NULL;
	}
	return calloc(count, size);
}

void fail_alloc(int n)
{
	is_armed = true;
	has_failed = false;
	left = n;
}

bool end_fail_alloc(void)
{
	is_armed = false;
	return has_failed;
}
