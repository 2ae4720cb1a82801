#include "okv/engine/engine.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>
#include <sys/eventfd.h>
#include <unistd.h>

#include "lane.h"
#include "okv/base/rng.h"

struct okv_engine_options okv_engine_options_default(void)
{
	return (struct okv_engine_options){
		.isolation_domain = "default",
		.graph = {.rows_max = 256, .dtype = OKV_KV_F16, .page_tokens = 16},
		.arena_bytes = 1ULL << 30,
		.populate_bytes = 128ULL << 20,
		.running_max = 32,
		.queue_max = 256,
		.step_ns = 40 * OKV_NS_PER_MS,
		.step_alone_ns = 160 * OKV_NS_PER_MS,
		.restore_limit_ns = 4000 * OKV_NS_PER_MS,
		.clock = okv_clock_boottime(),
	};
}

static enum okv_status check_options(const struct okv_engine_options *options, struct okv_reason *reason)
{
	if (options->running_max == 0 || options->running_max >= options->graph.rows_max)
		return okv_refuse(
			reason, OKV_ERR_INVALID, "running",
			"the number of running requests must be between 1 and %u, one less than the rows of a step",
			options->graph.rows_max - 1);
	if (options->queue_max == 0)
		return okv_refuse(reason, OKV_ERR_INVALID, "queue", "the queue must hold at least one request");
	if (options->step_ns == 0 || options->step_alone_ns == 0)
		return okv_refuse(reason, OKV_ERR_INVALID, "step", "a step must have some time");
	if (strlen(options->isolation_domain) >= OKV_KEY_NAME_MAX)
		return okv_refuse(reason, OKV_ERR_INVALID, "isolation_domain",
				  "an isolation domain has at most %d bytes", OKV_KEY_NAME_MAX - 1);
	return OKV_OK;
}

static void set_name(char *name, const char *text)
{
	OKV_ASSERT(strlen(text) < OKV_KEY_NAME_MAX);
	memcpy(name, text, strlen(text) + 1);
}

/* Everything that could change a bit of a page. */
static void make_key(struct okv_engine *engine)
{
	struct okv_materialisation_key *key = &engine->key;

	*key = (struct okv_materialisation_key){
		.weights = *okv_model_weights_digest(engine->options.model),
		.tokenizer = *okv_tokenizer_digest(engine->options.tokenizer),
		.rope_theta = engine->shape.rope_theta,
		.rope_dims = engine->shape.rope_dims,
		.layers = engine->shape.layers,
		.kv_heads = engine->shape.kv_heads,
		.head_dim = engine->shape.head_dim,
		.page_tokens = engine->layout.page_tokens,
		.tp_size = 1,
		.policy_version = 1,
		.admitter_version = 1,
	};
	set_name(key->serializer, "page-lkvt-1");
	set_name(key->rope_type, "adjacent");
	set_name(key->rope_scaling, "none");
	set_name(key->kv_dtype, engine->layout.dtype == OKV_KV_F16 ? "f16" : "f32");
	set_name(key->numerics, okv_model_numerics_id());
	set_name(key->isolation_domain, engine->options.isolation_domain);
	engine->key_digest = okv_key_digest(key);
}

