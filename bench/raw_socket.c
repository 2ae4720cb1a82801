/*
 * okv-bench-socket: how fast bytes cross a loopback TCP socket when nothing is checked, named or authorised.
 *
 * The floor that a READ of OrbitKV and a GET of Redis are held against. One process sends from warm memory, another
 * receives into warm memory; one thread on each side drives all connections, as our mover does. A sample is the time
 * from the first byte of the request to the last byte of the reply.
 *
 *   okv-bench-socket SAMPLES BYTES...                   our own source: every setting below, for each size
 *   okv-bench-socket SAMPLES --get PORT REQUEST BYTES   a server that answers the line REQUEST with exactly BYTES
 *
 * Prints one JSON object a line: bytes, placement (of our own source), connections, buffer_bytes (0: the kernel's own
 * sizing), receive_bytes (0: all that is there), samples_ns. Nobody knows beforehand which setting is best on a
 * machine, so all are tried in turn, and who reads the lines takes the best.
 */
#include <arpa/inet.h>
#include <errno.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <poll.h>
#include <signal.h>
#include <stdbool.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/prctl.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <unistd.h>

#include "source_and_reader.h"

enum { CONNECTIONS_MAX = 4, SAMPLES_MAX = 1000, REQUEST_BYTES = 8 };

struct setting {
	unsigned connections;
	int buffer_bytes;
	size_t receive_bytes; /* at most this many at a time */
};

static const struct setting settings[] = {
	{1, 0, SIZE_MAX}, {2, 0, SIZE_MAX}, {4, 0, SIZE_MAX},	    {1, 4 << 20, SIZE_MAX}, {2, 4 << 20, SIZE_MAX},
	{1, 0, 64 << 10}, {2, 0, 64 << 10}, {1, 4 << 20, 64 << 10}, {2, 4 << 20, 64 << 10},
};

/* One direction of one connection: what is still to move of it. */
struct flow {
	int fd; /* owned */
	uint8_t *bytes;
	uint64_t left;
};

static _Noreturn void fail(const char *what)
{
	fprintf(stderr, "okv-bench-socket: %s: %s\n", what, strerror(errno));
	exit(1);
}

static void set_option(int fd, int level, int option, int value)
{
	if (setsockopt(fd, level, option, &value, sizeof(value)) != 0)
		fail("setsockopt");
}

static void tune(int fd, int buffer_bytes)
{
	set_option(fd, IPPROTO_TCP, TCP_NODELAY, 1);
	if (buffer_bytes) {
		set_option(fd, SOL_SOCKET, SO_SNDBUF, buffer_bytes);
		set_option(fd, SOL_SOCKET, SO_RCVBUF, buffer_bytes);
	}
}

static int connect_to(uint16_t port, int buffer_bytes)
{
	const struct sockaddr_in address = {
		.sin_family = AF_INET, .sin_port = htons(port), .sin_addr.s_addr = htonl(INADDR_LOOPBACK)};
	int fd = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);

	if (fd < 0)
		fail("socket");
	tune(fd, buffer_bytes);
	if (connect(fd, (const struct sockaddr *)&address, sizeof(address)) != 0)
		fail("connect");
	return fd;
}

static void send_all(int fd, const void *bytes, size_t size)
{
	for (const uint8_t *at = bytes; size;) {
		ssize_t moved = send(fd, at, size, MSG_NOSIGNAL);

		if (moved < 0)
			fail("send");
		at += moved;
		size -= (size_t)moved;
	}
}

/* Receives every flow to its end; the one thread sleeps in recv where there is one flow, in poll where there are more.
 */
static void receive_all(struct flow *flows, unsigned count, size_t receive_bytes)
{
	struct pollfd polled[CONNECTIONS_MAX];
	unsigned open = 0;

	for (unsigned i = 0; i < count; i++) {
		polled[i] = (struct pollfd){.fd = flows[i].left ? flows[i].fd : -1, .events = POLLIN};
		open += flows[i].left != 0;
	}
	while (open) {
		if (count > 1 && poll(polled, count, -1) < 0)
			fail("poll");
		for (unsigned i = 0; i < count; i++) {
			struct flow *flow = &flows[i];

			if (!flow->left || (count > 1 && !polled[i].revents))
				continue;

			size_t wanted = flow->left < receive_bytes ? flow->left : receive_bytes;
			ssize_t moved = recv(flow->fd, flow->bytes, wanted, 0);

			if (moved <= 0)
				fail(moved == 0 ? "the server hung up" : "recv");
			flow->bytes += moved;
			flow->left -= (uint64_t)moved;
			if (!flow->left) {
				polled[i].fd = -1;
				open--;
			}
		}
	}
}

