/*
 * The requester against scripted peers on a virtual clock: each test says what the peers answer, or that they do not,
 * and what must then be asked, read, committed and released.
 */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <string.h>

#include <cmocka.h>

#include "okv/base/clock.h"
#include "okv/fabric/requester.h"

enum { BLOCK_BYTES = 1000, SENT_MAX = 64, BLOCKS = 300 };

struct rig {
	struct okv_requester *requester;
	struct okv_materialisation_key key;
	struct okv_fetch_block block[BLOCKS];
	uint64_t now_ns, deadline_ns;
	/* What the core asked for. */
	struct okv_peer_message sent[SENT_MAX];
	unsigned sent_to[SENT_MAX], sent_count, looked_at;
	struct okv_transfer *submitted[8];
	unsigned submit_count, cancel_count, unpin_count;
	enum okv_status submit_status;
	struct okv_fetch_result result[8];
	void *done_context[8];
	unsigned done_count;
	int handles;
};

static struct okv_uuid uuid(uint8_t byte)
{
	struct okv_uuid value;

	memset(&value, byte, sizeof(value));
	return value;
}

static void drain(struct rig *rig)
{
	struct okv_requester_action action;

	while (rig->sent_count < SENT_MAX &&
	       okv_requester_next(rig->requester, rig->now_ns, &action, &rig->sent[rig->sent_count])) {
		switch (action.kind) {
		case OKV_REQUESTER_SEND:
			rig->sent_to[rig->sent_count++] = action.peer;
			break;
		case OKV_REQUESTER_SUBMIT:
			rig->submitted[rig->submit_count++] = action.transfer;
			okv_requester_submitted(rig->requester, action.transfer, rig->submit_status, rig->now_ns);
			break;
		case OKV_REQUESTER_CANCEL_READ:
			rig->cancel_count++;
			break;
		case OKV_REQUESTER_DONE:
			rig->done_context[rig->done_count] = okv_fetch_context(action.fetch);
			rig->result[rig->done_count++] = okv_fetch_result(action.fetch);
			okv_requester_fetch_free(rig->requester, action.fetch);
			break;
		case OKV_REQUESTER_UNPIN:
			rig->unpin_count++;
			break;
		}
	}
	assert_true(rig->sent_count < SENT_MAX);
}

static void rig_init(struct rig *rig, unsigned peers)
{
	struct okv_requester_options options = okv_requester_defaults();

	memset(rig, 0, sizeof(*rig));
	options.incarnation = uuid(0xee);
	rig->now_ns = 1000;
	rig->deadline_ns = 30 * OKV_NS_PER_S;
	assert_int_equal(okv_requester_create(&options, &rig->requester), OKV_OK);
	for (int i = 0; i < BLOCKS; i++) {
		rig->block[i].token_count = 16;
		memcpy(&rig->block[i].hash, &i, sizeof(i));
		if (i > 0)
			rig->block[i].parent = rig->block[i - 1].hash;
	}
	for (unsigned i = 0; i < peers; i++) {
		unsigned peer;
		struct okv_uuid owner = uuid((uint8_t)(10 + i));

		assert_int_equal(okv_requester_peer(rig->requester, &peer), OKV_OK);
		assert_int_equal(peer, i);
		okv_requester_connected(rig->requester, peer, &owner, rig->now_ns);
	}
}

/* At the end of each test nothing may be left that was not given back. */
static void rig_done(struct rig *rig)
{
	const struct okv_requester_counts *counts = okv_requester_counts(rig->requester);

	assert_int_equal(counts->fetches, 0);
	assert_int_equal(counts->wants, 0);
	assert_int_equal(counts->transfers, 0);
	assert_int_equal(counts->reading, 0);
	assert_int_equal(counts->completions_outstanding, 0);
	assert_int_equal(rig->unpin_count, rig->handles);
	okv_requester_destroy(rig->requester);
}

static struct okv_fetch *fetch_from(struct rig *rig, uint32_t first, uint32_t count, void *context)
{
	struct okv_fetch *fetch;

	assert_int_equal(okv_requester_fetch(rig->requester, &rig->key, BLOCK_BYTES, rig->block + first, count,
					     rig->deadline_ns, rig->now_ns, context, &fetch),
			 OKV_OK);
	drain(rig);
	return fetch;
}

static struct okv_fetch *fetch(struct rig *rig, uint32_t count)
{
	return fetch_from(rig, 0, count, rig);
}

/* The next message that was sent, which must be of this type and to this peer. */
static const struct okv_peer_message *expect(struct rig *rig, unsigned peer, enum okv_peer_type type)
{
	assert_true(rig->looked_at < rig->sent_count);
	assert_int_equal(rig->sent[rig->looked_at].type, type);
	assert_int_equal(rig->sent_to[rig->looked_at], peer);
	return &rig->sent[rig->looked_at++];
}

static void expect_silence(struct rig *rig)
{
	assert_int_equal(rig->looked_at, rig->sent_count);
}

static void reply(struct rig *rig, unsigned peer, const struct okv_peer_message *message)
{
	assert_true(okv_requester_reply(rig->requester, peer, message, rig->now_ns));
	drain(rig);
}

/* The peer has blocks [from, to) of those asked for. */
static void located(struct rig *rig, unsigned peer, uint16_t from, uint16_t to)
{
	const struct okv_peer_message *locate = expect(rig, peer, OKV_PEER_LOCATE);
	static struct okv_peer_message message;

	message = (struct okv_peer_message){.type = OKV_PEER_LOCATED, .request_id = locate->request_id};
	message.located.count = locate->locate.count;
	for (uint16_t i = from; i < to; i++)
		message.located.location[i] =
			(struct okv_peer_location){100 + (uint64_t)i, OKV_PEER_DRAM, BLOCK_BYTES, 16};
	reply(rig, peer, &message);
}

static void window(struct rig *rig, unsigned peer)
{
	const struct okv_peer_message *open = expect(rig, peer, OKV_PEER_OPEN_WINDOW);
	struct okv_peer_message message = {.type = OKV_PEER_WINDOW, .request_id = open->request_id};

	message.window.window = uuid((uint8_t)(40 + peer));
	reply(rig, peer, &message);
}

