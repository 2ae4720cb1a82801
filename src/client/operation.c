#include <stdlib.h>
#include <string.h>

#include "client_object.h"
#include "okv/base/alloc.h"

static uint32_t slot_of(const struct orbitkv_client *client, const struct operation *operation)
{
	return (uint32_t)(operation - client->operation);
}

static enum orbitkv_status status_of(uint32_t status)
{
	switch ((enum okv_status)status) {
	case OKV_OK:
		return ORBITKV_OK;
	case OKV_ERR_INVALID:
	case OKV_ERR_MISMATCH:
	case OKV_ERR_UNSUPPORTED:
	case OKV_ERR_EXISTS:
	case OKV_ERR_PERMISSION:
		return ORBITKV_INVALID;
	case OKV_ERR_NO_SPACE:
	case OKV_ERR_BUDGET:
	case OKV_ERR_BUSY:
		return ORBITKV_NO_SPACE;
	case OKV_ERR_STALE:
	case OKV_ERR_AHEAD:
	case OKV_ERR_ABSENT:
		return ORBITKV_STALE;
	case OKV_ERR_DAMAGED:
		return ORBITKV_DAMAGED;
	case OKV_ERR_CANCELLED:
		return ORBITKV_CANCELLED;
	default:
		return ORBITKV_FAILED;
	}
}

struct operation *okv__operation_start(struct orbitkv_client *client, enum okv_ring_op call)
{
	if (client->state != CONNECTION_READY || client->due == OPERATIONS_MAX)
		return NULL;
	for (uint32_t slot = 0; slot < OPERATIONS_MAX; slot++) {
		struct operation *operation = &client->operation[slot];

		if (operation->state != OPERATION_FREE)
			continue;
		*operation = (struct operation){
			.state = OPERATION_ASKED, .call = call, .completion = {.handle = client->next_handle++}};
		client->ring.is_taken[slot] = true;
		client->due++;
		return operation;
	}
	return NULL;
}

static void set_free(struct orbitkv_client *client, struct operation *operation)
{
	free(operation->arena_offset);
	free(operation->grants);
	*operation = (struct operation){0};
	client->ring.is_taken[slot_of(client, operation)] = false;
}

void okv__operation_abandon(struct orbitkv_client *client, struct operation *operation)
{
	client->due--;
	set_free(client, operation);
}

void okv__operation_ask(struct orbitkv_client *client, struct operation *operation, struct okv_ring_request request)
{
	request.slot = slot_of(client, operation);
	operation->state = OPERATION_ASKED;
	operation->asked = (enum okv_ring_op)request.op;
	operation->generation = okv_ring_client_send(&client->ring, &request);
	okv__client_ring_bell(client);
}

/* Queues the completion, once. */
static void complete(struct orbitkv_client *client, struct operation *operation)
{
	uint32_t at = (client->completed_first + client->completed_count) % OPERATIONS_MAX;

	if (operation->is_completed)
		return;
	operation->is_completed = true;
	if (operation->is_fetch)
		operation->completion.lease = 0;
	client->completed[at] = operation->completion;
	client->completed_count++;
}

static void finish(struct orbitkv_client *client, struct operation *operation)
{
	complete(client, operation);
	set_free(client, operation);
}

/* The copy is over, well or not: what is left of a fetch is to give the lease back. */
static void end_copy(struct orbitkv_client *client, struct operation *operation)
{
	if (!operation->is_fetch) {
		finish(client, operation);
		return;
	}
	uint64_t lease = operation->completion.lease;

	complete(client, operation);
	okv__operation_ask(client, operation, (struct okv_ring_request){.op = OKV_RING_RELEASE, .lease = lease});
}

static void prepared(struct orbitkv_client *client, struct operation *operation, const struct okv_ring_reply *reply)
{
	operation->cancel_is_due = false;
	operation->completion.lease = reply->lease;
	operation->completion.remote_bytes = reply->remote_bytes;
	if (!operation->is_fetch || reply->lease == 0) {
		operation->completion.blocks = reply->count;
		finish(client, operation);
	} else if (operation->is_cancelled) {
		operation->completion.status = ORBITKV_CANCELLED;
		end_copy(client, operation);
	} else {
		okv__operation_ask(client, operation,
				   (struct okv_ring_request){.op = OKV_RING_RESTORE, .lease = reply->lease});
	}
}

/* The grants are bounds-checked against the pool before a byte is read through them. */
static void granted(struct orbitkv_client *client, struct operation *operation, const struct okv_ring_reply *reply)
{
	if (reply->status != OKV_OK) {
		end_copy(client, operation);
		return;
	}
	if (operation->count > reply->count)
		operation->count = reply->count;
	for (uint32_t i = 0; i < operation->count; i++)
		if (client->grants[i].length != client->hello.page_bytes ||
		    client->grants[i].length > client->pool.size ||
		    client->grants[i].pool_offset > client->pool.size - client->grants[i].length)
			operation->completion.status = ORBITKV_INVALID;
	operation->grants = okv_alloc(operation->count + 1, sizeof(*operation->grants));
	if (!operation->grants)
		operation->completion.status = ORBITKV_NO_MEMORY;
	if (operation->completion.status != ORBITKV_OK) {
		end_copy(client, operation);
		return;
	}
	memcpy(operation->grants, client->grants, operation->count * sizeof(*operation->grants));
	operation->state = OPERATION_COPYING;
}