static void create_metrics(struct okv_engine *engine)
{
	struct okv_metrics *all = engine->options.metrics;

#define COUNTER(name, labels, help)   okv_counter(all, "orbitkv_engine_" name "_total", labels, help)
#define GAUGE(name, labels, help)     okv_gauge(all, "orbitkv_engine_" name, labels, help)
#define HISTOGRAM(name, labels, help) okv_histogram(all, "orbitkv_engine_" name "_seconds", labels, help)
#define PROMPT_HELP		      "Prompt tokens, by where their KV came from"
#define PAGES_HELP		      "KV pages: held by requests or transfers, idle in the prefix tree, held more than once, promised"
#define FLIGHT_HELP		      "Transfers started and not completed"
	engine->metrics = (struct okv__engine_metrics){
		.running = GAUGE("requests_running", "", "Requests that compute or restore"),
		.waiting = GAUGE("requests_waiting", "", "Requests in the queue"),
		.computed = COUNTER("prompt_tokens", "source=\"computed\"", PROMPT_HELP),
		.prefix_hit = COUNTER("prompt_tokens", "source=\"prefix_hit\"", PROMPT_HELP),
		.restored = COUNTER("prompt_tokens", "source=\"restored\"", PROMPT_HELP),
		.generated = COUNTER("generated_tokens", "", "Tokens delivered"),
		.ttft = HISTOGRAM("ttft", "", "From admission to the first token"),
		.itl = HISTOGRAM("itl", "", "Between two tokens of a request"),
		.queue = HISTOGRAM("queue", "", "From admission to the first computing or restoring"),
		.step = HISTOGRAM("step", "", "One step of the graph"),
		.step_rows = COUNTER("step_rows", "", "Rows of all steps"),
		.pages_held = GAUGE("kv_pages", "state=\"held\"", PAGES_HELP),
		.pages_idle = GAUGE("kv_pages", "state=\"idle\"", PAGES_HELP),
		.pages_shared = GAUGE("kv_pages", "state=\"shared\"", PAGES_HELP),
		.pages_reserved = GAUGE("kv_pages", "state=\"reserved\"", PAGES_HELP),
		.evicted = COUNTER("kv_pages_evicted", "", "Idle pages given up for another use"),
		.cancelled = COUNTER("cancellations", "", "Requests that ended because they were cancelled"),
		.restores = COUNTER("restores", "", "Restores started"),
		.restore_failures = COUNTER("restore_failures", "", "Restores that completed with an error"),
		.restore_deadlines = COUNTER("restore_deadlines", "", "Restores abandoned because they took too long"),
		.restored_remote_bytes = COUNTER("restored_remote_bytes", "", "Bytes restored from other hosts"),
		.restore_time = HISTOGRAM("restore", "", "From the start of a restore to its pages in the arena"),
		.restores_in_flight = GAUGE("transfers", "kind=\"restore\"", FLIGHT_HELP),
		.publishes_in_flight = GAUGE("transfers", "kind=\"publish\"", FLIGHT_HELP),
		.published = COUNTER("published_pages", "", "Pages that the shared cache took or had"),
		.unpublished = GAUGE("unpublished_pages", "", "Pages that the shared cache was offered or will be"),
		.publish_failures = COUNTER("publish_failures", "", "Publishes that were dropped or not taken whole"),
	};
#undef COUNTER
#undef GAUGE
#undef HISTOGRAM
#undef PROMPT_HELP
#undef PAGES_HELP
#undef FLIGHT_HELP
}

static enum okv_status create_pages(struct okv_engine *engine, struct okv_reason *reason)
{
	const struct okv_engine_options *options = &engine->options;
	uint64_t room;
	enum okv_status status;

	status = okv_graph_create(options->model, &options->graph, &engine->graph, reason);
	if (status != OKV_OK)
		return status;
	engine->layout = *okv_graph_layout(engine->graph);
	status = okv__arena_init(&engine->arena, &engine->layout, options->arena_bytes, reason);
	if (status != OKV_OK)
		return status;
	room = (uint64_t)engine->arena.page_count * engine->layout.page_tokens;
	engine->context = room < engine->shape.context ? (uint32_t)room : engine->shape.context;
	return okv__pages_init(&engine->pages, engine->arena.page_count, engine->layout.page_tokens, reason);
}

static enum okv_status create_scratch(struct okv_engine *engine, struct okv_reason *reason)
{
	const struct okv_engine_options *options = &engine->options;
	size_t pages_max = engine->context / engine->layout.page_tokens + 1;

	engine->rows = calloc(options->graph.rows_max, sizeof(*engine->rows));
	engine->logits = calloc((size_t)options->running_max * engine->shape.vocabulary, sizeof(*engine->logits));
	engine->blocks = calloc(pages_max > 16 ? pages_max : 16, sizeof(*engine->blocks));
	if (!engine->rows || !engine->logits || !engine->blocks)
		return okv_refuse(reason, OKV_ERR_NO_MEMORY, "engine", "no memory for the buffers of a step");
	engine->wake_fd = eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK);
	if (engine->wake_fd < 0)
		return okv_refuse(reason, okv_status_from_errno(errno), "engine", "eventfd: %s", strerror(errno));
	return okv__sampler_init(&engine->sampler, engine->shape.vocabulary, reason);
}

