/* The loop under a virtual clock, without threads. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <string.h>

#include <cmocka.h>

#include <netinet/in.h>
#include <signal.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <unistd.h>

#include "okv/base/rng.h"
#include "okv/loop/acceptor.h"
#include "okv/loop/loop.h"

struct fixture {
	uint64_t now_ns;
	struct okv_loop *loop;
};

static int open_loop(void **state)
{
	static struct fixture fixture;
	struct okv_reason reason;

	fixture = (struct fixture){.now_ns = 1000};
	*state = &fixture;
	return okv_loop_create(okv_clock_virtual(&fixture.now_ns), &fixture.loop, &reason) == OKV_OK ? 0 : -1;
}

static int close_loop(void **state)
{
	struct fixture *fixture = *state;

	okv_loop_destroy(fixture->loop);
	return 0;
}

struct ticker {
	struct fixture *fixture;
	struct okv_timer timer;
	unsigned fired;
	uint64_t fired_at_ns, again_ns;
};

static void on_tick(void *context)
{
	struct ticker *ticker = context;

	ticker->fired++;
	ticker->fired_at_ns = ticker->fixture->now_ns;
	if (ticker->again_ns)
		okv_timer_start(&ticker->timer, ticker->fixture->now_ns + ticker->again_ns);
}

static void timers_fire_in_order_of_their_deadlines(void **state)
{
	struct fixture *fixture = *state;
	struct ticker tickers[64];
	struct okv_rng rng = okv_rng_seeded(3);

	for (int i = 0; i < 64; i++) {
		tickers[i] = (struct ticker){.fixture = fixture};
		okv_timer_init(&tickers[i].timer, fixture->loop, on_tick, &tickers[i]);
		okv_timer_start(&tickers[i].timer, 5000);
		okv_timer_start(&tickers[i].timer, 1001 + okv_rng_below(&rng, 200)); /* a restart moves it */
	}
	okv_loop_turn(fixture->loop);
	for (int i = 0; i < 64; i++)
		assert_int_equal(tickers[i].fired, 0);
	while (fixture->now_ns < 1300) {
		fixture->now_ns++;
		okv_loop_turn(fixture->loop);
	}
	for (int i = 0; i < 64; i++) {
		assert_int_equal(tickers[i].fired, 1);
		assert_int_equal(tickers[i].fired_at_ns, tickers[i].timer.deadline_ns);
		assert_false(okv_timer_is_running(&tickers[i].timer));
	}
}

static void a_stopped_timer_never_fires_and_one_can_start_itself_again(void **state)
{
	struct fixture *fixture = *state;
	struct ticker stopped = {.fixture = fixture}, again = {.fixture = fixture, .again_ns = 10};

	okv_timer_stop(&stopped.timer); /* not even initialised */
	okv_timer_init(&stopped.timer, fixture->loop, on_tick, &stopped);
	okv_timer_init(&again.timer, fixture->loop, on_tick, &again);
	okv_timer_start(&stopped.timer, 1001);
	okv_timer_start(&again.timer, 0);
	okv_timer_stop(&stopped.timer);
	for (int i = 0; i < 5; i++) {
		okv_loop_turn(fixture->loop);
		fixture->now_ns += 10;
	}
	assert_int_equal(stopped.fired, 0);
	assert_int_equal(again.fired, 5);
	okv_timer_stop(&again.timer);
}

struct stopper {
	struct okv_timer timer, *other;
};

static void on_stopper(void *context)
{
	struct stopper *stopper = context;

	okv_timer_stop(stopper->other);
}

static void a_timer_may_stop_another_that_is_due_with_it(void **state)
{
	struct fixture *fixture = *state;
	struct ticker victim = {.fixture = fixture};
	struct stopper stopper = {.other = &victim.timer};

	okv_timer_init(&victim.timer, fixture->loop, on_tick, &victim);
	okv_timer_init(&stopper.timer, fixture->loop, on_stopper, &stopper);
	okv_timer_start(&stopper.timer, 900);
	okv_timer_start(&victim.timer, 901);
	okv_loop_turn(fixture->loop);
	assert_int_equal(victim.fired, 0);
}