static void take_answer(struct orbitkv_client *client, const struct okv_ring_reply *reply)
{
	struct operation *operation;

	if (reply->slot >= OPERATIONS_MAX) { /* of a cancel request */
		okv_ring_client_give_slot(&client->ring, reply->slot);
		return;
	}
	operation = &client->operation[reply->slot];
	if (!operation->is_completed && operation->asked != OKV_RING_REPORT_DAMAGED)
		operation->completion.status = status_of(reply->status);
	switch (operation->asked) {
	case OKV_RING_PREPARE:
		prepared(client, operation, reply);
		break;
	case OKV_RING_RESTORE:
		granted(client, operation, reply);
		break;
	case OKV_RING_REPORT_DAMAGED:
		end_copy(client, operation);
		break;
	default:
		operation->completion.blocks = operation->is_completed ? operation->completion.blocks : reply->count;
		finish(client, operation);
		break;
	}
}

void okv__operations_take_answers(struct orbitkv_client *client)
{
	struct okv_ring_reply reply;
	enum okv_status status;

	while ((status = okv_ring_client_take(&client->ring, &reply, client->grants, &client->problem)) == OKV_OK)
		take_answer(client, &reply);
	if (status != OKV_ERR_ABSENT)
		okv__client_disconnect(client);
}

/* Copies a page and hashes the copy while it is in cache. */
static bool copy_page(struct orbitkv_client *client, const struct okv_ring_grant *grant, uint64_t arena_offset)
{
	enum { CHUNK = 64 << 10 };
	const uint8_t *from = client->pool.base + grant->pool_offset;
	uint8_t *to = client->arena + arena_offset;
	struct okv_crc_stream stream;
	struct okv_crc crc;

	okv_crc_stream_init(&stream);
	for (size_t done = 0, size; done < grant->length; done += size) {
		size = grant->length - done < CHUNK ? grant->length - done : CHUNK;
		memcpy(to + done, from + done, size);
		okv_crc_stream_update(&stream, to + done, size);
	}
	crc = okv_crc_stream_value(&stream);
	return okv_crc_equal(&crc, &grant->crc);
}

static void copy_slice(struct orbitkv_client *client, struct operation *operation)
{
	enum { PAGES = 4 };

	for (int i = 0; i < PAGES && !operation->is_cancelled && operation->copied < operation->count; i++) {
		uint32_t at = operation->copied;

		if (!copy_page(client, &operation->grants[at], operation->arena_offset[at])) {
			operation->completion.status = ORBITKV_DAMAGED;
			okv__operation_ask(client, operation,
					   (struct okv_ring_request){.op = OKV_RING_REPORT_DAMAGED,
								     .lease = operation->completion.lease,
								     .index = at});
			return;
		}
		operation->copied++;
		operation->completion.blocks++;
	}
	if (operation->copied == operation->count) {
		end_copy(client, operation);
	} else if (operation->is_cancelled) {
		operation->completion.status = ORBITKV_CANCELLED;
		end_copy(client, operation);
	}
}

static void send_cancel(struct orbitkv_client *client, struct operation *operation)
{
	struct okv_ring_request request = {.op = OKV_RING_CANCEL,
					   .target_slot = slot_of(client, operation),
					   .target_generation = operation->generation};

	for (request.slot = OPERATIONS_MAX; request.slot < OKV_RING_SLOTS; request.slot++) {
		if (client->ring.is_taken[request.slot])
			continue;
		client->ring.is_taken[request.slot] = true;
		okv_ring_client_send(&client->ring, &request);
		okv__client_ring_bell(client);
		operation->cancel_is_due = false;
		return;
	}
}

void okv__operations_work(struct orbitkv_client *client)
{
	for (int i = 0; i < OPERATIONS_MAX; i++)
		if (client->operation[i].cancel_is_due)
			send_cancel(client, &client->operation[i]);
	for (uint32_t i = 0; i < OPERATIONS_MAX; i++) {
		uint32_t at = (client->next_copy + i) % OPERATIONS_MAX;

		if (client->operation[at].state == OPERATION_COPYING) {
			client->next_copy = at + 1;
			copy_slice(client, &client->operation[at]);
			return;
		}
	}
}

bool okv__operations_have_work(const struct orbitkv_client *client)
{
	for (int i = 0; i < OPERATIONS_MAX; i++)
		if (client->operation[i].state == OPERATION_COPYING || client->operation[i].cancel_is_due)
			return true;
	return false;
}

void okv__operations_disconnected(struct orbitkv_client *client)
{
	for (int i = 0; i < OPERATIONS_MAX; i++) {
		struct operation *operation = &client->operation[i];

		if (operation->state == OPERATION_FREE)
			continue;
		if (!operation->is_completed) {
			operation->completion.status = ORBITKV_DISCONNECTED;
			operation->completion.lease = 0;
			if (operation->call != OKV_RING_PREPARE && operation->call != OKV_RING_RESTORE)
				operation->completion.blocks = 0;
		}
		finish(client, operation);
	}
}
