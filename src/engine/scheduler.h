/*
 * Scheduler: which task goes on, and with how many rows of the next step.
 *
 *                 admit, pages found                        last row of the prompt
 *      QUEUED ---------------------> RESTORING --> PREFILL ------------------------> DECODE
 *        ^  |                            |  restored |  ^                               |
 *        |  +--- nothing to restore -----|-----------+--+ chunk                         | stop, length
 *        |                               |                                              v
 *        +-- deadline: start afresh, ----+          any state -- cancelled ---------> (ended)
 *            at the head, never restore again
 *
 * Every step holds one row of each decoding task and as many rows of prompts as fit the time that a step may take: a
 * decode therefore waits for one short step at most. Since no row's bits depend on the cut, the cut is free. Half of
 * the prompt rows go to the oldest prompt, so that none starves; the other half to the one with least left, so that a
 * short prompt does not wait for a long one. The queue is first in, first out: a large request at its head is not
 * overtaken.
 *
 * Pure: no clock, thread, memory or page. The driver reports what happened, asks for the next action until there is
 * none, then for a plan.
 */
#ifndef OKV_ENGINE_SCHEDULER_H
#define OKV_ENGINE_SCHEDULER_H

#include <stdbool.h>
#include <stdint.h>

#include "okv/base/list.h"

enum okv__task_state { OKV__TASK_QUEUED, OKV__TASK_RESTORING, OKV__TASK_PREFILL, OKV__TASK_DECODE };

/* Embedded in the driver's lane. The driver reads; only the scheduler writes. */
struct okv__task {
	struct okv_list link; /* in the queue or among the running */
	enum okv__task_state state;
	uint32_t prompt_tokens;
	uint32_t tokens_end; /* prompt and completion never grow beyond this */
	uint32_t known;	     /* tokens there are: the prompt and what was sampled */
	uint32_t computed;   /* leading tokens whose KV is in pages */
	uint32_t rows;	     /* in the current plan */
	uint64_t deadline_ns;
	bool may_restore;
	bool is_cancelled;
	bool is_held; /* another task computes what this one needs next */
};

struct okv__scheduler_options {
	uint32_t running_max; /* below rows_max */
	uint32_t rows_max;
	uint64_t step_ns;	/* aim for a step while somebody decodes */
	uint64_t step_alone_ns; /* aim for a step while nobody does */
};

struct okv__scheduler {
	struct okv__scheduler_options options;
	struct okv_list queue, running;
	uint32_t queued_count, running_count;
	uint64_t row_ns;      /* estimate of a prompt row's share of a step */
	uint32_t plan_rows;   /* rows of the current plan */
	bool is_head_waiting; /* the head of the queue found no pages; asked again after the next plan */
};

enum okv__action {
	OKV__ACTION_NONE,
	OKV__ACTION_ADMIT,   /* find pages, then okv__scheduler_run, _restore or _postpone */
	OKV__ACTION_ABANDON, /* the restore took too long: let go of it; the task is at the head of the queue again */
	OKV__ACTION_END,     /* cancelled: the task has left the scheduler */
};

void okv__scheduler_init(struct okv__scheduler *scheduler, const struct okv__scheduler_options *options);

/* Queues a task: prompt_tokens >= 1, tokens_end > prompt_tokens. */
void okv__scheduler_submit(struct okv__scheduler *scheduler, struct okv__task *task, uint32_t prompt_tokens,
			   uint32_t tokens_end);
void okv__scheduler_cancel(struct okv__task *task);

/* The next thing to do, applied to this scheduler already; *ret_task is its task. */
enum okv__action okv__scheduler_next(struct okv__scheduler *scheduler, uint64_t now_ns, struct okv__task **ret_task);

/* Answers to OKV__ACTION_ADMIT. `computed` tokens were found. */
void okv__scheduler_run(struct okv__scheduler *scheduler, struct okv__task *task, uint32_t computed);
void okv__scheduler_restore(struct okv__scheduler *scheduler, struct okv__task *task, uint64_t deadline_ns);
void okv__scheduler_postpone(struct okv__scheduler *scheduler);

/* The restore is over and `computed` tokens are there. */
void okv__scheduler_restored(struct okv__task *task, uint32_t computed);

/* A task in PREFILL found `computed` tokens that another one computed meanwhile, or waits for such tokens. */
void okv__scheduler_found(struct okv__task *task, uint32_t computed);
void okv__scheduler_hold(struct okv__task *task, bool is_held);

/* Sets task->rows of every running task; returns their sum. Zero: there is nothing to compute now. */
uint32_t okv__scheduler_plan(struct okv__scheduler *scheduler);

/* The planned step took so long. */
void okv__scheduler_measured(struct okv__scheduler *scheduler, uint64_t step_ns);

/* The task's rows are computed. True if a token must be sampled from its last row. */
bool okv__scheduler_stepped(struct okv__task *task);

enum okv__verdict { OKV__GO_ON, OKV__STOP, OKV__LENGTH };

/* A token was sampled. On STOP and LENGTH the task has left the scheduler. */
enum okv__verdict okv__scheduler_sampled(struct okv__scheduler *scheduler, struct okv__task *task, bool is_end);

/* When okv__scheduler_next() may have something to do although nothing happened; UINT64_MAX for never. */
uint64_t okv__scheduler_wake_ns(const struct okv__scheduler *scheduler);

#endif
