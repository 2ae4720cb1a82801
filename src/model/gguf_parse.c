/*
 * The checks of docs/formats/gguf.md, in the order of the file: head, metadata pairs, tensor table, data.
 *
 * What must hold at every step: (1) nothing is allocated whose size the file merely claims; a count is first compared
 * with the bytes that are left, so the memory taken is at most a few times the file. (2) Every sum and product of the
 * file's numbers is checked for overflow before it is used. (3) No table is indexed and nothing divided by a number
 * that was not compared with its bounds.
 */
#include "gguf_object.h"

#include <stdlib.h>
#include <string.h>

#include "okv/base/cursor.h"

enum {
	VERSION_LEAST = 2,
	VERSION_MOST = 3,
	KEY_BYTES_MAX = 65535,
	STRING_BYTES_MAX = 1 << 20,
	ARRAY_MAX = 16 << 20,
	PAIRS_MAX = 65536,
	TENSORS_MAX = 65536,
	TENSOR_NAME_MAX = 63,
	ALIGNMENT_DEFAULT = 32,
	ALIGNMENT_LEAST = 8,
	ALIGNMENT_MOST = 1 << 20,
	PAIR_BYTES_LEAST = 8 + 1 + 4 + 1,	    /* length, key of one byte, type, value of one byte */
	TENSOR_BYTES_LEAST = 8 + 1 + 4 + 8 + 4 + 8, /* length, name of one byte, count, one extent, type, offset */
};

#define AGAIN	  "; fetch or convert the model again, or take another"
#define TRUNCATED "the file ends inside %s%s; it is truncated or its lengths lie, fetch it again"

/* Bytes of one value; 0 for strings and arrays, whose size is in the file. */
static const uint8_t value_bytes[] = {
	[OKV_GGUF_U8] = 1,  [OKV_GGUF_I8] = 1,	   [OKV_GGUF_U16] = 2,	 [OKV_GGUF_I16] = 2, [OKV_GGUF_U32] = 4,
	[OKV_GGUF_I32] = 4, [OKV_GGUF_F32] = 4,	   [OKV_GGUF_BOOL] = 1,	 [OKV_GGUF_U64] = 8, [OKV_GGUF_I64] = 8,
	[OKV_GGUF_F64] = 8, [OKV_GGUF_STRING] = 0, [OKV_GGUF_ARRAY] = 0,
};

/* The tensor types of the format, by id. Those without a block are not read; those without a name were removed. */
static const struct tensor_kind {
	const char *name;
	uint32_t values, bytes; /* of one block */
} tensor_kinds[] = {
	[0] = {"F32", 1, 4},	  [1] = {"F16", 1, 2},	   [2] = {"Q4_0", 32, 18},   [3] = {"Q4_1", 32, 20},
	[6] = {"Q5_0", 0, 0},	  [7] = {"Q5_1", 0, 0},	   [8] = {"Q8_0", 32, 34},   [9] = {"Q8_1", 0, 0},
	[10] = {"Q2_K", 0, 0},	  [11] = {"Q3_K", 0, 0},   [12] = {"Q4_K", 0, 0},    [13] = {"Q5_K", 0, 0},
	[14] = {"Q6_K", 0, 0},	  [15] = {"Q8_K", 0, 0},   [16] = {"IQ2_XXS", 0, 0}, [17] = {"IQ2_XS", 0, 0},
	[18] = {"IQ3_XXS", 0, 0}, [19] = {"IQ1_S", 0, 0},  [20] = {"IQ4_NL", 0, 0},  [21] = {"IQ3_S", 0, 0},
	[22] = {"IQ2_S", 0, 0},	  [23] = {"IQ4_XS", 0, 0}, [24] = {"I8", 0, 0},	     [25] = {"I16", 0, 0},
	[26] = {"I32", 0, 0},	  [27] = {"I64", 0, 0},	   [28] = {"F64", 0, 0},     [29] = {"IQ1_M", 0, 0},
	[30] = {"BF16", 0, 0},	  [34] = {"TQ1_0", 0, 0},  [35] = {"TQ2_0", 0, 0},   [39] = {"MXFP4", 0, 0},
	[40] = {"NVFP4", 0, 0},	  [41] = {"Q1_0", 0, 0},   [42] = {"Q2_0", 0, 0},
};

