/*
 * Worker: one thread that copies and hashes, so that the owner loop does not. Jobs run in the order of their
 * submission; when one has run, its `done` task is posted to the loop. A job belongs to its submitter, who keeps it
 * until `done`.
 */
#ifndef OKV_MANAGER_WORKER_H
#define OKV_MANAGER_WORKER_H

#include "okv/base/list.h"
#include "okv/base/status.h"
#include "okv/loop/loop.h"

struct okv__worker;

struct okv__job {
	void (*work)(struct okv__job *job); /* on the worker's thread */
	struct okv_task done;		    /* on the loop */
	struct okv_list node;
};

OKV_MUST_CHECK enum okv_status okv__worker_create(struct okv_loop *loop, struct okv__worker **ret_worker,
						  struct okv_reason *reason);
/* No job may be under way. NULL is harmless. */
void okv__worker_destroy(struct okv__worker *worker);
/* The loop's thread only. */
void okv__worker_submit(struct okv__worker *worker, struct okv__job *job);

#endif
