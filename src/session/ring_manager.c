#include <inttypes.h>
#include <string.h>

#include "okv/span/identity.h"
#include "ring_layout.h"

enum okv_status okv_ring_manager_init(struct okv_ring_manager *ring, uint8_t *base, uint8_t *scratch,
				      const struct okv_ring_limits *limits, struct okv_reason *reason)
{
	const struct okv_ring_shared *shared = okv__ring_shared(base);
	uint32_t head[3] = {shared->magic, shared->version, shared->slots};

	okv__ring_copied();
	if (head[0] != OKV_RING_MAGIC || head[2] != OKV_RING_SLOTS)
		return okv_refuse(reason, OKV_ERR_PROTOCOL, "ring", "the shared ring has no head of ours");
	if (head[1] != OKV_RING_VERSION)
		return okv_refuse(reason, OKV_ERR_VERSION, "version",
				  "this manager speaks ring version %d, the engine version %" PRIu32
				  "; run the same OrbitKV release on both",
				  OKV_RING_VERSION, head[1]);
	*ring = (struct okv_ring_manager){.base = base, .limits = *limits};
	ring->scratch = scratch;
	return OKV_OK;
}

static enum okv_status corrupt(struct okv_reason *reason, const char *what)
{
	return okv_refuse(reason, OKV_ERR_PROTOCOL, "ring", "the shared ring is corrupt: %s", what);
}

static bool carries_blocks(uint32_t op)
{
	return op == OKV_RING_PUBLISH || op == OKV_RING_QUERY || op == OKV_RING_PREPARE;
}

/* What no honest engine writes. `request` is the private copy. */
static enum okv_status check_request(const struct okv_ring_manager *ring, const struct okv_ring_request *request,
				     struct okv_reason *reason)
{
	if (request->op == 0 || request->op >= OKV_RING_OPS)
		return corrupt(reason, "an unknown operation");
	if (request->slot >= OKV_RING_SLOTS)
		return corrupt(reason, "a slot beyond the ring");
	if (ring->generation[request->slot] % 2 != 0)
		return corrupt(reason, "a slot is used again before its reply");
	if (request->generation % 2 == 0 || request->generation <= ring->generation[request->slot])
		return corrupt(reason, "a stale generation");
	if (!carries_blocks(request->op))
		return request->count || request->tokens ? corrupt(reason, "blocks where none belong") : OKV_OK;
	if (request->count == 0 || request->count > OKV_RING_BLOCKS_MAX)
		return corrupt(reason, "a count of blocks outside its limits");
	if (request->op != OKV_RING_PUBLISH && request->tokens)
		return corrupt(reason, "token ids where none belong");
	if (request->tokens >
	    (OKV_RING_REQUEST_BYTES - request->count * sizeof(struct okv_ring_block)) / sizeof(uint32_t))
		return corrupt(reason, "a count of token ids outside its limits");
	return OKV_OK;
}

enum okv_status okv_ring_manager_take(struct okv_ring_manager *ring, struct okv_ring_call *ret_call,
				      struct okv_reason *reason)
{
	struct okv_ring_shared *shared = okv__ring_shared(ring->base);
	uint64_t sent = atomic_load_explicit(&shared->requests_sent.value, memory_order_acquire);
	struct okv_ring_request request;
	enum okv_status status;

	if (sent == ring->requests_taken)
		return OKV_ERR_ABSENT;
	if (sent - ring->requests_taken > OKV_RING_SLOTS)
		return corrupt(reason, "a counter beyond the ring");
	request = shared->request[ring->requests_taken % OKV_RING_SLOTS];
	okv__ring_copied();
	status = check_request(ring, &request, reason);
	if (status != OKV_OK)
		return status;

