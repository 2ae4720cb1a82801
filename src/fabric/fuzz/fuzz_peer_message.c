/* The peer message decoder: whatever it accepts must encode to the same bytes again. */
#include <stddef.h>
#include <stdint.h>
#include <string.h>

#include "okv/fabric/peer_message.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
	struct okv_peer_message message;
	uint8_t again[OKV_PEER_FRAME_BYTES_MAX];

	if (okv_peer_decode(data, size, &message, NULL) != OKV_OK)
		return 0;
	OKV_ASSERT(okv_peer_encode(&message, again) == size);
	OKV_ASSERT(memcmp(again, data, size) == 0);
	return 0;
}