struct seen {
	unsigned readable, writable;
	struct okv_watch *watch;
	bool destroys_itself;
};

static void on_ready(void *context, bool readable, bool writable)
{
	struct seen *seen = context;

	seen->readable += readable;
	seen->writable += writable;
	if (seen->destroys_itself) {
		okv_watch_destroy(seen->watch);
		seen->watch = NULL;
	}
}

static void a_watch_reports_what_was_asked_for(void **state)
{
	struct fixture *fixture = *state;
	struct okv_reason reason;
	struct seen seen = {0};
	int pair[2];

	assert_int_equal(socketpair(AF_UNIX, SOCK_STREAM | SOCK_NONBLOCK, 0, pair), 0);
	assert_int_equal(okv_watch_create(fixture->loop, pair[0], on_ready, &seen, &seen.watch, &reason), OKV_OK);
	okv_loop_turn(fixture->loop);
	assert_int_equal(seen.readable + seen.writable, 0);
	okv_watch_set(seen.watch, false, true);
	okv_loop_turn(fixture->loop);
	assert_int_equal(seen.writable, 1);
	okv_watch_set(seen.watch, true, false);
	okv_watch_set(seen.watch, true, false);
	okv_loop_turn(fixture->loop);
	assert_int_equal(seen.readable, 0);
	assert_int_equal(write(pair[1], "x", 1), 1);
	okv_loop_turn(fixture->loop);
	okv_loop_turn(fixture->loop);
	assert_int_equal(seen.readable, 2); /* level-triggered: nobody has read it */
	okv_watch_set(seen.watch, false, false);
	okv_loop_turn(fixture->loop);
	assert_int_equal(seen.readable, 2);
	okv_watch_set(seen.watch, true, false);
	seen.destroys_itself = true;
	okv_loop_turn(fixture->loop);
	assert_null(seen.watch);
	close(pair[0]);
	close(pair[1]);
	okv_watch_destroy(NULL);
}

static void close_and_count(void *context, int fd)
{
	(*(unsigned *)context)++;
	close(fd);
}

static int connect_to(uint16_t port)
{
	struct sockaddr_in address = {.sin_family = AF_INET, .sin_port = htons(port)};
	int fd = socket(AF_INET, SOCK_STREAM, 0);

	address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
	assert_int_equal(connect(fd, (struct sockaddr *)&address, sizeof(address)), 0);
	return fd;
}

static void without_descriptors_an_acceptor_rests_and_comes_back(void **state)
{
	struct fixture *fixture = *state;
	struct okv_acceptor acceptor = {0};
	struct rlimit before, tight;
	unsigned came = 0;
	uint16_t port;
	int fd, client;

	okv_acceptor_stop(&acceptor);
	assert_int_equal(okv_tcp_listen("here", "127.0.0.1", 0, &fd, &port, NULL), OKV_OK);
	assert_int_equal(okv_acceptor_start(&acceptor, fixture->loop, fd, close_and_count, &came, NULL), OKV_OK);
	client = connect_to(port);
	okv_loop_turn(fixture->loop);
	assert_int_equal(came, 1);

	close(client);
	client = connect_to(port);
	assert_int_equal(getrlimit(RLIMIT_NOFILE, &before), 0);
	tight = before;
	tight.rlim_cur = (rlim_t)client + 1; /* nothing is free below it */
	assert_int_equal(setrlimit(RLIMIT_NOFILE, &tight), 0);
	okv_loop_turn(fixture->loop);
	assert_int_equal(setrlimit(RLIMIT_NOFILE, &before), 0);
	okv_loop_turn(fixture->loop);
	assert_int_equal(came, 1); /* it rests, though the socket is readable */
	fixture->now_ns += OKV_NS_PER_S;
	okv_loop_turn(fixture->loop);
	okv_loop_turn(fixture->loop);
	assert_int_equal(came, 2);

	close(client);
	okv_acceptor_stop(&acceptor);
	close(fd);
}