/* The answer that an honest source gives; the crc of block i is all i. */
static struct okv_peer_message authorised_for(const struct okv_peer_message *authorise)
{
	struct okv_peer_message message = {.type = OKV_PEER_AUTHORISED, .request_id = authorise->request_id};

	message.authorised.count = authorise->authorise.count;
	for (uint16_t i = 0; i < authorise->authorise.count; i++) {
		struct okv_peer_authorised *block = &message.authorised.block[i];
		int number;

		block->hash = authorise->authorise.wanted[i].hash;
		memcpy(&number, &block->hash, sizeof(number));
		if (number > 0) {
			number--;
			memcpy(&block->parent, &number, sizeof(number));
		}
		block->key_digest = authorise->authorise.key_digest;
		block->token_count = 16;
		block->length = BLOCK_BYTES;
		memset(&block->crc, i, sizeof(block->crc));
	}
	return message;
}

static struct okv_ticket authorise(struct rig *rig, unsigned peer)
{
	const struct okv_peer_message *asked = expect(rig, peer, OKV_PEER_AUTHORISE);
	struct okv_peer_message message = authorised_for(asked);
	struct okv_ticket ticket = asked->authorise.ticket;

	reply(rig, peer, &message);
	return ticket;
}

static void refuse_authorise(struct rig *rig, unsigned peer, enum okv_peer_refusal refusal)
{
	const struct okv_peer_message *asked = expect(rig, peer, OKV_PEER_AUTHORISE);
	struct okv_peer_message message = {.type = OKV_PEER_AUTHORISED, .request_id = asked->request_id};

	message.authorised.refusal = refusal;
	reply(rig, peer, &message);
}

static enum okv_status land(struct rig *rig, struct okv_transfer *transfer, uint16_t index, bool damaged)
{
	struct okv_crc crc;

	memset(&crc, damaged ? 0xff : index, sizeof(crc));
	enum okv_status status = okv_requester_landed(rig->requester, transfer, index, &crc);
	if (status == OKV_OK) {
		okv_requester_committed(rig->requester, transfer, index, &rig->handles);
		rig->handles++;
	}
	drain(rig);
	return status;
}

static void read_ended(struct rig *rig, struct okv_transfer *transfer, enum okv_status status)
{
	okv_requester_read_ended(rig->requester, transfer, status, rig->now_ns);
	drain(rig);
}

static void read_all(struct rig *rig, struct okv_transfer *transfer)
{
	for (uint16_t i = 0; i < transfer->count; i++)
		assert_int_equal(land(rig, transfer, i, false), OKV_OK);
	read_ended(rig, transfer, OKV_OK);
}

static void released(struct rig *rig, unsigned peer, struct okv_ticket ticket)
{
	const struct okv_peer_message *release = expect(rig, peer, OKV_PEER_RELEASE);
	struct okv_peer_message message = {.type = OKV_PEER_RELEASED, .request_id = release->request_id};

	assert_memory_equal(&release->release.window, &ticket.window, sizeof(ticket.window));
	assert_int_equal(release->release.slot, ticket.slot);
	assert_int_equal(release->release.generation, ticket.generation);
	reply(rig, peer, &message);
}

static void advance(struct rig *rig, uint64_t ns)
{
	rig->now_ns += ns;
	okv_requester_tick(rig->requester, rig->now_ns);
	drain(rig);
}

/* --- the normal sequence ------------------------------------------------------------------------------------------ */

static void a_fetch_locates_authorises_reads_and_releases(void **state)
{
	(void)state;
	struct rig rig;

	rig_init(&rig, 1);
	fetch(&rig, 5);
	located(&rig, 0, 0, 5);
	window(&rig, 0);
	struct okv_ticket ticket = authorise(&rig, 0);
	assert_int_equal(rig.submit_count, 1);
	assert_int_equal(rig.submitted[0]->count, 5);
	read_all(&rig, rig.submitted[0]);
	assert_int_equal(rig.done_count, 1);
	assert_int_equal(rig.result[0].status, OKV_OK);
	assert_int_equal(rig.result[0].leading, 5);
	assert_int_equal(rig.result[0].bytes, 5 * BLOCK_BYTES);
	assert_int_equal(okv_requester_counts(rig.requester)->completions_outstanding, 1);
	released(&rig, 0, ticket);
	expect_silence(&rig);
	rig_done(&rig);
}

static void the_second_fetch_uses_the_window_of_the_first_and_a_newer_ticket(void **state)
{
	(void)state;
	struct rig rig;
	struct okv_ticket ticket[2];

	rig_init(&rig, 1);
	for (int i = 0; i < 2; i++) {
		fetch(&rig, 2);
		located(&rig, 0, 0, 2);
		if (i == 0)
			window(&rig, 0);
		ticket[i] = authorise(&rig, 0);
		read_all(&rig, rig.submitted[i]);
		released(&rig, 0, ticket[i]);
	}
	assert_int_equal(ticket[0].slot, ticket[1].slot);
	assert_true(ticket[1].generation > ticket[0].generation); /* R3 */
	rig_done(&rig);
}

static void the_longest_span_wins_and_a_tie_goes_to_the_smallest_owner(void **state)
{
	(void)state;
	struct rig rig;

	rig_init(&rig, 3);
	fetch(&rig, 6);
	located(&rig, 0, 0, 2);
	located(&rig, 1, 0, 4);
	located(&rig, 2, 0, 4);
	window(&rig, 1);
	struct okv_ticket ticket = authorise(&rig, 1);
	assert_int_equal(rig.submitted[0]->count, 4);
	/* Nobody has the fifth block: the prefix ends there. */
	read_all(&rig, rig.submitted[0]);
	assert_int_equal(rig.result[0].status, OKV_ERR_ABSENT);
	assert_int_equal(rig.result[0].leading, 4);
	released(&rig, 1, ticket);
	rig_done(&rig);
}

