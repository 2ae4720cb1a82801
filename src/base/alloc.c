#include "okv/base/alloc.h"

#include <stdlib.h>

void *okv_alloc(size_t count, size_t size)
{
	return calloc(count, size);
}