static void count_run(void *context)
{
	(*(unsigned *)context)++;
}

static void a_posted_task_runs_once_in_the_next_turn(void **state)
{
	struct fixture *fixture = *state;
	unsigned runs = 0;
	struct okv_task task = {.run = count_run, .context = &runs}, other = task;

	okv_loop_post(fixture->loop, &task);
	okv_loop_post(fixture->loop, &other);
	assert_int_equal(runs, 0);
	okv_loop_turn(fixture->loop);
	assert_int_equal(runs, 2);
	okv_loop_turn(fixture->loop);
	assert_int_equal(runs, 2);
	okv_loop_post(fixture->loop, &task);
	okv_loop_turn(fixture->loop);
	assert_int_equal(runs, 3);
	okv_loop_post(fixture->loop, &task); /* dropped with the loop */
}

static void stop_loop(void *context)
{
	okv_loop_stop(context);
}

static void run_ends_at_a_stop_and_can_be_repeated(void **state)
{
	struct fixture *fixture = *state;
	struct okv_task task = {.run = stop_loop, .context = fixture->loop};

	okv_loop_stop(fixture->loop);
	okv_loop_run(fixture->loop);
	okv_loop_post(fixture->loop, &task);
	okv_loop_run(fixture->loop);
}

static void on_signal(void *context, int signal)
{
	*(int *)context = signal;
}

static void signals_arrive_as_calls(void **state)
{
	struct fixture *fixture = *state;
	struct okv_reason reason;
	int seen = 0;

	assert_int_equal(okv_loop_catch_signals(fixture->loop, on_signal, &seen, &reason), OKV_OK);
	raise(SIGTERM);
	okv_loop_turn(fixture->loop);
	assert_int_equal(seen, SIGTERM);
	raise(SIGINT);
	okv_loop_turn(fixture->loop);
	assert_int_equal(seen, SIGINT);
}

static void a_real_clock_wakes_a_waiting_loop(void **state)
{
	struct okv_reason reason;
	struct okv_loop *loop;
	struct okv_timer timer;
	struct okv_clock clock = okv_clock_boottime();

	(void)state;
	assert_int_equal(okv_loop_create(clock, &loop, &reason), OKV_OK);
	okv_timer_init(&timer, loop, stop_loop, loop);
	uint64_t deadline_ns = okv_clock_now(clock) + 3 * OKV_NS_PER_MS;
	okv_timer_start(&timer, deadline_ns);
	okv_loop_run(loop);
	assert_true(okv_loop_now_ns(loop) >= deadline_ns);
	okv_loop_destroy(loop);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test_setup_teardown(timers_fire_in_order_of_their_deadlines, open_loop, close_loop),
		cmocka_unit_test_setup_teardown(a_stopped_timer_never_fires_and_one_can_start_itself_again, open_loop,
						close_loop),
		cmocka_unit_test_setup_teardown(a_timer_may_stop_another_that_is_due_with_it, open_loop, close_loop),
		cmocka_unit_test_setup_teardown(a_watch_reports_what_was_asked_for, open_loop, close_loop),
		cmocka_unit_test_setup_teardown(without_descriptors_an_acceptor_rests_and_comes_back, open_loop,
						close_loop),
		cmocka_unit_test_setup_teardown(a_posted_task_runs_once_in_the_next_turn, open_loop, close_loop),
		cmocka_unit_test_setup_teardown(run_ends_at_a_stop_and_can_be_repeated, open_loop, close_loop),
		cmocka_unit_test_setup_teardown(signals_arrive_as_calls, open_loop, close_loop),
		cmocka_unit_test(a_real_clock_wakes_a_waiting_loop),
	};
	return cmocka_run_group_tests_name("loop", tests, NULL, NULL);
}
