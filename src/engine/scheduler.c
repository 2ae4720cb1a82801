#include "scheduler.h"

#include "okv/base/clock.h"
#include "okv/base/status.h"

/* Fewer prompt rows than this waste the weights that a step reads anyway. */
enum { CHUNK_MIN = 16 };

static struct okv__task *task_of(struct okv_list *link)
{
	return OKV_CONTAINER_OF(link, struct okv__task, link);
}

void okv__scheduler_init(struct okv__scheduler *scheduler, const struct okv__scheduler_options *options)
{
	OKV_ASSERT(options->running_max >= 1 && options->running_max < options->rows_max);
	*scheduler = (struct okv__scheduler){.options = *options, .row_ns = OKV_NS_PER_MS};
	okv_list_init(&scheduler->queue);
	okv_list_init(&scheduler->running);
}

void okv__scheduler_submit(struct okv__scheduler *scheduler, struct okv__task *task, uint32_t prompt_tokens,
			   uint32_t tokens_end)
{
	OKV_ASSERT(prompt_tokens >= 1 && tokens_end > prompt_tokens);
	*task = (struct okv__task){
		.prompt_tokens = prompt_tokens, .tokens_end = tokens_end, .known = prompt_tokens, .may_restore = true};
	okv_list_push_back(&scheduler->queue, &task->link);
	scheduler->queued_count++;
}

void okv__scheduler_cancel(struct okv__task *task)
{
	task->is_cancelled = true;
}

static void leave(struct okv__scheduler *scheduler, struct okv__task *task)
{
	okv_list_remove(&task->link);
	if (task->state == OKV__TASK_QUEUED)
		scheduler->queued_count--;
	else
		scheduler->running_count--;
}

static struct okv__task *find_cancelled(struct okv_list *list)
{
	OKV_LIST_EACH(at, list)
	{
		if (task_of(at)->is_cancelled)
			return task_of(at);
	}
	return NULL;
}

static struct okv__task *find_overdue(struct okv__scheduler *scheduler, uint64_t now_ns)
{
	OKV_LIST_EACH(at, &scheduler->running)
	{
		if (task_of(at)->state == OKV__TASK_RESTORING && now_ns >= task_of(at)->deadline_ns)
			return task_of(at);
	}
	return NULL;
}

static void start_afresh(struct okv__scheduler *scheduler, struct okv__task *task)
{
	leave(scheduler, task);
	task->state = OKV__TASK_QUEUED;
	task->may_restore = false;
	task->computed = 0;
	okv_list_push_front(&scheduler->queue, &task->link);
	scheduler->queued_count++;
}

enum okv__action okv__scheduler_next(struct okv__scheduler *scheduler, uint64_t now_ns, struct okv__task **ret_task)
{
	struct okv__task *task = find_cancelled(&scheduler->running);

	if (!task)
		task = find_cancelled(&scheduler->queue);
	if (task) {
		leave(scheduler, task);
		*ret_task = task;
		return OKV__ACTION_END;
	}
	task = find_overdue(scheduler, now_ns);
	if (task) {
		start_afresh(scheduler, task);
		*ret_task = task;
		return OKV__ACTION_ABANDON;
	}
	if (okv_list_is_empty(&scheduler->queue) || scheduler->is_head_waiting ||
	    scheduler->running_count == scheduler->options.running_max)
		return OKV__ACTION_NONE;
	*ret_task = task_of(scheduler->queue.next);
	return OKV__ACTION_ADMIT;
}

static void start(struct okv__scheduler *scheduler, struct okv__task *task, enum okv__task_state state)
{
	OKV_ASSERT(task->state == OKV__TASK_QUEUED && scheduler->queue.next == &task->link);
	leave(scheduler, task);
	task->state = state;
	okv_list_push_back(&scheduler->running, &task->link);
	scheduler->running_count++;
}

void okv__scheduler_run(struct okv__scheduler *scheduler, struct okv__task *task, uint32_t computed)
{
	OKV_ASSERT(computed < task->prompt_tokens);
	start(scheduler, task, OKV__TASK_PREFILL);
	task->computed = computed;
}

void okv__scheduler_restore(struct okv__scheduler *scheduler, struct okv__task *task, uint64_t deadline_ns)
{
	OKV_ASSERT(task->may_restore);
	start(scheduler, task, OKV__TASK_RESTORING);
	task->deadline_ns = deadline_ns;
}

void okv__scheduler_postpone(struct okv__scheduler *scheduler)
{
	scheduler->is_head_waiting = true;
}

void okv__scheduler_restored(struct okv__task *task, uint32_t computed)
{
	OKV_ASSERT(task->state == OKV__TASK_RESTORING && computed < task->prompt_tokens);
	task->state = OKV__TASK_PREFILL;
	task->computed = computed;
}

