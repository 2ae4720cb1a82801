/* The JSON of answers, in the shapes of the OpenAI API. Pure: appends to a buf. */
#ifndef OKV_SERVE_ANSWER_H
#define OKV_SERVE_ANSWER_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "okv/base/buf.h"
#include "okv/engine/driver.h"

/* What every message about one completion says about it. */
struct okv__answer_head {
	bool is_chat;
	bool with_usage;	/* the client asked for usage: every chunk has the field */
	const char *id, *model; /* borrowed */
	uint64_t created_unix_s;
};

/* One event of a stream with `size` bytes of text; with `is_first`, also the role. */
void okv__answer_chunk(const struct okv__answer_head *head, const char *text, size_t size, bool is_first,
		       struct okv_buf *out);
/* The event that ends the text. */
void okv__answer_last_chunk(const struct okv__answer_head *head, const char *finish_reason, struct okv_buf *out);
/* The event after it, if the client asked for usage. */
void okv__answer_usage_chunk(const struct okv__answer_head *head, const struct okv_usage *usage, struct okv_buf *out);
/* The answer that is not streamed. */
void okv__answer_whole(const struct okv__answer_head *head, const char *text, size_t size, const char *finish_reason,
		       const struct okv_usage *usage, struct okv_buf *out);

#endif
