/*
 * Store: the DRAM pool of one host and the one table in which a block's life is written.
 *
 *              reserve                 commit                     evict (unpinned only)
 *   (absent) ----------> INCOMING ----------------> RESIDENT --------------------------> (absent)
 *                           |  abort                    | condemn (damaged: no new pins)
 *                           v                           v
 *                        (absent)                   CONDEMNED -- last unpin --> (absent)
 *
 * Invariants (tests refer to them by number)
 *   I1  only RESIDENT blocks are found; a block is visible only when it is complete and its digest is known.
 *   I2  the bytes of a pinned or INCOMING block neither move nor change nor are given to another block.
 *   I3  used_bytes is the sum of the extents of all blocks in the table; it never exceeds the pool.
 *   I4  each residence has its own generation; equal bytes after eviction and reinsertion are a new one. Never reused.
 *   I5  eviction goes by class (reclaimable first), least recently used first inside a class, and skips pinned blocks.
 *   I6  each pin is released exactly once, by who took it; time releases nothing.
 *
 * Threads: a store belongs to the manager's owner loop and is called only there. The bytes of an INCOMING block may be
 * written by a worker or the mover, and those of a pinned block read by anyone, while the owner holds the reference.
 */
#ifndef OKV_STORE_STORE_H
#define OKV_STORE_STORE_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "okv/base/clock.h"
#include "okv/base/digest.h"
#include "okv/base/status.h"

struct okv_metric;
struct okv_region;
struct okv_store;

enum okv_block_class {
	OKV_CLASS_RECLAIMABLE, /* came from a peer, who may still have it */
	OKV_CLASS_NORMAL,      /* published by an engine of this host */
};

/* What is known of a block beside its bytes. */
struct okv_block_record {
	struct okv_hash hash, parent, lineage, key_digest;
	uint32_t token_count;
	uint64_t length; /* bytes */
	struct okv_crc crc;
};

/* A block in the table. Public fields are read-only for everyone but the store. */
struct okv_block {
	struct okv_block_record record;
	uint64_t generation; /* of this residence, within this manager's incarnation */
	uint64_t offset;     /* of the bytes in the pool */
	uint8_t *bytes;	     /* mapping of the pool at offset */
	enum okv_block_class class;
	uint32_t pins;
};

struct okv_store_counts {
	uint64_t pool_bytes, used_bytes, largest_free_bytes;
	uint64_t resident_blocks[2]; /* by class */
	uint64_t resident_bytes, incoming_bytes;
	uint64_t pinned_blocks, pinned_bytes; /* unique blocks with at least one pin, condemned ones too */
	uint64_t insertions, evictions[2];    /* evictions by class */
	uint64_t evictions_skipped_pinned;    /* pinned blocks met by a cleanup or by a reservation that failed */
	uint64_t evicted_bytes, alloc_failures, condemned;
};

/* Why a block was evicted. */
enum okv_eviction { OKV_EVICTED_BY_PRESSURE, OKV_EVICTED_BY_CLEANUP, OKV_EVICTIONS };

/* What POST /cache/memory/cleanup reports. */
struct okv_store_cleanup {
	uint64_t evicted_blocks, evicted_bytes, reclaimed_bytes, still_referenced_blocks;
};

/*
 * Creates a pool of `pool_bytes` (at least 1 MiB), sealed for readers. Refuses more than the available memory of the
 * machine or control group and says how much there is. Memory becomes resident on first use and stays so; what was used
 * once is used again first.
 */
OKV_MUST_CHECK enum okv_status okv_store_create(uint64_t pool_bytes, struct okv_store **ret_store,
						struct okv_reason *reason);
void okv_store_destroy(struct okv_store *store);
/* The pool, for passing to engines; borrowed. */
const struct okv_region *okv_store_pool(const struct okv_store *store);
const struct okv_store_counts *okv_store_counts(struct okv_store *store);

/* From now on each eviction is observed in age[its reason], a histogram: how long the block was resident. */
void okv_store_measure_ages(struct okv_store *store, struct okv_clock clock,
			    struct okv_metric *const age[OKV_EVICTIONS]);

/*
 * Makes another 1 MiB of the pool resident (about half a millisecond), unless a reserve of 64 MiB of free memory is so
 * already. True while there is more to do: the owner calls it again when it is idle. A manager without engines does not
 * call it, and its empty pool costs no memory.
 */
bool okv_store_touch_ahead(struct okv_store *store);

/*
 * Reserves space for a block, evicting unpinned ones if needed. OKV_ERR_EXISTS if it is resident or incoming already
 * (then *ret_block is that block), OKV_ERR_NO_SPACE if what is not pinned does not suffice, OKV_ERR_INVALID for a
 * length of 0 or over the pool. record->crc is not read.
 */
OKV_MUST_CHECK enum okv_status okv_store_reserve(struct okv_store *store, const struct okv_block_record *record,
						 enum okv_block_class class, struct okv_block **ret_block);
/* The bytes are complete: the block becomes visible under `crc`, with a new generation, and with one pin of the
 * caller's. */
void okv_store_commit(struct okv_store *store, struct okv_block *block, const struct okv_crc *crc);
/* Gives an INCOMING block's space back. Only when nobody can write to it any more. */
void okv_store_abort(struct okv_store *store, struct okv_block *block);
bool okv_block_is_incoming(const struct okv_block *block);

/* Finds a RESIDENT block and makes it most recently used; NULL if there is none. Takes no pin. */
struct okv_block *okv_store_find(struct okv_store *store, const struct okv_hash *hash);
/*
 * Does so with a block, then with its parent, and so on while they are RESIDENT: a block is of no use without those
 * before it, so of a prefix the last must be the first to be evicted. It ends after 4,096 of them, since a parent is
 * what an engine or a peer says, and a chain may have no end.
 */
void okv_store_touch_chain(struct okv_store *store, const struct okv_hash *last);
/* Finds without touching the order: for answers to others. */
struct okv_block *okv_store_peek(struct okv_store *store, const struct okv_hash *hash);

/* Of a RESIDENT block. The end of the last pin counts as its latest use. */
void okv_store_pin(struct okv_store *store, struct okv_block *block);
void okv_store_unpin(struct okv_store *store, struct okv_block *block);

/* A reader found the bytes damaged: the block is no longer found, and goes when its last pin does. */
void okv_store_condemn(struct okv_store *store, struct okv_block *block);

/* Evicts every unpinned resident block. */
struct okv_store_cleanup okv_store_clean(struct okv_store *store);

#endif
