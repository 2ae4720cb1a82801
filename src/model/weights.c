/*
 * Loading: the model's numbers, then every tensor by its expected name and shape, packed into one block of memory. Two
 * passes over the same list of tensors: the first checks and adds up sizes, the second packs. A tensor that the list
 * does not name is refused, since a bias or an expert that we left out would change every result. Between the passes
 * the raw bytes are digested, for the second gives each tensor's memory back as it packs it: the model is in memory
 * once, and not twice.
 */
#include "weights.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>

#include "gguf_object.h"

enum {
	LAYERS_MAX = 1024,
	HEADS_MAX = 1024,
	WIDTH_MAX = 1 << 16,
	FFN_MAX = 1 << 18,
	CONTEXT_MAX = 1 << 20,
	VOCABULARY_MAX = 1 << 24,
	HEAD_DIM_MAX = 1024,
	ROPE_FLOATS_MAX = 1 << 26, /* 256 MiB of table */
	ALIGNMENT = 64,
	HUGE_PAGE = 2 << 20,
	PACKED_AT_ONCE = HUGE_PAGE, /* bytes of the file that are packed between two releases */
};

/* One load in progress. */
struct loading {
	struct okv_gguf *gguf;
	struct okv_model *model;
	struct okv_reason *reason;
	bool packs;	/* second pass */
	size_t used;	/* bytes of model->memory laid out so far */
	uint32_t found; /* tensors that we know, this pass */
};

/* ---- the model's numbers ---- */

static enum okv_status read_number(struct loading *l, const char *key, uint64_t max, uint32_t *ret_value)
{
	uint64_t value;
	enum okv_status status = okv_gguf_uint(l->gguf, key, max, &value, l->reason);

	if (status == OKV_ERR_ABSENT)
		return okv_refuse(l->reason, OKV_ERR_INVALID, "metadata", "the model file has no %s", key);
	if (status != OKV_OK)
		return status;
	if (value == 0)
		return okv_refuse(l->reason, OKV_ERR_INVALID, "metadata", "%s is 0", key);
	*ret_value = (uint32_t)value;
	return OKV_OK;
}

static enum okv_status read_number_or(struct loading *l, const char *key, uint64_t max, uint32_t fallback,
				      uint32_t *ret_value)
{
	uint64_t value;

	if (okv_gguf_uint(l->gguf, key, max, &value, NULL) == OKV_ERR_ABSENT) {
		*ret_value = fallback;
		return OKV_OK;
	}
	return read_number(l, key, max, ret_value);
}

static enum okv_status read_floats(struct loading *l)
{
	struct okv_model_shape *shape = &l->model->shape;
	enum okv_status status;

	status = okv_gguf_float(l->gguf, "llama.attention.layer_norm_rms_epsilon", &shape->norm_epsilon, l->reason);
	if (status != OKV_OK)
		return status == OKV_ERR_ABSENT ? okv_refuse(l->reason, OKV_ERR_INVALID, "metadata",
							     "the model file has no layer_norm_rms_epsilon")
						: status;
	status = okv_gguf_float(l->gguf, "llama.rope.freq_base", &shape->rope_theta, l->reason);
	if (status == OKV_ERR_ABSENT)
		shape->rope_theta = 10000;
	else if (status != OKV_OK)
		return status;
	/* The norm adds it as a float, and a row of zeroes is divided by its root. */
	if (!((float)shape->norm_epsilon > 0 && shape->norm_epsilon < 1))
		return okv_refuse(l->reason, OKV_ERR_INVALID, "metadata", "a norm epsilon of %g makes no sense",
				  shape->norm_epsilon);
	if (!(shape->rope_theta > 1 && shape->rope_theta < 1e12))
		return okv_refuse(l->reason, OKV_ERR_INVALID, "metadata", "a RoPE base of %g makes no sense",
				  shape->rope_theta);
	return OKV_OK;
}

/* A count that must be absent or 0, since what it counts would change results. */
static enum okv_status refuse_count(struct loading *l, const char *key, const char *what)
{
	uint64_t value;
	enum okv_status status = okv_gguf_uint(l->gguf, key, UINT32_MAX, &value, l->reason);

	if (status == OKV_ERR_ABSENT)
		return OKV_OK;
	if (status == OKV_OK && value != 0)
		return okv_refuse(l->reason, OKV_ERR_UNSUPPORTED, key, "%s is not supported", what);
	return status;
}