enum okv_status okv_engine_create(const struct okv_engine_options *options, struct okv_engine **ret_engine,
				  struct okv_reason *reason)
{
	struct okv_engine *engine;
	enum okv_status status = check_options(options, reason);

	if (status != OKV_OK)
		return status;
	engine = calloc(1, sizeof(*engine));
	if (!engine)
		return okv_refuse(reason, OKV_ERR_NO_MEMORY, "engine", "no memory");
	engine->options = *options;
	engine->shape = *okv_model_shape(options->model);
	engine->arena.region.fd = engine->wake_fd = -1;
	engine->next_id = 1;
	okv_list_init(&engine->transfers);
	okv_list_init(&engine->offers);
	okv_list_init(&engine->incoming);
	pthread_mutex_init(&engine->lock, NULL);
	status = okv_map_init(&engine->lanes);
	if (status == OKV_OK)
		status = create_pages(engine, reason);
	if (status == OKV_OK)
		status = create_scratch(engine, reason);
	if (status != OKV_OK) {
		okv_engine_destroy(engine);
		return status;
	}
	make_key(engine);
	create_metrics(engine);
	okv__scheduler_init(&engine->scheduler, &(struct okv__scheduler_options){
							.running_max = options->running_max,
							.rows_max = options->graph.rows_max,
							.step_ns = options->step_ns,
							.step_alone_ns = options->step_alone_ns,
						});
	*ret_engine = engine;
	return OKV_OK;
}

void okv_engine_destroy(struct okv_engine *engine)
{
	if (!engine)
		return;
	OKV_ASSERT(!engine->is_started && engine->lanes.size == 0);
	okv__sampler_done(&engine->sampler);
	okv__pages_done(&engine->pages);
	okv__arena_done(&engine->arena);
	okv_graph_destroy(engine->graph);
	okv_map_done(&engine->lanes);
	if (engine->wake_fd >= 0)
		close(engine->wake_fd);
	pthread_mutex_destroy(&engine->lock);
	free(engine->rows);
	free(engine->logits);
	free(engine->blocks);
	free(engine);
}

static void wake(struct okv_engine *engine)
{
	uint64_t one = 1;

	/* EAGAIN: the counter is full, so the thread is awake already. */
	if (write(engine->wake_fd, &one, sizeof(one)) < 0)
		OKV_ASSERT(errno == EAGAIN || errno == EINTR);
}

static void *run(void *context)
{
	struct okv_engine *engine = context;

	while (!atomic_load(&engine->is_stopping))
		if (!okv__engine_turn(engine) && !okv__engine_populate(engine))
			okv__engine_wait(engine);
	okv__engine_end_all(engine);
	return NULL;
}

enum okv_status okv_engine_start(struct okv_engine *engine, const struct okv_kv_source *source,
				 struct okv_reason *reason)
{
	int error;

	OKV_ASSERT(!engine->is_started);
	engine->source = source;
	error = pthread_create(&engine->thread, NULL, run, engine);
	if (error != 0)
		return okv_refuse(reason, okv_status_from_errno(error), "engine", "step thread: %s", strerror(error));
	engine->is_started = true;
	return OKV_OK;
}

void okv_engine_stop(struct okv_engine *engine)
{
	pthread_mutex_lock(&engine->lock);
	atomic_store(&engine->is_stopping, true);
	pthread_mutex_unlock(&engine->lock);
	if (engine->is_started) {
		wake(engine);
		pthread_join(engine->thread, NULL);
		engine->is_started = false;
	} else {
		okv__engine_end_all(engine);
	}
	okv__exchange_stop(engine);
}

