#include <inttypes.h>
#include <stdlib.h>
#include <string.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <unistd.h>

#include "commands.h"
#include "okv/base/address.h"
#include "okv/base/log.h"
#include "okv/loop/loop.h"
#include "okv/manager/manager.h"

struct settings {
	char *socket, *http, *listen;
	struct okv__strings peers;
	uint64_t pool_size, peer_deadline_ms;
	unsigned log_level;
};

struct running {
	struct okv_loop *loop;
	struct okv_manager *manager;
	struct okv_timer limit;
	bool is_stopping, is_late;
};

static void stopped(void *context)
{
	okv_loop_stop(((struct running *)context)->loop);
}

static void stop_is_late(void *context)
{
	struct running *running = context;

	running->is_late = true;
	okv_loop_stop(running->loop);
}

static void on_signal(void *context, int signal)
{
	const uint64_t limit_ns = 9 * OKV_NS_PER_S; /* whoever stops us by the book waits ten seconds */
	struct running *running = context;

	(void)signal;
	if (running->is_stopping)
		return;
	running->is_stopping = true;
	okv_timer_start(&running->limit, okv_loop_now_ns(running->loop) + limit_ns);
	okv_manager_shutdown(running->manager, stopped, running);
}

/* $XDG_RUNTIME_DIR/orbitkv/manager.sock, or /tmp/orbitkv-UID/manager.sock; the folder is made, private. */
static enum okv_status default_socket(char *ret_path, size_t room, struct okv_reason *reason)
{
	const char *runtime = getenv("XDG_RUNTIME_DIR");
	char folder[200];
	struct stat info;

	if (runtime && runtime[0])
		snprintf(folder, sizeof(folder), "%s/orbitkv", runtime);
	else
		snprintf(folder, sizeof(folder), "/tmp/orbitkv-%u", geteuid());
	(void)!mkdir(folder, 0700); /* looked at next */
	if (lstat(folder, &info) != 0 || !S_ISDIR(info.st_mode) || info.st_uid != geteuid() || (info.st_mode & 022))
		return okv_refuse(reason, OKV_ERR_PERMISSION, "socket",
				  "the folder %.120s cannot be made, or another user can write to it; give --socket",
				  folder);
	snprintf(ret_path, room, "%s/manager.sock", folder);
	return OKV_OK;
}

static enum okv_status create(const struct settings *settings, struct running *running, struct okv_address *ret_http,
			      struct okv_address *ret_listen, struct okv_reason *reason)
{
	char path[256];
	enum okv_status status = okv_address_read("http", settings->http, ret_http, reason);

	if (status == OKV_OK)
		status = okv_address_read("listen", settings->listen, ret_listen, reason);
	if (status == OKV_OK && !settings->socket)
		status = default_socket(path, sizeof(path), reason);
	if (status != OKV_OK)
		return status;

	const struct okv_manager_options options = {
		.socket_path = settings->socket ? settings->socket : path,
		.pool_bytes = settings->pool_size,
		.http_address = ret_http->host,
		.http_port = ret_http->port,
		.listen_address = ret_listen->host,
		.listen_port = ret_listen->port,
		.peers = (const char *const *)settings->peers.item,
		.peer_count = settings->peers.count,
		.peer_deadline_ns = settings->peer_deadline_ms * OKV_NS_PER_MS,
		.faults = getenv("ORBITKV_FAULTS"),
	};
	status = okv_loop_create(okv_clock_boottime(), &running->loop, reason);
	if (status == OKV_OK) /* before the manager's threads start, since they inherit the blocked signals */
		status = okv_loop_catch_signals(running->loop, on_signal, running, reason);
	if (status == OKV_OK)
		status = okv_manager_create(running->loop, &options, &running->manager, reason);
	return status;
}

static const char *bracketed(const struct okv_address *address, char text[OKV_HOST_MAX + 2])
{
	bool is_v6 = strchr(address->host, ':') != NULL;

	snprintf(text, OKV_HOST_MAX + 2, is_v6 ? "[%s]" : "%s", address->host);
	return text;
}

