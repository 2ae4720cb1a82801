/* The key decoder: whatever it accepts must encode to the same bytes again. */
#include <stddef.h>
#include <stdint.h>
#include <string.h>

#include "okv/span/identity.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
	struct okv_materialisation_key key;
	uint8_t again[OKV_KEY_ENCODED_MAX];

	if (okv_key_decode(data, size, &key, NULL) != OKV_OK)
		return 0;
	OKV_ASSERT(okv_key_encode(&key, again) == size);
	OKV_ASSERT(memcmp(again, data, size) == 0);
	return 0;
}