/* Scaling of RoPE: a kind other than "none", or a factor other than 1 (0 is written for none). */
static enum okv_status refuse_scaling(struct loading *l)
{
	static const char *const factors[] = {"llama.rope.scaling.factor", "llama.rope.scale_linear"};
	struct okv_bytes scaling;
	double factor;
	enum okv_status status = okv_gguf_string(l->gguf, "llama.rope.scaling.type", &scaling, l->reason);

	if (status == OKV_OK && (scaling.size != 4 || memcmp(scaling.data, "none", 4) != 0))
		return okv_refuse(l->reason, OKV_ERR_UNSUPPORTED, "llama.rope.scaling.type",
				  "RoPE scaling \"%s\" is not supported", okv__show(scaling).text);
	for (size_t i = 0; i < sizeof factors / sizeof *factors && (status == OKV_OK || status == OKV_ERR_ABSENT);
	     i++) {
		status = okv_gguf_float(l->gguf, factors[i], &factor, l->reason);
		if (status == OKV_OK && factor != 1 && factor != 0)
			return okv_refuse(l->reason, OKV_ERR_UNSUPPORTED, factors[i],
					  "RoPE scaling by %g is not supported", factor);
	}
	return status == OKV_ERR_ABSENT ? OKV_OK : status;
}

/* Features that would change results and that we do not have; a key that says so in a way we cannot read counts too. */
static enum okv_status refuse_features(struct loading *l)
{
	enum okv_status status = refuse_scaling(l);

	if (status == OKV_OK)
		status = refuse_count(l, "llama.expert_count", "a mixture of experts");
	if (status == OKV_OK)
		status = refuse_count(l, "llama.attention.sliding_window", "attention over a sliding window");
	return status;
}

static enum okv_status check_shape(struct loading *l)
{
	const struct okv_model_shape *shape = &l->model->shape;

	if (shape->heads % shape->kv_heads)
		return okv_refuse(l->reason, OKV_ERR_INVALID, "metadata", "%u heads cannot share %u KV heads",
				  shape->heads, shape->kv_heads);
	if (shape->width % OKV_BLOCK || shape->ffn % OKV_BLOCK)
		return okv_refuse(l->reason, OKV_ERR_UNSUPPORTED, "metadata",
				  "a width of %u and a feed-forward width of %u are not both multiples of %d",
				  shape->width, shape->ffn, OKV_BLOCK);
	if (shape->head_dim % 16 || shape->heads / shape->kv_heads * shape->head_dim % OKV_BLOCK)
		return okv_refuse(l->reason, OKV_ERR_UNSUPPORTED, "metadata",
				  "heads of %u dimensions, %u to a KV head, are not supported (multiples of 16, and of "
				  "%d for all heads of a KV head)",
				  shape->head_dim, shape->heads / shape->kv_heads, OKV_BLOCK);
	if (shape->heads / shape->kv_heads > OKV_QUERY_VECTORS)
		return okv_refuse(l->reason, OKV_ERR_UNSUPPORTED, "metadata", "more than %d heads share a KV head",
				  OKV_QUERY_VECTORS);
	if (shape->rope_dims % 2 || shape->rope_dims > shape->head_dim)
		return okv_refuse(l->reason, OKV_ERR_INVALID, "metadata",
				  "RoPE over %u of %u dimensions makes no sense", shape->rope_dims, shape->head_dim);
	if ((uint64_t)shape->context * shape->head_dim > ROPE_FLOATS_MAX)
		return okv_refuse(l->reason, OKV_ERR_UNSUPPORTED, "metadata", "a context of %u tokens is too long",
				  shape->context);
	return OKV_OK;
}

static enum okv_status read_shape(struct loading *l)
{
	struct okv_model_shape *shape = &l->model->shape;
	uint32_t value_dim = 0;
	struct okv_bytes architecture;
	enum okv_status status = okv_gguf_string(l->gguf, "general.architecture", &architecture, l->reason);

	if (status != OKV_OK)
		return status == OKV_ERR_ABSENT ? okv_refuse(l->reason, OKV_ERR_INVALID, "general.architecture",
							     "the model file names no architecture")
						: status;
	if (architecture.size != 5 || memcmp(architecture.data, "llama", 5) != 0)
		return okv_refuse(l->reason, OKV_ERR_UNSUPPORTED, "general.architecture",
				  "architecture \"%s\" is not supported, only \"llama\"", okv__show(architecture).text);

