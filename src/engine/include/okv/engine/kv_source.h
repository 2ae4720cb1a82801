/*
 * KV source: the engine's only view of a shared cache. The engine calls these operations from its step thread; none of
 * them blocks. `app` wires them to the manager's client, tests wire them to memory, and NULL means no shared cache.
 *
 * Every operation that starts work returns a handle and ends with exactly one completion from poll(), also after
 * cancel(). Until that completion arrives the pages named in the call stay reserved: only completion, never time,
 * returns them to the engine.
 *
 *   restore: copies the longest available prefix of `blocks` (in order) into `page_offset[i]` of the arena, verified;
 *            completion.blocks says how many are there. Fewer than asked, or none, is an ordinary answer. A page beyond
 *            completion.blocks may hold anything.
 *   publish: offers pages that will not change any more; completion.blocks says how many the manager took or had.
 */
#ifndef OKV_ENGINE_KV_SOURCE_H
#define OKV_ENGINE_KV_SOURCE_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "okv/base/digest.h"
#include "okv/base/status.h"

/* One full page of a sequence as the fabric names it. Token ids let the receiver recompute the hash. */
struct okv_kv_block {
	struct okv_hash hash, parent, lineage;
	const uint32_t *tokens; /* borrowed until the call returns: token_count ids */
	uint32_t token_count;
	uint64_t page_offset; /* of the page in the arena, bytes */
};

struct okv_kv_completion {
	uint64_t handle;
	enum okv_status status; /* OKV_OK, or why nothing (more) came; the engine recomputes in any case */
	uint32_t blocks;	/* leading blocks that are done */
	uint64_t remote_bytes;	/* of those, bytes that came from another host's manager for this call */
};

struct okv_kv_source {
	void *context;

	/* Starts a restore; 0 when none can be started now (no manager, no free slot): go on without. */
	uint64_t (*restore)(void *context, const struct okv_kv_block *blocks, uint32_t count);

	/* Starts a publish; 0 when none can be started now. */
	uint64_t (*publish)(void *context, const struct okv_kv_block *blocks, uint32_t count);

	/* Asks that `handle` end early. Its completion still comes. */
	void (*cancel)(void *context, uint64_t handle);

	/* Takes one completion if there is one. A source without a thread of its own also does a slice of its work
	 * here. */
	bool (*poll)(void *context, struct okv_kv_completion *ret_completion);

	/* A descriptor that is readable while poll() has something to do, for a thread that has nothing else to do. */
	int (*wait_fd)(void *context);
};

#endif
