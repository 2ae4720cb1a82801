/* The requester side: the managers that we connect to, what is fetched from them, and where it goes. */
#include <arpa/inet.h>
#include <errno.h>
#include <netdb.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "okv/base/address.h"
#include "okv/base/log.h"
#include "peers_object.h"

static const uint64_t welcome_ns = 3 * OKV_NS_PER_S;
static const uint64_t backoff_first_ns = 100 * OKV_NS_PER_MS;
static const uint64_t backoff_last_ns = 5 * OKV_NS_PER_S;

/* ---- connections ---- */

static void try_later(struct okv__remote *remote)
{
	if (remote->peers->is_stopping || remote->is_self)
		return;
	okv_timer_start(&remote->timer, okv_loop_now_ns(remote->peers->loop) + remote->backoff_ns);
	remote->backoff_ns = remote->backoff_ns * 2 > backoff_last_ns ? backoff_last_ns : remote->backoff_ns * 2;
}

/* The connection is lost or could not be made; the requester is told what that proves. */
static void closed(void *context, int error, const char *why)
{
	struct okv__remote *remote = context;
	struct okv_peers *peers = remote->peers;
	uint64_t now_ns = okv_loop_now_ns(peers->loop);

	/* One line a change, not one an attempt. */
	if (remote->is_up || !remote->is_complained_of)
		okv_log(OKV_LOG_WARN, "peer", "no connection to peer %s: %s", remote->name, why);
	remote->is_complained_of = true;
	okv_timer_stop(&remote->timer);
	if (remote->is_up) {
		remote->is_up = false;
		okv_metric_add(peers->metrics.connected, -1);
		okv_requester_disconnected(peers->requester, remote->index, now_ns);
	}
	if (error == ECONNREFUSED)
		okv_requester_refused(peers->requester, remote->index, now_ns);
	try_later(remote);
	okv__peers_act(peers);
}

static void lose(struct okv__remote *remote, int error, const char *why)
{
	okv__link_close(&remote->link);
	closed(remote, error, why);
}

static void timer_fired(void *context)
{
	struct okv__remote *remote = context;
	int error;

	if (remote->link.fd >= 0) {
		lose(remote, ETIMEDOUT, "it does not answer");
		return;
	}
	error = okv__link_connect(&remote->link, remote->peers->loop, (struct sockaddr *)&remote->address,
				  remote->address_size);
	if (error)
		closed(remote, error, strerror(error));
	else
		okv_timer_start(&remote->timer, okv_loop_now_ns(remote->peers->loop) + welcome_ns);
}

static void connected(void *context)
{
	struct okv__remote *remote = context;
	struct okv_peer_message *hello = &remote->peers->outgoing;

	hello->type = OKV_PEER_HELLO;
	hello->request_id = 0;
	memset(hello->hello.cluster, 0, sizeof(hello->hello.cluster));
	memcpy(hello->hello.cluster, OKV__CLUSTER, sizeof(OKV__CLUSTER));
	hello->hello.requester = remote->peers->incarnation;
	okv__link_send(&remote->link, hello);
}

/* False: the link was closed. */
static bool welcome(struct okv__remote *remote, const struct okv_peer_message *message)
{
	struct okv_peers *peers = remote->peers;

	if (message->type != OKV_PEER_WELCOME) {
		lose(remote, EPROTO, "it did not welcome us");
		return false;
	}
	if (message->welcome.refusal != OKV_PEER_GRANTED) {
		lose(remote, EPROTO, "it belongs to another cluster");
		return false;
	}
	okv_timer_stop(&remote->timer);
	if (okv_uuid_equal(&message->welcome.owner, &peers->incarnation)) {
		okv_log(OKV_LOG_INFO, "peer", "peer %s is this manager itself and is left out", remote->name);
		remote->is_self = true;
		okv__link_close(&remote->link);
		return false;
	}
	okv_log(OKV_LOG_INFO, "peer", "connected to peer %s", remote->name);
	remote->is_up = true;
	remote->is_complained_of = false;
	remote->backoff_ns = backoff_first_ns;
	remote->data_port = message->welcome.data_port;
	okv_metric_add(peers->metrics.connected, 1);
	okv_requester_connected(peers->requester, remote->index, &message->welcome.owner, okv_loop_now_ns(peers->loop));
	okv__peers_act(peers);
	return true;
}

static bool message_came(void *context, const struct okv_peer_message *message)
{
	struct okv__remote *remote = context;
	struct okv_peers *peers = remote->peers;

	if (!remote->is_up)
		return welcome(remote, message);
	const struct okv_requester_counts *counts = okv_requester_counts(peers->requester);
	uint64_t releases = counts->releases;

	if (!okv_requester_reply(peers->requester, remote->index, message, okv_loop_now_ns(peers->loop))) {
		lose(remote, EPROTO, "it broke the protocol");
		return false;
	}
	if (counts->releases != releases)
		okv_metric_observe_ns(peers->metrics.stage_seconds[OKV__STAGE_RELEASE][true], counts->last_release_ns);
	okv__peers_act(peers);
	return okv__link_is_open(&remote->link);
}

