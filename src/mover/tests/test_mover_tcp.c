/*
 * Two movers in one process over loopback, once with reads that the owner's thread receives (small), once with reads
 * that the mover's does (large). Every byte that lands is compared with the source's, and every digest with
 * one computed apart; each operation must end exactly once, whatever the other side does.
 */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#include <arpa/inet.h>
#include <fcntl.h>
#include <poll.h>
#include <pthread.h>
#include <sched.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <time.h>
#include <unistd.h>

#include <cmocka.h>

#include "internal.h"
#include "okv/base/clock.h"
#include "okv/base/cursor.h"
#include "okv/base/fault.h"
#include "okv/base/rng.h"
#include "okv/mover/mover.h"

enum { RANGES = 5 };
static const uint64_t sizes[RANGES] = {1, 4096, 368640, 77, 3000000};
static unsigned small = 4, large = RANGES; /* so many of them are read */

struct side {
	struct okv_mover *mover;
	uint8_t *memory;
	struct okv_mover_range range[RANGES];
};

struct pair {
	unsigned ranges;
	uint64_t total;
	struct side source, reader;
	struct okv_mover_token token;
};

static struct okv_mover *mover_with(const char *listen, const char *faults)
{
	struct okv_faults armed;
	struct okv_mover *mover;

	assert_int_equal(okv_faults_parse(faults, &armed, NULL), OKV_OK);
	struct okv_mover_options options = {.listen_address = listen, .connections = 2, .faults = &armed};
	assert_int_equal(okv_mover_create(&options, &mover, NULL), OKV_OK);
	return mover;
}

static void side_init(struct side *side, const char *listen, const char *faults)
{
	uint64_t total = 0;

	side->mover = mover_with(listen, faults);
	for (int i = 0; i < RANGES; i++)
		total += sizes[i];
	side->memory = calloc(1, total);
	assert_non_null(side->memory);
	uint8_t *at = side->memory;
	for (int i = 0; i < RANGES; i++) {
		side->range[i] = (struct okv_mover_range){.bytes = at, .size = sizes[i]};
		at += sizes[i];
	}
}

static void pair_init(struct pair *pair, unsigned ranges, const char *source_faults)
{
	struct okv_rng rng = okv_rng_seeded(7);

	pair->ranges = ranges;
	pair->total = 0;
	for (unsigned i = 0; i < ranges; i++)
		pair->total += sizes[i];

	side_init(&pair->source, "127.0.0.1", source_faults);
	side_init(&pair->reader, "", "");
	for (int i = 0; i < RANGES; i++)
		for (uint64_t j = 0; j < sizes[i]; j++)
			pair->source.range[i].bytes[j] = (uint8_t)okv_rng_next(&rng);
	okv_random_bytes(&pair->token, sizeof(pair->token));
}

static void pair_done(struct pair *pair)
{
	okv_mover_destroy(pair->reader.mover);
	okv_mover_destroy(pair->source.mover);
	free(pair->source.memory);
	free(pair->reader.memory);
}

static struct okv_mover_event next_event(struct okv_mover *mover)
{
	struct okv_mover_event event;

	while (!okv_mover_poll(mover, &event)) {
		struct pollfd wait = {.fd = okv_mover_wait_fd(mover), .events = POLLIN};

		assert_int_equal(poll(&wait, 1, 20000), 1);
	}
	return event;
}

/* The ENDED event of the read, with its landed ranges checked and counted. */
static struct okv_mover_event end_of_read(struct pair *pair, unsigned *ret_landed)
{
	*ret_landed = 0;
	for (;;) {
		struct okv_mover_event event = next_event(pair->reader.mover);

		if (event.kind == OKV_MOVER_READ_ENDED)
			return event;
		assert_int_equal(event.kind, OKV_MOVER_RANGE_LANDED);
		assert_int_equal(event.index, (*ret_landed)++);
		const struct okv_mover_range *source = &pair->source.range[event.index];
		struct okv_crc crc = okv_crc_of(source->bytes, source->size);
		assert_true(okv_crc_equal(&crc, &event.crc));
		assert_memory_equal(pair->reader.range[event.index].bytes, source->bytes, source->size);
	}
}

static uint64_t start_grant(struct pair *pair)
{
	uint64_t id;

	assert_int_equal(okv_mover_grant(pair->source.mover, &pair->token, pair->source.range, pair->ranges, &id),
			 OKV_OK);
	return id;
}

static uint64_t start_read_of(struct pair *pair, uint32_t ranges)
{
	uint64_t id;

	assert_int_equal(okv_mover_read(pair->reader.mover, "127.0.0.1", okv_mover_port(pair->source.mover),
					&pair->token, pair->reader.range, ranges, &id),
			 OKV_OK);
	return id;
}

static uint64_t start_read(struct pair *pair)
{
	return start_read_of(pair, pair->ranges);
}

