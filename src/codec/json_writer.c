#include "okv/codec/json.h"

#include <inttypes.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* Before any value or key: the comma, unless it is the first of its container or follows its key. */
static void before_item(struct okv_json_writer *writer)
{
	uint64_t bit = 1ULL << (writer->depth % 64);

	if (writer->after_key) {
		writer->after_key = false;
		return;
	}
	if (writer->depth > 0 && (writer->has_item & bit))
		okv_buf_append(writer->buf, ",", 1);
	writer->has_item |= bit;
}

static void begin(struct okv_json_writer *writer, const char *bracket)
{
	before_item(writer);
	OKV_ASSERT(writer->depth + 1 < OKV_JSON_DEPTH_MAX);
	writer->depth++;
	writer->has_item &= ~(1ULL << writer->depth);
	okv_buf_append(writer->buf, bracket, 1);
}

static void end(struct okv_json_writer *writer, const char *bracket)
{
	OKV_ASSERT(writer->depth > 0 && !writer->after_key);
	writer->depth--;
	okv_buf_append(writer->buf, bracket, 1);
}

void okv_json_begin_object(struct okv_json_writer *writer)
{
	begin(writer, "{");
}

void okv_json_end_object(struct okv_json_writer *writer)
{
	end(writer, "}");
}

void okv_json_begin_array(struct okv_json_writer *writer)
{
	begin(writer, "[");
}

void okv_json_end_array(struct okv_json_writer *writer)
{
	end(writer, "]");
}

/*
 * The size of the UTF-8 character at `bytes`, 0 if there is none (Unicode 15, table 3-7: no overlong forms, no
 * surrogates, nothing above U+10FFFF).
 */
static size_t utf8_size(const uint8_t *bytes, size_t size)
{
	uint8_t lead = bytes[0], low = 0x80, high = 0xbf;
	size_t count;

	if (lead < 0x80)
		return 1;
	if (lead >= 0xc2 && lead <= 0xdf)
		count = 2;
	else if (lead >= 0xe0 && lead <= 0xef)
		count = 3;
	else if (lead >= 0xf0 && lead <= 0xf4)
		count = 4;
	else
		return 0;
	if (lead == 0xe0)
		low = 0xa0;
	else if (lead == 0xed)
		high = 0x9f;
	else if (lead == 0xf0)
		low = 0x90;
	else if (lead == 0xf4)
		high = 0x8f;
	if (size < count || bytes[1] < low || bytes[1] > high)
		return 0;
	for (size_t i = 2; i < count; i++)
		if (bytes[i] < 0x80 || bytes[i] > 0xbf)
			return 0;
	return count;
}

static void write_escape(struct okv_buf *buf, uint8_t byte)
{
	switch (byte) {
	case '"':
		okv_buf_append(buf, "\\\"", 2);
		break;
	case '\\':
		okv_buf_append(buf, "\\\\", 2);
		break;
	case '\n':
		okv_buf_append(buf, "\\n", 2);
		break;
	case '\r':
		okv_buf_append(buf, "\\r", 2);
		break;
	case '\t':
		okv_buf_append(buf, "\\t", 2);
		break;
	default:
		okv_buf_print(buf, "\\u%04x", byte);
	}
}

static void write_quoted(struct okv_buf *buf, const char *text, size_t size)
{
	const uint8_t *bytes = (const uint8_t *)text;
	size_t plain = 0, at = 0; /* [plain, at) goes out as it is */

	okv_buf_append(buf, "\"", 1);
	while (at < size) {
		size_t count = utf8_size(bytes + at, size - at);
		bool is_escaped = bytes[at] < 0x20 || bytes[at] == '"' || bytes[at] == '\\' || bytes[at] == 0x7f;

		if (count > 0 && !is_escaped) {
			at += count;
			continue;
		}
		okv_buf_append(buf, text + plain, at - plain);
		if (is_escaped)
			write_escape(buf, bytes[at]);
		else
			okv_buf_append(buf, "\xef\xbf\xbd", 3);
		plain = ++at;
	}
	okv_buf_append(buf, text + plain, size - plain);
	okv_buf_append(buf, "\"", 1);
}

void okv_json_key(struct okv_json_writer *writer, const char *key)
{
	OKV_ASSERT(!writer->after_key);
	before_item(writer);
	write_quoted(writer->buf, key, strlen(key));
	okv_buf_append(writer->buf, ":", 1);
	writer->after_key = true;
}

void okv_json_write_bytes(struct okv_json_writer *writer, const char *text, size_t size)
{
	before_item(writer);
	write_quoted(writer->buf, text, size);
}

void okv_json_write_text(struct okv_json_writer *writer, const char *text)
{
	okv_json_write_bytes(writer, text, strlen(text));
}

void okv_json_write_u64(struct okv_json_writer *writer, uint64_t value)
{
	before_item(writer);
	okv_buf_print(writer->buf, "%" PRIu64, value);
}

void okv_json_write_i64(struct okv_json_writer *writer, int64_t value)
{
	before_item(writer);
	okv_buf_print(writer->buf, "%" PRId64, value);
}

void okv_json_write_f64(struct okv_json_writer *writer, double value)
{
	char text[40];

	if (!isfinite(value)) {
		okv_json_write_null(writer);
		return;
	}
	/* 17 significant digits always read back as the same double; often fewer do. */
	for (int digits = 1; digits <= 17; digits++) {
		snprintf(text, sizeof(text), "%.*g", digits, value);
		if (strtod(text, NULL) == value)
			break;
	}
	before_item(writer);
	okv_buf_text(writer->buf, text);
}

void okv_json_write_bool(struct okv_json_writer *writer, bool value)
{
	before_item(writer);
	okv_buf_text(writer->buf, value ? "true" : "false");
}

void okv_json_write_null(struct okv_json_writer *writer)
{
	before_item(writer);
	okv_buf_text(writer->buf, "null");
}