static const struct okv__link_ops remote_ops = {.connected = connected, .message = message_came, .closed = closed};

/* A host name is looked up once, now. */
static enum okv_status resolve(struct okv__remote *remote, const char *name, struct okv_reason *reason)
{
	const struct addrinfo hints = {.ai_socktype = SOCK_STREAM, .ai_flags = AI_NUMERICSERV};
	struct okv_address address;
	struct addrinfo *found;
	char port[8];
	enum okv_status status = okv_address_read("peer", name, &address, reason);

	if (status != OKV_OK)
		return status;
	if (address.port == 0)
		return okv_refuse(reason, OKV_ERR_INVALID, "peer",
				  "--peer needs the port of the other manager in '%.80s'", name);
	snprintf(port, sizeof(port), "%u", address.port);
	int error = getaddrinfo(address.host, port, &hints, &found);
	if (error)
		return okv_refuse(reason, OKV_ERR_INVALID, "peer", "peer \"%s\" cannot be looked up: %s", remote->name,
				  gai_strerror(error));
	memcpy(&remote->address, found->ai_addr, found->ai_addrlen);
	remote->address_size = found->ai_addrlen;
	freeaddrinfo(found);
	error = getnameinfo((struct sockaddr *)&remote->address, remote->address_size, remote->host,
			    sizeof(remote->host), NULL, 0, NI_NUMERICHOST);
	return error ? okv_refuse(reason, OKV_ERR_INVALID, "peer", "peer \"%s\": %s", remote->name, gai_strerror(error))
		     : OKV_OK;
}

enum okv_status okv__remote_init(struct okv_peers *peers, struct okv__remote *remote, const char *name,
				 struct okv_reason *reason)
{
	enum okv_status status;

	remote->peers = peers;
	remote->backoff_ns = backoff_first_ns;
	okv__link_init(&remote->link, &remote_ops, remote, &peers->incoming);
	okv_timer_init(&remote->timer, peers->loop, timer_fired, remote);
	snprintf(remote->name, sizeof(remote->name), "%s", name);
	status = resolve(remote, name, reason);
	if (status != OKV_OK)
		return status;
	for (const struct okv__remote *other = peers->remote; other < remote; other++)
		if (other->address_size == remote->address_size &&
		    memcmp(&other->address, &remote->address, remote->address_size) == 0)
			return okv_refuse(reason, OKV_ERR_INVALID, "peer", "--peer %s and --peer %s are one manager",
					  other->name, remote->name);
	if (okv_requester_peer(peers->requester, &remote->index) != OKV_OK)
		return okv_refuse(reason, OKV_ERR_BUDGET, "peer", "a manager can have %d peers at most",
				  OKV_REQUESTER_PEERS_MAX);
	okv_timer_start(&remote->timer, okv_loop_now_ns(peers->loop));
	return OKV_OK;
}

void okv__remote_close(struct okv__remote *remote)
{
	okv_timer_stop(&remote->timer);
	okv__link_close(&remote->link);
}

/* ---- reads ---- */

static void free_read(struct okv_peers *peers, struct okv__read *read)
{
	for (uint16_t i = 0; i < read->transfer->count; i++) {
		if (read->block[i])
			okv_store_abort(peers->store, read->block[i]);
		free(read->spare[i]);
	}
	okv_list_remove(&read->node);
	free(read);
}

/* A place for every range. */
static enum okv_status reserve(struct okv_peers *peers, struct okv__read *read, struct okv_mover_range *ret_range)
{
	for (uint16_t i = 0; i < read->transfer->count; i++) {
		const struct okv_peer_authorised *from = &read->transfer->block[i];
		const struct okv_block_record record = {
			.hash = from->hash,
			.parent = from->parent,
			.lineage = from->lineage,
			.key_digest = from->key_digest,
			.token_count = from->token_count,
			.length = from->length,
		};
		struct okv_block *block;
		enum okv_status status = okv_store_reserve(peers->store, &record, OKV_CLASS_RECLAIMABLE, &block);

		if (status == OKV_ERR_EXISTS) {
			read->spare[i] = malloc(from->length);
			status = read->spare[i] ? OKV_OK : OKV_ERR_NO_MEMORY;
		} else if (status == OKV_OK) {
			read->block[i] = block;
		}
		if (status != OKV_OK)
			return status;
		ret_range[i].bytes = read->block[i] ? read->block[i]->bytes : read->spare[i];
		ret_range[i].size = from->length;
	}
	return OKV_OK;
}

