#include "dispatch.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>

#include "commands.h"

static const struct okv__command *const commands[] = {
	&okv__command_generate,
	&okv__command_serve,
	&okv__command_manager,
	NULL,
};

static void print_usage(FILE *file)
{
	fprintf(file, "Usage: orbitkv COMMAND [OPTIONS]\n\nCommands\n");
	for (size_t i = 0; commands[i]; i++)
		fprintf(file, "  %-12s %s\n", commands[i]->name, commands[i]->summary);
	fprintf(file, "\n`orbitkv COMMAND --help` explains one. `orbitkv --version` prints the version.\n");
}

static const char *command_name(const void *context, size_t index)
{
	(void)context;
	return commands[index]->name;
}

static int refuse_command(const char *name, FILE *complaints)
{
	size_t count = 0;
	const char *nearest;

	while (commands[count])
		count++;
	nearest = okv__nearest(name, count, command_name, NULL);
	fprintf(complaints, "orbitkv: there is no command '%s'", name);
	if (nearest)
		fprintf(complaints, "; did you mean '%s'?", nearest);
	fprintf(complaints, "\n`orbitkv --help` lists the commands.\n");
	return OKV__EXIT_USAGE;
}

/* What was asked for has been printed to `out`; the exit status. */
static int told(FILE *out, FILE *complaints)
{
	if (fflush(out) == 0 && !ferror(out))
		return OKV__EXIT_OK;
	fprintf(complaints, "orbitkv: standard output: %s\n", strerror(errno));
	return OKV__EXIT_FAILED;
}

static int run(const struct okv__command *command, int count, char *const *arguments, FILE *out, FILE *complaints)
{
	void *settings = calloc(1, command->settings_size);
	enum okv__asked asked = OKV__ASKED_HELP;
	struct okv_reason reason = {.field = ""};
	int exit_status = OKV__EXIT_OK;

	if (!settings) {
		fprintf(complaints, "orbitkv %s: no memory\n", command->name);
		return OKV__EXIT_FAILED;
	}
	if (okv__options_read(command, count, arguments, settings, &asked, &reason) != OKV_OK) {
		fprintf(complaints, "orbitkv %s: %s\n", command->name, reason.text);
		exit_status = OKV__EXIT_USAGE;
	} else if (asked == OKV__ASKED_HELP) {
		okv__options_help(command, out);
		exit_status = told(out, complaints);
	} else {
		exit_status = command->run(settings);
	}
	okv__options_done(command, settings);
	free(settings);
	return exit_status;
}

/* The command that is also installed under a name of its own. */
static const struct okv__command *command_of_program(const char *program)
{
	const char *slash = strrchr(program, '/');

	return strcmp(slash ? slash + 1 : program, "orbitkv-cache-manager") == 0 ? &okv__command_manager : NULL;
}

int okv__dispatch(int count, char *const *arguments, FILE *out, FILE *complaints)
{
	const struct okv__command *own = count > 0 ? command_of_program(arguments[0]) : NULL;

	if (own && (count < 2 || strcmp(arguments[1], "--version") != 0))
		return run(own, count - 1, arguments + 1, out, complaints);
	if (count < 2) {
		print_usage(complaints);
		return OKV__EXIT_USAGE;
	}
	bool is_help = strcmp(arguments[1], "help") == 0;
	if (strcmp(arguments[1], "--help") == 0 || strcmp(arguments[1], "-h") == 0 || (is_help && count == 2)) {
		print_usage(out);
		return told(out, complaints);
	}
	if (strcmp(arguments[1], "--version") == 0) {
		fprintf(out, "orbitkv %s\n", OKV_VERSION);
		return told(out, complaints);
	}
	const char *name = arguments[is_help ? 2 : 1];
	char help[] = "--help", *const only_help[] = {help};
	for (size_t i = 0; commands[i]; i++)
		if (strcmp(name, commands[i]->name) == 0)
			return is_help ? run(commands[i], 1, only_help, out, complaints)
				       : run(commands[i], count - 2, arguments + 2, out, complaints);
	return refuse_command(name, complaints);
}
