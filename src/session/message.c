#include "okv/session/message.h"

#include <inttypes.h>
#include <stdbool.h>
#include <string.h>

#include "okv/base/cursor.h"

/* "OKVS" when read as bytes. */
static const uint32_t magic = 0x53564b4f;

static void write_text(struct okv_writer *writer, const char *text, size_t room)
{
	size_t size = strnlen(text, room - 1);

	okv_write_u16(writer, (uint16_t)size);
	okv_write_bytes(writer, text, size);
}

static void encode_hello(struct okv_writer *writer, const struct okv_session_hello *hello)
{
	uint8_t key[OKV_KEY_ENCODED_MAX];
	size_t size = okv_key_encode(&hello->key, key);

	okv_write_u64(writer, hello->page_bytes);
	okv_write_u64(writer, hello->arena_bytes);
	okv_write_u64(writer, hello->previous_session);
	write_text(writer, hello->name, sizeof(hello->name));
	okv_write_u16(writer, (uint16_t)size);
	okv_write_bytes(writer, key, size);
}

size_t okv_session_encode(const struct okv_session_message *message, uint8_t *ret_bytes)
{
	struct okv_writer writer = okv_writer_of(ret_bytes, OKV_SESSION_MESSAGE_MAX);

	okv_write_u32(&writer, magic);
	okv_write_u16(&writer, OKV_SESSION_VERSION);
	okv_write_u16(&writer, (uint16_t)message->type);
	okv_write_u32(&writer, 0); /* reserved */
	switch (message->type) {
	case OKV_SESSION_HELLO:
		encode_hello(&writer, &message->hello);
		break;
	case OKV_SESSION_ACCEPT:
		okv_write_u64(&writer, message->accept.session);
		okv_write_u64(&writer, message->accept.pool_bytes);
		okv_write_bytes(&writer, &message->accept.incarnation, sizeof(struct okv_uuid));
		okv_write_u16(&writer, (uint16_t)message->accept.verification);
		break;
	case OKV_SESSION_REFUSE:
		okv_write_u16(&writer, (uint16_t)message->refuse.status);
		write_text(&writer, message->refuse.text, sizeof(message->refuse.text));
		break;
	case OKV_SESSION_DOORBELL:
	case OKV_SESSION_BYE:
		break;
	}
	OKV_ASSERT(writer.ok);
	return (size_t)(writer.at - ret_bytes);
}

/* Text for people: printable ASCII only, so that a log line stays one line. */
static bool read_text(struct okv_reader *reader, char *ret_text, size_t room)
{
	uint16_t size = okv_read_u16(reader);
	const uint8_t *bytes = okv_read_view(reader, size);

	if (!bytes || size >= room)
		return false;
	for (uint16_t i = 0; i < size; i++)
		if (bytes[i] < 0x20 || bytes[i] > 0x7e)
			return false;
	memcpy(ret_text, bytes, size);
	ret_text[size] = '\0';
	return true;
}

static enum okv_status malformed(struct okv_reason *reason, const char *what)
{
	return okv_refuse(reason, OKV_ERR_PROTOCOL, "session", "the session message is malformed: %s", what);
}

static enum okv_status decode_hello(struct okv_reader *reader, struct okv_session_hello *ret_hello,
				    struct okv_reason *reason)
{
	struct okv_session_hello hello = {.page_bytes = okv_read_u64(reader)};

	hello.arena_bytes = okv_read_u64(reader);
	hello.previous_session = okv_read_u64(reader);
	if (!read_text(reader, hello.name, sizeof(hello.name)))
		return malformed(reason, "the client's name");

	uint16_t size = okv_read_u16(reader);
	const uint8_t *key = okv_read_view(reader, size);
	if (!key)
		return malformed(reason, "the key is cut short");