static enum okv_status start_read(struct okv_peers *peers, struct okv_transfer *transfer)
{
	const struct okv__remote *remote = &peers->remote[transfer->peer];
	struct okv_mover_range range[OKV_PEER_AUTHORISE_MAX];
	struct okv__read *read = calloc(1, sizeof(*read));
	struct okv_mover_token token;
	uint64_t now_ns = okv_loop_now_ns(peers->loop);

	if (!read)
		return OKV_ERR_NO_MEMORY;
	read->transfer = transfer;
	okv_list_init(&read->node);
	okv_metric_observe_ns(peers->metrics.stage_seconds[OKV__STAGE_AUTHORISE][true], now_ns - transfer->asked_ns);
	enum okv_status status = reserve(peers, read, range);
	read->started_ns = okv_loop_now_ns(peers->loop);
	okv_metric_observe_ns(peers->metrics.stage_seconds[OKV__STAGE_ALLOCATE][status == OKV_OK],
			      read->started_ns - now_ns);
	memcpy(token.bytes, transfer->token, sizeof(token.bytes));
	if (status == OKV_OK)
		status = okv_mover_read(peers->mover, remote->host, remote->data_port, &token, range, transfer->count,
					&read->id);
	if (status != OKV_OK) {
		free_read(peers, read);
		return status;
	}
	transfer->driver = read;
	okv_list_push_back(&peers->reads, &read->node);
	return OKV_OK;
}

static void range_landed(struct okv_peers *peers, struct okv__read *read, const struct okv_mover_event *event)
{
	uint16_t index = (uint16_t)event->index;
	struct okv_block *block = read->block[index];

	if (okv_requester_landed(peers->requester, read->transfer, index, &event->crc) != OKV_OK) {
		okv_log(OKV_LOG_ERROR, "peer", "a block from peer %s is damaged and is refused",
			peers->remote[read->transfer->peer].name);
		return;
	}
	read->block[index] = NULL;
	if (block)
		okv_store_commit(peers->store, block, &event->crc);
	okv_requester_committed(peers->requester, read->transfer, index, block);
}

void okv__peers_read_event(struct okv_peers *peers, const struct okv_mover_event *event)
{
	struct okv__read *read = NULL;

	OKV_LIST_EACH(node, &peers->reads)
	if (OKV_CONTAINER_OF(node, struct okv__read, node)->id == event->id)
		read = OKV_CONTAINER_OF(node, struct okv__read, node);
	OKV_ASSERT(read);
	if (event->kind == OKV_MOVER_RANGE_LANDED) {
		range_landed(peers, read, event);
		return;
	}
	struct okv_transfer *transfer = read->transfer;
	uint64_t now_ns = okv_loop_now_ns(peers->loop);
	if (event->status != OKV_OK)
		okv_log(OKV_LOG_WARN, "peer", "a read from peer %s ends early: %s", peers->remote[transfer->peer].name,
			okv_status_name(event->status));
	okv_metric_observe_ns(peers->metrics.stage_seconds[OKV__STAGE_READ][event->status == OKV_OK],
			      now_ns - read->started_ns);
	free_read(peers, read);
	okv_requester_read_ended(peers->requester, transfer, event->status, now_ns);
}

/* ---- fetches ---- */

static bool anyone_to_ask(const struct okv_peers *peers)
{
	for (size_t i = 0; i < peers->remote_count; i++)
		if (peers->remote[i].is_up)
			return true;
	return false;
}

static void free_fetch(struct okv__peer_fetch *fetch)
{
	free(fetch->came);
	free(fetch);
}

uint64_t okv__peers_fetch(struct okv_peers *peers, const struct okv_materialisation_key *key,
			  const struct okv_block_record *wanted, uint32_t count, okv__peers_done *done, void *context)
{
	uint32_t asked = count < OKV_PEER_LOCATE_MAX ? count : OKV_PEER_LOCATE_MAX;
	uint64_t now_ns = okv_loop_now_ns(peers->loop);
	struct okv__peer_fetch *fetch;

	if (count == 0 || peers->is_stopping || !anyone_to_ask(peers))
		return 0;
	fetch = calloc(1, sizeof(*fetch) + asked * sizeof(fetch->block[0]));
	if (!fetch)
		return 0;
	fetch->came = calloc(count, sizeof(struct okv_block *));
	fetch->block_bytes = wanted[0].length;
	for (uint32_t i = 0; i < asked; i++)
		fetch->block[i] = (struct okv_fetch_block){wanted[i].hash, wanted[i].parent, wanted[i].lineage,
							   wanted[i].token_count};
	if (!fetch->came || okv_requester_fetch(peers->requester, key, fetch->block_bytes, fetch->block, asked,
						now_ns + peers->deadline_ns, now_ns, fetch, &fetch->fetch) != OKV_OK) {
		free_fetch(fetch);
		return 0;
	}
	fetch->id = ++peers->last_fetch;
	fetch->started_ns = now_ns;
	fetch->done = done;
	fetch->context = context;
	fetch->count = count;
	fetch->asked = asked;
	okv_list_init(&fetch->node);
	okv_list_push_back(&peers->fetches, &fetch->node);
	okv__peers_post_act(peers);
	return fetch->id;
}

