/* Address: "HOST:PORT" of the command line, "[HOST]:PORT" for IPv6. */
#ifndef OKV_BASE_ADDRESS_H
#define OKV_BASE_ADDRESS_H

#include <stdint.h>

#include "okv/base/status.h"

enum { OKV_HOST_MAX = 64 };

struct okv_address {
	char host[OKV_HOST_MAX]; /* without brackets */
	uint16_t port;
};

/* `option` (static) is the option's name, for the refusal. */
OKV_MUST_CHECK enum okv_status okv_address_read(const char *option, const char *text, struct okv_address *ret_address,
						struct okv_reason *reason);

#endif
