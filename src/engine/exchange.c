/*
 * Exchange: restores and publishes under way. A transfer holds its pages from the call that starts it to its
 * completion, whatever becomes of the lane: a lane that is cancelled or out of patience leaves the transfer behind as
 * an orphan.
 */
#include <poll.h>
#include <stdlib.h>

#include "lane.h"

/* A publish carries this many pages at most, and a lane in prefill saves up until it has that many. */
enum { PUBLISH_PAGES = 16 };

/* A source that copies inside its poll, slice by slice, gets this much of each turn: an eighth of a step. */
#define POLL_NS (5 * OKV_NS_PER_MS)

struct okv__transfer {
	struct okv_list link; /* engine->transfers or engine->offers */
	uint64_t handle;      /* 0 while it waits among the offers */
	bool is_restore;
	struct okv__lane *lane; /* borrowed; of a restore whose lane still waits for it, else NULL */
	uint64_t start_ns;
	uint32_t count;
	uint32_t page[]; /* each held by the transfer */
};

static struct okv__transfer *transfer_create(uint32_t count)
{
	struct okv__transfer *transfer = calloc(1, sizeof(*transfer) + count * sizeof(transfer->page[0]));

	if (transfer)
		transfer->count = count;
	return transfer;
}

/* Pages go deepest first, as everywhere. */
static void transfer_destroy(struct okv_engine *engine, struct okv__transfer *transfer)
{
	while (transfer->count > 0)
		okv__pages_release(&engine->pages, transfer->page[--transfer->count]);
	free(transfer);
}

static void submit(struct okv_engine *engine, struct okv__transfer *transfer, uint64_t handle)
{
	transfer->handle = handle;
	transfer->start_ns = okv_clock_now(engine->options.clock);
	okv_list_push_back(&engine->transfers, &transfer->link);
	okv_metric_add(transfer->is_restore ? engine->metrics.restores_in_flight : engine->metrics.publishes_in_flight,
		       1);
}

bool okv__exchange_restore(struct okv_engine *engine, struct okv__lane *lane, uint64_t now_ns)
{
	uint32_t first = lane->page_count, whole = okv__lane_whole_pages(engine, lane);
	struct okv__transfer *transfer;
	uint64_t handle;

	if (!engine->source || lane->cache != OKV_CACHE_FULL || !lane->task.may_restore || first >= whole)
		return false;
	transfer = transfer_create(whole - first);
	if (!transfer)
		return false;
	transfer->is_restore = true;
	transfer->lane = lane;
	for (uint32_t i = 0; i < transfer->count; i++) {
		uint32_t page = first + i;

		transfer->page[i] = okv__lane_take(engine, lane);
		engine->blocks[i] = (struct okv_kv_block){
			.hash = lane->hash[page],
			.parent = *okv__lane_parent(lane, page),
			.tokens = lane->token + (size_t)page * engine->layout.page_tokens,
			.token_count = engine->layout.page_tokens,
			.page_offset = okv__arena_offset(&engine->arena, transfer->page[i]),
		};
	}
	handle = engine->source->restore(engine->source->context, engine->blocks, transfer->count);
	if (handle == 0) {
		while (transfer->count > 0)
			okv__lane_give_back(engine, lane, transfer->page[--transfer->count]);
		free(transfer);
		return false;
	}
	submit(engine, transfer, handle);
	transfer->start_ns = now_ns;
	lane->restore = transfer;
	okv_metric_add(engine->metrics.restores, 1);
	return true;
}

void okv__exchange_abandon(struct okv_engine *engine, struct okv__lane *lane)
{
	if (!lane->restore)
		return;
	lane->restore->lane = NULL;
	engine->source->cancel(engine->source->context, lane->restore->handle);
	lane->restore = NULL;
}

