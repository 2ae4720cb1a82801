#include "peers.h"

#include <stdlib.h>
#include <string.h>

#include "okv/base/log.h"
#include "peers_object.h"

static const uint64_t overdue_ns = 120 * OKV_NS_PER_S; /* marks a hold; frees nothing */
static const uint64_t overdue_check_ns = 10 * OKV_NS_PER_S;

/* ---- metrics ---- */

static void create_metrics(struct okv_metrics *registry, struct okv__peers_metrics *m)
{
	static const char *const statuses[] = {"status=\"ok\"", "status=\"rejected\"", "status=\"error\""};
	/* Whether it went well; an authorisation or a release that does not is asked for again, and so is part of one
	 * that does. */
	static const char *const stages[OKV__STAGES][2] = {
		[OKV__STAGE_AUTHORISE] = {[true] = "stage=\"authorization\",status=\"ok\""},
		[OKV__STAGE_ALLOCATE] = {"stage=\"allocation\",status=\"error\"", "stage=\"allocation\",status=\"ok\""},
		[OKV__STAGE_READ] = {"stage=\"read\",status=\"error\"", "stage=\"read\",status=\"ok\""},
		[OKV__STAGE_RELEASE] = {[true] = "stage=\"release\",status=\"ok\""},
	};
	static const char *const reasons[] = {"reason=\"crc\"", "reason=\"length\"", "reason=\"identity\""};

#define COUNTER(field, name, labels, help) m->field = okv_counter(registry, "orbitkv_" name, labels, help)
#define GAUGE(field, name, help)	   m->field = okv_gauge(registry, "orbitkv_" name, "", help)
	GAUGE(lock_active, "transfer_lock_active", "Blocks pinned for reading by peers.");
	GAUGE(reserved_bytes, "transfer_reserved_bytes", "Bytes of blocks pinned for peers.");
	GAUGE(expired_sessions, "transfer_expired_sessions", "Reads of peers that are held for over two minutes.");
	COUNTER(lock_timeouts, "transfer_lock_timeouts_total", "",
		"Reads of peers that became overdue. None is freed.");
	COUNTER(rejected_bytes, "transfer_lock_rejections_total", "reason=\"bytes\"", "Reads refused to peers.");
	COUNTER(rejected_sessions, "transfer_lock_rejections_total", "reason=\"sessions\"", "Reads refused to peers.");
	COUNTER(authorised, "transfer_locks_total", "", "Reads authorised to peers.");
	COUNTER(readers_gone, "transfer_readers_gone_total", "",
		"Windows fenced and reads ended because their reader hung up.");
	GAUGE(completions, "transfer_completion_outstanding",
	      "Tickets at peers that are not acknowledged as released.");
	COUNTER(completion_retries, "transfer_completion_retries_total", "", "Releases asked for again.");
	COUNTER(completion_rejections, "transfer_completion_rejections_total", "", "Releases that a peer refused.");
	COUNTER(peers_gone, "transfer_completion_peers_gone_total", "", "Tickets that ended with their peer.");
	GAUGE(connected, "peers_connected", "Peers that can be asked.");
	COUNTER(fetch_bytes, "remote_fetch_bytes_total", "", "Bytes of verified blocks that came from peers.");
	COUNTER(coalesced, "query_coalesced_reads_total", "", "Blocks asked for while they were on their way already.");
	COUNTER(replans, "remote_fetch_replans_total", "", "Authorisations tried at another owner.");
#undef COUNTER
#undef GAUGE
	m->fetch_seconds = okv_histogram(registry, "orbitkv_remote_fetch_duration_seconds", "", "Whole fetches.");
	m->plan_segments = okv_histogram_of_counts(registry, "orbitkv_remote_fetch_plan_segments", "",
						   "Spans of one owner that a fetch tried.");
	m->plan_segments_completed =
		okv_histogram_of_counts(registry, "orbitkv_remote_fetch_plan_completed_segments", "",
					"Spans of one owner that came whole before their fetch ended.");
	for (int i = 0; i < OKV__FETCH_STATUSES; i++)
		m->fetches[i] = okv_counter(registry, "orbitkv_remote_fetch_total", statuses[i], "Fetches by outcome.");
	for (int i = 0; i < 2 * OKV__STAGES; i++)
		if (stages[i / 2][i % 2])
			m->stage_seconds[i / 2][i % 2] =
				okv_histogram(registry, "orbitkv_remote_stage_duration_seconds", stages[i / 2][i % 2],
					      "Stages of reads from peers.");
	for (int i = 0; i < OKV__VERIFICATIONS; i++)
		m->verification_failures[i] = okv_counter(registry, "orbitkv_remote_verification_failures_total",
							  reasons[i], "Blocks of peers refused.");
}