/* As the owner does when the reader has released it. */
static struct okv_mover_event end_of_grant(struct pair *pair, uint64_t grant)
{
	okv_mover_grant_end(pair->source.mover, grant);
	return next_event(pair->source.mover);
}

/* One whole read, both ends. */
static void read_once(struct pair *pair)
{
	uint64_t grant, read;
	unsigned landed;

	memset(pair->reader.memory, 0, sizes[0]);
	grant = start_grant(pair);
	/* The token is told to the reader only after the grant was ordered, as the control connection does. */
	read = start_read(pair);

	struct okv_mover_event event = end_of_read(pair, &landed);
	assert_int_equal(event.id, read);
	assert_int_equal(event.status, OKV_OK);
	assert_int_equal(event.bytes, pair->total);
	assert_int_equal(landed, pair->ranges);

	event = end_of_grant(pair, grant);
	assert_int_equal(event.kind, OKV_MOVER_GRANT_ENDED);
	assert_int_equal(event.id, grant);
	assert_int_equal(event.status, OKV_OK);
	assert_int_equal(event.bytes, pair->total);
	assert_false(event.reader_gone);
}

static void a_read_lands_byte_for_byte_and_both_ends_get_their_memory_back(void **state)
{
	struct pair pair;

	pair_init(&pair, *(unsigned *)*state, "");
	for (int i = 0; i < 20; i++)
		read_once(&pair);
	pair_done(&pair);
}

static bool has_event(struct okv_mover *mover)
{
	pthread_mutex_lock(&mover->lock);
	bool found = !okv_list_is_empty(&mover->events);
	pthread_mutex_unlock(&mover->lock);
	return found;
}

static bool is_woken(struct okv_mover *mover, int wait_ms)
{
	struct pollfd wait = {.fd = okv_mover_wait_fd(mover), .events = POLLIN};

	return poll(&wait, 1, wait_ms) == 1;
}

/* The only event that there is. After it wait_fd is quiet until there is another one. */
static struct okv_mover_event only_event(struct okv_mover *mover)
{
	struct okv_mover_event event = next_event(mover), none;

	assert_false(okv_mover_poll(mover, &none));
	assert_false(is_woken(mover, 0));
	return event;
}

/* Reads a new grant of a few bytes to its end, as its reader sees it: the source may not know yet. */
static uint64_t read_to_the_end(struct pair *pair)
{
	uint64_t grant = start_grant(pair);
	struct okv_mover_event event;

	start_read(pair);
	do
		event = next_event(pair->reader.mover);
	while (event.kind != OKV_MOVER_READ_ENDED);
	assert_int_equal(event.status, OKV_OK);
	return grant;
}

static void who_asks_for_the_end_of_a_grant_that_was_read_is_told(void **state)
{
	struct pair pair;

	(void)state;
	pair_init(&pair, 1, "");
	for (unsigned i = 0; i < 200; i++) {
		uint64_t grant = read_to_the_end(&pair);

		/* Every other time it is at its end already, and else most likely not yet. */
		while (i % 2 && !has_event(pair.source.mover))
			sched_yield();
		assert_false(is_woken(pair.source.mover, 0));
		okv_mover_grant_end(pair.source.mover, grant);
		assert_true(is_woken(pair.source.mover, 20000));
		struct okv_mover_event event = only_event(pair.source.mover);
		assert_int_equal(event.id, grant);
		assert_int_equal(event.status, OKV_OK);
	}
	pair_done(&pair);
}

static void a_token_is_good_for_one_read(void **state)
{
	struct pair pair;
	unsigned landed;

	pair_init(&pair, *(unsigned *)*state, "");
	read_once(&pair);
	start_read(&pair);
	struct okv_mover_event event = end_of_read(&pair, &landed);
	assert_int_equal(event.status, OKV_ERR_ABSENT);
	assert_int_equal(landed, 0);
	pair_done(&pair);
}

static void a_token_is_good_for_no_second_read_while_the_first_runs(void **state)
{
	struct pair pair;
	struct okv_mover_event event;
	unsigned landed;

	pair_init(&pair, *(unsigned *)*state, "mover_stall_ms=60000");
	uint64_t grant = start_grant(&pair);
	start_read(&pair);
	assert_int_equal(next_event(pair.reader.mover).kind, OKV_MOVER_RANGE_LANDED); /* it is on its way */

	struct okv_mover *first = pair.reader.mover;
	pair.reader.mover = mover_with("", "");
	start_read(&pair);
	assert_int_equal(end_of_read(&pair, &landed).status, OKV_ERR_ABSENT);
	assert_int_equal(landed, 0);
	okv_mover_destroy(pair.reader.mover);
	pair.reader.mover = first;

	okv_mover_grant_end(pair.source.mover, grant); /* once, for the one reader */
	event = next_event(pair.source.mover);
	assert_int_equal(event.id, grant);
	assert_int_equal(event.status, OKV_ERR_CANCELLED);
	pair_done(&pair);
}

