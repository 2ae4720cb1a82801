/* A loaded model, shared by the loader (weights.c) and the forward pass (graph.c). Immutable after creation. */
#ifndef OKV_MODEL_WEIGHTS_H
#define OKV_MODEL_WEIGHTS_H

#include "okv/kernels/kernels.h"
#include "okv/model/graph.h"

struct okv__layer {
	const float *attention_norm, *ffn_norm;
	struct okv_panels q, k, v, o, gate, up, down;
};

struct okv_model {
	struct okv_model_shape shape;
	struct okv_hash digest;
	struct okv_panels embedding; /* looked up by row, and the head where the output is tied */
	struct okv_panels output;    /* the head; the same bytes as `embedding` where it is tied */
	const float *output_norm;    /* [width] */
	struct okv__layer *layers;   /* owned */
	float *rope;		     /* owned: [context][head_dim], okv_rope_table() */
	uint8_t *memory;	     /* owned: all panels and norms */
	size_t memory_bytes;
};

#endif