static void publish(struct okv_peers *peers)
{
	const struct okv_source_counts *source = okv_source_counts(peers->source);
	const struct okv_requester_counts *requester = okv_requester_counts(peers->requester);
	struct okv__peers_metrics *m = &peers->metrics;

#define SET(field, value) okv_metric_set(m->field, (int64_t)(value))
	SET(lock_active, source->active_blocks);
	SET(reserved_bytes, source->reserved_bytes);
	SET(expired_sessions, source->overdue_sessions);
	SET(lock_timeouts, source->timeouts);
	SET(rejected_bytes, source->rejections_bytes);
	SET(rejected_sessions, source->rejections_sessions);
	SET(authorised, source->authorised);
	SET(readers_gone, source->readers_gone);
	SET(completions, requester->completions_outstanding);
	SET(completion_retries, requester->completion_retries);
	SET(completion_rejections, requester->completion_rejections);
	SET(peers_gone, requester->peers_gone);
	SET(fetch_bytes, requester->fetched_bytes);
	SET(coalesced, requester->coalesced_wants);
	SET(replans, requester->replans);
	SET(verification_failures[0], requester->bad_crc);
	SET(verification_failures[1], requester->bad_length);
	SET(verification_failures[2], requester->bad_identity);
#undef SET
}

/* ---- what the cores want ---- */

static bool is_drained(const struct okv_peers *peers)
{
	return peers->drained && okv_list_is_empty(&peers->fetches) && okv_list_is_empty(&peers->reads) &&
	       okv_source_counts(peers->source)->sessions == 0;
}

void okv__peers_act(struct okv_peers *peers)
{
	uint64_t wake_ns;

	okv__peers_act_source(peers);
	okv__peers_act_requester(peers);
	publish(peers);
	wake_ns = okv_requester_wake_ns(peers->requester);
	if (wake_ns == UINT64_MAX)
		okv_timer_stop(&peers->requester_timer);
	else
		okv_timer_start(&peers->requester_timer, wake_ns);
	if (is_drained(peers))
		okv__peers_post_act(peers);
}

/* The last thing it does is to say that all is drained, since the object may be destroyed then. */
static void act_task(void *context)
{
	struct okv_peers *peers = context;
	void (*drained)(void *context);

	okv__peers_act(peers);
	peers->is_act_posted = false;
	if (!is_drained(peers))
		return;
	drained = peers->drained;
	peers->drained = NULL;
	drained(peers->drained_context);
}

void okv__peers_post_act(struct okv_peers *peers)
{
	if (peers->is_act_posted)
		return;
	peers->is_act_posted = true;
	okv_loop_post(peers->loop, &peers->act);
}

static void requester_due(void *context)
{
	struct okv_peers *peers = context;

	okv_requester_tick(peers->requester, okv_loop_now_ns(peers->loop));
	okv__peers_act(peers);
}

static void check_overdue(void *context)
{
	struct okv_peers *peers = context;
	uint64_t now_ns = okv_loop_now_ns(peers->loop);
	unsigned marked = okv_source_mark_overdue(peers->source, now_ns, overdue_ns);

	if (marked)
		okv_log(OKV_LOG_WARN, "peer", "%u reads of peers are held for over %d s; they stay pinned", marked,
			(int)(overdue_ns / OKV_NS_PER_S));
	publish(peers);
	okv_timer_start(&peers->overdue_timer, now_ns + overdue_check_ns);
}

static void mover_ready(void *context, bool readable, bool writable)
{
	struct okv_peers *peers = context;
	struct okv_mover_event event;

	(void)readable;
	(void)writable;
	while (okv_mover_poll(peers->mover, &event)) {
		if (event.kind == OKV_MOVER_GRANT_ENDED)
			okv_source_grant_ended(peers->source, event.id, event.reader_gone);
		else
			okv__peers_read_event(peers, &event);
	}
	okv__peers_act(peers);
}

/* ---- life ---- */

static enum okv_status create_cores(struct okv_peers *peers, const struct okv_peers_options *options)
{
	struct okv_requester_options requester = okv_requester_defaults();
	uint64_t limit_bytes = okv_store_counts(peers->store)->pool_bytes / 2;
	enum okv_status status = okv_source_create(&options->incarnation, limit_bytes, &peers->source);

	requester.incarnation = options->incarnation;
	if (status == OKV_OK)
		status = okv_requester_create(&requester, &peers->requester);
	peers->key = calloc(OKV__KEYS_MAX, sizeof(*peers->key));
	peers->remote = calloc(options->peer_count + 1, sizeof(*peers->remote));
	return status == OKV_OK && peers->key && peers->remote ? OKV_OK : OKV_ERR_NO_MEMORY;
}

