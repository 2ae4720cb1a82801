#include "okv/fabric/peer_message.h"

#include <string.h>

#include "okv/base/cursor.h"

/*
 * One walk over a message's fields serves both directions: a field cannot be written and forgotten in reading, or be
 * written in another order. The walk carries a writer or a reader; on reading, `ok` turns false at the first field that
 * encoding would not have written.
 */
struct walk {
	struct okv_writer writer;
	struct okv_reader reader;
	bool is_writing, ok;
};

enum { MAGIC = 0x43564b4f }; /* "OKVC" */

static void walk_bytes(struct walk *walk, void *bytes, size_t size)
{
	if (walk->is_writing)
		okv_write_bytes(&walk->writer, bytes, size);
	else
		okv_read_bytes(&walk->reader, bytes, size);
}

static void walk_u16(struct walk *walk, uint16_t *value)
{
	walk_bytes(walk, value, sizeof(*value));
}

static void walk_u32(struct walk *walk, uint32_t *value)
{
	walk_bytes(walk, value, sizeof(*value));
}

static void walk_u64(struct walk *walk, uint64_t *value)
{
	walk_bytes(walk, value, sizeof(*value));
}

static void check(struct walk *walk, bool condition)
{
	if (!condition)
		walk->ok = false;
}

static void walk_refusal(struct walk *walk, enum okv_peer_refusal *refusal)
{
	uint16_t value = (uint16_t)*refusal;

	walk_u16(walk, &value);
	check(walk, value < OKV_PEER_REFUSAL_COUNT);
	*refusal = (enum okv_peer_refusal)value;
}

/* A u16 count of at most `max`; 0 after a bad one, so that nothing is walked. */
static void walk_count(struct walk *walk, uint16_t *count, uint16_t max)
{
	walk_u16(walk, count);
	if (*count > max) {
		check(walk, false);
		*count = 0;
	}
}

static void walk_name(struct walk *walk, char *name)
{
	uint16_t size = walk->is_writing ? (uint16_t)strnlen(name, OKV_PEER_NAME_MAX - 1) : 0;

	walk_count(walk, &size, OKV_PEER_NAME_MAX - 1);
	walk_bytes(walk, name, size);
	if (walk->is_writing)
		return;
	name[size] = 0;
	check(walk, strlen(name) == size);
}

static void walk_ticket(struct walk *walk, struct okv_ticket *ticket)
{
	walk_bytes(walk, &ticket->window, sizeof(ticket->window));
	walk_u32(walk, &ticket->slot);
	walk_u64(walk, &ticket->generation);
}

static void walk_location(struct walk *walk, struct okv_peer_location *location)
{
	walk_u64(walk, &location->generation);
	walk_bytes(walk, &location->medium, 1);
	walk_u64(walk, &location->length);
	walk_u32(walk, &location->token_count);
	check(walk, location->medium <= OKV_PEER_DRAM);
	check(walk, (location->medium == OKV_PEER_ABSENT) == (location->generation == 0));
}

static void walk_authorised(struct walk *walk, struct okv_peer_authorised *block)
{
	walk_bytes(walk, &block->hash, sizeof(block->hash));
	walk_bytes(walk, &block->parent, sizeof(block->parent));
	walk_bytes(walk, &block->lineage, sizeof(block->lineage));
	walk_bytes(walk, &block->key_digest, sizeof(block->key_digest));
	walk_u32(walk, &block->token_count);
	walk_u64(walk, &block->length);
	walk_bytes(walk, &block->crc, sizeof(block->crc));
}

static void walk_locate(struct walk *walk, struct okv_peer_message *message)
{
	walk_count(walk, &message->locate.key_size, OKV_KEY_ENCODED_MAX);
	walk_bytes(walk, message->locate.key, message->locate.key_size);
	walk_count(walk, &message->locate.count, OKV_PEER_LOCATE_MAX);
	walk_bytes(walk, message->locate.hash, message->locate.count * sizeof(struct okv_hash));
}

static void walk_located(struct walk *walk, struct okv_peer_message *message)
{
	walk_refusal(walk, &message->located.refusal);
	walk_name(walk, message->located.field);
	walk_count(walk, &message->located.count, OKV_PEER_LOCATE_MAX);
	for (uint16_t i = 0; i < message->located.count; i++)
		walk_location(walk, &message->located.location[i]);
}

static void walk_authorise(struct walk *walk, struct okv_peer_message *message)
{
	walk_ticket(walk, &message->authorise.ticket);
	walk_bytes(walk, &message->authorise.owner, sizeof(message->authorise.owner));
	walk_bytes(walk, &message->authorise.key_digest, sizeof(message->authorise.key_digest));
	walk_count(walk, &message->authorise.count, OKV_PEER_AUTHORISE_MAX);
	for (uint16_t i = 0; i < message->authorise.count; i++) {
		walk_bytes(walk, &message->authorise.wanted[i].hash, sizeof(struct okv_hash));
		walk_u64(walk, &message->authorise.wanted[i].generation);
	}
}