	enum okv_status status = okv_key_decode(key, size, &hello.key, reason);
	if (status != OKV_OK)
		return status;
	if (hello.key.page_tokens < 1 || hello.key.page_tokens > OKV_BLOCK_TOKENS_MAX)
		return okv_refuse(reason, OKV_ERR_INVALID, "page_tokens",
				  "a page of %" PRIu32 " tokens is not within 1 to %d", hello.key.page_tokens,
				  OKV_BLOCK_TOKENS_MAX);
	if (hello.page_bytes == 0 || hello.page_bytes != okv_key_page_bytes(&hello.key))
		return okv_refuse(reason, OKV_ERR_INVALID, "page_bytes",
				  "a page of %" PRIu64 " bytes does not follow from the key, which gives %zu",
				  hello.page_bytes, okv_key_page_bytes(&hello.key));
	if (hello.arena_bytes < hello.page_bytes || hello.arena_bytes > OKV_SESSION_ARENA_BYTES_MAX)
		return okv_refuse(reason, OKV_ERR_INVALID, "arena_bytes",
				  "an arena of %" PRIu64 " bytes is not within one page and %" PRIu64 " bytes",
				  hello.arena_bytes, OKV_SESSION_ARENA_BYTES_MAX);
	*ret_hello = hello;
	return OKV_OK;
}

static enum okv_status decode_accept(struct okv_reader *reader, struct okv_session_accept *ret_accept,
				     struct okv_reason *reason)
{
	struct okv_session_accept accept = {.session = okv_read_u64(reader)};
	uint16_t verification;

	accept.pool_bytes = okv_read_u64(reader);
	okv_read_bytes(reader, &accept.incarnation, sizeof(accept.incarnation));
	verification = okv_read_u16(reader);
	if (!reader->ok || accept.session == 0 || accept.pool_bytes == 0)
		return malformed(reason, "the manager's answer");
	if (verification != OKV_SESSION_VERIFY_CRC)
		return okv_refuse(reason, OKV_ERR_UNSUPPORTED, "verification",
				  "the manager's pool uses verification mode %u, which this engine does not know",
				  verification);
	accept.verification = OKV_SESSION_VERIFY_CRC;
	*ret_accept = accept;
	return OKV_OK;
}

static enum okv_status decode_refuse(struct okv_reader *reader, struct okv_session_refuse *ret_refuse,
				     struct okv_reason *reason)
{
	struct okv_session_refuse refuse = {.status = (enum okv_status)okv_read_u16(reader)};

	if (!read_text(reader, refuse.text, sizeof(refuse.text)) || refuse.status == OKV_OK)
		return malformed(reason, "the manager's refusal");
	*ret_refuse = refuse;
	return OKV_OK;
}

enum okv_status okv_session_decode(const uint8_t *bytes, size_t size, struct okv_session_message *ret_message,
				   struct okv_reason *reason)
{
	struct okv_reader reader = okv_reader_of(bytes, size);
	struct okv_session_message message;
	enum okv_status status = OKV_OK;
	uint32_t found_magic = okv_read_u32(&reader), reserved;
	uint16_t version = okv_read_u16(&reader), type = okv_read_u16(&reader);

	reserved = okv_read_u32(&reader);
	if (!reader.ok || found_magic != magic)
		return okv_refuse(reason, OKV_ERR_PROTOCOL, "session",
				  "the other end does not speak the session protocol");
	if (version != OKV_SESSION_VERSION)
		return okv_refuse(reason, OKV_ERR_VERSION, "version",
				  "this end speaks session version %d, the other end version %u; run the same OrbitKV "
				  "release on both",
				  OKV_SESSION_VERSION, version);
	if (reserved != 0)
		return malformed(reason, "a reserved field is set");

	memset(&message, 0, sizeof(message));
	message.type = (enum okv_session_message_type)type;
	switch (type) {
	case OKV_SESSION_HELLO:
		status = decode_hello(&reader, &message.hello, reason);
		break;
	case OKV_SESSION_ACCEPT:
		status = decode_accept(&reader, &message.accept, reason);
		break;
	case OKV_SESSION_REFUSE:
		status = decode_refuse(&reader, &message.refuse, reason);
		break;
	case OKV_SESSION_DOORBELL:
	case OKV_SESSION_BYE:
		break;
	default:
		return malformed(reason, "its type is unknown");
	}
	if (status != OKV_OK)
		return status;
	if (okv_reader_left(&reader) != 0)
		return malformed(reason, "it has bytes behind its last field");
	*ret_message = message;
	return OKV_OK;
}
