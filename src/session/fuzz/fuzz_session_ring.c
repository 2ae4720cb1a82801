/*
 * A hostile engine: the input is a script of writes into the shared ring (u32 offset, u8 length, bytes), with the
 * manager's end taking, checking and answering in between. It may end the session; it may touch nothing else.
 */
#include <stddef.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>

#include "okv/base/cursor.h"
#include "okv/session/ring.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

/* Takes and answers what is there. False: the session is over. */
static bool serve(struct okv_ring_manager *ring)
{
	struct okv_ring_call call;
	struct okv_reason reason;
	enum okv_status status;

	while ((status = okv_ring_manager_take(ring, &call, &reason)) == OKV_OK) {
		struct okv_ring_reply reply = {.op = call.request.op, .slot = call.request.slot};

		reply.status = okv_ring_manager_check(ring, &call, &reason);
		if (okv_ring_manager_reply(ring, &reply, NULL, &reason) != OKV_OK)
			return false;
	}
	return status == OKV_ERR_ABSENT;
}

/* Fresh zeroed pages between two that fault; far cheaper than clearing ten megabytes for each input. */
static uint8_t *map_ring(void)
{
	const size_t guard = 4096;
	uint8_t *base =
		mmap(NULL, okv_ring_bytes() + 2 * guard, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);

	if (base == MAP_FAILED || mprotect(base + guard, okv_ring_bytes(), PROT_READ | PROT_WRITE) != 0)
		abort();
	return base + guard;
}

static void unmap_ring(uint8_t *base)
{
	const size_t guard = 4096;

	munmap(base - guard, okv_ring_bytes() + 2 * guard);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
	struct okv_ring_limits limits = {.page_bytes = 4096, .arena_bytes = 65536, .page_tokens = 16};
	struct okv_reader script = okv_reader_of(data, size);
	uint8_t *base = map_ring(), *scratch = malloc(OKV_RING_REQUEST_BYTES);
	struct okv_ring_client client;
	struct okv_ring_manager manager;
	struct okv_reason reason;

	if (!scratch)
		abort();
	okv_ring_client_init(&client, base);
	OKV_ASSERT(okv_ring_manager_init(&manager, base, scratch, &limits, &reason) == OKV_OK);
	while (okv_reader_left(&script) > 5) {
		size_t offset = okv_read_u32(&script) % okv_ring_bytes();
		size_t length = okv_read_u8(&script);

		if (length > okv_reader_left(&script))
			length = okv_reader_left(&script);
		if (length > okv_ring_bytes() - offset)
			length = okv_ring_bytes() - offset;
		if (length)
			memcpy(base + offset, okv_read_view(&script, length), length);
		if (!serve(&manager))
			break;
	}
	unmap_ring(base);
	free(scratch);
	return 0;
}