static void one_fetch_is_put_together_from_several_owners(void **state)
{
	(void)state;
	struct rig rig;

	rig_init(&rig, 2);
	fetch(&rig, 6);
	located(&rig, 0, 0, 4);
	located(&rig, 1, 3, 6);
	window(&rig, 0);
	struct okv_ticket first = authorise(&rig, 0);
	/* The next authorisation overlaps the READ, the next READ does not. */
	window(&rig, 1);
	struct okv_ticket second = authorise(&rig, 1);
	assert_int_equal(rig.submit_count, 1);
	read_all(&rig, rig.submitted[0]);
	assert_int_equal(rig.submit_count, 2);
	released(&rig, 0, first);
	read_all(&rig, rig.submitted[1]);
	released(&rig, 1, second);
	assert_int_equal(rig.result[0].status, OKV_OK);
	assert_int_equal(rig.result[0].leading, 6);
	rig_done(&rig);
}

static void two_hundred_and_sixty_blocks_need_three_authorisations(void **state)
{
	(void)state;
	struct rig rig;
	struct okv_ticket ticket[3];

	rig_init(&rig, 1);
	fetch(&rig, 260);
	located(&rig, 0, 0, 260);
	window(&rig, 0);
	ticket[0] = authorise(&rig, 0);
	for (int i = 0; i < 3; i++) {
		if (i < 2)
			ticket[i + 1] = authorise(&rig, 0);
		assert_int_equal(rig.submit_count, i + 1);
		read_all(&rig, rig.submitted[i]);
		released(&rig, 0, ticket[i]);
	}
	assert_int_equal(rig.result[0].status, OKV_OK);
	assert_int_equal(rig.result[0].leading, 260);
	rig_done(&rig);
}

static void a_key_that_no_peer_knows_is_a_miss_that_names_the_field(void **state)
{
	(void)state;
	struct rig rig;

	rig_init(&rig, 1);
	fetch(&rig, 3);
	const struct okv_peer_message *locate = expect(&rig, 0, OKV_PEER_LOCATE);
	struct okv_peer_message message = {.type = OKV_PEER_LOCATED, .request_id = locate->request_id};
	message.located.refusal = OKV_PEER_REFUSED_KEY;
	strcpy(message.located.field, "rope_theta");
	reply(&rig, 0, &message);
	assert_int_equal(rig.result[0].status, OKV_ERR_MISMATCH);
	assert_string_equal(rig.result[0].field, "rope_theta");
	assert_int_equal(rig.result[0].leading, 0);
	rig_done(&rig);
}

static void without_a_peer_a_fetch_is_a_miss_at_once(void **state)
{
	(void)state;
	struct rig rig;

	rig_init(&rig, 0);
	fetch(&rig, 3);
	assert_int_equal(rig.result[0].status, OKV_ERR_ABSENT);
	rig_done(&rig);
}

static void a_silent_peer_holds_a_plan_up_once_and_is_then_left_out(void **state)
{
	(void)state;
	struct rig rig;

	rig_init(&rig, 2);
	fetch(&rig, 2);
	expect(&rig, 0, OKV_PEER_LOCATE); /* never answered */
	located(&rig, 1, 0, 1);
	expect_silence(&rig);
	advance(&rig, 100 * OKV_NS_PER_MS);
	window(&rig, 1);
	struct okv_ticket ticket = authorise(&rig, 1);
	read_all(&rig, rig.submitted[0]);
	released(&rig, 1, ticket);
	fetch(&rig, 2);
	located(&rig, 1, 0, 0);
	expect_silence(&rig);
	assert_int_equal(rig.done_count, 2);
	rig_done(&rig);
}

static void a_peer_that_has_everything_need_not_be_waited_for_by_the_silence_of_another(void **state)
{
	(void)state;
	struct rig rig;

	rig_init(&rig, 2);
	fetch(&rig, 2);
	expect(&rig, 0, OKV_PEER_LOCATE);
	located(&rig, 1, 0, 2);
	window(&rig, 1);
	struct okv_ticket ticket = authorise(&rig, 1);
	read_all(&rig, rig.submitted[0]);
	released(&rig, 1, ticket);
	assert_int_equal(rig.result[0].status, OKV_OK);
	rig_done(&rig);
}

/* --- adversarial cases ------------------------------------------------------------------------------------------- */

/* Two owners that both have `count` blocks; the first was asked to authorise. */
static void rig_init_two_owners(struct rig *rig, uint32_t count)
{
	rig_init(rig, 2);
	fetch(rig, count);
	located(rig, 0, 0, (uint16_t)count);
	located(rig, 1, 0, (uint16_t)count);
	window(rig, 0);
}

static void finish_at(struct rig *rig, unsigned peer)
{
	window(rig, peer);
	struct okv_ticket ticket = authorise(rig, peer);
	read_all(rig, rig->submitted[rig->submit_count - 1]);
	released(rig, peer, ticket);
}

static void a_lost_authorise_reply_is_released_by_its_ticket_and_the_next_owner_is_tried(void **state)
{
	(void)state;
	struct rig rig;

	rig_init(&rig, 2);
	fetch(&rig, 2);
	/* Both are asked at once; the first that has everything is enough to start. */
	const struct okv_peer_message other = *expect(&rig, 0, OKV_PEER_LOCATE);
	located(&rig, 1, 0, 2);
	window(&rig, 1);
	struct okv_ticket lost = expect(&rig, 1, OKV_PEER_AUTHORISE)->authorise.ticket;
	struct okv_peer_message message = {.type = OKV_PEER_LOCATED, .request_id = other.request_id};
	message.located.count = 2;
	for (int i = 0; i < 2; i++)
		message.located.location[i] = (struct okv_peer_location){1, OKV_PEER_DRAM, BLOCK_BYTES, 16};
	reply(&rig, 0, &message);
	expect_silence(&rig);
	advance(&rig, 3 * OKV_NS_PER_S);
	released(&rig, 1, lost);
	finish_at(&rig, 0);
	assert_int_equal(rig.result[0].status, OKV_OK);
	rig_done(&rig);
}