	if ((status = read_number(l, "llama.block_count", LAYERS_MAX, &shape->layers)) != OKV_OK ||
	    (status = read_number(l, "llama.context_length", CONTEXT_MAX, &shape->context)) != OKV_OK ||
	    (status = read_number(l, "llama.embedding_length", WIDTH_MAX, &shape->width)) != OKV_OK ||
	    (status = read_number(l, "llama.feed_forward_length", FFN_MAX, &shape->ffn)) != OKV_OK ||
	    (status = read_number(l, "llama.attention.head_count", HEADS_MAX, &shape->heads)) != OKV_OK)
		return status;
	OKV_ASSERT(shape->layers && shape->heads);
	if ((status = read_number_or(l, "llama.attention.head_count_kv", HEADS_MAX, shape->heads, &shape->kv_heads)) !=
		    OKV_OK ||
	    (status = read_number_or(l, "llama.attention.key_length", HEAD_DIM_MAX, shape->width / shape->heads,
				     &shape->head_dim)) != OKV_OK ||
	    (status = read_number_or(l, "llama.attention.value_length", HEAD_DIM_MAX, shape->head_dim, &value_dim)) !=
		    OKV_OK ||
	    (status = read_number_or(l, "llama.rope.dimension_count", HEAD_DIM_MAX, shape->head_dim,
				     &shape->rope_dims)) != OKV_OK ||
	    (status = read_floats(l)) != OKV_OK || (status = refuse_features(l)) != OKV_OK)
		return status;
	if (value_dim != shape->head_dim || shape->head_dim == 0 || shape->head_dim > HEAD_DIM_MAX)
		return okv_refuse(l->reason, OKV_ERR_UNSUPPORTED, "metadata",
				  "keys of %u and values of %u dimensions are not supported", shape->head_dim,
				  value_dim);
	return check_shape(l);
}

/* ---- tensors ---- */

static enum okv_weight_type weight_type(enum okv_tensor_type type)
{
	switch (type) {
	case OKV_TENSOR_F16:
		return OKV_WEIGHT_F16;
	case OKV_TENSOR_Q4_0:
		return OKV_WEIGHT_Q4_0;
	case OKV_TENSOR_Q4_1:
		return OKV_WEIGHT_Q4_1;
	case OKV_TENSOR_Q8_0:
		return OKV_WEIGHT_Q8_0;
	case OKV_TENSOR_F32:
		break;
	}
	return OKV_WEIGHT_F32;
}

static enum okv_status refuse_extents(struct loading *l, const struct okv_gguf_tensor *tensor, const char *name,
				      uint32_t inputs, uint32_t outputs)
{
	char needed[16] = "the vocabulary";

	if (tensor->dimensions > 2)
		return okv_refuse(l->reason, OKV_ERR_INVALID, "tensor",
				  "tensor %s has %u dimensions where the model needs 1 or 2", name, tensor->dimensions);
	if (outputs)
		snprintf(needed, sizeof needed, "%u", outputs);
	return okv_refuse(l->reason, OKV_ERR_INVALID, "tensor",
			  "tensor %s is %llu x %llu where the model needs %u x %s", name,
			  (unsigned long long)tensor->extent[0], (unsigned long long)tensor->extent[1], inputs, needed);
}

/* The tensor `name` with extents [inputs][outputs]; outputs 0 takes any number from the file. NULL: see *ret_status. */
static const struct okv_gguf_tensor *find(struct loading *l, const char *name, uint32_t inputs, uint32_t outputs,
					  enum okv_status *ret_status)
{
	const struct okv_gguf_tensor *tensor = okv_gguf_tensor_find(l->gguf, name);

	if (!tensor) {
		*ret_status = okv_refuse(l->reason, OKV_ERR_INVALID, "tensor", "the model file has no tensor %s", name);
		return NULL;
	}
	OKV_ASSERT(tensor->data); /* else a model was made of this file already */
	if (tensor->dimensions > 2 || tensor->extent[0] != inputs || tensor->extent[1] > VOCABULARY_MAX ||
	    (outputs && tensor->extent[1] != outputs)) {
		*ret_status = refuse_extents(l, tensor, name, inputs, outputs);
		return NULL;
	}
	l->found++;
	return tensor;
}

