#include <stdlib.h>
#include <string.h>

#include "okv/base/alloc.h"
#include "requester_internal.h"

/* --- wants ------------------------------------------------------------------------------------------------------ */

/* Frees a want that nobody refers to, after its pin went back to the driver. */
static void want_release(struct okv_requester *requester, struct okv_want *want)
{
	if (want->fetches > 0 || want->job)
		return;
	if (want->state != OKV__WANT_FAILED)
		okv_map_remove(&requester->by_hash, &want->by_hash);
	requester->counts.wants--;
	if (want->handle) {
		okv__todo_push(requester, &want->todo, OKV_REQUESTER_UNPIN);
		return;
	}
	okv_list_remove(&want->node);
	free(want);
}

void okv__want_unref(struct okv_requester *requester, struct okv_want *want)
{
	want->fetches--;
	want_release(requester, want);
}

/* A failed want is not found any more: the next fetch of its hash starts afresh. */
void okv__want_fail(struct okv_requester *requester, struct okv_want *want, enum okv_status failure)
{
	if (want->state != OKV__WANT_OPEN)
		return;
	want->state = OKV__WANT_FAILED;
	want->failure = failure;
	okv_map_remove(&requester->by_hash, &want->by_hash);
}

/* --- jobs ------------------------------------------------------------------------------------------------------- */

struct okv__job *okv__job_create(struct okv_requester *requester, const struct okv_materialisation_key *key,
				 uint64_t block_bytes, uint16_t count, uint64_t deadline_ns)
{
	struct okv__job *job = okv_alloc(1, sizeof(*job));
	unsigned peers = requester->peer_count;

	if (!job)
		return NULL;
	job->want = okv_alloc(count, sizeof(struct okv_want *));
	job->locate = okv_alloc(peers + 1, sizeof(*job->locate)); /* + 1: a size of 0 may be NULL */
	job->location = okv_alloc((size_t)peers * count + 1, sizeof(*job->location));
	if (!job->want || !job->locate || !job->location) {
		okv__job_free(job);
		return NULL;
	}
	for (unsigned i = 0; i < peers; i++)
		okv__rpc_init(&job->locate[i], OKV__RPC_LOCATE, i, job);
	job->key_size = (uint16_t)okv_key_encode(key, job->key);
	job->key_digest = okv_key_digest(key);
	job->block_bytes = block_bytes;
	job->deadline_ns = deadline_ns;
	job->peer_count = peers;
	okv_list_init(&job->node);
	return job;
}

void okv__job_free(struct okv__job *job)
{
	if (!job)
		return;
	free(job->want);
	free(job->locate);
	free(job->location);
	free(job);
}

bool okv__job_is_wanted(const struct okv__job *job)
{
	for (uint16_t i = 0; i < job->count; i++)
		if (job->want[i]->state == OKV__WANT_OPEN && job->want[i]->fetches > 0)
			return true;
	return false;
}

/* Every want is settled and nothing is under way. */
static void job_end(struct okv_requester *requester, struct okv__job *job)
{
	for (unsigned i = 0; i < job->peer_count; i++)
		okv__rpc_drop(&job->locate[i]);
	for (uint16_t i = 0; i < job->count; i++) {
		OKV_ASSERT(job->want[i]->state != OKV__WANT_OPEN);
		job->want[i]->job = NULL;
		want_release(requester, job->want[i]);
	}
	okv_list_remove(&job->node);
	okv__job_free(job);
}

void okv__job_reject_peer(struct okv__job *job, unsigned peer)
{
	job->rejected |= 1ULL << peer;
	job->answered |= 1ULL << peer;
	if (peer < job->peer_count)
		okv__rpc_drop(&job->locate[peer]);
}

void okv__job_locate(struct okv_requester *requester, struct okv__job *job, uint64_t now_ns)
{
	job->is_locating = true;
	job->locate_until_ns = now_ns + requester->options.locate_wait_ns;
	for (unsigned i = 0; i < job->peer_count; i++) {
		if (!requester->peer[i].is_connected || requester->peer[i].is_silent)
			continue;
		job->asked |= 1ULL << i;
		okv__rpc_queue(requester, &job->locate[i]);
	}
	okv__job_advance(requester, job, now_ns);
}

static struct okv_peer_location *location_of(const struct okv__job *job, unsigned peer, uint16_t want)
{
	return &job->location[(size_t)peer * job->count + want];
}

/* How many blocks from `first` on the peer has, at most what one authorisation may name. */
static uint16_t span_of(const struct okv__job *job, unsigned peer, uint16_t first)
{
	uint16_t span = 0;

	while (first + span < job->count && span < OKV_PEER_AUTHORISE_MAX &&
	       location_of(job, peer, (uint16_t)(first + span))->generation != 0)
		span++;
	return span;
}

bool okv__job_located(struct okv_requester *requester, struct okv__job *job, unsigned peer,
		      const struct okv_peer_message *message, uint64_t now_ns)
{
	if (message->located.refusal == OKV_PEER_GRANTED && message->located.count != job->count)
		return false;
	job->answered |= 1ULL << peer;
	if (message->located.refusal == OKV_PEER_GRANTED)
		memcpy(location_of(job, peer, 0), message->located.location,
		       job->count * sizeof(struct okv_peer_location));
	else
		requester->counts.refusals[message->located.refusal]++;
	if (message->located.refusal == OKV_PEER_REFUSED_KEY)
		memcpy(job->field, message->located.field, sizeof(job->field));
	okv__job_advance(requester, job, now_ns);
	return true;
}

