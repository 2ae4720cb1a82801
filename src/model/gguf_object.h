/* The parts of an okv_gguf, shared by the file that fills it (gguf_parse.c) and the one that reads it (gguf.c). */
#ifndef OKV_MODEL_GGUF_OBJECT_H
#define OKV_MODEL_GGUF_OBJECT_H

#include "okv/model/gguf.h"

/* One metadata pair. Every pointer but `strings` is borrowed from the file's bytes. */
struct okv__gguf_pair {
	struct okv_bytes key;
	enum okv_gguf_type type;
	enum okv_gguf_type element; /* of an array */
	uint64_t count;		    /* elements of an array, bytes of a string */
	const uint8_t *data;	    /* the value's bytes; NULL for an array of strings */
	struct okv_bytes *strings;  /* owned: the elements of an array of strings */
};

struct okv_gguf {
	char *path;	/* owned; NULL if the file came from memory */
	uint8_t *bytes; /* owned copy of the file, 64-byte aligned */
	size_t size;
	struct okv__gguf_pair *pair; /* owned, in key order */
	size_t pair_count;
	struct okv_gguf_tensor *tensor; /* owned, in name order */
	size_t tensor_count;
};

/* A name out of a file made fit for a message: cut to 63 bytes, anything unprintable shown as '?'. */
struct okv__shown {
	char text[64];
};
struct okv__shown okv__show(struct okv_bytes bytes);

/* Makes a refusal of what the file means, by a reader of its keys and tensors, name the file and say what to do. */
enum okv_status okv__gguf_blame(const struct okv_gguf *gguf, enum okv_status status, struct okv_reason *reason);

/* Bytewise order, as memcmp() over the shorter one and then by size. */
int okv__bytes_compare(struct okv_bytes a, struct okv_bytes b);

/* Checks `gguf->bytes` by every rule of docs/formats/gguf.md and fills the rest of the zeroed object. */
OKV_MUST_CHECK enum okv_status okv__gguf_parse(struct okv_gguf *gguf, struct okv_reason *reason);

/* Magic and version alone, so that a file of another kind is refused before it is read. `size` may be short. */
OKV_MUST_CHECK enum okv_status okv__gguf_check_magic(const uint8_t *bytes, size_t size, struct okv_reason *reason);

#endif