static uint8_t *lay_out(struct loading *l, size_t size)
{
	uint8_t *at = l->packs ? l->model->memory + l->used : NULL;

	l->used += (size + ALIGNMENT - 1) / ALIGNMENT * ALIGNMENT;
	return at;
}

/* Packs whole panels, a stretch at a time, and gives the file's memory back behind them. */
static void pack(struct loading *l, const struct okv_panels *panels, const struct okv_gguf_tensor *tensor)
{
	size_t row_bytes = okv_weight_row_bytes(panels->type, panels->inputs);
	uint32_t rows = (uint32_t)(PACKED_AT_ONCE / (OKV_PANEL * row_bytes) + 1) * OKV_PANEL;

	for (uint32_t done = 0, count; done < panels->outputs; done += count) {
		struct okv_panels part = *panels;

		count = panels->outputs - done < rows ? panels->outputs - done : rows;
		part.outputs = count;
		part.bytes += done * row_bytes;
		okv_panels_pack(&part, tensor->data + done * row_bytes);
		okv_gguf_tensor_release(l->gguf, tensor, (done + count) * row_bytes);
	}
}

static enum okv_status load_matrix(struct loading *l, const char *name, uint32_t inputs, uint32_t outputs,
				   uint32_t groups, struct okv_panels *ret_panels)
{
	enum okv_status status;
	const struct okv_gguf_tensor *tensor = find(l, name, inputs, outputs, &status);

	if (!tensor)
		return status;
	ret_panels->type = weight_type(tensor->type);
	ret_panels->inputs = inputs;
	ret_panels->outputs = (uint32_t)tensor->extent[1];
	ret_panels->groups = groups < inputs / OKV_BLOCK ? groups : inputs / OKV_BLOCK;
	ret_panels->bytes = lay_out(l, okv_panels_bytes(ret_panels->type, ret_panels->outputs, inputs));
	if (l->packs)
		pack(l, ret_panels, tensor);
	return OKV_OK;
}

static enum okv_status load_norm(struct loading *l, const char *name, const float **ret_norm)
{
	uint32_t width = l->model->shape.width;
	enum okv_status status;
	const struct okv_gguf_tensor *tensor = find(l, name, width, 1, &status);
	uint8_t *to;

	if (!tensor)
		return status;
	if (tensor->type != OKV_TENSOR_F32)
		return okv_refuse(l->reason, OKV_ERR_UNSUPPORTED, "tensor", "tensor %s is not F32", name);
	to = lay_out(l, width * sizeof(float));
	*ret_norm = (const float *)(const void *)to;
	if (l->packs) {
		memcpy(to, tensor->data, width * sizeof(float));
		okv_gguf_tensor_release(l->gguf, tensor, tensor->size);
	}
	return OKV_OK;
}

static const char *name_in(char name[64], uint32_t layer, const char *part)
{
	snprintf(name, 64, "blk.%u.%s.weight", layer, part);
	return name;
}

static enum okv_status load_layer(struct loading *l, uint32_t i)
{
	const struct okv_model_shape *shape = &l->model->shape;
	struct okv__layer *layer = &l->model->layers[i];
	uint32_t width = shape->width, all = shape->heads * shape->head_dim, kv = shape->kv_heads * shape->head_dim;
	uint32_t groups = shape->kv_heads;
	enum okv_status status;
	char n[64];

	if ((status = load_norm(l, name_in(n, i, "attn_norm"), &layer->attention_norm)) != OKV_OK ||
	    (status = load_matrix(l, name_in(n, i, "attn_q"), width, all, 1, &layer->q)) != OKV_OK ||
	    (status = load_matrix(l, name_in(n, i, "attn_k"), width, kv, 1, &layer->k)) != OKV_OK ||
	    (status = load_matrix(l, name_in(n, i, "attn_v"), width, kv, 1, &layer->v)) != OKV_OK ||
	    (status = load_matrix(l, name_in(n, i, "attn_output"), all, width, groups, &layer->o)) != OKV_OK ||
	    (status = load_norm(l, name_in(n, i, "ffn_norm"), &layer->ffn_norm)) != OKV_OK ||
	    (status = load_matrix(l, name_in(n, i, "ffn_gate"), width, shape->ffn, 1, &layer->gate)) != OKV_OK ||
	    (status = load_matrix(l, name_in(n, i, "ffn_up"), width, shape->ffn, 1, &layer->up)) != OKV_OK)
		return status;
	return load_matrix(l, name_in(n, i, "ffn_down"), shape->ffn, width, groups, &layer->down);
}

