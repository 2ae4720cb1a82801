#include "gguf_builder.h"

#include <stdio.h>
#include <string.h>

#include "okv/base/rng.h"

/* From tokenizer.chat_template of SmolLM2-135M-Instruct (HuggingFaceTB, Apache-2.0). */
const char tiny_chat_template[] =
	"{% for message in messages %}{% if loop.first and messages[0]['role'] != 'system' %}"
	"{{ '<|im_start|>system\nYou are a helpful AI assistant named SmolLM, trained by Hugging Face<|im_end|>\n' }}"
	"{% endif %}{{'<|im_start|>' + message['role'] + '\n' + message['content'] + '<|im_end|>' + '\n'}}"
	"{% endfor %}{% if add_generation_prompt %}{{ '<|im_start|>assistant\n' }}{% endif %}";

static void append_u32(struct okv_buf *buf, uint32_t value)
{
	okv_buf_append(buf, &value, sizeof(value));
}

static void append_u64(struct okv_buf *buf, uint64_t value)
{
	okv_buf_append(buf, &value, sizeof(value));
}

static void append_string(struct okv_buf *buf, const char *text)
{
	append_u64(buf, strlen(text));
	okv_buf_text(buf, text);
}

static void append_key(struct gguf_builder *builder, const char *key, uint32_t type)
{
	builder->pair_count++;
	append_string(&builder->pairs, key);
	append_u32(&builder->pairs, type);
}

void gguf_add_raw(struct gguf_builder *builder, const char *key, uint32_t type, const void *value, size_t size)
{
	append_key(builder, key, type);
	okv_buf_append(&builder->pairs, value, size);
}

void gguf_add_u32(struct gguf_builder *builder, const char *key, uint32_t value)
{
	gguf_add_raw(builder, key, OKV_GGUF_U32, &value, sizeof(value));
}

void gguf_add_f32(struct gguf_builder *builder, const char *key, float value)
{
	gguf_add_raw(builder, key, OKV_GGUF_F32, &value, sizeof(value));
}

void gguf_add_bool(struct gguf_builder *builder, const char *key, bool value)
{
	gguf_add_raw(builder, key, OKV_GGUF_BOOL, &value, sizeof(value));
}

void gguf_add_string(struct gguf_builder *builder, const char *key, const char *value)
{
	append_key(builder, key, OKV_GGUF_STRING);
	append_string(&builder->pairs, value);
}

void gguf_add_strings(struct gguf_builder *builder, const char *key, const char *const *values, size_t count)
{
	append_key(builder, key, OKV_GGUF_ARRAY);
	append_u32(&builder->pairs, OKV_GGUF_STRING);
	append_u64(&builder->pairs, count);
	for (size_t i = 0; i < count; i++)
		append_string(&builder->pairs, values[i]);
}

void gguf_add_array(struct gguf_builder *builder, const char *key, enum okv_gguf_type type, const void *elements,
		    size_t count, size_t bytes)
{
	append_key(builder, key, OKV_GGUF_ARRAY);
	append_u32(&builder->pairs, type);
	append_u64(&builder->pairs, count);
	okv_buf_append(&builder->pairs, elements, count * bytes);
}

static void pad(struct okv_buf *buf, uint64_t alignment)
{
	while (buf->size % (alignment ? alignment : 32) != 0 && !buf->failed)
		okv_buf_append(buf, "", 1);
}

void gguf_add_row(struct gguf_builder *builder, const char *name, uint32_t type, uint32_t dimensions,
		  const uint64_t *extents, uint64_t offset)
{
	builder->tensor_count++;
	append_string(&builder->table, name);
	append_u32(&builder->table, dimensions);
	for (uint32_t i = 0; i < dimensions; i++)
		append_u64(&builder->table, extents[i]);
	append_u32(&builder->table, type);
	append_u64(&builder->table, offset);
}

void gguf_add_tensor(struct gguf_builder *builder, const char *name, uint32_t type, uint32_t dimensions,
		     const uint64_t *extents, const void *data, size_t size)
{
	pad(&builder->data, builder->alignment);
	gguf_add_row(builder, name, type, dimensions, extents, builder->data.size);
	okv_buf_append(&builder->data, data, size);
}

