/*
 * Peer messages against frames that another encoder wrote (tests/golden/peer_messages.txt), and every way of being
 * malformed that a decoder must refuse by name.
 */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "okv/fabric/peer_message.h"

static struct okv_uuid uuid(uint8_t byte)
{
	struct okv_uuid value;

	memset(&value, byte, sizeof(value));
	return value;
}

static struct okv_hash hash(uint8_t byte)
{
	struct okv_hash value;

	memset(&value, byte, sizeof(value));
	return value;
}

static void fill_requests(const char *name, struct okv_peer_message *m)
{
	struct okv_ticket ticket = {.window = uuid(0x21), .slot = 7, .generation = 9};

	if (strcmp(name, "hello") == 0) {
		m->type = OKV_PEER_HELLO;
		strcpy(m->hello.cluster, "orbitkv");
		m->hello.requester = uuid(0x11);
	} else if (strcmp(name, "locate") == 0) {
		m->type = OKV_PEER_LOCATE;
		m->locate.key_size = 3;
		memcpy(m->locate.key, "key", 3);
		m->locate.count = 2;
		m->locate.hash[0] = hash(1);
		m->locate.hash[1] = hash(2);
	} else if (strcmp(name, "open_window") == 0) {
		m->type = OKV_PEER_OPEN_WINDOW;
		m->open_window.owner = uuid(0x12);
		m->open_window.requester = uuid(0x11);
	} else if (strcmp(name, "authorise") == 0) {
		m->type = OKV_PEER_AUTHORISE;
		m->authorise.ticket = ticket;
		m->authorise.owner = uuid(0x12);
		m->authorise.key_digest = hash(9);
		m->authorise.count = 2;
		m->authorise.wanted[0] = (struct okv_peer_wanted){hash(1), 5};
		m->authorise.wanted[1] = (struct okv_peer_wanted){hash(2), 6};
	} else if (strcmp(name, "release") == 0) {
		m->type = OKV_PEER_RELEASE;
		m->release = ticket;
	}
}

static void fill_replies(const char *name, struct okv_peer_message *m)
{
	if (strcmp(name, "welcome") == 0) {
		m->type = OKV_PEER_WELCOME;
		m->welcome.owner = uuid(0x12);
		m->welcome.data_port = 40001;
	} else if (strcmp(name, "located") == 0) {
		m->type = OKV_PEER_LOCATED;
		m->located.count = 2;
		m->located.location[0] = (struct okv_peer_location){5, OKV_PEER_DRAM, 368640, 16};
	} else if (strcmp(name, "located_other_key") == 0) {
		m->type = OKV_PEER_LOCATED;
		m->located.refusal = OKV_PEER_REFUSED_KEY;
		strcpy(m->located.field, "weights");
	} else if (strcmp(name, "window") == 0) {
		m->type = OKV_PEER_WINDOW;
		m->window.window = uuid(0x21);
	} else if (strcmp(name, "authorised") == 0) {
		m->type = OKV_PEER_AUTHORISED;
		memset(m->authorised.token, 0x33, 16);
		m->authorised.count = 1;
		m->authorised.block[0] = (struct okv_peer_authorised){
			.hash = hash(1), .parent = hash(3), .key_digest = hash(9), .token_count = 16, .length = 368640};
		memset(&m->authorised.block[0].crc, 0x44, 16);
	} else if (strcmp(name, "refused") == 0) {
		m->type = OKV_PEER_AUTHORISED;
		m->authorised.refusal = OKV_PEER_REFUSED_BUDGET_BYTES;
	} else if (strcmp(name, "released") == 0) {
		m->type = OKV_PEER_RELEASED;
		m->released.blocks = 2;
	}
}

static size_t from_hex(const char *hex, uint8_t *ret_bytes)
{
	size_t size = 0;
	unsigned value;

	while (sscanf(hex + 2 * size, "%2x", &value) == 1)
		ret_bytes[size++] = (uint8_t)value;
	return size;
}

static void frames_equal_those_of_another_encoder(void **state)
{
	(void)state;
	char path[4096], line[8192], name[64], hex[8000];
	uint8_t golden[4000], frame[OKV_PEER_FRAME_BYTES_MAX];
	unsigned count = 0;

	snprintf(path, sizeof(path), "%s/tests/golden/peer_messages.txt", getenv("OKV_SOURCE_ROOT"));
	FILE *file = fopen(path, "r");
	assert_non_null(file);
	while (fgets(line, sizeof(line), file)) {
		struct okv_peer_message message = {0}, decoded = {0};

		if (line[0] == '#')
			continue;
		assert_int_equal(sscanf(line, "%63s %7999s", name, hex), 2);
		size_t size = from_hex(hex, golden);
		message.request_id = 0x0102030405060700 + count++;
		fill_requests(name, &message);
		fill_replies(name, &message);
		assert_int_equal(okv_peer_encode(&message, frame), size);
		assert_memory_equal(frame, golden, size);
		assert_int_equal(okv_peer_decode(golden, size, &decoded, NULL), OKV_OK);
		assert_int_equal(okv_peer_encode(&decoded, frame), size);
		assert_memory_equal(frame, golden, size);
		for (size_t cut = 0; cut < size; cut++) /* every truncation is refused */
			assert_int_equal(okv_peer_decode(golden, cut, &decoded, NULL), OKV_ERR_PROTOCOL);
	}
	fclose(file);
	assert_int_equal(count, 12);
}

