/*
 * The source's decision table, row by row, then random message sequences against an oracle that knows only history: it
 * never reads a generation out of the code under test to decide what must happen.
 */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <string.h>

#include <cmocka.h>

#include "okv/base/rng.h"
#include "okv/fabric/source.h"

enum { BLOCK_BYTES = 10 };

/* A source with a store of four blocks and a mover that only counts. */
struct rig {
	struct okv_source *source;
	struct okv_uuid owner, requester, window;
	int pins[4];
	uint64_t last_grant;
	unsigned grants_to_end, finished;
	uint64_t end_asked; /* the last grant to be ended */
	struct okv_source_reply replied;
	uint32_t replied_blocks;
};

static struct okv_uuid uuid(uint8_t byte)
{
	struct okv_uuid value;

	memset(&value, byte, sizeof(value));
	return value;
}

static void rig_init(struct rig *rig, uint64_t limit)
{
	memset(rig, 0, sizeof(*rig));
	rig->owner = uuid(1);
	rig->requester = uuid(2);
	rig->window = uuid(3);
	assert_int_equal(okv_source_create(&rig->owner, limit, &rig->source), OKV_OK);
	assert_int_equal(okv_source_open(rig->source, &rig->owner, &rig->requester, &rig->window), OKV_PEER_GRANTED);
}

/* Does what the driver does. */
static void drain(struct rig *rig)
{
	struct okv_source_action action;

	while (okv_source_next(rig->source, &action)) {
		if (action.kind == OKV_SOURCE_END_GRANT) {
			rig->grants_to_end++;
			rig->end_asked = action.hold->grant_id;
			continue;
		}
		rig->finished++;
		for (uint16_t i = 0; i < action.hold->count; i++)
			--*(int *)action.hold->block[i];
		if (action.hold->reply.connection) {
			rig->replied = action.hold->reply;
			rig->replied_blocks = action.hold->count;
		}
		okv_source_hold_free(action.hold);
	}
}

static void rig_done(struct rig *rig)
{
	for (int i = 0; i < 4; i++)
		assert_int_equal(rig->pins[i], 0);
	const struct okv_source_counts *counts = okv_source_counts(rig->source);
	assert_int_equal(counts->active_blocks, 0);
	assert_int_equal(counts->reserved_bytes, 0);
	assert_int_equal(counts->sessions, 0);
	assert_int_equal(counts->overdue_sessions, 0);
	okv_source_destroy(rig->source);
}

/* Authorises blocks [0, count) under a ticket of `window`. */
static enum okv_peer_refusal authorise_slot(struct rig *rig, struct okv_uuid window, uint32_t slot, uint64_t generation,
					    uint16_t count)
{
	struct okv_ticket ticket = {.window = window, .slot = slot, .generation = generation};
	struct okv_peer_wanted wanted[4];
	struct okv_source_block found[4];
	struct okv_source_hold *hold;

	for (int i = 0; i < 4; i++) {
		wanted[i] = (struct okv_peer_wanted){.generation = 100 + (uint64_t)i};
		found[i] = (struct okv_source_block){&rig->pins[i], 100 + (uint64_t)i, BLOCK_BYTES};
	}
	enum okv_peer_refusal refusal =
		okv_source_authorise(rig->source, &ticket, &rig->owner, wanted, found, count, 0, &hold);
	if (refusal == OKV_PEER_GRANTED) {
		for (uint16_t i = 0; i < count; i++)
			rig->pins[i]++;
		okv_source_granted(rig->source, hold, true, ++rig->last_grant);
	}
	drain(rig);
	return refusal;
}

static enum okv_peer_refusal authorise_in(struct rig *rig, struct okv_uuid window, uint64_t generation, uint16_t count)
{
	return authorise_slot(rig, window, 3, generation, count);
}

static enum okv_peer_refusal authorise(struct rig *rig, uint64_t generation, uint16_t count)
{
	return authorise_in(rig, rig->window, generation, count);
}

enum { LATER = -1 };

