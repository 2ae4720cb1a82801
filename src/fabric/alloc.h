/*
 * Alloc: the one place where fabric takes heap memory, alone in its object file so that a test that defines the
 * function itself replaces it at link time and can make any allocation fail.
 */
#ifndef OKV_FABRIC_ALLOC_H
#define OKV_FABRIC_ALLOC_H

#include <stddef.h>

/* calloc(); freed with free(). */
void *okv__fabric_alloc(size_t count, size_t size);

#endif
