#include <pthread.h>
#include <stdio.h>
#include <string.h>

#include "commands.h"
#include "kv_client.h"
#include "okv/base/clock.h"
#include "okv/base/log.h"
#include "okv/base/metrics.h"
#include "okv/engine/engine.h"
#include "okv/loop/loop.h"
#include "okv/model/chat.h"
#include "okv/model/gguf.h"
#include "okv/serve/serve.h"

struct settings {
	char *model, *model_name, *host, *manager, *isolation_domain;
	uint64_t port, threads, page_tokens, arena_size, max_running, max_queue, restore_deadline_ms;
	unsigned kv_dtype, log_level;
};

/* Everything a run owns, in the order in which it is made; taken down in the opposite one. */
struct server {
	const struct settings *settings;
	char model_name[128];
	struct okv_metrics *metrics;
	struct okv_loop *loop;
	struct okv_serve *serve;
	struct okv_tokenizer *tokenizer;
	struct okv_model *model;
	struct okv_chat_template chat_template;
	struct okv_reason no_chat; /* why there is no template; field is NULL when there is one */
	struct okv_engine *engine;
	struct okv__kv_client *cache; /* NULL without --manager */
	struct okv_kv_source source;  /* of it */
	bool is_stopping;

	/* The loader's thread has `tokenizer` to `no_chat`, `loaded` and `reason` from its start until it is joined. */
	pthread_t loader;
	bool is_loading;
	struct okv_task on_loaded;
	enum okv_status loaded; /* the model, then the engine */
	struct okv_reason reason;
};

/* The name that clients use: as given, or the file's without folder and ending. */
static void name_model(struct server *server)
{
	const char *given = server->settings->model_name, *path = server->settings->model;
	const char *slash = strrchr(path, '/'), *file = slash ? slash + 1 : path;
	size_t size = strlen(file);

	if (size > 5 && strcmp(file + size - 5, ".gguf") == 0)
		size -= 5;
	if (given)
		snprintf(server->model_name, sizeof(server->model_name), "%s", given);
	else
		snprintf(server->model_name, sizeof(server->model_name), "%.*s", (int)size, file);
}

static void drained(void *context)
{
	struct server *server = context;

	okv_loop_stop(server->loop);
}

/* The first signal lets running requests finish for a while; a second one does not wait for them. */
static void on_signal(void *context, int signal)
{
	const uint64_t patience_ns = 5 * OKV_NS_PER_S;
	struct server *server = context;
	uint64_t now_ns = okv_loop_now_ns(server->loop);

	(void)signal;
	okv_serve_shutdown(server->serve, server->is_stopping ? now_ns : now_ns + patience_ns, drained, server);
	server->is_stopping = true;
}

static enum okv_status listen_first(struct server *server, struct okv_reason *reason)
{
	const struct settings *settings = server->settings;
	enum okv_status status;

	server->metrics = okv_metrics_create();
	if (!server->metrics)
		return okv_refuse(reason, OKV_ERR_NO_MEMORY, "serve", "no memory");
	status = okv_loop_create(okv_clock_boottime(), &server->loop, reason);
	if (status == OKV_OK)
		status = okv_loop_catch_signals(server->loop, on_signal, server, reason);
	if (status != OKV_OK)
		return status;
	return okv_serve_create(server->loop,
				&(struct okv_serve_options){
					.address = settings->host,
					.port = (uint16_t)settings->port,
					.model_name = server->model_name,
					.metrics = server->metrics,
				},
				&server->serve, reason);
}

static enum okv_status load_model(struct server *server, struct okv_reason *reason)
{
	struct okv_gguf *gguf = NULL;
	enum okv_status status = okv_gguf_open(server->settings->model, &gguf, reason);

	if (status == OKV_OK)
		status = okv_tokenizer_create(gguf, &server->tokenizer, reason);
	if (status == OKV_OK)
		status = okv_model_create(gguf, &server->model, reason);
	if (status == OKV_OK) {
		enum okv_status chat =
			okv_chat_template_read(gguf, server->tokenizer, &server->chat_template, &server->no_chat);

		/* A model without a template that we know still completes. */
		if (chat == OKV_OK)
			server->no_chat.field = NULL;
		else if (chat == OKV_ERR_NO_MEMORY)
			status = okv_refuse(reason, chat, "model", "no memory for the chat template");
	}
	okv_gguf_close(gguf);
	return status;
}