/* Blocks that the release ended, LATER, or minus 100 minus the refusal. */
static int release_in(struct rig *rig, struct okv_uuid window, uint64_t generation)
{
	struct okv_ticket ticket = {.window = window, .slot = 3, .generation = generation};
	struct okv_source_reply reply = {.connection = rig, .request_id = generation};
	enum okv_peer_refusal refusal;
	uint32_t blocks;

	rig->replied = (struct okv_source_reply){0};
	bool now = okv_source_release(rig->source, &ticket, reply, &refusal, &blocks);
	drain(rig);
	if (!now && rig->replied.connection)
		return (int)rig->replied_blocks;
	if (!now)
		return LATER;
	return refusal == OKV_PEER_GRANTED ? (int)blocks : -100 - (int)refusal;
}

static int release(struct rig *rig, uint64_t generation)
{
	return release_in(rig, rig->window, generation);
}

static void mover_ended(struct rig *rig, uint64_t grant, bool reader_gone)
{
	okv_source_grant_ended(rig->source, grant, reader_gone);
	drain(rig);
}

/* --- the table ---------------------------------------------------------------------------------------------------- */

static void authorise_in_an_unknown_window_is_refused(void **state)
{
	(void)state;
	struct rig rig;

	rig_init(&rig, 100);
	assert_int_equal(authorise_in(&rig, uuid(9), 1, 1), OKV_PEER_REFUSED_WINDOW);
	rig_done(&rig);
}

static void authorise_with_a_stale_ticket_is_refused(void **state)
{
	(void)state;
	struct rig rig;

	rig_init(&rig, 100);
	assert_int_equal(authorise(&rig, 0, 1), OKV_PEER_REFUSED_TICKET);
	assert_int_equal(authorise(&rig, 5, 0), OKV_PEER_REFUSED_TICKET); /* empty list */
	assert_int_equal(authorise(&rig, 5, 2), OKV_PEER_GRANTED);
	assert_int_equal(authorise(&rig, 6, 1), OKV_PEER_REFUSED_TICKET); /* occupied */
	mover_ended(&rig, 1, false);
	assert_int_equal(release(&rig, 5), 2);
	assert_int_equal(authorise(&rig, 5, 1), OKV_PEER_REFUSED_TICKET); /* not newer */
	assert_int_equal(authorise(&rig, 4, 1), OKV_PEER_REFUSED_TICKET);
	rig_done(&rig);
}

static void a_slot_that_does_not_exist_is_refused(void **state)
{
	(void)state;
	struct rig rig;
	struct okv_ticket ticket = {.window = uuid(3), .slot = OKV_SOURCE_SLOTS, .generation = 1};
	struct okv_peer_wanted wanted = {.generation = 1};
	struct okv_source_block found = {&rig.pins[0], 1, 1};
	struct okv_source_hold *hold;
	enum okv_peer_refusal refusal;
	uint32_t blocks;

	rig_init(&rig, 100);
	assert_int_equal(okv_source_authorise(rig.source, &ticket, &rig.owner, &wanted, &found, 1, 0, &hold),
			 OKV_PEER_REFUSED_TICKET);
	assert_true(okv_source_release(rig.source, &ticket, (struct okv_source_reply){0}, &refusal, &blocks));
	assert_int_equal(blocks, 0);
	rig_done(&rig);
}

static void a_refusal_for_want_of_budget_spends_the_ticket(void **state)
{
	(void)state;
	struct rig rig;

	rig_init(&rig, 2 * BLOCK_BYTES);
	assert_int_equal(authorise(&rig, 1, 3), OKV_PEER_REFUSED_BUDGET_BYTES);
	assert_int_equal(okv_source_counts(rig.source)->rejections_bytes, 1);
	assert_int_equal(authorise(&rig, 1, 1), OKV_PEER_REFUSED_TICKET);
	assert_int_equal(authorise(&rig, 2, 2), OKV_PEER_GRANTED);
	assert_int_equal(okv_source_counts(rig.source)->reserved_bytes, 2 * BLOCK_BYTES);
	assert_int_equal(okv_source_counts(rig.source)->active_blocks, 2);
	mover_ended(&rig, 1, false);
	assert_int_equal(release(&rig, 2), 2);
	rig_done(&rig);
}

