#include "stop_match.h"

#include <string.h>

/* Where the stop string that ends the held text begins; held.size if there is none. */
static size_t find_stop(const struct okv__stops *stops)
{
	size_t begin = stops->held.size, end = SIZE_MAX;

	for (size_t i = 0; i < stops->count; i++) {
		const struct okv_buf *stop = &stops->stop[i];
		const char *at = memmem(stops->held.data, stops->held.size, stop->data, stop->size);
		size_t at_begin = at ? (size_t)(at - stops->held.data) : 0;

		if (!at)
			continue;
		if (at_begin + stop->size < end || (at_begin + stop->size == end && at_begin < begin)) {
			begin = at_begin;
			end = at_begin + stop->size;
		}
	}
	return begin;
}

/* The size of the longest end of the held text that begins a stop string. */
static size_t size_to_hold(const struct okv__stops *stops)
{
	size_t longest = 0;

	for (size_t i = 0; i < stops->count; i++) {
		const struct okv_buf *stop = &stops->stop[i];
		size_t size = stop->size - 1 < stops->held.size ? stop->size - 1 : stops->held.size;

		while (size > longest && memcmp(stops->held.data + stops->held.size - size, stop->data, size) != 0)
			size--;
		if (size > longest)
			longest = size;
	}
	return longest;
}

static void give_out(struct okv__stops *stops, size_t size, struct okv_buf *text)
{
	okv_buf_append(text, stops->held.data, size);
	okv_buf_consume(&stops->held, size);
}

void okv__stops_feed(struct okv__stops *stops, const char *piece, size_t size, struct okv_buf *text)
{
	if (stops->is_stopped || size == 0)
		return;
	if (stops->count == 0) {
		okv_buf_append(text, piece, size);
		return;
	}
	okv_buf_append(&stops->held, piece, size);

	size_t begin = find_stop(stops);
	stops->is_stopped = begin < stops->held.size;
	give_out(stops, stops->is_stopped ? begin : stops->held.size - size_to_hold(stops), text);
}

void okv__stops_finish(struct okv__stops *stops, struct okv_buf *text)
{
	if (!stops->is_stopped && stops->held.size > 0)
		give_out(stops, stops->held.size, text);
}

void okv__stops_done(struct okv__stops *stops)
{
	for (size_t i = 0; i < stops->count; i++)
		okv_buf_done(&stops->stop[i]);
	okv_buf_done(&stops->held);
	*stops = (struct okv__stops){0};
}
