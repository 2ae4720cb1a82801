#include "okv/fabric/requester.h"

#include <stdlib.h>
#include <string.h>

#include "okv/base/alloc.h"
#include "okv/base/clock.h"
#include "requester_internal.h"

struct okv_requester_options okv_requester_defaults(void)
{
	return (struct okv_requester_options){
		.rpc_timeout_ns = 3 * OKV_NS_PER_S,
		.locate_wait_ns = 100 * OKV_NS_PER_MS,
		.backoff_first_ns = 100 * OKV_NS_PER_MS,
		.backoff_last_ns = 5 * OKV_NS_PER_S,
	};
}

/* --- things to do, and requests --------------------------------------------------------------------------------- */

void okv__todo_init(struct okv__todo *todo)
{
	okv_list_init(&todo->node);
}

void okv__todo_push(struct okv_requester *requester, struct okv__todo *todo, enum okv_requester_action_kind kind)
{
	OKV_ASSERT(okv_list_is_empty(&todo->node));
	todo->kind = kind;
	okv_list_push_back(&requester->todo, &todo->node);
}

void okv__rpc_init(struct okv__rpc *rpc, enum okv__rpc_kind kind, unsigned peer, void *object)
{
	okv__todo_init(&rpc->todo);
	okv_list_init(&rpc->in_flight);
	rpc->kind = kind;
	rpc->peer = peer;
	rpc->object = object;
	rpc->id = 0;
}

void okv__rpc_queue(struct okv_requester *requester, struct okv__rpc *rpc)
{
	OKV_ASSERT(rpc->id == 0);
	rpc->id = ++requester->last_rpc_id;
	okv__todo_push(requester, &rpc->todo, OKV_REQUESTER_SEND);
}

void okv__rpc_drop(struct okv__rpc *rpc)
{
	okv_list_remove(&rpc->todo.node);
	okv_list_remove(&rpc->in_flight);
	rpc->id = 0;
}

/* --- life -------------------------------------------------------------------------------------------------------- */

enum okv_status okv_requester_create(const struct okv_requester_options *options, struct okv_requester **ret_requester)
{
	struct okv_requester *requester = okv_alloc(1, sizeof(*requester));

	if (!requester)
		return OKV_ERR_NO_MEMORY;
	requester->peer = okv_alloc(OKV_REQUESTER_PEERS_MAX, sizeof(*requester->peer));
	if (!requester->peer || okv_map_init(&requester->by_hash) != OKV_OK) {
		free(requester->peer);
		free(requester);
		return OKV_ERR_NO_MEMORY;
	}
	requester->options = *options;
	okv_list_init(&requester->todo);
	okv_list_init(&requester->in_flight);
	okv_list_init(&requester->wants);
	okv_list_init(&requester->fetches);
	okv_list_init(&requester->done_fetches);
	okv_list_init(&requester->jobs);
	okv_list_init(&requester->transfers);
	*ret_requester = requester;
	return OKV_OK;
}

static void fetch_destroy(struct okv_fetch *fetch)
{
	free(fetch->want);
	free(fetch);
}

void okv_requester_destroy(struct okv_requester *requester)
{
	if (!requester)
		return;
	OKV_LIST_EACH_SAFE(node, &requester->transfers)
	free(OKV_CONTAINER_OF(node, struct okv__transfer, node));
	OKV_LIST_EACH_SAFE(node, &requester->jobs)
	okv__job_free(OKV_CONTAINER_OF(node, struct okv__job, node));
	OKV_LIST_EACH_SAFE(node, &requester->fetches)
	fetch_destroy(OKV_CONTAINER_OF(node, struct okv_fetch, node));
	OKV_LIST_EACH_SAFE(node, &requester->done_fetches)
	fetch_destroy(OKV_CONTAINER_OF(node, struct okv_fetch, node));
	OKV_LIST_EACH_SAFE(node, &requester->wants)
	free(OKV_CONTAINER_OF(node, struct okv_want, node));
	okv_map_done(&requester->by_hash);
	free(requester->peer);
	free(requester);
}

