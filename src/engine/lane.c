#include "lane.h"

#include <stdlib.h>
#include <string.h>

static const struct okv_hash zero_hash;

const struct okv_hash *okv__lane_parent(const struct okv__lane *lane, uint32_t i)
{
	return i > 0 ? &lane->hash[i - 1] : &zero_hash;
}

static void name_next(const struct okv_engine *engine, struct okv__lane *lane)
{
	uint32_t i = lane->hash_count, page_tokens = engine->layout.page_tokens;

	lane->hash[i] = okv_block_hash(&engine->key_digest, okv__lane_parent(lane, i), &zero_hash,
				       lane->token + (size_t)i * page_tokens, page_tokens);
	lane->hash_count++;
}

struct okv__lane *okv__lane_create(const struct okv_engine *engine, const struct okv_request *request)
{
	uint32_t room = engine->context - request->prompt_count, page_tokens = engine->layout.page_tokens;
	struct okv__lane *lane = calloc(1, sizeof(*lane));

	if (!lane)
		return NULL;
	lane->sampling = request->sampling;
	lane->cache = request->cache;
	lane->ignore_end = request->ignore_end;
	lane->sink = request->sink;
	lane->sink_context = request->sink_context;
	lane->prompt_count = request->prompt_count;
	lane->tokens_end = request->prompt_count + (request->tokens_max < room ? request->tokens_max : room);
	/* The last token is only ever sampled, never computed. */
	lane->page_end = (lane->tokens_end - 1 + page_tokens - 1) / page_tokens;
	lane->token = calloc(lane->tokens_end, sizeof(*lane->token));
	lane->hash = calloc(lane->page_end, sizeof(*lane->hash));
	lane->page = calloc(lane->page_end, sizeof(*lane->page));
	lane->table = calloc(lane->page_end, sizeof(*lane->table));
	if (!lane->token || !lane->hash || !lane->page || !lane->table) {
		okv__lane_destroy(lane);
		return NULL;
	}
	memcpy(lane->token, request->prompt, request->prompt_count * sizeof(*lane->token));
	while (lane->cache != OKV_CACHE_OFF && lane->hash_count < okv__lane_whole_pages(engine, lane))
		name_next(engine, lane);
	return lane;
}

void okv__lane_destroy(struct okv__lane *lane)
{
	if (!lane)
		return;
	free(lane->token);
	free(lane->hash);
	free(lane->page);
	free(lane->table);
	free(lane);
}

uint32_t okv__lane_whole_pages(const struct okv_engine *engine, const struct okv__lane *lane)
{
	return (lane->prompt_count - 1) / engine->layout.page_tokens;
}

void okv__lane_append(struct okv_engine *engine, struct okv__lane *lane, uint32_t index)
{
	OKV_ASSERT(lane->page_count < lane->page_end);
	lane->page[lane->page_count] = index;
	lane->table[lane->page_count++] = okv__arena_page(&engine->arena, index);
}

uint32_t okv__lane_take(struct okv_engine *engine, struct okv__lane *lane)
{
	OKV_ASSERT(lane->reserved > 0);
	lane->reserved--;
	return okv__pages_take(&engine->pages);
}

void okv__lane_give_back(struct okv_engine *engine, struct okv__lane *lane, uint32_t index)
{
	bool reserved;

	okv__pages_release(&engine->pages, index);
	reserved = okv__pages_reserve(&engine->pages, 1);
	OKV_ASSERT(reserved);
	lane->reserved++;
}

/* The page that holds the lane's next whole page, or OKV__PAGE_NONE. */
static uint32_t find_next(const struct okv_engine *engine, const struct okv__lane *lane)
{
	if (lane->cache == OKV_CACHE_OFF || lane->page_count >= okv__lane_whole_pages(engine, lane))
		return OKV__PAGE_NONE;
	return okv__pages_find(&engine->pages, &lane->hash[lane->page_count]);
}