static enum okv_status share_cache(struct server *server, struct okv_reason *reason)
{
	char name[OKV_KEY_NAME_MAX];
	const struct okv__kv_client_options options = {
		.socket_path = server->settings->manager,
		.name = name,
		.arena = okv_engine_arena(server->engine),
		.key = okv_engine_key(server->engine),
	};
	enum okv_status status;

	snprintf(name, sizeof(name), "orbitkv serve :%u", okv_serve_port(server->serve));
	status = okv__kv_client_create(&options, &server->cache, reason);
	if (status == OKV_OK)
		server->source = okv__kv_client_source(server->cache);
	return status;
}

static enum okv_status start_engine(struct server *server, struct okv_reason *reason)
{
	const struct settings *settings = server->settings;
	struct okv_engine_options options = okv_engine_options_default();
	enum okv_status status;

	options.model = server->model;
	options.tokenizer = server->tokenizer;
	options.isolation_domain = settings->isolation_domain;
	options.graph.threads = (unsigned)settings->threads;
	options.graph.dtype = settings->kv_dtype == 0 ? OKV_KV_F16 : OKV_KV_F32;
	options.graph.page_tokens = (uint32_t)settings->page_tokens;
	options.arena_bytes = settings->arena_size;
	options.running_max = (uint32_t)settings->max_running;
	options.queue_max = (uint32_t)settings->max_queue;
	options.restore_limit_ns = settings->restore_deadline_ms * OKV_NS_PER_MS;
	options.metrics = server->metrics;
	status = okv_engine_create(&options, &server->engine, reason);
	if (status == OKV_OK && settings->manager)
		status = share_cache(server, reason);
	if (status != OKV_OK)
		return status;
	return okv_engine_start(server->engine, server->cache ? &server->source : NULL, reason);
}

static void server_done(struct server *server)
{
	okv_serve_destroy(server->serve);
	if (server->engine)
		okv_engine_stop(server->engine);
	okv__kv_client_destroy(server->cache); /* it writes into the arena until here */
	okv_engine_destroy(server->engine);
	okv_model_destroy(server->model);
	okv_tokenizer_destroy(server->tokenizer);
	okv_loop_destroy(server->loop);
	okv_metrics_destroy(server->metrics);
}

/* ---- the loader's thread: reading a model takes long, and the loop answers meanwhile ---- */

static void *load(void *context)
{
	struct server *server = context;

	server->loaded = load_model(server, &server->reason);
	okv_loop_post(server->loop, &server->on_loaded);
	return NULL;
}

/* ---- the loop's thread again ---- */

static void join_loader(struct server *server)
{
	if (server->is_loading)
		pthread_join(server->loader, NULL);
	server->is_loading = false;
}

static void on_loaded(void *context)
{
	struct server *server = context;

	join_loader(server);
	if (server->is_stopping)
		return;
	if (server->loaded == OKV_OK)
		server->loaded = start_engine(server, &server->reason);
	if (server->loaded != OKV_OK) {
		okv_loop_stop(server->loop);
		return;
	}
	okv_serve_start(server->serve, &(struct okv_serve_engine){
					       .driver = okv_engine_driver(server->engine),
					       .tokenizer = server->tokenizer,
					       .chat_template = server->no_chat.field ? NULL : &server->chat_template,
					       .no_chat = server->no_chat.text,
				       });
	const char *host = server->settings->host;
	bool is_v6 = strchr(host, ':') != NULL;
	printf("orbitkv serve: listening on http://%s%s%s:%u\n", is_v6 ? "[" : "", host, is_v6 ? "]" : "",
	       okv_serve_port(server->serve));
	fflush(stdout);
}

static enum okv_status start_loader(struct server *server)
{
	server->on_loaded = (struct okv_task){.run = on_loaded, .context = server};

	int error = pthread_create(&server->loader, NULL, load, server);
	if (error)
		return okv_refuse(&server->reason, okv_status_from_errno(error), "serve",
				  "the model's loader cannot start: %s", strerror(error));
	server->is_loading = true;
	return OKV_OK;
}