const struct okv_requester_counts *okv_requester_counts(const struct okv_requester *requester)
{
	return &requester->counts;
}

/* --- fetches ------------------------------------------------------------------------------------------------------ */

/* Writes down the result and hands the fetch to the driver. `status` is for wants that are not settled. */
static void fetch_end(struct okv_requester *requester, struct okv_fetch *fetch, enum okv_status status)
{
	struct okv_fetch_result *result = &fetch->result;

	while (result->leading < fetch->count && fetch->want[result->leading]->state == OKV__WANT_LANDED)
		result->bytes += fetch->want[result->leading++]->bytes;
	if (result->leading == fetch->count) {
		status = OKV_OK;
	} else if (fetch->want[result->leading]->state == OKV__WANT_FAILED) {
		status = fetch->want[result->leading]->failure;
		memcpy(result->field, fetch->want[result->leading]->field, sizeof(result->field));
	}
	result->status = status;
	OKV_LIST_EACH(node, &requester->jobs)
	{
		struct okv__job *job = OKV_CONTAINER_OF(node, struct okv__job, node);

		if (job->fetch == fetch)
			job->fetch = NULL;
	}
	fetch->is_done = true;
	okv_list_remove(&fetch->node);
	okv_list_push_back(&requester->done_fetches, &fetch->node);
	okv__todo_push(requester, &fetch->todo, OKV_REQUESTER_DONE);
}

/* Ends the fetches whose wants are settled. Every event ends with this. */
static void review(struct okv_requester *requester)
{
	OKV_LIST_EACH_SAFE(node, &requester->fetches)
	{
		struct okv_fetch *fetch = OKV_CONTAINER_OF(node, struct okv_fetch, node);

		while (fetch->settled < fetch->count && fetch->want[fetch->settled]->state != OKV__WANT_OPEN)
			fetch->settled++;
		if (fetch->settled == fetch->count)
			fetch_end(requester, fetch, OKV_OK);
	}
}

static struct okv_want *want_of(struct okv_requester *requester, const struct okv_hash *hash)
{
	for (struct okv_map_node *node = okv_map_first(&requester->by_hash, okv_table_hash(hash, sizeof(*hash))); node;
	     node = okv_map_next(node)) {
		struct okv_want *want = OKV_CONTAINER_OF(node, struct okv_want, by_hash);

		if (okv_hash_equal(&want->block.hash, hash))
			return want;
	}
	return NULL;
}

static struct okv_want *want_create(struct okv_requester *requester, const struct okv_fetch_block *block,
				    uint64_t bytes)
{
	struct okv_want *want = okv_alloc(1, sizeof(*want));

	if (!want)
		return NULL;
	want->block = *block;
	want->bytes = bytes;
	okv__todo_init(&want->todo);
	okv_list_init(&want->node);
	okv_list_push_back(&requester->wants, &want->node);
	okv_map_insert(&requester->by_hash, &want->by_hash, okv_table_hash(&block->hash, sizeof(block->hash)));
	requester->counts.wants++;
	return want;
}

/* Adds a want to the fetch, and to the job if nobody was fetching it. */
static bool add_want(struct okv_requester *requester, struct okv_fetch *fetch, struct okv__job *job,
		     const struct okv_fetch_block *block)
{
	struct okv_want *want = want_of(requester, &block->hash);

	if (!want) {
		want = want_create(requester, block, job->block_bytes);
		if (!want)
			return false;
		want->job = job;
		job->want[job->count++] = want;
	} else {
		requester->counts.coalesced_wants++;
		if (want->job && !want->job->is_over && want->job->deadline_ns < fetch->deadline_ns)
			want->job->deadline_ns = fetch->deadline_ns;
	}
	want->fetches++;
	fetch->want[fetch->count++] = want;
	return true;
}

/* Undoes a fetch that could not be started. */
static void fetch_undo(struct okv_requester *requester, struct okv_fetch *fetch, struct okv__job *job)
{
	for (uint16_t i = 0; job && i < job->count; i++) {
		okv__want_fail(requester, job->want[i], OKV_ERR_NO_MEMORY);
		job->want[i]->job = NULL;
	}
	okv__job_free(job);
	for (uint32_t i = 0; fetch->want && i < fetch->count; i++)
		okv__want_unref(requester, fetch->want[i]);
	fetch_destroy(fetch);
}

