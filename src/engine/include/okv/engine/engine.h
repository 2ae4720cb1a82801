/*
 * Engine: the native driver. It owns the KV cache of one process (an arena of pages), batches requests into steps of
 * one model graph, keeps full pages under their block hash for prompts that share a prefix, and reaches the shared
 * cache through a struct okv_kv_source.
 *
 *     create -> start -> (driver: admit, cancel, from any thread) -> stop -> destroy
 *
 * One step thread does everything between start and stop: scheduling, the graph, sampling, event sinks, all calls of
 * the KV source. stop() ends every request with OKV_END_CANCELLED, asks the source to cancel what is under way, and
 * joins the thread; it does not wait for the source. The arena stays mapped until destroy(), and whoever writes into it
 * for the source must have ended before that.
 *
 * A lane's output is a function of its prompt, its sampling and the model: equal bit for bit under any load, cut,
 * cache mode and number of threads.
 */
#ifndef OKV_ENGINE_ENGINE_H
#define OKV_ENGINE_ENGINE_H

#include "okv/base/clock.h"
#include "okv/base/metrics.h"
#include "okv/base/region.h"
#include "okv/engine/driver.h"
#include "okv/engine/kv_source.h"
#include "okv/model/graph.h"
#include "okv/model/tokenizer.h"
#include "okv/span/identity.h"

struct okv_engine;

struct okv_engine_options {
	const struct okv_model *model;	       /* borrowed; outlives the engine */
	const struct okv_tokenizer *tokenizer; /* borrowed; outlives the engine */
	const char *isolation_domain;	       /* part of every block's name; at most OKV_KEY_NAME_MAX - 1 bytes */
	struct okv_graph_options graph;
	uint64_t arena_bytes;	   /* rounded down to whole pages; at least one page */
	uint64_t populate_bytes;   /* resident ahead of the pages in use, made so when there is nothing to do */
	uint32_t running_max;	   /* requests that compute together; below graph.rows_max */
	uint32_t queue_max;	   /* requests that wait beside them */
	uint64_t step_ns;	   /* aim for a step's length while somebody decodes */
	uint64_t step_alone_ns;	   /* the same while nobody does */
	uint64_t restore_limit_ns; /* a restore that takes longer is abandoned whole; longer than the source's own
				      limits */
	struct okv_clock clock;
	struct okv_metrics *metrics; /* borrowed; outlives the engine */
};

/* Everything but model, tokenizer and metrics: f16, pages of 16 tokens, 1 GiB, 32 + 256 requests, 40 ms, 4 s. */
struct okv_engine_options okv_engine_options_default(void);

OKV_MUST_CHECK enum okv_status okv_engine_create(const struct okv_engine_options *options,
						 struct okv_engine **ret_engine, struct okv_reason *reason);

/* Starts the step thread. `source` is borrowed until stop returns; NULL: there is no shared cache. */
OKV_MUST_CHECK enum okv_status okv_engine_start(struct okv_engine *engine, const struct okv_kv_source *source,
						struct okv_reason *reason);
void okv_engine_stop(struct okv_engine *engine);
void okv_engine_destroy(struct okv_engine *engine);

/* The seam for whoever serves the engine; valid until destroy. */
struct okv_driver okv_engine_driver(struct okv_engine *engine);

/* What a shared cache must be told at registration: where pages live, how long one is, what they are. */
const struct okv_region *okv_engine_arena(const struct okv_engine *engine);
size_t okv_engine_page_bytes(const struct okv_engine *engine);
const struct okv_materialisation_key *okv_engine_key(const struct okv_engine *engine);

/* Drops every page that only the local prefix tree keeps, before the next step. From any thread. */
void okv_engine_forget(struct okv_engine *engine);

#endif