/* The embedding has a row for each token; without a vocabulary in the file nobody says how many there are. */
static enum okv_status check_vocabulary(struct loading *l)
{
	struct okv_gguf_array tokens;
	enum okv_status status = okv_gguf_array(l->gguf, "tokenizer.ggml.tokens", OKV_GGUF_STRING, &tokens, l->reason);

	if (status == OKV_OK && tokens.count != l->model->shape.vocabulary)
		return okv_refuse(l->reason, OKV_ERR_INVALID, "tensor",
				  "token_embd.weight has rows for %u tokens where tokenizer.ggml.tokens has %llu",
				  l->model->shape.vocabulary, (unsigned long long)tokens.count);
	return status == OKV_ERR_ABSENT ? OKV_OK : status;
}

static enum okv_status load_tensors(struct loading *l)
{
	struct okv_model *model = l->model;
	struct okv_model_shape *shape = &model->shape;
	enum okv_status status;

	l->used = 0;
	l->found = 0;
	status = load_matrix(l, "token_embd.weight", shape->width, 0, 1, &model->embedding);
	if (status != OKV_OK)
		return status;
	shape->vocabulary = model->embedding.outputs;
	if ((status = check_vocabulary(l)) != OKV_OK)
		return status;
	for (uint32_t i = 0; i < shape->layers; i++)
		if ((status = load_layer(l, i)) != OKV_OK)
			return status;
	status = load_norm(l, "output_norm.weight", &model->output_norm);
	if (status != OKV_OK)
		return status;
	if (okv_gguf_tensor_find(l->gguf, "output.weight"))
		return load_matrix(l, "output.weight", shape->width, shape->vocabulary, 1, &model->output);
	model->output = model->embedding;
	return OKV_OK;
}

static bool is_known(const struct okv_model *model, struct okv_bytes name)
{
	static const char *const outside[] = {"token_embd.weight", "output_norm.weight", "output.weight"};
	static const char *const inside[] = {"attn_norm", "attn_q",   "attn_k", "attn_v",  "attn_output",
					     "ffn_norm",  "ffn_gate", "ffn_up", "ffn_down"};
	char known[64], text[64];
	unsigned long layer;

	if (name.size >= sizeof text)
		return false;
	memcpy(text, name.data, name.size);
	text[name.size] = 0;
	for (size_t i = 0; i < sizeof outside / sizeof *outside; i++)
		if (!strcmp(text, outside[i]))
			return true;
	if (strncmp(text, "blk.", 4) != 0)
		return false;
	layer = strtoul(text + 4, NULL, 10);
	for (size_t i = 0; i < sizeof inside / sizeof *inside; i++)
		if (layer < model->shape.layers && !strcmp(text, name_in(known, (uint32_t)layer, inside[i])))
			return true;
	return false;
}

static enum okv_status refuse_other_tensors(struct loading *l)
{
	if (l->found == okv_gguf_tensor_count(l->gguf))
		return OKV_OK;
	for (size_t i = 0; i < okv_gguf_tensor_count(l->gguf); i++) {
		struct okv_bytes name = okv_gguf_tensor_at(l->gguf, i)->name;

		if (!is_known(l->model, name))
			return okv_refuse(l->reason, OKV_ERR_UNSUPPORTED, "tensor", "tensor %s is not supported",
					  okv__show(name).text);
	}
	return OKV_OK;
}

/* ---- identity ---- */

static void digest_u64(struct okv_sha256 *sha, uint64_t value)
{
	uint8_t bytes[8];

	for (int i = 0; i < 8; i++)
		bytes[i] = (uint8_t)(value >> 8 * i);
	okv_sha256_update(sha, bytes, sizeof bytes);
}

static void digest_f64(struct okv_sha256 *sha, double value)
{
	uint64_t bits;

	memcpy(&bits, &value, sizeof bits);
	digest_u64(sha, bits);
}

