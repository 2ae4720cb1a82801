#include <stdlib.h>
#include <string.h>

#include "manager_object.h"
#include "okv/base/clock.h"
#include "okv/base/log.h"

/* ---- what a lease holds ---- */

/* The last block first, so that it is the first to be evicted, and those before the first are used now, too: the engine
 * has them itself. */
static void free_held(struct okv_manager *manager, struct okv__held *held)
{
	struct okv_hash before = {{0}};

	for (uint32_t i = held->wanted; i-- > 0;) {
		if (!held->block[i])
			continue;
		before = held->block[i]->record.parent;
		okv_store_unpin(manager->store, held->block[i]);
	}
	okv_store_touch_chain(manager->store, &before);
	free(held->block);
	free(held->is_remote);
	free(held->missing);
	*held = (struct okv__held){0};
}

void okv__requests_orphan(struct okv__session *session, bool is_reader_gone)
{
	struct okv_manager *manager = session->manager;
	struct okv_leases *leases = &manager->leases;

	for (uint64_t id = okv_lease_next(leases, session->id, 0); id; id = okv_lease_next(leases, session->id, id)) {
		struct okv__held *held = &manager->held[okv_lease_index(id)];

		if (okv_lease_orphan(leases, id, is_reader_gone))
			free_held(manager, held);
		else if (held->fetch)
			okv__peers_cancel(manager->peers, held->fetch);
	}
}

static void reply_status(struct okv__session *session, const struct okv_ring_request *request, enum okv_status status,
			 uint32_t count)
{
	okv__session_reply(
		session,
		(struct okv_ring_reply){.op = request->op, .slot = request->slot, .status = status, .count = count},
		NULL);
}

/* ---- publish ---- */

struct copy {
	struct okv_block *block; /* INCOMING: the worker's to write */
	uint64_t arena_offset;
	struct okv_crc crc;
};

struct publish {
	struct okv__job job;
	struct okv__session *session;
	struct okv_ring_request request;
	uint64_t started_ns;
	enum okv_status status;
	uint32_t leading;     /* of the answer */
	struct okv_hash last; /* of the leading ones */
	uint32_t count;
	struct copy copy[];
};

/* One pass: each piece is hashed in the pool while it is in cache, so the digest is of what was stored. */
static void copy_block(const struct okv__session *session, struct copy *copy)
{
	enum { PIECE = 64 << 10 };
	const uint8_t *from = session->arena.base + copy->arena_offset;
	uint8_t *to = copy->block->bytes;
	uint64_t length = copy->block->record.length;
	struct okv_crc_stream stream;

	okv_crc_stream_init(&stream);
	for (uint64_t done = 0, size; done < length; done += size) {
		size = length - done < PIECE ? length - done : PIECE;
		memcpy(to + done, from + done, size);
		okv_crc_stream_update(&stream, to + done, size);
	}
	copy->crc = okv_crc_stream_value(&stream);
}

static void publish_work(struct okv__job *job)
{
	struct publish *publish = OKV_CONTAINER_OF(job, struct publish, job);

	for (uint32_t i = 0; i < publish->count; i++)
		copy_block(publish->session, &publish->copy[i]);
}

/* The blocks are used now, and so are those of the same prefix that were published before. */
static void end_publish(struct publish *publish)
{
	okv_store_touch_chain(publish->session->manager->store, &publish->last);
	reply_status(publish->session, &publish->request, publish->status, publish->leading);
	free(publish);
}

/*
 * An engine may write to its pages again as soon as its socket is closed. So the copies count only if the socket is
 * still open after them: then every byte of them was read before.
 */
