/*
 * Turn: what the step thread does over and over: take what other threads and the source left for it, let the scheduler
 * decide, run one step of the graph, hand out its tokens.
 */
#include <errno.h>
#include <poll.h>
#include <string.h>
#include <unistd.h>

#include "lane.h"
#include "okv/base/log.h"

/* A few milliseconds: who arrives meanwhile waits no longer than for a step. */
enum { POPULATE_PAGES = 16 };

static struct okv__lane *lane_of(struct okv__task *task)
{
	return OKV_CONTAINER_OF(task, struct okv__lane, task);
}

static struct okv__lane *lane_at(struct okv_list *link)
{
	return lane_of(OKV_CONTAINER_OF(link, struct okv__task, link));
}

static uint64_t now_of(const struct okv_engine *engine)
{
	return okv_clock_now(engine->options.clock);
}

static void take_incoming(struct okv_engine *engine)
{
	pthread_mutex_lock(&engine->lock);
	OKV_LIST_EACH_SAFE(at, &engine->incoming)
	{
		struct okv__lane *lane = OKV_CONTAINER_OF(at, struct okv__lane, incoming);

		okv_list_remove(at);
		okv__scheduler_submit(&engine->scheduler, &lane->task, lane->prompt_count, lane->tokens_end);
		/* A cancel that came before now looked for it in vain. */
		if (atomic_load(&lane->is_cancel_asked))
			okv__scheduler_cancel(&lane->task);
	}
	pthread_mutex_unlock(&engine->lock);
}

static void note_cancelled(struct okv_list *list)
{
	OKV_LIST_EACH(at, list)
	{
		if (atomic_load(&lane_at(at)->is_cancel_asked))
			okv__scheduler_cancel(&lane_at(at)->task);
	}
}

static void take_wishes(struct okv_engine *engine)
{
	if (atomic_exchange(&engine->is_cancel_asked, false)) {
		note_cancelled(&engine->scheduler.queue);
		note_cancelled(&engine->scheduler.running);
	}
	if (atomic_exchange(&engine->is_forget_asked, false))
		okv__pages_forget(&engine->pages);
}

/* Once a request, when its whole prompt has KV: from here on the three numbers stand. */
static void account_prompt(const struct okv_engine *engine, struct okv__lane *lane)
{
	if (lane->is_accounted)
		return;
	lane->is_accounted = true;
	okv_metric_add(engine->metrics.computed, lane->usage.computed_tokens);
	okv_metric_add(engine->metrics.prefix_hit, lane->usage.prefix_hit_tokens);
	okv_metric_add(engine->metrics.restored, lane->usage.restored_tokens);
}

/* The lane's task has left the scheduler. */
static void end_lane(struct okv_engine *engine, struct okv__lane *lane, enum okv_end end)
{
	struct okv_event event = {.kind = OKV_EVENT_END, .end = end};

	okv__exchange_abandon(engine, lane);
	okv__exchange_offer(engine, lane, true);
	lane->usage.prompt_tokens = lane->prompt_count;
	lane->usage.total_ns = now_of(engine) - lane->admitted_ns;
	event.usage = lane->usage;
	account_prompt(engine, lane);
	okv__lane_release(engine, lane);
	if (end == OKV_END_CANCELLED)
		okv_metric_add(engine->metrics.cancelled, 1);
	if (lane->task.state == OKV__TASK_QUEUED)
		okv_metric_add(engine->metrics.waiting, -1);
	else
		okv_metric_add(engine->metrics.running, -1);

	pthread_mutex_lock(&engine->lock);
	okv_map_remove(&engine->lanes, &lane->by_id);
	pthread_mutex_unlock(&engine->lock);
	lane->sink(lane->sink_context, lane->id, &event);
	okv__lane_destroy(lane);
}