/* Engines and peers take up to some 1,300 descriptors, and the usual soft limit is 1,024. Only select() minds many. */
static void allow_descriptors(void)
{
	struct rlimit limit;

	if (getrlimit(RLIMIT_NOFILE, &limit) != 0)
		return;
	limit.rlim_cur = limit.rlim_max;
	(void)!setrlimit(RLIMIT_NOFILE, &limit); /* then with fewer */
}

static int run(const void *context)
{
	const struct settings *settings = context;
	struct running running = {.loop = NULL};
	struct okv_address http, listen;
	struct okv_reason reason = {.field = ""};
	char http_host[OKV_HOST_MAX + 2], listen_host[OKV_HOST_MAX + 2];
	int exit_status = 1;

	okv_log_set_level((enum okv_log_level)settings->log_level);
	allow_descriptors();
	if (create(settings, &running, &http, &listen, &reason) != OKV_OK) {
		fprintf(stderr, "orbitkv manager: %s%s%s\n", reason.field, reason.field[0] ? ": " : "", reason.text);
		goto destroy;
	}
	okv_timer_init(&running.limit, running.loop, stop_is_late, &running);
	printf("orbitkv manager: ready, http=%s:%u peer=%s:%u\n", bracketed(&http, http_host),
	       okv_manager_http_port(running.manager), bracketed(&listen, listen_host),
	       okv_manager_peer_port(running.manager));
	fflush(stdout);
	okv_loop_run(running.loop);
	okv_timer_stop(&running.limit);
	if (running.is_late) {
		/* Threads may still touch what destroying would free. */
		fprintf(stderr, "orbitkv manager: work was still under way after 9 s and is given up\n");
		_exit(1);
	}
	exit_status = 0;

destroy:
	okv_manager_destroy(running.manager);
	if (running.loop)
		okv_loop_destroy(running.loop);
	return exit_status;
}

#define FIELD(name) offsetof(struct settings, name)

static const struct okv__option options[] = {
	{"socket", OKV__OPTION_STRING, FIELD(socket), "PATH", NULL,
	 "Where engines attach; $XDG_RUNTIME_DIR/orbitkv/manager.sock without it.", 0, 0},
	{"pool-size", OKV__OPTION_SIZE, FIELD(pool_size), "SIZE", "1gb", "Memory for blocks; taken as it is used.",
	 1 << 20, 0},
	{"http", OKV__OPTION_STRING, FIELD(http), "ADDRESS:PORT", "127.0.0.1:9091",
	 "Admin interface, loopback only; port 0 takes a free one.", 0, 0},
	{"listen", OKV__OPTION_STRING, FIELD(listen), "ADDRESS:PORT", "127.0.0.1:9092",
	 "Where other managers connect; port 0 takes a free one.", 0, 0},
	{"peer", OKV__OPTION_STRINGS, FIELD(peers), "HOST:PORT", NULL, "Another manager.", 0, 0},
	{"peer-deadline-ms", OKV__OPTION_INTEGER, FIELD(peer_deadline_ms), "MS", "3000",
	 "How long a request waits for a silent peer.", 1, 600000},
	{"log-level", OKV__OPTION_CHOICE, FIELD(log_level), OKV_LOG_LEVELS, "info", "What is logged.", 0, 0},
};

const struct okv__command okv__command_manager = {
	.name = "manager",
	.summary = "keep the KV cache of this host and share it with others",
	.description =
		"Engines of this host attach at the socket, publish their KV pages and restore them; what is missing\n"
		"comes from the managers given with --peer. SIGTERM or Ctrl-C ends it cleanly. Fault points are armed\n"
		"by the environment variable ORBITKV_FAULTS.\n"
		"\n"
		"  orbitkv manager --pool-size 8gb\n"
		"  orbitkv manager --listen 0.0.0.0:9092 --peer 10.0.0.2:9092 --peer 10.0.0.3:9092\n"
		"  curl -X POST http://127.0.0.1:9091/cache/memory/cleanup\n",
	.options = options,
	.option_count = sizeof(options) / sizeof(*options),
	.settings_size = sizeof(struct settings),
	.run = run,
};
