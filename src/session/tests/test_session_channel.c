/* Packets with descriptors: what was not asked for is closed, nothing blocks, and a dead peer is known as dead. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <string.h>

#include <dirent.h>
#include <fcntl.h>
#include <poll.h>
#include <sys/socket.h>
#include <sys/un.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cmocka.h>

#include "okv/session/channel.h"

static void open_pair(int pair[2])
{
	assert_int_equal(socketpair(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0, pair), 0);
}

static int open_fds(void)
{
	DIR *folder = opendir("/proc/self/fd");
	int count = 0;

	assert_non_null(folder);
	while (readdir(folder))
		count++;
	closedir(folder);
	return count;
}

static void a_packet_brings_its_descriptors(void **state)
{
	(void)state;
	int pair[2], pipes[2];
	struct okv_channel_packet packet;
	char bytes[16];

	open_pair(pair);
	assert_int_equal(pipe(pipes), 0);
	assert_int_equal(okv_channel_receive(pair[1], bytes, sizeof(bytes), 2, &packet), OKV_ERR_ABSENT);
	assert_int_equal(okv_channel_send(pair[0], "hello", 5, pipes, 2), OKV_OK);
	assert_int_equal(okv_channel_receive(pair[1], bytes, sizeof(bytes), 2, &packet), OKV_OK);
	assert_int_equal(packet.size, 5);
	assert_int_equal(packet.fd_count, 2);
	assert_int_equal(fcntl(packet.fd[0], F_GETFD) & FD_CLOEXEC, FD_CLOEXEC);
	assert_int_equal(write(packet.fd[1], "x", 1), 1);
	assert_int_equal(read(pipes[0], bytes, 1), 1);
	okv_channel_close_fds(&packet);
	close(pair[0]);
	assert_int_equal(okv_channel_receive(pair[1], bytes, sizeof(bytes), 2, &packet), OKV_ERR_DISCONNECTED);
	assert_int_equal(okv_channel_send(pair[1], "x", 1, NULL, 0), OKV_ERR_DISCONNECTED);
	close(pair[1]);
	close(pipes[0]);
	close(pipes[1]);
}

static void descriptors_that_were_not_asked_for_are_closed(void **state)
{
	(void)state;
	int pair[2], fds[OKV_CHANNEL_FDS_MAX] = {0, 1, 2, 2};
	struct okv_channel_packet packet;
	char bytes[16];

	open_pair(pair);
	int before = open_fds();
	assert_int_equal(okv_channel_send(pair[0], "x", 1, fds, 4), OKV_OK);
	assert_int_equal(okv_channel_receive(pair[1], bytes, sizeof(bytes), 2, &packet), OKV_ERR_PROTOCOL);
	assert_int_equal(okv_channel_send(pair[0], "x", 1, fds, 1), OKV_OK);
	assert_int_equal(okv_channel_receive(pair[1], bytes, sizeof(bytes), 0, &packet), OKV_ERR_PROTOCOL);
	assert_int_equal(okv_channel_send(pair[0], "longer than room", 16, fds, 1), OKV_OK);
	assert_int_equal(okv_channel_receive(pair[1], bytes, 8, 2, &packet), OKV_ERR_PROTOCOL);
	assert_int_equal(open_fds(), before);
	close(pair[0]);
	close(pair[1]);
}

static void a_peer_that_does_not_read_never_blocks_the_sender(void **state)
{
	(void)state;
	int pair[2], sent = 0;
	enum okv_status status;

	open_pair(pair);
	while ((status = okv_channel_send(pair[0], "doorbell", 8, NULL, 0)) == OKV_OK)
		sent++;
	assert_int_equal(status, OKV_ERR_BUSY);
	assert_true(sent > 0);
	close(pair[0]);
	close(pair[1]);
}

static void the_peer_is_known_by_user_and_its_death_is_seen(void **state)
{
	(void)state;
	int listener = socket(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0), sync[2];
	struct sockaddr_un address = {.sun_family = AF_UNIX};
	socklen_t size = sizeof(address);
	struct okv_channel_peer peer;
	struct okv_reason reason;

	/* An abstract address that the kernel chooses. */
	assert_int_equal(bind(listener, (struct sockaddr *)&address, sizeof(sa_family_t)), 0);
	assert_int_equal(getsockname(listener, (struct sockaddr *)&address, &size), 0);
	assert_int_equal(listen(listener, 1), 0);
	assert_int_equal(pipe(sync), 0);

	pid_t child = fork();
	if (child == 0) {
		char byte;
		int client = socket(AF_UNIX, SOCK_SEQPACKET, 0);

		close(sync[1]);
		if (connect(client, (struct sockaddr *)&address, size) != 0 || read(sync[0], &byte, 1) < 0)
			_exit(1);
		_exit(0);
	}
	int server = accept(listener, NULL, NULL);
	assert_true(server >= 0);
	assert_int_equal(okv_channel_peer_open(server, &peer, &reason), OKV_OK);
	assert_int_equal(peer.uid, getuid());
	assert_int_equal(peer.pid, child);
	assert_true(peer.pidfd >= 0);

	struct pollfd death = {.fd = peer.pidfd, .events = POLLIN};
	assert_int_equal(poll(&death, 1, 0), 0);
	close(sync[1]);
	assert_int_equal(poll(&death, 1, 10000), 1);
	assert_int_equal(waitpid(child, NULL, 0), child);
	close(sync[0]);
	close(peer.pidfd);
	close(server);
	close(listener);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(a_packet_brings_its_descriptors),
		cmocka_unit_test(descriptors_that_were_not_asked_for_are_closed),
		cmocka_unit_test(a_peer_that_does_not_read_never_blocks_the_sender),
		cmocka_unit_test(the_peer_is_known_by_user_and_its_death_is_seen),
	};
	return cmocka_run_group_tests_name("session_channel", tests, NULL, NULL);
}
