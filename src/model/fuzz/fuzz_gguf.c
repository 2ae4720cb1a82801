/* GGUF: any bytes are refused or give an object of which every part can be read. */
#include <stdint.h>
#include <stdlib.h>

#include "okv/model/gguf.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
	struct okv_gguf *gguf;
	struct okv_gguf_array array;
	struct okv_reason reason = {0};
	uint64_t sum = 0;

	if (okv_gguf_parse(data, size, &gguf, &reason)) {
		if (reason.text[0] == '\0')
			abort();
		return 0;
	}
	for (size_t i = 0; i < okv_gguf_tensor_count(gguf); i++) {
		const struct okv_gguf_tensor *tensor = okv_gguf_tensor_at(gguf, i);

		for (uint64_t at = 0; at < tensor->size; at++)
			sum += tensor->data[at];
	}
	if (!okv_gguf_array(gguf, "words", OKV_GGUF_STRING, &array, &reason))
		for (uint64_t i = 0; i < array.count; i++)
			for (size_t at = 0; at < array.strings[i].size; at++)
				sum += array.strings[i].data[at];
	okv_gguf_close(gguf);
	return sum == UINT64_MAX;
}
