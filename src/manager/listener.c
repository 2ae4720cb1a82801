#include "listener.h"

#include <errno.h>
#include <fcntl.h>
#include <poll.h>
#include <stdbool.h>
#include <stdlib.h>
#include <string.h>
#include <sys/file.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/un.h>
#include <unistd.h>

static enum okv_status os_refusal(struct okv_reason *reason, const char *what, const char *path)
{
	int error = errno;

	return okv_refuse(reason, okv_status_from_errno(error), "socket", "the socket %.120s cannot be %s: %s", path,
			  what, strerror(error));
}

/* Locks the folder of the path, which leaves no file behind. The lock goes with the descriptor. */
static enum okv_status lock_folder(const struct sockaddr_un *address, int *ret_lock, struct okv_reason *reason)
{
	enum { TRIES = 50, PAUSE_MS = 20 }; /* others hold it for a moment, unless they mean harm */
	char folder[sizeof(address->sun_path)];
	char *slash;

	memcpy(folder, address->sun_path, sizeof(folder));
	slash = strrchr(folder, '/');
	if (slash)
		slash[slash == folder] = '\0';
	int fd = open(slash ? folder : ".", O_RDONLY | O_DIRECTORY | O_CLOEXEC);
	if (fd < 0)
		return os_refusal(reason, "made", address->sun_path);
	for (int i = 0; i < TRIES; i++) {
		if (flock(fd, LOCK_EX | LOCK_NB) == 0) {
			*ret_lock = fd;
			return OKV_OK;
		}
		poll(NULL, 0, PAUSE_MS);
	}
	close(fd);
	return okv_refuse(reason, OKV_ERR_BUSY, "socket",
			  "another process keeps the folder of %.120s locked; stop it or give another --socket",
			  address->sun_path);
}

/* Somebody accepts connections there, or speaks another kind of socket: in any case it is alive. */
static bool is_alive(const struct sockaddr_un *address)
{
	int fd = socket(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC | SOCK_NONBLOCK, 0);
	bool is_dead = fd >= 0 && connect(fd, (const struct sockaddr *)address, sizeof(*address)) != 0 &&
		       (errno == ECONNREFUSED || errno == ENOENT);

	if (fd >= 0)
		close(fd);
	return !is_dead;
}

static enum okv_status clear_path(const struct sockaddr_un *address, struct okv_reason *reason)
{
	const char *path = address->sun_path;
	struct stat info;

	if (lstat(path, &info) != 0)
		return errno == ENOENT ? OKV_OK : os_refusal(reason, "looked at", path);
	if (!S_ISSOCK(info.st_mode))
		return okv_refuse(reason, OKV_ERR_EXISTS, "socket",
				  "%.120s is there and is no socket; remove it or give another --socket", path);
	if (info.st_uid != geteuid())
		return okv_refuse(reason, OKV_ERR_PERMISSION, "socket",
				  "the socket %.120s belongs to another user (%u); give another --socket", path,
				  info.st_uid);
	if (is_alive(address))
		return okv_refuse(reason, OKV_ERR_EXISTS, "socket",
				  "a manager already serves the socket %.120s; stop it or give another --socket", path);
	if (unlink(path) != 0)
		return os_refusal(reason, "removed", path);
	return OKV_OK;
}

/* Binds and listens. On failure the listener is left to be closed. */
static enum okv_status serve_path(struct okv__listener *listener, const struct sockaddr_un *address,
				  struct okv_reason *reason)
{
	enum { BACKLOG = 64 };
	const char *path = address->sun_path;
	struct stat info;

	listener->path = strdup(path);
	listener->fd = socket(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC | SOCK_NONBLOCK, 0);
	if (!listener->path || listener->fd < 0)
		return os_refusal(reason, "opened", path);
	/* The mask makes the socket private from its first moment. Creation runs before there are other threads. */
	mode_t mask = umask(0177);
	int bound = bind(listener->fd, (const struct sockaddr *)address, sizeof(*address));
	umask(mask);
	if (bound != 0 || lstat(path, &info) != 0)
		return os_refusal(reason, "made", path);
	listener->device = info.st_dev;
	listener->inode = info.st_ino;
	if (listen(listener->fd, BACKLOG) != 0)
		return os_refusal(reason, "listened at", path);
	return OKV_OK;
}

enum okv_status okv__listener_open(const char *path, struct okv__listener *ret_listener, struct okv_reason *reason)
{
	struct sockaddr_un address = {.sun_family = AF_UNIX};
	struct okv__listener listener = {.fd = -1};
	enum okv_status status;
	int lock = -1;

	if (strlen(path) >= sizeof(address.sun_path))
		return okv_refuse(
			reason, OKV_ERR_INVALID, "socket",
			"the socket path is too long: %zu bytes, the system allows %zu; give a shorter --socket",
			strlen(path), sizeof(address.sun_path) - 1);
	memcpy(address.sun_path, path, strlen(path));
	status = lock_folder(&address, &lock, reason);
	if (status != OKV_OK)
		return status;
	status = clear_path(&address, reason);
	if (status == OKV_OK)
		status = serve_path(&listener, &address, reason);
	close(lock);
	if (status != OKV_OK)
		okv__listener_close(&listener);
	else
		*ret_listener = listener;
	return status;
}

void okv__listener_close(struct okv__listener *listener)
{
	struct stat info;

	if (listener->inode && lstat(listener->path, &info) == 0 && info.st_dev == listener->device &&
	    info.st_ino == listener->inode)
		unlink(listener->path);
	if (listener->fd >= 0)
		close(listener->fd);
	free(listener->path);
	*listener = (struct okv__listener){.fd = -1};
}
