/* Any body is read or refused with a status and a sentence, as a chat and as a completion. */
#include <stdint.h>
#include <stdlib.h>

#include "serve_request.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
	for (int is_chat = 0; is_chat < 2; is_chat++) {
		struct okv__ask ask;
		struct okv__refusal refusal = {0};

		if (okv__ask_read(is_chat, (const char *)data, size, 1 << 16, &ask, &refusal) == OKV_OK) {
			if (is_chat ? ask.message_count == 0 : ask.text && ask.ids.count > 0)
				abort();
			okv__ask_done(&ask);
		} else if (refusal.http_status < 400 || !refusal.type || refusal.reason.text[0] == '\0') {
			abort();
		}
	}
	return 0;
}