static void publish_done(void *context)
{
	struct publish *publish = context;
	struct okv__session *session = publish->session;
	struct okv_manager *manager = session->manager;
	bool is_good = okv__session_is_connected(session);

	for (uint32_t i = 0; i < publish->count; i++) {
		struct copy *copy = &publish->copy[i];

		if (!is_good) {
			okv_store_abort(manager->store, copy->block);
			okv_metric_add(manager->metrics.save_cancelled, 1);
			continue;
		}
		if (okv_fault_take(&manager->faults, "pool_flip_bit"))
			copy->block->bytes[copy->block->record.length / 2] ^= 1;
		okv_metric_add(manager->metrics.save_bytes, (int64_t)copy->block->record.length);
		okv_store_commit(manager->store, copy->block, &copy->crc);
		okv_store_unpin(manager->store, copy->block);
	}
	okv_metric_observe_ns(manager->metrics.save_seconds, okv_loop_now_ns(manager->loop) - publish->started_ns);
	end_publish(publish);
	session->jobs--;
	okv__manager_touch_ahead(manager);
	okv__manager_job_done(manager);
	okv__session_settle(session);
}

static struct okv_block_record record_of(const struct okv__session *session, const struct okv_ring_block *block)
{
	return (struct okv_block_record){
		.hash = block->hash,
		.parent = block->parent,
		.lineage = block->lineage,
		.key_digest = session->ring.limits.key_digest,
		.token_count = block->token_count,
		.length = session->hello.page_bytes,
	};
}

/* Takes what is new. What is there, of the call and before it, is used now: it must not be evicted to make room. */
static void reserve_new(struct publish *publish, const struct okv_ring_call *call)
{
	struct okv__session *session = publish->session;
	struct okv_store *store = session->manager->store;

	okv_store_touch_chain(store, &call->blocks[0].parent);
	for (uint32_t i = 0; i < call->request.count; i++) {
		struct okv_block_record record = record_of(session, &call->blocks[i]);
		struct okv_block *block;
		enum okv_status status = okv_store_reserve(store, &record, OKV_CLASS_NORMAL, &block);

		if (status == OKV_ERR_EXISTS) {
			(void)okv_store_find(store, &record.hash);
		} else if (status == OKV_OK) {
			publish->copy[publish->count++] =
				(struct copy){.block = block, .arena_offset = call->blocks[i].arena_offset};
		} else {
			publish->status = status;
			return;
		}
		publish->last = record.hash;
		publish->leading++;
	}
}

static void publish(struct okv__session *session, const struct okv_ring_call *call)
{
	struct okv_manager *manager = session->manager;
	struct publish *publish = calloc(1, sizeof(*publish) + call->request.count * sizeof(struct copy));

	if (!publish) {
		reply_status(session, &call->request, OKV_ERR_NO_MEMORY, 0);
		return;
	}
	publish->session = session;
	publish->request = call->request;
	publish->started_ns = okv_loop_now_ns(manager->loop);
	reserve_new(publish, call);
	if (publish->count == 0) {
		end_publish(publish);
		return;
	}
	publish->job.work = publish_work;
	publish->job.done = (struct okv_task){.run = publish_done, .context = publish};
	session->jobs++;
	okv__manager_submit(manager, &publish->job);
}

/* ---- query, prepare ---- */

/* Whether the block is of this session's key, and so of its page size. An engine names any hash it likes in a query. */
static bool is_of_session(const struct okv__session *session, const struct okv_block *block)
{
	return block && okv_hash_equal(&block->record.key_digest, &session->ring.limits.key_digest);
}

static void query(struct okv__session *session, const struct okv_ring_call *call)
{
	struct okv_store *store = session->manager->store;
	uint32_t leading = 0;

	while (leading < call->request.count &&
	       is_of_session(session, okv_store_peek(store, &call->blocks[leading].hash)))
		leading++;
	okv_metric_add(session->manager->metrics.candidate_hits, leading);
	okv_metric_add(session->manager->metrics.candidate_misses, call->request.count - leading);
	reply_status(session, &call->request, OKV_OK, leading);
}

static void count_misses(struct okv_manager *manager, uint32_t count)
{
	okv_metric_add(manager->metrics.tier_requests[OKV__TIER_MISS], count);
	okv_metric_add(manager->metrics.block_misses, count);
}

static void count_tiers(struct okv_manager *manager, const struct okv__held *held)
{
	struct okv__manager_metrics *metrics = &manager->metrics;
	uint32_t remote = 0;

	for (uint32_t i = 0; i < held->count; i++)
		remote += held->is_remote[i];
	okv_metric_add(metrics->tier_requests[OKV__TIER_RAM], held->count - remote);
	okv_metric_add(metrics->tier_requests[OKV__TIER_REMOTE], remote);
	okv_metric_add(metrics->block_hits, held->count);
	count_misses(manager, held->wanted - held->count);
}