static void an_owner_that_fails_before_the_others_answered_does_not_end_the_fetch(void **state)
{
	(void)state;
	struct rig rig;

	rig_init(&rig, 2);
	fetch(&rig, 2);
	const struct okv_peer_message other = *expect(&rig, 0, OKV_PEER_LOCATE);
	located(&rig, 1, 0, 2);
	window(&rig, 1);
	refuse_authorise(&rig, 1, OKV_PEER_REFUSED_RESIDENCE);
	assert_int_equal(rig.done_count, 0);
	struct okv_peer_message message = {.type = OKV_PEER_LOCATED, .request_id = other.request_id};
	message.located.count = 2;
	for (int i = 0; i < 2; i++)
		message.located.location[i] = (struct okv_peer_location){1, OKV_PEER_DRAM, BLOCK_BYTES, 16};
	reply(&rig, 0, &message);
	finish_at(&rig, 0);
	assert_int_equal(rig.result[0].status, OKV_OK);
	rig_done(&rig);
}

static void a_refused_owner_is_not_asked_again_and_the_next_one_is(void **state)
{
	(void)state;
	static const enum okv_peer_refusal refusals[] = {OKV_PEER_REFUSED_OWNER, OKV_PEER_REFUSED_RESIDENCE,
							 OKV_PEER_REFUSED_BUDGET_BYTES, OKV_PEER_REFUSED_TICKET};

	for (size_t i = 0; i < sizeof(refusals) / sizeof(refusals[0]); i++) {
		struct rig rig;

		rig_init(&rig, 2);
		fetch(&rig, 4);
		const struct okv_peer_message second = *expect(&rig, 0, OKV_PEER_LOCATE);
		struct okv_peer_message message = {.type = OKV_PEER_LOCATED, .request_id = second.request_id};
		message.located.count = 4;
		for (int b = 0; b < 3; b++)
			message.located.location[b] = (struct okv_peer_location){1, OKV_PEER_DRAM, BLOCK_BYTES, 16};
		reply(&rig, 0, &message);
		located(&rig, 1, 0, 3);
		window(&rig, 0);
		refuse_authorise(&rig, 0, refusals[i]);
		finish_at(&rig, 1); /* a refusal pinned nothing, so nothing is released at the first */
		assert_int_equal(rig.result[0].leading, 3);
		assert_int_equal(okv_requester_counts(rig.requester)->refusals[refusals[i]], 1);
		rig_done(&rig);
	}
}

static void a_window_that_the_source_forgot_is_opened_anew(void **state)
{
	(void)state;
	struct rig rig;

	rig_init(&rig, 1);
	fetch(&rig, 2);
	located(&rig, 0, 0, 2);
	window(&rig, 0);
	refuse_authorise(&rig, 0, OKV_PEER_REFUSED_WINDOW);
	window(&rig, 0);
	struct okv_ticket ticket = authorise(&rig, 0);
	assert_int_equal(ticket.generation, 2);
	read_all(&rig, rig.submitted[0]);
	released(&rig, 0, ticket);
	assert_int_equal(rig.result[0].status, OKV_OK);
	rig_done(&rig);
}

static void a_source_that_forgets_every_window_is_given_up(void **state)
{
	(void)state;
	struct rig rig;

	rig_init(&rig, 1);
	fetch(&rig, 2);
	located(&rig, 0, 0, 2);
	for (int i = 0; i < 3; i++) {
		window(&rig, 0);
		refuse_authorise(&rig, 0, OKV_PEER_REFUSED_WINDOW);
	}
	expect_silence(&rig);
	assert_int_equal(rig.result[0].status, OKV_ERR_ABSENT);
	rig_done(&rig);
}

static void a_refused_window_is_a_miss_with_nothing_to_release(void **state)
{
	(void)state;
	struct rig rig;

	rig_init(&rig, 1);
	fetch(&rig, 2);
	located(&rig, 0, 0, 2);
	const struct okv_peer_message *open = expect(&rig, 0, OKV_PEER_OPEN_WINDOW);
	struct okv_peer_message message = {.type = OKV_PEER_WINDOW, .request_id = open->request_id};
	message.window.refusal = OKV_PEER_REFUSED_BUDGET_SESSIONS;
	reply(&rig, 0, &message);
	expect_silence(&rig);
	assert_int_equal(rig.result[0].status, OKV_ERR_ABSENT);
	rig_done(&rig);
}

static void a_window_that_does_not_open_in_time_is_a_miss_for_all_who_wait(void **state)
{
	(void)state;
	struct rig rig;

	rig_init(&rig, 1);
	fetch_from(&rig, 0, 2, NULL);
	fetch_from(&rig, 10, 2, NULL);
	located(&rig, 0, 0, 2);
	located(&rig, 0, 0, 2);
	expect(&rig, 0, OKV_PEER_OPEN_WINDOW);
	expect_silence(&rig); /* single flight */
	advance(&rig, 3 * OKV_NS_PER_S);
	expect_silence(&rig);
	assert_int_equal(rig.done_count, 2);
	rig_done(&rig);
}

static void replans_are_bounded(void **state)
{
	(void)state;
	struct rig rig;

	rig_init(&rig, 4);
	fetch(&rig, 3);
	for (unsigned i = 0; i < 4; i++)
		located(&rig, i, 0, 2); /* nobody has all three, so all four are heard */
	for (unsigned i = 0; i < 3; i++) {
		window(&rig, i);
		refuse_authorise(&rig, i, OKV_PEER_REFUSED_RESIDENCE);
	}
	expect_silence(&rig); /* R5: the fourth is not asked */
	assert_int_equal(rig.result[0].status, OKV_ERR_ABSENT);
	rig_done(&rig);
}

enum lie { LIE_LENGTH, LIE_HASH, LIE_KEY, LIE_PARENT, LIE_LINEAGE, LIE_TOKENS, LIE_COUNT, LIES };

