/* The commands of `orbitkv`, one file each: command_NAME.c holds its option table and its wiring, nothing else. */
#ifndef OKV_APP_COMMANDS_H
#define OKV_APP_COMMANDS_H

#include "options.h"

extern const struct okv__command okv__command_generate;
extern const struct okv__command okv__command_serve;
extern const struct okv__command okv__command_manager;

#endif