/* Where parsing is: a reader over the file and the file's own numbers. */
struct parser {
	struct okv_gguf *gguf;
	struct okv_reader reader;
	struct okv_reason *reason;
	uint64_t pair_count, tensor_count;
	uint64_t alignment;
};

enum okv_status okv__gguf_check_magic(const uint8_t *bytes, size_t size, struct okv_reason *reason)
{
	struct okv_reader reader = okv_reader_of(bytes, size);
	uint8_t magic[4];

	okv_read_bytes(&reader, magic, sizeof(magic));
	uint32_t version = okv_read_u32(&reader);

	if (size >= 4 && memcmp(magic, "GGUF", 4) != 0)
		return okv_refuse(reason, OKV_ERR_INVALID, "model",
				  "not a GGUF file: it does not begin with \"GGUF\"; name a .gguf file");
	if (!reader.ok)
		return okv_refuse(reason, OKV_ERR_INVALID, "model", TRUNCATED, "the file head", "");
	if (version != 0 && (version & 0xffff) == 0)
		return okv_refuse(reason, OKV_ERR_UNSUPPORTED, "model",
				  "a big-endian GGUF file; convert it to little-endian");
	if (version < VERSION_LEAST || version > VERSION_MOST)
		return okv_refuse(reason, OKV_ERR_UNSUPPORTED, "model",
				  "GGUF version %u is not read, only 2 and 3; convert the model again", version);
	return OKV_OK;
}

static enum okv_status parse_head(struct parser *parser)
{
	enum okv_status status =
		okv__gguf_check_magic(parser->reader.at, okv_reader_left(&parser->reader), parser->reason);

	if (status)
		return status;
	okv_read_view(&parser->reader, 8);
	parser->tensor_count = okv_read_u64(&parser->reader);
	parser->pair_count = okv_read_u64(&parser->reader);
	if (!parser->reader.ok)
		return okv_refuse(parser->reason, OKV_ERR_INVALID, "model", TRUNCATED, "the file head", "");

	size_t left = okv_reader_left(&parser->reader);
	if (parser->pair_count > PAIRS_MAX || parser->pair_count > left / PAIR_BYTES_LEAST)
		return okv_refuse(
			parser->reason, OKV_ERR_INVALID, "model",
			"%llu metadata pairs do not fit into the %zu bytes that follow (at most %d are read)" AGAIN,
			(unsigned long long)parser->pair_count, left, PAIRS_MAX);
	if (parser->tensor_count > TENSORS_MAX || parser->tensor_count > left / TENSOR_BYTES_LEAST)
		return okv_refuse(parser->reason, OKV_ERR_INVALID, "model",
				  "%llu tensors do not fit into the %zu bytes that follow (at most %d are read)" AGAIN,
				  (unsigned long long)parser->tensor_count, left, TENSORS_MAX);
	return OKV_OK;
}

/* A length-prefixed string of at most `max` bytes. `what` and `of` name it in a refusal. */
static enum okv_status parse_string(struct parser *parser, uint64_t max, const char *what, const char *of,
				    struct okv_bytes *ret_bytes)
{
	uint64_t size = okv_read_u64(&parser->reader);

	if (!parser->reader.ok)
		return okv_refuse(parser->reason, OKV_ERR_INVALID, "model", TRUNCATED, what, of);
	if (size > max)
		return okv_refuse(parser->reason, OKV_ERR_INVALID, "model",
				  "%s%s claims %llu bytes, more than the %llu that are read" AGAIN, what, of,
				  (unsigned long long)size, (unsigned long long)max);
	if (size > okv_reader_left(&parser->reader))
		return okv_refuse(parser->reason, OKV_ERR_INVALID, "model", TRUNCATED, what, of);
	*ret_bytes = (struct okv_bytes){okv_read_view(&parser->reader, (size_t)size), (size_t)size};
	return OKV_OK;
}

