/*
 * Lane: one request inside the engine, with its tokens, its page table and what its pages are called; and the engine
 * that lanes live in. Private to the module; everything here belongs to the step thread unless a field says otherwise.
 *
 *     token   [0 .. known)           the prompt, then what was sampled
 *     page    [0 .. page_count)      shared ones first (all full), then its own; page_end are promised in all
 *     hash    [0 .. hash_count)      names of the leading full pages
 */
#ifndef OKV_ENGINE_LANE_H
#define OKV_ENGINE_LANE_H

#include <pthread.h>
#include <stdatomic.h>

#include "arena.h"
#include "okv/engine/engine.h"
#include "pages.h"
#include "sampler.h"
#include "scheduler.h"

struct okv__transfer;

struct okv__lane {
	struct okv__task task;
	struct okv_list incoming;    /* engine->incoming, under engine->lock */
	struct okv_map_node by_id;   /* engine->lanes, under engine->lock */
	atomic_bool is_cancel_asked; /* any thread sets, the step thread reads */
	uint64_t id;
	struct okv_sampling sampling;
	enum okv_cache_use cache;
	bool ignore_end;
	bool is_accounted; /* the prompt is in the counters */
	void (*sink)(void *sink_context, uint64_t request_id, const struct okv_event *event);
	void *sink_context;

	uint32_t prompt_count, tokens_end;
	uint32_t *token;	   /* owned: tokens_end */
	struct okv_hash *hash;	   /* owned: page_end */
	uint32_t *page;		   /* owned: page_end; each held once by this lane */
	struct okv_kv_page *table; /* owned: page_end; the same pages' memory */
	uint32_t hash_count, page_count, page_end;
	uint32_t reserved;	       /* promised to this lane and not taken yet */
	uint32_t named_count;	       /* leading pages that were offered to the name table */
	uint32_t offered_count;	       /* leading pages that were offered to the shared cache */
	struct okv__transfer *restore; /* borrowed; NULL when none is under way */

	struct okv_usage usage;
	uint64_t admitted_ns, last_token_ns;
};

struct okv__engine_metrics {
	struct okv_metric *running, *waiting, *computed, *prefix_hit, *restored, *generated, *ttft, *itl, *queue, *step;
	struct okv_metric *step_rows, *pages_held, *pages_idle, *pages_shared, *pages_reserved, *evicted;
	struct okv_metric *cancelled, *restores, *restore_failures, *restore_deadlines, *restored_remote_bytes;
	struct okv_metric *restore_time, *restores_in_flight, *publishes_in_flight, *published, *unpublished,
		*publish_failures;
};

struct okv_engine {
	struct okv_engine_options options;
	struct okv_model_shape shape;
	struct okv_materialisation_key key;
	struct okv_hash key_digest;
	struct okv_kv_layout layout;
	uint32_t context;	 /* most tokens of one lane: the model's limit or the arena's */
	struct okv_graph *graph; /* owned */
	struct okv__arena arena;
	struct okv__pages pages;
	struct okv__scheduler scheduler;
	struct okv__sampler sampler;
	struct okv__engine_metrics metrics;
	const struct okv_kv_source *source; /* borrowed; NULL: none */
	struct okv_graph_row *rows;	    /* owned: rows_max */
	float *logits;			    /* owned: running_max * vocabulary */
	struct okv_kv_block *blocks;	    /* owned: one lane's pages; scratch for a call of the source */

	struct okv_list transfers; /* restores and publishes under way, in the source's hands */
	struct okv_list offers;	   /* publishes that wait for a free slot */
	uint32_t offer_pages;	   /* held by `offers` */
	uint32_t publish_count;	   /* publishes among `transfers` */

	pthread_t thread;
	bool is_started;
	int wake_fd; /* eventfd; readable when another thread wants the step thread */

	pthread_mutex_t lock; /* the three below; never held while a sink, the graph or the source is called */
	struct okv_list incoming;
	struct okv_map lanes;
	uint64_t next_id;

	atomic_bool is_stopping, is_forget_asked, is_cancel_asked; /* any thread sets, the step thread acts */
};

/* lane.c */

/* A lane for a checked request; NULL without memory. Hashes the prompt's full pages on the caller's thread. */
struct okv__lane *okv__lane_create(const struct okv_engine *engine, const struct okv_request *request);
void okv__lane_destroy(struct okv__lane *lane);

/* Finds the leading pages that are here and promises the rest. False: there are not enough pages now. */
bool okv__lane_reserve(struct okv_engine *engine, struct okv__lane *lane);
/* Lets go of all pages and promises. */
void okv__lane_release(struct okv_engine *engine, struct okv__lane *lane);

/* Takes whole pages that somebody else named since; returns true if there were any. */
bool okv__lane_extend(struct okv_engine *engine, struct okv__lane *lane);
/* Copies a page that begins as this lane's next one; returns the number of tokens gained. */
uint32_t okv__lane_copy_tail(struct okv_engine *engine, struct okv__lane *lane, uint32_t computed);

uint32_t okv__lane_take(struct okv_engine *engine, struct okv__lane *lane);
void okv__lane_append(struct okv_engine *engine, struct okv__lane *lane, uint32_t index);
void okv__lane_give_back(struct okv_engine *engine, struct okv__lane *lane, uint32_t index);
/* Gives the lane's full page `i` its name, or exchanges it for the page that has that name already. */
void okv__lane_name(struct okv_engine *engine, struct okv__lane *lane, uint32_t i);
/* The same for all pages that became full. */
void okv__lane_name_full(struct okv_engine *engine, struct okv__lane *lane);

/* The name of the page before page `i`. */
const struct okv_hash *okv__lane_parent(const struct okv__lane *lane, uint32_t i);

/* Whole pages of the prompt that may come from elsewhere: its last token is always computed, for its logits. */
uint32_t okv__lane_whole_pages(const struct okv_engine *engine, const struct okv__lane *lane);

/* exchange.c: the traffic with the KV source */

/* Starts a restore of the lane's missing whole pages. False: there is nothing to restore, or nobody to do it. */
bool okv__exchange_restore(struct okv_engine *engine, struct okv__lane *lane, uint64_t now_ns);
/* Lets the lane go on without its restore; the pages stay with it until its completion. */
void okv__exchange_abandon(struct okv_engine *engine, struct okv__lane *lane);
/* Takes the completions that wait. */
void okv__exchange_poll(struct okv_engine *engine);
/* Offers the lane's full pages; a few are kept back until there are more, unless `flush`. */
void okv__exchange_offer(struct okv_engine *engine, struct okv__lane *lane, bool flush);
/* Starts the offers that wait, as far as the source takes them. True if pages came free of dropped ones. */
bool okv__exchange_push(struct okv_engine *engine);
/* Asks the source to end everything early and forgets the transfers. Only when nothing is called afterwards. */
void okv__exchange_stop(struct okv_engine *engine);

/* turn.c */

/* One turn of the step thread: true if the next one may have work. For the thread, and for tests without one. */
bool okv__engine_turn(struct okv_engine *engine);
/* Makes a few pages resident ahead of their use; false if there are enough of them. */
bool okv__engine_populate(struct okv_engine *engine);
/* Sleeps until something may have happened. */
void okv__engine_wait(struct okv_engine *engine);
/* Ends every lane as cancelled. */
void okv__engine_end_all(struct okv_engine *engine);
/* A restore has ended and the lane has `computed` tokens: prefill may start. */
void okv__engine_restored(struct okv_engine *engine, struct okv__lane *lane);

#endif
