/* Ring layout: where things lie in the shared region. Both ends include it and nobody else. */
#ifndef OKV_SESSION_RING_LAYOUT_H
#define OKV_SESSION_RING_LAYOUT_H

#include <stdatomic.h>

#include "okv/session/ring.h"

#define OKV_RING_MAGIC 0x52564b4fU /* "OKVR" when read as bytes */

/* A counter alone on its cache line, since its neighbour has another writer. */
struct okv_ring_counter {
	_Atomic uint64_t value;
	uint8_t padding[56];
};

struct okv_ring_shared {
	uint32_t magic, version, slots, reserved;
	uint8_t padding[48];
	struct okv_ring_counter requests_sent;	/* written by the engine */
	struct okv_ring_counter requests_taken; /* written by the manager */
	struct okv_ring_counter replies_sent;	/* written by the manager */
	struct okv_ring_counter replies_taken;	/* written by the engine */
	struct okv_ring_request request[OKV_RING_SLOTS];
	struct okv_ring_reply reply[OKV_RING_SLOTS];
};

enum {
	OKV_RING_VERSION = 1,
	OKV_RING_HEAD_BYTES = 8192,
	OKV_RING_SLOT_BYTES = OKV_RING_REQUEST_BYTES + OKV_RING_REPLY_BYTES,
	OKV_RING_BYTES = OKV_RING_HEAD_BYTES + OKV_RING_SLOTS * OKV_RING_SLOT_BYTES,
};

_Static_assert(offsetof(struct okv_ring_shared, request) == 320, "docs/formats/session.md");
_Static_assert(offsetof(struct okv_ring_shared, reply) == 2368, "docs/formats/session.md");
_Static_assert(sizeof(struct okv_ring_shared) <= OKV_RING_HEAD_BYTES, "the head has two pages");
_Static_assert(OKV_RING_BLOCKS_MAX * sizeof(struct okv_ring_block) <= OKV_RING_REQUEST_BYTES, "blocks fit a slot");
_Static_assert(OKV_RING_BLOCKS_MAX * sizeof(struct okv_ring_grant) <= OKV_RING_REPLY_BYTES, "grants fit a slot");
_Static_assert(ATOMIC_LLONG_LOCK_FREE == 2, "counters are shared between processes");

static inline struct okv_ring_shared *okv__ring_shared(uint8_t *base)
{
	return (struct okv_ring_shared *)(void *)base;
}

static inline uint8_t *okv__ring_request_area(uint8_t *base, uint32_t slot)
{
	return base + OKV_RING_HEAD_BYTES + (size_t)slot * OKV_RING_SLOT_BYTES;
}

static inline uint8_t *okv__ring_reply_area(uint8_t *base, uint32_t slot)
{
	return okv__ring_request_area(base, slot) + OKV_RING_REQUEST_BYTES;
}

/* After a copy out of shared memory: forbids the compiler to read the original again in place of the copy. */
static inline void okv__ring_copied(void)
{
	atomic_signal_fence(memory_order_seq_cst);
}

#endif