static enum okv_status parse_array_strings(struct parser *parser, struct okv__gguf_pair *pair, const char *key)
{
	if (pair->count > okv_reader_left(&parser->reader) / 8)
		return okv_refuse(parser->reason, OKV_ERR_INVALID, "model", TRUNCATED, "the array ", key);
	pair->strings = malloc((size_t)(pair->count ? pair->count : 1) * sizeof(*pair->strings));
	if (!pair->strings)
		return okv_refuse(parser->reason, OKV_ERR_NO_MEMORY, "model", "%llu strings of %s cannot be held",
				  (unsigned long long)pair->count, key);
	for (uint64_t i = 0; i < pair->count; i++) {
		enum okv_status status = parse_string(parser, STRING_BYTES_MAX, "a string of ", key, &pair->strings[i]);

		if (status)
			return status;
	}
	return OKV_OK;
}

static enum okv_status check_bools(struct parser *parser, const uint8_t *bytes, uint64_t count, const char *key)
{
	for (uint64_t i = 0; i < count; i++)
		if (bytes[i] > 1)
			return okv_refuse(parser->reason, OKV_ERR_INVALID, "model",
					  "%s holds %u where a bool is 0 or 1" AGAIN, key, bytes[i]);
	return OKV_OK;
}

static enum okv_status parse_array(struct parser *parser, struct okv__gguf_pair *pair, const char *key)
{
	uint32_t element = okv_read_u32(&parser->reader);

	pair->count = okv_read_u64(&parser->reader);
	if (!parser->reader.ok)
		return okv_refuse(parser->reason, OKV_ERR_INVALID, "model", TRUNCATED, "the array ", key);
	if (element == OKV_GGUF_ARRAY)
		return okv_refuse(parser->reason, OKV_ERR_UNSUPPORTED, "model",
				  "%s is an array of arrays, which are not read" AGAIN, key);
	if (element > OKV_GGUF_F64)
		return okv_refuse(parser->reason, OKV_ERR_INVALID, "model",
				  "%s has elements of the unknown type %u" AGAIN, key, element);
	if (pair->count > ARRAY_MAX)
		return okv_refuse(parser->reason, OKV_ERR_INVALID, "model",
				  "%s claims %llu elements, at most %d are read" AGAIN, key,
				  (unsigned long long)pair->count, ARRAY_MAX);
	pair->element = (enum okv_gguf_type)element;
	if (element == OKV_GGUF_STRING)
		return parse_array_strings(parser, pair, key);

	pair->data = okv_read_view(&parser->reader, (size_t)pair->count * value_bytes[element]);
	if (!parser->reader.ok)
		return okv_refuse(parser->reason, OKV_ERR_INVALID, "model", TRUNCATED, "the array ", key);
	return element == OKV_GGUF_BOOL ? check_bools(parser, pair->data, pair->count, key) : OKV_OK;
}

static enum okv_status parse_pair(struct parser *parser, struct okv__gguf_pair *pair)
{
	enum okv_status status = parse_string(parser, KEY_BYTES_MAX, "a metadata key", "", &pair->key);

	if (status)
		return status;
	if (pair->key.size == 0)
		return okv_refuse(parser->reason, OKV_ERR_INVALID, "model", "a metadata key is empty" AGAIN);

	struct okv__shown key = okv__show(pair->key);
	uint32_t type = okv_read_u32(&parser->reader);

	if (!parser->reader.ok)
		return okv_refuse(parser->reason, OKV_ERR_INVALID, "model", TRUNCATED, "the value of ", key.text);
	if (type > OKV_GGUF_F64)
		return okv_refuse(parser->reason, OKV_ERR_INVALID, "model", "%s has the unknown metadata type %u" AGAIN,
				  key.text, type);
	pair->type = (enum okv_gguf_type)type;
	if (type == OKV_GGUF_ARRAY)
		return parse_array(parser, pair, key.text);
	if (type == OKV_GGUF_STRING) {
		struct okv_bytes text = {NULL, 0};

		status = parse_string(parser, STRING_BYTES_MAX, "the value of ", key.text, &text);
		pair->data = text.data;
		pair->count = text.size;
		return status;
	}
	pair->data = okv_read_view(&parser->reader, value_bytes[type]);
	if (!parser->reader.ok)
		return okv_refuse(parser->reason, OKV_ERR_INVALID, "model", TRUNCATED, "the value of ", key.text);
	return type == OKV_GGUF_BOOL ? check_bools(parser, pair->data, 1, key.text) : OKV_OK;
}

