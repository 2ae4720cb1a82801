#include "serve_answer.h"

#include "okv/base/clock.h"
#include "okv/codec/json.h"
#include "okv/codec/sse.h"

static void write_count(struct okv_json_writer *writer, const char *key, uint64_t count)
{
	okv_json_key(writer, key);
	okv_json_write_u64(writer, count);
}

static void write_ms(struct okv_json_writer *writer, const char *key, uint64_t duration_ns)
{
	uint64_t duration_us = duration_ns / OKV_NS_PER_US; /* nobody reads more digits */

	okv_json_key(writer, key);
	okv_json_write_f64(writer, (double)duration_us / 1000);
}

static void write_usage(struct okv_json_writer *writer, const struct okv_usage *usage)
{
	okv_json_key(writer, "usage");
	okv_json_begin_object(writer);
	write_count(writer, "prompt_tokens", usage->prompt_tokens);
	write_count(writer, "completion_tokens", usage->generated_tokens);
	write_count(writer, "total_tokens", (uint64_t)usage->prompt_tokens + usage->generated_tokens);
	okv_json_key(writer, "prompt_tokens_details");
	okv_json_begin_object(writer);
	write_count(writer, "cached_tokens", (uint64_t)usage->prefix_hit_tokens + usage->restored_tokens);
	okv_json_end_object(writer);
	okv_json_key(writer, "orbitkv");
	okv_json_begin_object(writer);
	write_count(writer, "computed_tokens", usage->computed_tokens);
	write_count(writer, "prefix_hit_tokens", usage->prefix_hit_tokens);
	write_count(writer, "restored_tokens", usage->restored_tokens);
	write_count(writer, "restored_remote_bytes", usage->restored_remote_bytes);
	write_ms(writer, "queued_ms", usage->queued_ns);
	write_ms(writer, "restore_ms", usage->restore_ns);
	write_ms(writer, "first_token_ms", usage->first_token_ns);
	write_ms(writer, "total_ms", usage->total_ns);
	okv_json_end_object(writer);
	okv_json_end_object(writer);
}

static void begin(const struct okv__answer_head *head, const char *object, struct okv_json_writer *writer)
{
	okv_json_begin_object(writer);
	okv_json_key(writer, "id");
	okv_json_write_text(writer, head->id);
	okv_json_key(writer, "object");
	okv_json_write_text(writer, object);
	write_count(writer, "created", head->created_unix_s);
	okv_json_key(writer, "model");
	okv_json_write_text(writer, head->model);
	okv_json_key(writer, "choices");
	okv_json_begin_array(writer);
}

static void write_finish(struct okv_json_writer *writer, const char *finish_reason)
{
	okv_json_key(writer, "logprobs");
	okv_json_write_null(writer);
	okv_json_key(writer, "finish_reason");
	if (finish_reason)
		okv_json_write_text(writer, finish_reason);
	else
		okv_json_write_null(writer);
}

static void write_content(struct okv_json_writer *writer, const char *key, const char *text, size_t size)
{
	okv_json_key(writer, key);
	okv_json_write_bytes(writer, text, size);
}

static void write_role(struct okv_json_writer *writer)
{
	okv_json_key(writer, "role");
	okv_json_write_text(writer, "assistant");
}

/* text == NULL: the delta is empty. */
static void write_chunk_choice(const struct okv__answer_head *head, const char *text, size_t size, bool is_first,
			       const char *finish_reason, struct okv_json_writer *writer)
{
	okv_json_begin_object(writer);
	write_count(writer, "index", 0);
	if (head->is_chat) {
		okv_json_key(writer, "delta");
		okv_json_begin_object(writer);
		if (is_first)
			write_role(writer);
		if (text)
			write_content(writer, "content", text, size);
		okv_json_end_object(writer);
	} else {
		write_content(writer, "text", text ? text : "", size);
	}
	write_finish(writer, finish_reason);
	okv_json_end_object(writer);
}

static const char *chunk_object(const struct okv__answer_head *head)
{
	return head->is_chat ? "chat.completion.chunk" : "text_completion";
}

static void end_chunk(const struct okv__answer_head *head, struct okv_json_writer *writer, struct okv_buf *out)
{
	if (head->with_usage) {
		okv_json_key(writer, "usage");
		okv_json_write_null(writer);
	}
	okv_json_end_object(writer);
	okv_sse_event(out, writer->buf->data, writer->buf->size);
	out->failed |= writer->buf->failed;
	okv_buf_done(writer->buf);
}

void okv__answer_chunk(const struct okv__answer_head *head, const char *text, size_t size, bool is_first,
		       struct okv_buf *out)
{
	struct okv_buf json = {0};
	struct okv_json_writer writer = {.buf = &json};

	begin(head, chunk_object(head), &writer);
	write_chunk_choice(head, text, size, is_first, NULL, &writer);
	okv_json_end_array(&writer);
	end_chunk(head, &writer, out);
}

void okv__answer_last_chunk(const struct okv__answer_head *head, const char *finish_reason, struct okv_buf *out)
{
	struct okv_buf json = {0};
	struct okv_json_writer writer = {.buf = &json};

	begin(head, chunk_object(head), &writer);
	write_chunk_choice(head, NULL, 0, false, finish_reason, &writer);
	okv_json_end_array(&writer);
	end_chunk(head, &writer, out);
}

void okv__answer_usage_chunk(const struct okv__answer_head *head, const struct okv_usage *usage, struct okv_buf *out)
{
	struct okv_buf json = {0};
	struct okv_json_writer writer = {.buf = &json};

	begin(head, chunk_object(head), &writer);
	okv_json_end_array(&writer);
	write_usage(&writer, usage);
	okv_json_end_object(&writer);
	okv_sse_event(out, json.data, json.size);
	out->failed |= json.failed;
	okv_buf_done(&json);
}

void okv__answer_whole(const struct okv__answer_head *head, const char *text, size_t size, const char *finish_reason,
		       const struct okv_usage *usage, struct okv_buf *out)
{
	struct okv_json_writer writer = {.buf = out};

	begin(head, head->is_chat ? "chat.completion" : "text_completion", &writer);
	okv_json_begin_object(&writer);
	write_count(&writer, "index", 0);
	if (head->is_chat) {
		okv_json_key(&writer, "message");
		okv_json_begin_object(&writer);
		write_role(&writer);
		write_content(&writer, "content", text, size);
		okv_json_end_object(&writer);
	} else {
		write_content(&writer, "text", text, size);
	}
	write_finish(&writer, finish_reason);
	okv_json_end_object(&writer);
	okv_json_end_array(&writer);
	write_usage(&writer, usage);
	okv_json_end_object(&writer);
}
