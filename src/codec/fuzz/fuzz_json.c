/* Any bytes are parsed or refused; and any bytes written as text parse again. */
#include <stdint.h>
#include <stdlib.h>

#include "okv/codec/json.h"

static void visit(const struct okv_json_at *at)
{
	const char *text;
	size_t size;
	int64_t whole;
	struct okv_reason reason;

	if (okv_json_text(at, &text, &size, &reason) == OKV_OK && text[size] != '\0')
		abort();
	if (okv_json_i64(at, 0, 10, &whole, &reason) == OKV_OK && (whole < 0 || whole > 10))
		abort();
	if (okv_json_kind(at) != OKV_JSON_ARRAY)
		return;
	for (size_t i = 0; i < okv_json_size(at); i++) {
		struct okv_json_at item = okv_json_item(at, i), inner;

		visit(&item);
		if (okv_json_find(&item, "a", &inner))
			visit(&inner);
	}
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
	struct okv_json *json;
	struct okv_reason reason;
	struct okv_buf text = {0};
	struct okv_json_writer writer = {.buf = &text};

	if (okv_json_parse(data, size, 1 << 20, &json, &reason) == OKV_OK) {
		struct okv_json_at root = okv_json_root(json);

		visit(&root);
		okv_json_destroy(json);
	}
	okv_json_write_bytes(&writer, (const char *)data, size);
	if (okv_json_parse(text.data, text.size, SIZE_MAX, &json, &reason) != OKV_OK)
		abort();
	okv_json_destroy(json);
	okv_buf_done(&text);
	return 0;
}