static void a_block_named_twice_is_counted_once(void **state)
{
	(void)state;
	struct rig rig;
	struct okv_ticket ticket = {.window = uuid(3), .slot = 3, .generation = 1};
	struct okv_peer_wanted wanted[2] = {{.generation = 7}, {.generation = 7}};
	struct okv_source_block found[2] = {{&rig.pins[0], 7, BLOCK_BYTES}, {&rig.pins[0], 7, BLOCK_BYTES}};
	struct okv_source_hold *hold;

	rig_init(&rig, BLOCK_BYTES);
	assert_int_equal(okv_source_authorise(rig.source, &ticket, &rig.owner, wanted, found, 2, 0, &hold),
			 OKV_PEER_GRANTED);
	assert_int_equal(hold->bytes, BLOCK_BYTES);
	rig.pins[0] = 2;
	okv_source_granted(rig.source, hold, false, 0); /* and the mover had no memory for it */
	drain(&rig);
	assert_int_equal(rig.finished, 1);
	rig_done(&rig);
}

static void too_many_sessions_are_refused(void **state)
{
	(void)state;
	struct rig rig;
	unsigned granted = 0;
	enum okv_peer_refusal refusal = OKV_PEER_GRANTED;

	rig_init(&rig, UINT64_MAX);
	for (unsigned w = 0; w < 17 && refusal == OKV_PEER_GRANTED; w++) {
		struct okv_uuid window = uuid((uint8_t)(100 + w));

		assert_int_equal(okv_source_open(rig.source, &rig.owner, &rig.requester, &window), OKV_PEER_GRANTED);
		for (uint32_t slot = 0; slot < OKV_SOURCE_SLOTS && refusal == OKV_PEER_GRANTED; slot++) {
			struct okv_ticket ticket = {.window = window, .slot = slot, .generation = 1};
			struct okv_peer_wanted wanted = {.generation = 7};
			struct okv_source_block found = {&rig.pins[0], 7, 1};
			struct okv_source_hold *hold;

			refusal = okv_source_authorise(rig.source, &ticket, &rig.owner, &wanted, &found, 1, 0, &hold);
			if (refusal != OKV_PEER_GRANTED)
				break;
			granted++;
			rig.pins[0]++;
			okv_source_granted(rig.source, hold, true, granted);
		}
	}
	assert_int_equal(refusal, OKV_PEER_REFUSED_BUDGET_SESSIONS);
	assert_int_equal(granted, OKV_SOURCE_SESSIONS_MAX);
	assert_int_equal(okv_source_counts(rig.source)->rejections_sessions, 1);
	okv_source_reader_gone(rig.source, &rig.requester);
	drain(&rig);
	assert_int_equal(rig.grants_to_end, granted);
	for (unsigned i = 1; i <= granted; i++)
		mover_ended(&rig, i, false);
	assert_int_equal(okv_source_counts(rig.source)->windows, 0);
	rig_done(&rig);
}

static void another_incarnation_or_residence_is_refused(void **state)
{
	(void)state;
	struct rig rig;
	struct okv_uuid other = uuid(77), fresh = uuid(78);
	struct okv_ticket ticket = {.window = uuid(3), .slot = 3, .generation = 1};
	struct okv_peer_wanted wanted[2] = {{.generation = 7}, {.generation = 8}};
	struct okv_source_block found[2] = {{&rig.pins[0], 7, 1}, {&rig.pins[1], 9, 1}};
	struct okv_source_hold *hold;

	rig_init(&rig, 100);
	assert_int_equal(okv_source_open(rig.source, &other, &rig.requester, &fresh), OKV_PEER_REFUSED_OWNER);
	assert_int_equal(okv_source_authorise(rig.source, &ticket, &other, wanted, found, 2, 0, &hold),
			 OKV_PEER_REFUSED_OWNER);
	assert_int_equal(okv_source_authorise(rig.source, &ticket, &rig.owner, wanted, found, 2, 0, &hold),
			 OKV_PEER_REFUSED_RESIDENCE); /* all or nothing */
	found[1].block = NULL;
	ticket.generation++;
	assert_int_equal(okv_source_authorise(rig.source, &ticket, &rig.owner, wanted, found, 2, 0, &hold),
			 OKV_PEER_REFUSED_RESIDENCE);
	rig_done(&rig);
}

