#include "okv/fabric/source.h"

#include <stdlib.h>

#include "okv/base/alloc.h"

struct slot {
	uint64_t generation;	      /* highest ticket seen */
	struct okv_source_hold *hold; /* owned; NULL: empty */
};

struct okv_source_window {
	struct okv_list node; /* oldest first */
	struct okv_uuid name, reader;
	bool is_fenced; /* its reader is gone; it goes with its last hold */
	unsigned held;
	struct slot slot[OKV_SOURCE_SLOTS];
};

struct okv_source {
	struct okv_uuid owner;
	uint64_t limit_bytes;
	struct okv_list windows;
	struct okv_list to_end;	  /* holds whose grant the driver must end; they stay in their slots */
	struct okv_list finished; /* holds that are over */
	struct okv_source_counts counts;
};

enum okv_status okv_source_create(const struct okv_uuid *owner, uint64_t limit_bytes, struct okv_source **ret_source)
{
	struct okv_source *source = okv_alloc(1, sizeof(*source));

	if (!source)
		return OKV_ERR_NO_MEMORY;
	source->owner = *owner;
	source->limit_bytes = limit_bytes;
	okv_list_init(&source->windows);
	okv_list_init(&source->to_end);
	okv_list_init(&source->finished);
	*ret_source = source;
	return OKV_OK;
}

void okv_source_destroy(struct okv_source *source)
{
	if (!source)
		return;
	OKV_LIST_EACH_SAFE(node, &source->finished)
	free(OKV_CONTAINER_OF(node, struct okv_source_hold, node));
	OKV_LIST_EACH_SAFE(node, &source->windows)
	{
		struct okv_source_window *window = OKV_CONTAINER_OF(node, struct okv_source_window, node);

		for (unsigned i = 0; i < OKV_SOURCE_SLOTS; i++)
			free(window->slot[i].hold);
		free(window);
	}
	free(source);
}

const struct okv_source_counts *okv_source_counts(const struct okv_source *source)
{
	return &source->counts;
}

static void remove_window(struct okv_source *source, struct okv_source_window *window)
{
	OKV_ASSERT(window->held == 0);
	okv_list_remove(&window->node);
	source->counts.windows--;
	free(window);
}

/* NULL for a window that was never opened, was evicted, or is fenced. */
static struct okv_source_window *window_of(struct okv_source *source, const struct okv_uuid *name, bool fenced_too)
{
	OKV_LIST_EACH(node, &source->windows)
	{
		struct okv_source_window *window = OKV_CONTAINER_OF(node, struct okv_source_window, node);

		if (okv_uuid_equal(&window->name, name) && (fenced_too || !window->is_fenced))
			return window;
	}
	return NULL;
}

static bool evict_oldest_idle(struct okv_source *source)
{
	OKV_LIST_EACH(node, &source->windows)
	{
		struct okv_source_window *window = OKV_CONTAINER_OF(node, struct okv_source_window, node);

		if (window->held == 0) {
			remove_window(source, window);
			return true;
		}
	}
	return false;
}

enum okv_peer_refusal okv_source_open(struct okv_source *source, const struct okv_uuid *owner,
				      const struct okv_uuid *reader, const struct okv_uuid *fresh)
{
	struct okv_source_window *window;

	if (!okv_uuid_equal(owner, &source->owner))
		return OKV_PEER_REFUSED_OWNER;
	if (source->counts.windows == OKV_SOURCE_WINDOWS_MAX && !evict_oldest_idle(source)) {
		source->counts.rejections_sessions++;
		return OKV_PEER_REFUSED_BUDGET_SESSIONS;
	}
	window = okv_alloc(1, sizeof(*window));
	if (!window)
		return OKV_PEER_REFUSED_MEMORY;
	window->name = *fresh;
	window->reader = *reader;
	okv_list_init(&window->node);
	okv_list_push_back(&source->windows, &window->node);
	source->counts.windows++;
	return OKV_PEER_GRANTED;
}

/* --- authorise -------------------------------------------------------------------------------------------------- */

/* A block named twice is pinned twice and counted once. */
static uint64_t unique_bytes(const struct okv_source_block *found, uint16_t count)
{
	uint64_t bytes = 0;

	for (uint16_t i = 0; i < count; i++) {
		uint16_t first = 0;

		while (found[first].block != found[i].block)
			first++;
		if (first == i)
			bytes += found[i].length;
	}
	return bytes;
}