/* Whether an answer may still come that is worth waiting for. */
static bool may_hear_more(const struct okv__job *job, uint64_t now_ns)
{
	return (job->asked & ~job->answered) != 0 && now_ns < job->locate_until_ns;
}

/* Whether someone has all that is left, as far as one authorisation goes. */
static bool is_one_enough(const struct okv__job *job)
{
	uint16_t left = job->count - job->next_want;
	uint16_t whole = left < OKV_PEER_AUTHORISE_MAX ? left : OKV_PEER_AUTHORISE_MAX;

	for (unsigned i = 0; i < job->peer_count; i++)
		if (!(job->rejected >> i & 1) && span_of(job, i, job->next_want) == whole)
			return true;
	return false;
}

/* A peer that did not answer in time is not asked again before it says something. */
static void stop_locating(struct okv_requester *requester, struct okv__job *job, uint64_t now_ns)
{
	job->is_locating = false;
	for (unsigned i = 0; now_ns >= job->locate_until_ns && i < job->peer_count; i++)
		if ((job->asked & ~job->answered) >> i & 1)
			requester->peer[i].is_silent = true;
}

/* The longest span from `first` on; of equal ones the smallest owner. 0 if nobody has the first. */
static uint16_t choose_owner(struct okv_requester *requester, const struct okv__job *job, uint16_t first,
			     unsigned *ret_peer)
{
	uint16_t best = 0;

	for (unsigned i = 0; i < job->peer_count; i++) {
		const struct okv__peer *peer = &requester->peer[i];
		uint16_t span = span_of(job, i, first);

		if (job->rejected >> i & 1 || !peer->is_connected || span == 0 || span < best)
			continue;
		if (span == best && memcmp(&peer->owner, &requester->peer[*ret_peer].owner, sizeof(peer->owner)) >= 0)
			continue;
		best = span;
		*ret_peer = i;
	}
	return best;
}

/* Why a block that nobody has is missing: perhaps because all have it under another key only. */
static void cut_absent(struct okv_requester *requester, struct okv__job *job)
{
	bool is_other_key = job->field[0] && job->next_want == 0 && !job->rejected;

	for (uint16_t i = job->next_want; is_other_key && i < job->count; i++)
		memcpy(job->want[i]->field, job->field, sizeof(job->field));
	okv__job_cut(requester, job, is_other_key ? OKV_ERR_MISMATCH : OKV_ERR_ABSENT);
}

/* Starts the next transfer, if there is one to start. */
static void plan(struct okv_requester *requester, struct okv__job *job, uint64_t now_ns)
{
	while (!job->next && job->next_want < job->count) {
		unsigned peer = 0;
		uint16_t span = choose_owner(requester, job, job->next_want, &peer);
		struct okv__transfer *transfer;

		if (span == 0 && may_hear_more(job, now_ns)) {
			job->is_locating = true;
			return;
		}
		if (span == 0) {
			cut_absent(requester, job);
			return;
		}
		transfer = okv__transfer_create(requester, job, peer, job->next_want, span);
		if (!transfer) {
			okv__job_reject_peer(job, peer);
			continue;
		}
		job->next = transfer;
		job->next_want = (uint16_t)(job->next_want + span);
		okv__transfer_begin(requester, transfer);
	}
}

void okv__job_replan(struct okv_requester *requester, struct okv__job *job, uint16_t first_want)
{
	job->next_want = first_want;
	requester->counts.replans++;
	if (++job->replans > OKV_REQUESTER_REPLANS_MAX)
		okv__job_cut(requester, job, OKV_ERR_ABSENT);
}

void okv__job_cut(struct okv_requester *requester, struct okv__job *job, enum okv_status failure)
{
	struct okv__transfer *next = job->next;

	for (uint16_t i = 0; next && i < next->seen.count; i++)
		okv__want_fail(requester, job->want[next->first_want + i], failure);
	for (uint16_t i = job->next_want; i < job->count; i++)
		okv__want_fail(requester, job->want[i], failure);
	job->next_want = job->count;
	if (next)
		okv__transfer_close(requester, next);
}

void okv__job_deadline(struct okv_requester *requester, struct okv__job *job, uint64_t now_ns)
{
	struct okv__transfer *reading = job->reading;

	job->is_over = true;
	job->is_locating = false;
	okv__job_cut(requester, job, OKV_ERR_DEADLINE);
	if (reading && reading->is_submitted && !reading->is_cancelled) {
		reading->is_cancelled = true;
		okv__todo_push(requester, &reading->todo, OKV_REQUESTER_CANCEL_READ);
	}
	okv__job_advance(requester, job, now_ns);
}

void okv__job_advance(struct okv_requester *requester, struct okv__job *job, uint64_t now_ns)
{
	bool is_wanted = okv__job_is_wanted(job);

	if (job->is_locating && is_wanted && may_hear_more(job, now_ns) && !is_one_enough(job))
		return;
	if (job->is_locating)
		stop_locating(requester, job, now_ns);
	if (!is_wanted)
		okv__job_cut(requester, job, OKV_ERR_CANCELLED);
	plan(requester, job, now_ns);
	if (job->next && job->next->state == OKV__READY && !job->reading) { /* R6 */
		okv__transfer_submit(requester, job->next);
		plan(requester, job, now_ns);
	}
	if (!job->next && !job->reading && job->next_want == job->count)
		job_end(requester, job);
}