static void what_was_not_asked_for_is_refused_before_a_byte_is_read(void **state)
{
	(void)state;
	for (int lie = 0; lie < LIES; lie++) {
		struct rig rig;

		rig_init(&rig, 1);
		fetch(&rig, 3);
		located(&rig, 0, 0, 3);
		window(&rig, 0);
		const struct okv_peer_message *asked = expect(&rig, 0, OKV_PEER_AUTHORISE);
		struct okv_peer_message message = authorised_for(asked);
		struct okv_ticket ticket = asked->authorise.ticket;
		struct okv_peer_authorised *block = &message.authorised.block[1];
		if (lie == LIE_LENGTH)
			block->length++;
		else if (lie == LIE_HASH)
			block->hash.bytes[31] ^= 1;
		else if (lie == LIE_KEY)
			block->key_digest.bytes[0] ^= 1;
		else if (lie == LIE_PARENT)
			block->parent.bytes[5] ^= 1;
		else if (lie == LIE_LINEAGE)
			block->lineage.bytes[5] ^= 1;
		else if (lie == LIE_TOKENS)
			block->token_count--;
		else
			message.authorised.count--;
		reply(&rig, 0, &message);
		assert_int_equal(rig.submit_count, 0);
		released(&rig, 0, ticket); /* it is pinned over there all the same */
		assert_int_equal(rig.result[0].status, OKV_ERR_ABSENT);
		const struct okv_requester_counts *counts = okv_requester_counts(rig.requester);
		bool is_length = lie == LIE_LENGTH || lie == LIE_COUNT;
		assert_int_equal(counts->bad_length, is_length ? 1 : 0);
		assert_int_equal(counts->bad_identity, is_length ? 0 : 1);
		rig_done(&rig);
	}
}

static void a_damaged_range_is_not_committed_and_ends_the_prefix(void **state)
{
	(void)state;
	struct rig rig;

	rig_init(&rig, 1);
	fetch(&rig, 4);
	located(&rig, 0, 0, 4);
	window(&rig, 0);
	struct okv_ticket ticket = authorise(&rig, 0);
	struct okv_transfer *transfer = rig.submitted[0];
	assert_int_equal(land(&rig, transfer, 0, false), OKV_OK);
	assert_int_equal(land(&rig, transfer, 1, true), OKV_ERR_DAMAGED);
	assert_int_equal(land(&rig, transfer, 2, false), OKV_OK); /* of use to someone else */
	assert_int_equal(land(&rig, transfer, 3, false), OKV_OK);
	read_ended(&rig, transfer, OKV_OK);
	assert_int_equal(rig.result[0].status, OKV_ERR_DAMAGED);
	assert_int_equal(rig.result[0].leading, 1);
	assert_int_equal(okv_requester_counts(rig.requester)->bad_crc, 1);
	released(&rig, 0, ticket);
	rig_done(&rig);
}

static void a_read_that_breaks_keeps_what_landed_and_is_not_retried_elsewhere(void **state)
{
	(void)state;
	struct rig rig;

	rig_init(&rig, 2);
	fetch(&rig, 4);
	located(&rig, 0, 0, 3);
	located(&rig, 1, 0, 3);
	window(&rig, 0);
	struct okv_ticket ticket = authorise(&rig, 0);
	land(&rig, rig.submitted[0], 0, false);
	read_ended(&rig, rig.submitted[0], OKV_ERR_DISCONNECTED);
	released(&rig, 0, ticket);
	expect_silence(&rig); /* R5 */
	assert_int_equal(rig.result[0].status, OKV_ERR_DISCONNECTED);
	assert_int_equal(rig.result[0].leading, 1);
	rig_done(&rig);
}

static void a_pool_without_space_is_a_miss_and_the_ticket_is_released(void **state)
{
	(void)state;
	struct rig rig;

	rig_init(&rig, 1);
	rig.submit_status = OKV_ERR_NO_SPACE;
	fetch(&rig, 2);
	located(&rig, 0, 0, 2);
	window(&rig, 0);
	struct okv_ticket ticket = authorise(&rig, 0);
	assert_int_equal(rig.result[0].status, OKV_ERR_NO_SPACE);
	released(&rig, 0, ticket);
	rig_done(&rig);
}

static void a_release_is_repeated_with_growing_pauses_until_it_is_answered(void **state)
{
	(void)state;
	struct rig rig;
	uint64_t pause = 100 * OKV_NS_PER_MS;

	rig_init(&rig, 1);
	fetch(&rig, 1);
	located(&rig, 0, 0, 1);
	window(&rig, 0);
	struct okv_ticket ticket = authorise(&rig, 0);
	read_all(&rig, rig.submitted[0]);
	for (int i = 0; i < 20; i++) {
		expect(&rig, 0, OKV_PEER_RELEASE);
		advance(&rig, 3 * OKV_NS_PER_S);
		advance(&rig, pause - 1);
		expect_silence(&rig);
		advance(&rig, 1);
		pause = pause * 2 > 5 * OKV_NS_PER_S ? 5 * OKV_NS_PER_S : pause * 2;
	}
	const struct okv_requester_counts *counts = okv_requester_counts(rig.requester);
	assert_int_equal(counts->completions_outstanding, 1); /* R2 */
	assert_int_equal(counts->completion_retries, 20);
	released(&rig, 0, ticket);
	assert_int_equal(counts->completions_outstanding, 0);
	rig_done(&rig);
}

static void a_late_answer_to_an_earlier_release_is_ignored(void **state)
{
	(void)state;
	struct rig rig;

	rig_init(&rig, 1);
	fetch(&rig, 1);
	located(&rig, 0, 0, 1);
	window(&rig, 0);
	struct okv_ticket ticket = authorise(&rig, 0);
	read_all(&rig, rig.submitted[0]);
	struct okv_peer_message late = {.type = OKV_PEER_RELEASED,
					.request_id = expect(&rig, 0, OKV_PEER_RELEASE)->request_id};
	advance(&rig, 3 * OKV_NS_PER_S);
	reply(&rig, 0, &late);
	assert_int_equal(okv_requester_counts(rig.requester)->completions_outstanding, 1);
	advance(&rig, 100 * OKV_NS_PER_MS);
	released(&rig, 0, ticket);
	rig_done(&rig);
}

static void a_refused_release_stays_outstanding(void **state)
{
	(void)state;
	struct rig rig;

	rig_init(&rig, 1);
	fetch(&rig, 1);
	located(&rig, 0, 0, 1);
	window(&rig, 0);
	struct okv_ticket ticket = authorise(&rig, 0);
	read_all(&rig, rig.submitted[0]);
	struct okv_peer_message refusal = {.type = OKV_PEER_RELEASED,
					   .request_id = expect(&rig, 0, OKV_PEER_RELEASE)->request_id};
	refusal.released.refusal = OKV_PEER_REFUSED_AHEAD;
	reply(&rig, 0, &refusal);
	assert_int_equal(okv_requester_counts(rig.requester)->completion_rejections, 1);
	advance(&rig, 100 * OKV_NS_PER_MS);
	released(&rig, 0, ticket);
	rig_done(&rig);
}

