/* Bootstrap messages: any bytes are refused, or are exactly what the encoder would have written. */
#include <stddef.h>
#include <stdint.h>
#include <string.h>

#include "okv/session/message.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
	struct okv_session_message message;
	struct okv_reason reason;
	uint8_t again[OKV_SESSION_MESSAGE_MAX];

	if (okv_session_decode(data, size, &message, &reason) != OKV_OK)
		return 0;
	OKV_ASSERT(okv_session_encode(&message, again) == size);
	OKV_ASSERT(memcmp(data, again, size) == 0);
	return 0;
}