static int compare_pairs(const void *a, const void *b)
{
	return okv__bytes_compare(((const struct okv__gguf_pair *)a)->key, ((const struct okv__gguf_pair *)b)->key);
}

static enum okv_status parse_pairs(struct parser *parser)
{
	struct okv_gguf *gguf = parser->gguf;

	gguf->pair = calloc((size_t)parser->pair_count + 1, sizeof(*gguf->pair));
	if (!gguf->pair)
		return okv_refuse(parser->reason, OKV_ERR_NO_MEMORY, "model", "no memory for the metadata table");
	for (uint64_t i = 0; i < parser->pair_count; i++) {
		gguf->pair_count++; /* before parsing, so that a half-read array is freed */
		enum okv_status status = parse_pair(parser, &gguf->pair[i]);

		if (status)
			return status;
	}
	qsort(gguf->pair, gguf->pair_count, sizeof(*gguf->pair), compare_pairs);
	for (size_t i = 1; i < gguf->pair_count; i++)
		if (okv__bytes_compare(gguf->pair[i - 1].key, gguf->pair[i].key) == 0)
			return okv_refuse(parser->reason, OKV_ERR_INVALID, "model",
					  "the metadata key %s stands there twice" AGAIN,
					  okv__show(gguf->pair[i].key).text);
	return OKV_OK;
}

/* The two keys that say how the rest of the file is laid out. */
static enum okv_status read_layout_keys(struct parser *parser)
{
	struct okv_reason wrong;
	uint64_t shards;
	enum okv_status status =
		okv_gguf_uint(parser->gguf, "general.alignment", ALIGNMENT_MOST, &parser->alignment, &wrong);

	if (status == OKV_ERR_ABSENT)
		parser->alignment = ALIGNMENT_DEFAULT;
	else if (status)
		return okv_refuse(parser->reason, status, "model", "%s" AGAIN, wrong.text);
	if (parser->alignment < ALIGNMENT_LEAST || (parser->alignment & (parser->alignment - 1)) != 0)
		return okv_refuse(parser->reason, OKV_ERR_INVALID, "model",
				  "general.alignment is %llu, not a power of two of %d to %d" AGAIN,
				  (unsigned long long)parser->alignment, ALIGNMENT_LEAST, ALIGNMENT_MOST);

	status = okv_gguf_uint(parser->gguf, "split.count", UINT16_MAX, &shards, &wrong);
	if (status == OKV_ERR_ABSENT)
		return OKV_OK;
	if (status || shards > 1)
		return okv_refuse(parser->reason, OKV_ERR_UNSUPPORTED, "model",
				  "one shard of a model split over several files; merge them with llama-gguf-split");
	return OKV_OK;
}

/* Bytes of the tensor by its type and extents. */
static enum okv_status measure_tensor(struct parser *parser, struct okv_gguf_tensor *tensor, uint32_t type)
{
	struct okv__shown name = okv__show(tensor->name);
	size_t kinds = sizeof(tensor_kinds) / sizeof(tensor_kinds[0]);
	uint64_t values = 1;

	if (type >= kinds || !tensor_kinds[type].name)
		return okv_refuse(parser->reason, OKV_ERR_INVALID, "model",
				  "tensor %s has type %u, which is unknown or was removed from the format" AGAIN,
				  name.text, type);
	const struct tensor_kind *kind = &tensor_kinds[type];
	if (kind->values == 0)
		return okv_refuse(parser->reason, OKV_ERR_UNSUPPORTED, "model",
				  "tensor %s has type %s; F32, F16, Q4_0, Q4_1 and Q8_0 are read, requantise the model",
				  name.text, kind->name);
	tensor->type = (enum okv_tensor_type)type;
	for (uint32_t i = 0; i < tensor->dimensions; i++)
		if (tensor->extent[i] < 1 || __builtin_mul_overflow(values, tensor->extent[i], &values))
			return okv_refuse(parser->reason, OKV_ERR_INVALID, "model",
					  "tensor %s has an extent of 0 or more elements than can be counted" AGAIN,
					  name.text);
	if (tensor->extent[0] % kind->values != 0)
		return okv_refuse(parser->reason, OKV_ERR_INVALID, "model",
				  "tensor %s has rows of %llu elements, not whole %s blocks of %u" AGAIN, name.text,
				  (unsigned long long)tensor->extent[0], kind->name, kind->values);
	if (__builtin_mul_overflow(values / kind->values, kind->bytes, &tensor->size))
		return okv_refuse(parser->reason, OKV_ERR_INVALID, "model",
				  "tensor %s has more bytes than can be counted" AGAIN, name.text);
	return OKV_OK;
}