void okv__peers_cancel(struct okv_peers *peers, uint64_t id)
{
	OKV_LIST_EACH(node, &peers->fetches)
	{
		struct okv__peer_fetch *fetch = OKV_CONTAINER_OF(node, struct okv__peer_fetch, node);

		if (fetch->id != id)
			continue;
		okv_requester_cancel(peers->requester, fetch->fetch);
		okv__peers_post_act(peers);
		return;
	}
}

/* The blocks that came, each with a pin for its receiver; the core's own goes when the core says so. */
static uint32_t collect(struct okv_peers *peers, struct okv__peer_fetch *fetch)
{
	uint32_t crossed = 0;

	for (uint32_t i = 0; i < fetch->asked; i++) {
		void *handle;

		if (!okv_fetch_landed(fetch->fetch, i, &handle))
			continue;
		fetch->came[i] = okv_store_find(peers->store, &fetch->block[i].hash);
		if (!fetch->came[i])
			continue; /* condemned since, or it came from elsewhere and went again */
		okv_store_pin(peers->store, fetch->came[i]);
		crossed += handle != NULL;
	}
	return crossed;
}

static void count_fetch(struct okv_peers *peers, const struct okv__peer_fetch *fetch,
			const struct okv_fetch_result *result)
{
	bool is_miss = result->status == OKV_ERR_ABSENT || result->status == OKV_ERR_MISMATCH;
	enum okv__fetch_status status = result->status == OKV_OK || (is_miss && result->leading > 0) ? OKV__FETCH_OK
					: is_miss ? OKV__FETCH_REJECTED
						  : OKV__FETCH_ERROR;

	okv_metric_add(peers->metrics.fetches[status], 1);
	okv_metric_observe_ns(peers->metrics.fetch_seconds, okv_loop_now_ns(peers->loop) - fetch->started_ns);
	okv_metric_observe_count(peers->metrics.plan_segments, result->segments);
	okv_metric_observe_count(peers->metrics.plan_segments_completed, result->segments_completed);
	if (result->status == OKV_ERR_MISMATCH)
		okv_log(OKV_LOG_INFO, "peer", "peers have nothing for us: their keys differ in %s", result->field);
	else if (status == OKV__FETCH_ERROR)
		okv_log(OKV_LOG_WARN, "peer", "a fetch of %u blocks brings %u: %s", fetch->count, result->leading,
			okv_status_name(result->status));
}

static void finish_fetch(struct okv_peers *peers, struct okv__peer_fetch *fetch)
{
	struct okv_fetch_result result = okv_fetch_result(fetch->fetch);
	uint64_t crossed = collect(peers, fetch) * fetch->block_bytes;

	count_fetch(peers, fetch, &result);
	okv_requester_fetch_free(peers->requester, fetch->fetch);
	okv_list_remove(&fetch->node);
	fetch->done(fetch->context, result.status == OKV_ERR_ABSENT ? OKV_OK : result.status, fetch->came, fetch->count,
		    crossed);
	free_fetch(fetch);
}

static void cancel_read(struct okv_peers *peers, struct okv_transfer *transfer)
{
	const struct okv__read *read = transfer->driver;

	okv_mover_read_cancel(peers->mover, read->id);
}

void okv__peers_act_requester(struct okv_peers *peers)
{
	struct okv_requester_action action;
	uint64_t now_ns = okv_loop_now_ns(peers->loop);

	while (okv_requester_next(peers->requester, now_ns, &action, &peers->outgoing)) {
		switch (action.kind) {
		case OKV_REQUESTER_SEND:
			okv__link_send(&peers->remote[action.peer].link, &peers->outgoing);
			break;
		case OKV_REQUESTER_SUBMIT:
			okv_requester_submitted(peers->requester, action.transfer, start_read(peers, action.transfer),
						now_ns);
			break;
		case OKV_REQUESTER_CANCEL_READ:
			cancel_read(peers, action.transfer);
			break;
		case OKV_REQUESTER_DONE:
			finish_fetch(peers, okv_fetch_context(action.fetch));
			break;
		case OKV_REQUESTER_UNPIN:
			okv_store_unpin(peers->store, action.handle);
			break;
		}
	}
}