static void release_in_an_unknown_window_succeeds_with_nothing(void **state)
{
	(void)state;
	struct rig rig;

	rig_init(&rig, 100);
	assert_int_equal(release_in(&rig, uuid(9), 1), 0);
	rig_done(&rig);
}

static void release_of_an_older_ticket_spares_the_newer_hold(void **state)
{
	(void)state;
	struct rig rig;

	rig_init(&rig, 100);
	authorise(&rig, 1, 1);
	mover_ended(&rig, 1, false);
	assert_int_equal(release(&rig, 1), 1);
	assert_int_equal(authorise(&rig, 2, 2), OKV_PEER_GRANTED);
	assert_int_equal(release(&rig, 1), 0);
	assert_int_equal(rig.pins[1], 1);
	mover_ended(&rig, 2, false);
	assert_int_equal(release(&rig, 2), 2);
	assert_int_equal(release(&rig, 2), 0); /* repeated */
	rig_done(&rig);
}

static void release_ahead_of_a_hold_is_an_error(void **state)
{
	(void)state;
	struct rig rig;

	rig_init(&rig, 100);
	authorise(&rig, 1, 1);
	assert_int_equal(release(&rig, 2), -100 - OKV_PEER_REFUSED_AHEAD);
	assert_int_equal(rig.pins[0], 1);
	mover_ended(&rig, 1, false);
	assert_int_equal(release(&rig, 1), 1);
	rig_done(&rig);
}

static void release_that_overtakes_its_authorise_fences_it(void **state)
{
	(void)state;
	struct rig rig;

	rig_init(&rig, 100);
	assert_int_equal(release(&rig, 4), 0);
	assert_int_equal(authorise(&rig, 4, 1), OKV_PEER_REFUSED_TICKET);
	assert_int_equal(authorise(&rig, 5, 1), OKV_PEER_GRANTED);
	mover_ended(&rig, 1, false);
	assert_int_equal(release(&rig, 5), 1);
	rig_done(&rig);
}

static void release_during_the_read_is_answered_when_the_mover_has_stopped(void **state)
{
	(void)state;
	struct rig rig;

	rig_init(&rig, 100);
	authorise(&rig, 1, 3);
	assert_int_equal(release(&rig, 1), LATER);
	assert_int_equal(rig.end_asked, 1);
	assert_int_equal(rig.pins[2], 1);
	assert_int_equal(release(&rig, 1), LATER); /* repeated: asked once, answered once */
	assert_int_equal(rig.grants_to_end, 1);
	assert_int_equal(okv_source_counts(rig.source)->reserved_bytes, 3 * BLOCK_BYTES);
	mover_ended(&rig, 1, true);
	assert_ptr_equal(rig.replied.connection, &rig);
	assert_int_equal(rig.replied_blocks, 3);
	rig_done(&rig);
}

static void no_answer_goes_to_a_connection_that_is_forgotten(void **state)
{
	(void)state;
	struct rig rig;

	rig_init(&rig, 100);
	authorise(&rig, 1, 1);
	assert_int_equal(release(&rig, 1), LATER);
	okv_source_forget_connection(rig.source, &rig);
	mover_ended(&rig, 1, false);
	assert_null(rig.replied.connection);
	assert_int_equal(rig.finished, 1);
	rig_done(&rig);
}

static void only_the_oldest_idle_window_is_evicted(void **state)
{
	(void)state;
	struct rig rig;

	rig_init(&rig, 100000);
	assert_int_equal(authorise(&rig, 1, 1), OKV_PEER_GRANTED); /* the first window is busy */
	for (unsigned i = 1; i < OKV_SOURCE_WINDOWS_MAX; i++) {
		struct okv_uuid window = uuid(200);

		memcpy(&window, &i, sizeof(i));
		assert_int_equal(okv_source_open(rig.source, &rig.owner, &rig.requester, &window), OKV_PEER_GRANTED);
	}
	struct okv_uuid one_more = uuid(201), oldest_idle = uuid(200);
	unsigned one = 1;
	memcpy(&oldest_idle, &one, sizeof(one));
	assert_int_equal(okv_source_open(rig.source, &rig.owner, &rig.requester, &one_more), OKV_PEER_GRANTED);
	assert_int_equal(okv_source_counts(rig.source)->windows, OKV_SOURCE_WINDOWS_MAX);
	assert_int_equal(authorise_in(&rig, oldest_idle, 1, 1), OKV_PEER_REFUSED_WINDOW);
	assert_int_equal(authorise_in(&rig, one_more, 1, 1), OKV_PEER_GRANTED);
	mover_ended(&rig, 1, false);
	mover_ended(&rig, 2, false);
	assert_int_equal(release(&rig, 1), 1);
	assert_int_equal(release_in(&rig, one_more, 1), 1);
	rig_done(&rig);
}