static int run(const void *context)
{
	const struct settings *settings = context;
	struct server server = {.settings = settings};
	enum okv_status status;

	if (!settings->model) {
		fprintf(stderr, "orbitkv serve: --model FILE is needed: a GGUF file (`./run setup` fetches one)\n");
		return 2;
	}
	if (settings->model_name && strlen(settings->model_name) >= sizeof(server.model_name)) {
		fprintf(stderr, "orbitkv serve: --model-name has at most %zu bytes\n", sizeof(server.model_name) - 1);
		return 2;
	}
	okv_log_set_level((enum okv_log_level)settings->log_level);
	name_model(&server);
	status = listen_first(&server, &server.reason);
	if (status == OKV_OK)
		status = start_loader(&server);
	if (status == OKV_OK) {
		okv_loop_run(server.loop);
		join_loader(&server); /* a signal came first */
		status = server.loaded;
	}
	if (status != OKV_OK)
		fprintf(stderr, "orbitkv serve: %s\n", server.reason.text);
	server_done(&server);
	return status == OKV_OK ? 0 : 1;
}

#define FIELD(name) offsetof(struct settings, name)

static const struct okv__option options[] = {
	{"model", OKV__OPTION_STRING, FIELD(model), "FILE", NULL, "The model, a GGUF file.", 0, 0},
	{"model-name", OKV__OPTION_STRING, FIELD(model_name), "NAME", NULL,
	 "What clients call the model; without it the file's name.", 0, 0},
	{"host", OKV__OPTION_STRING, FIELD(host), "ADDRESS", "127.0.0.1", "Numeric address to listen on.", 0, 0},
	{"port", OKV__OPTION_INTEGER, FIELD(port), "N", "8080", "Port to listen on; 0 takes a free one.", 0, 65535},
	{"manager", OKV__OPTION_STRING, FIELD(manager), "SOCKET", NULL,
	 "The cache manager of this host; without it KV is not shared.", 0, 0},
	{"isolation-domain", OKV__OPTION_STRING, FIELD(isolation_domain), "NAME", "default",
	 "Part of every block's name: engines of different domains never share.", 0, 0},
	{"arena-size", OKV__OPTION_SIZE, FIELD(arena_size), "SIZE", "1gb",
	 "Memory for KV pages; their rotated keys take half as much more.", 1 << 20, 0},
	{"kv-dtype", OKV__OPTION_CHOICE, FIELD(kv_dtype), "f16|f32", "f16", "How keys and values are kept.", 0, 0},
	{"page-tokens", OKV__OPTION_INTEGER, FIELD(page_tokens), "N", "16", "Tokens of a KV page, a multiple of 8.", 8,
	 256},
	{"threads", OKV__OPTION_INTEGER, FIELD(threads), "N", "0", "Threads that compute; 0 is one a processor.", 0,
	 1024},
	{"max-running", OKV__OPTION_INTEGER, FIELD(max_running), "N", "32", "Requests that compute together.", 1, 255},
	{"max-queue", OKV__OPTION_INTEGER, FIELD(max_queue), "N", "256",
	 "Requests admitted beside --max-running; further ones are answered with 429.", 1, 100000},
	{"restore-deadline-ms", OKV__OPTION_INTEGER, FIELD(restore_deadline_ms), "MS", "4000",
	 "A restore that takes longer is given up whole and recomputed; longer than the manager's --peer-deadline-ms.",
	 1, 600000},
	{"log-level", OKV__OPTION_CHOICE, FIELD(log_level), OKV_LOG_LEVELS, "info", "What is logged.", 0, 0},
};

const struct okv__command okv__command_serve = {
	.name = "serve",
	.summary = "answer HTTP requests in the shape of OpenAI's API",
	.description =
		"Loads a model and serves /v1/chat/completions, /v1/completions, /v1/models, /tokenize, /health and\n"
		"/metrics. With --manager it shares KV with every replica that its cache manager can reach. SIGTERM\n"
		"or Ctrl-C lets running requests finish for five seconds; a second one does not wait.\n"
		"\n"
		"  orbitkv serve --model SmolLM2.gguf\n"
		"  orbitkv serve --model SmolLM2.gguf --port 8081 --manager /run/user/1000/orbitkv/manager.sock\n",
	.options = options,
	.option_count = sizeof(options) / sizeof(*options),
	.settings_size = sizeof(struct settings),
	.run = run,
};
