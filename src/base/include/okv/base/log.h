/*
 * Log: one line a message on standard error, "2026-11-29T12:00:00.123Z level area: text". Only drivers and commands
 * log; pure modules never do. Who first sees a foreign failure logs it, once. Safe from any thread.
 */
#ifndef OKV_BASE_LOG_H
#define OKV_BASE_LOG_H

enum okv_log_level { OKV_LOG_ERROR, OKV_LOG_WARN, OKV_LOG_INFO, OKV_LOG_DEBUG };
#define OKV_LOG_LEVELS "error|warn|info|debug" /* their words, for an option */

/* Sets what is printed in this process; OKV_LOG_WARN until called. Call before threads start. */
void okv_log_set_level(enum okv_log_level level);

void okv_log(enum okv_log_level level, const char *area, const char *format, ...) __attribute__((format(printf, 3, 4)));

#endif
