/*
 * Alloc: where the pure cores, the store and the client take heap memory. It stands alone in its object file, so that a
 * test that defines the function itself replaces it at link time and can make any allocation fail.
 */
#ifndef OKV_BASE_ALLOC_H
#define OKV_BASE_ALLOC_H

#include <stddef.h>

/* calloc(); freed with free(). */
void *okv_alloc(size_t count, size_t size);

#endif
