#include <string.h>

#include "ring_layout.h"

size_t okv_ring_bytes(void)
{
	return OKV_RING_BYTES;
}

uint32_t okv_ring_publish_blocks_max(uint32_t page_tokens)
{
	size_t each = sizeof(struct okv_ring_block) + page_tokens * sizeof(uint32_t);
	size_t count = OKV_RING_REQUEST_BYTES / each;

	return count < OKV_RING_BLOCKS_MAX ? (uint32_t)count : OKV_RING_BLOCKS_MAX;
}

void okv_ring_client_init(struct okv_ring_client *ring, uint8_t *base)
{
	struct okv_ring_shared *shared = okv__ring_shared(base);

	*ring = (struct okv_ring_client){.base = base};
	shared->magic = OKV_RING_MAGIC;
	shared->version = OKV_RING_VERSION;
	shared->slots = OKV_RING_SLOTS;
}

bool okv_ring_client_take_slot(struct okv_ring_client *ring, uint32_t *ret_slot)
{
	for (uint32_t slot = 0; slot < OKV_RING_SLOTS; slot++) {
		if (!ring->is_taken[slot]) {
			ring->is_taken[slot] = true;
			*ret_slot = slot;
			return true;
		}
	}
	return false;
}

void okv_ring_client_give_slot(struct okv_ring_client *ring, uint32_t slot)
{
	OKV_ASSERT(ring->is_taken[slot] && ring->generation[slot] % 2 == 0);
	ring->is_taken[slot] = false;
}

struct okv_ring_block *okv_ring_client_blocks(struct okv_ring_client *ring, uint32_t slot)
{
	OKV_ASSERT(slot < OKV_RING_SLOTS);
	return (struct okv_ring_block *)(void *)okv__ring_request_area(ring->base, slot);
}

uint64_t okv_ring_client_send(struct okv_ring_client *ring, struct okv_ring_request *request)
{
	struct okv_ring_shared *shared = okv__ring_shared(ring->base);
	uint32_t slot = request->slot;

	OKV_ASSERT(slot < OKV_RING_SLOTS && ring->is_taken[slot] && ring->generation[slot] % 2 == 0);
	request->generation = ++ring->generation[slot];
	shared->request[ring->requests_sent % OKV_RING_SLOTS] = *request;
	/* Release: the entry and the slot's area are visible before the counter. */
	atomic_store_explicit(&shared->requests_sent.value, ++ring->requests_sent, memory_order_release);
	return request->generation;
}

enum okv_status okv_ring_client_take(struct okv_ring_client *ring, struct okv_ring_reply *ret_reply,
				     struct okv_ring_grant *ret_grants, struct okv_reason *reason)
{
	struct okv_ring_shared *shared = okv__ring_shared(ring->base);
	uint64_t sent = atomic_load_explicit(&shared->replies_sent.value, memory_order_acquire);
	struct okv_ring_reply reply;

	if (sent == ring->replies_taken)
		return OKV_ERR_ABSENT;
	if (sent - ring->replies_taken > OKV_RING_SLOTS)
		return okv_refuse(reason, OKV_ERR_PROTOCOL, "ring", "the manager's counter is beyond the ring");
	reply = shared->reply[ring->replies_taken % OKV_RING_SLOTS];
	okv__ring_copied();
	if (reply.slot >= OKV_RING_SLOTS || ring->generation[reply.slot] % 2 == 0 ||
	    reply.generation != ring->generation[reply.slot] + 1)
		return okv_refuse(reason, OKV_ERR_PROTOCOL, "ring", "the manager answered what was not asked");
	if (reply.count > OKV_RING_BLOCKS_MAX)
		return okv_refuse(reason, OKV_ERR_PROTOCOL, "ring", "the manager's answer has too many blocks");
	if (reply.op == OKV_RING_RESTORE && reply.status == OKV_OK)
		memcpy(ret_grants, okv__ring_reply_area(ring->base, reply.slot),
		       reply.count * sizeof(struct okv_ring_grant));
	okv__ring_copied();
	ring->generation[reply.slot]++;
	atomic_store_explicit(&shared->replies_taken.value, ++ring->replies_taken, memory_order_release);
	*ret_reply = reply;
	return OKV_OK;
}
