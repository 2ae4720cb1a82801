/* The source side: who connects to us, and what they are told and given. */
#include <errno.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "okv/base/log.h"
#include "okv/base/rng.h"
#include "peers_object.h"

static void drop(struct okv__inbound *inbound)
{
	struct okv_peers *peers = inbound->peers;

	okv__link_close(&inbound->link);
	okv_timer_stop(&inbound->hello_timer);
	okv_source_forget_connection(peers->source, inbound);
	if (inbound->is_greeted)
		okv_source_reader_gone(peers->source, &inbound->reader);
	okv_list_remove(&inbound->node);
	peers->inbound_count--;
	free(inbound);
}

static void closed(void *context, int error, const char *why)
{
	struct okv__inbound *inbound = context;
	struct okv_peers *peers = inbound->peers;
	char name[2 * sizeof(struct okv_uuid) + 1] = "unknown";

	if (inbound->is_greeted)
		okv_hex(inbound->requester.bytes, sizeof(inbound->requester.bytes), name);
	okv_log(error ? OKV_LOG_WARN : OKV_LOG_INFO, "peer", "the connection of reader %.8s ends: %s", name, why);
	drop(inbound);
	okv__peers_post_act(peers);
}

static void hello_is_late(void *context)
{
	closed(context, ETIMEDOUT, "it never said HELLO");
}

/* ---- requests ---- */

static struct okv_peer_message *answer_to(struct okv_peers *peers, const struct okv_peer_message *message,
					  enum okv_peer_type type)
{
	peers->outgoing.type = type;
	peers->outgoing.request_id = message->request_id;
	return &peers->outgoing;
}

static bool hello(struct okv__inbound *inbound, const struct okv_peer_message *message)
{
	struct okv_peers *peers = inbound->peers;
	struct okv_peer_message *answer = answer_to(peers, message, OKV_PEER_WELCOME);
	bool is_ours = strcmp(message->hello.cluster, OKV__CLUSTER) == 0;

	answer->welcome.refusal = is_ours ? OKV_PEER_GRANTED : OKV_PEER_REFUSED_CLUSTER;
	answer->welcome.owner = peers->incarnation;
	answer->welcome.data_port = okv_mover_port(peers->mover);
	okv__link_send(&inbound->link, answer);
	if (!is_ours) {
		closed(inbound, EPROTO, "it belongs to another cluster");
		return false;
	}
	okv_timer_stop(&inbound->hello_timer);
	inbound->requester = message->hello.requester;
	inbound->reader = okv_uuid_random();
	inbound->is_greeted = true;
	return true;
}

static struct okv_block *resident(struct okv_peers *peers, const struct okv_hash *hash,
				  const struct okv_hash *key_digest)
{
	struct okv_block *block = okv_store_peek(peers->store, hash);

	return block && okv_hash_equal(&block->record.key_digest, key_digest) ? block : NULL;
}

static bool is_known_key(const struct okv_peers *peers, const struct okv_hash *digest)
{
	for (unsigned i = 0; i < peers->key_count; i++)
		if (okv_hash_equal(&peers->key_digest[i], digest))
			return true;
	return false;
}

/* Nothing was found: perhaps because the engines here compute under other keys, which is worth saying. */
static void explain_miss(struct okv_peers *peers, const struct okv_materialisation_key *key,
			 struct okv_peer_message *answer)
{
	struct okv_hash digest = okv_key_digest(key);
	struct okv_reason reason;

	if (peers->key_count == 0 || is_known_key(peers, &digest) ||
	    okv_key_compare(&peers->key[peers->key_count - 1], key, &reason) == OKV_OK)
		return;
	answer->located.refusal = OKV_PEER_REFUSED_KEY;
	answer->located.count = 0;
	strncpy(answer->located.field, reason.field, sizeof(answer->located.field) - 1);
}

static bool locate(struct okv__inbound *inbound, const struct okv_peer_message *message)
{
	struct okv_peers *peers = inbound->peers;
	struct okv_peer_message *answer = answer_to(peers, message, OKV_PEER_LOCATED);
	struct okv_materialisation_key key;
	struct okv_reason reason;
	unsigned found = 0;

	if (okv_key_decode(message->locate.key, message->locate.key_size, &key, &reason) != OKV_OK) {
		closed(inbound, EPROTO, reason.text);
		return false;
	}
	struct okv_hash digest = okv_key_digest(&key);
	answer->located.refusal = OKV_PEER_GRANTED;
	memset(answer->located.field, 0, sizeof(answer->located.field));
	answer->located.count = message->locate.count;
	for (uint16_t i = 0; i < message->locate.count; i++) {
		const struct okv_block *block = resident(peers, &message->locate.hash[i], &digest);

		answer->located.location[i] = (struct okv_peer_location){0};
		if (!block)
			continue;
		found++;
		answer->located.location[i] = (struct okv_peer_location){
			.generation = block->generation,
			.medium = OKV_PEER_DRAM,
			.length = block->record.length,
			.token_count = block->record.token_count,
		};
	}
	if (found == 0)
		explain_miss(peers, &key, answer);
	okv__link_send(&inbound->link, answer);
	return true;
}

