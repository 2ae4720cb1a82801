#include "okv/codec/json.h"

#include <jansson.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

struct okv_json {
	json_t *root; /* owned */
};

static const char *const kind_names[] = {"null", "true or false", "a number", "a number",
					 "text", "a list",	  "an object"};

/*
 * The parser's own limit is 2,048 levels; ours is checked before it sees the text. Only brackets outside of strings
 * count, and text that is no JSON at all may be counted wrongly, which the parser then refuses.
 */
static bool is_deeper_than_allowed(const char *text, size_t size)
{
	unsigned depth = 0;
	bool in_string = false;

	for (size_t i = 0; i < size; i++) {
		char byte = text[i];

		if (in_string) {
			if (byte == '\\')
				i++;
			else if (byte == '"')
				in_string = false;
		} else if (byte == '"') {
			in_string = true;
		} else if (byte == '[' || byte == '{') {
			if (++depth > OKV_JSON_DEPTH_MAX)
				return true;
		} else if ((byte == ']' || byte == '}') && depth > 0) {
			depth--;
		}
	}
	return false;
}

/* jansson quotes the input after "near"; what a client sent does not belong into one of our sentences. */
static enum okv_status parser_refusal(const json_error_t *error, struct okv_reason *reason)
{
	const char *near = strstr(error->text, " near ");
	int size = near ? (int)(near - error->text) : (int)strlen(error->text);

	return okv_refuse(reason, OKV_ERR_INVALID, "", "not valid JSON at line %d, column %d: %.*s", error->line,
			  error->column, size, error->text);
}

enum okv_status okv_json_parse(const void *text, size_t size, size_t size_max, struct okv_json **ret_json,
			       struct okv_reason *reason)
{
	json_error_t error;

	if (size > size_max)
		return okv_refuse(reason, OKV_ERR_BUDGET, "", "%zu bytes of JSON are more than the %zu allowed", size,
				  size_max);
	if (is_deeper_than_allowed(text, size))
		return okv_refuse(reason, OKV_ERR_INVALID, "", "JSON is nested more than %d levels deep",
				  OKV_JSON_DEPTH_MAX);

	struct okv_json *json = calloc(1, sizeof(*json));
	if (!json)
		return okv_refuse(reason, OKV_ERR_NO_MEMORY, "", "no memory for a JSON document");

	json->root = json_loadb(text, size, JSON_REJECT_DUPLICATES | JSON_DECODE_ANY | JSON_ALLOW_NUL, &error);
	if (!json->root) {
		free(json);
		return parser_refusal(&error, reason);
	}
	*ret_json = json;
	return OKV_OK;
}

void okv_json_destroy(struct okv_json *json)
{
	if (!json)
		return;
	json_decref(json->root);
	free(json);
}

struct okv_json_at okv_json_root(const struct okv_json *json)
{
	return (struct okv_json_at){.node = json->root};
}

enum okv_json_kind okv_json_kind(const struct okv_json_at *at)
{
	const json_t *node = at->node;

	switch (json_typeof(node)) {
	case JSON_OBJECT:
		return OKV_JSON_OBJECT;
	case JSON_ARRAY:
		return OKV_JSON_ARRAY;
	case JSON_STRING:
		return OKV_JSON_TEXT;
	case JSON_INTEGER:
		return OKV_JSON_INTEGER;
	case JSON_REAL:
		return OKV_JSON_REAL;
	case JSON_TRUE:
	case JSON_FALSE:
		return OKV_JSON_BOOL;
	case JSON_NULL:
		break;
	}
	return OKV_JSON_NULL;
}

size_t okv_json_size(const struct okv_json_at *at)
{
	const json_t *node = at->node;

	return json_is_array(node) ? json_array_size(node) : json_object_size(node);
}

bool okv_json_find(const struct okv_json_at *object, const char *key, struct okv_json_at *ret_at)
{
	const json_t *node = json_object_get(object->node, key);

	if (!node || json_is_null(node))
		return false;
	*ret_at = (struct okv_json_at){.node = node, .parent = object, .key = key};
	return true;
}

struct okv_json_at okv_json_item(const struct okv_json_at *array, size_t index)
{
	const json_t *node = json_array_get(array->node, index);

	OKV_ASSERT(node);
	return (struct okv_json_at){.node = node, .parent = array, .index = index};
}

/* ---- paths and refusals ---- */