/* One row of the tensor table. The offset goes to *ret_offset until the data section's start is known. */
static enum okv_status parse_tensor(struct parser *parser, struct okv_gguf_tensor *tensor, uint64_t *ret_offset)
{
	enum okv_status status = parse_string(parser, TENSOR_NAME_MAX, "a tensor name", "", &tensor->name);

	if (status)
		return status;
	if (tensor->name.size == 0)
		return okv_refuse(parser->reason, OKV_ERR_INVALID, "model", "a tensor has no name" AGAIN);

	struct okv__shown name = okv__show(tensor->name);
	tensor->dimensions = okv_read_u32(&parser->reader);
	if (parser->reader.ok && (tensor->dimensions < 1 || tensor->dimensions > 4))
		return okv_refuse(parser->reason, OKV_ERR_INVALID, "model",
				  "tensor %s has %u dimensions, not 1 to 4" AGAIN, name.text, tensor->dimensions);
	for (uint32_t i = 0; i < 4; i++)
		tensor->extent[i] = i < tensor->dimensions ? okv_read_u64(&parser->reader) : 1;
	uint32_t type = okv_read_u32(&parser->reader);
	*ret_offset = okv_read_u64(&parser->reader);
	if (!parser->reader.ok)
		return okv_refuse(parser->reason, OKV_ERR_INVALID, "model", TRUNCATED, "the table row of tensor ",
				  name.text);
	return measure_tensor(parser, tensor, type);
}

static enum okv_status parse_tensors(struct parser *parser, uint64_t *offsets)
{
	for (size_t i = 0; i < parser->gguf->tensor_count; i++) {
		enum okv_status status = parse_tensor(parser, &parser->gguf->tensor[i], &offsets[i]);

		if (status)
			return status;
	}
	return OKV_OK;
}

/* Points every tensor at its bytes in the data section, which begins at the next multiple of the alignment. */
static enum okv_status place_tensors(struct parser *parser, const uint64_t *offsets)
{
	struct okv_gguf *gguf = parser->gguf;
	uint64_t head = (uint64_t)(parser->reader.at - gguf->bytes);
	uint64_t start = (head + parser->alignment - 1) & ~(parser->alignment - 1);
	uint64_t room = start < gguf->size ? gguf->size - start : 0;

	for (size_t i = 0; i < gguf->tensor_count; i++) {
		struct okv_gguf_tensor *tensor = &gguf->tensor[i];
		struct okv__shown name = okv__show(tensor->name);

		if (offsets[i] % parser->alignment != 0)
			return okv_refuse(parser->reason, OKV_ERR_INVALID, "model",
					  "tensor %s lies at offset %llu, not a multiple of %llu" AGAIN, name.text,
					  (unsigned long long)offsets[i], (unsigned long long)parser->alignment);
		if (offsets[i] > room || tensor->size > room - offsets[i])
			return okv_refuse(
				parser->reason, OKV_ERR_INVALID, "model",
				"tensor %s claims %llu bytes at offset %llu of %llu; the file is truncated or lies, "
				"fetch it again",
				name.text, (unsigned long long)tensor->size, (unsigned long long)offsets[i],
				(unsigned long long)room);
		tensor->data = gguf->bytes + start + offsets[i];
	}
	return OKV_OK;
}

static int compare_places(const void *a, const void *b)
{
	const uint8_t *left = ((const struct okv_gguf_tensor *)a)->data;
	const uint8_t *right = ((const struct okv_gguf_tensor *)b)->data;

	return (left > right) - (left < right);
}