static void a_lost_connection_keeps_the_ticket_until_the_same_incarnation_answers(void **state)
{
	(void)state;
	struct rig rig;
	struct okv_uuid owner = uuid(10);

	rig_init(&rig, 1);
	fetch(&rig, 2);
	located(&rig, 0, 0, 2);
	window(&rig, 0);
	struct okv_ticket ticket = authorise(&rig, 0);
	okv_requester_disconnected(rig.requester, 0, rig.now_ns);
	drain(&rig);
	read_ended(&rig, rig.submitted[0], OKV_ERR_DISCONNECTED);
	assert_int_equal(rig.done_count, 1);
	advance(&rig, 60 * OKV_NS_PER_S);
	expect_silence(&rig);
	assert_int_equal(okv_requester_counts(rig.requester)->completions_outstanding, 1);
	okv_requester_connected(rig.requester, 0, &owner, rig.now_ns);
	drain(&rig);
	released(&rig, 0, ticket);
	rig_done(&rig);
}

static void another_incarnation_proves_that_the_ticket_is_over(void **state)
{
	(void)state;
	struct rig rig;
	struct okv_uuid reborn = uuid(99);

	rig_init(&rig, 1);
	fetch(&rig, 2);
	located(&rig, 0, 0, 2);
	window(&rig, 0);
	authorise(&rig, 0);
	okv_requester_disconnected(rig.requester, 0, rig.now_ns);
	drain(&rig);
	read_ended(&rig, rig.submitted[0], OKV_ERR_DISCONNECTED);
	okv_requester_connected(rig.requester, 0, &reborn, rig.now_ns);
	drain(&rig);
	expect_silence(&rig);
	assert_int_equal(okv_requester_counts(rig.requester)->peers_gone, 1);
	rig_done(&rig);
}

static void a_refused_connection_proves_that_the_ticket_is_over_but_not_that_the_read_is(void **state)
{
	(void)state;
	struct rig rig;

	rig_init(&rig, 1);
	fetch(&rig, 2);
	located(&rig, 0, 0, 2);
	window(&rig, 0);
	authorise(&rig, 0);
	okv_requester_disconnected(rig.requester, 0, rig.now_ns);
	okv_requester_refused(rig.requester, 0, rig.now_ns);
	drain(&rig);
	assert_int_equal(okv_requester_counts(rig.requester)->transfers, 1); /* the mover still writes */
	read_ended(&rig, rig.submitted[0], OKV_ERR_DISCONNECTED);
	expect_silence(&rig);
	rig_done(&rig);
}

static void a_connection_lost_while_authorising_tries_the_next_owner_and_keeps_the_ticket(void **state)
{
	(void)state;
	struct rig rig;
	struct okv_uuid owner = uuid(10);

	rig_init_two_owners(&rig, 2);
	struct okv_ticket ticket = expect(&rig, 0, OKV_PEER_AUTHORISE)->authorise.ticket;
	okv_requester_disconnected(rig.requester, 0, rig.now_ns);
	drain(&rig);
	finish_at(&rig, 1);
	assert_int_equal(rig.result[0].status, OKV_OK);
	okv_requester_connected(rig.requester, 0, &owner, rig.now_ns);
	drain(&rig);
	released(&rig, 0, ticket);
	rig_done(&rig);
}

/* --- deadlines and cancelling --------------------------------------------------------------------------------------
 */

static void at_the_deadline_the_caller_has_its_miss_and_the_read_is_called_off(void **state)
{
	(void)state;
	struct rig rig;

	rig_init(&rig, 1);
	rig.deadline_ns = 3 * OKV_NS_PER_S;
	fetch(&rig, 3);
	located(&rig, 0, 0, 3);
	window(&rig, 0);
	struct okv_ticket ticket = authorise(&rig, 0);
	land(&rig, rig.submitted[0], 0, false);
	advance(&rig, 3 * OKV_NS_PER_S);
	assert_int_equal(rig.done_count, 1);
	assert_int_equal(rig.result[0].status, OKV_ERR_DEADLINE);
	assert_int_equal(rig.result[0].leading, 1);
	assert_int_equal(rig.cancel_count, 1);
	assert_int_equal(okv_requester_counts(rig.requester)->transfers, 1); /* until the mover has stopped */
	expect_silence(&rig);
	read_ended(&rig, rig.submitted[0], OKV_ERR_CANCELLED);
	released(&rig, 0, ticket);
	rig_done(&rig);
}

static void a_deadline_while_authorising_releases_the_ticket(void **state)
{
	(void)state;
	struct rig rig;

	rig_init(&rig, 1);
	rig.deadline_ns = OKV_NS_PER_S;
	fetch(&rig, 3);
	located(&rig, 0, 0, 3);
	window(&rig, 0);
	const struct okv_peer_message *asked = expect(&rig, 0, OKV_PEER_AUTHORISE);
	struct okv_ticket ticket = asked->authorise.ticket;
	struct okv_peer_message late = authorised_for(asked);
	advance(&rig, OKV_NS_PER_S);
	assert_int_equal(rig.result[0].status, OKV_ERR_DEADLINE);
	reply(&rig, 0, &late); /* changes nothing */
	assert_int_equal(rig.submit_count, 0);
	released(&rig, 0, ticket);
	rig_done(&rig);
}

static void cancelling_while_authorising_releases_the_ticket(void **state)
{
	(void)state;
	struct rig rig;

	rig_init(&rig, 1);
	struct okv_fetch *only = fetch(&rig, 3);
	located(&rig, 0, 0, 3);
	window(&rig, 0);
	struct okv_ticket ticket = expect(&rig, 0, OKV_PEER_AUTHORISE)->authorise.ticket;
	okv_requester_cancel(rig.requester, only);
	drain(&rig);
	assert_int_equal(rig.result[0].status, OKV_ERR_CANCELLED);
	released(&rig, 0, ticket);
	rig_done(&rig);
}