/* docs/numerics.md, "Weights digest". */
static enum okv_status digest(struct loading *l)
{
	static const char tag[] = "okv-weights-1 llama";
	const struct okv_model_shape *s = &l->model->shape;
	const uint32_t numbers[] = {s->layers,	 s->width,	s->ffn,	    s->heads,	 s->kv_heads,
				    s->head_dim, s->vocabulary, s->context, s->rope_dims};
	struct okv_sha256 *sha = okv_sha256_create();

	if (!sha)
		return okv_refuse(l->reason, OKV_ERR_NO_MEMORY, "", "no memory to digest the weights");
	okv_sha256_update(sha, tag, sizeof tag);
	for (size_t i = 0; i < sizeof numbers / sizeof *numbers; i++)
		digest_u64(sha, numbers[i]);
	digest_f64(sha, s->rope_theta);
	digest_f64(sha, s->norm_epsilon);
	for (size_t i = 0; i < okv_gguf_tensor_count(l->gguf); i++) { /* in name order */
		const struct okv_gguf_tensor *tensor = okv_gguf_tensor_at(l->gguf, i);

		digest_u64(sha, tensor->name.size);
		okv_sha256_update(sha, tensor->name.data, tensor->name.size);
		digest_u64(sha, tensor->type);
		digest_u64(sha, tensor->extent[0]);
		digest_u64(sha, tensor->extent[1]);
		okv_sha256_update(sha, tensor->data, tensor->size);
	}
	l->model->digest = okv_sha256_finish(sha);
	return OKV_OK;
}

/* ---- the whole ---- */

/* Huge pages, where the system has them, keep a pass over all weights from missing the TLB. */
static enum okv_status allocate(struct loading *l)
{
	struct okv_model *model = l->model;
	size_t floats = (size_t)model->shape.context * model->shape.head_dim;

	model->memory_bytes = (l->used + HUGE_PAGE - 1) / HUGE_PAGE * HUGE_PAGE;
	model->memory = aligned_alloc(HUGE_PAGE, model->memory_bytes);
	model->rope = aligned_alloc(ALIGNMENT, (floats * sizeof(float) + ALIGNMENT - 1) / ALIGNMENT * ALIGNMENT);
	if (!model->memory || !model->rope)
		return okv_refuse(l->reason, OKV_ERR_NO_MEMORY, "", "no memory for %zu bytes of weights",
				  model->memory_bytes);
	madvise(model->memory, model->memory_bytes, MADV_HUGEPAGE); /* advice: a refusal only costs speed */
	return OKV_OK;
}

static enum okv_status load(struct loading *l)
{
	struct okv_model_shape *shape = &l->model->shape;
	enum okv_status status = read_shape(l);

	if (status != OKV_OK)
		return status;
	OKV_ASSERT(shape->layers >= 1);
	l->model->layers = calloc(shape->layers, sizeof *l->model->layers);
	if (!l->model->layers)
		return okv_refuse(l->reason, OKV_ERR_NO_MEMORY, "", "no memory for %u layers", shape->layers);
	if ((status = load_tensors(l)) != OKV_OK || (status = refuse_other_tensors(l)) != OKV_OK ||
	    (status = allocate(l)) != OKV_OK)
		return status;
	if ((status = digest(l)) != OKV_OK)
		return status;
	l->packs = true;
	okv_rope_table(shape->rope_theta, shape->rope_dims, shape->head_dim, shape->context, l->model->rope);
	return load_tensors(l);
}

enum okv_status okv_model_create(struct okv_gguf *gguf, struct okv_model **ret_model, struct okv_reason *reason)
{
	struct loading l = {.gguf = gguf, .reason = reason, .model = calloc(1, sizeof *l.model)};
	enum okv_status status;

	if (!l.model)
		return okv_refuse(reason, OKV_ERR_NO_MEMORY, "", "no memory for a model");
	status = load(&l);
	if (status != OKV_OK) {
		okv_model_destroy(l.model);
		return okv__gguf_blame(gguf, status, reason);
	}
	*ret_model = l.model;
	return OKV_OK;
}

void okv_model_destroy(struct okv_model *model)
{
	if (!model)
		return;
	free(model->memory);
	free(model->rope);
	free(model->layers);
	free(model);
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
	return okv_kernels_numerics_id();
}
