#include "okv/base/log.h"

#include <stdarg.h>
#include <stdatomic.h>
#include <stdio.h>
#include <time.h>
#include <unistd.h>

static const char *const level_names[] = {"error", "warn", "info", "debug"};
static _Atomic int level_max = OKV_LOG_WARN; /* of the process; set before threads start */

void okv_log_set_level(enum okv_log_level level)
{
	level_max = (int)level;
}

void okv_log(enum okv_log_level level, const char *area, const char *format, ...)
{
	char line[1024];
	struct timespec now;
	struct tm parts;
	va_list arguments;

	if ((int)level > level_max)
		return;
	clock_gettime(CLOCK_REALTIME, &now);
	gmtime_r(&now.tv_sec, &parts);

	size_t used = strftime(line, sizeof(line), "%Y-%m-%dT%H:%M:%S", &parts);
	int head = snprintf(line + used, sizeof(line) - used, ".%03ldZ %s %s: ", now.tv_nsec / 1000000,
			    level_names[level], area);
	used += head > 0 ? (size_t)head : 0;

	va_start(arguments, format);
	int body = vsnprintf(line + used, sizeof(line) - used - 1, format, arguments);
	va_end(arguments);
	used += body > 0 ? (size_t)body : 0;
	if (used > sizeof(line) - 2)
		used = sizeof(line) - 2;
	line[used++] = '\n';

	/* One write, so that lines of several threads and processes do not mix. */
	if (write(STDERR_FILENO, line, used) < 0)
		return;
}