static void the_largest_messages_fit_a_frame(void **state)
{
	(void)state;
	static struct okv_peer_message message, decoded;
	uint8_t frame[OKV_PEER_FRAME_BYTES_MAX];

	message.type = OKV_PEER_LOCATE;
	message.locate.key_size = OKV_KEY_ENCODED_MAX;
	message.locate.count = OKV_PEER_LOCATE_MAX;
	assert_int_equal(okv_peer_decode(frame, okv_peer_encode(&message, frame), &decoded, NULL), OKV_OK);
	memset(&message, 0, sizeof(message));
	message.type = OKV_PEER_AUTHORISED;
	message.authorised.count = OKV_PEER_AUTHORISE_MAX;
	assert_int_equal(okv_peer_decode(frame, okv_peer_encode(&message, frame), &decoded, NULL), OKV_OK);
	memset(&message, 0, sizeof(message));
	message.type = OKV_PEER_LOCATED;
	message.located.count = OKV_PEER_LOCATE_MAX;
	assert_int_equal(okv_peer_decode(frame, okv_peer_encode(&message, frame), &decoded, NULL), OKV_OK);
}

/* Encodes a RELEASED and changes one byte. */
static enum okv_status decode_changed(size_t at, uint8_t value, struct okv_reason *reason)
{
	struct okv_peer_message message = {.type = OKV_PEER_RELEASED, .request_id = 1}, decoded;
	uint8_t frame[OKV_PEER_FRAME_BYTES_MAX];
	size_t size = okv_peer_encode(&message, frame);

	frame[at] = value;
	return okv_peer_decode(frame, size, &decoded, reason);
}

static void a_foreign_header_is_refused_by_name(void **state)
{
	(void)state;
	struct okv_reason reason;

	assert_int_equal(decode_changed(0, 'G', &reason), OKV_ERR_PROTOCOL);
	assert_string_equal(reason.field, "magic");
	assert_int_equal(decode_changed(4, 2, &reason), OKV_ERR_VERSION);
	assert_string_equal(reason.field, "version");
	assert_int_equal(decode_changed(6, 11, &reason), OKV_ERR_PROTOCOL);
	assert_string_equal(reason.field, "type");
	assert_int_equal(decode_changed(6, 0, &reason), OKV_ERR_PROTOCOL);
	assert_int_equal(decode_changed(11, 0x7f, &reason), OKV_ERR_PROTOCOL);
	assert_string_equal(reason.field, "length");
	assert_int_equal(decode_changed(8, 5, &reason), OKV_ERR_PROTOCOL);
	assert_int_equal(decode_changed(20, OKV_PEER_REFUSAL_COUNT, &reason), OKV_ERR_PROTOCOL);
	assert_string_equal(reason.field, "payload");
}

static void a_stream_says_how_long_its_first_frame_is(void **state)
{
	(void)state;
	struct okv_peer_message message = {.type = OKV_PEER_RELEASED, .request_id = 1};
	uint8_t frame[OKV_PEER_FRAME_BYTES_MAX];
	size_t size = okv_peer_encode(&message, frame), found = 99;

	assert_int_equal(okv_peer_frame_size(frame, 19, &found, NULL), OKV_OK);
	assert_int_equal(found, 0);
	assert_int_equal(okv_peer_frame_size(frame, 20, &found, NULL), OKV_OK);
	assert_int_equal(found, size);
}

static void a_location_that_contradicts_itself_is_refused(void **state)
{
	(void)state;
	struct okv_peer_message message = {.type = OKV_PEER_LOCATED}, decoded;
	uint8_t frame[OKV_PEER_FRAME_BYTES_MAX];

	message.located.count = 1;
	message.located.location[0] = (struct okv_peer_location){5, OKV_PEER_DRAM, 1, 1};
	size_t size = okv_peer_encode(&message, frame);
	frame[size - 13] = OKV_PEER_ABSENT; /* the medium; the generation says it is there */
	assert_int_equal(okv_peer_decode(frame, size, &decoded, NULL), OKV_ERR_PROTOCOL);
	frame[size - 13] = 2;
	assert_int_equal(okv_peer_decode(frame, size, &decoded, NULL), OKV_ERR_PROTOCOL);
}

static void every_refusal_has_a_name(void **state)
{
	(void)state;
	for (int i = 0; i < OKV_PEER_REFUSAL_COUNT; i++)
		assert_string_not_equal(okv_peer_refusal_name((enum okv_peer_refusal)i), "unknown");
	assert_string_equal(okv_peer_refusal_name(OKV_PEER_REFUSAL_COUNT), "unknown");
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(frames_equal_those_of_another_encoder),
		cmocka_unit_test(the_largest_messages_fit_a_frame),
		cmocka_unit_test(a_foreign_header_is_refused_by_name),
		cmocka_unit_test(a_stream_says_how_long_its_first_frame_is),
		cmocka_unit_test(a_location_that_contradicts_itself_is_refused),
		cmocka_unit_test(every_refusal_has_a_name),
	};
	return cmocka_run_group_tests_name("fabric_message", tests, NULL, NULL);
}
