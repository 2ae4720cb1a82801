/*
 * Graph: the forward pass of architecture `llama` (GQA, RMSNorm, SwiGLU, RoPE, tied or separate output) over paged KV.
 *
 * One okv_graph_step() evaluates a batch of rows. A row is one token of one sequence at one position; rows of many
 * sequences, decodes and prefill chunks mix freely, since a row's bits do not depend on its neighbours, on how a prompt
 * is cut, on page size or page order, or on the number of threads (the numerics contract: docs/numerics.md). Within a
 * step the rows of one sequence must stand in ascending, gapless position order.
 *
 * KV memory is the caller's. A page holds `page_tokens` tokens, all layers, in the layout that the fabric stores:
 *
 *     [layer][Kraw, V][token][kv_head * head_dim]        f16 or f32; Kraw is the key before RoPE
 *
 * Beside it the caller keeps one private derived plane a page (`rotated`), which the graph fills as it writes rows and
 * okv_graph_rotate() fills for a page that was restored: K = round(RoPE(widen(Kraw), position)), in whatever layout
 * attention reads fastest. It is never shared and never shipped.
 *
 * A model is immutable and may be used by several graphs; a graph has scratch memory and workers and belongs to one
 * thread.
 */
#ifndef OKV_MODEL_GRAPH_H
#define OKV_MODEL_GRAPH_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "okv/base/digest.h"
#include "okv/base/status.h"

struct okv_kernels;
struct okv_model;
struct okv_graph;

enum okv_kv_dtype { OKV_KV_F16 = 0, OKV_KV_F32 = 1 };

struct okv_model_shape {
	uint32_t layers, width, ffn, heads, kv_heads, head_dim, vocabulary, context;
	double rope_theta, norm_epsilon;
	uint32_t rope_dims;
};

struct okv_kv_layout {
	enum okv_kv_dtype dtype;
	uint32_t page_tokens; /* a multiple of 8, at most 256; 16 by default */
	size_t segment_bytes; /* one layer's Kraw or V of a page */
	size_t page_bytes;    /* 2 * layers * segment_bytes */
	size_t rotated_bytes; /* the derived plane of a page; 64-byte aligned memory */
};

struct okv_kv_page {
	uint8_t *bytes;	  /* borrowed: page_bytes, 64-byte aligned */
	uint8_t *rotated; /* borrowed: rotated_bytes, 64-byte aligned */
};

struct okv_graph_row {
	uint32_t token;
	uint32_t position;
	const struct okv_kv_page *pages; /* borrowed: the sequence's page table, covering positions 0..position */
	bool wants_logits;
};

struct okv_graph_options {
	unsigned threads;  /* 0: as many as there are processors */
	uint32_t rows_max; /* most rows of one step */
	enum okv_kv_dtype dtype;
	uint32_t page_tokens;
	const struct okv_kernels *kernels; /* NULL: the fastest that this processor has; all give the same bits */
};

/*
 * Loads the model's weights, repacked; digests them. On success the tensors have been given back as they were packed
 * (okv_gguf_tensor_release); the metadata is still there, and the okv_gguf may be closed.
 */
struct okv_gguf;
OKV_MUST_CHECK enum okv_status okv_model_create(struct okv_gguf *gguf, struct okv_model **ret_model,
						struct okv_reason *reason);
void okv_model_destroy(struct okv_model *model);
const struct okv_model_shape *okv_model_shape(const struct okv_model *model);

/* SHA-256 over the architecture's numbers and the raw bytes of every tensor in name order: the weights' identity. */
const struct okv_hash *okv_model_weights_digest(const struct okv_model *model);

/* The id of the arithmetic, hashed into every materialisation key; changes whenever any result bit could. */
const char *okv_model_numerics_id(void);

OKV_MUST_CHECK enum okv_status okv_graph_create(const struct okv_model *model, const struct okv_graph_options *options,
						struct okv_graph **ret_graph, struct okv_reason *reason);
void okv_graph_destroy(struct okv_graph *graph);
const struct okv_kv_layout *okv_graph_layout(const struct okv_graph *graph);

/*
 * Evaluates `count` rows (1..rows_max): writes their Kraw, V and rotated K into the pages and the logits of the rows
 * that want them, in row order, to `ret_logits` [number of wanting rows][vocabulary].
 */
void okv_graph_step(struct okv_graph *graph, const struct okv_graph_row *rows, uint32_t count, float *ret_logits);

/* Derives the rotated planes of `tokens` tokens that fill consecutive pages from the first page's first token on, which
 * has position `position`. The last page may be part full. */
void okv_graph_rotate(struct okv_graph *graph, const struct okv_kv_page *pages, uint32_t position, uint32_t tokens);

#endif