enum okv_status okv_requester_fetch(struct okv_requester *requester, const struct okv_materialisation_key *key,
				    uint64_t block_bytes, const struct okv_fetch_block *block, uint32_t count,
				    uint64_t deadline_ns, uint64_t now_ns, void *context, struct okv_fetch **ret_fetch)
{
	struct okv_fetch *fetch;
	struct okv__job *job = NULL;

	if (count == 0 || count > OKV_PEER_LOCATE_MAX || block_bytes == 0)
		return OKV_ERR_INVALID;
	fetch = okv_alloc(1, sizeof(*fetch));
	if (!fetch)
		return OKV_ERR_NO_MEMORY;
	fetch->deadline_ns = deadline_ns;
	fetch->context = context;
	fetch->want = okv_alloc(count, sizeof(struct okv_want *));
	okv__todo_init(&fetch->todo);
	okv_list_init(&fetch->node);
	if (!fetch->want)
		goto undo;
	job = okv__job_create(requester, key, block_bytes, (uint16_t)count, deadline_ns);
	if (!job)
		goto undo;
	for (uint32_t i = 0; i < count; i++)
		if (!add_want(requester, fetch, job, &block[i]))
			goto undo;

	okv_list_push_back(&requester->fetches, &fetch->node);
	requester->counts.fetches++;
	if (job->count == 0) {
		okv__job_free(job);
	} else {
		job->fetch = fetch;
		okv_list_push_back(&requester->jobs, &job->node);
		okv__job_locate(requester, job, now_ns);
	}
	review(requester);
	*ret_fetch = fetch;
	return OKV_OK;

undo:
	fetch_undo(requester, fetch, job);
	return OKV_ERR_NO_MEMORY;
}

void okv_requester_cancel(struct okv_requester *requester, struct okv_fetch *fetch)
{
	if (!fetch->is_done)
		fetch_end(requester, fetch, OKV_ERR_CANCELLED);
}

struct okv_fetch_result okv_fetch_result(const struct okv_fetch *fetch)
{
	return fetch->result;
}

void *okv_fetch_context(const struct okv_fetch *fetch)
{
	return fetch->context;
}

bool okv_fetch_landed(const struct okv_fetch *fetch, uint32_t index, void **ret_handle)
{
	OKV_ASSERT(index < fetch->count);
	if (fetch->want[index]->state != OKV__WANT_LANDED)
		return false;
	*ret_handle = fetch->want[index]->handle;
	return true;
}

void okv_requester_fetch_free(struct okv_requester *requester, struct okv_fetch *fetch)
{
	OKV_ASSERT(fetch->is_done && okv_list_is_empty(&fetch->todo.node));
	for (uint32_t i = 0; i < fetch->count; i++)
		okv__want_unref(requester, fetch->want[i]);
	okv_list_remove(&fetch->node);
	fetch_destroy(fetch);
	requester->counts.fetches--;

	/* Jobs that nobody waits for any more go on only as far as a READ that was submitted. */
	OKV_LIST_EACH_SAFE(node, &requester->jobs)
	{
		struct okv__job *job = OKV_CONTAINER_OF(node, struct okv__job, node);

		if (!okv__job_is_wanted(job))
			okv__job_advance(requester, job, 0);
	}
	review(requester);
}

/* --- peers -------------------------------------------------------------------------------------------------------- */

enum okv_status okv_requester_peer(struct okv_requester *requester, unsigned *ret_peer)
{
	if (requester->peer_count == OKV_REQUESTER_PEERS_MAX)
		return OKV_ERR_BUDGET;
	*ret_peer = requester->peer_count;
	okv__rpc_init(&requester->peer[requester->peer_count].open, OKV__RPC_OPEN, requester->peer_count, NULL);
	requester->peer_count++;
	return OKV_OK;
}