static enum okv_peer_refusal check_budget(struct okv_source *source, uint64_t bytes)
{
	if (source->counts.sessions == OKV_SOURCE_SESSIONS_MAX) {
		source->counts.rejections_sessions++;
		return OKV_PEER_REFUSED_BUDGET_SESSIONS;
	}
	if (bytes > source->limit_bytes - source->counts.reserved_bytes) {
		source->counts.rejections_bytes++;
		return OKV_PEER_REFUSED_BUDGET_BYTES;
	}
	return OKV_PEER_GRANTED;
}

static void begin_hold(struct okv_source *source, struct okv_source_window *window, struct slot *slot,
		       struct okv_source_hold *hold)
{
	hold->window = window;
	slot->hold = hold;
	window->held++;
	source->counts.sessions++;
	source->counts.authorised++;
	source->counts.active_blocks += hold->count;
	source->counts.reserved_bytes += hold->bytes;
}

enum okv_peer_refusal okv_source_authorise(struct okv_source *source, const struct okv_ticket *ticket,
					   const struct okv_uuid *owner, const struct okv_peer_wanted *wanted,
					   const struct okv_source_block *found, uint16_t count, uint64_t now_ns,
					   struct okv_source_hold **ret_hold)
{
	struct okv_source_window *window = window_of(source, &ticket->window, false);
	struct okv_source_hold *hold;

	if (!okv_uuid_equal(owner, &source->owner))
		return OKV_PEER_REFUSED_OWNER;
	if (!window)
		return OKV_PEER_REFUSED_WINDOW;

	struct slot *slot = ticket->slot < OKV_SOURCE_SLOTS ? &window->slot[ticket->slot] : NULL;
	if (!slot || slot->hold || ticket->generation <= slot->generation || count == 0 ||
	    count > OKV_PEER_AUTHORISE_MAX)
		return OKV_PEER_REFUSED_TICKET;

	/* Spend the ticket before anything else is looked at: a refused requester may still release it. */
	slot->generation = ticket->generation;
	for (uint16_t i = 0; i < count; i++)
		if (!found[i].block || found[i].generation != wanted[i].generation)
			return OKV_PEER_REFUSED_RESIDENCE;

	uint64_t bytes = unique_bytes(found, count);
	enum okv_peer_refusal refusal = check_budget(source, bytes);
	if (refusal != OKV_PEER_GRANTED)
		return refusal;
	hold = okv_alloc(1, sizeof(*hold));
	if (!hold)
		return OKV_PEER_REFUSED_MEMORY;
	okv_list_init(&hold->node);
	hold->ticket = *ticket;
	hold->bytes = bytes;
	hold->since_ns = now_ns;
	hold->count = count;
	for (uint16_t i = 0; i < count; i++)
		hold->block[i] = found[i].block;
	begin_hold(source, window, slot, hold);
	*ret_hold = hold;
	return OKV_PEER_GRANTED;
}

/* --- the end of a hold ------------------------------------------------------------------------------------------ */

/* The slot is empty again and the hold is the driver's to give back. */
static void finish(struct okv_source *source, struct okv_source_hold *hold)
{
	struct okv_source_window *window = hold->window;

	OKV_ASSERT(!hold->is_granted); /* S4 */
	window->slot[hold->ticket.slot].hold = NULL;
	window->held--;
	source->counts.sessions--;
	source->counts.active_blocks -= hold->count;
	source->counts.reserved_bytes -= hold->bytes;
	if (hold->is_overdue)
		source->counts.overdue_sessions--;
	hold->window = NULL;
	okv_list_remove(&hold->node);
	okv_list_push_back(&source->finished, &hold->node);
	if (window->is_fenced && window->held == 0)
		remove_window(source, window);
}

/* Ends a hold now, or when the mover has stopped. */
static void end(struct okv_source *source, struct okv_source_hold *hold)
{
	if (!hold->is_granted) {
		finish(source, hold);
	} else if (!hold->is_ending) {
		hold->is_ending = true;
		okv_list_push_back(&source->to_end, &hold->node);
	}
}

void okv_source_granted(struct okv_source *source, struct okv_source_hold *hold, bool granted, uint64_t grant_id)
{
	hold->is_granted = granted;
	hold->grant_id = grant_id;
	if (!granted)
		finish(source, hold);
}

bool okv_source_release(struct okv_source *source, const struct okv_ticket *ticket, struct okv_source_reply reply,
			enum okv_peer_refusal *ret_refusal, uint32_t *ret_blocks)
{
	struct okv_source_window *window = window_of(source, &ticket->window, true);
	struct slot *slot = window && ticket->slot < OKV_SOURCE_SLOTS ? &window->slot[ticket->slot] : NULL;