/* Keeps the leading blocks that are there and lets the rest go. */
static void keep_leading(struct okv_manager *manager, struct okv__held *held)
{
	while (held->count < held->wanted && held->block[held->count])
		held->count++;
	for (uint32_t i = held->wanted; i-- > held->count;) {
		if (held->block[i])
			okv_store_unpin(manager->store, held->block[i]);
		held->block[i] = NULL;
	}
}

/* Everything that will come has come: the lease is READY, or over, and its request is answered. */
static void prepared(struct okv_manager *manager, uint64_t id, enum okv_status status)
{
	struct okv__held *held = &manager->held[okv_lease_index(id)];
	struct okv__session *session = held->session;
	struct okv_ring_reply reply = {.op = OKV_RING_PREPARE, .slot = held->slot, .status = status};
	uint64_t page_bytes = session->hello.page_bytes;

	keep_leading(manager, held);
	count_tiers(manager, held);
	if (held->count == 0) {
		bool is_unwanted = manager->leases.lease[okv_lease_index(id)].state == OKV_LEASE_UNWANTED;

		okv_lease_drop(&manager->leases, id);
		free_held(manager, held);
		if (is_unwanted)
			reply.status = OKV_ERR_CANCELLED;
	} else if (okv_lease_ready(&manager->leases, id, held->count * page_bytes) != OKV_OK) {
		free_held(manager, held);
		reply.status = OKV_ERR_CANCELLED;
	} else {
		reply.lease = id;
		reply.count = held->count;
		for (uint32_t i = 0; i < held->count; i++)
			reply.remote_bytes += held->is_remote[i] ? page_bytes : 0;
	}
	okv__session_reply(session, reply, NULL);
	okv__manager_touch_ahead(manager);
}

struct fetch {
	struct okv_manager *manager;
	uint64_t lease;
};

static void fetched(void *context, enum okv_status status, struct okv_block *const *blocks, uint32_t count,
		    uint64_t remote_bytes)
{
	struct fetch *fetch = context;
	struct okv_manager *manager = fetch->manager;
	struct okv__held *held = &manager->held[okv_lease_index(fetch->lease)];
	struct okv__session *session = held->session;

	(void)remote_bytes; /* counted by leading blocks: what lies behind a gap is of no use here */
	OKV_ASSERT(count == held->missing_count);
	for (uint32_t i = 0; i < count; i++) {
		/* One of another key came for another session that asked for the same hash. */
		bool is_ours = is_of_session(session, blocks[i]);

		if (blocks[i] && !is_ours)
			okv_store_unpin(manager->store, blocks[i]);
		held->block[held->missing[i]] = is_ours ? blocks[i] : NULL;
		held->is_remote[held->missing[i]] = is_ours;
	}
	held->fetch = 0;
	prepared(manager, fetch->lease, status);
	free(fetch);
	okv__session_settle(session);
}

/* Pins what is here and lists what is not. */
static void pin_local(struct okv_manager *manager, struct okv__held *held, const struct okv_ring_call *call)
{
	for (uint32_t i = 0; i < held->wanted; i++) {
		struct okv_block *block = okv_store_find(manager->store, &call->blocks[i].hash);

		held->block[i] = is_of_session(held->session, block) ? block : NULL;
		if (held->block[i])
			okv_store_pin(manager->store, held->block[i]);
		else
			held->missing[held->missing_count++] = i;
	}
}

/* Starts a fetch of what is missing. False if there is none to wait for. */
static bool fetch_missing(struct okv_manager *manager, struct okv__held *held, uint64_t lease,
			  const struct okv_ring_call *call)
{
	struct okv_block_record *wanted = calloc(held->missing_count, sizeof(*wanted));
	struct fetch *fetch = calloc(1, sizeof(*fetch));
	uint64_t id = 0;

	if (wanted && fetch) {
		*fetch = (struct fetch){.manager = manager, .lease = lease};
		for (uint32_t i = 0; i < held->missing_count; i++)
			wanted[i] = record_of(held->session, &call->blocks[held->missing[i]]);
		id = okv__peers_fetch(manager->peers, &held->session->hello.key, wanted, held->missing_count, fetched,
				      fetch);
	}
	free(wanted);
	if (id == 0)
		free(fetch);
	held->fetch = id;
	return id != 0;
}

