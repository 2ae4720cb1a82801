#include "okv/tools/generate.h"

#include <errno.h>
#include <poll.h>
#include <pthread.h>
#include <signal.h>
#include <stdlib.h>
#include <string.h>
#include <sys/eventfd.h>
#include <sys/signalfd.h>
#include <unistd.h>

#include "okv/codec/json.h"
#include "okv/engine/engine.h"
#include "okv/model/chat.h"
#include "okv/model/gguf.h"

enum { PROMPT_BYTES_MAX = 64 << 20 };

/* What the engine's thread says and the main thread has not heard yet. */
struct mailbox {
	pthread_mutex_t lock; /* the four below */
	struct okv_tokens tokens;
	bool has_lost_some; /* for want of memory */
	bool is_over;
	struct okv_event end;
	int fd; /* eventfd: readable when something was added */
};

/* Everything a run owns. */
struct run {
	const struct okv_generate_options *options;
	FILE *in, *out, *complaints;
	struct okv_model *model;
	struct okv_tokenizer *tokenizer;
	struct okv_metrics *metrics;
	struct okv_engine *engine;
	struct okv_tokens prompt, answer;
	struct okv_buf text; /* of the answer so far (json), or of the last tokens (streaming) */
	struct okv_detokenizer detokenizer;
	struct mailbox mailbox;
	int signal_fd;
	int write_error; /* errno of the first write that failed, 0 for none */
	sigset_t signals_before;
};

static void sink(void *context, uint64_t request_id, const struct okv_event *event)
{
	struct mailbox *mailbox = context;
	uint64_t one = 1;

	(void)request_id;
	pthread_mutex_lock(&mailbox->lock);
	if (event->kind == OKV_EVENT_END) {
		mailbox->is_over = true;
		mailbox->end = *event;
	} else if (okv_tokens_push(&mailbox->tokens, event->token) != OKV_OK) {
		mailbox->has_lost_some = true;
	}
	pthread_mutex_unlock(&mailbox->lock);
	if (write(mailbox->fd, &one, sizeof(one)) < 0)
		OKV_ASSERT(errno == EAGAIN);
}

static enum okv_status read_all(FILE *in, struct okv_buf *text, struct okv_reason *reason)
{
	char chunk[65536];
	size_t size;

	while ((size = fread(chunk, 1, sizeof(chunk), in)) > 0) {
		okv_buf_append(text, chunk, size);
		if (text->failed || text->size > PROMPT_BYTES_MAX)
			return okv_refuse(reason, OKV_ERR_BUDGET, "prompt", "standard input is longer than %d MiB",
					  PROMPT_BYTES_MAX >> 20);
	}
	if (ferror(in))
		return okv_refuse(reason, OKV_ERR_IO, "prompt", "standard input: %s", strerror(errno));
	return OKV_OK;
}

static enum okv_status render_chat(struct run *run, const struct okv_gguf *gguf, const struct okv_buf *text,
				   struct okv_reason *reason)
{
	struct okv_chat_message message = {.role = "user", .content = text->data, .content_size = text->size};
	struct okv_chat_template chat;
	struct okv_reason unknown = {.field = ""};
	enum okv_status status = okv_chat_template_read(gguf, run->tokenizer, &chat, &unknown);

	if (status == OKV_ERR_ABSENT)
		return okv_refuse(reason, status, "chat", "the model has no chat template; leave --chat away");
	if (status != OKV_OK)
		return okv_refuse(reason, status, "chat", "%s; leave --chat away", unknown.text);
	return okv_chat_render(&chat, run->tokenizer, &message, 1, &run->prompt, reason);
}

static enum okv_status encode_prompt(struct run *run, const struct okv_gguf *gguf, struct okv_reason *reason)
{
	struct okv_buf text = {.data = NULL};
	enum okv_status status = OKV_OK;
	uint32_t bos;