/* The lane's next pages have arrived in `pages`, held by the caller, who gives them away. */
static void adopt(struct okv_engine *engine, struct okv__lane *lane, const uint32_t *pages, uint32_t count)
{
	uint32_t first = lane->page_count, page_tokens = engine->layout.page_tokens;

	for (uint32_t i = 0; i < count; i++)
		okv__lane_append(engine, lane, pages[i]);
	if (count > 0)
		okv_graph_rotate(engine->graph, &lane->table[first], first * page_tokens, count * page_tokens);
	for (uint32_t i = first; i < lane->page_count; i++) {
		okv__lane_name(engine, lane, i);
		engine->pages.page[lane->page[i]].is_offered = true;
	}
	lane->named_count = lane->page_count;
	lane->usage.restored_tokens += count * page_tokens;
}

static void finish_restore(struct okv_engine *engine, struct okv__transfer *transfer,
			   const struct okv_kv_completion *completion)
{
	struct okv__lane *lane = transfer->lane;

	if (completion->status != OKV_OK && lane) /* one that was given up is counted as what gave it up */
		okv_metric_add(engine->metrics.restore_failures, 1);
	if (!lane) {
		transfer_destroy(engine, transfer);
		return;
	}
	lane->restore = NULL;
	lane->usage.restore_ns = okv_clock_now(engine->options.clock) - transfer->start_ns;
	lane->usage.restored_remote_bytes = completion->remote_bytes;
	okv_metric_observe_ns(engine->metrics.restore_time, lane->usage.restore_ns);
	okv_metric_add(engine->metrics.restored_remote_bytes, (int64_t)completion->remote_bytes);
	for (uint32_t i = transfer->count; i-- > completion->blocks;)
		okv__lane_give_back(engine, lane, transfer->page[i]);
	adopt(engine, lane, transfer->page, completion->blocks);
	free(transfer);
	okv__engine_restored(engine, lane);
}

static void finish_publish(struct okv_engine *engine, struct okv__transfer *transfer,
			   const struct okv_kv_completion *completion)
{
	engine->publish_count--;
	okv_metric_add(engine->metrics.unpublished, -(int64_t)transfer->count);
	okv_metric_add(engine->metrics.published, completion->blocks);
	if (completion->blocks < transfer->count)
		okv_metric_add(engine->metrics.publish_failures, 1);
	for (uint32_t i = completion->blocks; i < transfer->count; i++)
		engine->pages.page[transfer->page[i]].is_offered = false;
	transfer_destroy(engine, transfer);
}

static struct okv__transfer *transfer_of(struct okv_list *link)
{
	return OKV_CONTAINER_OF(link, struct okv__transfer, link);
}

/* Takes the transfer out of those under way; NULL if there is none of that handle. */
static struct okv__transfer *take(struct okv_engine *engine, uint64_t handle)
{
	OKV_LIST_EACH(at, &engine->transfers)
	{
		/* The analyzer cannot follow a ring: what was freed had left it.
		 * NOLINTNEXTLINE(clang-analyzer-unix.Malloc) */
		if (transfer_of(at)->handle == handle) {
			okv_list_remove(at);
			return transfer_of(at);
		}
	}
	return NULL;
}

static void finish(struct okv_engine *engine, const struct okv_kv_completion *completion)
{
	struct okv__transfer *transfer = take(engine, completion->handle);

	OKV_ASSERT(transfer && completion->blocks <= transfer->count);
	okv_metric_add(transfer->is_restore ? engine->metrics.restores_in_flight : engine->metrics.publishes_in_flight,
		       -1);
	if (transfer->is_restore)
		finish_restore(engine, transfer, completion);
	else
		finish_publish(engine, transfer, completion);
}

static bool has_more(const struct okv_engine *engine)
{
	struct pollfd fd = {.fd = engine->source->wait_fd(engine->source->context), .events = POLLIN};

	return poll(&fd, 1, 0) > 0;
}

void okv__exchange_poll(struct okv_engine *engine)
{
	uint64_t start_ns = okv_clock_now(engine->options.clock);
	struct okv_kv_completion completion;

	if (!engine->source)
		return;
	do {
		while (engine->source->poll(engine->source->context, &completion))
			finish(engine, &completion);
	} while (!okv_list_is_empty(&engine->transfers) && okv_clock_now(engine->options.clock) - start_ns < POLL_NS &&
		 has_more(engine));
}

