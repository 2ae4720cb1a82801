/*
 * A model small enough to run ten thousand lanes a second, linked in the place of the real one. Every logit depends on
 * every KV byte before it, through the page table, so a wrong page, a stale byte, a missed rotation or a lost row
 * changes the answer. It keeps the graph's contract and asserts the caller's half of it.
 *
 * Included by one file of a test executable.
 */
#ifndef OKV_ENGINE_FAKE_MODEL_H
#define OKV_ENGINE_FAKE_MODEL_H

#include <stdlib.h>
#include <string.h>

#include "okv/base/rng.h"
#include "okv/model/graph.h"
#include "okv/model/tokenizer.h"

enum { FAKE_VOCABULARY = 64, FAKE_CONTEXT = 512, FAKE_END = 0, FAKE_LAYERS = 2, FAKE_SLOT = 16 };

struct okv_model {
	struct okv_model_shape shape;
	struct okv_hash digest;
	uint64_t *now_ns; /* borrowed; a step costs row_ns a row on this clock; NULL: nothing */
	uint64_t row_ns;
};

struct okv_graph {
	uint64_t *now_ns, row_ns;
	struct okv_kv_layout layout;
	uint32_t rows_max;
};

struct okv_tokenizer {
	struct okv_hash digest;
};

static inline struct okv_model fake_model(void)
{
	return (struct okv_model){.shape = {.layers = FAKE_LAYERS,
					    .width = 8,
					    .ffn = 8,
					    .heads = 1,
					    .kv_heads = 1,
					    .head_dim = 8,
					    .vocabulary = FAKE_VOCABULARY,
					    .context = FAKE_CONTEXT,
					    .rope_theta = 10000,
					    .norm_epsilon = 1e-5,
					    .rope_dims = 8},
				  .digest = {{1, 2, 3}}};
}

const struct okv_model_shape *okv_model_shape(const struct okv_model *model)
{
	return &model->shape;
}

const struct okv_hash *okv_model_weights_digest(const struct okv_model *model)
{
	return &model->digest;
}

const char *okv_model_numerics_id(void)
{
	return "fake-1";
}

const struct okv_hash *okv_tokenizer_digest(const struct okv_tokenizer *tokenizer)
{
	return &tokenizer->digest;
}

bool okv_tokenizer_is_end(const struct okv_tokenizer *tokenizer, uint32_t id)
{
	(void)tokenizer;
	return id == FAKE_END;
}

enum okv_status okv_graph_create(const struct okv_model *model, const struct okv_graph_options *options,
				 struct okv_graph **ret_graph, struct okv_reason *reason)
{
	struct okv_graph *graph = calloc(1, sizeof(*graph));

	OKV_ASSERT(graph);
	if (options->page_tokens % 8 != 0) {
		free(graph);
		return okv_refuse(reason, OKV_ERR_INVALID, "page_tokens", "not a multiple of 8");
	}
	graph->now_ns = model->now_ns;
	graph->row_ns = model->row_ns;
	graph->rows_max = options->rows_max;
	graph->layout.dtype = options->dtype;
	graph->layout.page_tokens = options->page_tokens;
	graph->layout.segment_bytes = options->page_tokens * (size_t)FAKE_SLOT;
	graph->layout.page_bytes = 2 * FAKE_LAYERS * graph->layout.segment_bytes;
	graph->layout.rotated_bytes = options->page_tokens * sizeof(uint64_t);
	*ret_graph = graph;
	return OKV_OK;
}

void okv_graph_destroy(struct okv_graph *graph)
{
	free(graph);
}

const struct okv_kv_layout *okv_graph_layout(const struct okv_graph *graph)
{
	return &graph->layout;
}

static uint64_t *fake_slot(const struct okv_graph *graph, const struct okv_kv_page *page, uint32_t segment,
			   uint32_t token)
{
	return (uint64_t *)(void *)(page->bytes + segment * graph->layout.segment_bytes + token * (size_t)FAKE_SLOT);
}

static uint64_t *fake_rotated(const struct okv_kv_page *page, uint32_t token)
{
	return (uint64_t *)(void *)page->rotated + token;
}

void okv_graph_rotate(struct okv_graph *graph, const struct okv_kv_page *pages, uint32_t position, uint32_t tokens)
{
	for (uint32_t i = 0; i < tokens; i++) {
		const struct okv_kv_page *page = &pages[i / graph->layout.page_tokens];
		uint32_t slot = i % graph->layout.page_tokens;

		*fake_rotated(page, slot) = okv_mix64(*fake_slot(graph, page, 0, slot) ^ okv_mix64(position + i));
	}
}

static uint64_t fake_attend(const struct okv_graph *graph, const struct okv_kv_page *pages, uint32_t positions)
{
	uint64_t sum = 7;

	for (uint32_t q = 0; q < positions; q++) {
		const struct okv_kv_page *page = &pages[q / graph->layout.page_tokens];
		uint32_t slot = q % graph->layout.page_tokens;

		sum = sum * 31 + *fake_rotated(page, slot);
		for (uint32_t segment = 1; segment < 2 * FAKE_LAYERS; segment++)
			sum = sum * 31 + *fake_slot(graph, page, segment, slot);
	}
	return sum;
}

static void fake_row(struct okv_graph *graph, const struct okv_graph_row *row)
{
	const struct okv_kv_page *page = &row->pages[row->position / graph->layout.page_tokens];
	uint32_t slot = row->position % graph->layout.page_tokens;
	uint64_t state = okv_mix64(fake_attend(graph, row->pages, row->position) ^ okv_mix64(row->token + 1));

	for (uint32_t segment = 0; segment < 2 * FAKE_LAYERS; segment++)
		*fake_slot(graph, page, segment, slot) = okv_mix64(state + segment);
	*fake_rotated(page, slot) = okv_mix64(*fake_slot(graph, page, 0, slot) ^ okv_mix64(row->position));
}

void okv_graph_step(struct okv_graph *graph, const struct okv_graph_row *rows, uint32_t count, float *ret_logits)
{
	OKV_ASSERT(count >= 1 && count <= graph->rows_max);
	for (uint32_t i = 0; i < count; i++) {
		OKV_ASSERT(i == 0 || rows[i].pages != rows[i - 1].pages ||
			   rows[i].position == rows[i - 1].position + 1);
		OKV_ASSERT(rows[i].token < FAKE_VOCABULARY);
		fake_row(graph, &rows[i]);
		if (!rows[i].wants_logits)
			continue;
		uint64_t sum = fake_attend(graph, rows[i].pages, rows[i].position + 1);

		for (uint32_t v = 0; v < FAKE_VOCABULARY; v++)
			*ret_logits++ = (float)(okv_mix64(sum ^ okv_mix64(v)) >> 40) * 0x1p-21f;
	}
	if (graph->now_ns)
		*graph->now_ns += count * graph->row_ns;
}

#endif