/* As many of the leading blocks as the byte budget lets in. */
static uint32_t within_budget(const struct okv_leases *leases, uint32_t count, uint64_t page_bytes)
{
	uint64_t room = (leases->limit_bytes - leases->held_bytes) / page_bytes;

	return room < count ? (uint32_t)room : count;
}

static void prepare(struct okv__session *session, const struct okv_ring_call *call)
{
	struct okv_manager *manager = session->manager;
	uint64_t page_bytes = session->hello.page_bytes, id;
	uint32_t wanted = within_budget(&manager->leases, call->request.count, page_bytes);
	enum okv_status status = OKV_ERR_BUDGET;

	if (wanted < call->request.count)
		okv_metric_add(manager->metrics.budget_bypasses, 1);
	if (wanted)
		status = okv_lease_open(&manager->leases, session->id, wanted * page_bytes, &id);
	if (status != OKV_OK) {
		count_misses(manager, call->request.count);
		reply_status(session, &call->request, status, 0);
		return;
	}

	struct okv__held *held = &manager->held[okv_lease_index(id)];
	*held = (struct okv__held){
		.session = session,
		.slot = call->request.slot,
		.generation = call->request.generation,
		.block = calloc(wanted, sizeof(struct okv_block *)),
		.is_remote = calloc(wanted, sizeof(bool)),
		.missing = calloc(wanted, sizeof(uint32_t)),
	};
	if (!held->block || !held->is_remote || !held->missing) {
		okv_lease_drop(&manager->leases, id);
		free_held(manager, held);
		count_misses(manager, call->request.count);
		reply_status(session, &call->request, OKV_ERR_NO_MEMORY, 0);
		return;
	}
	held->wanted = wanted;
	count_misses(manager, call->request.count - wanted);
	pin_local(manager, held, call);
	if (held->missing_count == 0 || !fetch_missing(manager, held, id, call))
		prepared(manager, id, OKV_OK);
}

/* ---- restore, release, cancel ---- */

static void restore(struct okv__session *session, const struct okv_ring_request *request)
{
	struct okv_manager *manager = session->manager;
	struct okv__held *held = &manager->held[okv_lease_index(request->lease)];
	struct okv_ring_reply reply = {.op = request->op, .slot = request->slot};
	struct okv_ring_grant grants[OKV_RING_BLOCKS_MAX];

	reply.status = okv_lease_activate(&manager->leases, session->id, request->lease);
	if (reply.status == OKV_OK) {
		reply.count = held->count;
		held->granted_ns = okv_loop_now_ns(manager->loop);
		for (uint32_t i = 0; i < held->count; i++) {
			const struct okv_block *block = held->block[i];

			grants[i] = (struct okv_ring_grant){block->offset, block->record.length, block->record.crc};
			okv_metric_add(manager->metrics.load_bytes, (int64_t)block->record.length);
		}
	}
	okv__session_reply(session, reply, grants);
}

static void release(struct okv__session *session, const struct okv_ring_request *request)
{
	struct okv_manager *manager = session->manager;
	struct okv__held *held = &manager->held[okv_lease_index(request->lease)];
	enum okv_status status = okv_lease_release(&manager->leases, session->id, request->lease);

	if (status == OKV_OK) {
		if (held->granted_ns)
			okv_metric_observe_ns(manager->metrics.load_seconds,
					      okv_loop_now_ns(manager->loop) - held->granted_ns);
		free_held(manager, held);
	}
	reply_status(session, request, status, 0);
}

static void cancel(struct okv__session *session, const struct okv_ring_request *request)
{
	struct okv_manager *manager = session->manager;
	enum okv_status status = OKV_ERR_STALE; /* its answer is on the way */
	uint64_t id = 0;

	while (status != OKV_OK && (id = okv_lease_next(&manager->leases, session->id, id)) != 0) {
		struct okv__held *held = &manager->held[okv_lease_index(id)];

		if (held->slot == request->target_slot && held->generation == request->target_generation)
			status = okv_lease_cancel(&manager->leases, session->id, id);
		if (status == OKV_OK)
			okv__peers_cancel(manager->peers, held->fetch);
	}
	reply_status(session, request, status, 0);
}

