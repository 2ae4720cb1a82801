#include "pages.h"

#include <stdlib.h>
#include <string.h>

static uint64_t table_hash(const struct okv_hash *hash)
{
	return okv_table_hash(hash->bytes, sizeof(hash->bytes));
}

enum okv_status okv__pages_init(struct okv__pages *pages, uint32_t count, uint32_t page_tokens,
				struct okv_reason *reason)
{
	*pages = (struct okv__pages){.count = count, .page_tokens = page_tokens, .free_count = count};
	okv_list_init(&pages->idle);
	pages->page = calloc(count, sizeof(*pages->page));
	pages->tokens = calloc((size_t)count * page_tokens, sizeof(*pages->tokens));
	pages->free = calloc(count, sizeof(*pages->free));
	if (!pages->page || !pages->tokens || !pages->free || okv_map_init(&pages->by_hash) != OKV_OK ||
	    okv_map_init(&pages->by_parent) != OKV_OK) {
		okv__pages_done(pages);
		return okv_refuse(reason, OKV_ERR_NO_MEMORY, "arena", "no memory for the table of %u pages", count);
	}
	for (uint32_t i = 0; i < count; i++) {
		pages->free[i] = count - 1 - i;
		okv_list_init(&pages->page[i].idle);
	}
	return OKV_OK;
}

void okv__pages_done(struct okv__pages *pages)
{
	okv_map_done(&pages->by_hash);
	okv_map_done(&pages->by_parent);
	free(pages->page);
	free(pages->tokens);
	free(pages->free);
	*pages = (struct okv__pages){.count = 0};
}

bool okv__pages_reserve(struct okv__pages *pages, uint32_t count)
{
	/* Whoever found idle pages by name holds them already and may have broken I1 until now: no subtraction here. */
	if ((uint64_t)pages->reserved + count > (uint64_t)pages->free_count + pages->idle_count)
		return false;
	pages->reserved += count;
	return true;
}

void okv__pages_unreserve(struct okv__pages *pages, uint32_t count)
{
	OKV_ASSERT(count <= pages->reserved);
	pages->reserved -= count;
}

static void forget(struct okv__pages *pages, struct okv__page *page)
{
	OKV_ASSERT(page->is_named && page->holders == 0);
	okv_map_remove(&pages->by_hash, &page->by_hash);
	okv_map_remove(&pages->by_parent, &page->by_parent);
	okv_list_remove(&page->idle);
	page->is_named = page->is_offered = false;
	pages->idle_count--;
	pages->free[pages->free_count++] = (uint32_t)(page - pages->page);
}

uint32_t okv__pages_take(struct okv__pages *pages)
{
	OKV_ASSERT(pages->reserved > 0);
	if (pages->free_count == 0) {
		OKV_ASSERT(!okv_list_is_empty(&pages->idle)); /* I1 */
		forget(pages, OKV_CONTAINER_OF(pages->idle.next, struct okv__page, idle));
		pages->evicted_total++;
	}
	pages->reserved--;

	uint32_t index = pages->free[--pages->free_count];

	pages->page[index].holders = 1;
	if (index >= pages->touched_count)
		pages->touched_count = index + 1;
	return index;
}

void okv__pages_hold(struct okv__pages *pages, uint32_t index)
{
	struct okv__page *page = &pages->page[index];

	OKV_ASSERT(page->is_named || page->holders > 0);
	if (page->holders == 0) {
		okv_list_remove(&page->idle);
		pages->idle_count--;
	}
	if (++page->holders == 2)
		pages->shared_count++;
}

void okv__pages_release(struct okv__pages *pages, uint32_t index)
{
	struct okv__page *page = &pages->page[index];

	OKV_ASSERT(page->holders > 0);
	if (--page->holders == 1)
		pages->shared_count--;
	if (page->holders > 0)
		return;
	if (page->is_named) {
		okv_list_push_back(&pages->idle, &page->idle);
		pages->idle_count++;
	} else {
		pages->free[pages->free_count++] = index;
	}
}

bool okv__pages_name(struct okv__pages *pages, uint32_t index, const struct okv_hash *hash,
		     const struct okv_hash *parent, const uint32_t *tokens)
{
	struct okv__page *page = &pages->page[index];

	OKV_ASSERT(okv__pages_may_write(pages, index));
	if (okv__pages_find(pages, hash) != OKV__PAGE_NONE)
		return false;
	page->hash = *hash;
	page->parent = *parent;
	page->is_named = true;
	page->is_offered = false;
	memcpy(pages->tokens + (size_t)index * pages->page_tokens, tokens, pages->page_tokens * sizeof(*pages->tokens));
	okv_map_insert(&pages->by_hash, &page->by_hash, table_hash(hash));
	okv_map_insert(&pages->by_parent, &page->by_parent, table_hash(parent));
	return true;
}

uint32_t okv__pages_find(const struct okv__pages *pages, const struct okv_hash *hash)
{
	for (struct okv_map_node *n = okv_map_first(&pages->by_hash, table_hash(hash)); n; n = okv_map_next(n)) {
		const struct okv__page *page = OKV_CONTAINER_OF(n, struct okv__page, by_hash);

		if (okv_hash_equal(&page->hash, hash))
			return (uint32_t)(page - pages->page);
	}
	return OKV__PAGE_NONE;
}

static uint32_t shared_ids(const uint32_t *a, const uint32_t *b, uint32_t count)
{
	uint32_t shared = 0;

	while (shared < count && a[shared] == b[shared])
		shared++;
	return shared;
}

uint32_t okv__pages_find_tail(const struct okv__pages *pages, const struct okv_hash *parent, const uint32_t *tokens,
			      uint32_t count, uint32_t *ret_shared)
{
	uint32_t best = OKV__PAGE_NONE, best_shared = 0;

	if (count > pages->page_tokens)
		count = pages->page_tokens;
	for (struct okv_map_node *n = okv_map_first(&pages->by_parent, table_hash(parent)); n; n = okv_map_next(n)) {
		const struct okv__page *page = OKV_CONTAINER_OF(n, struct okv__page, by_parent);
		uint32_t index = (uint32_t)(page - pages->page);
		uint32_t shared = okv_hash_equal(&page->parent, parent)
					  ? shared_ids(okv__pages_tokens(pages, index), tokens, count)
					  : 0;

		if (shared > best_shared) {
			best = index;
			best_shared = shared;
		}
	}
	if (best != OKV__PAGE_NONE)
		*ret_shared = best_shared;
	return best;
}

void okv__pages_forget(struct okv__pages *pages)
{
	OKV_LIST_EACH_SAFE(at, &pages->idle)
	forget(pages, OKV_CONTAINER_OF(at, struct okv__page, idle));
}

uint32_t okv__pages_held(const struct okv__pages *pages)
{
	return pages->count - pages->free_count - pages->idle_count;
}

const uint32_t *okv__pages_tokens(const struct okv__pages *pages, uint32_t index)
{
	return pages->tokens + (size_t)index * pages->page_tokens;
}

bool okv__pages_may_write(const struct okv__pages *pages, uint32_t index)
{
	return pages->page[index].holders == 1 && !pages->page[index].is_named;
}