static void an_ended_grant_cannot_be_read(void **state)
{
	struct pair pair;
	unsigned landed;

	pair_init(&pair, *(unsigned *)*state, "");
	uint64_t grant = start_grant(&pair);
	okv_mover_grant_end(pair.source.mover, grant);
	okv_mover_grant_end(pair.source.mover, grant); /* asking twice is harmless */
	struct okv_mover_event event = next_event(pair.source.mover);
	assert_int_equal(event.kind, OKV_MOVER_GRANT_ENDED);
	assert_int_equal(event.status, OKV_ERR_CANCELLED);
	assert_int_equal(event.bytes, 0);
	okv_mover_grant_end(pair.source.mover, grant); /* and so is asking late */
	start_read(&pair);
	assert_int_equal(end_of_read(&pair, &landed).status, OKV_ERR_ABSENT);
	pair_done(&pair);
}

static void a_destination_of_another_size_is_refused_and_no_byte_counts(void **state)
{
	struct pair pair;
	unsigned landed;

	pair_init(&pair, *(unsigned *)*state, "");
	uint64_t grant = start_grant(&pair);
	struct okv_mover_event event;
	start_read_of(&pair, pair.ranges - 1);
	event = end_of_read(&pair, &landed);
	assert_int_equal(event.status, OKV_ERR_PROTOCOL);
	assert_int_equal(event.bytes, 0);
	event = end_of_grant(&pair, grant);
	assert_int_equal(event.id, grant);
	assert_true(event.status == OKV_ERR_DISCONNECTED || event.status == OKV_OK);
	pair_done(&pair);
}

/* Runs one read against a source with `faults`, cancels it if told to when its first byte is there, and gives its end,
 * and the end of the grant. */
static struct okv_mover_event read_with(unsigned ranges, const char *faults, bool cancel,
					struct okv_mover_event *ret_grant)
{
	struct pair pair;
	struct okv_mover_event event;

	pair_init(&pair, ranges, faults);
	uint64_t grant = start_grant(&pair), read = start_read(&pair);
	do {
		event = next_event(pair.reader.mover);
		if (cancel && event.kind == OKV_MOVER_RANGE_LANDED)
			okv_mover_read_cancel(pair.reader.mover, read);
	} while (event.kind != OKV_MOVER_READ_ENDED);
	*ret_grant = event.status == OKV_OK ? end_of_grant(&pair, grant) : next_event(pair.source.mover);
	assert_int_equal(ret_grant->kind, OKV_MOVER_GRANT_ENDED);
	pair_done(&pair);
	return event;
}

static void a_source_that_resets_mid_read_is_a_disconnection(void **state)
{
	struct okv_mover_event grant,
		read = read_with(*(unsigned *)*state, "mover_cut_after_bytes=200000", false, &grant);

	assert_int_equal(read.status, OKV_ERR_DISCONNECTED);
	assert_true(read.bytes <= 200000);
	assert_int_equal(grant.status, OKV_ERR_DISCONNECTED);
	assert_false(grant.reader_gone);
}

static void a_source_that_announces_a_wrong_length_is_refused(void **state)
{
	struct okv_mover_event grant, read = read_with(*(unsigned *)*state, "mover_short=1", false, &grant);

	assert_int_equal(read.status, OKV_ERR_PROTOCOL);
	assert_int_equal(read.bytes, 0);
}

static void a_stalled_read_goes_on_when_the_source_does(void **state)
{
	struct okv_mover_event grant, read = read_with(*(unsigned *)*state, "mover_stall_ms=100", false, &grant);

	assert_int_equal(read.status, OKV_OK);
	assert_int_equal(grant.status, OKV_OK);
}

static void a_cancelled_read_ends_at_once_and_the_source_sees_the_reader_go(void **state)
{
	uint64_t begun = okv_clock_now(okv_clock_boottime());
	struct okv_mover_event grant, read = read_with(*(unsigned *)*state, "mover_stall_ms=60000", true, &grant);

	assert_int_equal(read.status, OKV_ERR_CANCELLED);
	assert_true(grant.bytes <= 3372814 / 2);
	assert_int_equal(grant.status, OKV_ERR_DISCONNECTED);
	assert_true(grant.reader_gone);
	assert_true(okv_clock_now(okv_clock_boottime()) - begun < 30 * OKV_NS_PER_S);
}

static void faults_spare_the_reads_before_the_one_they_start_at(void **state)
{
	struct pair pair;
	unsigned landed;

	pair_init(&pair, *(unsigned *)*state, "mover_short=1,mover_fault_from=3");
	read_once(&pair);
	read_once(&pair);
	start_grant(&pair);
	start_read(&pair);
	struct okv_mover_event event = end_of_read(&pair, &landed);
	assert_int_equal(event.status, OKV_ERR_PROTOCOL);
	pair_done(&pair);
}