static void walk_payload(struct walk *walk, struct okv_peer_message *message)
{
	switch (message->type) {
	case OKV_PEER_HELLO:
		walk_name(walk, message->hello.cluster);
		walk_bytes(walk, &message->hello.requester, sizeof(message->hello.requester));
		return;
	case OKV_PEER_WELCOME:
		walk_refusal(walk, &message->welcome.refusal);
		walk_bytes(walk, &message->welcome.owner, sizeof(message->welcome.owner));
		walk_u16(walk, &message->welcome.data_port);
		return;
	case OKV_PEER_LOCATE:
		walk_locate(walk, message);
		return;
	case OKV_PEER_LOCATED:
		walk_located(walk, message);
		return;
	case OKV_PEER_OPEN_WINDOW:
		walk_bytes(walk, &message->open_window.owner, sizeof(message->open_window.owner));
		walk_bytes(walk, &message->open_window.requester, sizeof(message->open_window.requester));
		return;
	case OKV_PEER_WINDOW:
		walk_refusal(walk, &message->window.refusal);
		walk_bytes(walk, &message->window.window, sizeof(message->window.window));
		return;
	case OKV_PEER_AUTHORISE:
		walk_authorise(walk, message);
		return;
	case OKV_PEER_AUTHORISED:
		walk_refusal(walk, &message->authorised.refusal);
		walk_bytes(walk, message->authorised.token, sizeof(message->authorised.token));
		walk_count(walk, &message->authorised.count, OKV_PEER_AUTHORISE_MAX);
		for (uint16_t i = 0; i < message->authorised.count; i++)
			walk_authorised(walk, &message->authorised.block[i]);
		return;
	case OKV_PEER_RELEASE:
		walk_ticket(walk, &message->release);
		return;
	case OKV_PEER_RELEASED:
		walk_refusal(walk, &message->released.refusal);
		walk_u32(walk, &message->released.blocks);
		return;
	}
	check(walk, false);
}

size_t okv_peer_encode(const struct okv_peer_message *message, uint8_t *ret_frame)
{
	struct walk walk = {
		.writer = okv_writer_of(ret_frame, OKV_PEER_FRAME_BYTES_MAX), .is_writing = true, .ok = true};
	struct okv_writer header = walk.writer;

	walk.writer.at += OKV_PEER_HEADER_BYTES;
	/* The walk only reads what it writes out; it is not const because the same walk fills what it reads in. */
	walk_payload(&walk, (struct okv_peer_message *)(uintptr_t)message);
	OKV_ASSERT(walk.ok && walk.writer.ok);

	size_t size = (size_t)(walk.writer.at - ret_frame);
	okv_write_u32(&header, MAGIC);
	okv_write_u16(&header, OKV_PEER_VERSION);
	okv_write_u16(&header, (uint16_t)message->type);
	okv_write_u32(&header, (uint32_t)(size - OKV_PEER_HEADER_BYTES));
	okv_write_u64(&header, message->request_id);
	return size;
}

enum okv_status okv_peer_frame_size(const uint8_t *bytes, size_t size, size_t *ret_size, struct okv_reason *reason)
{
	struct okv_reader reader = okv_reader_of(bytes, size);
	uint32_t magic = okv_read_u32(&reader);
	uint16_t version = okv_read_u16(&reader);
	uint16_t type = okv_read_u16(&reader);
	uint32_t length = okv_read_u32(&reader);

	if (size < OKV_PEER_HEADER_BYTES) {
		*ret_size = 0;
		return OKV_OK;
	}
	if (magic != MAGIC)
		return okv_refuse(reason, OKV_ERR_PROTOCOL, "magic",
				  "the peer does not speak OrbitKV's control protocol");
	if (version != OKV_PEER_VERSION)
		return okv_refuse(reason, OKV_ERR_VERSION, "version",
				  "the peer speaks version %u of the control protocol, this manager %d", version,
				  OKV_PEER_VERSION);
	if (type < OKV_PEER_HELLO || type > OKV_PEER_RELEASED)
		return okv_refuse(reason, OKV_ERR_PROTOCOL, "type", "the peer sent a message of unknown type %u", type);
	if (length > OKV_PEER_FRAME_BYTES_MAX - OKV_PEER_HEADER_BYTES)
		return okv_refuse(reason, OKV_ERR_PROTOCOL, "length", "the peer announced a message of %u bytes",
				  length);
	*ret_size = OKV_PEER_HEADER_BYTES + (size_t)length;
	return OKV_OK;
}

enum okv_status okv_peer_decode(const uint8_t *frame, size_t size, struct okv_peer_message *ret_message,
				struct okv_reason *reason)
{
	size_t whole = 0;
	enum okv_status status = okv_peer_frame_size(frame, size, &whole, reason);

	if (status != OKV_OK)
		return status;
	if (whole == 0 || whole != size)
		return okv_refuse(reason, OKV_ERR_PROTOCOL, "length",
				  "the message is cut short or has bytes behind it");

	struct walk walk = {.reader = okv_reader_of(frame, size), .ok = true};
	okv_read_view(&walk.reader, 6);
	ret_message->type = (enum okv_peer_type)okv_read_u16(&walk.reader);
	okv_read_view(&walk.reader, 4);
	ret_message->request_id = okv_read_u64(&walk.reader);
	walk_payload(&walk, ret_message);
	if (!walk.ok || !walk.reader.ok || okv_reader_left(&walk.reader) != 0)
		return okv_refuse(reason, OKV_ERR_PROTOCOL, "payload", "the peer sent a malformed message of type %d",
				  (int)ret_message->type);
	return OKV_OK;
}

const char *okv_peer_refusal_name(enum okv_peer_refusal refusal)
{
	static const char *const names[OKV_PEER_REFUSAL_COUNT] = {
		"granted",	"cluster",	   "key",   "owner",  "window", "ticket", "residence",
		"budget_bytes", "budget_sessions", "ahead", "memory",
	};

	return (unsigned)refusal < OKV_PEER_REFUSAL_COUNT ? names[refusal] : "unknown";
}