	size_t block_bytes = request.count * sizeof(struct okv_ring_block);
	memcpy(ring->scratch, okv__ring_request_area(ring->base, request.slot),
	       block_bytes + request.tokens * sizeof(uint32_t));
	okv__ring_copied();
	ring->generation[request.slot] = request.generation;
	atomic_store_explicit(&shared->requests_taken.value, ++ring->requests_taken, memory_order_release);
	*ret_call = (struct okv_ring_call){
		.request = request,
		.blocks = (const struct okv_ring_block *)(const void *)ring->scratch,
		.tokens = (const uint32_t *)(const void *)(ring->scratch + block_bytes),
	};
	return OKV_OK;
}

static enum okv_status check_block(const struct okv_ring_limits *limits, const struct okv_ring_block *block,
				   uint32_t index, struct okv_reason *reason)
{
	if (block->token_count < 1 || block->token_count > limits->page_tokens)
		return okv_refuse(reason, OKV_ERR_INVALID, "token_count",
				  "block %" PRIu32 " has %" PRIu32 " tokens, not 1 to %" PRIu32, index,
				  block->token_count, limits->page_tokens);
	if (block->arena_offset > limits->arena_bytes - limits->page_bytes)
		return okv_refuse(reason, OKV_ERR_INVALID, "arena_offset", "block %" PRIu32 " lies outside the arena",
				  index);
	return OKV_OK;
}

enum okv_status okv_ring_manager_check(const struct okv_ring_manager *ring, const struct okv_ring_call *call,
				       struct okv_reason *reason)
{
	const uint32_t *tokens = call->tokens;
	uint32_t tokens_left = call->request.tokens;

	for (uint32_t i = 0; i < call->request.count; i++) {
		const struct okv_ring_block *block = &call->blocks[i];
		enum okv_status status = check_block(&ring->limits, block, i, reason);

		if (status != OKV_OK)
			return status;
		if (call->request.op != OKV_RING_PUBLISH)
			continue;
		if (block->token_count > tokens_left)
			return okv_refuse(reason, OKV_ERR_INVALID, "tokens", "block %" PRIu32 " lacks token ids", i);

		struct okv_hash hash = okv_block_hash(&ring->limits.key_digest, &block->parent, &block->lineage, tokens,
						      block->token_count);
		if (!okv_hash_equal(&hash, &block->hash))
			return okv_refuse(reason, OKV_ERR_MISMATCH, "hash",
					  "the hash of block %" PRIu32 " does not follow from its key and tokens", i);
		tokens += block->token_count;
		tokens_left -= block->token_count;
	}
	if (tokens_left)
		return okv_refuse(reason, OKV_ERR_INVALID, "tokens", "%" PRIu32 " token ids belong to no block",
				  tokens_left);
	return OKV_OK;
}

bool okv_ring_manager_is_open(const struct okv_ring_manager *ring, uint32_t slot, uint64_t generation)
{
	return slot < OKV_RING_SLOTS && generation % 2 == 1 && ring->generation[slot] == generation;
}

enum okv_status okv_ring_manager_reply(struct okv_ring_manager *ring, struct okv_ring_reply *reply,
				       const struct okv_ring_grant *grants, struct okv_reason *reason)
{
	struct okv_ring_shared *shared = okv__ring_shared(ring->base);
	uint64_t taken = atomic_load_explicit(&shared->replies_taken.value, memory_order_acquire);

	OKV_ASSERT(reply->slot < OKV_RING_SLOTS && ring->generation[reply->slot] % 2 == 1);
	OKV_ASSERT(reply->count <= OKV_RING_BLOCKS_MAX);
	if (taken > ring->replies_sent || ring->replies_sent - taken >= OKV_RING_SLOTS)
		return corrupt(reason, "the engine's counter of replies");
	if (grants)
		memcpy(okv__ring_reply_area(ring->base, reply->slot), grants,
		       reply->count * sizeof(struct okv_ring_grant));
	reply->generation = ++ring->generation[reply->slot];
	shared->reply[ring->replies_sent % OKV_RING_SLOTS] = *reply;
	atomic_store_explicit(&shared->replies_sent.value, ++ring->replies_sent, memory_order_release);
	return OKV_OK;
}