static void ending_a_grant_cuts_its_reader_off(void **state)
{
	struct pair pair;
	struct okv_mover_event event;
	pair_init(&pair, *(unsigned *)*state, "mover_stall_ms=60000");
	uint64_t grant = start_grant(&pair);
	start_read(&pair);
	assert_int_equal(next_event(pair.reader.mover).kind, OKV_MOVER_RANGE_LANDED); /* it is on its way */
	okv_mover_grant_end(pair.source.mover, grant);
	event = next_event(pair.source.mover);
	assert_int_equal(event.status, OKV_ERR_CANCELLED);
	assert_false(event.reader_gone);
	do
		event = next_event(pair.reader.mover);
	while (event.kind != OKV_MOVER_READ_ENDED);
	assert_int_equal(event.status, OKV_ERR_DISCONNECTED);
	pair_done(&pair);
}

static void nobody_listening_is_a_disconnection_and_a_bad_address_is_invalid(void **state)
{
	struct pair pair;
	unsigned landed;
	uint64_t id;

	pair_init(&pair, *(unsigned *)*state, "");
	uint16_t port = okv_mover_port(pair.source.mover);
	okv_mover_destroy(pair.source.mover);
	pair.source.mover = mover_with("", "");
	assert_int_equal(
		okv_mover_read(pair.reader.mover, "127.0.0.1", port, &pair.token, pair.reader.range, pair.ranges, &id),
		OKV_OK);
	assert_int_equal(end_of_read(&pair, &landed).status, OKV_ERR_DISCONNECTED);
	assert_int_equal(
		okv_mover_read(pair.reader.mover, "localhost", port, &pair.token, pair.reader.range, pair.ranges, &id),
		OKV_ERR_INVALID);
	pair_done(&pair);
}

static void more_reads_than_connections_all_end(void **state)
{
	enum { READS = 12 };
	struct pair pair;
	uint8_t *destination[READS];
	bool ended[READS + 1] = {false};
	uint64_t first = 0;

	pair_init(&pair, *(unsigned *)*state, "");
	for (int i = 0; i < READS; i++) {
		pair.token.bytes[0] = (uint8_t)i;
		start_grant(&pair);
	}
	for (int i = 0; i < READS; i++) {
		struct okv_mover_range range[RANGES];
		uint64_t id, total = 0;

		destination[i] = malloc(4000000);
		for (unsigned r = 0; r < pair.ranges; r++) {
			range[r] = (struct okv_mover_range){.bytes = destination[i] + total, .size = sizes[r]};
			total += sizes[r];
		}
		pair.token.bytes[0] = (uint8_t)i;
		assert_int_equal(okv_mover_read(pair.reader.mover, "127.0.0.1", okv_mover_port(pair.source.mover),
						&pair.token, range, pair.ranges, &id),
				 OKV_OK);
		if (i == 0)
			first = id;
		if (i == READS - 1)
			okv_mover_read_cancel(pair.reader.mover, id); /* most likely one that still waits */
	}
	for (int left = READS; left > 0;) {
		struct okv_mover_event event = next_event(pair.reader.mover);

		if (event.kind != OKV_MOVER_READ_ENDED)
			continue;
		left--;
		assert_false(ended[event.id - first]);
		ended[event.id - first] = true;
		/* The cancelled one may have been faster than its cancel. */
		assert_true(event.status == OKV_OK ||
			    (event.status == OKV_ERR_CANCELLED && event.id - first == READS - 1));
	}
	for (int i = 0; i < READS - 1; i++)
		assert_memory_equal(destination[i], pair.source.memory, 4096);
	for (int i = 0; i < READS; i++)
		free(destination[i]);
	pair_done(&pair); /* one grant is still out: destroy takes it back */
}

static void lost_connections_make_room_for_the_reads_that_wait(void **state)
{
	enum { READS = 7 };
	struct pair pair;

	pair_init(&pair, *(unsigned *)*state, "mover_cut_after_bytes=1000");
	for (int i = 0; i < READS; i++) {
		pair.token.bytes[0] = (uint8_t)i;
		start_grant(&pair);
		start_read(&pair);
	}
	for (int left = READS; left > 0;) {
		struct okv_mover_event event = next_event(pair.reader.mover);

		if (event.kind != OKV_MOVER_READ_ENDED)
			continue;
		assert_int_equal(event.status, OKV_ERR_DISCONNECTED);
		left--;
	}
	pair_done(&pair);
}

static void a_read_that_cannot_begin_tells_of_its_end(void **state)
{
	struct pair pair;
	uint64_t id;

	pair_init(&pair, *(unsigned *)*state, "");
	assert_int_equal(okv_mover_read(pair.reader.mover, "255.255.255.255", 1, &pair.token, pair.reader.range,
					pair.ranges, &id),
			 OKV_OK);
	assert_true(is_woken(pair.reader.mover, 20000));
	struct okv_mover_event event = only_event(pair.reader.mover);
	assert_int_equal(event.id, id);
	assert_int_equal(event.status, OKV_ERR_DISCONNECTED);
	pair_done(&pair);
}