void gguf_write(const struct gguf_builder *builder, struct okv_buf *file)
{
	okv_buf_text(file, "GGUF");
	append_u32(file, builder->version ? builder->version : 3);
	append_u64(file, builder->tensor_count + builder->tensors_claimed);
	append_u64(file, builder->pair_count + builder->pairs_claimed);
	okv_buf_append(file, builder->pairs.data, builder->pairs.size);
	okv_buf_append(file, builder->table.data, builder->table.size);
	if (builder->data.size == 0)
		return;
	pad(file, builder->alignment);
	okv_buf_append(file, builder->data.data, builder->data.size);
}

void gguf_builder_done(struct gguf_builder *builder)
{
	okv_buf_done(&builder->pairs);
	okv_buf_done(&builder->table);
	okv_buf_done(&builder->data);
	*builder = (struct gguf_builder){0};
}

/* The letter that stands for a byte in a byte-level vocabulary, as UTF-8 (GPT-2's table: printable ones are
 * themselves). */
static void byte_letter(unsigned byte, char ret_letter[3])
{
	unsigned letter = byte, shifted = 0;

	for (unsigned b = 0; b <= byte; b++) {
		bool printable = (b >= 0x21 && b <= 0x7e) || (b >= 0xa1 && b <= 0xac) || b >= 0xae;

		if (!printable && b == byte)
			letter = 256 + shifted;
		shifted += !printable;
	}
	if (letter < 0x80) {
		ret_letter[0] = (char)letter;
		ret_letter[1] = '\0';
		return;
	}
	ret_letter[0] = (char)(0xc0 | letter >> 6);
	ret_letter[1] = (char)(0x80 | (letter & 0x3f));
	ret_letter[2] = '\0';
}

/* Left and right part of each merge, in rank order; "\u0120" is the letter of a space. */
static const char *const merges[] = {
	"\u0120 t",	 "\u0120 a",	  "h e",	   "i n",
	"r e",		 "o n",		  "\u0120t he",	   "e r",
	"\u0120 s",	 "a t",		  "n d",	   "\u0120 w",
	"o r",		 "\u0120 c",	  "i s",	   "e n",
	"\u0120a nd",	 "i t",		  "o u",	   "in g",
	"\u0120 o",	 "\u0120o n",	  "l l",	   "\u0120 \u0120",
	"h i",		 "\u00c3 \u00a9", "\u00f0 \u0141", "\u00f0\u0141 \u013a",
	"\u00e4 \u00b8", "\u0120w or",	  "l d",	   "\u0120wor ld",
	"e s",		 "l o",
};

enum { SPECIALS = 3, MERGES = sizeof(merges) / sizeof(merges[0]), VOCABULARY = SPECIALS + 256 + MERGES };

void tiny_vocabulary_add(struct gguf_builder *builder, const char *splitter)
{
	static const char *const specials[SPECIALS] = {"<|endoftext|>", "<|im_start|>", "<|im_end|>"};
	char text[VOCABULARY][24];
	const char *tokens[VOCABULARY];
	int32_t types[VOCABULARY];

	for (size_t i = 0; i < VOCABULARY; i++) {
		if (i < SPECIALS) {
			snprintf(text[i], sizeof(text[i]), "%s", specials[i]);
		} else if (i < SPECIALS + 256) {
			byte_letter((unsigned)(i - SPECIALS), text[i]);
		} else {
			const char *merge = merges[i - SPECIALS - 256];
			int left = (int)(strchr(merge, ' ') - merge);

			snprintf(text[i], sizeof(text[i]), "%.*s%s", left, merge, merge + left + 1);
		}
		tokens[i] = text[i];
		types[i] = i < SPECIALS ? 3 : 1;
	}
	gguf_add_string(builder, "tokenizer.ggml.model", "gpt2");
	gguf_add_string(builder, "tokenizer.ggml.pre", splitter);
	gguf_add_strings(builder, "tokenizer.ggml.tokens", tokens, VOCABULARY);
	gguf_add_array(builder, "tokenizer.ggml.token_type", OKV_GGUF_I32, types, VOCABULARY, sizeof(types[0]));
	gguf_add_strings(builder, "tokenizer.ggml.merges", merges, MERGES);
	gguf_add_u32(builder, "tokenizer.ggml.bos_token_id", 1);
	gguf_add_u32(builder, "tokenizer.ggml.eos_token_id", 2);
	gguf_add_bool(builder, "tokenizer.ggml.add_bos_token", false);
	gguf_add_string(builder, "tokenizer.chat_template", tiny_chat_template);
}

