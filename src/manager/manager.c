#include <arpa/inet.h>
#include <stdlib.h>
#include <string.h>

#include "manager_object.h"
#include "okv/base/log.h"
#include "okv/base/rng.h"

static void touch_step(void *context)
{
	/* One step takes about half a millisecond of the loop; a tenth of the time is spent on it at most. */
	const uint64_t pause_ns = 5 * OKV_NS_PER_MS;
	struct okv_manager *manager = context;

	if (okv_store_touch_ahead(manager->store))
		okv_timer_start(&manager->touch_timer, okv_loop_now_ns(manager->loop) + pause_ns);
}

void okv__manager_touch_ahead(struct okv_manager *manager)
{
	if (!okv_timer_is_running(&manager->touch_timer) && !manager->is_stopping)
		okv_timer_start(&manager->touch_timer, okv_loop_now_ns(manager->loop));
}

static bool is_loopback(const char *address)
{
	struct in_addr v4;

	return strcmp(address, "::1") == 0 || (inet_pton(AF_INET, address, &v4) == 1 && ntohl(v4.s_addr) >> 24 == 127);
}

static enum okv_status open_http(struct okv_manager *manager, const struct okv_manager_options *options,
				 struct okv_reason *reason)
{
	const struct okv_http_options http = {
		.address = options->http_address,
		.port = options->http_port,
		.body_bytes_max = 4096,
		.connections_max = 64,
		.handle = okv__admin_handle,
		.context = manager,
	};

	if (!is_loopback(options->http_address))
		return okv_refuse(
			reason, OKV_ERR_INVALID, "http",
			"the admin address must be a loopback one such as 127.0.0.1, not %.60s: it has no access control",
			options->http_address);
	return okv_http_server_create(manager->loop, &http, &manager->http, reason);
}

static enum okv_status open_peers(struct okv_manager *manager, const struct okv_manager_options *options,
				  struct okv_reason *reason)
{
	const struct okv_peers_options peers = {
		.loop = manager->loop,
		.store = manager->store,
		.metrics = manager->registry,
		.faults = &manager->faults,
		.incarnation = manager->incarnation,
		.listen_address = options->listen_address,
		.listen_port = options->listen_port,
		.peers = options->peers,
		.peer_count = options->peer_count,
		.deadline_ns = options->peer_deadline_ns,
	};

	return okv__peers_create(&peers, &manager->peers, reason);
}

static enum okv_status open_socket(struct okv_manager *manager, const struct okv_manager_options *options,
				   struct okv_reason *reason)
{
	enum okv_status status = okv__listener_open(options->socket_path, &manager->listener, reason);

	if (status == OKV_OK)
		status = okv_acceptor_start(&manager->acceptor, manager->loop, manager->listener.fd, okv__session_start,
					    manager, reason);
	return status;
}

static uint64_t loop_now(void *loop)
{
	return okv_loop_now_ns(loop);
}

static void announce_faults(struct okv_manager *manager)
{
	for (unsigned i = 0; i < manager->faults.count; i++)
		okv_log(OKV_LOG_WARN, "manager", "fault point armed: %s=%lld", manager->faults.fault[i].name,
			(long long)manager->faults.fault[i].value);
	okv_metric_set(manager->metrics.faults_armed, manager->faults.count);
}

enum okv_status okv_manager_create(struct okv_loop *loop, const struct okv_manager_options *options,
				   struct okv_manager **ret_manager, struct okv_reason *reason)
{
	struct okv_manager *manager = calloc(1, sizeof(*manager));
	enum okv_status status;

	if (!manager)
		return okv_refuse(reason, OKV_ERR_NO_MEMORY, "manager", "no memory for the manager");
	manager->loop = loop;
	manager->listener.fd = -1;
	manager->incarnation = okv_uuid_random();
	okv_list_init(&manager->sessions);
	okv_list_init(&manager->syncs);
	okv_timer_init(&manager->touch_timer, loop, touch_step, manager);
	/* Ids of two incarnations do not meet: an engine disclaims its last session at whoever answers. */
	okv_random_bytes(&manager->next_session, sizeof(manager->next_session));
	manager->next_session = manager->next_session >> 16 | 1;

