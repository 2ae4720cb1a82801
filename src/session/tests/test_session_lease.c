/*
 * Leases: the decision table of lease.h, then every sequence of six events on one lease against an oracle that knows
 * only history.
 */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "okv/session/lease.h"

static struct okv_leases *leases_of(uint64_t limit_bytes)
{
	struct okv_leases *leases = calloc(1, sizeof(*leases));

	assert_non_null(leases);
	leases->limit_bytes = limit_bytes;
	return leases;
}

static uint64_t opened(struct okv_leases *leases, uint64_t session, uint64_t bytes)
{
	uint64_t id;

	assert_int_equal(okv_lease_open(leases, session, bytes, &id), OKV_OK);
	assert_true(id != 0);
	return id;
}

static void a_closed_socket_alone_never_ends_an_active_lease(void **state)
{
	(void)state;
	struct okv_leases *leases = leases_of(100);
	uint64_t id = opened(leases, 1, 40);

	assert_int_equal(okv_lease_ready(leases, id, 40), OKV_OK);
	assert_int_equal(okv_lease_activate(leases, 1, id), OKV_OK);
	assert_false(okv_lease_orphan(leases, id, false));
	assert_false(okv_lease_orphan(leases, id, false));
	assert_int_equal(leases->held_bytes, 40);
	assert_int_equal(leases->count[OKV_LEASE_QUARANTINED], 1);
	assert_int_equal(okv_lease_release(leases, 1, id), OKV_ERR_BUSY); /* its session is gone */
	assert_true(okv_lease_orphan(leases, id, true));		  /* L1 */
	assert_int_equal(leases->held_bytes, 0);
	free(leases);
}

static void an_id_is_never_used_twice_and_a_late_one_changes_nothing(void **state)
{
	(void)state;
	struct okv_leases *leases = leases_of(100);
	uint64_t first = opened(leases, 1, 10), later = 0;

	okv_lease_drop(leases, first);
	for (int i = 0; i < OKV_LEASES; i++) {
		later = opened(leases, 1, 1);
		assert_true(later != first);
		if (i < OKV_LEASES - 1)
			okv_lease_drop(leases, later);
	}
	assert_int_equal(okv_lease_index(later), okv_lease_index(first));
	assert_int_equal(okv_lease_ready(leases, later, 1), OKV_OK);
	assert_int_equal(okv_lease_release(leases, 1, first), OKV_ERR_STALE); /* L2 */
	assert_int_equal(okv_lease_activate(leases, 1, later + OKV_LEASES), OKV_ERR_AHEAD);
	assert_int_equal(okv_lease_activate(leases, 1, 0), OKV_ERR_AHEAD);
	assert_int_equal(okv_lease_release(leases, 2, later), OKV_ERR_PERMISSION); /* L3 */
	assert_int_equal(okv_lease_cancel(leases, 2, later), OKV_ERR_PERMISSION);
	assert_int_equal(leases->held_bytes, 1);
	assert_int_equal(okv_lease_release(leases, 1, later), OKV_OK);
	free(leases);
}

static void budget_and_counts_are_limits(void **state)
{
	(void)state;
	struct okv_leases *leases = leases_of(2000);
	uint64_t id, big = opened(leases, 1, 1500);

	assert_int_equal(okv_lease_open(leases, 2, 501, &id), OKV_ERR_BUDGET); /* L4 */
	assert_int_equal(okv_lease_open(leases, 2, UINT64_MAX, &id), OKV_ERR_BUDGET);
	assert_int_equal(okv_lease_ready(leases, big, 10), OKV_OK); /* less came than was asked for */
	assert_int_equal(leases->held_bytes, 10);
	for (int i = 0; i < OKV_LEASES_PER_SESSION; i++)
		opened(leases, 2, 1);
	assert_int_equal(okv_lease_open(leases, 2, 1, &id), OKV_ERR_BUSY);
	for (uint64_t session = 3; okv_lease_open(leases, session, 0, &id) == OKV_OK;)
		session += leases->count[OKV_LEASE_PREPARING] % 100 == 0;
	assert_int_equal(leases->count[OKV_LEASE_PREPARING] + leases->count[OKV_LEASE_READY], OKV_LEASES);

	unsigned ended = 0;
	for (uint64_t at = okv_lease_next(leases, 2, 0); at; at = okv_lease_next(leases, 2, at), ended++)
		okv_lease_drop(leases, at);
	assert_int_equal(ended, OKV_LEASES_PER_SESSION);
	free(leases);
}