	if (run->options->prompt)
		okv_buf_text(&text, run->options->prompt);
	else
		status = read_all(run->in, &text, reason);
	if (status == OKV_OK && text.size == 0)
		status = okv_refuse(reason, OKV_ERR_INVALID, "prompt",
				    "the prompt is empty; give --prompt TEXT, or text on standard input");
	if (status == OKV_OK && !okv_utf8_is_valid(text.data, text.size))
		status = okv_refuse(reason, OKV_ERR_INVALID, "prompt",
				    "the prompt is not valid UTF-8; convert it first");
	if (status == OKV_OK && run->options->chat)
		status = render_chat(run, gguf, &text, reason);
	if (status == OKV_OK && !run->options->chat) {
		if (okv_tokenizer_bos(run->tokenizer, &bos))
			status = okv_tokens_push(&run->prompt, bos);
		if (status == OKV_OK)
			status = okv_tokenizer_encode(run->tokenizer, text.data, text.size, &run->prompt, reason);
	}
	okv_buf_done(&text);
	return status;
}

static enum okv_status load(struct run *run, struct okv_reason *reason)
{
	struct okv_gguf *gguf = NULL;
	enum okv_status status = okv_gguf_open(run->options->model, &gguf, reason);

	if (status == OKV_OK)
		status = okv_tokenizer_create(gguf, &run->tokenizer, reason);
	/* Before the weights, which take longest: a bad prompt is refused at once. */
	if (status == OKV_OK)
		status = encode_prompt(run, gguf, reason);
	if (status == OKV_OK)
		status = okv_model_create(gguf, &run->model, reason);
	okv_gguf_close(gguf);
	return status;
}

/* From here on SIGINT and SIGTERM are read from a descriptor; the engine's threads inherit the mask. */
static enum okv_status catch_signals(struct run *run, struct okv_reason *reason)
{
	sigset_t signals;

	sigemptyset(&signals);
	sigaddset(&signals, SIGINT);
	sigaddset(&signals, SIGTERM);
	pthread_sigmask(SIG_BLOCK, &signals, &run->signals_before);
	run->signal_fd = signalfd(-1, &signals, SFD_CLOEXEC);
	run->mailbox.fd = eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK);
	if (run->signal_fd < 0 || run->mailbox.fd < 0)
		return okv_refuse(reason, okv_status_from_errno(errno), "process", "%s", strerror(errno));
	return OKV_OK;
}

/* One request needs pages for its prompt and its answer, and no more. */
static uint64_t arena_bytes(const struct run *run)
{
	const struct okv_generate_options *options = run->options;
	const struct okv_model_shape *shape = okv_model_shape(run->model);
	uint64_t tokens = run->prompt.count + (uint64_t)options->tokens_max;
	uint64_t page_bytes = 2ULL * shape->layers * shape->kv_heads * shape->head_dim * options->page_tokens *
			      (options->kv_dtype == OKV_KV_F16 ? 2 : 4);

	if (tokens > shape->context)
		tokens = shape->context;
	return (tokens / options->page_tokens + 1) * ((page_bytes + 4095) / 4096 * 4096);
}

static enum okv_status start_engine(struct run *run, struct okv_reason *reason)
{
	struct okv_engine_options options = okv_engine_options_default();
	enum okv_status status;

	options.model = run->model;
	options.tokenizer = run->tokenizer;
	options.graph.threads = run->options->threads;
	options.graph.dtype = run->options->kv_dtype;
	options.graph.page_tokens = run->options->page_tokens;
	options.arena_bytes = arena_bytes(run);
	options.populate_bytes = 0;
	options.running_max = options.queue_max = 1;
	options.metrics = run->metrics = okv_metrics_create();
	if (!run->metrics)
		return okv_refuse(reason, OKV_ERR_NO_MEMORY, "engine", "no memory");
	status = okv_engine_create(&options, &run->engine, reason);
	if (status != OKV_OK)
		return status;
	return okv_engine_start(run->engine, NULL, reason);
}

