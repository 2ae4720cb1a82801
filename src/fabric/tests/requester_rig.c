#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <string.h>

#include <cmocka.h>

#include "requester_rig.h"

struct okv_uuid uuid(uint8_t byte)
{
	struct okv_uuid value;

	memset(&value, byte, sizeof(value));
	return value;
}

void drain(struct rig *rig)
{
	struct okv_requester_action action;

	while (rig->sent_count < SENT_MAX &&
	       okv_requester_next(rig->requester, rig->now_ns, &action, &rig->sent[rig->sent_count])) {
		switch (action.kind) {
		case OKV_REQUESTER_SEND:
			rig->sent_to[rig->sent_count++] = action.peer;
			break;
		case OKV_REQUESTER_SUBMIT:
			rig->submitted[rig->submit_count++] = action.transfer;
			okv_requester_submitted(rig->requester, action.transfer, rig->submit_status, rig->now_ns);
			break;
		case OKV_REQUESTER_CANCEL_READ:
			rig->cancel_count++;
			break;
		case OKV_REQUESTER_DONE:
			rig->done_context[rig->done_count] = okv_fetch_context(action.fetch);
			rig->result[rig->done_count++] = okv_fetch_result(action.fetch);
			okv_requester_fetch_free(rig->requester, action.fetch);
			break;
		case OKV_REQUESTER_UNPIN:
			rig->unpin_count++;
			break;
		}
	}
	assert_true(rig->sent_count < SENT_MAX);
}

void rig_init(struct rig *rig, unsigned peers)
{
	struct okv_requester_options options = okv_requester_defaults();

	memset(rig, 0, sizeof(*rig));
	options.incarnation = uuid(0xee);
	rig->now_ns = 1000;
	rig->deadline_ns = 30 * OKV_NS_PER_S;
	assert_int_equal(okv_requester_create(&options, &rig->requester), OKV_OK);
	for (int i = 0; i < BLOCKS; i++) {
		rig->block[i].token_count = 16;
		memcpy(&rig->block[i].hash, &i, sizeof(i));
		if (i > 0)
			rig->block[i].parent = rig->block[i - 1].hash;
	}
	for (unsigned i = 0; i < peers; i++) {
		unsigned peer;
		struct okv_uuid owner = uuid((uint8_t)(10 + i));

		assert_int_equal(okv_requester_peer(rig->requester, &peer), OKV_OK);
		assert_int_equal(peer, i);
		okv_requester_connected(rig->requester, peer, &owner, rig->now_ns);
	}
}

/* At the end of each test nothing may be left that was not given back. */
void rig_done(struct rig *rig)
{
	const struct okv_requester_counts *counts = okv_requester_counts(rig->requester);

	assert_int_equal(counts->fetches, 0);
	assert_int_equal(counts->wants, 0);
	assert_int_equal(counts->transfers, 0);
	assert_int_equal(counts->reading, 0);
	assert_int_equal(counts->completions_outstanding, 0);
	assert_int_equal(rig->unpin_count, rig->handles);
	okv_requester_destroy(rig->requester);
}

struct okv_fetch *fetch_from(struct rig *rig, uint32_t first, uint32_t count, void *context)
{
	struct okv_fetch *fetch;

	assert_int_equal(okv_requester_fetch(rig->requester, &rig->key, BLOCK_BYTES, rig->block + first, count,
					     rig->deadline_ns, rig->now_ns, context, &fetch),
			 OKV_OK);
	drain(rig);
	return fetch;
}

struct okv_fetch *fetch(struct rig *rig, uint32_t count)
{
	return fetch_from(rig, 0, count, rig);
}

/* The next message that was sent, which must be of this type and to this peer. */
const struct okv_peer_message *expect(struct rig *rig, unsigned peer, enum okv_peer_type type)
{
	assert_true(rig->looked_at < rig->sent_count);
	assert_int_equal(rig->sent[rig->looked_at].type, type);
	assert_int_equal(rig->sent_to[rig->looked_at], peer);
	return &rig->sent[rig->looked_at++];
}

void expect_silence(struct rig *rig)
{
	assert_int_equal(rig->looked_at, rig->sent_count);
}

void reply(struct rig *rig, unsigned peer, const struct okv_peer_message *message)
{
	assert_true(okv_requester_reply(rig->requester, peer, message, rig->now_ns));
	drain(rig);
}

/* The peer has blocks [from, to) of those asked for. */
void located(struct rig *rig, unsigned peer, uint16_t from, uint16_t to)
{
	const struct okv_peer_message *locate = expect(rig, peer, OKV_PEER_LOCATE);
	static struct okv_peer_message message;

	message = (struct okv_peer_message){.type = OKV_PEER_LOCATED, .request_id = locate->request_id};
	message.located.count = locate->locate.count;
	for (uint16_t i = from; i < to; i++)
		message.located.location[i] =
			(struct okv_peer_location){100 + (uint64_t)i, OKV_PEER_DRAM, BLOCK_BYTES, 16};
	reply(rig, peer, &message);
}

