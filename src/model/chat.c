/*
 * Templates are programs in another language; here one is recognised and its frame rendered by hand. A template is
 * ChatML for us if its text is, to the letter, the body below, with or without the head that inserts a default system
 * message, whose text is the only part that may differ.
 */
#include "okv/model/chat.h"

#include <string.h>

#include "gguf_object.h"
#include "okv/base/digest.h"

static const char head_start[] = "{% for message in messages %}{% if loop.first and messages[0]['role'] != 'system' %}"
				 "{{ '<|im_start|>system\n";
static const char head_end[] = "<|im_end|>\n' }}{% endif %}";
static const char body_start[] = "{% for message in messages %}";
static const char body[] = "{{'<|im_start|>' + message['role'] + '\n' + message['content'] + '<|im_end|>' + '\n'}}"
			   "{% endfor %}{% if add_generation_prompt %}{{ '<|im_start|>assistant\n' }}{% endif %}";

/* Takes `part` off the front of `text` if it begins with it. */
static bool take(struct okv_bytes *text, const char *part)
{
	size_t size = strlen(part);

	if (text->size < size || memcmp(text->data, part, size) != 0)
		return false;
	text->data += size;
	text->size -= size;
	return true;
}

/* Takes the default system message: plain text up to `head_end` that means the same inside and outside the template. */
static bool take_default_system(struct okv_bytes *text, char *ret_system, size_t room)
{
	const uint8_t *end = memmem(text->data, text->size, head_end, sizeof(head_end) - 1);

	if (!end || (size_t)(end - text->data) >= room)
		return false;
	size_t size = (size_t)(end - text->data);
	if (memchr(text->data, '\'', size) || memchr(text->data, '\\', size) || memchr(text->data, '\0', size) ||
	    memmem(text->data, size, "<|", 2) || !okv_utf8_is_valid((const char *)text->data, size))
		return false;
	memcpy(ret_system, text->data, size);
	ret_system[size] = '\0';
	text->data += size;
	text->size -= size;
	return take(text, head_end);
}

static bool is_chatml(struct okv_bytes text, char *ret_system, size_t room)
{
	ret_system[0] = '\0';
	if (take(&text, head_start)) {
		if (!take_default_system(&text, ret_system, room))
			return false;
	} else if (!take(&text, body_start)) {
		return false;
	}
	return take(&text, body) && text.size == 0;
}

enum okv_status okv_chat_template_read(const struct okv_gguf *gguf, const struct okv_tokenizer *tokenizer,
				       struct okv_chat_template *ret_template, struct okv_reason *reason)
{
	struct okv_chat_template found = {0};
	struct okv_bytes text;
	enum okv_status status = okv_gguf_string(gguf, "tokenizer.chat_template", &text, reason);

	if (status)
		return status;
	if (!is_chatml(text, found.default_system, sizeof(found.default_system))) {
		struct okv_hash hash = okv_sha256_of(text.data, text.size);
		char digest[65];

		okv_hex(hash.bytes, sizeof(hash.bytes), digest);
		return okv_refuse(reason, OKV_ERR_UNSUPPORTED, "model",
				  "the chat template is not ChatML (SHA-256 %.16s, \"%.60s\")", digest,
				  okv__show(text).text);
	}
	if (!okv_tokenizer_special(tokenizer, "<|im_start|>", &found.start_id) ||
	    !okv_tokenizer_special(tokenizer, "<|im_end|>", &found.end_id))
		return okv_refuse(reason, OKV_ERR_INVALID, "model",
				  "the chat template is ChatML, but <|im_start|> and <|im_end|> are no special tokens");
	*ret_template = found;
	return OKV_OK;
}

/* <|im_start|> and a text; the caller closes the message or leaves it open. */
static enum okv_status open_message(const struct okv_chat_template *chat_template,
				    const struct okv_tokenizer *tokenizer, const struct okv_buf *text,
				    struct okv_tokens *tokens, struct okv_reason *reason)
{
	if (text->failed || okv_tokens_push(tokens, chat_template->start_id))
		return okv_refuse(reason, OKV_ERR_NO_MEMORY, "messages", "no memory for the prompt");
	return okv_tokenizer_encode(tokenizer, text->data, text->size, tokens, reason);
}

/* Role and content are one text between specials, so that they are split as the template's reader splits them. */
static enum okv_status add_message(const struct okv_chat_template *chat_template, const struct okv_tokenizer *tokenizer,
				   const struct okv_chat_message *message, struct okv_tokens *tokens,
				   struct okv_reason *reason)
{
	struct okv_buf text = {0};

	okv_buf_print(&text, "%s\n", message->role);
	okv_buf_append(&text, message->content, message->content_size);
	enum okv_status status = open_message(chat_template, tokenizer, &text, tokens, reason);
	okv_buf_done(&text);
	if (status)
		return status;
	if (okv_tokens_push(tokens, chat_template->end_id))
		return okv_refuse(reason, OKV_ERR_NO_MEMORY, "messages", "no memory for the prompt");
	return okv_tokenizer_encode(tokenizer, "\n", 1, tokens, reason);
}

static bool is_role(const char *role)
{
	return strcmp(role, "system") == 0 || strcmp(role, "user") == 0 || strcmp(role, "assistant") == 0;
}

static enum okv_status refuse_role(size_t index, const char *role, struct okv_reason *reason)
{
	struct okv_bytes bytes = {(const uint8_t *)role, strlen(role)};

	return okv_refuse(reason, OKV_ERR_UNSUPPORTED, "messages",
			  "messages[%zu].role is \"%.40s\"; it must be system, user or assistant", index,
			  okv__show(bytes).text);
}

static enum okv_status render(const struct okv_chat_template *chat_template, const struct okv_tokenizer *tokenizer,
			      const struct okv_chat_message *messages, size_t count, struct okv_tokens *tokens,
			      struct okv_reason *reason)
{
	char answer[] = "assistant\n";
	const struct okv_buf header = {.data = answer, .size = sizeof(answer) - 1};
	const char *system = chat_template->default_system;
	enum okv_status status = OKV_OK;

	if (system[0] && strcmp(messages[0].role, "system") != 0) {
		const struct okv_chat_message inserted = {"system", system, strlen(system)};

		status = add_message(chat_template, tokenizer, &inserted, tokens, reason);
	}
	for (size_t i = 0; i < count && !status; i++)
		status = add_message(chat_template, tokenizer, &messages[i], tokens, reason);
	return status ? status : open_message(chat_template, tokenizer, &header, tokens, reason);
}

enum okv_status okv_chat_render(const struct okv_chat_template *chat_template, const struct okv_tokenizer *tokenizer,
				const struct okv_chat_message *messages, size_t count, struct okv_tokens *tokens,
				struct okv_reason *reason)
{
	size_t before = tokens->count;

	if (count == 0)
		return okv_refuse(reason, OKV_ERR_INVALID, "messages", "there are no messages; send at least one");
	for (size_t i = 0; i < count; i++)
		if (!is_role(messages[i].role))
			return refuse_role(i, messages[i].role, reason);

	enum okv_status status = render(chat_template, tokenizer, messages, count, tokens, reason);
	if (status)
		tokens->count = before;
	return status;
}