static bool wants_offer(const struct okv_engine *engine, uint32_t index)
{
	return engine->pages.page[index].is_named && !engine->pages.page[index].is_offered;
}

static void drop_offer(struct okv_engine *engine, struct okv__transfer *offer)
{
	okv_list_remove(&offer->link);
	engine->offer_pages -= offer->count;
	for (uint32_t i = 0; i < offer->count; i++)
		engine->pages.page[offer->page[i]].is_offered = false;
	okv_metric_add(engine->metrics.unpublished, -(int64_t)offer->count);
	okv_metric_add(engine->metrics.publish_failures, 1);
	transfer_destroy(engine, offer);
}

/* Queues one offer of the lane's next full pages; false without memory. */
static bool queue_offer(struct okv_engine *engine, struct okv__lane *lane)
{
	struct okv__transfer *offer = transfer_create(PUBLISH_PAGES);

	if (!offer)
		return false;
	offer->count = 0;
	while (offer->count < PUBLISH_PAGES && lane->offered_count < lane->named_count) {
		uint32_t index = lane->page[lane->offered_count++];

		if (!wants_offer(engine, index))
			continue;
		engine->pages.page[index].is_offered = true;
		okv__pages_hold(&engine->pages, index);
		offer->page[offer->count++] = index;
	}
	engine->offer_pages += offer->count;
	okv_metric_add(engine->metrics.unpublished, offer->count);
	okv_list_push_back(&engine->offers, &offer->link);
	return true;
}

void okv__exchange_offer(struct okv_engine *engine, struct okv__lane *lane, bool flush)
{
	if (!engine->source || lane->cache != OKV_CACHE_FULL)
		return;
	for (;;) {
		while (lane->offered_count < lane->named_count && !wants_offer(engine, lane->page[lane->offered_count]))
			lane->offered_count++;
		if (lane->offered_count == lane->named_count ||
		    (!flush && lane->named_count - lane->offered_count < PUBLISH_PAGES))
			return;
		if (!queue_offer(engine, lane))
			return;
	}
}

static uint64_t start_publish(struct okv_engine *engine, const struct okv__transfer *offer)
{
	for (uint32_t i = 0; i < offer->count; i++) {
		const struct okv__page *page = &engine->pages.page[offer->page[i]];

		engine->blocks[i] = (struct okv_kv_block){
			.hash = page->hash,
			.parent = page->parent,
			.tokens = okv__pages_tokens(&engine->pages, offer->page[i]),
			.token_count = engine->layout.page_tokens,
			.page_offset = okv__arena_offset(&engine->arena, offer->page[i]),
		};
	}
	return engine->source->publish(engine->source->context, engine->blocks, offer->count);
}

bool okv__exchange_push(struct okv_engine *engine)
{
	bool is_any_dropped = false;

	OKV_LIST_EACH_SAFE(at, &engine->offers)
	{
		struct okv__transfer *offer = transfer_of(at);
		uint64_t handle = start_publish(engine, offer);

		if (handle == 0 && engine->publish_count > 0)
			break; /* no free slot: the next completion brings one */
		if (handle == 0) {
			drop_offer(engine, offer);
			is_any_dropped = true;
			continue;
		}
		okv_list_remove(&offer->link);
		engine->offer_pages -= offer->count;
		engine->publish_count++;
		submit(engine, offer, handle);
	}
	/* A cache that is slower than we are must not keep the arena from us: what waits is at most a quarter of it. */
	while (engine->offer_pages > engine->pages.count / 4) {
		drop_offer(engine, transfer_of(engine->offers.prev));
		is_any_dropped = true;
	}
	return is_any_dropped;
}

void okv__exchange_stop(struct okv_engine *engine)
{
	OKV_LIST_EACH_SAFE(at, &engine->offers)
	drop_offer(engine, transfer_of(at));
	OKV_LIST_EACH_SAFE(at, &engine->transfers)
	{
		engine->source->cancel(engine->source->context, transfer_of(at)->handle);
		okv_list_remove(at);
		free(transfer_of(at));
	}
}