void window(struct rig *rig, unsigned peer)
{
	const struct okv_peer_message *open = expect(rig, peer, OKV_PEER_OPEN_WINDOW);
	struct okv_peer_message message = {.type = OKV_PEER_WINDOW, .request_id = open->request_id};

	message.window.window = uuid((uint8_t)(40 + peer));
	reply(rig, peer, &message);
}

/* The answer that an honest source gives; the crc of block i is all i. */
struct okv_peer_message authorised_for(const struct okv_peer_message *authorise)
{
	struct okv_peer_message message = {.type = OKV_PEER_AUTHORISED, .request_id = authorise->request_id};

	message.authorised.count = authorise->authorise.count;
	for (uint16_t i = 0; i < authorise->authorise.count; i++) {
		struct okv_peer_authorised *block = &message.authorised.block[i];
		int number;

		block->hash = authorise->authorise.wanted[i].hash;
		memcpy(&number, &block->hash, sizeof(number));
		if (number > 0) {
			number--;
			memcpy(&block->parent, &number, sizeof(number));
		}
		block->key_digest = authorise->authorise.key_digest;
		block->token_count = 16;
		block->length = BLOCK_BYTES;
		memset(&block->crc, i, sizeof(block->crc));
	}
	return message;
}

struct okv_ticket authorise(struct rig *rig, unsigned peer)
{
	const struct okv_peer_message *asked = expect(rig, peer, OKV_PEER_AUTHORISE);
	struct okv_peer_message message = authorised_for(asked);
	struct okv_ticket ticket = asked->authorise.ticket;

	reply(rig, peer, &message);
	return ticket;
}

void refuse_authorise(struct rig *rig, unsigned peer, enum okv_peer_refusal refusal)
{
	const struct okv_peer_message *asked = expect(rig, peer, OKV_PEER_AUTHORISE);
	struct okv_peer_message message = {.type = OKV_PEER_AUTHORISED, .request_id = asked->request_id};

	message.authorised.refusal = refusal;
	reply(rig, peer, &message);
}

enum okv_status land(struct rig *rig, struct okv_transfer *transfer, uint16_t index, bool damaged)
{
	struct okv_crc crc;

	memset(&crc, damaged ? 0xff : index, sizeof(crc));
	enum okv_status status = okv_requester_landed(rig->requester, transfer, index, &crc);
	if (status == OKV_OK) {
		okv_requester_committed(rig->requester, transfer, index, &rig->handles);
		rig->handles++;
	}
	drain(rig);
	return status;
}

void read_ended(struct rig *rig, struct okv_transfer *transfer, enum okv_status status)
{
	okv_requester_read_ended(rig->requester, transfer, status, rig->now_ns);
	drain(rig);
}

void read_all(struct rig *rig, struct okv_transfer *transfer)
{
	for (uint16_t i = 0; i < transfer->count; i++)
		assert_int_equal(land(rig, transfer, i, false), OKV_OK);
	read_ended(rig, transfer, OKV_OK);
}

void released(struct rig *rig, unsigned peer, struct okv_ticket ticket)
{
	const struct okv_peer_message *release = expect(rig, peer, OKV_PEER_RELEASE);
	struct okv_peer_message message = {.type = OKV_PEER_RELEASED, .request_id = release->request_id};

	assert_memory_equal(&release->release.window, &ticket.window, sizeof(ticket.window));
	assert_int_equal(release->release.slot, ticket.slot);
	assert_int_equal(release->release.generation, ticket.generation);
	reply(rig, peer, &message);
}

void advance(struct rig *rig, uint64_t ns)
{
	rig->now_ns += ns;
	okv_requester_tick(rig->requester, rig->now_ns);
	drain(rig);
}

/* Two owners that both have `count` blocks; the first was asked to authorise. */
void rig_init_two_owners(struct rig *rig, uint32_t count)
{
	rig_init(rig, 2);
	fetch(rig, count);
	located(rig, 0, 0, (uint16_t)count);
	located(rig, 1, 0, (uint16_t)count);
	window(rig, 0);
}

/* --- adversarial cases ------------------------------------------------------------------------------------------- */

void finish_at(struct rig *rig, unsigned peer)
{
	window(rig, peer);
	struct okv_ticket ticket = authorise(rig, peer);
	read_all(rig, rig->submitted[rig->submit_count - 1]);
	released(rig, peer, ticket);
}
