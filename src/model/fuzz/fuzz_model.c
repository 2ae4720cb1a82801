/*
 * A whole model: what the reader lets through is refused by the loaders or computes. The vocabulary and the weights are
 * read as `orbitkv` reads them, and where both are taken a few rows go through the forward pass.
 */
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#include "okv/kernels/kernels.h"
#include "okv/model/chat.h"
#include "okv/model/gguf.h"
#include "okv/model/graph.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

/* Larger ones are right too, but each costs seconds: a context alone claims memory for tables. */
enum { CONTEXT_MAX = 4096, VOCABULARY_MAX = 4096, ROWS = 5, PAGE_TOKENS = 8 };

static void *take(size_t size)
{
	void *memory = aligned_alloc(64, (size + 63) / 64 * 64);

	if (!memory)
		abort();
	return memory;
}

static void run_step(struct okv_graph *graph, uint32_t vocabulary, uint32_t context)
{
	const struct okv_kv_layout *layout = okv_graph_layout(graph);
	struct okv_kv_page page = {.bytes = take(layout->page_bytes), .rotated = take(layout->rotated_bytes)};
	float *logits = take((size_t)ROWS * vocabulary * sizeof *logits);
	struct okv_graph_row rows[ROWS];
	uint32_t count = context < ROWS ? context : ROWS;

	for (uint32_t i = 0; i < count; i++)
		rows[i] = (struct okv_graph_row){
			.token = i % 2 ? vocabulary - 1 : 0, .position = i, .pages = &page, .wants_logits = true};
	okv_graph_step(graph, rows, count, logits);
	okv_graph_rotate(graph, &page, 0, count);
	free(page.bytes);
	free(page.rotated);
	free(logits);
}

static void compute(const struct okv_model *model)
{
	const struct okv_model_shape *shape = okv_model_shape(model);
	struct okv_graph_options options = {.threads = 1, .rows_max = ROWS, .page_tokens = PAGE_TOKENS};
	struct okv_graph *graph;

	if (shape->context > CONTEXT_MAX || shape->vocabulary > VOCABULARY_MAX)
		return;
	okv_float_mode_set();
	if (okv_graph_create(model, &options, &graph, NULL))
		return; /* no memory */
	run_step(graph, shape->vocabulary, shape->context);
	okv_graph_destroy(graph);
}

static void check_refusal(enum okv_status status, const struct okv_reason *reason)
{
	if (status && reason->text[0] == '\0')
		abort();
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
	struct okv_tokenizer *tokenizer = NULL;
	struct okv_model *model = NULL;
	struct okv_chat_template chat;
	struct okv_reason reason = {0};
	struct okv_gguf *gguf;

	if (okv_gguf_parse(data, size, &gguf, NULL))
		return 0;
	check_refusal(okv_tokenizer_create(gguf, &tokenizer, &reason), &reason);
	if (tokenizer)
		check_refusal(okv_chat_template_read(gguf, tokenizer, &chat, &reason), &reason);
	check_refusal(okv_model_create(gguf, &model, &reason), &reason);
	if (model)
		compute(model);
	okv_model_destroy(model);
	okv_tokenizer_destroy(tokenizer);
	okv_gguf_close(gguf);
	return 0;
}