static void windows_are_refused_when_none_is_idle(void **state)
{
	(void)state;
	struct rig rig;
	struct okv_uuid window = uuid(200);

	rig_init(&rig, UINT64_MAX);
	authorise(&rig, 1, 1);
	for (unsigned i = 1; i < OKV_SOURCE_WINDOWS_MAX; i++) {
		memcpy(&window, &i, sizeof(i));
		assert_int_equal(okv_source_open(rig.source, &rig.owner, &rig.requester, &window), OKV_PEER_GRANTED);
		assert_int_equal(authorise_in(&rig, window, 1, 1), OKV_PEER_GRANTED);
	}
	window = uuid(201);
	assert_int_equal(okv_source_open(rig.source, &rig.owner, &rig.requester, &window),
			 OKV_PEER_REFUSED_BUDGET_SESSIONS);
	okv_source_reader_gone(rig.source, &rig.requester);
	drain(&rig);
	for (uint64_t i = rig.last_grant; i > 0; i--)
		mover_ended(&rig, i, false);
	rig_done(&rig);
}

static void time_marks_a_hold_overdue_once_and_frees_nothing(void **state)
{
	(void)state;
	struct rig rig;

	rig_init(&rig, 100);
	authorise(&rig, 1, 2);
	assert_int_equal(okv_source_mark_overdue(rig.source, 119, 120), 0);
	assert_int_equal(okv_source_mark_overdue(rig.source, UINT64_MAX, 120), 1);
	assert_int_equal(okv_source_mark_overdue(rig.source, UINT64_MAX, 120), 0);
	drain(&rig);
	assert_int_equal(okv_source_counts(rig.source)->overdue_sessions, 1);
	assert_int_equal(okv_source_counts(rig.source)->timeouts, 1);
	assert_int_equal(rig.pins[1], 1);
	mover_ended(&rig, 1, false);
	assert_int_equal(release(&rig, 1), 2);
	rig_done(&rig);
}

static void a_reader_that_is_gone_is_fenced_and_its_holds_end_with_the_mover(void **state)
{
	(void)state;
	struct rig rig;
	struct okv_uuid stranger = uuid(50), its_window = uuid(51);

	rig_init(&rig, 100);
	assert_int_equal(okv_source_open(rig.source, &rig.owner, &stranger, &its_window), OKV_PEER_GRANTED);
	assert_int_equal(authorise_in(&rig, its_window, 1, 1), OKV_PEER_GRANTED);
	assert_int_equal(authorise(&rig, 1, 2), OKV_PEER_GRANTED);
	okv_source_reader_gone(rig.source, &rig.requester);
	drain(&rig);
	assert_int_equal(rig.end_asked, 2);
	assert_int_equal(rig.pins[1], 1); /* the mover may still read */
	assert_int_equal(authorise(&rig, 2, 1), OKV_PEER_REFUSED_WINDOW);
	mover_ended(&rig, 2, false);
	assert_int_equal(rig.pins[1], 0);
	assert_int_equal(rig.pins[0], 1); /* the stranger's */
	assert_int_equal(release(&rig, 1), 0);
	mover_ended(&rig, 1, false);
	assert_int_equal(release_in(&rig, its_window, 1), 1);
	assert_int_equal(okv_source_counts(rig.source)->readers_gone, 1);
	rig_done(&rig);
}