static uint16_t random_f16(struct okv_rng *rng, unsigned exponent, unsigned exponents, bool negative_too)
{
	uint64_t bits = okv_rng_next(rng);
	uint64_t sign = negative_too ? bits >> 63 : 0;
	uint64_t power = exponent + bits % exponents;

	return (uint16_t)(sign << 15 | power << 10 | (bits >> 20 & 0x3ff));
}

/* One block (32 values of a quantised type, one of another) into `ret_block`; gives its size. */
static size_t random_block(struct okv_rng *rng, enum okv_tensor_type type, uint8_t ret_block[34])
{
	/* Weights of about 1/8, so that a dot product over a width of 64 stays near one. */
	uint16_t half = random_f16(rng, 9, 4, true), scale = random_f16(rng, 9, 1, false);
	uint16_t minimum = (uint16_t)(0x8000 | (scale + (3 << 10))); /* -8 times the scale */
	uint32_t sign_exponent = (uint32_t)(half & 0x8000) << 16 | ((uint32_t)(half >> 10 & 0x1f) + 112) << 23;
	uint32_t single = sign_exponent | (uint32_t)(okv_rng_next(rng) & 0x7fffff);

	for (size_t i = 2; i < 34; i++)
		ret_block[i] = (uint8_t)okv_rng_next(rng);
	switch (type) {
	case OKV_TENSOR_F32:
		memcpy(ret_block, &single, 4);
		return 4;
	case OKV_TENSOR_F16:
		memcpy(ret_block, &half, 2);
		return 2;
	case OKV_TENSOR_Q4_0:
		memcpy(ret_block, &scale, 2);
		return 18;
	case OKV_TENSOR_Q4_1:
		memcpy(ret_block, &scale, 2);
		memcpy(ret_block + 2, &minimum, 2);
		return 20;
	case OKV_TENSOR_Q8_0:
		scale = (uint16_t)(scale - (4 << 10));
		memcpy(ret_block, &scale, 2);
		return 34;
	}
	return 0;
}

static bool is_quantised(enum okv_tensor_type type)
{
	return type != OKV_TENSOR_F32 && type != OKV_TENSOR_F16;
}

void tiny_weights_append(struct okv_buf *data, enum okv_tensor_type type, uint64_t values, uint64_t seed)
{
	struct okv_rng rng = okv_rng_seeded(seed);
	uint8_t block[34];

	for (uint64_t i = 0; i < values; i += is_quantised(type) ? 32 : 1)
		okv_buf_append(data, block, random_block(&rng, type, block));
}

size_t tiny_weights_size(enum okv_tensor_type type, uint64_t values)
{
	struct okv_rng rng = okv_rng_seeded(0);
	uint8_t block[34];

	return random_block(&rng, type, block) * (size_t)(is_quantised(type) ? values / 32 : values);
}

static void add_matrix(struct gguf_builder *builder, const struct tiny_model_options *options, const char *name,
		       uint64_t columns, uint64_t rows)
{
	struct okv_buf data = {0};
	uint64_t seed = options->seed ^ okv_mix64(builder->tensor_count + 1);

	tiny_weights_append(&data, options->type, columns * rows, seed);
	gguf_add_tensor(builder, name, options->type, 2, (uint64_t[]){columns, rows}, data.data, data.size);
	okv_buf_done(&data);
}

