/*
 * Log: one line a message on standard error, "2026-11-29T12:00:00.123Z level area: text". Only drivers and commands
 * log; pure modules never do. Who first sees a foreign failure logs it, once. Safe from any thread.
 */
#ifndef OKV_BASE_LOG_H
#define OKV_BASE_LOG_H

#include <stdbool.h>

enum okv_log_level { OKV_LOG_ERROR, OKV_LOG_WARN, OKV_LOG_INFO, OKV_LOG_DEBUG };

/* Sets what is printed in this process; OKV_LOG_WARN until called. Call before threads start. */
void okv_log_set_level(enum okv_log_level level);

/* Reads "error", "warn", "info" or "debug". False, and nothing written, for anything else. */
bool okv_log_level_from_name(const char *name, enum okv_log_level *ret_level);

void okv_log(enum okv_log_level level, const char *area, const char *format, ...) __attribute__((format(printf, 3, 4)));

#endif
