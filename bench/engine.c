/*
 * okv-bench-engine: prefill and decode speed of our forward pass alone, for `./run bench`.
 *
 *   okv-bench-engine MODEL.gguf [--threads N] [--prompt N] [--generate N] [--samples N] [--kernels NAME] [--kv f16|f32]
 *                    [--streams N] [--depth N]
 *
 * Prints one JSON object a line: {"bench": name, "value": median, "unit": "tok/s", "samples": [...]}. The token ids are
 * pseudo-random and fixed; one sample before the first is thrown away, so that weights and pages are touched.
 *
 *   prefill   --prompt tokens in one step from --depth on, logits of the last
 *   decode    --generate steps of one row for each of --streams sequences, greedy, from --depth on
 *   rotate    okv_graph_rotate over the pages of at most 2048 tokens, in tokens a second
 */
#include <getopt.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "okv/base/clock.h"
#include "okv/base/rng.h"
#include "okv/kernels/kernels.h"
#include "okv/model/gguf.h"
#include "okv/model/graph.h"

enum { PAGE_TOKENS = 16, SAMPLES_MAX = 64, STREAMS_MAX = 64, ROTATED_TOKENS = 2048 };

struct bench {
	uint32_t threads, prompt, generate, samples, streams, depth;
	enum okv_kv_dtype dtype;
	const struct okv_kernels *kernels;
	struct okv_model *model;
	struct okv_graph *graph;
	const struct okv_kv_layout *layout;
	struct okv_kv_page *pages; /* [streams][pages of a sequence] */
	uint32_t pages_each;
	struct okv_graph_row *rows;
	float *logits;
};

static _Noreturn void give_up(const char *what, const struct okv_reason *reason)
{
	fprintf(stderr, "okv-bench-engine: %s%s%s\n", what, reason && reason->text[0] ? ": " : "",
		reason ? reason->text : "");
	exit(1);
}

static void *take(size_t size)
{
	void *memory = aligned_alloc(64, (size + 63) / 64 * 64);

	if (!memory)
		give_up("no memory", NULL);
	memset(memory, 0, (size + 63) / 64 * 64);
	return memory;
}

static double seconds_since(uint64_t start)
{
	return (double)(okv_clock_now(okv_clock_boottime()) - start) / OKV_NS_PER_S;
}

static struct okv_kv_page *pages_of(struct bench *b, uint32_t stream)
{
	return b->pages + (size_t)stream * b->pages_each;
}

static uint32_t token_at(const struct bench *b, uint32_t position)
{
	return (uint32_t)(okv_mix64(position) % okv_model_shape(b->model)->vocabulary);
}

static double prefill(struct bench *b, uint32_t stream, uint32_t tokens)
{
	uint64_t start = okv_clock_now(okv_clock_boottime());

	for (uint32_t i = 0; i < tokens; i++)
		b->rows[i] = (struct okv_graph_row){.token = token_at(b, i),
						    .position = b->depth + i,
						    .pages = pages_of(b, stream),
						    .wants_logits = i + 1 == tokens};
	okv_graph_step(b->graph, b->rows, tokens, b->logits);
	return tokens / seconds_since(start);
}

static uint32_t greatest(const float *logits, uint32_t count)
{
	uint32_t best = 0;

	for (uint32_t i = 1; i < count; i++)
		if (logits[i] > logits[best])
			best = i;
	return best;
}

static double decode(struct bench *b)
{
	uint32_t vocabulary = okv_model_shape(b->model)->vocabulary, token[STREAMS_MAX];
	uint64_t start;

	for (uint32_t s = 0; s < b->streams; s++)
		token[s] = token_at(b, s);
	start = okv_clock_now(okv_clock_boottime());
	for (uint32_t step = 0; step < b->generate; step++) {
		for (uint32_t s = 0; s < b->streams; s++)
			b->rows[s] = (struct okv_graph_row){.token = token[s],
							    .position = b->depth + step,
							    .pages = pages_of(b, s),
							    .wants_logits = true};
		okv_graph_step(b->graph, b->rows, b->streams, b->logits);
		for (uint32_t s = 0; s < b->streams; s++)
			token[s] = greatest(b->logits + (size_t)s * vocabulary, vocabulary);
	}
	return b->streams * b->generate / seconds_since(start);
}

static double rotate(struct bench *b)
{
	uint32_t room = b->pages_each * PAGE_TOKENS, tokens = room < ROTATED_TOKENS ? room : ROTATED_TOKENS;
	uint64_t start = okv_clock_now(okv_clock_boottime());

	okv_graph_rotate(b->graph, b->pages, 0, tokens);
	return tokens / seconds_since(start);
}

static int by_value(const void *a, const void *b)
{
	double x = *(const double *)a, y = *(const double *)b;

	return (x > y) - (x < y);
}

static void print(const char *name, double *samples, uint32_t count)
{
	qsort(samples, count, sizeof *samples, by_value);
	printf("{\"bench\": \"%s\", \"value\": %.1f, \"unit\": \"tok/s\", \"samples\": [", name, samples[count / 2]);
	for (uint32_t i = 0; i < count; i++)
		printf("%s%.1f", i ? ", " : "", samples[i]);
	printf("]}\n");
	fflush(stdout);
}

