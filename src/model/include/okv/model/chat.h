/*
 * Chat: turns messages into token ids by the model's own template. Only ChatML is rendered for now; it is recognised by
 * the template's text, and another one is refused by name. Message text never yields special tokens.
 */
#ifndef OKV_MODEL_CHAT_H
#define OKV_MODEL_CHAT_H

#include "okv/model/tokenizer.h"

struct okv_chat_message {
	const char *role;    /* borrowed: "system", "user" or "assistant"; another one is refused */
	const char *content; /* borrowed UTF-8 */
	size_t content_size;
};

struct okv_chat_template {
	char default_system[512];  /* what the template inserts when the first role is not "system"; "" for nothing */
	uint32_t start_id, end_id; /* <|im_start|>, <|im_end|> */
};

/* Reads tokenizer.chat_template. OKV_ERR_ABSENT: the model has none (completions still work). */
OKV_MUST_CHECK enum okv_status okv_chat_template_read(const struct okv_gguf *gguf,
						      const struct okv_tokenizer *tokenizer,
						      struct okv_chat_template *ret_template,
						      struct okv_reason *reason);

/* Appends the whole prompt, ending with the header of the assistant's answer. */
OKV_MUST_CHECK enum okv_status okv_chat_render(const struct okv_chat_template *chat_template,
					       const struct okv_tokenizer *tokenizer,
					       const struct okv_chat_message *messages, size_t count,
					       struct okv_tokens *tokens, struct okv_reason *reason);

#endif
