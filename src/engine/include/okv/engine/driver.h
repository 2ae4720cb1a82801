/*
 * Driver: the seam between an engine and whoever serves it. Native and ridden engines implement it.
 *
 * Threads: admit and cancel may be called from any thread and return at once. Events are delivered on the engine's own
 * thread through the sink given at admission; a sink must not block and must not call back into the driver except for
 * cancel. Events may come before admit has returned. A request ends with exactly one OKV_EVENT_END, after which its id
 * means nothing and its sink is not called.
 *
 * Cancel takes effect at the next step: pages drop, and the END event says OKV_END_CANCELLED.
 */
#ifndef OKV_ENGINE_DRIVER_H
#define OKV_ENGINE_DRIVER_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "okv/base/digest.h"
#include "okv/base/status.h"

enum okv_cache_use {
	OKV_CACHE_FULL,	 /* local prefix tree and the shared cache */
	OKV_CACHE_LOCAL, /* local prefix tree only; nothing is published or restored */
	OKV_CACHE_OFF,	 /* neither read nor written: every prompt token is computed */
};

struct okv_sampling {
	float temperature; /* 0: greedy, ties to the lowest id */
	float top_p;	   /* 1: off */
	float min_p;	   /* 0: off */
	uint32_t top_k;	   /* 0: off */
	uint64_t seed;
};

enum okv_end {
	OKV_END_STOP,	/* an end token (not delivered as a token) */
	OKV_END_LENGTH, /* tokens_max or the context is reached */
	OKV_END_CANCELLED,
	OKV_END_FAILED, /* the engine lost the request; status says why */
};

struct okv_usage {
	uint32_t prompt_tokens, generated_tokens;
	/* Where the prompt's KV came from. The three add up to prompt_tokens once a token was generated; a request that
	 * ended before counts what it had by then. */
	uint32_t computed_tokens, prefix_hit_tokens, restored_tokens;
	uint64_t restored_remote_bytes;
	uint64_t queued_ns, first_token_ns, total_ns; /* since admission */
	uint64_t restore_ns; /* from the start of the restore to all its pages resident in the arena; 0 if none */
};

enum okv_event_kind { OKV_EVENT_TOKEN, OKV_EVENT_END };

struct okv_event {
	enum okv_event_kind kind;
	uint32_t token;		/* OKV_EVENT_TOKEN */
	enum okv_end end;	/* OKV_EVENT_END */
	enum okv_status status; /* OKV_EVENT_END: OKV_OK unless OKV_END_FAILED */
	struct okv_usage usage; /* OKV_EVENT_END */
};

struct okv_request {
	const uint32_t *prompt; /* borrowed until admit returns */
	uint32_t prompt_count;	/* >= 1 */
	uint32_t tokens_max;	/* >= 1 */
	struct okv_sampling sampling;
	enum okv_cache_use cache;
	bool ignore_end; /* for benchmarks: end tokens do not end the request */
	void (*sink)(void *sink_context, uint64_t request_id, const struct okv_event *event);
	void *sink_context;
};

struct okv_driver_caps {
	uint32_t context; /* most tokens of prompt and completion together */
	uint32_t vocabulary;
	bool exact_span; /* spans can be evicted exactly */
};

struct okv_driver {
	void *context;

	/*
	 * Queues a request. OKV_ERR_INVALID: empty, or longer than the context (the reason has the numbers);
	 * OKV_ERR_BUDGET: the queue is full, try later; OKV_ERR_CANCELLED: the engine is draining.
	 */
	enum okv_status (*admit)(void *context, const struct okv_request *request, uint64_t *ret_id,
				 struct okv_reason *reason);
	void (*cancel)(void *context, uint64_t request_id);
	struct okv_driver_caps (*caps)(void *context);
};

#endif