/* Norm weights around one: 0.5 to 1.5. */
static void add_norm(struct gguf_builder *builder, const struct tiny_model_options *options, const char *name,
		     uint64_t width)
{
	struct okv_rng rng = okv_rng_seeded(options->seed ^ okv_mix64(builder->tensor_count + 1));
	struct okv_buf data = {0};

	for (uint64_t i = 0; i < width; i++) {
		float value = 0.5F + (float)(okv_rng_next(&rng) >> 40) * 0x1p-24F;

		okv_buf_append(&data, &value, sizeof(value));
	}
	gguf_add_tensor(builder, name, OKV_TENSOR_F32, 1, &width, data.data, data.size);
	okv_buf_done(&data);
}

static const char *layer_name(char room[48], uint32_t layer, const char *part)
{
	snprintf(room, 48, "blk.%u.%s.weight", layer, part);
	return room;
}

static void add_layer(struct gguf_builder *builder, const struct tiny_model_options *options, uint32_t layer)
{
	uint64_t width = (uint64_t)options->heads * options->head_dim;
	uint64_t kv_width = (uint64_t)options->kv_heads * options->head_dim;
	char name[48];

	add_norm(builder, options, layer_name(name, layer, "attn_norm"), width);
	add_matrix(builder, options, layer_name(name, layer, "attn_q"), width, width);
	add_matrix(builder, options, layer_name(name, layer, "attn_k"), width, kv_width);
	add_matrix(builder, options, layer_name(name, layer, "attn_v"), width, kv_width);
	add_matrix(builder, options, layer_name(name, layer, "attn_output"), width, width);
	add_norm(builder, options, layer_name(name, layer, "ffn_norm"), width);
	add_matrix(builder, options, layer_name(name, layer, "ffn_gate"), width, options->ffn);
	add_matrix(builder, options, layer_name(name, layer, "ffn_up"), width, options->ffn);
	add_matrix(builder, options, layer_name(name, layer, "ffn_down"), options->ffn, width);
}

struct tiny_model_options tiny_model_default(enum okv_tensor_type type)
{
	return (struct tiny_model_options){.type = type,
					   .seed = 1,
					   .layers = 2,
					   .heads = 4,
					   .kv_heads = 2,
					   .head_dim = 16,
					   .ffn = 128,
					   .context = 512,
					   .splitter = "smollm"};
}

void tiny_model_write(const struct tiny_model_options *options, struct okv_buf *file)
{
	struct gguf_builder builder = {0};
	uint32_t width = options->heads * options->head_dim;

	gguf_add_string(&builder, "general.architecture", "llama");
	gguf_add_string(&builder, "general.name", "tiny");
	gguf_add_u32(&builder, "llama.block_count", options->layers);
	gguf_add_u32(&builder, "llama.context_length", options->context);
	gguf_add_u32(&builder, "llama.embedding_length", width);
	gguf_add_u32(&builder, "llama.feed_forward_length", options->ffn);
	gguf_add_u32(&builder, "llama.attention.head_count", options->heads);
	gguf_add_u32(&builder, "llama.attention.head_count_kv", options->kv_heads);
	gguf_add_u32(&builder, "llama.rope.dimension_count",
		     options->rope_dims ? options->rope_dims : options->head_dim);
	gguf_add_f32(&builder, "llama.rope.freq_base", 10000.0F);
	gguf_add_f32(&builder, "llama.attention.layer_norm_rms_epsilon", 1e-5F);
	gguf_add_u32(&builder, "llama.vocab_size", VOCABULARY);
	tiny_vocabulary_add(&builder, options->splitter);

	add_matrix(&builder, options, "token_embd.weight", width, VOCABULARY);
	for (uint32_t layer = 0; layer < options->layers; layer++)
		add_layer(&builder, options, layer);
	add_norm(&builder, options, "output_norm.weight", width);
	if (options->separate_output)
		add_matrix(&builder, options, "output.weight", width, VOCABULARY);
	gguf_write(&builder, file);
	gguf_builder_done(&builder);
}
