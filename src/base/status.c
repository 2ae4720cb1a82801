#include "okv/base/status.h"

#include <errno.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>

const char *okv_status_name(enum okv_status status)
{
	switch (status) {
	case OKV_OK:
		return "ok";
	case OKV_ERR_INVALID:
		return "invalid";
	case OKV_ERR_UNSUPPORTED:
		return "unsupported";
	case OKV_ERR_ABSENT:
		return "absent";
	case OKV_ERR_EXISTS:
		return "exists";
	case OKV_ERR_MISMATCH:
		return "mismatch";
	case OKV_ERR_DAMAGED:
		return "damaged";
	case OKV_ERR_STALE:
		return "stale";
	case OKV_ERR_AHEAD:
		return "ahead";
	case OKV_ERR_BUSY:
		return "busy";
	case OKV_ERR_BUDGET:
		return "budget";
	case OKV_ERR_NO_SPACE:
		return "no_space";
	case OKV_ERR_CANCELLED:
		return "cancelled";
	case OKV_ERR_DEADLINE:
		return "deadline";
	case OKV_ERR_FAILED:
		return "failed";
	case OKV_ERR_DISCONNECTED:
		return "disconnected";
	case OKV_ERR_PROTOCOL:
		return "protocol";
	case OKV_ERR_VERSION:
		return "version";
	case OKV_ERR_PEER_GONE:
		return "peer_gone";
	case OKV_ERR_NO_MEMORY:
		return "no_memory";
	case OKV_ERR_IO:
		return "io";
	case OKV_ERR_PERMISSION:
		return "permission";
	}
	return "unknown";
}

enum okv_status okv_status_from_errno(int error)
{
	switch (error) {
	case ENOMEM:
		return OKV_ERR_NO_MEMORY;
	case ENOSPC:
		return OKV_ERR_NO_SPACE;
	case ENOENT:
		return OKV_ERR_ABSENT;
	case EEXIST:
	case EADDRINUSE:
		return OKV_ERR_EXISTS;
	case EACCES:
	case EPERM:
		return OKV_ERR_PERMISSION;
	case EINVAL:
		return OKV_ERR_INVALID;
	case ECONNRESET:
	case EPIPE:
	case ECONNREFUSED:
	case ENOTCONN:
		return OKV_ERR_DISCONNECTED;
	default:
		return OKV_ERR_IO;
	}
}

enum okv_status okv_refuse(struct okv_reason *reason, enum okv_status status, const char *field, const char *format,
			   ...)
{
	va_list arguments;

	if (!reason)
		return status;
	reason->field = field;
	va_start(arguments, format);
	vsnprintf(reason->text, sizeof(reason->text), format, arguments);
	va_end(arguments);
	return status;
}

void okv_assert_failed(const char *file, int line, const char *what)
{
	fprintf(stderr, "orbitkv: a promise of our own code does not hold: %s (%s:%d)\n", what, file, line);
	abort();
}