static void count_hit(const struct okv_engine *engine, struct okv__lane *lane)
{
	lane->named_count = lane->page_count;
	lane->usage.prefix_hit_tokens += engine->layout.page_tokens;
}

bool okv__lane_reserve(struct okv_engine *engine, struct okv__lane *lane)
{
	uint32_t index;

	OKV_ASSERT(lane->page_count == 0 && lane->reserved == 0);
	while ((index = find_next(engine, lane)) != OKV__PAGE_NONE) {
		okv__pages_hold(&engine->pages, index);
		okv__lane_append(engine, lane, index);
		count_hit(engine, lane);
	}
	lane->reserved = lane->page_end - lane->page_count;
	if (okv__pages_reserve(&engine->pages, lane->reserved))
		return true;
	lane->reserved = 0;
	okv__lane_release(engine, lane);
	return false;
}

void okv__lane_release(struct okv_engine *engine, struct okv__lane *lane)
{
	while (lane->page_count > 0)
		okv__pages_release(&engine->pages, lane->page[--lane->page_count]);
	okv__pages_unreserve(&engine->pages, lane->reserved);
	lane->reserved = 0;
	lane->named_count = lane->offered_count = 0;
	lane->usage.computed_tokens = lane->usage.prefix_hit_tokens = lane->usage.restored_tokens = 0;
}

bool okv__lane_extend(struct okv_engine *engine, struct okv__lane *lane)
{
	uint32_t index;
	bool found = false;

	while ((index = find_next(engine, lane)) != OKV__PAGE_NONE) {
		okv__pages_hold(&engine->pages, index);
		okv__pages_unreserve(&engine->pages, 1);
		lane->reserved--;
		okv__lane_append(engine, lane, index);
		count_hit(engine, lane);
		found = true;
	}
	return found;
}

uint32_t okv__lane_copy_tail(struct okv_engine *engine, struct okv__lane *lane, uint32_t computed)
{
	uint32_t i = lane->page_count, from, to, shared = 0;

	OKV_ASSERT(computed == i * engine->layout.page_tokens);
	if (lane->cache == OKV_CACHE_OFF)
		return 0;
	from = okv__pages_find_tail(&engine->pages, okv__lane_parent(lane, i), lane->token + computed,
				    lane->prompt_count - 1 - computed, &shared);
	if (from == OKV__PAGE_NONE)
		return 0;
	/* Taking a page may give up the source itself; then it is the very page that is taken, bytes and all. */
	to = okv__lane_take(engine, lane);
	if (to != from)
		okv__arena_copy(&engine->arena, to, from);
	okv__lane_append(engine, lane, to);
	lane->usage.prefix_hit_tokens += shared;
	return shared;
}

/* Another page has the name of the lane's page `i`, so it has the same bytes: one of the two is enough. */
static void use_namesake(struct okv_engine *engine, struct okv__lane *lane, uint32_t i)
{
	uint32_t namesake = okv__pages_find(&engine->pages, &lane->hash[i]);

	okv__pages_release(&engine->pages, lane->page[i]);
	okv__pages_hold(&engine->pages, namesake);
	lane->page[i] = namesake;
	lane->table[i] = okv__arena_page(&engine->arena, namesake);
}

void okv__lane_name(struct okv_engine *engine, struct okv__lane *lane, uint32_t i)
{
	if (lane->hash_count == i)
		name_next(engine, lane);
	if (!okv__pages_name(&engine->pages, lane->page[i], &lane->hash[i], okv__lane_parent(lane, i),
			     lane->token + (size_t)i * engine->layout.page_tokens))
		use_namesake(engine, lane, i);
}

void okv__lane_name_full(struct okv_engine *engine, struct okv__lane *lane)
{
	uint32_t full = lane->task.computed / engine->layout.page_tokens;

	if (lane->cache == OKV_CACHE_OFF)
		return;
	for (; lane->named_count < full; lane->named_count++)
		okv__lane_name(engine, lane, lane->named_count);
}
