#include "bpe.h"

#include <stdbool.h>
#include <stdlib.h>

#include "okv/base/rng.h"

#define NONE UINT32_MAX

/* A token of the word being merged; dead (id OKV__NO_TOKEN) once its left neighbour has taken it in. */
struct okv__symbol {
	uint32_t id, prev, next;
};

enum okv_status okv__bpe_init(struct okv__bpe *bpe, uint32_t merge_count)
{
	size_t slots = 16;

	while (slots < (size_t)merge_count * 2)
		slots *= 2;
	bpe->merge = calloc((size_t)merge_count + 1, sizeof(*bpe->merge));
	bpe->slot = calloc(slots, sizeof(*bpe->slot));
	bpe->slot_mask = slots - 1;
	bpe->merge_count = 0;
	return bpe->merge && bpe->slot ? OKV_OK : OKV_ERR_NO_MEMORY;
}

void okv__bpe_done(struct okv__bpe *bpe)
{
	free(bpe->merge);
	free(bpe->slot);
}

/* The slot of the pair, or the free one where it would stand. */
static size_t slot_of(const struct okv__bpe *bpe, uint32_t left, uint32_t right)
{
	size_t at = (size_t)okv_mix64((uint64_t)left << 32 | right) & bpe->slot_mask;

	for (; bpe->slot[at] != 0; at = (at + 1) & bpe->slot_mask) {
		const struct okv__merge *merge = &bpe->merge[bpe->slot[at] - 1];

		if (merge->left == left && merge->right == right)
			break;
	}
	return at;
}

enum okv_status okv__bpe_add(struct okv__bpe *bpe, struct okv__merge merge)
{
	size_t at = slot_of(bpe, merge.left, merge.right);

	if (bpe->slot[at] != 0)
		return OKV_ERR_EXISTS;
	bpe->merge[bpe->merge_count++] = merge;
	bpe->slot[at] = bpe->merge_count;
	return OKV_OK;
}

void okv__bpe_scratch_done(struct okv__bpe_scratch *scratch)
{
	free(scratch->symbol);
	free(scratch->heap);
	*scratch = (struct okv__bpe_scratch){0};
}

static enum okv_status make_room(struct okv__bpe_scratch *scratch, size_t symbols)
{
	if (symbols <= scratch->room)
		return OKV_OK;

	size_t room = scratch->room ? scratch->room : 64;
	while (room < symbols)
		room *= 2;
	okv__bpe_scratch_done(scratch);
	scratch->symbol = malloc(room * sizeof(*scratch->symbol));
	scratch->heap = malloc(2 * room * sizeof(*scratch->heap));
	if (!scratch->symbol || !scratch->heap)
		return OKV_ERR_NO_MEMORY;
	scratch->room = room;
	return OKV_OK;
}

/* The heap's order is that of rank << 32 | position: lowest rank first, leftmost of equals. */
static void push(struct okv__bpe_scratch *scratch, uint64_t entry)
{
	size_t at = scratch->heap_count++;

	while (at > 0 && scratch->heap[(at - 1) / 2] > entry) {
		scratch->heap[at] = scratch->heap[(at - 1) / 2];
		at = (at - 1) / 2;
	}
	scratch->heap[at] = entry;
}

static uint64_t pop(struct okv__bpe_scratch *scratch)
{
	uint64_t *heap = scratch->heap, first = heap[0], moved = heap[--scratch->heap_count];
	size_t count = scratch->heap_count, at = 0;

	for (size_t child; (child = 2 * at + 1) < count; at = child) {
		if (child + 1 < count && heap[child + 1] < heap[child])
			child++;
		if (heap[child] >= moved)
			break;
		heap[at] = heap[child];
	}
	heap[at] = moved;
	return first;
}

/* Enters the pair that begins at symbol `at`, if it has a right neighbour and a merge. */
static void push_pair(const struct okv__bpe *bpe, struct okv__bpe_scratch *scratch, uint32_t at)
{
	const struct okv__symbol *left = &scratch->symbol[at];

	if (left->next == NONE)
		return;
	uint32_t found = bpe->slot[slot_of(bpe, left->id, scratch->symbol[left->next].id)];
	if (found != 0)
		push(scratch, (uint64_t)(found - 1) << 32 | at);
}

static uint32_t start_word(const struct okv__bpe *bpe, const uint8_t *word, size_t size,
			   struct okv__bpe_scratch *scratch)
{
	uint32_t count = 0;

	for (size_t i = 0; i < size; i++) {
		uint32_t id = bpe->byte_token[word[i]];

		if (id == OKV__NO_TOKEN)
			continue;
		scratch->symbol[count] = (struct okv__symbol){.id = id, .prev = count - 1, .next = count + 1};
		count++;
	}
	if (count > 0) {
		scratch->symbol[0].prev = NONE;
		scratch->symbol[count - 1].next = NONE;
	}
	return count;
}

/*
 * Joins until nothing joins. An entry whose symbols have changed since it was pushed is stale and skipped. At most one
 * entry a symbol is pushed at the start and two for each join, which pops one: two for each symbol hold them all.
 */
static void merge_word(const struct okv__bpe *bpe, struct okv__bpe_scratch *scratch, uint32_t count)
{
	struct okv__symbol *symbol = scratch->symbol;

	scratch->heap_count = 0;
	for (uint32_t i = 0; i < count; i++)
		push_pair(bpe, scratch, i);
	while (scratch->heap_count > 0) {
		uint64_t entry = pop(scratch);
		const struct okv__merge *merge = &bpe->merge[entry >> 32];
		uint32_t at = (uint32_t)entry, taken = symbol[at].next;

		if (symbol[at].id != merge->left || taken == NONE || symbol[taken].id != merge->right)
			continue;
		symbol[at].id = merge->result;
		symbol[at].next = symbol[taken].next;
		symbol[taken].id = OKV__NO_TOKEN;
		if (symbol[at].next != NONE)
			symbol[symbol[at].next].prev = at;
		if (symbol[at].prev != NONE)
			push_pair(bpe, scratch, symbol[at].prev);
		push_pair(bpe, scratch, at);
	}
}

enum okv_status okv__bpe_word(const struct okv__bpe *bpe, const uint8_t *word, size_t size,
			      struct okv__bpe_scratch *scratch, struct okv_tokens *tokens)
{
	enum okv_status status = make_room(scratch, size);

	if (status)
		return status;

	uint32_t count = start_word(bpe, word, size, scratch);
	merge_word(bpe, scratch, count);
	for (uint32_t at = count > 0 ? 0 : NONE; at != NONE && !status; at = scratch->symbol[at].next)
		status = okv_tokens_push(tokens, scratch->symbol[at].id);
	return status;
}