/* The source: answers each 8-byte request, a count, with that many bytes. Ends when every connection has hung up. */
static _Noreturn void serve(int listener, const struct setting *setting, uint8_t *bytes)
{
	struct flow flows[CONNECTIONS_MAX];
	struct pollfd polled[CONNECTIONS_MAX];
	unsigned open = setting->connections;

	for (unsigned i = 0; i < setting->connections; i++) {
		int fd = accept4(listener, NULL, NULL, SOCK_CLOEXEC | SOCK_NONBLOCK);

		if (fd < 0)
			fail("accept");
		tune(fd, setting->buffer_bytes);
		flows[i] = (struct flow){.fd = fd, .bytes = bytes};
		polled[i] = (struct pollfd){.fd = fd, .events = POLLIN};
	}
	while (open) {
		if (poll(polled, setting->connections, -1) < 0)
			fail("poll");
		for (unsigned i = 0; i < setting->connections; i++) {
			struct flow *flow = &flows[i];

			if (!polled[i].revents)
				continue;
			if (!flow->left) {
				ssize_t got = recv(flow->fd, &flow->left, REQUEST_BYTES, MSG_WAITALL);

				if (got == 0) {
					polled[i].fd = -1;
					open--;
				} else if (got != REQUEST_BYTES) {
					fail("reading a request");
				}
				flow->bytes = bytes;
			}
			while (flow->left) {
				ssize_t moved = send(flow->fd, flow->bytes, flow->left, MSG_NOSIGNAL);

				if (moved < 0 && errno == EAGAIN)
					break;
				if (moved < 0)
					fail("send");
				flow->bytes += moved;
				flow->left -= (uint64_t)moved;
			}
			polled[i].events = flow->left ? POLLOUT : POLLIN;
		}
	}
	_exit(0);
}

static void report(uint64_t bytes, const char *placement, const struct setting *setting, const uint64_t *samples_ns,
		   unsigned samples)
{
	printf("{\"bytes\": %llu, \"placement\": \"%s\", \"connections\": %u, \"buffer_bytes\": %d, "
	       "\"receive_bytes\": %zu, \"samples_ns\": [",
	       (unsigned long long)bytes, placement, setting->connections, setting->buffer_bytes,
	       setting->receive_bytes == SIZE_MAX ? 0 : setting->receive_bytes);
	for (unsigned i = 0; i < samples; i++)
		printf("%s%llu", i ? ", " : "", (unsigned long long)samples_ns[i]);
	printf("]}\n");
	fflush(stdout);
}

static int listen_somewhere(const struct setting *setting, uint16_t *ret_port)
{
	struct sockaddr_in address = {.sin_family = AF_INET, .sin_addr.s_addr = htonl(INADDR_LOOPBACK)};
	socklen_t size = sizeof(address);
	int fd = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);

	if (fd < 0)
		fail("socket");
	tune(fd, setting->buffer_bytes);
	if (bind(fd, (struct sockaddr *)&address, size) != 0 || listen(fd, CONNECTIONS_MAX) != 0 ||
	    getsockname(fd, (struct sockaddr *)&address, &size) != 0)
		fail("listening");
	*ret_port = ntohs(address.sin_port);
	return fd;
}

/* Asks for an even share of `bytes` on each connection and returns when all of it has come. */
static uint64_t fetch_shares(const int *fds, const struct setting *setting, uint8_t *destination, uint64_t bytes)
{
	const unsigned connections = setting->connections;
	struct flow flows[CONNECTIONS_MAX];
	uint8_t *rest = destination;
	uint64_t begin_ns = now_ns(), given = 0;

	for (unsigned i = 0; i < connections; i++) {
		uint64_t share = (bytes - given) / (connections - i);

		flows[i] = (struct flow){.fd = fds[i], .bytes = rest, .left = share};
		rest += share;
		given += share;
		send_all(fds[i], &share, REQUEST_BYTES);
	}
	receive_all(flows, connections, setting->receive_bytes);
	return now_ns() - begin_ns;
}

