#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "manager_object.h"
#include "okv/codec/json.h"

static void respond_json(struct okv_http_exchange *exchange, struct okv_buf *body)
{
	okv_buf_text(body, "\n");
	if (body->failed)
		okv_http_respond_error(exchange, 503, "no memory for the answer", "server_error", NULL, NULL);
	else
		okv_http_respond(exchange, 200, "application/json", body->data, body->size);
	okv_buf_done(body);
}

/* ---- metrics ---- */

static void take_store_counts(struct okv_manager *manager)
{
	struct okv__manager_metrics *m = &manager->metrics;
	const struct okv_store_counts *counts = okv_store_counts(manager->store);

	okv_metric_set(m->pool_used, (int64_t)counts->used_bytes);
	okv_metric_set(m->pool_capacity, (int64_t)counts->pool_bytes);
	okv_metric_set(m->pool_largest_free, (int64_t)counts->largest_free_bytes);
	okv_metric_set(m->pool_alloc_failures, (int64_t)counts->alloc_failures);
	okv_metric_set(m->inflight, (int64_t)counts->incoming_bytes);
	okv_metric_set(m->resident_bytes, (int64_t)counts->resident_bytes);
	okv_metric_set(m->insertions, (int64_t)counts->insertions);
	okv_metric_set(m->evictions, (int64_t)(counts->evictions[0] + counts->evictions[1]));
	okv_metric_set(m->evictions_still_referenced, (int64_t)counts->evictions_skipped_pinned);
	okv_metric_set(m->evicted_bytes, (int64_t)counts->evicted_bytes);
	okv_metric_set(m->damaged, (int64_t)counts->condemned);
	okv_metric_set(m->pinned_blocks, (int64_t)counts->pinned_blocks);
	okv_metric_set(m->pinned_bytes, (int64_t)counts->pinned_bytes);
	for (int i = 0; i < OKV__CLASSES; i++) {
		okv_metric_set(m->resident_blocks[i], (int64_t)counts->resident_blocks[i]);
		okv_metric_set(m->evictions_by_class[i], (int64_t)counts->evictions[i]);
	}
}

static void take_lease_counts(struct okv_manager *manager)
{
	static const int phase_of[OKV_LEASE_STATES] = {
		[OKV_LEASE_FREE] = -1, [OKV_LEASE_PREPARING] = 0, [OKV_LEASE_UNWANTED] = 0,
		[OKV_LEASE_READY] = 1, [OKV_LEASE_ACTIVE] = 2,	  [OKV_LEASE_QUARANTINED] = 3};
	struct okv__manager_metrics *m = &manager->metrics;
	int64_t bytes[OKV__LEASE_PHASES] = {0}, leases[OKV__LEASE_PHASES] = {0}, refs = 0, entries = 0;

	for (uint32_t i = 0; i < OKV_LEASES; i++) {
		int phase = phase_of[manager->leases.lease[i].state];

		if (phase < 0)
			continue;
		bytes[phase] += (int64_t)manager->leases.lease[i].bytes;
		leases[phase]++;
		refs += manager->held[i].count;
		entries++;
	}
	for (int i = 0; i < OKV__LEASE_PHASES; i++) {
		okv_metric_set(m->reserved_by_phase[i], bytes[i]);
		okv_metric_set(m->leases_by_phase[i], leases[i]);
	}
	okv_metric_set(m->reserved, (int64_t)manager->leases.held_bytes);
	okv_metric_set(m->pinned_entries, entries);
	okv_metric_set(m->pinned_refs, refs);
}

static void respond_metrics(struct okv_manager *manager, struct okv_http_exchange *exchange)
{
	struct okv_buf text = {0};

	take_store_counts(manager);
	take_lease_counts(manager);
	okv_metrics_render(manager->registry, &text);
	if (text.failed)
		okv_http_respond_error(exchange, 503, "no memory for the answer", "server_error", NULL, NULL);
	else
		okv_http_respond(exchange, 200, "text/plain; version=0.0.4; charset=utf-8", text.data, text.size);
	okv_buf_done(&text);
}

/* ---- instances, cleanup ---- */

static void respond_health(struct okv_manager *manager, struct okv_http_exchange *exchange)
{
	(void)manager;
	okv_http_respond(exchange, 200, "text/plain", "ok\n", 3);
}

static void write_session(struct okv_json_writer *writer, const struct okv__session *session)
{
	char id[17];

	snprintf(id, sizeof(id), "%016" PRIx64, session->id);
	okv_json_begin_object(writer);
	okv_json_key(writer, "session");
	okv_json_write_text(writer, id);
	okv_json_key(writer, "name");
	okv_json_write_text(writer, session->hello.name);
	okv_json_key(writer, "pid");
	okv_json_write_i64(writer, session->peer.pid);
	okv_json_key(writer, "page_bytes");
	okv_json_write_u64(writer, session->hello.page_bytes);
	okv_json_key(writer, "page_tokens");
	okv_json_write_u64(writer, session->hello.key.page_tokens);
	okv_json_key(writer, "arena_bytes");
	okv_json_write_u64(writer, session->hello.arena_bytes);
	okv_json_end_object(writer);
}