static void cancelling_during_the_read_lets_it_land(void **state)
{
	(void)state;
	struct rig rig;

	rig_init(&rig, 1);
	struct okv_fetch *only = fetch(&rig, 2);
	located(&rig, 0, 0, 2);
	window(&rig, 0);
	struct okv_ticket ticket = authorise(&rig, 0);
	okv_requester_cancel(rig.requester, only);
	drain(&rig);
	assert_int_equal(rig.done_count, 1);
	assert_int_equal(rig.cancel_count, 0);
	read_all(&rig, rig.submitted[0]);
	released(&rig, 0, ticket);
	assert_int_equal(okv_requester_counts(rig.requester)->fetched_blocks, 2);
	rig_done(&rig);
}

static void cancelling_while_locating_ends_everything(void **state)
{
	(void)state;
	struct rig rig;

	rig_init(&rig, 1);
	struct okv_fetch *only = fetch(&rig, 2);
	okv_requester_cancel(rig.requester, only);
	drain(&rig);
	rig_done(&rig);
}

static void identical_blocks_are_read_once_and_cancelling_one_fetch_spares_the_other(void **state)
{
	(void)state;
	struct rig rig;
	int first_caller, second_caller;

	rig_init(&rig, 1);
	struct okv_fetch *first = fetch_from(&rig, 0, 4, &first_caller);
	fetch_from(&rig, 0, 3, &second_caller);
	located(&rig, 0, 0, 4);
	expect(&rig, 0, OKV_PEER_OPEN_WINDOW);
	expect_silence(&rig); /* one LOCATE for both */
	rig.looked_at--;
	okv_requester_cancel(rig.requester, first); /* R4 */
	drain(&rig);
	assert_ptr_equal(rig.done_context[0], &first_caller);
	window(&rig, 0);
	struct okv_ticket ticket = authorise(&rig, 0);
	read_all(&rig, rig.submitted[0]);
	assert_int_equal(rig.submit_count, 1);
	assert_ptr_equal(rig.done_context[1], &second_caller);
	assert_int_equal(rig.result[1].status, OKV_OK);
	assert_int_equal(rig.result[1].leading, 3);
	assert_int_equal(okv_requester_counts(rig.requester)->coalesced_wants, 3);
	released(&rig, 0, ticket);
	rig_done(&rig);
}

static void a_longer_fetch_shares_what_is_on_its_way_and_adds_the_rest(void **state)
{
	(void)state;
	struct rig rig;

	rig_init(&rig, 1);
	fetch_from(&rig, 0, 2, NULL);
	located(&rig, 0, 0, 2);
	window(&rig, 0);
	struct okv_ticket first = authorise(&rig, 0);
	fetch_from(&rig, 0, 4, NULL);
	assert_int_equal(expect(&rig, 0, OKV_PEER_LOCATE)->locate.count, 2);
	rig.looked_at--;
	located(&rig, 0, 0, 2);
	struct okv_ticket second = authorise(&rig, 0);
	assert_int_not_equal(first.slot, second.slot);
	read_all(&rig, rig.submitted[0]);
	assert_int_equal(rig.done_count, 1);
	released(&rig, 0, first);
	read_all(&rig, rig.submitted[1]);
	released(&rig, 0, second);
	assert_int_equal(rig.result[1].leading, 4);
	rig_done(&rig);
}

/* --- limits and foreign behaviour ----------------------------------------------------------------------------------
 */

static void replies_of_the_wrong_kind_or_size_break_the_protocol(void **state)
{
	(void)state;
	struct rig rig;
	struct okv_peer_message message = {.type = OKV_PEER_HELLO};

	rig_init(&rig, 1);
	assert_false(okv_requester_reply(rig.requester, 0, &message, rig.now_ns));
	fetch(&rig, 3);
	message.request_id = expect(&rig, 0, OKV_PEER_LOCATE)->request_id;
	message.type = OKV_PEER_RELEASED;
	assert_false(okv_requester_reply(rig.requester, 0, &message, rig.now_ns));
	message = (struct okv_peer_message){.type = OKV_PEER_LOCATED, .request_id = message.request_id};
	message.located.count = 2; /* not three */
	assert_false(okv_requester_reply(rig.requester, 0, &message, rig.now_ns));
	okv_requester_disconnected(rig.requester, 0, rig.now_ns); /* which is what the driver does then */
	drain(&rig);
	assert_int_equal(rig.done_count, 1);
	rig_done(&rig);
}

static void stopping_ends_fetches_and_calls_reads_off(void **state)
{
	(void)state;
	struct rig rig;

	rig_init(&rig, 1);
	fetch_from(&rig, 0, 2, NULL);
	located(&rig, 0, 0, 2);
	window(&rig, 0);
	struct okv_ticket ticket = authorise(&rig, 0);
	fetch_from(&rig, 10, 2, NULL);
	expect(&rig, 0, OKV_PEER_LOCATE);
	okv_requester_stop(rig.requester, rig.now_ns);
	drain(&rig);
	assert_int_equal(rig.done_count, 2);
	assert_int_equal(rig.cancel_count, 1);
	read_ended(&rig, rig.submitted[0], OKV_ERR_CANCELLED);
	released(&rig, 0, ticket);
	rig_done(&rig);
}

static void limits_are_refused(void **state)
{
	(void)state;
	struct rig rig;
	struct okv_fetch *none;
	unsigned peer;

	rig_init(&rig, OKV_REQUESTER_PEERS_MAX);
	assert_int_equal(okv_requester_peer(rig.requester, &peer), OKV_ERR_BUDGET);
	assert_int_equal(okv_requester_fetch(rig.requester, &rig.key, BLOCK_BYTES, rig.block, 0, 1, 0, NULL, &none),
			 OKV_ERR_INVALID);
	assert_int_equal(okv_requester_fetch(rig.requester, &rig.key, BLOCK_BYTES, rig.block, OKV_PEER_LOCATE_MAX + 1,
					     1, 0, NULL, &none),
			 OKV_ERR_INVALID);
	assert_int_equal(okv_requester_fetch(rig.requester, &rig.key, 0, rig.block, 1, 1, 0, NULL, &none),
			 OKV_ERR_INVALID);
	rig_done(&rig);
}

