/*
 * GGUF: the model file, read into memory of our own and checked before anything is believed.
 *
 * okv_gguf_open() reads the whole file into a private copy (a mapped file could be truncated under us), checks every
 * rule of the loader (docs/formats/gguf.md) and gives an object that any thread may read. Keys, strings and tensor
 * bytes point into that copy and live as long as it does, but for tensors that their one reader gives back early, so
 * that a model is not in memory twice while it loads. Strings are bytes: they are not NUL-terminated and need not be
 * valid UTF-8.
 *
 * Versions 2 and 3; all metadata types (nested arrays are refused); tensor types F32, F16, Q4_0, Q4_1, Q8_0. Anything
 * else is refused by name. Source: the GGUF specification of the ggml project.
 */
#ifndef OKV_MODEL_GGUF_H
#define OKV_MODEL_GGUF_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "okv/base/status.h"

/* The file's own numbers. */
enum okv_tensor_type {
	OKV_TENSOR_F32 = 0,
	OKV_TENSOR_F16 = 1,
	OKV_TENSOR_Q4_0 = 2, /* 32 values in 18 bytes: f16 d, 16 nibble bytes; value d * (q - 8) */
	OKV_TENSOR_Q4_1 = 3, /* 32 values in 20 bytes: f16 d, f16 m, 16 nibble bytes; value d * q + m */
	OKV_TENSOR_Q8_0 = 8, /* 32 values in 34 bytes: f16 d, 32 int8; value d * q */
};

enum okv_gguf_type {
	OKV_GGUF_U8,
	OKV_GGUF_I8,
	OKV_GGUF_U16,
	OKV_GGUF_I16,
	OKV_GGUF_U32,
	OKV_GGUF_I32,
	OKV_GGUF_F32,
	OKV_GGUF_BOOL,
	OKV_GGUF_STRING,
	OKV_GGUF_ARRAY,
	OKV_GGUF_U64,
	OKV_GGUF_I64,
	OKV_GGUF_F64,
};

struct okv_bytes {
	const uint8_t *data; /* borrowed from the okv_gguf */
	size_t size;
};

struct okv_gguf_tensor {
	struct okv_bytes name;
	enum okv_tensor_type type;
	uint32_t dimensions; /* 1..4 */
	uint64_t extent[4];  /* extent[0] is the row length; unused ones are 1 */
	const uint8_t *data; /* borrowed; rows one after another */
	uint64_t size;	     /* bytes */
};

struct okv_gguf;

/* Reads and checks the file at `path`. OKV_ERR_UNSUPPORTED names what we do not read; OKV_ERR_INVALID what is wrong. */
OKV_MUST_CHECK enum okv_status okv_gguf_open(const char *path, struct okv_gguf **ret_gguf, struct okv_reason *reason);

/* The same over bytes in memory, which are copied. */
OKV_MUST_CHECK enum okv_status okv_gguf_parse(const void *bytes, size_t size, struct okv_gguf **ret_gguf,
					      struct okv_reason *reason);

void okv_gguf_close(struct okv_gguf *gguf);

/*
 * Scalars by key. OKV_ERR_ABSENT if there is no such key, OKV_ERR_INVALID if its type or value does not fit (any
 * integer type is accepted for okv_gguf_uint when the value is >= 0 and <= max; F32 and F64 for okv_gguf_float, finite
 * only).
 */
OKV_MUST_CHECK enum okv_status okv_gguf_uint(const struct okv_gguf *gguf, const char *key, uint64_t max,
					     uint64_t *ret_value, struct okv_reason *reason);
OKV_MUST_CHECK enum okv_status okv_gguf_float(const struct okv_gguf *gguf, const char *key, double *ret_value,
					      struct okv_reason *reason);
OKV_MUST_CHECK enum okv_status okv_gguf_bool(const struct okv_gguf *gguf, const char *key, bool *ret_value,
					     struct okv_reason *reason);
OKV_MUST_CHECK enum okv_status okv_gguf_string(const struct okv_gguf *gguf, const char *key,
					       struct okv_bytes *ret_value, struct okv_reason *reason);

/* Arrays by key, with their element type checked. */
struct okv_gguf_array {
	enum okv_gguf_type type;
	uint64_t count;
	const uint8_t *data;		 /* borrowed: fixed-size elements, little-endian, unaligned; NULL for strings */
	const struct okv_bytes *strings; /* borrowed: for OKV_GGUF_STRING */
};
OKV_MUST_CHECK enum okv_status okv_gguf_array(const struct okv_gguf *gguf, const char *key, enum okv_gguf_type type,
					      struct okv_gguf_array *ret_array, struct okv_reason *reason);

/* Tensors stand in name order (bytewise). `data` is aligned to 8 bytes at least. */
size_t okv_gguf_tensor_count(const struct okv_gguf *gguf);
const struct okv_gguf_tensor *okv_gguf_tensor_at(const struct okv_gguf *gguf, size_t index);
/* NULL if there is none of that name. */
const struct okv_gguf_tensor *okv_gguf_tensor_find(const struct okv_gguf *gguf, const char *name);

/*
 * Gives the memory of a tensor's first `size` bytes back to the system, as far as whole pages go, for a loader that has
 * them elsewhere. Nobody may read them again: once all are given, `tensor->data` is NULL.
 */
void okv_gguf_tensor_release(struct okv_gguf *gguf, const struct okv_gguf_tensor *tensor, uint64_t size);

#endif
