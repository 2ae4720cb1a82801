#include "extents.h"

#include <stdlib.h>

#include "okv/base/alloc.h"

/* At the first page of a free extent all three are set; at its last page `length` is; 0 anywhere else. Links are page
 * numbers + 1, so that zeroed memory means "none". */
struct okv_extent_tag {
	uint32_t length, next, prev;
};

/* Lengths up to 16 have a list each; above, 16 lists between two powers of two. */
static uint32_t bin_of(uint32_t length)
{
	if (length < 32)
		return length - 1;

	uint32_t log = 31u - (uint32_t)__builtin_clz(length);
	return (log - 4) * 16 + (length >> (log - 4)) - 1;
}

enum okv_status okv_extents_init(struct okv_extents *extents, uint32_t pages)
{
	OKV_ASSERT(pages > 0 && bin_of(pages) < OKV_EXTENT_BINS);
	*extents = (struct okv_extents){.pages = pages};
	extents->tag = okv_alloc(pages, sizeof(struct okv_extent_tag));
	return extents->tag ? OKV_OK : OKV_ERR_NO_MEMORY;
}

void okv_extents_done(struct okv_extents *extents)
{
	free(extents->tag);
	*extents = (struct okv_extents){0};
}

static void link_free(struct okv_extents *extents, uint32_t first, uint32_t length)
{
	uint32_t bin = bin_of(length);
	struct okv_extent_tag *tag = &extents->tag[first];

	*tag = (struct okv_extent_tag){.length = length, .next = extents->bin[bin]};
	extents->tag[first + length - 1].length = length;
	if (tag->next)
		extents->tag[tag->next - 1].prev = first + 1;
	extents->bin[bin] = first + 1;
	extents->bin_map[bin / 64] |= 1ULL << (bin % 64);
	extents->free_pages += length;
}

static void unlink_free(struct okv_extents *extents, uint32_t first)
{
	struct okv_extent_tag *tag = &extents->tag[first];
	uint32_t length = tag->length, bin = bin_of(length);

	if (tag->next)
		extents->tag[tag->next - 1].prev = tag->prev;
	if (tag->prev)
		extents->tag[tag->prev - 1].next = tag->next;
	else
		extents->bin[bin] = tag->next;
	if (!extents->bin[bin])
		extents->bin_map[bin / 64] &= ~(1ULL << (bin % 64));
	*tag = (struct okv_extent_tag){0};
	extents->tag[first + length - 1].length = 0;
	extents->free_pages -= length;
}

/* First non-empty list from `bin` upwards; OKV_EXTENT_BINS if there is none. */
static uint32_t next_bin(const struct okv_extents *extents, uint32_t bin)
{
	for (uint32_t word = bin / 64; word < sizeof(extents->bin_map) / sizeof(extents->bin_map[0]); word++) {
		uint64_t bits = extents->bin_map[word];

		if (word == bin / 64)
			bits &= ~0ULL << (bin % 64);
		if (bits)
			return word * 64 + (uint32_t)__builtin_ctzll(bits);
	}
	return OKV_EXTENT_BINS;
}

/* Finds a free extent of at least `count` pages, as its first page + 1. `tries` bounds the walk of the list whose
 * members may be too short; every list above it fits. */
static uint32_t find_free(const struct okv_extents *extents, uint32_t count, uint32_t tries)
{
	uint32_t bin = bin_of(count);

	for (uint32_t at = extents->bin[bin]; at && tries; at = extents->tag[at - 1].next, tries--)
		if (extents->tag[at - 1].length >= count)
			return at;
	bin = next_bin(extents, bin + 1);
	return bin < OKV_EXTENT_BINS ? extents->bin[bin] : 0;
}

/* Pages of the free extent that ends at the frontier; 0 if there is none. */
static uint32_t tail_pages(const struct okv_extents *extents)
{
	return extents->frontier ? extents->tag[extents->frontier - 1].length : 0;
}

bool okv_extents_take(struct okv_extents *extents, uint32_t count, uint32_t *ret_first)
{
	enum { TRIES = 16 };
	uint32_t found = find_free(extents, count, TRIES), first;

	if (!found && extents->pages - extents->frontier + tail_pages(extents) >= count) {
		uint32_t tail = tail_pages(extents);

		if (tail < count)
			okv_extents_advance(extents, count - tail, &first);
		found = extents->frontier - tail_pages(extents) + 1;
	}
	if (!found)
		found = find_free(extents, count, UINT32_MAX);
	if (!found)
		return false;

	first = found - 1;
	uint32_t length = extents->tag[first].length;
	unlink_free(extents, first);
	if (length > count)
		link_free(extents, first + count, length - count);
	*ret_first = first;
	return true;
}

void okv_extents_give(struct okv_extents *extents, uint32_t first, uint32_t count)
{
	OKV_ASSERT(count > 0 && first <= extents->frontier && count <= extents->frontier - first);
	uint32_t end = first + count;

	if (end < extents->frontier && extents->tag[end].length) {
		uint32_t length = extents->tag[end].length;

		unlink_free(extents, end);
		end += length;
	}
	if (first > 0 && extents->tag[first - 1].length) {
		uint32_t length = extents->tag[first - 1].length;

		first -= length;
		unlink_free(extents, first);
	}
	link_free(extents, first, end - first);
}

uint32_t okv_extents_advance(struct okv_extents *extents, uint32_t count, uint32_t *ret_first)
{
	uint32_t left = extents->pages - extents->frontier, first = extents->frontier;

	if (count > left)
		count = left;
	*ret_first = first;
	if (count) {
		extents->frontier += count;
		okv_extents_give(extents, first, count);
	}
	return count;
}

uint32_t okv_extents_largest(const struct okv_extents *extents)
{
	uint32_t largest = extents->pages - extents->frontier + tail_pages(extents), top = 0;

	for (uint32_t bin = next_bin(extents, 0); bin < OKV_EXTENT_BINS; bin = next_bin(extents, bin + 1))
		top = bin;
	for (uint32_t at = extents->bin[top]; at; at = extents->tag[at - 1].next)
		if (extents->tag[at - 1].length > largest)
			largest = extents->tag[at - 1].length;
	return largest;
}
