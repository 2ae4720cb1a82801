#include "tokenizer_object.h"
#include "utf8.h"

static const char replacement[] = "\xef\xbf\xbd";

/*
 * The held bytes are always the beginning of some character. A byte that cannot follow them ends that hope: the held
 * ones become one U+FFFD together (the maximal subpart, Unicode 15.0 section 3.9) and the byte starts anew.
 */
static void feed_byte(struct okv_detokenizer *detokenizer, uint8_t byte, struct okv_buf *text)
{
	detokenizer->held[detokenizer->held_count++] = byte;

	unsigned length = okv__utf8_length(detokenizer->held, detokenizer->held_count);

	if (length == 0 && detokenizer->held_count > 1) {
		okv_buf_text(text, replacement);
		detokenizer->held[0] = byte;
		detokenizer->held_count = 1;
		length = okv__utf8_length(detokenizer->held, 1);
	}
	if (length == 0)
		okv_buf_text(text, replacement);
	else if (length == detokenizer->held_count)
		okv_buf_append(text, detokenizer->held, length);
	else
		return;
	detokenizer->held_count = 0;
}

void okv_detokenizer_feed(struct okv_detokenizer *detokenizer, const struct okv_tokenizer *tokenizer, uint32_t id,
			  struct okv_buf *text)
{
	struct okv_bytes bytes = okv__tokenizer_text(tokenizer, id);

	for (size_t i = 0; i < bytes.size; i++)
		feed_byte(detokenizer, bytes.data[i], text);
}

void okv_detokenizer_finish(struct okv_detokenizer *detokenizer, struct okv_buf *text)
{
	if (detokenizer->held_count > 0)
		okv_buf_text(text, replacement);
	detokenizer->held_count = 0;
}
