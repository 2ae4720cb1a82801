#include <stdlib.h>
#include <string.h>

#include "okv/base/alloc.h"
#include "requester_internal.h"

/* One transfer: from a free slot to the acknowledged release of its ticket. */

static struct okv__peer *peer_of(struct okv_requester *requester, const struct okv__transfer *transfer)
{
	return &requester->peer[transfer->seen.peer];
}

static bool has_ticket(const struct okv__transfer *transfer)
{
	return transfer->state != OKV__WAIT_WINDOW;
}

static int free_slot(const struct okv__peer *peer)
{
	for (int i = 0; i < OKV_REQUESTER_SLOTS; i++)
		if (!peer->slot[i].is_busy)
			return i;
	return -1;
}

/* NULL if the peer has no free slot, there are too many transfers, or memory is out. */
struct okv__transfer *okv__transfer_create(struct okv_requester *requester, struct okv__job *job, unsigned peer,
					   uint16_t first_want, uint16_t count)
{
	int slot = free_slot(&requester->peer[peer]);
	struct okv__transfer *transfer;

	if (slot < 0 || requester->counts.transfers == OKV_REQUESTER_TRANSFERS_MAX)
		return NULL;
	transfer = okv_alloc(1, sizeof(*transfer));
	if (!transfer)
		return NULL;
	transfer->seen.peer = peer;
	transfer->seen.owner = requester->peer[peer].owner;
	transfer->seen.ticket.slot = (uint32_t)slot;
	transfer->seen.count = count;
	transfer->job = job;
	transfer->first_want = first_want;
	transfer->state = OKV__WAIT_WINDOW;
	okv__todo_init(&transfer->todo);
	okv__rpc_init(&transfer->rpc, OKV__RPC_AUTHORISE, peer, transfer);
	okv_list_init(&transfer->node);
	okv_list_push_back(&requester->transfers, &transfer->node);
	if (job->fetch)
		job->fetch->result.segments++;
	requester->peer[peer].slot[slot].is_busy = true;
	requester->counts.transfers++;
	return transfer;
}

static void gone(struct okv_requester *requester, struct okv__transfer *transfer)
{
	OKV_ASSERT(!transfer->job);
	peer_of(requester, transfer)->slot[transfer->seen.ticket.slot].is_busy = false;
	if (has_ticket(transfer))
		requester->counts.completions_outstanding--;
	requester->counts.transfers--;
	okv__rpc_drop(&transfer->rpc);
	okv_list_remove(&transfer->todo.node);
	okv_list_remove(&transfer->node);
	free(transfer);
}

static void authorise(struct okv_requester *requester, struct okv__transfer *transfer)
{
	struct okv__peer *peer = peer_of(requester, transfer);
	struct okv_ticket *ticket = &transfer->seen.ticket;

	ticket->window = peer->window;
	ticket->generation = ++peer->slot[ticket->slot].generation; /* R3 */
	transfer->state = OKV__AUTHORISING;
	requester->counts.completions_outstanding++;
	okv__rpc_queue(requester, &transfer->rpc);
}

/* Asks for authorisation, after a window if there is none; one request for a window serves all who wait. */
void okv__transfer_begin(struct okv_requester *requester, struct okv__transfer *transfer)
{
	struct okv__peer *peer = peer_of(requester, transfer);

	if (peer->has_window)
		authorise(requester, transfer);
	else if (peer->open.id == 0)
		okv__rpc_queue(requester, &peer->open);
}

static void leave_job(struct okv__transfer *transfer)
{
	struct okv__job *job = transfer->job;

	if (!job)
		return;
	if (job->next == transfer)
		job->next = NULL;
	if (job->reading == transfer)
		job->reading = NULL;
	transfer->job = NULL;
}

/* Whether the incarnation that may hold our ticket can still be asked, now or later. */
static bool owner_may_live(struct okv_requester *requester, const struct okv__transfer *transfer)
{
	const struct okv__peer *peer = peer_of(requester, transfer);

	return peer->is_owner_known && okv_uuid_equal(&peer->owner, &transfer->seen.owner);
}

/* RELEASING, not asked yet: asks, or waits for the connection, or finds that there is nobody left to ask. */
void okv__transfer_ask_release(struct okv_requester *requester, struct okv__transfer *transfer)
{
	if (!owner_may_live(requester, transfer)) {
		requester->counts.peers_gone++;
		gone(requester, transfer);
		return;
	}
	transfer->resend_ns = UINT64_MAX;
	if (peer_of(requester, transfer)->is_connected)
		okv__rpc_queue(requester, &transfer->rpc);
}

void okv__transfer_close(struct okv_requester *requester, struct okv__transfer *transfer)
{
	leave_job(transfer);
	okv__rpc_drop(&transfer->rpc);
	okv_list_remove(&transfer->todo.node);
	if (!has_ticket(transfer)) {
		gone(requester, transfer);
		return;
	}
	transfer->state = OKV__RELEASING;
	transfer->rpc.kind = OKV__RPC_RELEASE;
	transfer->backoff_ns = requester->options.backoff_first_ns;
	okv__transfer_ask_release(requester, transfer);
}