/* Takes what came; true when the answer is complete. */
static bool take_tokens(struct run *run)
{
	struct okv_tokens tokens;
	bool is_over;

	pthread_mutex_lock(&run->mailbox.lock);
	tokens = run->mailbox.tokens;
	run->mailbox.tokens = (struct okv_tokens){.id = NULL};
	is_over = run->mailbox.is_over;
	run->text.failed |= run->mailbox.has_lost_some;
	pthread_mutex_unlock(&run->mailbox.lock);
	for (size_t i = 0; i < tokens.count; i++) {
		okv_detokenizer_feed(&run->detokenizer, run->tokenizer, tokens.id[i], &run->text);
		if (run->options->json && okv_tokens_push(&run->answer, tokens.id[i]) != OKV_OK)
			run->text.failed = true;
	}
	okv_tokens_done(&tokens);
	if (is_over)
		okv_detokenizer_finish(&run->detokenizer, &run->text);
	return is_over;
}

/* Right after a write: one that lost bytes leaves its flag and errno behind, and perhaps nothing for the flush. */
static void note_lost_output(struct run *run)
{
	if ((fflush(run->out) != 0 || ferror(run->out)) && !run->write_error)
		run->write_error = errno ? errno : EIO;
}

static void show_text(struct run *run)
{
	if (run->options->json || run->text.size == 0)
		return;
	(void)fwrite(run->text.data, 1, run->text.size, run->out);
	note_lost_output(run);
	okv_buf_clear(&run->text);
}

/* Until the answer is complete; a signal cancels it, and then it is complete at the next step. */
static void stream(struct run *run, const struct okv_driver *driver, uint64_t id)
{
	struct pollfd fds[2] = {{.fd = run->mailbox.fd, .events = POLLIN}, {.fd = run->signal_fd, .events = POLLIN}};
	struct signalfd_siginfo info;
	uint64_t count;

	for (;;) {
		if (poll(fds, 2, -1) < 0)
			continue;
		if (fds[1].revents && read(run->signal_fd, &info, sizeof(info)) == sizeof(info))
			driver->cancel(driver->context, id);
		if (fds[0].revents && read(run->mailbox.fd, &count, sizeof(count)) < 0)
			continue;
		bool is_over = take_tokens(run);

		show_text(run);
		if (run->write_error)
			driver->cancel(driver->context, id); /* nobody reads the rest */
		if (is_over)
			return;
	}
}

static double seconds(uint64_t ns)
{
	return (double)ns / 1e9;
}

static void print_stats(const struct run *run, const struct okv_usage *usage)
{
	double decode_s = seconds(usage->total_ns - usage->first_token_ns);

	fprintf(run->complaints,
		"prompt: %u tokens, %u computed, first token after %.3f s (%.1f tokens/s)\n"
		"answer: %u tokens, %.3f s after the first (%.1f tokens/s)\n",
		usage->prompt_tokens, usage->computed_tokens, seconds(usage->first_token_ns),
		usage->first_token_ns ? usage->computed_tokens / seconds(usage->first_token_ns) : 0,
		usage->generated_tokens, decode_s,
		usage->generated_tokens > 1 && decode_s > 0 ? (usage->generated_tokens - 1) / decode_s : 0);
}

static void write_ids(struct okv_json_writer *writer, const char *key, const struct okv_tokens *tokens)
{
	okv_json_key(writer, key);
	okv_json_begin_array(writer);
	for (size_t i = 0; i < tokens->count; i++)
		okv_json_write_u64(writer, tokens->id[i]);
	okv_json_end_array(writer);
}

static const char *end_name(enum okv_end end)
{
	static const char *const names[] = {"stop", "length", "cancelled", "failed"};

	return names[end];
}