/* ---- damage ---- */

struct check {
	struct okv__job job;
	struct okv__session *session;
	struct okv_ring_request request;
	struct okv_block *block; /* pinned */
	bool is_damaged;
};

static void check_work(struct okv__job *job)
{
	struct check *check = OKV_CONTAINER_OF(job, struct check, job);
	struct okv_crc crc = okv_crc_of(check->block->bytes, check->block->record.length);

	check->is_damaged = !okv_crc_equal(&crc, &check->block->record.crc);
}

static void check_done(void *context)
{
	struct check *check = context;
	struct okv__session *session = check->session;
	struct okv_manager *manager = session->manager;

	if (check->is_damaged) {
		char hash[2 * sizeof(struct okv_hash) + 1];

		okv_hex(check->block->record.hash.bytes, sizeof(struct okv_hash), hash);
		okv_log(OKV_LOG_ERROR, "store", "block %.16s is damaged in the pool and is not served any more", hash);
		okv_store_condemn(manager->store, check->block);
	}
	okv_store_unpin(manager->store, check->block);
	reply_status(session, &check->request, OKV_OK, 0);
	session->jobs--;
	free(check);
	okv__manager_job_done(manager);
	okv__session_settle(session);
}

/* An engine says that a block does not match its digest. It is looked at, since the damage may be on the engine's side.
 */
static void report_damaged(struct okv__session *session, const struct okv_ring_request *request)
{
	struct okv_manager *manager = session->manager;
	struct okv__held *held = &manager->held[okv_lease_index(request->lease)];
	enum okv_status status = okv_lease_check_active(&manager->leases, session->id, request->lease);
	struct check *check = NULL;

	if (status == OKV_OK && request->index >= held->count)
		status = OKV_ERR_INVALID;
	if (status == OKV_OK) {
		check = calloc(1, sizeof(*check));
		status = check ? OKV_OK : OKV_ERR_NO_MEMORY;
	}
	if (status != OKV_OK) {
		reply_status(session, request, status, 0);
		return;
	}
	okv_metric_add(manager->metrics.load_failures, 1);
	check->session = session;
	check->request = *request;
	check->block = held->block[request->index];
	check->job.work = check_work;
	check->job.done = (struct okv_task){.run = check_done, .context = check};
	/* A condemned block takes no new pin; the lease's own is what keeps it then. */
	if (okv_store_peek(manager->store, &check->block->record.hash) != check->block) {
		free(check);
		reply_status(session, request, OKV_OK, 0);
		return;
	}
	okv_store_pin(manager->store, check->block);
	session->jobs++;
	okv__manager_submit(manager, &check->job);
}

void okv__request(struct okv__session *session, const struct okv_ring_call *call)
{
	const struct okv_ring_request *request = &call->request;
	struct okv_reason reason;
	enum okv_status status = okv_ring_manager_check(&session->ring, call, &reason);

	if (status != OKV_OK) {
		okv_log(OKV_LOG_WARN, "session", "a request of %s is refused: %s", session->hello.name, reason.text);
		if (request->op == OKV_RING_PUBLISH)
			okv_metric_add(session->manager->metrics.save_rejections, 1);
		reply_status(session, request, status, 0);
		return;
	}
	switch ((enum okv_ring_op)request->op) {
	case OKV_RING_PUBLISH:
		publish(session, call);
		break;
	case OKV_RING_QUERY:
		query(session, call);
		break;
	case OKV_RING_PREPARE:
		prepare(session, call);
		break;
	case OKV_RING_RESTORE:
		restore(session, request);
		break;
	case OKV_RING_RELEASE:
		release(session, request);
		break;
	case OKV_RING_CANCEL:
		cancel(session, request);
		break;
	case OKV_RING_REPORT_DAMAGED:
		report_damaged(session, request);
		break;
	case OKV_RING_OPS:
		break;
	}
}