static void a_read_that_its_reader_breaks_off_is_over_and_its_window_goes_on(void **state)
{
	(void)state;
	struct rig rig;

	rig_init(&rig, 100);
	assert_int_equal(authorise(&rig, 1, 2), OKV_PEER_GRANTED);
	mover_ended(&rig, 1, true);
	assert_int_equal(rig.finished, 1);
	assert_int_equal(okv_source_counts(rig.source)->readers_gone, 1);
	assert_int_equal(release(&rig, 1), 0);
	assert_int_equal(authorise(&rig, 1, 1), OKV_PEER_REFUSED_TICKET);
	assert_int_equal(authorise(&rig, 2, 1), OKV_PEER_GRANTED);
	mover_ended(&rig, 2, false);
	assert_int_equal(release(&rig, 2), 1);
	rig_done(&rig);
}

static void a_read_that_is_broken_off_cuts_no_other_of_its_window(void **state)
{
	(void)state;
	struct rig rig;

	rig_init(&rig, 100);
	assert_int_equal(authorise_slot(&rig, rig.window, 3, 1, 2), OKV_PEER_GRANTED);
	assert_int_equal(authorise_slot(&rig, rig.window, 4, 1, 2), OKV_PEER_GRANTED);
	mover_ended(&rig, 1, true);
	assert_int_equal(rig.end_asked, 0);
	assert_int_equal(rig.pins[0], 1);
	okv_source_reader_gone(rig.source, &rig.requester);
	drain(&rig);
	mover_ended(&rig, 2, false);
	rig_done(&rig);
}

static void a_read_that_was_sent_whole_stays_pinned_until_released(void **state)
{
	(void)state;
	struct rig rig;

	rig_init(&rig, 100);
	assert_int_equal(authorise(&rig, 1, 2), OKV_PEER_GRANTED);
	mover_ended(&rig, 1, false);
	assert_int_equal(rig.pins[0], 1);
	assert_int_equal(release(&rig, 1), 2);
	rig_done(&rig);
}

static void a_connection_that_closes_before_its_answer_is_sent_gets_none(void **state)
{
	(void)state;
	struct rig rig;
	enum okv_peer_refusal refusal;
	uint32_t blocks;

	rig_init(&rig, 100);
	assert_int_equal(authorise(&rig, 1, 2), OKV_PEER_GRANTED);
	mover_ended(&rig, 1, false);
	struct okv_ticket ticket = {.window = rig.window, .slot = 3, .generation = 1};
	struct okv_source_reply reply = {.connection = &rig, .request_id = 1};
	assert_false(okv_source_release(rig.source, &ticket, reply, &refusal, &blocks));
	okv_source_forget_connection(rig.source, &rig); /* the hold is over already, and waits for the driver */
	drain(&rig);
	assert_int_equal(rig.finished, 1);
	assert_null(rig.replied.connection);
	rig_done(&rig);
}

/* --- random sequences --------------------------------------------------------------------------------------------- */

/* What history alone says about one slot of one window. */
struct oracle {
	uint64_t held;	   /* generation of the hold not yet over, 0 if none */
	uint64_t seen_max; /* highest generation that reached the slot and was not refused */
	uint64_t grant;	   /* not yet ended by the mover, 0 if none */
	bool is_ending, is_fenced;
};

static void check_sums(struct rig *rig, const struct oracle *oracle)
{
	const struct okv_source_counts *counts = okv_source_counts(rig->source);

	assert_int_equal(counts->sessions, oracle->held ? 1 : 0);
	assert_int_equal(counts->reserved_bytes, oracle->held ? 2 * BLOCK_BYTES : 0); /* S5 */
	assert_int_equal(rig->pins[0], oracle->held ? 1 : 0);
}