	*ret_refusal = OKV_PEER_GRANTED;
	*ret_blocks = 0;
	if (!slot || ticket->generation < slot->generation)
		return true;
	if (!slot->hold) {
		slot->generation = ticket->generation; /* fences the authorise that this release overtook */
		return true;
	}
	if (ticket->generation > slot->generation) {
		*ret_refusal = OKV_PEER_REFUSED_AHEAD;
		return true;
	}
	slot->hold->reply = reply; /* a repeated release is answered in place of the earlier one */
	end(source, slot->hold);
	return false;
}

static void fence(struct okv_source *source, struct okv_source_window *window)
{
	if (window->is_fenced)
		return;
	window->is_fenced = true;
	source->counts.readers_gone++;
	window->held++; /* keeps the window while its holds finish under our feet */
	for (unsigned i = 0; i < OKV_SOURCE_SLOTS; i++)
		if (window->slot[i].hold)
			end(source, window->slot[i].hold);
	if (--window->held == 0)
		remove_window(source, window);
}

void okv_source_reader_gone(struct okv_source *source, const struct okv_uuid *reader)
{
	OKV_LIST_EACH_SAFE(node, &source->windows)
	{
		struct okv_source_window *window = OKV_CONTAINER_OF(node, struct okv_source_window, node);

		if (okv_uuid_equal(&window->reader, reader))
			fence(source, window);
	}
}

/* The next hold after `hold` in no particular order; NULL starts, and NULL is the end. */
static struct okv_source_hold *walk(struct okv_source *source, const struct okv_source_hold *hold)
{
	struct okv_list *node = hold ? &hold->window->node : source->windows.next;
	unsigned from = hold ? hold->ticket.slot + 1 : 0;

	for (; node != &source->windows; node = node->next, from = 0) {
		struct okv_source_window *window = OKV_CONTAINER_OF(node, struct okv_source_window, node);

		for (unsigned i = from; window->held > 0 && i < OKV_SOURCE_SLOTS; i++)
			if (window->slot[i].hold)
				return window->slot[i].hold;
	}
	return NULL;
}

void okv_source_forget_connection(struct okv_source *source, const void *connection)
{
	for (struct okv_source_hold *hold = walk(source, NULL); hold; hold = walk(source, hold))
		if (hold->reply.connection == connection)
			hold->reply.connection = NULL;
	OKV_LIST_EACH(node, &source->finished)
	{
		struct okv_source_hold *hold = OKV_CONTAINER_OF(node, struct okv_source_hold, node);

		if (hold->reply.connection == connection)
			hold->reply.connection = NULL;
	}
}

void okv_source_grant_ended(struct okv_source *source, uint64_t grant_id, bool reader_gone)
{
	for (struct okv_source_hold *hold = walk(source, NULL); hold; hold = walk(source, hold)) {
		if (!hold->is_granted || hold->grant_id != grant_id)
			continue;
		hold->is_granted = false;
		source->counts.readers_gone += reader_gone && !hold->is_ending;
		if (hold->is_ending || reader_gone)
			finish(source, hold); /* and perhaps its fenced window */
		return;
	}
}

unsigned okv_source_mark_overdue(struct okv_source *source, uint64_t now_ns, uint64_t limit_ns)
{
	unsigned marked = 0;

	for (struct okv_source_hold *hold = walk(source, NULL); hold; hold = walk(source, hold)) {
		if (hold->is_overdue || now_ns - hold->since_ns < limit_ns)
			continue;
		hold->is_overdue = true;
		marked++;
	}
	source->counts.overdue_sessions += marked;
	source->counts.timeouts += marked;
	return marked;
}

bool okv_source_next(struct okv_source *source, struct okv_source_action *ret_action)
{
	bool ends = !okv_list_is_empty(&source->to_end);
	struct okv_list *list = ends ? &source->to_end : &source->finished;

	if (okv_list_is_empty(list))
		return false;
	struct okv_list *node = list->next;
	okv_list_remove(node);
	*ret_action = (struct okv_source_action){
		.kind = ends ? OKV_SOURCE_END_GRANT : OKV_SOURCE_FINISH,
		.hold = OKV_CONTAINER_OF(node, struct okv_source_hold, node),
	};
	return true;
}

void okv_source_hold_free(struct okv_source_hold *hold)
{
	free(hold);
}