/* Whole pages are settled; gains what it can from a page that begins the same. */
static uint32_t tokens_at_hand(struct okv_engine *engine, struct okv__lane *lane)
{
	uint32_t computed;

	(void)okv__lane_extend(engine, lane);
	computed = lane->page_count * engine->layout.page_tokens;
	return computed + okv__lane_copy_tail(engine, lane, computed);
}

void okv__engine_restored(struct okv_engine *engine, struct okv__lane *lane)
{
	okv__scheduler_restored(&lane->task, tokens_at_hand(engine, lane));
}

static void admit(struct okv_engine *engine, struct okv__lane *lane, uint64_t now_ns)
{
	if (!okv__lane_reserve(engine, lane)) {
		okv__scheduler_postpone(&engine->scheduler);
		return;
	}
	if (okv__exchange_restore(engine, lane, now_ns))
		okv__scheduler_restore(&engine->scheduler, &lane->task, now_ns + engine->options.restore_limit_ns);
	else
		okv__scheduler_run(&engine->scheduler, &lane->task, tokens_at_hand(engine, lane));
	if (lane->usage.queued_ns == 0) {
		lane->usage.queued_ns = now_ns - lane->admitted_ns;
		okv_metric_observe_ns(engine->metrics.queue, lane->usage.queued_ns);
	}
	okv_metric_add(engine->metrics.waiting, -1);
	okv_metric_add(engine->metrics.running, 1);
}

static void act(struct okv_engine *engine)
{
	struct okv__task *task;
	uint64_t now_ns = now_of(engine);

	for (;;) {
		switch (okv__scheduler_next(&engine->scheduler, now_ns, &task)) {
		case OKV__ACTION_NONE:
			return;
		case OKV__ACTION_ADMIT:
			admit(engine, lane_of(task), now_ns);
			break;
		case OKV__ACTION_ABANDON:
			okv__exchange_abandon(engine, lane_of(task));
			okv__lane_release(engine, lane_of(task));
			okv_metric_add(engine->metrics.restore_deadlines, 1);
			okv_metric_add(engine->metrics.running, -1);
			okv_metric_add(engine->metrics.waiting, 1);
			break;
		case OKV__ACTION_END:
			end_lane(engine, lane_of(task), OKV_END_CANCELLED);
			break;
		}
	}
}

/* True if the lane stands before a whole page that it could share with another lane. */
static bool is_before_whole_page(const struct okv_engine *engine, const struct okv__lane *lane)
{
	return lane->task.state == OKV__TASK_PREFILL && lane->cache != OKV_CACHE_OFF &&
	       lane->task.computed == lane->page_count * engine->layout.page_tokens &&
	       lane->page_count < okv__lane_whole_pages(engine, lane);
}

/* True if `leader` is about to compute, and will name, the page that `lane` needs next. */
static bool is_led_by(const struct okv_engine *engine, const struct okv__lane *lane, const struct okv__lane *leader)
{
	uint32_t next = lane->page_count;

	return leader->task.state == OKV__TASK_PREFILL && leader->cache != OKV_CACHE_OFF &&
	       leader->named_count == next && next < okv__lane_whole_pages(engine, leader) &&
	       okv_hash_equal(&leader->hash[next], &lane->hash[next]);
}

/*
 * Equal prompts prefill once: a lane takes pages that were named since its last chunk, and waits while an older lane is
 * at the very page it needs. Only older lanes are waited for, so somebody always goes on.
 */
static void follow(struct okv_engine *engine)
{
	struct okv_list *running = &engine->scheduler.running;

	OKV_LIST_EACH(at, running)
	{
		struct okv__lane *lane = lane_at(at);
		bool is_held = false;

		if (is_before_whole_page(engine, lane) && okv__lane_extend(engine, lane))
			okv__scheduler_found(&lane->task, lane->page_count * engine->layout.page_tokens);
		if (is_before_whole_page(engine, lane))
			for (struct okv_list *older = running->next; older != at && !is_held; older = older->next)
				is_held = is_led_by(engine, lane, lane_at(older));
		okv__scheduler_hold(&lane->task, is_held);
	}
}