static bool open_window(struct okv__inbound *inbound, const struct okv_peer_message *message)
{
	struct okv_peers *peers = inbound->peers;
	struct okv_peer_message *answer = answer_to(peers, message, OKV_PEER_WINDOW);

	/* The window is this connection's, whatever the message says: a name can be said by anyone, and its owner may
	 * have an older connection that has not ended yet. */
	answer->window.window = okv_uuid_random();
	answer->window.refusal =
		okv_source_open(peers->source, &message->open_window.owner, &inbound->reader, &answer->window.window);
	okv__link_send(&inbound->link, answer);
	return true;
}

/* Fault point pool_flip_bit_on_authorise=K: in the K-th authorisation one bit of a block in the middle is wrong from
 * then on, as damaged memory would be. */
static void flip_bit(struct okv_peers *peers, const struct okv_source_hold *hold)
{
	struct okv_block *block = hold->block[hold->count / 2];
	int64_t at = okv_fault_value(peers->faults, "pool_flip_bit_on_authorise");

	if (at > 0 && okv_source_counts(peers->source)->authorised == (uint64_t)at)
		block->bytes[block->record.length / 2] ^= 1;
}

/* Pins the blocks and lets the mover read them. False if the mover cannot; then nothing is pinned. */
static bool grant(struct okv_peers *peers, struct okv_source_hold *hold, struct okv_mover_token *ret_token)
{
	struct okv_mover_range range[OKV_PEER_AUTHORISE_MAX];
	uint64_t id = 0;

	okv_random_bytes(ret_token, sizeof(*ret_token));
	for (uint16_t i = 0; i < hold->count; i++) {
		struct okv_block *block = hold->block[i];

		okv_store_pin(peers->store, block);
		range[i] = (struct okv_mover_range){.bytes = block->bytes, .size = block->record.length};
	}
	flip_bit(peers, hold);
	enum okv_status status = okv_mover_grant(peers->mover, ret_token, range, hold->count, &id);
	okv_source_granted(peers->source, hold, status == OKV_OK, id);
	return status == OKV_OK;
}

static void describe(const struct okv_source_hold *hold, const struct okv_mover_token *token,
		     struct okv_peer_message *answer)
{
	memcpy(answer->authorised.token, token->bytes, sizeof(answer->authorised.token));
	answer->authorised.count = hold->count;
	for (uint16_t i = 0; i < hold->count; i++) {
		const struct okv_block *block = hold->block[i];

		answer->authorised.block[i] = (struct okv_peer_authorised){
			.hash = block->record.hash,
			.parent = block->record.parent,
			.lineage = block->record.lineage,
			.key_digest = block->record.key_digest,
			.token_count = block->record.token_count,
			.length = block->record.length,
			.crc = block->record.crc,
		};
	}
}

static bool authorise(struct okv__inbound *inbound, const struct okv_peer_message *message)
{
	struct okv_peers *peers = inbound->peers;
	struct okv_peer_message *answer = answer_to(peers, message, OKV_PEER_AUTHORISED);
	struct okv_source_block found[OKV_PEER_AUTHORISE_MAX] = {0};
	struct okv_source_hold *hold;
	struct okv_mover_token token;

	for (uint16_t i = 0; i < message->authorise.count; i++) {
		struct okv_block *block =
			resident(peers, &message->authorise.wanted[i].hash, &message->authorise.key_digest);

		if (block)
			found[i] = (struct okv_source_block){block, block->generation, block->record.length};
	}
	memset(answer->authorised.token, 0, sizeof(answer->authorised.token));
	answer->authorised.count = 0;
	answer->authorised.refusal = okv_source_authorise(
		peers->source, &message->authorise.ticket, &message->authorise.owner, message->authorise.wanted, found,
		message->authorise.count, okv_loop_now_ns(peers->loop), &hold);
	if (answer->authorised.refusal == OKV_PEER_GRANTED) {
		if (grant(peers, hold, &token))
			describe(hold, &token, answer);
		else
			answer->authorised.refusal = OKV_PEER_REFUSED_MEMORY;
	}
	okv__link_send(&inbound->link, answer);
	return true;
}

