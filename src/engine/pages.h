/*
 * Pages: who holds each page of the arena, what it is called, and how many more may be taken. Bookkeeping only: no KV
 * byte is touched here.
 *
 *                  take                  release, unnamed
 *       FREE ---------------> HELD ------------------------> FREE
 *                             |  ^
 *                  give name  |  |  hold (found by name)
 *     release of the last one v  |
 *                            IDLE  -- taken for another use (oldest first), or forgotten --> FREE
 *
 * A page is held by lanes and by transfers. A full page gets a name, its block hash; a named page that nobody holds is
 * idle: it stays until its memory is wanted. Lanes release their deepest page first, so a page is always given up
 * before the one it continues, which is LRU over the leaves of the prefix tree without walking one. A child that a
 * transfer kept back can outlive its parent; it is then only unreachable, never wrong, since its name covers its whole
 * prefix.
 *
 * Invariants (tests refer to them by number)
 *   I1  free + idle >= reserved: a lane that reserved its pages always gets them.
 *   I2  a page may be written only while exactly one holds it and it has no name.
 *   I3  two pages never have the same name.
 *
 * Pure; the step thread calls, nobody else.
 */
#ifndef OKV_ENGINE_PAGES_H
#define OKV_ENGINE_PAGES_H

#include <stdbool.h>
#include <stdint.h>

#include "okv/base/digest.h"
#include "okv/base/list.h"
#include "okv/base/map.h"
#include "okv/base/status.h"

#define OKV__PAGE_NONE UINT32_MAX

struct okv__page {
	uint32_t holders;
	bool is_named;
	bool is_offered; /* the shared cache has it or is being offered it: do not publish it again */
	struct okv_hash hash, parent;
	struct okv_map_node by_hash, by_parent; /* while named */
	struct okv_list idle;			/* in okv__pages.idle while named and not held */
};

struct okv__pages {
	struct okv__page *page; /* owned: count */
	uint32_t *tokens;	/* owned: count * page_tokens; the ids of named pages */
	uint32_t *free;		/* owned stack of free pages; the lowest, which are resident, are taken first */
	uint32_t count, page_tokens, free_count, idle_count, shared_count, reserved;
	struct okv_map by_hash, by_parent;
	struct okv_list idle;	/* oldest first */
	uint32_t touched_count; /* leading pages that were ever taken */
	uint64_t evicted_total;
};

OKV_MUST_CHECK enum okv_status okv__pages_init(struct okv__pages *pages, uint32_t count, uint32_t page_tokens,
					       struct okv_reason *reason);
void okv__pages_done(struct okv__pages *pages);

/* Promises `count` pages, or returns false and changes nothing. */
bool okv__pages_reserve(struct okv__pages *pages, uint32_t count);
void okv__pages_unreserve(struct okv__pages *pages, uint32_t count);

/* Turns one promise into a page, held once by the caller and without a name. */
uint32_t okv__pages_take(struct okv__pages *pages);
/* Taking hold of an idle page may break I1: give up a promise, or make one that may fail, before anything is taken. */
void okv__pages_hold(struct okv__pages *pages, uint32_t index);
void okv__pages_release(struct okv__pages *pages, uint32_t index);

/* Names a held page. False if another page has the name already; then nothing changes. */
bool okv__pages_name(struct okv__pages *pages, uint32_t index, const struct okv_hash *hash,
		     const struct okv_hash *parent, const uint32_t *tokens);

/* The page of that name, or OKV__PAGE_NONE. It is not held for the caller. */
uint32_t okv__pages_find(const struct okv__pages *pages, const struct okv_hash *hash);

/* The child of `parent` that shares most leading ids with `tokens`; OKV__PAGE_NONE if none shares any. */
uint32_t okv__pages_find_tail(const struct okv__pages *pages, const struct okv_hash *parent, const uint32_t *tokens,
			      uint32_t count, uint32_t *ret_shared);

/* Forgets every idle page. */
void okv__pages_forget(struct okv__pages *pages);

/* Pages that somebody holds. Zero when everything has ended. */
uint32_t okv__pages_held(const struct okv__pages *pages);

const uint32_t *okv__pages_tokens(const struct okv__pages *pages, uint32_t index);
bool okv__pages_may_write(const struct okv__pages *pages, uint32_t index);

#endif