static void a_peer_without_a_free_slot_is_a_miss(void **state)
{
	(void)state;
	struct rig rig;

	rig_init(&rig, 1);
	for (uint32_t i = 0; i < OKV_REQUESTER_SLOTS; i++) {
		rig.sent_count = rig.looked_at = 0;
		struct okv_fetch *only = fetch_from(&rig, i, 1, NULL);
		located(&rig, 0, 0, 1);
		if (i == 0)
			window(&rig, 0);
		expect(&rig, 0, OKV_PEER_AUTHORISE);
		okv_requester_cancel(rig.requester, only); /* its release is never answered */
		rig.done_count = 0;
		drain(&rig);
	}
	rig.sent_count = rig.looked_at = rig.done_count = 0;
	fetch_from(&rig, 200, 1, NULL);
	located(&rig, 0, 0, 1);
	assert_int_equal(rig.result[0].status, OKV_ERR_ABSENT);
	assert_int_equal(okv_requester_counts(rig.requester)->completions_outstanding, OKV_REQUESTER_SLOTS);
	okv_requester_disconnected(rig.requester, 0, rig.now_ns);
	okv_requester_refused(rig.requester, 0, rig.now_ns);
	drain(&rig);
	rig_done(&rig);
}

static void the_next_moment_that_matters_is_told(void **state)
{
	(void)state;
	struct rig rig;

	rig_init(&rig, 1);
	assert_true(okv_requester_wake_ns(rig.requester) == UINT64_MAX);
	fetch(&rig, 1);
	assert_int_equal(okv_requester_wake_ns(rig.requester), rig.now_ns + 100 * OKV_NS_PER_MS);
	located(&rig, 0, 0, 1);
	assert_int_equal(okv_requester_wake_ns(rig.requester), rig.now_ns + 3 * OKV_NS_PER_S);
	window(&rig, 0);
	struct okv_ticket ticket = authorise(&rig, 0);
	assert_int_equal(okv_requester_wake_ns(rig.requester), rig.deadline_ns);
	read_all(&rig, rig.submitted[0]);
	released(&rig, 0, ticket);
	assert_true(okv_requester_wake_ns(rig.requester) == UINT64_MAX);
	rig_done(&rig);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(a_fetch_locates_authorises_reads_and_releases),
		cmocka_unit_test(the_second_fetch_uses_the_window_of_the_first_and_a_newer_ticket),
		cmocka_unit_test(the_longest_span_wins_and_a_tie_goes_to_the_smallest_owner),
		cmocka_unit_test(one_fetch_is_put_together_from_several_owners),
		cmocka_unit_test(two_hundred_and_sixty_blocks_need_three_authorisations),
		cmocka_unit_test(a_key_that_no_peer_knows_is_a_miss_that_names_the_field),
		cmocka_unit_test(without_a_peer_a_fetch_is_a_miss_at_once),
		cmocka_unit_test(a_silent_peer_holds_a_plan_up_once_and_is_then_left_out),
		cmocka_unit_test(a_peer_that_has_everything_need_not_be_waited_for_by_the_silence_of_another),
		cmocka_unit_test(a_lost_authorise_reply_is_released_by_its_ticket_and_the_next_owner_is_tried),
		cmocka_unit_test(an_owner_that_fails_before_the_others_answered_does_not_end_the_fetch),
		cmocka_unit_test(a_refused_owner_is_not_asked_again_and_the_next_one_is),
		cmocka_unit_test(a_window_that_the_source_forgot_is_opened_anew),
		cmocka_unit_test(a_source_that_forgets_every_window_is_given_up),
		cmocka_unit_test(a_refused_window_is_a_miss_with_nothing_to_release),
		cmocka_unit_test(a_window_that_does_not_open_in_time_is_a_miss_for_all_who_wait),
		cmocka_unit_test(replans_are_bounded),
		cmocka_unit_test(what_was_not_asked_for_is_refused_before_a_byte_is_read),
		cmocka_unit_test(a_damaged_range_is_not_committed_and_ends_the_prefix),
		cmocka_unit_test(a_read_that_breaks_keeps_what_landed_and_is_not_retried_elsewhere),
		cmocka_unit_test(a_pool_without_space_is_a_miss_and_the_ticket_is_released),
		cmocka_unit_test(a_release_is_repeated_with_growing_pauses_until_it_is_answered),
		cmocka_unit_test(a_late_answer_to_an_earlier_release_is_ignored),
		cmocka_unit_test(a_refused_release_stays_outstanding),
		cmocka_unit_test(a_lost_connection_keeps_the_ticket_until_the_same_incarnation_answers),
		cmocka_unit_test(another_incarnation_proves_that_the_ticket_is_over),
		cmocka_unit_test(a_refused_connection_proves_that_the_ticket_is_over_but_not_that_the_read_is),
		cmocka_unit_test(a_connection_lost_while_authorising_tries_the_next_owner_and_keeps_the_ticket),
		cmocka_unit_test(at_the_deadline_the_caller_has_its_miss_and_the_read_is_called_off),
		cmocka_unit_test(a_deadline_while_authorising_releases_the_ticket),
		cmocka_unit_test(cancelling_while_authorising_releases_the_ticket),
		cmocka_unit_test(cancelling_during_the_read_lets_it_land),
		cmocka_unit_test(cancelling_while_locating_ends_everything),
		cmocka_unit_test(identical_blocks_are_read_once_and_cancelling_one_fetch_spares_the_other),
		cmocka_unit_test(a_longer_fetch_shares_what_is_on_its_way_and_adds_the_rest),
		cmocka_unit_test(replies_of_the_wrong_kind_or_size_break_the_protocol),
		cmocka_unit_test(stopping_ends_fetches_and_calls_reads_off),
		cmocka_unit_test(limits_are_refused),
		cmocka_unit_test(a_peer_without_a_free_slot_is_a_miss),
		cmocka_unit_test(the_next_moment_that_matters_is_told),
	};
	return cmocka_run_group_tests_name("fabric_requester", tests, NULL, NULL);
}