static void send_released(struct okv__inbound *inbound, uint64_t request_id, enum okv_peer_refusal refusal,
			  uint32_t blocks)
{
	struct okv_peer_message *answer = &inbound->peers->outgoing;

	answer->type = OKV_PEER_RELEASED;
	answer->request_id = request_id;
	answer->released.refusal = refusal;
	answer->released.blocks = blocks;
	okv__link_send(&inbound->link, answer);
}

static bool release(struct okv__inbound *inbound, const struct okv_peer_message *message)
{
	struct okv_source_reply reply = {.connection = inbound, .request_id = message->request_id};
	enum okv_peer_refusal refusal;
	uint32_t blocks;

	if (okv_source_release(inbound->peers->source, &message->release, reply, &refusal, &blocks))
		send_released(inbound, message->request_id, refusal, blocks);
	return true;
}

static bool message_came(void *context, const struct okv_peer_message *message)
{
	struct okv__inbound *inbound = context;
	struct okv_peers *peers = inbound->peers;
	bool goes_on;

	if (inbound->is_greeted == (message->type == OKV_PEER_HELLO)) {
		closed(inbound, EPROTO, "it sent a message out of turn");
		return false;
	}
	switch (message->type) {
	case OKV_PEER_HELLO:
		return hello(inbound, message);
	case OKV_PEER_LOCATE:
		return locate(inbound, message);
	case OKV_PEER_OPEN_WINDOW:
		return open_window(inbound, message);
	case OKV_PEER_AUTHORISE:
		goes_on = authorise(inbound, message);
		break;
	case OKV_PEER_RELEASE:
		goes_on = release(inbound, message);
		break;
	default:
		closed(inbound, EPROTO, "it sent an answer to nothing");
		return false;
	}
	okv__peers_act(peers);
	return goes_on;
}

/* The last is the first to be evicted, and those before the first are used now, too: the reader has them itself. */
static void unpin(struct okv_store *store, const struct okv_source_hold *hold)
{
	const struct okv_block *first = hold->block[0];
	const struct okv_hash before = first->record.parent;

	for (uint16_t i = hold->count; i-- > 0;)
		okv_store_unpin(store, hold->block[i]);
	okv_store_touch_chain(store, &before);
}

void okv__peers_act_source(struct okv_peers *peers)
{
	struct okv_source_action action;

	while (okv_source_next(peers->source, &action)) {
		struct okv_source_hold *hold = action.hold;

		if (action.kind == OKV_SOURCE_END_GRANT) {
			okv_mover_grant_end(peers->mover, hold->grant_id);
			continue;
		}
		unpin(peers->store, hold);
		if (hold->reply.connection)
			send_released(hold->reply.connection, hold->reply.request_id, OKV_PEER_GRANTED, hold->count);
		okv_source_hold_free(hold);
	}
}

/* ---- the listener ---- */

static const struct okv__link_ops inbound_ops = {.message = message_came, .closed = closed};

static void accepted(void *context, int fd)
{
	const uint64_t hello_ns = 5 * OKV_NS_PER_S;
	struct okv_peers *peers = context;
	struct okv__inbound *inbound = NULL;

	if (peers->inbound_count < OKV__INBOUND_LINKS_MAX)
		inbound = calloc(1, sizeof(*inbound));
	if (!inbound) {
		okv_log(OKV_LOG_WARN, "peer", "a reader is turned away: there are %u already, or no memory",
			peers->inbound_count);
		close(fd);
		return;
	}
	inbound->peers = peers;
	okv__link_init(&inbound->link, &inbound_ops, inbound, &peers->incoming);
	okv_timer_init(&inbound->hello_timer, peers->loop, hello_is_late, inbound);
	if (okv__link_accept(&inbound->link, peers->loop, fd) != OKV_OK) {
		free(inbound);
		return;
	}
	okv_list_init(&inbound->node);
	okv_list_push_back(&peers->inbound, &inbound->node);
	peers->inbound_count++;
	okv_timer_start(&inbound->hello_timer, okv_loop_now_ns(peers->loop) + hello_ns);
}

enum okv_status okv__peers_listen(struct okv_peers *peers, const char *address, uint16_t port,
				  struct okv_reason *reason)
{
	enum okv_status status = okv_tcp_listen("listen", address, port, &peers->listen_fd, &peers->port, reason);

	if (status == OKV_OK)
		status = okv_acceptor_start(&peers->acceptor, peers->loop, peers->listen_fd, accepted, peers, reason);
	return status;
}

void okv__peers_stop_listening(struct okv_peers *peers)
{
	if (peers->listen_fd >= 0) {
		okv_acceptor_stop(&peers->acceptor);
		close(peers->listen_fd);
		peers->listen_fd = -1;
	}
	OKV_LIST_EACH_SAFE(node, &peers->inbound)
	drop(OKV_CONTAINER_OF(node, struct okv__inbound, node));
}
