/*
 * Workers: a pool of threads that runs one region at a time, entered hundreds of times a token.
 *
 * A region is a function and a number of chunks. The owner publishes it and takes chunks itself; workers that are awake
 * take chunks too. The owner leaves when every chunk is done, not when every worker has come: a worker that the
 * operating system keeps off its processor holds up nothing unless it had taken a chunk. Waiting is spinning for about
 * 50 us, then sleeping in the kernel, so that a busy neighbour gets the processor instead of being spun against.
 *
 * Which thread runs which chunk differs from run to run; results must not depend on it, and with the kernels of this
 * module they cannot.
 *
 * Threads: create, run and destroy belong to one owner thread. Workers set the floating-point mode when they start.
 */
#ifndef OKV_KERNELS_WORKERS_H
#define OKV_KERNELS_WORKERS_H

#include <stdint.h>

#include "okv/base/status.h"

struct okv_workers;

/* `thread` is 0 for the owner and below okv_workers_threads(), for private scratch memory. */
typedef void (*okv_chunk_run)(void *context, uint32_t chunk, unsigned thread);

enum { OKV_WORKERS_MAX = 256 };

/* `threads` counts the owner; 0 means one for each processor this process may use. OKV_ERR_INVALID: more than 256. */
OKV_MUST_CHECK enum okv_status okv_workers_create(unsigned threads, struct okv_workers **ret_workers,
						  struct okv_reason *reason);
void okv_workers_destroy(struct okv_workers *workers);
unsigned okv_workers_threads(const struct okv_workers *workers);

/* Runs chunks 0 .. chunks - 1, each once, and returns when all are done. */
void okv_workers_run(struct okv_workers *workers, okv_chunk_run run, void *context, uint32_t chunks);

#endif
