#include "okv/base/address.h"

#include <stdlib.h>
#include <string.h>

enum okv_status okv_address_read(const char *option, const char *text, struct okv_address *ret_address,
				 struct okv_reason *reason)
{
	struct okv_address address = {.port = 0};
	const char *colon = strrchr(text, ':');
	const char *host = text;
	size_t size = colon ? (size_t)(colon - text) : 0;
	char *end;

	if (size >= 2 && host[0] == '[' && host[size - 1] == ']') {
		host++;
		size -= 2;
	} else if (colon && memchr(host, ':', size)) {
		colon = NULL; /* an IPv6 address needs its brackets */
	}
	if (!colon || size == 0 || size >= sizeof(address.host))
		return okv_refuse(reason, OKV_ERR_INVALID, option,
				  "--%s takes HOST:PORT, such as 127.0.0.1:9091 or [::1]:9091, not '%.80s'", option,
				  text);

	unsigned long port = strtoul(colon + 1, &end, 10);
	if (colon[1] < '0' || colon[1] > '9' || *end || port > UINT16_MAX)
		return okv_refuse(reason, OKV_ERR_INVALID, option, "--%s has no port within 0 and 65535 in '%.80s'",
				  option, text);
	memcpy(address.host, host, size);
	address.port = (uint16_t)port;
	*ret_address = address;
	return OKV_OK;
}
