/*
 * Alloc: the one place where store takes heap memory, alone in its object file so that a test that defines the function
 * itself replaces it at link time and can make the N-th allocation fail.
 */
#ifndef OKV_STORE_ALLOC_H
#define OKV_STORE_ALLOC_H

#include <stddef.h>

/* calloc(); freed with free(). */
void *okv__store_alloc(size_t count, size_t size);

#endif