static enum okv_status create_mover(struct okv_peers *peers, const struct okv_peers_options *options,
				    struct okv_reason *reason)
{
	const struct okv_mover_options mover = {.listen_address = options->listen_address, .faults = options->faults};
	enum okv_status status = okv_mover_create(&mover, &peers->mover, reason);

	if (status == OKV_OK)
		status = okv_watch_create(peers->loop, okv_mover_wait_fd(peers->mover), mover_ready, peers,
					  &peers->mover_watch, reason);
	if (status == OKV_OK)
		okv_watch_set(peers->mover_watch, true, false);
	return status;
}

static enum okv_status create_remotes(struct okv_peers *peers, const struct okv_peers_options *options,
				      struct okv_reason *reason)
{
	for (size_t i = 0; i < options->peer_count; i++) {
		enum okv_status status = okv__remote_init(peers, &peers->remote[i], options->peers[i], reason);

		if (status != OKV_OK)
			return status;
		peers->remote_count++;
	}
	return OKV_OK;
}

enum okv_status okv__peers_create(const struct okv_peers_options *options, struct okv_peers **ret_peers,
				  struct okv_reason *reason)
{
	struct okv_peers *peers = calloc(1, sizeof(*peers));
	enum okv_status status;

	if (!peers)
		return okv_refuse(reason, OKV_ERR_NO_MEMORY, "peer", "no memory for peers");
	peers->loop = options->loop;
	peers->store = options->store;
	peers->faults = options->faults;
	peers->registry = options->metrics;
	peers->incarnation = options->incarnation;
	peers->deadline_ns = options->deadline_ns;
	peers->listen_fd = -1;
	okv_list_init(&peers->inbound);
	okv_list_init(&peers->reads);
	okv_list_init(&peers->fetches);
	okv_timer_init(&peers->overdue_timer, peers->loop, check_overdue, peers);
	okv_timer_init(&peers->requester_timer, peers->loop, requester_due, peers);
	peers->act = (struct okv_task){.run = act_task, .context = peers};
	create_metrics(peers->registry, &peers->metrics);

	status = create_cores(peers, options);
	if (status != OKV_OK) {
		okv_refuse(reason, status, "peer", "no memory for peers");
		goto destroy;
	}
	if (options->listen_address && options->listen_address[0])
		status = okv__peers_listen(peers, options->listen_address, options->listen_port, reason);
	if (status == OKV_OK)
		status = create_mover(peers, options, reason);
	if (status == OKV_OK)
		status = create_remotes(peers, options, reason);
	if (status != OKV_OK)
		goto destroy;
	okv_timer_start(&peers->overdue_timer, okv_loop_now_ns(peers->loop) + overdue_check_ns);
	*ret_peers = peers;
	return OKV_OK;

destroy:
	okv__peers_destroy(peers);
	return status;
}

uint16_t okv__peers_port(const struct okv_peers *peers)
{
	return peers->port;
}

void okv__peers_add_key(struct okv_peers *peers, const struct okv_materialisation_key *key)
{
	struct okv_hash digest = okv_key_digest(key);

	for (unsigned i = 0; i < peers->key_count; i++)
		if (okv_hash_equal(&peers->key_digest[i], &digest))
			return;
	if (peers->key_count == OKV__KEYS_MAX)
		return; /* they are only for telling a difference */
	peers->key[peers->key_count] = *key;
	peers->key_digest[peers->key_count++] = digest;
}

void okv__peers_shutdown(struct okv_peers *peers, void (*drained)(void *context), void *context)
{
	peers->is_stopping = true;
	peers->drained = drained;
	peers->drained_context = context;
	okv_requester_stop(peers->requester, okv_loop_now_ns(peers->loop));
	okv__peers_stop_listening(peers);
	okv__peers_post_act(peers);
}

void okv__peers_destroy(struct okv_peers *peers)
{
	if (!peers)
		return;
	okv_timer_stop(&peers->overdue_timer);
	okv_timer_stop(&peers->requester_timer);
	okv__peers_stop_listening(peers);
	for (size_t i = 0; i < peers->remote_count; i++)
		okv__remote_close(&peers->remote[i]);
	okv_watch_destroy(peers->mover_watch);
	okv_mover_destroy(peers->mover);
	okv_source_destroy(peers->source);
	okv_requester_destroy(peers->requester);
	free(peers->key);
	free(peers->remote);
	free(peers);
}