/* Looks again at the releases that wait for this peer. */
static void ask_waiting_releases(struct okv_requester *requester, unsigned peer)
{
	OKV_LIST_EACH_SAFE(node, &requester->transfers)
	{
		struct okv__transfer *transfer = OKV_CONTAINER_OF(node, struct okv__transfer, node);

		if (transfer->seen.peer == peer && transfer->state == OKV__RELEASING && transfer->rpc.id == 0)
			okv__transfer_ask_release(requester, transfer);
	}
}

void okv_requester_connected(struct okv_requester *requester, unsigned peer, const struct okv_uuid *owner,
			     uint64_t now_ns)
{
	struct okv__peer *at = &requester->peer[peer];

	if (at->is_connected)
		okv_requester_disconnected(requester, peer, now_ns);
	at->is_connected = true;
	at->is_silent = false;
	at->is_owner_known = true;
	at->owner = *owner;
	ask_waiting_releases(requester, peer);
}

void okv_requester_disconnected(struct okv_requester *requester, unsigned peer, uint64_t now_ns)
{
	struct okv__peer *at = &requester->peer[peer];

	at->is_connected = false;
	at->has_window = false; /* the source fences it when it sees this, too */
	okv__rpc_drop(&at->open);
	OKV_LIST_EACH_SAFE(node, &requester->transfers)
	{
		struct okv__transfer *transfer = OKV_CONTAINER_OF(node, struct okv__transfer, node);

		if (transfer->seen.peer != peer || transfer->state == OKV__READING)
			continue;
		if (transfer->state != OKV__RELEASING) {
			okv__transfer_lost(requester, transfer, now_ns);
		} else if (transfer->rpc.id != 0) {
			okv__rpc_drop(&transfer->rpc);
			requester->counts.completion_retries++;
			transfer->resend_ns = UINT64_MAX;
		}
	}
	OKV_LIST_EACH_SAFE(node, &requester->jobs)
	{
		struct okv__job *job = OKV_CONTAINER_OF(node, struct okv__job, node);

		okv__job_reject_peer(job, peer);
		okv__job_advance(requester, job, now_ns);
	}
	review(requester);
}

void okv_requester_refused(struct okv_requester *requester, unsigned peer, uint64_t now_ns)
{
	if (requester->peer[peer].is_connected)
		okv_requester_disconnected(requester, peer, now_ns);
	requester->peer[peer].is_owner_known = false;
	ask_waiting_releases(requester, peer);
}

static struct okv__rpc *rpc_of(struct okv_requester *requester, unsigned peer, uint64_t id)
{
	OKV_LIST_EACH(node, &requester->in_flight)
	{
		struct okv__rpc *rpc = OKV_CONTAINER_OF(node, struct okv__rpc, in_flight);

		if (rpc->id == id && rpc->peer == peer)
			return rpc;
	}
	return NULL;
}

static bool take_reply(struct okv_requester *requester, struct okv__rpc *rpc, const struct okv_peer_message *message,
		       uint64_t now_ns)
{
	static const enum okv_peer_type expected[] = {
		[OKV__RPC_LOCATE] = OKV_PEER_LOCATED,
		[OKV__RPC_OPEN] = OKV_PEER_WINDOW,
		[OKV__RPC_AUTHORISE] = OKV_PEER_AUTHORISED,
		[OKV__RPC_RELEASE] = OKV_PEER_RELEASED,
	};

	if (message->type != expected[rpc->kind])
		return false;
	okv__rpc_drop(rpc);
	switch (rpc->kind) {
	case OKV__RPC_LOCATE:
		return okv__job_located(requester, rpc->object, rpc->peer, message, now_ns);
	case OKV__RPC_OPEN:
		requester->counts.refusals[message->window.refusal]++;
		okv__window_settled(requester, rpc->peer,
				    message->window.refusal == OKV_PEER_GRANTED ? &message->window.window : NULL,
				    now_ns);
		return true;
	case OKV__RPC_AUTHORISE:
		okv__transfer_authorised(requester, rpc->object, message, now_ns);
		return true;
	case OKV__RPC_RELEASE:
		okv__transfer_released(requester, rpc->object, message->released.refusal, now_ns);
		return true;
	}
	return false;
}