enum event { OPEN, READY, DROP, CANCEL, ACTIVATE, RELEASE, SOCKET_CLOSED, PROCESS_DEAD, EVENTS };

/* What history alone says about the one lease. */
struct oracle {
	uint64_t id; /* 0 before the first open */
	bool is_over, is_ready, is_unwanted, is_told, is_closed;
};

static void expect_free(const struct okv_leases *leases, struct oracle *oracle)
{
	oracle->is_over = true;
	assert_int_equal(leases->held_bytes, 0);
}

static void owner_event(struct okv_leases *leases, struct oracle *oracle, enum event event)
{
	if (event == READY && !oracle->is_ready) {
		assert_int_equal(okv_lease_ready(leases, oracle->id, 5),
				 oracle->is_unwanted ? OKV_ERR_CANCELLED : OKV_OK);
		oracle->is_ready = true;
		if (oracle->is_unwanted)
			expect_free(leases, oracle);
	} else if (event == DROP && !oracle->is_ready) {
		okv_lease_drop(leases, oracle->id);
		expect_free(leases, oracle);
	} else if (event == SOCKET_CLOSED || event == PROCESS_DEAD) {
		bool may_be_read = oracle->is_told && event != PROCESS_DEAD;
		bool is_freed = okv_lease_orphan(leases, oracle->id, event == PROCESS_DEAD);

		assert_int_equal(is_freed, oracle->is_ready && !may_be_read);
		oracle->is_closed = true;
		oracle->is_unwanted |= !oracle->is_ready;
		if (is_freed)
			expect_free(leases, oracle);
	}
}

static void client_event(struct okv_leases *leases, struct oracle *oracle, enum event event)
{
	enum okv_status status = event == CANCEL     ? okv_lease_cancel(leases, 1, oracle->id)
				 : event == ACTIVATE ? okv_lease_activate(leases, 1, oracle->id)
						     : okv_lease_release(leases, 1, oracle->id);

	if (oracle->id == 0) {
		assert_int_equal(status, OKV_ERR_AHEAD);
	} else if (oracle->is_over) {
		assert_int_equal(status, OKV_ERR_STALE);
	} else if (event == CANCEL) {
		bool is_allowed = !oracle->is_ready && !oracle->is_unwanted;

		assert_int_equal(status, is_allowed ? OKV_OK : OKV_ERR_BUSY);
		oracle->is_unwanted |= is_allowed;
	} else if (!oracle->is_ready || oracle->is_closed) {
		assert_int_equal(status, OKV_ERR_BUSY);
	} else if (event == ACTIVATE) {
		assert_int_equal(status, oracle->is_told ? OKV_ERR_EXISTS : OKV_OK);
		oracle->is_told = true;
	} else {
		assert_int_equal(status, OKV_OK);
		expect_free(leases, oracle);
	}
}

static void every_sequence_of_six_events_agrees_with_history(void **state)
{
	(void)state;
	enum { LENGTH = 6 };
	struct okv_leases *leases = leases_of(10);
	int events[LENGTH] = {0};

	for (;;) {
		struct oracle oracle = {0};
		int i = 0;

		memset(&leases->lease[0], 0, sizeof(leases->lease[0]));
		memset(leases->count, 0, sizeof(leases->count));
		leases->held_bytes = leases->next = 0;
		for (int at = 0; at < LENGTH; at++) {
			enum event event = (enum event)events[at];

			if (event == OPEN) {
				if (oracle.id == 0)
					oracle.id = opened(leases, 1, 10);
			} else if (event == CANCEL || event == ACTIVATE || event == RELEASE) {
				client_event(leases, &oracle, event);
			} else if (oracle.id && !oracle.is_over) {
				owner_event(leases, &oracle, event);
			}
			if (oracle.id && !oracle.is_over)
				assert_int_equal(leases->held_bytes, oracle.is_ready ? 5 : 10); /* L4 */
		}
		while (i < LENGTH && ++events[i] == EVENTS)
			events[i++] = 0;
		if (i == LENGTH)
			break;
	}
	free(leases);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(a_closed_socket_alone_never_ends_an_active_lease),
		cmocka_unit_test(an_id_is_never_used_twice_and_a_late_one_changes_nothing),
		cmocka_unit_test(budget_and_counts_are_limits),
		cmocka_unit_test(every_sequence_of_six_events_agrees_with_history),
	};
	return cmocka_run_group_tests_name("session_lease", tests, NULL, NULL);
}