static unsigned open_descriptors(void)
{
	unsigned count = 0;

	for (int fd = 0; fd < 256; fd++)
		count += fcntl(fd, F_GETFD) >= 0;
	return count;
}

static void destroy_in_the_middle_of_reads_leaves_nothing_behind(void **state)
{
	enum { READS = 4 };
	unsigned before = open_descriptors();
	struct pair pair;

	pair_init(&pair, *(unsigned *)*state, "mover_stall_ms=60000");
	for (int i = 0; i < READS; i++) { /* more than there are connections */
		pair.token.bytes[0] = (uint8_t)i;
		start_grant(&pair);
		start_read(&pair);
	}
	assert_int_equal(next_event(pair.reader.mover).kind, OKV_MOVER_RANGE_LANDED);
	pair_done(&pair);
	assert_int_equal(open_descriptors(), before);
}

/* A listener that accepts nothing by itself. */
static int listen_anywhere(uint16_t *ret_port)
{
	struct sockaddr_in at = {.sin_family = AF_INET, .sin_addr.s_addr = htonl(INADDR_LOOPBACK)};
	int fd = socket(AF_INET, SOCK_STREAM, 0);

	assert_int_equal(bind(fd, (struct sockaddr *)&at, sizeof(at)), 0);
	assert_int_equal(listen(fd, 4), 0);
	assert_int_equal(getsockname(fd, (struct sockaddr *)&at, &(socklen_t){sizeof(at)}), 0);
	*ret_port = ntohs(at.sin_port);
	return fd;
}

static unsigned connections_of_owner(const struct okv_mover *mover)
{
	unsigned count = 0;

	OKV_LIST_EACH(node, &mover->polled.connections)
	count++;
	return count;
}

static void the_owner_receives_what_fits_one_turn_over_so_many_connections(void **state)
{
	(void)state;
	struct okv_mover *mover = mover_with("", ""); /* two connections a peer */
	const unsigned expected[] = {0, 1, 2, 2};
	struct okv_mover_range range = {.bytes = malloc(OKV__POLLED_BYTES + 1), .size = OKV__POLLED_BYTES + 1};
	const struct okv_mover_token token = {{0}};
	uint16_t port;
	int listener = listen_anywhere(&port);
	uint64_t id;

	for (unsigned i = 0; i < 4; i++) {
		assert_int_equal(okv_mover_read(mover, "127.0.0.1", port, &token, &range, 1, &id), OKV_OK);
		assert_int_equal(connections_of_owner(mover), expected[i]);
		range.size = OKV__POLLED_BYTES;
	}
	okv_mover_destroy(mover);
	close(listener);
	free(range.bytes);
}

/* A small read, since the owner's own driver tells when it has seen the source hang up. */
static void an_idle_connection_that_the_source_closed_is_not_used_again(void **state)
{
	struct pair pair;
	struct okv_mover_event event;

	(void)state;
	pair_init(&pair, small, "");
	read_once(&pair);
	assert_false(okv_mover_poll(pair.reader.mover, &event));
	struct okv_mover_options options = {.listen_address = "127.0.0.1",
					    .listen_port = okv_mover_port(pair.source.mover)};
	okv_mover_destroy(pair.source.mover);
	assert_int_equal(okv_mover_create(&options, &pair.source.mover, NULL), OKV_OK);
	assert_true(is_woken(pair.reader.mover, 20000));
	assert_false(okv_mover_poll(pair.reader.mover, &event));
	assert_false(is_woken(pair.reader.mover, 0));
	read_once(&pair);
	pair_done(&pair);
}

/* --- a hostile or foreign other end ----------------------------------------------------------------------------- */

static int connect_to(uint16_t port)
{
	struct sockaddr_in at = {
		.sin_family = AF_INET, .sin_port = htons(port), .sin_addr.s_addr = htonl(INADDR_LOOPBACK)};
	int fd = socket(AF_INET, SOCK_STREAM, 0);

	assert_int_equal(connect(fd, (struct sockaddr *)&at, sizeof(at)), 0);
	return fd;
}

/* Sends a request and reads what comes: the status of the response, or -1 when the connection just ends. */
static int status_of_request(uint16_t port, uint32_t magic, uint16_t version, uint16_t type)
{
	uint8_t bytes[24] = {0};
	struct okv_writer writer = okv_writer_of(bytes, sizeof(bytes));
	int fd = connect_to(port);

	okv_write_u32(&writer, magic);
	okv_write_u16(&writer, version);
	okv_write_u16(&writer, type);
	assert_int_equal(write(fd, bytes, 24), 24);
	ssize_t got = recv(fd, bytes, 16, MSG_WAITALL);
	close(fd);
	if (got != 16)
		return -1;
	struct okv_reader reader = okv_reader_of(bytes + 6, 2);
	return okv_read_u16(&reader);
}