/* Gives the lane the pages its planned rows will be written to, and appends those rows. */
static uint32_t add_rows(struct okv_engine *engine, struct okv__lane *lane, uint32_t at)
{
	uint32_t page_tokens = engine->layout.page_tokens;
	uint32_t first = lane->task.computed, end = first + lane->task.rows;

	while (lane->page_count * page_tokens < end)
		okv__lane_append(engine, lane, okv__lane_take(engine, lane));
	for (uint32_t i = first / page_tokens; i * page_tokens < end; i++)
		OKV_ASSERT(okv__pages_may_write(&engine->pages, lane->page[i])); /* copy-on-write: pages.h I2 */
	for (uint32_t position = first; position < end; position++)
		engine->rows[at++] = (struct okv_graph_row){
			.token = lane->token[position],
			.position = position,
			.pages = lane->table,
			.wants_logits = position + 1 == lane->task.known,
		};
	return at;
}

static void deliver(struct okv_engine *engine, struct okv__lane *lane, uint32_t token, uint64_t now_ns)
{
	struct okv_event event = {.kind = OKV_EVENT_TOKEN, .token = token};

	if (lane->usage.generated_tokens++ == 0) {
		lane->usage.first_token_ns = now_ns - lane->admitted_ns;
		okv_metric_observe_ns(engine->metrics.ttft, lane->usage.first_token_ns);
	} else {
		okv_metric_observe_ns(engine->metrics.itl, now_ns - lane->last_token_ns);
	}
	lane->last_token_ns = now_ns;
	okv_metric_add(engine->metrics.generated, 1);
	lane->sink(lane->sink_context, lane->id, &event);
}

static void sample(struct okv_engine *engine, struct okv__lane *lane, const float *logits, uint64_t now_ns)
{
	uint32_t position = lane->task.known;
	uint32_t token = okv__sample(&engine->sampler, &lane->sampling, logits, position);
	bool is_end = !lane->ignore_end && okv_tokenizer_is_end(engine->options.tokenizer, token);
	enum okv__verdict verdict;

	account_prompt(engine, lane);
	lane->token[position] = token;
	verdict = okv__scheduler_sampled(&engine->scheduler, &lane->task, is_end);
	if (!is_end)
		deliver(engine, lane, token, now_ns);
	if (verdict != OKV__GO_ON)
		end_lane(engine, lane, verdict == OKV__STOP ? OKV_END_STOP : OKV_END_LENGTH);
}

/* Moves the lane past its rows; returns how many rows of logits were its own. */
static uint32_t settle(struct okv_engine *engine, struct okv__lane *lane, const float *logits, uint64_t now_ns)
{
	uint32_t before = lane->task.computed, after;
	bool must_sample = okv__scheduler_stepped(&lane->task);

	after = lane->task.computed < lane->prompt_count ? lane->task.computed : lane->prompt_count;
	if (after > before)
		lane->usage.computed_tokens += after - before;
	okv__lane_name_full(engine, lane);
	okv__exchange_offer(engine, lane, must_sample);
	if (must_sample)
		sample(engine, lane, logits, now_ns);
	return must_sample ? 1 : 0;
}

static void step(struct okv_engine *engine)
{
	struct okv_list *running = &engine->scheduler.running;
	const float *logits = engine->logits;
	uint64_t start_ns = now_of(engine), end_ns;
	uint32_t count = 0;

	OKV_LIST_EACH(at, running)
	count = add_rows(engine, lane_at(at), count);
	okv_graph_step(engine->graph, engine->rows, count, engine->logits);
	end_ns = now_of(engine);
	okv__scheduler_measured(&engine->scheduler, end_ns - start_ns);
	okv_metric_observe_ns(engine->metrics.step, end_ns - start_ns);
	okv_metric_add(engine->metrics.step_rows, count);
	OKV_LIST_EACH_SAFE(at, running)
	{
		if (lane_at(at)->task.rows > 0)
			logits += settle(engine, lane_at(at), logits, end_ns) * (size_t)engine->shape.vocabulary;
	}
}