void okv_json_path(const struct okv_json_at *at, struct okv_buf *path)
{
	if (!at->parent)
		return;
	okv_json_path(at->parent, path);
	if (at->key)
		okv_buf_print(path, path->size ? ".%s" : "%s", at->key);
	else
		okv_buf_print(path, "[%zu]", at->index);
}

static const char *innermost_key(const struct okv_json_at *at)
{
	while (at && !at->key)
		at = at->parent;
	return at ? at->key : "";
}

static enum okv_status refuse_at(const struct okv_json_at *at, struct okv_reason *reason, const char *what)
{
	struct okv_buf path = {0};

	okv_json_path(at, &path);
	okv_refuse(reason, OKV_ERR_INVALID, innermost_key(at), "%s %s", path.size ? path.data : "the request", what);
	okv_buf_done(&path);
	return OKV_ERR_INVALID;
}

static enum okv_status refuse_kind(const struct okv_json_at *at, const char *wanted, struct okv_reason *reason)
{
	struct okv_buf what = {0};

	okv_buf_print(&what, "must be %s, but is %s", wanted, kind_names[okv_json_kind(at)]);
	refuse_at(at, reason, what.data ? what.data : "is of the wrong kind");
	okv_buf_done(&what);
	return OKV_ERR_INVALID;
}

static enum okv_status refuse_range(const struct okv_json_at *at, double min, double max, struct okv_reason *reason)
{
	struct okv_buf what = {0};

	okv_buf_print(&what, "must be from %.15g to %.15g", min, max);
	refuse_at(at, reason, what.data ? what.data : "is out of range");
	okv_buf_done(&what);
	return OKV_ERR_INVALID;
}

/* ---- typed reads ---- */

enum okv_status okv_json_require(const struct okv_json_at *object, const char *key, struct okv_json_at *ret_at,
				 struct okv_reason *reason)
{
	enum okv_status status = okv_json_expect(object, OKV_JSON_OBJECT, reason);

	if (status != OKV_OK)
		return status;
	if (okv_json_find(object, key, ret_at))
		return OKV_OK;
	return refuse_at(&(struct okv_json_at){.parent = object, .key = key}, reason, "is required");
}

enum okv_status okv_json_expect(const struct okv_json_at *at, enum okv_json_kind kind, struct okv_reason *reason)
{
	return okv_json_kind(at) == kind ? OKV_OK : refuse_kind(at, kind_names[kind], reason);
}

enum okv_status okv_json_text(const struct okv_json_at *at, const char **ret_text, size_t *ret_size,
			      struct okv_reason *reason)
{
	const json_t *node = at->node;

	if (!json_is_string(node))
		return refuse_kind(at, kind_names[OKV_JSON_TEXT], reason);
	*ret_text = json_string_value(node);
	*ret_size = json_string_length(node);
	return OKV_OK;
}

enum okv_status okv_json_i64(const struct okv_json_at *at, int64_t min, int64_t max, int64_t *ret_value,
			     struct okv_reason *reason)
{
	const json_t *node = at->node;
	int64_t value;

	if (json_is_integer(node)) {
		value = json_integer_value(node);
	} else {
		/* Some writers send 5 as 5.0; exact below 2^53. */
		double real = json_real_value(node); /* 0 for any other kind */

		value = fabs(real) <= 9007199254740992.0 ? (int64_t)real : 0;
		if (!json_is_real(node) || (double)value != real)
			return refuse_kind(at, "a whole number", reason);
	}
	if (value < min || value > max)
		return refuse_range(at, (double)min, (double)max, reason);
	*ret_value = value;
	return OKV_OK;
}

enum okv_status okv_json_f64(const struct okv_json_at *at, double min, double max, double *ret_value,
			     struct okv_reason *reason)
{
	const json_t *node = at->node;

	if (!json_is_number(node))
		return refuse_kind(at, kind_names[OKV_JSON_REAL], reason);

	double value = json_number_value(node);
	if (!(value >= min && value <= max))
		return refuse_range(at, min, max, reason);
	*ret_value = value;
	return OKV_OK;
}

enum okv_status okv_json_bool(const struct okv_json_at *at, bool *ret_value, struct okv_reason *reason)
{
	const json_t *node = at->node;

	if (!json_is_boolean(node))
		return refuse_kind(at, kind_names[OKV_JSON_BOOL], reason);
	*ret_value = json_is_true(node);
	return OKV_OK;
}
