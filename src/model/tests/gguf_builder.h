/*
 * GGUF builder: small model files in memory, for tests of this module and of those above it, true or hostile.
 *
 * Zero-initialise a struct gguf_builder (set `version` or `alignment` if not 3 and 32), add metadata and tensors,
 * write, done. The fields `pairs_claimed` and `tensors_claimed` are added to the true counts, so that a file can lie.
 * There is no padding behind the last tensor: every shorter prefix of the file lacks something.
 *
 * tiny_model_write() makes a complete model of architecture `llama` with a small byte-level BPE vocabulary (three
 * ChatML specials, the 256 bytes, a few merges), the ChatML template and random weights that depend on nothing but
 * the options: what the engine's tests and the black-box tests run.
 */
#ifndef OKV_MODEL_TESTS_GGUF_BUILDER_H
#define OKV_MODEL_TESTS_GGUF_BUILDER_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "okv/base/buf.h"
#include "okv/model/gguf.h"

struct gguf_builder {
	uint32_t version;   /* 0: 3 */
	uint64_t alignment; /* 0: 32. The key general.alignment is the caller's */
	uint64_t pairs_claimed, tensors_claimed;
	uint64_t pair_count, tensor_count;
	struct okv_buf pairs, table, data; /* owned */
};

void gguf_add_u32(struct gguf_builder *builder, const char *key, uint32_t value);
void gguf_add_f32(struct gguf_builder *builder, const char *key, float value);
void gguf_add_bool(struct gguf_builder *builder, const char *key, bool value);
void gguf_add_string(struct gguf_builder *builder, const char *key, const char *value);
void gguf_add_strings(struct gguf_builder *builder, const char *key, const char *const *values, size_t count);
/* An array of fixed-size elements. */
void gguf_add_array(struct gguf_builder *builder, const char *key, enum okv_gguf_type type, const void *elements,
		    size_t count, size_t bytes);
/* A pair whose value is the given bytes, true or not. */
void gguf_add_raw(struct gguf_builder *builder, const char *key, uint32_t type, const void *value, size_t size);

/* Appends `size` bytes of data at the next multiple of the alignment and a row of the tensor table that names them. */
void gguf_add_tensor(struct gguf_builder *builder, const char *name, uint32_t type, uint32_t dimensions,
		     const uint64_t *extents, const void *data, size_t size);
/* A row of the tensor table alone. */
void gguf_add_row(struct gguf_builder *builder, const char *name, uint32_t type, uint32_t dimensions,
		  const uint64_t *extents, uint64_t offset);

/* Appends the file to `file`. The builder stays as it is. */
void gguf_write(const struct gguf_builder *builder, struct okv_buf *file);
void gguf_builder_done(struct gguf_builder *builder);

struct tiny_model_options {
	enum okv_tensor_type type; /* of the matrices; norms are F32 */
	uint64_t seed;
	uint32_t layers, heads, kv_heads, head_dim, ffn, context; /* the width is heads * head_dim */
	uint32_t rope_dims;					  /* 0: head_dim */
	bool separate_output;					  /* output.weight instead of the tied embedding */
	const char *splitter;					  /* tokenizer.ggml.pre */
};

/* Two layers, four heads over two kv heads of 16, a width of 64, ffn 128, a context of 512, splitter "smollm". */
struct tiny_model_options tiny_model_default(enum okv_tensor_type type);
void tiny_model_write(const struct tiny_model_options *options, struct okv_buf *file);

/* Only the vocabulary and the template of the tiny model: what the tokenizer and the chat template read. */
void tiny_vocabulary_add(struct gguf_builder *builder, const char *splitter);
/* The template of SmolLM2-135M-Instruct. */
extern const char tiny_chat_template[];

/* Random bytes that are a tensor of `type` with `values` elements and finite scales of a sensible size. */
void tiny_weights_append(struct okv_buf *data, enum okv_tensor_type type, uint64_t values, uint64_t seed);
size_t tiny_weights_size(enum okv_tensor_type type, uint64_t values);

#endif