static void malformed_requests_are_refused_by_name(void **state)
{
	(void)state;
	struct okv_mover *mover = mover_with("127.0.0.1", "");
	uint16_t port = okv_mover_port(mover);

	assert_int_equal(status_of_request(port, 0x44564b4f, 1, 1), OKV_ERR_ABSENT);
	assert_int_equal(status_of_request(port, 0x44564b4f, 2, 1), OKV_ERR_VERSION);
	assert_int_equal(status_of_request(port, 0x44564b4f, 1, 9), OKV_ERR_PROTOCOL);
	assert_int_equal(status_of_request(port, 0x20544547, 1, 1), -1);
	okv_mover_destroy(mover);
}

/* The other end, in this process, of a connection. */
static int other_end(int fd)
{
	struct sockaddr_in mine, at;

	assert_int_equal(getsockname(fd, (struct sockaddr *)&mine, &(socklen_t){sizeof(mine)}), 0);
	for (int other = 3; other < 100; other++)
		if (getpeername(other, (struct sockaddr *)&at, &(socklen_t){sizeof(at)}) == 0 &&
		    memcmp(&at, &mine, sizeof(at)) == 0)
			return other;
	fail();
	return -1;
}

static void what_a_reader_sends_is_not_given_a_large_buffer(void **state)
{
	(void)state;
	struct okv_mover *mover = mover_with("127.0.0.1", "");
	int fd = connect_to(okv_mover_port(mover)), bytes = 0;
	uint8_t request[24] = "OKVD\1\0\1", response[16];

	assert_int_equal(write(fd, request, sizeof(request)), sizeof(request));
	assert_int_equal(recv(fd, response, sizeof(response), MSG_WAITALL), sizeof(response));
	assert_int_equal(getsockopt(other_end(fd), SOL_SOCKET, SO_RCVBUF, &bytes, &(socklen_t){sizeof(bytes)}), 0);
	assert_true(bytes < 1 << 20);
	close(fd);
	okv_mover_destroy(mover);
}

static void silent_connections_keep_no_reader_out(void **state)
{
	enum { CONNECTIONS = OKV__INBOUND_MAX + 20 };
	struct pair pair;
	int fd[CONNECTIONS];

	pair_init(&pair, *(unsigned *)*state, "");
	read_once(&pair);
	for (int i = 0; i < CONNECTIONS; i++) {
		fd[i] = connect_to(okv_mover_port(pair.source.mover));
		assert_int_equal(write(fd[i], "OKVD", (size_t)i % 5), i % 5); /* some begin to speak */
	}
	struct okv_mover *other = pair.reader.mover;
	read_once(&pair); /* on the connection that it has */
	pair.reader.mover = mover_with("", "");
	read_once(&pair); /* on a new one */
	okv_mover_destroy(other);
	for (int i = 0; i < CONNECTIONS; i++)
		close(fd[i]);
	pair_done(&pair);
}

/* Leaves this process `count` free descriptors. */
static struct rlimit leave_descriptors(unsigned count)
{
	struct rlimit before, tight;
	int next = dup(0);

	close(next);
	assert_int_equal(getrlimit(RLIMIT_NOFILE, &before), 0);
	tight = before;
	tight.rlim_cur = (rlim_t)next + count;
	assert_int_equal(setrlimit(RLIMIT_NOFILE, &tight), 0);
	return before;
}

static void without_descriptors_the_listener_waits_and_comes_back(void **state)
{
	(void)state;
	struct okv_mover *mover = mover_with("127.0.0.1", "");
	struct rlimit before = leave_descriptors(1);
	struct timespec begun, now;
	uint8_t request[24] = "OKVD\1\0\1", response[16];
	int fd = connect_to(okv_mover_port(mover)); /* takes the last one */

	assert_int_equal(clock_gettime(CLOCK_PROCESS_CPUTIME_ID, &begun), 0);
	poll(NULL, 0, 400);
	assert_int_equal(clock_gettime(CLOCK_PROCESS_CPUTIME_ID, &now), 0);
	assert_true((now.tv_sec - begun.tv_sec) * 1000 + (now.tv_nsec - begun.tv_nsec) / 1000000 < 200);
	assert_int_equal(setrlimit(RLIMIT_NOFILE, &before), 0);
	assert_int_equal(write(fd, request, sizeof(request)), sizeof(request));
	assert_int_equal(recv(fd, response, sizeof(response), MSG_WAITALL), sizeof(response));
	close(fd);
	okv_mover_destroy(mover);
}