	status = okv_faults_parse(options->faults, &manager->faults, reason);
	if (status != OKV_OK)
		goto destroy;
	manager->scratch = calloc(1, OKV_RING_REQUEST_BYTES);
	manager->registry = okv_metrics_create();
	if (!manager->scratch || !manager->registry) {
		status = okv_refuse(reason, OKV_ERR_NO_MEMORY, "manager", "no memory for the manager");
		goto destroy;
	}
	okv__manager_metrics_create(manager->registry, &manager->metrics);
	status = okv_store_create(options->pool_bytes, &manager->store, reason);
	if (status != OKV_OK)
		goto destroy;
	okv_store_measure_ages(manager->store, (struct okv_clock){.now_ns = loop_now, .context = loop},
			       manager->metrics.age);
	manager->leases.limit_bytes = options->pool_bytes / 4 * 3;
	status = open_socket(manager, options, reason);
	if (status == OKV_OK)
		status = open_http(manager, options, reason);
	if (status == OKV_OK)
		status = open_peers(manager, options, reason);
	if (status == OKV_OK)
		status = okv__worker_create(loop, &manager->worker, reason);
	if (status != OKV_OK)
		goto destroy;
	announce_faults(manager);
	*ret_manager = manager;
	return OKV_OK;

destroy:
	okv_manager_destroy(manager);
	return status;
}

uint16_t okv_manager_http_port(const struct okv_manager *manager)
{
	return okv_http_server_port(manager->http);
}

uint16_t okv_manager_peer_port(const struct okv_manager *manager)
{
	return okv__peers_port(manager->peers);
}

static void check_stopped(struct okv_manager *manager)
{
	if (!manager->is_stopping || !manager->stopped || !manager->http_is_drained || !manager->peers_are_drained ||
	    manager->jobs_done != manager->jobs_submitted)
		return;

	void (*stopped)(void *context) = manager->stopped;
	manager->stopped = NULL;
	stopped(manager->stopped_context);
}

static void http_drained(void *context)
{
	struct okv_manager *manager = context;

	manager->http_is_drained = true;
	check_stopped(manager);
}

static void peers_drained(void *context)
{
	struct okv_manager *manager = context;

	manager->peers_are_drained = true;
	check_stopped(manager);
}

void okv_manager_shutdown(struct okv_manager *manager, void (*done)(void *context), void *context)
{
	const uint64_t answers_ns = 2 * OKV_NS_PER_S; /* for answers under way to be read */

	OKV_ASSERT(!manager->is_stopping);
	manager->is_stopping = true;
	manager->stopped = done;
	manager->stopped_context = context;
	okv_timer_stop(&manager->touch_timer);
	okv_acceptor_stop(&manager->acceptor);
	okv__listener_close(&manager->listener);
	OKV_LIST_EACH_SAFE(node, &manager->sessions)
	okv__session_end(OKV_CONTAINER_OF(node, struct okv__session, node), false, "the manager stops");
	okv__admin_jobs_changed(manager);
	okv_http_server_shutdown(manager->http, okv_loop_now_ns(manager->loop) + answers_ns, http_drained, manager);
	okv__peers_shutdown(manager->peers, peers_drained, manager);
	check_stopped(manager);
}

void okv_manager_destroy(struct okv_manager *manager)
{
	if (!manager)
		return;
	OKV_ASSERT(manager->jobs_done == manager->jobs_submitted);
	okv_timer_stop(&manager->touch_timer);
	okv__worker_destroy(manager->worker);
	OKV_LIST_EACH_SAFE(node, &manager->sessions)
	okv__session_end(OKV_CONTAINER_OF(node, struct okv__session, node), true, "the manager is gone");
	okv__peers_destroy(manager->peers);
	okv_http_server_destroy(manager->http);
	okv_acceptor_stop(&manager->acceptor);
	okv__listener_close(&manager->listener);
	okv_store_destroy(manager->store);
	okv_metrics_destroy(manager->registry);
	free(manager->scratch);
	free(manager);
}

void okv__manager_submit(struct okv_manager *manager, struct okv__job *job)
{
	manager->jobs_submitted++;
	okv__worker_submit(manager->worker, job);
}

void okv__manager_job_done(struct okv_manager *manager)
{
	manager->jobs_done++;
	okv__admin_jobs_changed(manager);
	check_stopped(manager);
}
