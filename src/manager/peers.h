/*
 * Peers: the manager's way to other hosts, as the rest of the manager sees it.
 *
 * One operation: fetch these blocks, from whoever has them, into the pool. Everything runs on the owner loop, and the
 * store and the metrics registry are shared with it. Blocks that come are verified before they are visible and are of
 * class RECLAIMABLE; equal fetches may be served by one read, each with pins of its own.
 *
 * A fetch ends with exactly one call of its `done`, never from inside okv__peers_fetch(), also after a cancel, and
 * before okv__peers_shutdown() is done.
 */
#ifndef OKV_MANAGER_PEERS_H
#define OKV_MANAGER_PEERS_H

#include <stddef.h>
#include <stdint.h>

#include "okv/base/digest.h"
#include "okv/base/status.h"

struct okv_block;
struct okv_block_record;
struct okv_faults;
struct okv_loop;
struct okv_materialisation_key;
struct okv_metrics;
struct okv_peers;
struct okv_store;

struct okv_peers_options {
	struct okv_loop *loop; /* this and the next three: borrowed */
	struct okv_store *store;
	struct okv_metrics *metrics;
	struct okv_faults *faults;
	struct okv_uuid incarnation;
	const char *listen_address; /* strings: copied */
	uint16_t listen_port;
	const char *const *peers;
	size_t peer_count;
	uint64_t deadline_ns;
};

OKV_MUST_CHECK enum okv_status okv__peers_create(const struct okv_peers_options *options, struct okv_peers **ret_peers,
						 struct okv_reason *reason);
uint16_t okv__peers_port(const struct okv_peers *peers);

/*
 * `blocks[i]` is wanted[i] with one pin that is the receiver's now, or NULL. `remote_bytes` counts what crossed for
 * this fetch. The status says why blocks are missing: OKV_OK when simply nobody has them.
 */
typedef void okv__peers_done(void *context, enum okv_status status, struct okv_block *const *blocks, uint32_t count,
			     uint64_t remote_bytes);

/* An engine of this host uses this key: a peer that asks under another one is told where the two differ. */
void okv__peers_add_key(struct okv_peers *peers, const struct okv_materialisation_key *key);

/* Wants `count` blocks of this key (their crc is not read), all of one length, the leading ones first of all. 0: no
 * peer to ask now; `done` will not be called. */
uint64_t okv__peers_fetch(struct okv_peers *peers, const struct okv_materialisation_key *key,
			  const struct okv_block_record *wanted, uint32_t count, okv__peers_done *done, void *context);
/* Nobody waits for it any more; `done` comes as soon as no byte can arrive for it. */
void okv__peers_cancel(struct okv_peers *peers, uint64_t id);

/* Takes nothing new and ends every fetch; `drained` is called once, possibly from inside. */
void okv__peers_shutdown(struct okv_peers *peers, void (*drained)(void *context), void *context);
/* After `drained`, or before the loop ever ran. NULL is harmless. */
void okv__peers_destroy(struct okv_peers *peers);

#endif