static void open_model(struct bench *b, const char *path)
{
	struct okv_reason reason = {0};
	struct okv_gguf *gguf;
	uint32_t rows = b->prompt > b->streams ? b->prompt : b->streams;
	struct okv_graph_options options = {
		.threads = b->threads, .dtype = b->dtype, .page_tokens = PAGE_TOKENS, .kernels = b->kernels};
	size_t tokens;

	options.rows_max = rows;
	if (okv_gguf_open(path, &gguf, &reason) != OKV_OK || okv_model_create(gguf, &b->model, &reason) != OKV_OK ||
	    okv_graph_create(b->model, &options, &b->graph, &reason) != OKV_OK)
		give_up(path, &reason);
	okv_gguf_close(gguf);
	b->layout = okv_graph_layout(b->graph);
	tokens = b->depth + (b->generate > b->prompt ? b->generate : b->prompt);
	if (tokens > okv_model_shape(b->model)->context)
		give_up("that is longer than the model's context", NULL);
	b->pages_each = (uint32_t)((tokens + PAGE_TOKENS - 1) / PAGE_TOKENS);
	b->pages = take((size_t)b->streams * b->pages_each * sizeof *b->pages);
	for (uint32_t i = 0; i < b->streams * b->pages_each; i++)
		b->pages[i] = (struct okv_kv_page){.bytes = take(b->layout->page_bytes),
						   .rotated = take(b->layout->rotated_bytes)};
	b->rows = take(rows * sizeof *b->rows);
	b->logits = take((size_t)b->streams * okv_model_shape(b->model)->vocabulary * sizeof(float));
}

static void close_model(struct bench *b)
{
	for (uint32_t i = 0; i < b->streams * b->pages_each; i++) {
		free(b->pages[i].bytes);
		free(b->pages[i].rotated);
	}
	free(b->pages);
	free(b->rows);
	free(b->logits);
	okv_graph_destroy(b->graph);
	okv_model_destroy(b->model);
}

static void measure(struct bench *b)
{
	double prefills[SAMPLES_MAX], decodes[SAMPLES_MAX], rotates[SAMPLES_MAX];

	prefill(b, 0, b->prompt);
	for (uint32_t i = 0; i < b->samples; i++) {
		if (b->prompt > 1)
			prefills[i] = prefill(b, 0, b->prompt);
		if (b->generate)
			decodes[i] = decode(b);
		rotates[i] = rotate(b);
	}
	if (b->prompt > 1)
		print("engine_prefill", prefills, b->samples);
	if (b->generate)
		print("engine_decode", decodes, b->samples);
	print("engine_rotate", rotates, b->samples);
}

static uint32_t number(const char *text, uint32_t least, uint32_t most)
{
	char *end;
	unsigned long value = strtoul(text, &end, 10);

	if (*end || !*text || value < least || value > most) {
		fprintf(stderr, "okv-bench-engine: %s is not a number from %u to %u\n", text, least, most);
		exit(2);
	}
	return (uint32_t)value;
}

int main(int argc, char **argv)
{
	static const struct option options[] = {{"threads", required_argument, NULL, 't'},
						{"prompt", required_argument, NULL, 'p'},
						{"generate", required_argument, NULL, 'g'},
						{"samples", required_argument, NULL, 'n'},
						{"kernels", required_argument, NULL, 'k'},
						{"kv", required_argument, NULL, 'v'},
						{"streams", required_argument, NULL, 's'},
						{"depth", required_argument, NULL, 'd'},
						{0}};
	struct bench b = {.prompt = 512, .generate = 64, .samples = 3, .streams = 1, .kernels = okv_kernels_best()};
	int option;

	while ((option = getopt_long(argc, argv, "", options, NULL)) != -1) {
		switch (option) {
		case 't':
			b.threads = number(optarg, 0, 256);
			break;
		case 'p':
			b.prompt = number(optarg, 1, 65536);
			break;
		case 'g':
			b.generate = number(optarg, 0, 65536);
			break;
		case 'n':
			b.samples = number(optarg, 1, SAMPLES_MAX);
			break;
		case 's':
			b.streams = number(optarg, 1, STREAMS_MAX);
			break;
		case 'd':
			b.depth = number(optarg, 0, 1 << 20);
			break;
		case 'v':
			b.dtype = !strcmp(optarg, "f32") ? OKV_KV_F32 : OKV_KV_F16;
			break;
		case 'k':
			b.kernels = okv_kernels_named(optarg);
			break;
		default:
			return 2;
		}
	}
	if (optind + 1 != argc || !b.kernels) {
		fprintf(stderr,
			"usage: okv-bench-engine MODEL.gguf [--threads N] [--prompt N] [--generate N] [--samples N] "
			"[--kernels NAME] [--kv f16|f32] [--streams N] [--depth N]\n");
		return 2;
	}
	open_model(&b, argv[optind]);
	measure(&b);
	close_model(&b);
	return 0;
}