bool okv_requester_reply(struct okv_requester *requester, unsigned peer, const struct okv_peer_message *message,
			 uint64_t now_ns)
{
	struct okv__rpc *rpc = rpc_of(requester, peer, message->request_id);
	bool is_fit = message->type == OKV_PEER_LOCATED || message->type == OKV_PEER_WINDOW ||
		      message->type == OKV_PEER_AUTHORISED || message->type == OKV_PEER_RELEASED;

	requester->peer[peer].is_silent = false;
	if (is_fit && rpc)
		is_fit = take_reply(requester, rpc, message, now_ns);
	review(requester);
	return is_fit;
}

/* --- what the driver did ------------------------------------------------------------------------------------------ */

static struct okv__transfer *inner(struct okv_transfer *transfer)
{
	return OKV_CONTAINER_OF(transfer, struct okv__transfer, seen);
}

/* The transfer reads no more. What did not land is missing, and so is the rest of the prefix behind it. */
static void end_reading(struct okv_requester *requester, struct okv__transfer *transfer, enum okv_status status,
			uint64_t now_ns)
{
	struct okv__job *job = transfer->job;
	bool is_whole = true;

	for (uint16_t i = 0; i < transfer->seen.count; i++) {
		struct okv_want *want = job->want[transfer->first_want + i];

		okv__want_fail(requester, want, status == OKV_OK ? OKV_ERR_DAMAGED : status);
		is_whole = is_whole && want->state == OKV__WANT_LANDED;
	}
	if (!is_whole)
		okv__job_cut(requester, job, status == OKV_OK ? OKV_ERR_DAMAGED : status);
	okv__transfer_close(requester, transfer);
	okv__job_advance(requester, job, now_ns);
	review(requester);
}

void okv_requester_submitted(struct okv_requester *requester, struct okv_transfer *transfer, enum okv_status status,
			     uint64_t now_ns)
{
	struct okv__transfer *reading = inner(transfer);

	OKV_ASSERT(reading->state == OKV__READING && !reading->is_submitted);
	if (status != OKV_OK) {
		end_reading(requester, reading, status, now_ns);
		return;
	}
	reading->is_submitted = true;
	requester->counts.reading++;
	if (reading->job->is_over) {
		reading->is_cancelled = true;
		okv__todo_push(requester, &reading->todo, OKV_REQUESTER_CANCEL_READ);
	}
}

static struct okv_want *want_at(struct okv_transfer *transfer, uint16_t index)
{
	struct okv__transfer *reading = inner(transfer);

	OKV_ASSERT(reading->state == OKV__READING && reading->is_submitted && index < transfer->count);
	return reading->job->want[reading->first_want + index];
}

enum okv_status okv_requester_landed(struct okv_requester *requester, struct okv_transfer *transfer, uint16_t index,
				     const struct okv_crc *crc)
{
	struct okv_want *want = want_at(transfer, index);

	if (okv_crc_equal(crc, &transfer->block[index].crc))
		return OKV_OK;
	requester->counts.bad_crc++;
	okv__want_fail(requester, want, OKV_ERR_DAMAGED);
	review(requester);
	return OKV_ERR_DAMAGED;
}

void okv_requester_committed(struct okv_requester *requester, struct okv_transfer *transfer, uint16_t index,
			     void *handle)
{
	struct okv_want *want = want_at(transfer, index);
	struct okv__transfer *reading = inner(transfer);

	OKV_ASSERT(want->state == OKV__WANT_OPEN);
	want->state = OKV__WANT_LANDED;
	want->handle = handle;
	if (++reading->landed == transfer->count && reading->job->fetch)
		reading->job->fetch->result.segments_completed++;
	requester->counts.fetched_blocks++;
	requester->counts.fetched_bytes += want->bytes;
	review(requester);
}

void okv_requester_read_ended(struct okv_requester *requester, struct okv_transfer *transfer, enum okv_status status,
			      uint64_t now_ns)
{
	struct okv__transfer *reading = inner(transfer);

	OKV_ASSERT(reading->state == OKV__READING && reading->is_submitted);
	requester->counts.reading--;
	end_reading(requester, reading, reading->is_cancelled && status != OKV_OK ? OKV_ERR_DEADLINE : status, now_ns);
}

