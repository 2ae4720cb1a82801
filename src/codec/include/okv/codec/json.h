/*
 * JSON: reading text from outside under limits, with accessors whose refusals name the place; and writing.
 *
 * okv_json_parse() takes one JSON text of at most `size_max` bytes, nested at most OKV_JSON_DEPTH_MAX deep, in valid
 * UTF-8. An object that names a key twice is refused: two readers could take different values for it. Integers are
 * 64-bit and exact; a number that fits neither an int64_t nor a finite double is refused.
 *
 * A struct okv_json_at is a place in a document: a value type that points at its parent place, so that a refusal can
 * say "messages[2].content must be text, but is a number". It lives on the caller's stack and must not outlive its
 * parent or the document. Keys passed in are string literals: a refusal's `field` is the innermost key on the path (""
 * at the root).
 *
 * The writer appends to an okv_buf and never fails by itself (the buf remembers lack of memory). What it writes is
 * always valid JSON in valid UTF-8: bytes that are not UTF-8 are written as U+FFFD. Neither half keeps state between
 * calls; any thread may use its own document or writer.
 */
#ifndef OKV_CODEC_JSON_H
#define OKV_CODEC_JSON_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "okv/base/buf.h"
#include "okv/base/status.h"

enum { OKV_JSON_DEPTH_MAX = 64 };

enum okv_json_kind {
	OKV_JSON_NULL,
	OKV_JSON_BOOL,
	OKV_JSON_INTEGER,
	OKV_JSON_REAL,
	OKV_JSON_TEXT,
	OKV_JSON_ARRAY,
	OKV_JSON_OBJECT,
};

struct okv_json; /* a parsed document */

struct okv_json_at {
	const void *node; /* borrowed from the document */
	const struct okv_json_at *parent;
	const char *key; /* static; NULL for the root and for array items */
	size_t index;
};

/* On OKV_OK the caller owns *ret_json. OKV_ERR_BUDGET: longer than size_max; OKV_ERR_INVALID: anything else. */
OKV_MUST_CHECK enum okv_status okv_json_parse(const void *text, size_t size, size_t size_max,
					      struct okv_json **ret_json, struct okv_reason *reason);
void okv_json_destroy(struct okv_json *json);

struct okv_json_at okv_json_root(const struct okv_json *json);
enum okv_json_kind okv_json_kind(const struct okv_json_at *at);
/* Items of an array or keys of an object; 0 for anything else. */
size_t okv_json_size(const struct okv_json_at *at);

/* False, and nothing written, when `object` has no such key, or null there, or is no object. */
bool okv_json_find(const struct okv_json_at *object, const char *key, struct okv_json_at *ret_at);
/* Like find, but absence is a refusal. */
OKV_MUST_CHECK enum okv_status okv_json_require(const struct okv_json_at *object, const char *key,
						struct okv_json_at *ret_at, struct okv_reason *reason);
/* `index` < okv_json_size(array). */
struct okv_json_at okv_json_item(const struct okv_json_at *array, size_t index);

/* Typed reads; another kind or a value outside [min, max] is refused with OKV_ERR_INVALID. Text is UTF-8, borrowed from
 * the document, followed by a NUL that does not count, and may hold NULs. */
OKV_MUST_CHECK enum okv_status okv_json_text(const struct okv_json_at *at, const char **ret_text, size_t *ret_size,
					     struct okv_reason *reason);
OKV_MUST_CHECK enum okv_status okv_json_i64(const struct okv_json_at *at, int64_t min, int64_t max, int64_t *ret_value,
					    struct okv_reason *reason);
OKV_MUST_CHECK enum okv_status okv_json_f64(const struct okv_json_at *at, double min, double max, double *ret_value,
					    struct okv_reason *reason);
OKV_MUST_CHECK enum okv_status okv_json_bool(const struct okv_json_at *at, bool *ret_value, struct okv_reason *reason);
/* Refuses unless `at` is of `kind` (an array or object, usually). */
OKV_MUST_CHECK enum okv_status okv_json_expect(const struct okv_json_at *at, enum okv_json_kind kind,
					       struct okv_reason *reason);

/* Appends the path, such as "messages[2].content"; nothing for the root. */
void okv_json_path(const struct okv_json_at *at, struct okv_buf *path);

/* Zero-initialise with the buf set: {.buf = &buf}. begin/end must pair, and nest at most OKV_JSON_DEPTH_MAX deep. */
struct okv_json_writer {
	struct okv_buf *buf; /* borrowed */
	uint64_t has_item;   /* bit d: the container at depth d has an item already */
	unsigned depth;
	bool after_key;
};

void okv_json_begin_object(struct okv_json_writer *writer);
void okv_json_end_object(struct okv_json_writer *writer);
void okv_json_begin_array(struct okv_json_writer *writer);
void okv_json_end_array(struct okv_json_writer *writer);
void okv_json_key(struct okv_json_writer *writer, const char *key);
void okv_json_write_bytes(struct okv_json_writer *writer, const char *text, size_t size);
void okv_json_write_text(struct okv_json_writer *writer, const char *text);
void okv_json_write_u64(struct okv_json_writer *writer, uint64_t value);
void okv_json_write_i64(struct okv_json_writer *writer, int64_t value);
/* The shortest decimal that reads back as the same double; null for a value that is not finite. */
void okv_json_write_f64(struct okv_json_writer *writer, double value);
void okv_json_write_bool(struct okv_json_writer *writer, bool value);
void okv_json_write_null(struct okv_json_writer *writer);

#endif
