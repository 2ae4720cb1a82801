/*
 * A KV source in memory, in the place of a manager: it keeps published pages by name, checks every name it is given
 * against the tokens, and completes when the test lets it. Bytes land in the arena when a restore completes, so a page
 * that was given away too early is overwritten under its new owner.
 *
 * Included by one file of a test executable.
 */
#ifndef OKV_ENGINE_MEMORY_SOURCE_H
#define OKV_ENGINE_MEMORY_SOURCE_H

#include <stdlib.h>
#include <string.h>
#include <sys/eventfd.h>
#include <unistd.h>

#include "okv/engine/engine.h"

enum { MEMORY_BLOCKS = 1024, MEMORY_OPS = 64, MEMORY_OP_BLOCKS = 64 };

struct memory_op {
	uint64_t handle;
	bool is_restore, is_cancelled;
	uint32_t count;
	struct okv_hash hash[MEMORY_OP_BLOCKS];
	uint64_t offset[MEMORY_OP_BLOCKS];
};

struct memory_source {
	struct okv_kv_source ops;
	uint8_t *arena; /* borrowed */
	size_t page_bytes;
	struct okv_hash key_digest;
	struct memory_block {
		struct okv_hash hash;
		uint8_t *bytes; /* owned */
	} block[MEMORY_BLOCKS];
	uint32_t block_count;
	struct memory_op op[MEMORY_OPS];
	uint32_t op_count;
	uint64_t next_handle;
	int fd;
	/* What the test sets. */
	bool refuses_restores, holds_restores, garbles_held, refuses_publishes, holds_publishes, fails_publishes;
	uint32_t restore_max; /* blocks a restore brings at most; 0: no limit */
	uint32_t slices;      /* so many polls do a slice of work and complete nothing */
	/* What the test reads. */
	uint32_t restores, publishes, published_blocks, cancels;
};

static struct memory_block *memory_find(struct memory_source *source, const struct okv_hash *hash)
{
	for (uint32_t i = 0; i < source->block_count; i++)
		if (okv_hash_equal(&source->block[i].hash, hash))
			return &source->block[i];
	return NULL;
}

static inline uint64_t memory_start(struct memory_source *source, const struct okv_kv_block *blocks, uint32_t count,
				    bool is_restore)
{
	struct memory_op *op = &source->op[source->op_count];
	uint64_t one = 1;

	OKV_ASSERT(source->op_count < MEMORY_OPS && count >= 1 && count <= MEMORY_OP_BLOCKS);
	*op = (struct memory_op){.handle = source->next_handle++, .is_restore = is_restore, .count = count};
	for (uint32_t i = 0; i < count; i++) {
		struct okv_hash hash = okv_block_hash(&source->key_digest, &blocks[i].parent, &blocks[i].lineage,
						      blocks[i].tokens, blocks[i].token_count);

		OKV_ASSERT(okv_hash_equal(&hash, &blocks[i].hash));
		op->hash[i] = blocks[i].hash;
		op->offset[i] = blocks[i].page_offset;
	}
	source->op_count++;
	OKV_ASSERT(write(source->fd, &one, sizeof(one)) == sizeof(one));
	return op->handle;
}

static inline uint64_t memory_restore(void *context, const struct okv_kv_block *blocks, uint32_t count)
{
	struct memory_source *source = context;

	if (source->refuses_restores)
		return 0;
	source->restores++;
	return memory_start(source, blocks, count, true);
}

static inline uint64_t memory_publish(void *context, const struct okv_kv_block *blocks, uint32_t count)
{
	struct memory_source *source = context;

	if (source->refuses_publishes)
		return 0;
	source->publishes++;
	source->published_blocks += count;
	return memory_start(source, blocks, count, false);
}

static inline void memory_cancel(void *context, uint64_t handle)
{
	struct memory_source *source = context;

	source->cancels++;
	for (uint32_t i = 0; i < source->op_count; i++)
		if (source->op[i].handle == handle)
			source->op[i].is_cancelled = true;
}

static inline void memory_finish_restore(struct memory_source *source, const struct memory_op *op,
					 struct okv_kv_completion *completion)
{
	uint32_t limit = source->restore_max && source->restore_max < op->count ? source->restore_max : op->count;

	if (op->is_cancelled) {
		/* Ended early, in the middle of a write. */
		for (uint32_t i = 0; source->garbles_held && i < op->count; i++)
			memset(source->arena + op->offset[i], 0xa5, source->page_bytes);
		completion->status = OKV_ERR_CANCELLED;
		return;
	}
	for (; completion->blocks < limit; completion->blocks++) {
		const struct memory_block *block = memory_find(source, &op->hash[completion->blocks]);

		if (!block)
			break;
		memcpy(source->arena + op->offset[completion->blocks], block->bytes, source->page_bytes);
		completion->remote_bytes += source->page_bytes;
	}
	for (uint32_t i = completion->blocks; i < op->count; i++)
		memset(source->arena + op->offset[i], 0x5a, source->page_bytes);
}

static inline void memory_finish_publish(struct memory_source *source, const struct memory_op *op,
					 struct okv_kv_completion *completion)
{
	if (source->fails_publishes || op->is_cancelled) {
		completion->status = OKV_ERR_NO_SPACE;
		return;
	}
	for (; completion->blocks < op->count; completion->blocks++) {
		const struct okv_hash *hash = &op->hash[completion->blocks];
		struct memory_block *block = &source->block[source->block_count];

		if (memory_find(source, hash))
			continue;
		OKV_ASSERT(source->block_count < MEMORY_BLOCKS);
		block->hash = *hash;
		block->bytes = malloc(source->page_bytes);
		OKV_ASSERT(block->bytes);
		memcpy(block->bytes, source->arena + op->offset[completion->blocks], source->page_bytes);
		source->block_count++;
	}
}

static inline bool memory_poll(void *context, struct okv_kv_completion *ret_completion)
{
	struct memory_source *source = context;
	uint64_t count;

	if (source->op_count > 0 && source->slices > 0) {
		source->slices--;
		return false;
	}
	for (uint32_t i = 0; i < source->op_count; i++) {
		struct memory_op op = source->op[i];

		if (op.is_restore ? source->holds_restores : source->holds_publishes)
			continue;
		source->op[i] = source->op[--source->op_count];
		*ret_completion = (struct okv_kv_completion){.handle = op.handle};
		if (op.is_restore)
			memory_finish_restore(source, &op, ret_completion);
		else
			memory_finish_publish(source, &op, ret_completion);
		return true;
	}
	(void)!read(source->fd, &count, sizeof(count));
	return false;
}

static inline int memory_wait_fd(void *context)
{
	return ((struct memory_source *)context)->fd;
}

static inline void memory_source_init(struct memory_source *source)
{
	*source = (struct memory_source){
		.ops = {.context = source,
			.restore = memory_restore,
			.publish = memory_publish,
			.cancel = memory_cancel,
			.poll = memory_poll,
			.wait_fd = memory_wait_fd},
		.next_handle = 1,
		.fd = eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK),
	};
}

/* From now on it serves this engine; what it holds stays. */
static inline void memory_source_attach(struct memory_source *source, struct okv_engine *engine)
{
	source->arena = okv_engine_arena(engine)->base;
	source->page_bytes = okv_engine_page_bytes(engine);
	source->key_digest = okv_key_digest(okv_engine_key(engine));
}

static inline void memory_source_done(struct memory_source *source)
{
	for (uint32_t i = 0; i < source->block_count; i++)
		free(source->block[i].bytes);
	close(source->fd);
}

#endif
