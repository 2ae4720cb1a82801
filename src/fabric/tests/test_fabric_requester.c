/* The requester when all goes well, when callers give up or time runs out, and at its limits. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <string.h>

#include <cmocka.h>

#include "requester_rig.h"

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
	assert_int_equal(rig.result[0].segments, 1);
	assert_int_equal(rig.result[0].segments_completed, 1);
	assert_int_equal(okv_requester_counts(rig.requester)->completions_outstanding, 1);
	rig.now_ns += 7;
	released(&rig, 0, ticket);
	assert_int_equal(okv_requester_counts(rig.requester)->releases, 1);
	assert_int_equal(okv_requester_counts(rig.requester)->last_release_ns, 7);
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
	assert_int_equal(rig.result[0].segments, 2);
	assert_int_equal(rig.result[0].segments_completed, 2);
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
	assert_int_equal(rig.result[0].segments, 1);
	assert_int_equal(rig.result[0].segments_completed, 0);
	assert_int_equal(rig.cancel_count, 1);
	assert_int_equal(okv_requester_counts(rig.requester)->transfers, 1); /* until the mover has stopped */
	expect_silence(&rig);
	read_ended(&rig, rig.submitted[0], OKV_ERR_CANCELLED);
	released(&rig, 0, ticket);
	rig_done(&rig);
}

static void a_deadline_before_the_read_is_submitted_calls_it_off_as_soon_as_it_is(void **state)
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
	struct okv_peer_message message = authorised_for(asked);
	assert_true(okv_requester_reply(rig.requester, 0, &message, rig.now_ns)); /* the READ is to be submitted */
	rig.now_ns = rig.deadline_ns;
	okv_requester_tick(rig.requester, rig.now_ns);
	assert_int_equal(rig.submit_count, 0);
	drain(&rig); /* and only now it is */
	assert_int_equal(rig.submit_count, 1);
	assert_int_equal(rig.cancel_count, 1);
	assert_int_equal(rig.result[0].status, OKV_ERR_DEADLINE);
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
	assert_int_equal(rig.result[1].segments, 0); /* it had no plan of its own */
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
		cmocka_unit_test(at_the_deadline_the_caller_has_its_miss_and_the_read_is_called_off),
		cmocka_unit_test(a_deadline_before_the_read_is_submitted_calls_it_off_as_soon_as_it_is),
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