static int compare_names(const void *a, const void *b)
{
	return okv__bytes_compare(((const struct okv_gguf_tensor *)a)->name, ((const struct okv_gguf_tensor *)b)->name);
}

static enum okv_status check_overlaps_and_names(struct parser *parser)
{
	struct okv_gguf_tensor *tensor = parser->gguf->tensor;
	size_t count = parser->gguf->tensor_count;

	qsort(tensor, count, sizeof(*tensor), compare_places);
	for (size_t i = 1; i < count; i++)
		if (tensor[i - 1].size > (uint64_t)(tensor[i].data - tensor[i - 1].data))
			return okv_refuse(parser->reason, OKV_ERR_INVALID, "model", "tensors %s and %s overlap" AGAIN,
					  okv__show(tensor[i - 1].name).text, okv__show(tensor[i].name).text);
	qsort(tensor, count, sizeof(*tensor), compare_names);
	for (size_t i = 1; i < count; i++)
		if (okv__bytes_compare(tensor[i - 1].name, tensor[i].name) == 0)
			return okv_refuse(parser->reason, OKV_ERR_INVALID, "model",
					  "the tensor %s stands there twice" AGAIN, okv__show(tensor[i].name).text);
	return OKV_OK;
}

/* 1 for a NaN or an infinity, else 0. */
static unsigned f16_is_wild(const uint8_t *bytes)
{
	return (bytes[1] & 0x7c) == 0x7c;
}

static unsigned f32_is_wild(const uint8_t *bytes)
{
	return (bytes[3] & 0x7f) == 0x7f && (bytes[2] & 0x80) != 0;
}

/* Counts the blocks with a number that no weight may be scaled by; one pass, without an early end, so that it unrolls.
 */
static uint64_t count_wild(const struct okv_gguf_tensor *tensor)
{
	uint64_t step = tensor_kinds[tensor->type].bytes, wild = 0;

	switch (tensor->type) {
	case OKV_TENSOR_F32:
		for (uint64_t at = 0; at < tensor->size; at += step)
			wild += f32_is_wild(tensor->data + at);
		break;
	case OKV_TENSOR_Q4_1:
		for (uint64_t at = 0; at < tensor->size; at += step)
			wild += f16_is_wild(tensor->data + at) | f16_is_wild(tensor->data + at + 2);
		break;
	case OKV_TENSOR_F16:
	case OKV_TENSOR_Q4_0:
	case OKV_TENSOR_Q8_0:
		for (uint64_t at = 0; at < tensor->size; at += step)
			wild += f16_is_wild(tensor->data + at);
		break;
	}
	return wild;
}

static enum okv_status check_values(struct parser *parser)
{
	for (size_t i = 0; i < parser->gguf->tensor_count; i++)
		if (count_wild(&parser->gguf->tensor[i]) > 0)
			return okv_refuse(parser->reason, OKV_ERR_INVALID, "model",
					  "tensor %s holds a NaN or an infinity; the model is damaged, fetch it again",
					  okv__show(parser->gguf->tensor[i].name).text);
	return OKV_OK;
}

enum okv_status okv__gguf_parse(struct okv_gguf *gguf, struct okv_reason *reason)
{
	struct parser parser = {.gguf = gguf, .reader = okv_reader_of(gguf->bytes, gguf->size), .reason = reason};
	uint64_t *offsets = NULL;
	enum okv_status status = parse_head(&parser);

	if (!status)
		status = parse_pairs(&parser);
	if (!status)
		status = read_layout_keys(&parser);
	if (status)
		return status;

	gguf->tensor = calloc((size_t)parser.tensor_count + 1, sizeof(*gguf->tensor));
	offsets = calloc((size_t)parser.tensor_count + 1, sizeof(*offsets));
	if (!gguf->tensor || !offsets) {
		free(offsets);
		return okv_refuse(reason, OKV_ERR_NO_MEMORY, "model", "no memory for the tensor table");
	}
	gguf->tensor_count = (size_t)parser.tensor_count;
	status = parse_tensors(&parser, offsets);
	if (!status)
		status = place_tensors(&parser, offsets);
	free(offsets);
	if (!status)
		status = check_overlaps_and_names(&parser);
	return status ? status : check_values(&parser);
}
