/* The requester against peers that refuse, lie, fall silent, lose messages and die. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <string.h>

#include <cmocka.h>

#include "requester_rig.h"

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
		assert_int_equal(rig.result[0].segments, 2);
		assert_int_equal(rig.result[0].segments_completed, 1);
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

int main(void)
{
	const struct CMUnitTest tests[] = {
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
	};
	return cmocka_run_group_tests_name("fabric_requester_faults", tests, NULL, NULL);
}