static enum okv_status check_request(const struct okv_engine *engine, const struct okv_request *request,
				     struct okv_reason *reason)
{
	if (request->prompt_count == 0)
		return okv_refuse(reason, OKV_ERR_INVALID, "prompt", "the prompt is empty");
	if (request->tokens_max == 0)
		return okv_refuse(reason, OKV_ERR_INVALID, "max_tokens", "max_tokens must be at least 1");
	if (request->prompt_count >= engine->context)
		return okv_refuse(
			reason, OKV_ERR_INVALID, "prompt",
			"the prompt has %u tokens; prompt and completion together may have %u (%s); shorten it",
			request->prompt_count, engine->context,
			engine->context < engine->shape.context ? "the size of the KV arena" : "the model's context");
	for (uint32_t i = 0; i < request->prompt_count; i++)
		if (request->prompt[i] >= engine->shape.vocabulary)
			return okv_refuse(reason, OKV_ERR_INVALID, "prompt", "token %u is not in the vocabulary of %u",
					  request->prompt[i], engine->shape.vocabulary);
	return okv__sampling_check(&request->sampling, reason);
}

/* The lane may end, and be gone, as soon as the lock is open. */
static enum okv_status enqueue(struct okv_engine *engine, struct okv__lane *lane, uint64_t *ret_id,
			       struct okv_reason *reason)
{
	enum okv_status status = OKV_OK;

	pthread_mutex_lock(&engine->lock);
	if (atomic_load(&engine->is_stopping)) {
		status = okv_refuse(reason, OKV_ERR_CANCELLED, "engine", "the engine is stopping");
	} else if (engine->lanes.size >= (size_t)engine->options.running_max + engine->options.queue_max) {
		status = okv_refuse(reason, OKV_ERR_BUDGET, "queue", "%zu requests run or wait already; try later",
				    engine->lanes.size);
	} else {
		*ret_id = lane->id = engine->next_id++;
		okv_map_insert(&engine->lanes, &lane->by_id, okv_mix64(lane->id));
		okv_list_push_back(&engine->incoming, &lane->incoming);
		okv_metric_add(engine->metrics.waiting, 1);
	}
	pthread_mutex_unlock(&engine->lock);
	return status;
}

static enum okv_status driver_admit(void *context, const struct okv_request *request, uint64_t *ret_id,
				    struct okv_reason *reason)
{
	struct okv_engine *engine = context;
	struct okv__lane *lane;
	enum okv_status status = check_request(engine, request, reason);

	if (status != OKV_OK)
		return status;
	lane = okv__lane_create(engine, request);
	if (!lane)
		return okv_refuse(reason, OKV_ERR_NO_MEMORY, "request", "no memory for %u tokens",
				  request->prompt_count);
	lane->admitted_ns = okv_clock_now(engine->options.clock);
	status = enqueue(engine, lane, ret_id, reason);
	if (status != OKV_OK) {
		okv__lane_destroy(lane);
		return status;
	}
	wake(engine);
	return OKV_OK;
}

static void driver_cancel(void *context, uint64_t request_id)
{
	struct okv_engine *engine = context;
	bool found = false;

	pthread_mutex_lock(&engine->lock);
	for (struct okv_map_node *n = okv_map_first(&engine->lanes, okv_mix64(request_id)); n; n = okv_map_next(n)) {
		struct okv__lane *lane = OKV_CONTAINER_OF(n, struct okv__lane, by_id);

		if (lane->id == request_id) {
			atomic_store(&lane->is_cancel_asked, true);
			found = true;
		}
	}
	pthread_mutex_unlock(&engine->lock);
	if (found) {
		atomic_store(&engine->is_cancel_asked, true);
		wake(engine);
	}
}

static struct okv_driver_caps driver_caps(void *context)
{
	const struct okv_engine *engine = context;

	return (struct okv_driver_caps){.context = engine->context, .vocabulary = engine->shape.vocabulary};
}

struct okv_driver okv_engine_driver(struct okv_engine *engine)
{
	return (struct okv_driver){
		.context = engine,
		.admit = driver_admit,
		.cancel = driver_cancel,
		.caps = driver_caps,
	};
}

const struct okv_region *okv_engine_arena(const struct okv_engine *engine)
{
	return &engine->arena.region;
}

size_t okv_engine_page_bytes(const struct okv_engine *engine)
{
	return engine->layout.page_bytes;
}

const struct okv_materialisation_key *okv_engine_key(const struct okv_engine *engine)
{
	return &engine->key;
}

void okv_engine_forget(struct okv_engine *engine)
{
	atomic_store(&engine->is_forget_asked, true);
	wake(engine);
}
