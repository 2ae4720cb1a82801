/*
 * Options: one table per command, from which come its help text, its parser and its configuration file.
 *
 * A table row says which field of the command's settings an option fills, how its text is read, what it means and what
 * it is when nobody gives it. `--config FILE` belongs to every command: lines of `key = value`, keys are the names of
 * the flags, '#' starts a comment. Flags win over the file, the file over the defaults; within the file or the flags no
 * option is given twice, unless it is a list.
 *
 *     --name VALUE   --name=VALUE   --switch   --no-switch
 *
 * Settings are a plain struct of the command, zero-initialised by the caller; strings in it are owned by it and freed
 * by okv__options_done(). Refusals name the option, and suggest the nearest one when there is none of that name.
 */
#ifndef OKV_APP_OPTIONS_H
#define OKV_APP_OPTIONS_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>

#include "okv/base/status.h"

enum okv__option_kind {
	OKV__OPTION_STRING,  /* char *, not empty; NULL when not given */
	OKV__OPTION_STRINGS, /* struct okv__strings; may be given again */
	OKV__OPTION_INTEGER, /* uint64_t in [min, max] */
	OKV__OPTION_SIZE,    /* uint64_t in [min, max]: bytes, or with b, kb, mb, gb, tb (powers of 1024) */
	OKV__OPTION_REAL,    /* double in [min, max] */
	OKV__OPTION_SWITCH,  /* bool */
	OKV__OPTION_CHOICE,  /* unsigned: which of the words in `argument`, "one|two" */
};

struct okv__strings {
	char **item; /* owned, each too */
	size_t count;
};

struct okv__option {
	const char *name;
	enum okv__option_kind kind;
	size_t offset;	      /* of the field in the settings */
	const char *argument; /* how the help calls the value; the words of a choice; NULL for a switch */
	const char *fallback; /* the default, as it would be written; NULL for none */
	const char *help;     /* one sentence */
	uint64_t min, max;    /* of integers, sizes and reals; max 0: no limit */
};

struct okv__command {
	const char *name;
	const char *summary;	 /* one line, for the list of commands */
	const char *description; /* for the help text; ends in a newline */
	const struct okv__option *options;
	size_t option_count;
	size_t settings_size;
	/* Does the work; the process's exit status: 0 done, 1 failed, 2 wrong usage. */
	int (*run)(const void *settings);
};

enum okv__asked { OKV__ASKED_RUN, OKV__ASKED_HELP };

/*
 * Fills `settings` from defaults, configuration file and arguments. After OKV__ASKED_HELP, or a refusal, only
 * okv__options_done() may be called with them.
 */
OKV_MUST_CHECK enum okv_status okv__options_read(const struct okv__command *command, int count, char *const *arguments,
						 void *settings, enum okv__asked *ret_asked, struct okv_reason *reason);
void okv__options_done(const struct okv__command *command, void *settings);

void okv__options_help(const struct okv__command *command, FILE *file);

/* The name among `count` that is nearest to `word`, or NULL if none is near. `names` is called with 0 .. count - 1. */
const char *okv__nearest(const char *word, size_t count, const char *(*name)(const void *context, size_t index),
			 const void *context);

#endif