static void measure_setting(const struct setting *setting, enum placement placement, const cpu_set_t *allowed,
			    char **sizes, uint8_t *source, uint8_t *destination, unsigned samples)
{
	uint64_t samples_ns[SAMPLES_MAX] = {0};
	int fds[CONNECTIONS_MAX] = {0};
	uint16_t port;
	int listener = listen_somewhere(setting, &port);
	pid_t child = fork();

	if (child < 0)
		fail("fork");
	if (!place(allowed, placement, child == 0))
		fail("choosing processors");
	if (child == 0) {
		prctl(PR_SET_PDEATHSIG, SIGKILL);
		serve(listener, setting, source);
	}
	close(listener);
	for (unsigned i = 0; i < setting->connections; i++)
		fds[i] = connect_to(port, setting->buffer_bytes);
	for (char **size = sizes; *size; size++) {
		uint64_t bytes = strtoull(*size, NULL, 10);

		for (unsigned i = 0; i < 3; i++) /* the kernel grows its windows */
			(void)fetch_shares(fds, setting, destination, bytes);
		for (unsigned i = 0; i < samples; i++)
			samples_ns[i] = fetch_shares(fds, setting, destination, bytes);
		report(bytes, placement_name[placement], setting, samples_ns, samples);
	}
	for (unsigned i = 0; i < setting->connections; i++)
		close(fds[i]);
	waitpid(child, NULL, 0);
}

static void measure_own(char **sizes, unsigned samples)
{
	const cpu_set_t allowed = placement_allowed();
	const enum placement end = CPU_COUNT(&allowed) > 1 ? PLACEMENTS : 1;
	uint64_t largest = 1;

	for (char **size = sizes; *size; size++) {
		uint64_t bytes = strtoull(*size, NULL, 10);

		largest = bytes > largest ? bytes : largest;
	}

	uint8_t *source = warm_memory(largest), *destination = warm_memory(largest);

	if (!source || !destination)
		fail("mapping the buffers");
	for (size_t i = 0; i < sizeof(settings) / sizeof(*settings); i++)
		for (enum placement placement = 0; placement < end; placement++)
			measure_setting(&settings[i], placement, &allowed, sizes, source, destination, samples);
}

static void measure_get(uint16_t port, const char *request, uint64_t bytes, unsigned samples)
{
	const struct setting setting = {.connections = 1, .receive_bytes = SIZE_MAX};
	uint64_t samples_ns[SAMPLES_MAX] = {0};
	uint8_t *destination = warm_memory(bytes);
	struct flow flow = {.fd = connect_to(port, 0)};

	if (!destination)
		fail("mapping the buffer");
	for (unsigned i = 0; i < samples + 3; i++) {
		uint64_t begin_ns = now_ns();

		send_all(flow.fd, request, strlen(request));
		send_all(flow.fd, "\r\n", 2);
		flow.bytes = destination;
		flow.left = bytes;
		receive_all(&flow, 1, setting.receive_bytes);
		if (i >= 3)
			samples_ns[i - 3] = now_ns() - begin_ns;
	}
	report(bytes, "free", &setting, samples_ns, samples);
}

int main(int argc, char **argv)
{
	const unsigned samples = argc > 1 ? (unsigned)strtoul(argv[1], NULL, 10) : 0;
	const bool is_get = argc > 2 && strcmp(argv[2], "--get") == 0;

	if (samples < 1 || samples > SAMPLES_MAX || (is_get ? argc != 6 : argc < 3)) {
		fprintf(stderr,
			"usage: okv-bench-socket SAMPLES BYTES...\n"
			"       okv-bench-socket SAMPLES --get PORT REQUEST BYTES\n"
			"1..%d samples\n",
			SAMPLES_MAX);
		return 2;
	}
	if (is_get)
		measure_get((uint16_t)strtoul(argv[3], NULL, 10), argv[4], strtoull(argv[5], NULL, 10), samples);
	else
		measure_own(argv + 2, samples);
	return 0;
}