/* The answer to a release was lost or was a refusal: asks again later, and never stops doing so (R2). */
void okv__transfer_back_off(struct okv_requester *requester, struct okv__transfer *transfer, uint64_t now_ns)
{
	requester->counts.completion_retries++;
	transfer->resend_ns = now_ns + transfer->backoff_ns;
	transfer->backoff_ns *= 2;
	if (transfer->backoff_ns > requester->options.backoff_last_ns)
		transfer->backoff_ns = requester->options.backoff_last_ns;
}

void okv__transfer_released(struct okv_requester *requester, struct okv__transfer *transfer,
			    enum okv_peer_refusal refusal, uint64_t now_ns)
{
	if (refusal == OKV_PEER_GRANTED) {
		requester->counts.releases++;
		requester->counts.last_release_ns = now_ns - transfer->release_asked_ns;
		gone(requester, transfer);
		return;
	}
	requester->counts.completion_rejections++;
	okv__transfer_back_off(requester, transfer, now_ns);
}

void okv__transfer_lost(struct okv_requester *requester, struct okv__transfer *transfer, uint64_t now_ns)
{
	struct okv__job *job = transfer->job;
	uint16_t first_want = transfer->first_want;

	okv__job_reject_peer(job, transfer->seen.peer);
	okv__transfer_close(requester, transfer);
	okv__job_replan(requester, job, first_want);
	okv__job_advance(requester, job, now_ns);
}

/* A refusal is an answer: nothing is pinned, and the ticket needs no release. */
static void refused(struct okv_requester *requester, struct okv__transfer *transfer, enum okv_peer_refusal refusal,
		    uint64_t now_ns)
{
	struct okv__peer *peer = peer_of(requester, transfer);
	struct okv__job *job = transfer->job;
	uint16_t first_want = transfer->first_want;

	requester->counts.refusals[refusal]++;
	if (refusal == OKV_PEER_REFUSED_WINDOW && okv_uuid_equal(&peer->window, &transfer->seen.ticket.window))
		peer->has_window = false;
	if (refusal != OKV_PEER_REFUSED_WINDOW || job->window_retries++ >= OKV_REQUESTER_REPLANS_MAX)
		okv__job_reject_peer(job, transfer->seen.peer);
	leave_job(transfer);
	gone(requester, transfer);
	okv__job_replan(requester, job, first_want);
	okv__job_advance(requester, job, now_ns);
}

/* Whether what the source would send is what was asked for; counts why not. */
static bool check_blocks(struct okv_requester *requester, const struct okv__transfer *transfer,
			 const struct okv_peer_message *message)
{
	const struct okv__job *job = transfer->job;
	struct okv_requester_counts *counts = &requester->counts;

	if (message->authorised.count != transfer->seen.count) {
		counts->bad_length++;
		return false;
	}
	for (uint16_t i = 0; i < transfer->seen.count; i++) {
		const struct okv_peer_authorised *block = &message->authorised.block[i];
		const struct okv_want *want = job->want[transfer->first_want + i];

		if (!okv_hash_equal(&block->hash, &want->block.hash) ||
		    !okv_hash_equal(&block->parent, &want->block.parent) ||
		    !okv_hash_equal(&block->lineage, &want->block.lineage) ||
		    !okv_hash_equal(&block->key_digest, &job->key_digest) ||
		    block->token_count != want->block.token_count) {
			counts->bad_identity++;
			return false;
		}
		if (block->length != job->block_bytes) {
			counts->bad_length++;
			return false;
		}
	}
	return true;
}

void okv__transfer_authorised(struct okv_requester *requester, struct okv__transfer *transfer,
			      const struct okv_peer_message *message, uint64_t now_ns)
{
	struct okv__job *job = transfer->job;

	if (message->authorised.refusal != OKV_PEER_GRANTED) {
		refused(requester, transfer, message->authorised.refusal, now_ns);
		return;
	}
	if (!check_blocks(requester, transfer, message)) {
		okv__transfer_lost(requester, transfer, now_ns); /* pinned over there, and of no use */
		return;
	}
	memcpy(transfer->seen.token, message->authorised.token, sizeof(transfer->seen.token));
	memcpy(transfer->seen.block, message->authorised.block, transfer->seen.count * sizeof(transfer->seen.block[0]));
	transfer->state = OKV__READY;
	okv__job_advance(requester, job, now_ns);
}

void okv__transfer_submit(struct okv_requester *requester, struct okv__transfer *transfer)
{
	transfer->state = OKV__READING;
	transfer->job->next = NULL;
	transfer->job->reading = transfer;
	okv__todo_push(requester, &transfer->todo, OKV_REQUESTER_SUBMIT);
}

void okv__window_settled(struct okv_requester *requester, unsigned peer, const struct okv_uuid *window, uint64_t now_ns)
{
	if (window) {
		requester->peer[peer].has_window = true;
		requester->peer[peer].window = *window;
	}
	OKV_LIST_EACH_SAFE(node, &requester->transfers)
	{
		struct okv__transfer *transfer = OKV_CONTAINER_OF(node, struct okv__transfer, node);

		if (transfer->state != OKV__WAIT_WINDOW || transfer->seen.peer != peer)
			continue;
		if (window)
			authorise(requester, transfer);
		else
			okv__transfer_lost(requester, transfer, now_ns);
	}
}