/* --- time --------------------------------------------------------------------------------------------------------- */

static void rpc_timed_out(struct okv_requester *requester, struct okv__rpc *rpc, uint64_t now_ns)
{
	struct okv__job *job;

	okv__rpc_drop(rpc);
	requester->peer[rpc->peer].is_silent = true;
	switch (rpc->kind) {
	case OKV__RPC_LOCATE:
		job = rpc->object;
		okv__job_reject_peer(job, rpc->peer);
		okv__job_advance(requester, job, now_ns);
		return;
	case OKV__RPC_OPEN:
		okv__window_settled(requester, rpc->peer, NULL, now_ns);
		return;
	case OKV__RPC_AUTHORISE:
		okv__transfer_lost(requester, rpc->object, now_ns);
		return;
	case OKV__RPC_RELEASE:
		okv__transfer_back_off(requester, rpc->object, now_ns);
		return;
	}
}

static struct okv__rpc *oldest_rpc(const struct okv_requester *requester)
{
	return okv_list_is_empty(&requester->in_flight)
		       ? NULL
		       : OKV_CONTAINER_OF(requester->in_flight.next, struct okv__rpc, in_flight);
}

void okv_requester_stop(struct okv_requester *requester, uint64_t now_ns)
{
	OKV_LIST_EACH_SAFE(node, &requester->fetches)
	fetch_end(requester, OKV_CONTAINER_OF(node, struct okv_fetch, node), OKV_ERR_CANCELLED);
	OKV_LIST_EACH_SAFE(node, &requester->jobs)
	okv__job_deadline(requester, OKV_CONTAINER_OF(node, struct okv__job, node), now_ns);
}

void okv_requester_tick(struct okv_requester *requester, uint64_t now_ns)
{
	for (struct okv__rpc *rpc; (rpc = oldest_rpc(requester)) && rpc->deadline_ns <= now_ns;)
		rpc_timed_out(requester, rpc, now_ns);
	OKV_LIST_EACH_SAFE(node, &requester->transfers)
	{
		struct okv__transfer *transfer = OKV_CONTAINER_OF(node, struct okv__transfer, node);

		if (transfer->state == OKV__RELEASING && transfer->rpc.id == 0 && transfer->resend_ns <= now_ns)
			okv__transfer_ask_release(requester, transfer);
	}
	OKV_LIST_EACH_SAFE(node, &requester->fetches)
	{
		struct okv_fetch *fetch = OKV_CONTAINER_OF(node, struct okv_fetch, node);

		if (fetch->deadline_ns <= now_ns)
			fetch_end(requester, fetch, OKV_ERR_DEADLINE);
	}
	OKV_LIST_EACH_SAFE(node, &requester->jobs)
	{
		struct okv__job *job = OKV_CONTAINER_OF(node, struct okv__job, node);

		if (!job->is_over && job->deadline_ns <= now_ns)
			okv__job_deadline(requester, job, now_ns);
		else if (job->is_locating && job->locate_until_ns <= now_ns)
			okv__job_advance(requester, job, now_ns);
	}
	review(requester);
}

static uint64_t sooner(uint64_t a, uint64_t b)
{
	return a < b ? a : b;
}

uint64_t okv_requester_wake_ns(const struct okv_requester *requester)
{
	const struct okv__rpc *rpc = oldest_rpc(requester);
	uint64_t wake = rpc ? rpc->deadline_ns : UINT64_MAX;

	OKV_LIST_EACH(node, &requester->transfers)
	{
		const struct okv__transfer *transfer = OKV_CONTAINER_OF(node, struct okv__transfer, node);

		if (transfer->state == OKV__RELEASING && transfer->rpc.id == 0)
			wake = sooner(wake, transfer->resend_ns);
	}
	OKV_LIST_EACH(node, &requester->fetches)
	wake = sooner(wake, OKV_CONTAINER_OF(node, struct okv_fetch, node)->deadline_ns);
	OKV_LIST_EACH(node, &requester->jobs)
	{
		const struct okv__job *job = OKV_CONTAINER_OF(node, struct okv__job, node);

		if (job->is_locating)
			wake = sooner(wake, job->locate_until_ns);
		if (!job->is_over)
			wake = sooner(wake, job->deadline_ns);
	}
	return wake;
}

