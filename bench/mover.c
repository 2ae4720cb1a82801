/*
 * okv-bench-mover: how fast a verified READ is, from the call to the digest of the last byte.
 *
 * Two processes, a mover in each, over loopback: the source grants the same warm memory under one token a sample, the
 * reader reads it into warm memory of its own and compares the XXH3-128 that its mover computed on the way. To be held
 * against okv-bench-socket of the same run. A sample is the time from okv_mover_read() to READ_ENDED in the owner's
 * hands.
 *
 *   okv-bench-mover SAMPLES BYTES...
 *
 * Prints one JSON object a size and placement: bytes, placement, samples_ns.
 */
#include <poll.h>
#include <signal.h>
#include <stdbool.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <unistd.h>

#include "okv/base/digest.h"
#include "okv/mover/mover.h"
#include "source_and_reader.h"

enum { SAMPLES_MAX = 1000, WARM_UP = 5, SIZES_MAX = 16 };

static _Noreturn void fail(const char *what)
{
	fprintf(stderr, "okv-bench-mover: %s\n", what);
	exit(1);
}

/* Sample `sample` of size number `size`. Nobody else is on this loopback. */
static struct okv_mover_token token_of(unsigned size, unsigned sample)
{
	struct okv_mover_token token = {{0}};

	memcpy(token.bytes, &size, sizeof(size));
	memcpy(token.bytes + 4, &sample, sizeof(sample));
	return token;
}

static struct okv_mover *mover_with(const char *listen_address)
{
	const struct okv_mover_options options = {.listen_address = listen_address};
	struct okv_mover *mover;
	struct okv_reason reason;

	if (okv_mover_create(&options, &mover, &reason) != OKV_OK)
		fail(reason.text);
	return mover;
}

static struct okv_mover_event next_event(struct okv_mover *mover)
{
	struct okv_mover_event event;

	while (!okv_mover_poll(mover, &event)) {
		struct pollfd wait = {.fd = okv_mover_wait_fd(mover), .events = POLLIN};

		if (poll(&wait, 1, -1) < 0)
			fail("poll");
	}
	return event;
}

/* Grants everything beforehand, says its port, and stays until it is killed. */
static _Noreturn void serve(int to_reader, const uint64_t *sizes, unsigned size_count, unsigned samples,
			    struct okv_mover_range memory)
{
	struct okv_mover *mover = mover_with("127.0.0.1");
	uint16_t port = okv_mover_port(mover);

	for (unsigned size = 0; size < size_count; size++) {
		for (unsigned i = 0; i < samples + WARM_UP; i++) {
			const struct okv_mover_range range = {.bytes = memory.bytes, .size = sizes[size]};
			const struct okv_mover_token token = token_of(size, i);
			uint64_t id;

			if (okv_mover_grant(mover, &token, &range, 1, &id) != OKV_OK)
				fail("cannot grant");
		}
	}
	if (write(to_reader, &port, sizeof(port)) != sizeof(port))
		fail("cannot say the port");
	for (;;)
		(void)next_event(mover);
}

static uint64_t read_once(struct okv_mover *mover, uint16_t port, struct okv_mover_token token,
			  struct okv_mover_range range, const struct okv_crc *expected)
{
	struct okv_mover_event event;
	uint64_t begin_ns = now_ns(), id;
	bool is_verified = false;

	if (okv_mover_read(mover, "127.0.0.1", port, &token, &range, 1, &id) != OKV_OK)
		fail("cannot read");
	while ((event = next_event(mover)).kind != OKV_MOVER_READ_ENDED)
		is_verified = okv_crc_equal(&event.crc, expected);
	uint64_t end_ns = now_ns();
	if (event.status != OKV_OK || !is_verified)
		fail("a read went wrong");
	return end_ns - begin_ns;
}

static void measure(enum placement placement, uint16_t port, const uint64_t *sizes, unsigned size_count,
		    unsigned samples, const uint8_t *source, struct okv_mover_range destination)
{
	struct okv_mover *mover = mover_with("");

	for (unsigned size = 0; size < size_count; size++) {
		struct okv_crc expected = okv_crc_of(source, sizes[size]);
		const struct okv_mover_range range = {.bytes = destination.bytes, .size = sizes[size]};

		for (unsigned i = 0; i < samples + WARM_UP; i++) {
			uint64_t took_ns = read_once(mover, port, token_of(size, i), range, &expected);

			if (i == WARM_UP)
				printf("{\"bytes\": %llu, \"placement\": \"%s\", \"samples_ns\": [%llu",
				       (unsigned long long)sizes[size], placement_name[placement],
				       (unsigned long long)took_ns);
			else if (i > WARM_UP)
				printf(", %llu", (unsigned long long)took_ns);
		}
		printf("]}\n");
	}
	fflush(stdout); /* or the next source would inherit it */
	okv_mover_destroy(mover);
}

/* A source in a process of its own and a reader in this one. */
static void measure_placement(enum placement placement, const cpu_set_t *allowed, const uint64_t *sizes,
			      unsigned size_count, unsigned samples, struct okv_mover_range source,
			      struct okv_mover_range destination)
{
	int to_reader[2];
	uint16_t port;

	if (pipe(to_reader) != 0)
		fail("pipe");
	pid_t child = fork();
	if (child < 0)
		fail("fork");
	if (!place(allowed, placement, child == 0))
		fail("cannot choose processors");
	if (child == 0) {
		prctl(PR_SET_PDEATHSIG, SIGKILL);
		serve(to_reader[1], sizes, size_count, samples, source);
	}
	if (read(to_reader[0], &port, sizeof(port)) != sizeof(port))
		fail("the source did not start");
	measure(placement, port, sizes, size_count, samples, source.bytes, destination);
	close(to_reader[0]);
	close(to_reader[1]);
	kill(child, SIGKILL);
	waitpid(child, NULL, 0);
}

int main(int argc, char **argv)
{
	const unsigned samples = argc > 1 ? (unsigned)strtoul(argv[1], NULL, 10) : 0;
	uint64_t sizes[SIZES_MAX], largest = 1;
	unsigned size_count = 0;
	const cpu_set_t allowed = placement_allowed();

	if (samples < 1 || samples > SAMPLES_MAX || argc < 3 || argc > 2 + SIZES_MAX) {
		fprintf(stderr, "usage: okv-bench-mover SAMPLES BYTES...\n1..%d samples\n", SAMPLES_MAX);
		return 2;
	}
	for (char **size = argv + 2; *size; size++) {
		sizes[size_count] = strtoull(*size, NULL, 10);
		if (sizes[size_count] == 0)
			fail("a size must be a number of bytes");
		largest = sizes[size_count] > largest ? sizes[size_count] : largest;
		size_count++;
	}
	const struct okv_mover_range source = {.bytes = warm_memory(largest), .size = largest};
	const struct okv_mover_range destination = {.bytes = warm_memory(largest), .size = largest};

	if (!source.bytes || !destination.bytes)
		fail("no memory for the buffers");
	for (enum placement placement = 0; placement < (CPU_COUNT(&allowed) > 1 ? PLACEMENTS : 1); placement++)
		measure_placement(placement, &allowed, sizes, size_count, samples, source, destination);
	return 0;
}