static void print_json(struct run *run, const struct okv_event *end)
{
	struct okv_buf line = {.data = NULL};
	struct okv_json_writer writer = {.buf = &line};

	okv_json_begin_object(&writer);
	okv_json_key(&writer, "text");
	okv_json_write_bytes(&writer, run->text.data ? run->text.data : "", run->text.size);
	okv_json_key(&writer, "finish");
	okv_json_write_text(&writer, end_name(end->end));
	write_ids(&writer, "prompt_ids", &run->prompt);
	write_ids(&writer, "ids", &run->answer);
	okv_json_key(&writer, "first_token_s");
	okv_json_write_f64(&writer, seconds(end->usage.first_token_ns));
	okv_json_key(&writer, "total_s");
	okv_json_write_f64(&writer, seconds(end->usage.total_ns));
	okv_json_end_object(&writer);
	fprintf(run->out, "%s\n", line.data ? line.data : "");
	okv_buf_done(&line);
}

static enum okv_status ask(struct run *run, struct okv_reason *reason)
{
	struct okv_driver driver = okv_engine_driver(run->engine);
	struct okv_request request = {
		.prompt = run->prompt.id,
		.prompt_count = (uint32_t)run->prompt.count,
		.tokens_max = run->options->tokens_max,
		.sampling = run->options->sampling,
		.cache = OKV_CACHE_OFF,
		.ignore_end = run->options->ignore_end,
		.sink = sink,
		.sink_context = &run->mailbox,
	};
	const struct okv_event *end = &run->mailbox.end;
	uint64_t id;
	enum okv_status status = driver.admit(driver.context, &request, &id, reason);

	if (status != OKV_OK)
		return status;
	stream(run, &driver, id);
	if (run->text.failed)
		return okv_refuse(reason, OKV_ERR_NO_MEMORY, "answer", "no memory for the answer");
	if (run->options->json)
		print_json(run, end);
	else
		fputc('\n', run->out);
	note_lost_output(run);
	if (run->options->stats)
		print_stats(run, &end->usage);
	if (run->write_error)
		return okv_refuse(reason, OKV_ERR_IO, "output", "standard output: %s", strerror(run->write_error));
	if (end->end == OKV_END_CANCELLED)
		return okv_refuse(reason, OKV_ERR_CANCELLED, "answer", "stopped by a signal");
	return end->end == OKV_END_FAILED ? okv_refuse(reason, end->status, "answer", "the engine lost the request: %s",
						       okv_status_name(end->status))
					  : OKV_OK;
}

static void run_done(struct run *run)
{
	if (run->engine)
		okv_engine_stop(run->engine);
	okv_engine_destroy(run->engine);
	okv_metrics_destroy(run->metrics);
	okv_model_destroy(run->model);
	okv_tokenizer_destroy(run->tokenizer);
	okv_tokens_done(&run->prompt);
	okv_tokens_done(&run->answer);
	okv_tokens_done(&run->mailbox.tokens);
	okv_buf_done(&run->text);
	pthread_mutex_destroy(&run->mailbox.lock);
	if (run->mailbox.fd >= 0)
		close(run->mailbox.fd);
	if (run->signal_fd >= 0)
		close(run->signal_fd);
	pthread_sigmask(SIG_SETMASK, &run->signals_before, NULL);
}

enum okv_status okv_generate(const struct okv_generate_options *options, FILE *in, FILE *out, FILE *complaints,
			     struct okv_reason *reason)
{
	struct run run = {.options = options,
			  .in = in,
			  .out = out,
			  .complaints = complaints,
			  .signal_fd = -1,
			  .mailbox = {.fd = -1}};
	enum okv_status status;

	pthread_mutex_init(&run.mailbox.lock, NULL);
	pthread_sigmask(SIG_SETMASK, NULL, &run.signals_before);
	status = load(&run, reason);
	if (status == OKV_OK)
		status = catch_signals(&run, reason);
	if (status == OKV_OK)
		status = start_engine(&run, reason);
	if (status == OKV_OK)
		status = ask(&run, reason);
	run_done(&run);
	return status;
}