static void without_descriptors_an_idle_connection_makes_room(void **state)
{
	(void)state;
	struct okv_mover *mover = mover_with("127.0.0.1", "");
	int idle = connect_to(okv_mover_port(mover));
	uint8_t request[24] = "OKVD\1\0\1", response[16];

	assert_int_equal(write(idle, request, sizeof(request)), sizeof(request));
	assert_int_equal(recv(idle, response, sizeof(response), MSG_WAITALL), sizeof(response));
	struct rlimit before = leave_descriptors(1);
	int fd = connect_to(okv_mover_port(mover));
	assert_int_equal(write(fd, request, sizeof(request)), sizeof(request));
	assert_int_equal(recv(fd, response, sizeof(response), MSG_WAITALL), sizeof(response));
	assert_int_equal(recv(idle, response, sizeof(response), MSG_WAITALL), 0);
	assert_int_equal(setrlimit(RLIMIT_NOFILE, &before), 0);
	close(fd);
	close(idle);
	okv_mover_destroy(mover);
}

/* A source that speaks by hand, and the mover that reads `memory` from it. */
struct impostor {
	struct okv_mover *mover;
	uint8_t memory[3 << 20];
	int fd;
};

/* Waits until `fd` is readable, while the mover does its part. */
static void drive_until_readable(struct okv_mover *mover, int fd)
{
	struct okv_mover_event event;
	struct pollfd wait[2] = {{.fd = fd, .events = POLLIN}, {.fd = okv_mover_wait_fd(mover), .events = POLLIN}};

	do {
		assert_false(okv_mover_poll(mover, &event));
		assert_true(poll(wait, 2, 20000) > 0);
	} while (!wait[0].revents);
}

static struct impostor *impostor_asked_for(uint64_t size)
{
	uint16_t port;
	int listener = listen_anywhere(&port);
	struct impostor *impostor = calloc(1, sizeof(*impostor));
	struct okv_mover_range range = {.bytes = impostor->memory, .size = size};
	struct okv_mover_token token = {{0}};
	uint8_t request[24];
	uint64_t id;

	impostor->mover = mover_with("", "");
	assert_int_equal(okv_mover_read(impostor->mover, "127.0.0.1", port, &token, &range, 1, &id), OKV_OK);
	impostor->fd = accept(listener, NULL, NULL);
	drive_until_readable(impostor->mover, impostor->fd);
	assert_int_equal(recv(impostor->fd, request, sizeof(request), MSG_WAITALL), 24);
	close(listener);
	return impostor;
}

static void impostor_done(struct impostor *impostor)
{
	okv_mover_destroy(impostor->mover);
	free(impostor);
}

/* How a read of `size` bytes ends when the source answers with these bytes and hangs up. */
static enum okv_status read_from_impostor(uint64_t size, const uint8_t *response, size_t response_size)
{
	struct impostor *impostor = impostor_asked_for(size);
	struct okv_mover_event event;

	assert_int_equal(write(impostor->fd, response, response_size), (ssize_t)response_size);
	close(impostor->fd);
	do
		event = next_event(impostor->mover);
	while (event.kind != OKV_MOVER_READ_ENDED);
	impostor_done(impostor);
	return event.status;
}

static void response_header(uint8_t *bytes, enum okv_status status, uint64_t size)
{
	struct okv_writer writer = okv_writer_of(bytes, 16);

	okv_write_u32(&writer, OKV__DATA_MAGIC);
	okv_write_u16(&writer, OKV__DATA_VERSION);
	okv_write_u16(&writer, (uint16_t)status);
	okv_write_u64(&writer, size);
}

static void malformed_responses_are_refused_by_name(void **state)
{
	const uint64_t size = *(unsigned *)*state == small ? 100 : 3 << 20;
	uint8_t response[40] = {0};

	response_header(response, OKV_OK, size);
	assert_int_equal(read_from_impostor(size, response, 16), OKV_ERR_DISCONNECTED); /* header, no bytes */
	assert_int_equal(read_from_impostor(size, response, 7), OKV_ERR_DISCONNECTED);
	response_header(response, OKV_OK, size + 1);
	assert_int_equal(read_from_impostor(size, response, 16), OKV_ERR_PROTOCOL);
	assert_int_equal(read_from_impostor(size, response, 40), OKV_ERR_PROTOCOL); /* bytes behind it */
	response_header(response, OKV_OK, UINT64_MAX);
	assert_int_equal(read_from_impostor(size, response, 16), OKV_ERR_PROTOCOL);
	response_header(response, OKV_ERR_ABSENT, 0);
	assert_int_equal(read_from_impostor(size, response, 16), OKV_ERR_ABSENT);
	assert_int_equal(read_from_impostor(size, response, 40), OKV_ERR_PROTOCOL);
	response_header(response, OKV_ERR_ABSENT, size);
	assert_int_equal(read_from_impostor(size, response, 16), OKV_ERR_PROTOCOL);
	response_header(response, OKV_ERR_VERSION, 0);
	assert_int_equal(read_from_impostor(size, response, 16), OKV_ERR_VERSION);
	response_header(response, OKV_OK, size);
	response[4] = 2;
	assert_int_equal(read_from_impostor(size, response, 16), OKV_ERR_VERSION);
	response[0] = 'X';
	assert_int_equal(read_from_impostor(size, response, 16), OKV_ERR_PROTOCOL);
}