static void step(struct rig *rig, struct oracle *oracle, struct okv_rng *rng)
{
	uint64_t generation = 1 + okv_rng_below(rng, 5);

	switch (okv_rng_below(rng, 8)) {
	case 0:
	case 1:
	case 2: {
		enum okv_peer_refusal got = authorise(rig, generation, 2);
		bool fresh = !oracle->held && generation > oracle->seen_max;

		assert_int_equal(got, oracle->is_fenced ? OKV_PEER_REFUSED_WINDOW
				      : fresh		? OKV_PEER_GRANTED
							: OKV_PEER_REFUSED_TICKET);
		if (got == OKV_PEER_GRANTED) {
			oracle->held = oracle->seen_max = generation;
			oracle->grant = rig->last_grant;
		}
		return;
	}
	case 3:
	case 4:
	case 5: {
		int got = release(rig, generation);
		bool window_lives = !oracle->is_fenced || oracle->held;
		bool ends = window_lives && oracle->held == generation;
		bool ahead = window_lives && oracle->held && generation > oracle->held;

		assert_int_equal(got, ahead ? -100 - OKV_PEER_REFUSED_AHEAD : !ends ? 0 : oracle->grant ? LATER : 2);
		if (ends && oracle->grant)
			oracle->is_ending = true;
		else if (ends)
			oracle->held = 0;
		if (!ahead && generation > oracle->seen_max)
			oracle->seen_max = generation;
		return;
	}
	case 6: {
		bool broke = okv_rng_below(rng, 4) == 0;

		if (!oracle->grant)
			return;
		mover_ended(rig, oracle->grant, broke);
		oracle->grant = 0;
		if (oracle->is_ending || broke)
			oracle->held = 0;
		oracle->is_ending = false;
		return;
	}
	default:
		if (okv_rng_below(rng, 4) != 0)
			return;
		okv_source_reader_gone(rig->source, &rig->requester);
		drain(rig);
		oracle->is_fenced = true;
		if (oracle->grant)
			oracle->is_ending = true;
		else
			oracle->held = 0;
		return;
	}
}

static void random_sequences_agree_with_history(void **state)
{
	(void)state;
	for (uint64_t seed = 1; seed <= 3000; seed++) {
		struct okv_rng rng = okv_rng_seeded(seed);
		struct oracle oracle = {0};
		struct rig rig;

		rig_init(&rig, 100);
		for (int i = 0; i < 25; i++) {
			step(&rig, &oracle, &rng);
			check_sums(&rig, &oracle);
		}
		okv_source_reader_gone(rig.source, &rig.requester);
		drain(&rig);
		if (oracle.grant)
			mover_ended(&rig, oracle.grant, false);
		rig_done(&rig);
	}
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(authorise_in_an_unknown_window_is_refused),
		cmocka_unit_test(authorise_with_a_stale_ticket_is_refused),
		cmocka_unit_test(a_slot_that_does_not_exist_is_refused),
		cmocka_unit_test(a_refusal_for_want_of_budget_spends_the_ticket),
		cmocka_unit_test(a_block_named_twice_is_counted_once),
		cmocka_unit_test(too_many_sessions_are_refused),
		cmocka_unit_test(another_incarnation_or_residence_is_refused),
		cmocka_unit_test(release_in_an_unknown_window_succeeds_with_nothing),
		cmocka_unit_test(release_of_an_older_ticket_spares_the_newer_hold),
		cmocka_unit_test(release_ahead_of_a_hold_is_an_error),
		cmocka_unit_test(release_that_overtakes_its_authorise_fences_it),
		cmocka_unit_test(release_during_the_read_is_answered_when_the_mover_has_stopped),
		cmocka_unit_test(no_answer_goes_to_a_connection_that_is_forgotten),
		cmocka_unit_test(only_the_oldest_idle_window_is_evicted),
		cmocka_unit_test(windows_are_refused_when_none_is_idle),
		cmocka_unit_test(time_marks_a_hold_overdue_once_and_frees_nothing),
		cmocka_unit_test(a_reader_that_is_gone_is_fenced_and_its_holds_end_with_the_mover),
		cmocka_unit_test(a_read_that_its_reader_breaks_off_is_over_and_its_window_goes_on),
		cmocka_unit_test(a_read_that_is_broken_off_cuts_no_other_of_its_window),
		cmocka_unit_test(a_connection_that_closes_before_its_answer_is_sent_gets_none),
		cmocka_unit_test(a_read_that_was_sent_whole_stays_pinned_until_released),
		cmocka_unit_test(random_sequences_agree_with_history),
	};
	return cmocka_run_group_tests_name("fabric_source", tests, NULL, NULL);
}