static void show_pages(struct okv_engine *engine)
{
	okv_metric_set(engine->metrics.pages_held, okv__pages_held(&engine->pages));
	okv_metric_set(engine->metrics.pages_idle, engine->pages.idle_count);
	okv_metric_set(engine->metrics.pages_shared, engine->pages.shared_count);
	okv_metric_set(engine->metrics.pages_reserved, engine->pages.reserved);
	okv_metric_set(engine->metrics.evicted, (int64_t)engine->pages.evicted_total);
}

bool okv__engine_turn(struct okv_engine *engine)
{
	bool is_busy;

	take_incoming(engine);
	take_wishes(engine);
	okv__exchange_poll(engine);
	act(engine);
	follow(engine);
	is_busy = okv__scheduler_plan(&engine->scheduler) > 0;
	if (is_busy)
		step(engine);
	if (okv__exchange_push(engine))
		is_busy = true; /* the head of the queue may wait for these pages, and nothing else would wake us */
	show_pages(engine);
	return is_busy;
}

bool okv__engine_populate(struct okv_engine *engine)
{
	uint64_t wanted = engine->pages.touched_count + engine->options.populate_bytes / engine->arena.extent_bytes;
	struct okv__arena *arena = &engine->arena;
	struct okv_reason reason;
	uint32_t end;

	wanted = wanted < arena->page_count ? wanted : arena->page_count;
	if (arena->resident_count >= wanted || engine->options.populate_bytes == 0)
		return false;
	end = wanted - arena->resident_count < POPULATE_PAGES ? (uint32_t)wanted
							      : arena->resident_count + POPULATE_PAGES;
	if (okv__arena_populate(arena, end, &reason) == OKV_OK)
		return true;
	okv_log(OKV_LOG_WARN, "engine", "%s; pages are touched as they are used", reason.text);
	engine->options.populate_bytes = 0;
	return false;
}

/* Milliseconds for poll(): rounded up, so that the deadline has passed when it returns. */
static int timeout_ms(const struct okv_engine *engine)
{
	uint64_t wake_ns = okv__scheduler_wake_ns(&engine->scheduler), now_ns = now_of(engine);

	if (wake_ns == UINT64_MAX)
		return -1;
	if (wake_ns <= now_ns)
		return 0;
	wake_ns = (wake_ns - now_ns + OKV_NS_PER_MS - 1) / OKV_NS_PER_MS;
	return wake_ns < 60000 ? (int)wake_ns : 60000;
}

void okv__engine_wait(struct okv_engine *engine)
{
	struct pollfd fds[2] = {{.fd = engine->wake_fd, .events = POLLIN}, {.fd = -1, .events = POLLIN}};
	uint64_t count;

	if (engine->source)
		fds[1].fd = engine->source->wait_fd(engine->source->context);
	if (poll(fds, 2, timeout_ms(engine)) < 0)
		OKV_ASSERT(errno == EINTR);
	if (fds[0].revents && read(engine->wake_fd, &count, sizeof(count)) < 0)
		OKV_ASSERT(errno == EAGAIN || errno == EINTR);
}

void okv__engine_end_all(struct okv_engine *engine)
{
	struct okv__task *task;

	take_incoming(engine);
	OKV_LIST_EACH(at, &engine->scheduler.queue)
	okv__scheduler_cancel(&lane_at(at)->task);
	OKV_LIST_EACH(at, &engine->scheduler.running)
	okv__scheduler_cancel(&lane_at(at)->task);
	while (okv__scheduler_next(&engine->scheduler, 0, &task) == OKV__ACTION_END)
		end_lane(engine, lane_of(task), OKV_END_CANCELLED);
	show_pages(engine);
}