static void respond_instances(struct okv_manager *manager, struct okv_http_exchange *exchange)
{
	struct okv_buf body = {0};
	struct okv_json_writer writer = {.buf = &body};

	okv_json_begin_object(&writer);
	okv_json_key(&writer, "instances");
	okv_json_begin_array(&writer);
	OKV_LIST_EACH(node, &manager->sessions)
	{
		const struct okv__session *session = OKV_CONTAINER_OF(node, struct okv__session, node);

		if (session->state == OKV__SESSION_OPEN)
			write_session(&writer, session);
	}
	okv_json_end_array(&writer);
	okv_json_end_object(&writer);
	respond_json(exchange, &body);
}

static void respond_cleanup(struct okv_manager *manager, struct okv_http_exchange *exchange)
{
	struct okv_store_cleanup cleanup = okv_store_clean(manager->store);
	struct okv_buf body = {0};
	struct okv_json_writer writer = {.buf = &body};

	okv_json_begin_object(&writer);
	okv_json_key(&writer, "evicted_blocks");
	okv_json_write_u64(&writer, cleanup.evicted_blocks);
	okv_json_key(&writer, "evicted_bytes");
	okv_json_write_u64(&writer, cleanup.evicted_bytes);
	okv_json_key(&writer, "reclaimed_bytes");
	okv_json_write_u64(&writer, cleanup.reclaimed_bytes);
	okv_json_key(&writer, "still_referenced_blocks");
	okv_json_write_u64(&writer, cleanup.still_referenced_blocks);
	okv_json_end_object(&writer);
	respond_json(exchange, &body);
}

/* ---- sync ---- */

/* A POST /cache/sync that waits until `upto` jobs are done. */
struct sync {
	struct okv_list node;
	struct okv_manager *manager;
	struct okv_http_exchange *exchange;
	struct okv_timer timer;
	uint64_t upto;
};

static void free_sync(struct sync *sync)
{
	okv_timer_stop(&sync->timer);
	okv_list_remove(&sync->node);
	free(sync);
}

static void respond_synced(struct okv_http_exchange *exchange)
{
	static const char body[] = "{\"local_flush_complete\":true}\n";

	okv_http_respond(exchange, 200, "application/json", body, sizeof(body) - 1);
}

static void sync_is_late(void *context)
{
	struct sync *sync = context;

	okv_http_respond_error(sync->exchange, 504, "saves were still under way after 30 s", "server_error", NULL,
			       NULL);
	free_sync(sync);
}

static void sync_is_unwanted(void *context)
{
	struct sync *sync = context;

	okv_http_abort(sync->exchange);
	free_sync(sync);
}

/* Everything that engines have asked for by now is stored when the answer comes. */
static void respond_sync(struct okv_manager *manager, struct okv_http_exchange *exchange)
{
	const uint64_t limit_ns = 30 * OKV_NS_PER_S;
	struct sync *sync;

	okv__sessions_take_requests(manager);
	if (manager->jobs_done == manager->jobs_submitted) {
		respond_synced(exchange);
		return;
	}
	sync = calloc(1, sizeof(*sync));
	if (!sync) {
		okv_http_respond_error(exchange, 503, "no memory to wait", "server_error", NULL, NULL);
		return;
	}
	sync->manager = manager;
	sync->exchange = exchange;
	sync->upto = manager->jobs_submitted;
	okv_list_push_back(&manager->syncs, &sync->node);
	okv_timer_init(&sync->timer, manager->loop, sync_is_late, sync);
	okv_timer_start(&sync->timer, okv_loop_now_ns(manager->loop) + limit_ns);
	okv_http_on_hangup(exchange, sync_is_unwanted, sync);
}

void okv__admin_jobs_changed(struct okv_manager *manager)
{
	OKV_LIST_EACH_SAFE(node, &manager->syncs)
	{
		struct sync *sync = OKV_CONTAINER_OF(node, struct sync, node);

		if (sync->upto <= manager->jobs_done)
			respond_synced(sync->exchange);
		else if (manager->is_stopping)
			okv_http_respond_error(sync->exchange, 503, "the manager stops", "server_error", NULL, NULL);
		else
			continue;
		free_sync(sync);
	}
}

/* ---- routes ---- */

static const struct route {
	const char *method, *path;
	void (*respond)(struct okv_manager *manager, struct okv_http_exchange *exchange);
} routes[] = {
	{"GET", "/health", respond_health},
	{"GET", "/metrics", respond_metrics},
	{"GET", "/instances", respond_instances},
	{"POST", "/cache/sync", respond_sync},
	{"POST", "/cache/memory/cleanup", respond_cleanup},
};

void okv__admin_handle(void *context, struct okv_http_exchange *exchange)
{
	struct okv_manager *manager = context;
	const struct okv_http_request *request = okv_http_exchange_request(exchange);
	const char *allowed = NULL;

	for (size_t i = 0; i < sizeof(routes) / sizeof(routes[0]); i++) {
		if (strcmp(request->path, routes[i].path) != 0)
			continue;
		if (strcmp(request->method, routes[i].method) == 0) {
			routes[i].respond(manager, exchange);
			return;
		}
		allowed = routes[i].method;
	}
	if (allowed) {
		okv_http_exchange_add_header(exchange, "Allow", allowed);
		okv_http_respond_error(exchange, 405, "this path takes another method", "invalid_request_error", NULL,
				       NULL);
		return;
	}
	okv_http_respond_error(exchange, 404,
			       "there is no such path; see /health, /metrics, /instances, /cache/sync, "
			       "/cache/memory/cleanup",
			       "invalid_request_error", NULL, NULL);
}