void okv__scheduler_found(struct okv__task *task, uint32_t computed)
{
	OKV_ASSERT(task->state == OKV__TASK_PREFILL && computed > task->computed && computed < task->prompt_tokens);
	task->computed = computed;
}

void okv__scheduler_hold(struct okv__task *task, bool is_held)
{
	task->is_held = is_held;
}

/* Rows still to compute before the task can be asked for its next token. */
static uint32_t rows_left(const struct okv__task *task)
{
	return task->known - task->computed;
}

static bool wants_prompt_rows(const struct okv__task *task)
{
	return task->state == OKV__TASK_PREFILL && !task->is_held && rows_left(task) > task->rows;
}

static uint32_t grant(struct okv__task *task, uint32_t rows)
{
	uint32_t left = rows_left(task) - task->rows;

	rows = rows < left ? rows : left;
	task->rows += rows;
	return rows;
}

static struct okv__task *oldest_prompt(struct okv__scheduler *scheduler)
{
	OKV_LIST_EACH(at, &scheduler->running)
	{
		if (wants_prompt_rows(task_of(at)))
			return task_of(at);
	}
	return NULL;
}

static struct okv__task *shortest_prompt(struct okv__scheduler *scheduler)
{
	struct okv__task *best = NULL;

	OKV_LIST_EACH(at, &scheduler->running)
	{
		struct okv__task *task = task_of(at);

		if (wants_prompt_rows(task) && (!best || rows_left(task) - task->rows < rows_left(best) - best->rows))
			best = task;
	}
	return best;
}

static uint32_t prompt_budget(const struct okv__scheduler *scheduler, uint32_t decodes)
{
	uint64_t aim_ns = decodes ? scheduler->options.step_ns : scheduler->options.step_alone_ns;
	uint64_t rows = aim_ns / scheduler->row_ns;
	uint32_t room = scheduler->options.rows_max - decodes;

	rows = rows > decodes ? rows - decodes : 0;
	rows = rows / CHUNK_MIN * CHUNK_MIN;
	if (rows < CHUNK_MIN)
		rows = CHUNK_MIN;
	return rows < room ? (uint32_t)rows : room;
}

uint32_t okv__scheduler_plan(struct okv__scheduler *scheduler)
{
	uint32_t decodes = 0, budget, granted;
	struct okv__task *task;

	scheduler->is_head_waiting = false;
	OKV_LIST_EACH(at, &scheduler->running)
	{
		task = task_of(at);
		task->rows = task->state == OKV__TASK_DECODE ? 1 : 0;
		decodes += task->rows;
	}
	budget = prompt_budget(scheduler, decodes);
	scheduler->plan_rows = decodes;
	task = oldest_prompt(scheduler);
	if (task) {
		granted = grant(task, (budget + 1) / 2);
		budget -= granted;
		scheduler->plan_rows += granted;
	}
	while (budget > 0 && (task = shortest_prompt(scheduler)) != NULL) {
		granted = grant(task, budget);
		budget -= granted;
		scheduler->plan_rows += granted;
	}
	return scheduler->plan_rows;
}

void okv__scheduler_measured(struct okv__scheduler *scheduler, uint64_t step_ns)
{
	uint64_t row_ns = step_ns / (scheduler->plan_rows ? scheduler->plan_rows : 1);

	/* A step of few rows is mostly the reading of weights and says nothing about one more row. */
	if (scheduler->plan_rows < CHUNK_MIN)
		return;
	scheduler->row_ns = (3 * scheduler->row_ns + row_ns) / 4;
	if (scheduler->row_ns == 0)
		scheduler->row_ns = 1;
}

bool okv__scheduler_stepped(struct okv__task *task)
{
	OKV_ASSERT(task->rows <= rows_left(task));
	task->computed += task->rows;
	if (task->rows == 0 || task->computed < task->known)
		return false;
	task->state = OKV__TASK_DECODE;
	return true;
}

enum okv__verdict okv__scheduler_sampled(struct okv__scheduler *scheduler, struct okv__task *task, bool is_end)
{
	OKV_ASSERT(task->state == OKV__TASK_DECODE && task->known < task->tokens_end);
	if (!is_end && ++task->known < task->tokens_end)
		return OKV__GO_ON;
	leave(scheduler, task);
	return is_end ? OKV__STOP : OKV__LENGTH;
}

uint64_t okv__scheduler_wake_ns(const struct okv__scheduler *scheduler)
{
	uint64_t wake_ns = UINT64_MAX;

	OKV_LIST_EACH(at, &scheduler->running)
	{
		const struct okv__task *task = task_of(at);

		if (task->state == OKV__TASK_RESTORING && task->deadline_ns < wake_ns)
			wake_ns = task->deadline_ns;
	}
	return wake_ns;
}
