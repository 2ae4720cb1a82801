/* The socket path: what is refused, what is replaced, and what is left behind. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <fcntl.h>
#include <poll.h>
#include <sys/file.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/un.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cmocka.h>

#include "listener.h"

struct place {
	char folder[32], path[64];
};

static int set_up(void **state)
{
	struct place *place = calloc(1, sizeof(*place));

	strcpy(place->folder, "okv-listener-XXXXXX");
	if (!mkdtemp(place->folder))
		return -1;
	snprintf(place->path, sizeof(place->path), "%s/socket", place->folder);
	*state = place;
	return 0;
}

static int tear_down(void **state)
{
	struct place *place = *state;

	unlink(place->path);
	rmdir(place->folder);
	free(place);
	return 0;
}

static void the_socket_is_private_and_goes_with_its_manager(void **state)
{
	struct place *place = *state;
	struct okv__listener listener;
	struct okv_reason reason;
	struct stat info;

	assert_int_equal(okv__listener_open(place->path, &listener, &reason), OKV_OK);
	assert_int_equal(stat(place->path, &info), 0);
	assert_int_equal(info.st_mode & 0777, 0600);
	okv__listener_close(&listener);
	assert_int_not_equal(stat(place->path, &info), 0);
	okv__listener_close(&listener);
}

static void a_live_manager_is_not_replaced_and_a_dead_one_is(void **state)
{
	struct place *place = *state;
	struct okv__listener first, second;
	struct okv_reason reason;

	assert_int_equal(okv__listener_open(place->path, &first, &reason), OKV_OK);
	assert_int_equal(okv__listener_open(place->path, &second, &reason), OKV_ERR_EXISTS);
	assert_non_null(strstr(reason.text, "a manager already serves the socket"));

	close(first.fd); /* killed: the path stays behind */
	first.fd = -1;
	assert_int_equal(okv__listener_open(place->path, &second, &reason), OKV_OK);
	free(first.path);
	okv__listener_close(&second);
}

static void a_manager_does_not_remove_the_socket_of_its_successor(void **state)
{
	struct place *place = *state;
	struct okv__listener first, second;
	struct okv_reason reason;

	assert_int_equal(okv__listener_open(place->path, &first, &reason), OKV_OK);
	assert_int_equal(unlink(place->path), 0);
	assert_int_equal(okv__listener_open(place->path, &second, &reason), OKV_OK);
	okv__listener_close(&first);
	assert_int_equal(access(place->path, F_OK), 0);
	okv__listener_close(&second);
}

static void what_is_no_socket_stays(void **state)
{
	struct place *place = *state;
	struct okv__listener listener;
	struct okv_reason reason;
	int fd = open(place->path, O_CREAT | O_WRONLY | O_CLOEXEC, 0600);

	close(fd);
	assert_int_equal(okv__listener_open(place->path, &listener, &reason), OKV_ERR_EXISTS);
	assert_non_null(strstr(reason.text, "is no socket"));
	assert_int_equal(access(place->path, F_OK), 0);
}

static void a_socket_of_another_kind_that_lives_is_not_replaced(void **state)
{
	struct place *place = *state;
	struct okv__listener listener;
	struct okv_reason reason;
	struct sockaddr_un address = {.sun_family = AF_UNIX};
	int other = socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0);

	strcpy(address.sun_path, place->path);
	assert_int_equal(bind(other, (struct sockaddr *)&address, sizeof(address)), 0);
	assert_int_equal(listen(other, 1), 0);
	assert_int_equal(okv__listener_open(place->path, &listener, &reason), OKV_ERR_EXISTS);
	close(other);
}

static void a_socket_of_another_user_is_neither_used_nor_removed(void **state)
{
	struct place *place = *state;
	struct okv__listener listener;
	struct okv_reason reason;

	if (geteuid() != 0)
		skip();
	assert_int_equal(okv__listener_open(place->path, &listener, &reason), OKV_OK);
	close(listener.fd);
	listener.fd = -1;
	assert_int_equal(chown(place->path, 65534, 65534), 0);

	struct okv__listener second;
	assert_int_equal(okv__listener_open(place->path, &second, &reason), OKV_ERR_PERMISSION);
	assert_non_null(strstr(reason.text, "belongs to another user (65534)"));
	assert_int_equal(access(place->path, F_OK), 0);
	okv__listener_close(&listener);
}

/* Two managers that start at one moment: the second must not look before the first listens. */
static void who_starts_at_the_same_moment_waits_for_the_other(void **state)
{
	struct place *place = *state;
	struct okv__listener listener;
	struct okv_reason reason;
	int status, lock = open(place->folder, O_RDONLY | O_DIRECTORY | O_CLOEXEC);
	pid_t second;

	assert_int_equal(flock(lock, LOCK_EX), 0);
	assert_int_equal(okv__listener_open(place->path, &listener, &reason), OKV_ERR_BUSY);
	assert_non_null(strstr(reason.text, "locked"));
	second = fork();
	assert_true(second >= 0);
	if (second == 0) {
		close(lock); /* else it would hold the lock too */
		_exit(okv__listener_open(place->path, &listener, NULL) == OKV_ERR_EXISTS ? 7 : 1);
	}

	/* What an earlier manager does under the lock, slowly. */
	struct sockaddr_un address = {.sun_family = AF_UNIX};
	int fd = socket(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0);
	strcpy(address.sun_path, place->path);
	assert_int_equal(bind(fd, (struct sockaddr *)&address, sizeof(address)), 0);
	poll(NULL, 0, 100);
	assert_int_equal(listen(fd, 1), 0);
	close(lock);
	assert_int_equal(waitpid(second, &status, 0), second);
	assert_true(WIFEXITED(status));
	assert_int_equal(WEXITSTATUS(status), 7);
	assert_int_equal(access(place->path, F_OK), 0);
	close(fd);
}

static void a_path_that_cannot_be_says_why(void **state)
{
	(void)state;
	struct okv__listener listener;
	struct okv_reason reason;
	char path[200];

	memset(path, 'x', sizeof(path) - 1);
	path[sizeof(path) - 1] = '\0';
	assert_int_equal(okv__listener_open(path, &listener, &reason), OKV_ERR_INVALID);
	assert_string_equal(reason.field, "socket");
	assert_non_null(strstr(reason.text, "too long: 199 bytes, the system allows 107"));
	assert_int_equal(okv__listener_open("no-such-folder/socket", &listener, &reason), OKV_ERR_ABSENT);
	assert_non_null(strstr(reason.text, "No such file"));
}

#define LISTENER_TEST(name) cmocka_unit_test_setup_teardown(name, set_up, tear_down)

int main(void)
{
	const struct CMUnitTest tests[] = {
		LISTENER_TEST(the_socket_is_private_and_goes_with_its_manager),
		LISTENER_TEST(a_live_manager_is_not_replaced_and_a_dead_one_is),
		LISTENER_TEST(a_manager_does_not_remove_the_socket_of_its_successor),
		LISTENER_TEST(what_is_no_socket_stays),
		LISTENER_TEST(a_socket_of_another_kind_that_lives_is_not_replaced),
		LISTENER_TEST(a_socket_of_another_user_is_neither_used_nor_removed),
		LISTENER_TEST(who_starts_at_the_same_moment_waits_for_the_other),
		LISTENER_TEST(a_path_that_cannot_be_says_why),
	};
	return cmocka_run_group_tests_name("manager_listener", tests, NULL, NULL);
}