static void a_response_in_pieces_is_put_together(void **state)
{
	const uint64_t size = *(unsigned *)*state == small ? 100 : 3 << 20;
	struct impostor *impostor = impostor_asked_for(size);
	uint8_t *response = calloc(1, 16 + size);
	const size_t pieces[] = {1, 15, 16, 17, 18, 90, 16 + size};
	struct okv_mover_event event;
	size_t sent = 0;

	response_header(response, OKV_OK, size);
	for (uint64_t i = 0; i < size; i++)
		response[16 + i] = (uint8_t)(i * 7);
	for (size_t i = 0; i < sizeof(pieces) / sizeof(*pieces); i++) {
		assert_false(okv_mover_poll(impostor->mover, &event));
		while (sent < pieces[i]) {
			ssize_t done = send(impostor->fd, response + sent, pieces[i] - sent, MSG_DONTWAIT);

			if (done > 0)
				sent += (size_t)done;
			else
				assert_false(okv_mover_poll(impostor->mover, &event));
		}
		if (sent < 16 + size)
			poll(NULL, 0, 2); /* so that the piece is taken alone */
	}
	event = next_event(impostor->mover);
	assert_int_equal(event.kind, OKV_MOVER_RANGE_LANDED);
	struct okv_crc crc = okv_crc_of(response + 16, size);
	assert_true(okv_crc_equal(&crc, &event.crc));
	assert_memory_equal(impostor->memory, response + 16, size);
	event = next_event(impostor->mover);
	assert_int_equal(event.kind, OKV_MOVER_READ_ENDED);
	assert_int_equal(event.status, OKV_OK);
	close(impostor->fd);
	impostor_done(impostor);
	free(response);
}

static void an_address_that_cannot_be_listened_on_is_refused(void **state)
{
	(void)state;
	struct okv_mover *first = mover_with("127.0.0.1", ""), *second = NULL;
	struct okv_reason reason;
	struct okv_mover_options options = {.listen_address = "127.0.0.1", .listen_port = okv_mover_port(first)};

	assert_int_not_equal(okv_mover_create(&options, &second, &reason), OKV_OK);
	assert_string_equal(reason.field, "listen");
	options.listen_address = "not-an-address";
	assert_int_equal(okv_mover_create(&options, &second, &reason), OKV_ERR_INVALID);
	assert_null(second);
	okv_mover_destroy(first);
	okv_mover_destroy(NULL);
}

/* A test once with small reads and once with large ones. */
#define BOTH(test)                                                                                                     \
	{#test " (small)", test, NULL, NULL, &small},                                                                  \
	{                                                                                                              \
#test " (large)", test, NULL, NULL, &large                                                             \
	}

int main(void)
{
	const struct CMUnitTest tests[] = {
		BOTH(a_read_lands_byte_for_byte_and_both_ends_get_their_memory_back),
		cmocka_unit_test(who_asks_for_the_end_of_a_grant_that_was_read_is_told),
		BOTH(a_token_is_good_for_one_read),
		BOTH(a_token_is_good_for_no_second_read_while_the_first_runs),
		BOTH(an_ended_grant_cannot_be_read),
		BOTH(a_destination_of_another_size_is_refused_and_no_byte_counts),
		BOTH(a_source_that_resets_mid_read_is_a_disconnection),
		BOTH(a_source_that_announces_a_wrong_length_is_refused),
		BOTH(a_stalled_read_goes_on_when_the_source_does),
		BOTH(a_cancelled_read_ends_at_once_and_the_source_sees_the_reader_go),
		BOTH(faults_spare_the_reads_before_the_one_they_start_at),
		BOTH(ending_a_grant_cuts_its_reader_off),
		BOTH(nobody_listening_is_a_disconnection_and_a_bad_address_is_invalid),
		BOTH(more_reads_than_connections_all_end),
		BOTH(lost_connections_make_room_for_the_reads_that_wait),
		BOTH(a_read_that_cannot_begin_tells_of_its_end),
		BOTH(destroy_in_the_middle_of_reads_leaves_nothing_behind),
		cmocka_unit_test(the_owner_receives_what_fits_one_turn_over_so_many_connections),
		cmocka_unit_test(an_idle_connection_that_the_source_closed_is_not_used_again),
		cmocka_unit_test(malformed_requests_are_refused_by_name),
		BOTH(malformed_responses_are_refused_by_name),
		BOTH(a_response_in_pieces_is_put_together),
		cmocka_unit_test(what_a_reader_sends_is_not_given_a_large_buffer),
		BOTH(silent_connections_keep_no_reader_out),
		cmocka_unit_test(without_descriptors_the_listener_waits_and_comes_back),
		cmocka_unit_test(without_descriptors_an_idle_connection_makes_room),
		cmocka_unit_test(an_address_that_cannot_be_listened_on_is_refused),
	};
	return cmocka_run_group_tests_name("mover_tcp", tests, NULL, NULL);
}