/* --- actions ------------------------------------------------------------------------------------------------------ */

static void build_locate(const struct okv__job *job, struct okv_peer_message *message)
{
	message->type = OKV_PEER_LOCATE;
	message->locate.key_size = job->key_size;
	memcpy(message->locate.key, job->key, job->key_size);
	message->locate.count = job->count;
	for (uint16_t i = 0; i < job->count; i++)
		message->locate.hash[i] = job->want[i]->block.hash;
}

static void build_authorise(const struct okv__transfer *transfer, struct okv_peer_message *message)
{
	const struct okv__job *job = transfer->job;

	message->type = OKV_PEER_AUTHORISE;
	message->authorise.ticket = transfer->seen.ticket;
	message->authorise.owner = transfer->seen.owner;
	message->authorise.key_digest = job->key_digest;
	message->authorise.count = transfer->seen.count;
	for (uint16_t i = 0; i < transfer->seen.count; i++) {
		size_t want = (size_t)transfer->first_want + i;

		message->authorise.wanted[i].hash = job->want[want]->block.hash;
		message->authorise.wanted[i].generation =
			job->location[(size_t)transfer->seen.peer * job->count + want].generation;
	}
}

static void send(struct okv_requester *requester, struct okv__rpc *rpc, uint64_t now_ns,
		 struct okv_peer_message *message)
{
	struct okv__transfer *transfer = rpc->object;

	switch (rpc->kind) {
	case OKV__RPC_LOCATE:
		build_locate(rpc->object, message);
		break;
	case OKV__RPC_OPEN:
		message->type = OKV_PEER_OPEN_WINDOW;
		message->open_window.owner = requester->peer[rpc->peer].owner;
		message->open_window.requester = requester->options.incarnation;
		break;
	case OKV__RPC_AUTHORISE:
		build_authorise(transfer, message);
		transfer->seen.asked_ns = now_ns;
		break;
	case OKV__RPC_RELEASE:
		message->type = OKV_PEER_RELEASE;
		message->release = transfer->seen.ticket;
		if (transfer->release_asked_ns == 0)
			transfer->release_asked_ns = now_ns;
		break;
	}
	message->request_id = rpc->id;
	rpc->deadline_ns = now_ns + requester->options.rpc_timeout_ns;
	okv_list_push_back(&requester->in_flight, &rpc->in_flight);
}

bool okv_requester_next(struct okv_requester *requester, uint64_t now_ns, struct okv_requester_action *ret_action,
			struct okv_peer_message *ret_message)
{
	if (okv_list_is_empty(&requester->todo))
		return false;
	struct okv__todo *todo = OKV_CONTAINER_OF(requester->todo.next, struct okv__todo, node);
	struct okv_requester_action action = {.kind = todo->kind};
	struct okv_want *want;
	struct okv__rpc *rpc;

	okv_list_remove(&todo->node);
	switch (todo->kind) {
	case OKV_REQUESTER_SEND:
		rpc = OKV_CONTAINER_OF(todo, struct okv__rpc, todo);
		action.peer = rpc->peer;
		send(requester, rpc, now_ns, ret_message);
		break;
	case OKV_REQUESTER_SUBMIT:
	case OKV_REQUESTER_CANCEL_READ:
		action.transfer = &OKV_CONTAINER_OF(todo, struct okv__transfer, todo)->seen;
		action.peer = action.transfer->peer;
		break;
	case OKV_REQUESTER_DONE:
		action.fetch = OKV_CONTAINER_OF(todo, struct okv_fetch, todo);
		break;
	case OKV_REQUESTER_UNPIN:
		want = OKV_CONTAINER_OF(todo, struct okv_want, todo);
		action.handle = want->handle;
		okv_list_remove(&want->node);
		free(want);
		break;
	}
	*ret_action = action;
	return true;
}
