#include "alloc.h"

#include <stdlib.h>

void *okv__fabric_alloc(size_t count, size_t size)
{
	return calloc(count, size);
}
