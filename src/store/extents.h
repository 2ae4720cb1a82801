/*
 * Extents: which pages of the pool are free, and which have ever been touched.
 *
 *      0                                          frontier                         pages
 *      | used | free | used |  free  |  used | free  |   never touched, not in lists  |
 *
 * Free extents below the frontier sit in segregated lists (16 sizes between two powers of two, as in TLSF: Masmano and
 * others, 2004), with their length written at their first and last page, so taking and giving back cost a constant time
 * and neighbours merge. Memory beyond the frontier is taken only when no list fits: what was touched once is warm and
 * is used again first, and an empty pool stays out of memory.
 *
 * Invariants (tests refer to them by number)
 *   E1  two free extents are never adjacent.
 *   E2  free_pages is the sum of all free extents; used + free + (pages - frontier) == pages.
 *   E3  a take fails only if no free extent, and not the end of the pool, has that many pages in a row.
 *
 * Pure bookkeeping in page numbers: it touches no pool memory.
 */
#ifndef OKV_STORE_EXTENTS_H
#define OKV_STORE_EXTENTS_H

#include <stdbool.h>
#include <stdint.h>

#include "okv/base/status.h"

enum { OKV_EXTENT_PAGE_BYTES = 4096, OKV_EXTENT_BINS = 29 * 16 };

struct okv_extents {
	uint32_t pages, frontier, free_pages;
	struct okv_extent_tag *tag;		    /* owned; one a page, written only at ends of free extents */
	uint32_t bin[OKV_EXTENT_BINS];		    /* first extent of each list, page number + 1; 0 if empty */
	uint64_t bin_map[OKV_EXTENT_BINS / 64 + 1]; /* bit set: list not empty */
};

OKV_MUST_CHECK enum okv_status okv_extents_init(struct okv_extents *extents, uint32_t pages);
void okv_extents_done(struct okv_extents *extents);

/* Takes `count` (>= 1) pages in a row; false if there are none (E3). */
bool okv_extents_take(struct okv_extents *extents, uint32_t count, uint32_t *ret_first);
/* Gives back exactly what was taken. */
void okv_extents_give(struct okv_extents *extents, uint32_t first, uint32_t count);

/* Moves the frontier by at most `count` pages, which become free. Returns how many; *ret_first is the first. */
uint32_t okv_extents_advance(struct okv_extents *extents, uint32_t count, uint32_t *ret_first);

/* The longest run of pages that okv_extents_take() would give. */
uint32_t okv_extents_largest(const struct okv_extents *extents);

#endif
