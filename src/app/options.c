#include "options.h"

#include <ctype.h>
#include <errno.h>
#include <stdlib.h>
#include <string.h>

enum { OPTIONS_MAX = 64, NAME_MAX_BYTES = 63, CONFIG_LINE_MAX = 4096 };

/* A reading under way. */
struct reader {
	const struct okv__command *command;
	void *settings;
	struct okv_reason *reason;
	char where[96];			/* before a refusal's text: "" or the place in the file */
	unsigned line[OPTIONS_MAX];	/* of the file, on which it is given; 0 for none */
	bool is_from_flag[OPTIONS_MAX]; /* given on the command line already */
};

static const struct okv__option config_option = {.name = "config",
						 .kind = OKV__OPTION_STRING,
						 .argument = "FILE",
						 .help = "Read options from FILE: lines of `key = value`."};

static void *field_of(const struct okv__option *option, void *settings)
{
	return (char *)settings + option->offset;
}

/* Edit distance (Levenshtein), one row of the table at a time; SIZE_MAX for words that are too long to compare. */
static size_t distance(const char *a, const char *b)
{
	size_t row[NAME_MAX_BYTES + 2], length = strlen(b);

	if (length > NAME_MAX_BYTES || strlen(a) > NAME_MAX_BYTES)
		return SIZE_MAX;
	for (size_t j = 0; j <= length; j++)
		row[j] = j;
	for (size_t i = 1; a[i - 1]; i++) {
		size_t diagonal = row[0];

		row[0] = i;
		for (size_t j = 1; j <= length; j++) {
			size_t best = diagonal + (a[i - 1] != b[j - 1]);

			diagonal = row[j];
			if (row[j] + 1 < best)
				best = row[j] + 1;
			if (row[j - 1] + 1 < best)
				best = row[j - 1] + 1;
			row[j] = best;
		}
	}
	return row[length];
}

const char *okv__nearest(const char *word, size_t count, const char *(*name)(const void *context, size_t index),
			 const void *context)
{
	const char *best = NULL;
	size_t best_distance = strlen(word) / 3 + 2; /* further away it is no slip */

	for (size_t i = 0; i < count; i++) {
		size_t d = distance(word, name(context, i));

		if (d < best_distance) {
			best = name(context, i);
			best_distance = d;
		}
	}
	return best;
}

static const char *option_name(const void *context, size_t index)
{
	const struct okv__command *command = context;

	return index < command->option_count ? command->options[index].name : config_option.name;
}

/* -------- values -------- */

static enum okv_status refuse_value(const struct reader *reader, const struct okv__option *option, const char *text,
				    const char *expected)
{
	return okv_refuse(reader->reason, OKV_ERR_INVALID, option->name, "%s--%s takes %s, not '%.60s'", reader->where,
			  option->name, expected, text);
}

/* The number at the start of `text`; false if there is none or it is too large. */
static bool read_number(const char *text, const char **ret_end, uint64_t *ret_value)
{
	char *end;

	if (!isdigit((unsigned char)*text))
		return false;
	errno = 0;
	*ret_value = strtoull(text, &end, 10);
	*ret_end = end;
	return errno == 0;
}

/* How far left a size's suffix shifts; -1 for an unknown one. */
static int size_shift(const char *suffix)
{
	static const struct {
		const char *text;
		int shift;
	} suffixes[] = {{"", 0}, {"b", 0}, {"kb", 10}, {"mb", 20}, {"gb", 30}, {"tb", 40}};

	for (size_t i = 0; i < sizeof(suffixes) / sizeof(*suffixes); i++)
		if (strcasecmp(suffix, suffixes[i].text) == 0)
			return suffixes[i].shift;
	return -1;
}

static enum okv_status read_integer(const struct reader *reader, const struct okv__option *option, const char *text)
{
	uint64_t max = option->max ? option->max : UINT64_MAX, value;
	char expected[96];
	const char *end;
	int shift;

	snprintf(expected, sizeof(expected), "a whole number from %llu to %llu", (unsigned long long)option->min,
		 (unsigned long long)max);
	if (option->kind == OKV__OPTION_SIZE)
		snprintf(expected, sizeof(expected), "a size such as 512mb or 10gb, at least %llu bytes",
			 (unsigned long long)option->min);
	if (!read_number(text, &end, &value))
		return refuse_value(reader, option, text, expected);
	shift = option->kind == OKV__OPTION_SIZE ? size_shift(end) : (*end ? -1 : 0);
	if (shift < 0 || value > max >> shift || value << shift < option->min)
		return refuse_value(reader, option, text, expected);
	*(uint64_t *)field_of(option, reader->settings) = value << shift;
	return OKV_OK;
}

static enum okv_status read_real(const struct reader *reader, const struct okv__option *option, const char *text)
{
	char expected[64], *end;
	double value;

	snprintf(expected, sizeof(expected), "a number from %llu to %llu", (unsigned long long)option->min,
		 (unsigned long long)option->max);
	value = strtod(text, &end);
	if (end == text || *end || !(value >= (double)option->min && value <= (double)option->max))
		return refuse_value(reader, option, text, expected);
	*(double *)field_of(option, reader->settings) = value;
	return OKV_OK;
}

static enum okv_status read_choice(const struct reader *reader, const struct okv__option *option, const char *text)
{
	const char *word = option->argument;

	for (unsigned index = 0; *word; index++) {
		size_t length = strcspn(word, "|");

		if (strlen(text) == length && memcmp(text, word, length) == 0) {
			*(unsigned *)field_of(option, reader->settings) = index;
			return OKV_OK;
		}
		word += length + (word[length] == '|');
	}
	return refuse_value(reader, option, text, option->argument);
}

static enum okv_status no_memory(const struct reader *reader)
{
	return okv_refuse(reader->reason, OKV_ERR_NO_MEMORY, "", "no memory for the options");
}

static enum okv_status read_string(const struct reader *reader, const struct okv__option *option, const char *text)
{
	char **field = field_of(option, reader->settings), *copy;

	if (!*text) /* most likely a variable that a script did not set */
		return refuse_value(reader, option, text, option->argument);
	copy = strdup(text);
	if (!copy)
		return no_memory(reader);
	free(*field);
	*field = copy;
	return OKV_OK;
}

static enum okv_status add_string(const struct reader *reader, const struct okv__option *option, const char *text)
{
	struct okv__strings *strings = field_of(option, reader->settings);
	char **grown = realloc(strings->item, (strings->count + 1) * sizeof(*grown)), *copy = strdup(text);

	if (grown)
		strings->item = grown;
	if (!grown || !copy) {
		free(copy);
		return no_memory(reader);
	}
	strings->item[strings->count++] = copy;
	return OKV_OK;
}

static enum okv_status read_value(const struct reader *reader, const struct okv__option *option, const char *text)
{
	switch (option->kind) {
	case OKV__OPTION_STRING:
		return read_string(reader, option, text);
	case OKV__OPTION_STRINGS:
		return add_string(reader, option, text);
	case OKV__OPTION_INTEGER:
	case OKV__OPTION_SIZE:
		return read_integer(reader, option, text);
	case OKV__OPTION_REAL:
		return read_real(reader, option, text);
	case OKV__OPTION_CHOICE:
		return read_choice(reader, option, text);
	case OKV__OPTION_SWITCH:
		if (strcmp(text, "true") != 0 && strcmp(text, "false") != 0)
			return refuse_value(reader, option, text, "true or false");
		*(bool *)field_of(option, reader->settings) = *text == 't';
		return OKV_OK;
	}
	return OKV_ERR_INVALID;
}

static void clear_strings(struct okv__strings *strings)
{
	while (strings->count > 0)
		free(strings->item[--strings->count]);
	free(strings->item);
	strings->item = NULL;
}

void okv__options_done(const struct okv__command *command, void *settings)
{
	for (size_t i = 0; i < command->option_count; i++) {
		void *field = field_of(&command->options[i], settings);

		if (command->options[i].kind == OKV__OPTION_STRINGS)
			clear_strings(field);
		if (command->options[i].kind == OKV__OPTION_STRING) {
			free(*(char **)field);
			*(char **)field = NULL;
		}
	}
}

/* -------- names -------- */

static const struct okv__option *find(const struct okv__command *command, const char *name, size_t length)
{
	for (size_t i = 0; i < command->option_count; i++)
		if (strlen(command->options[i].name) == length && memcmp(command->options[i].name, name, length) == 0)
			return &command->options[i];
	return NULL;
}

static enum okv_status refuse_name(const struct reader *reader, const char *name, size_t length)
{
	const struct okv__command *command = reader->command;
	char word[NAME_MAX_BYTES + 1] = "";
	const char *nearest;

	memcpy(word, name, length < NAME_MAX_BYTES ? length : NAME_MAX_BYTES);
	nearest = okv__nearest(word, command->option_count + 1, option_name, command);
	if (nearest)
		return okv_refuse(reader->reason, OKV_ERR_INVALID, "option",
				  "%sthere is no option --%s; did you mean --%s?", reader->where, word, nearest);
	return okv_refuse(reader->reason, OKV_ERR_INVALID, "option",
			  "%sthere is no option --%s; see `orbitkv %s --help`", reader->where, word, command->name);
}

/* -------- the configuration file -------- */

static char *trim(char *text)
{
	char *end;

	while (isspace((unsigned char)*text))
		text++;
	end = text + strlen(text);
	while (end > text && isspace((unsigned char)end[-1]))
		end--;
	*end = '\0';
	return text;
}

static enum okv_status apply_key(struct reader *reader, const struct okv__option *option, const char *value,
				 unsigned number)
{
	unsigned *line = &reader->line[option - reader->command->options];

	if (*line && option->kind != OKV__OPTION_STRINGS)
		return okv_refuse(reader->reason, OKV_ERR_INVALID, option->name,
				  "%s%s is given twice, on line %u already", reader->where, option->name, *line);
	*line = number;
	return read_value(reader, option, value);
}

static enum okv_status read_line(struct reader *reader, char *line, unsigned number)
{
	const struct okv__option *option;
	char *key, *value;

	line[strcspn(line, "#\n")] = '\0';
	key = trim(line);
	if (!*key)
		return OKV_OK;
	value = strchr(key, '=');
	if (!value)
		return okv_refuse(reader->reason, OKV_ERR_INVALID, "config", "%s`%.60s` is not `key = value`",
				  reader->where, key);
	*value++ = '\0';
	key = trim(key);
	if (strcmp(key, config_option.name) == 0)
		return okv_refuse(reader->reason, OKV_ERR_INVALID, "config",
				  "%sa file cannot name another one; give --config on the command line", reader->where);
	option = find(reader->command, key, strlen(key));
	return option ? apply_key(reader, option, trim(value), number) : refuse_name(reader, key, strlen(key));
}

/* Like fgets(), which does not tell a NUL of the file from its own; *ret_is_text: the line is whole and holds none. */
static bool next_line(FILE *file, char line[CONFIG_LINE_MAX], bool *ret_is_text)
{
	memset(line, '\n', CONFIG_LINE_MAX);
	if (!fgets(line, CONFIG_LINE_MAX, file))
		return false;
	*ret_is_text =
		memrchr(line, '\0', CONFIG_LINE_MAX) == line + strlen(line) && (strchr(line, '\n') || feof(file));
	return true;
}

static enum okv_status read_config(struct reader *reader, const char *path)
{
	char line[CONFIG_LINE_MAX];
	enum okv_status status = OKV_OK;
	bool is_text;
	FILE *file = fopen(path, "re");

	if (!file)
		return okv_refuse(reader->reason, okv_status_from_errno(errno), "config", "%s: %s", path,
				  strerror(errno));
	for (unsigned number = 1; status == OKV_OK && next_line(file, line, &is_text); number++) {
		snprintf(reader->where, sizeof(reader->where), "%.60s, line %u: ", path, number);
		if (!is_text)
			status = okv_refuse(reader->reason, OKV_ERR_INVALID, "config",
					    "%sthe line is too long or holds a NUL; name a text file", reader->where);
		else
			status = read_line(reader, line, number);
	}
	if (status == OKV_OK && ferror(file))
		status = okv_refuse(reader->reason, OKV_ERR_IO, "config", "%s: %s", path, strerror(errno));
	reader->where[0] = '\0';
	fclose(file);
	return status;
}

/* -------- arguments -------- */

/* One flag, taken apart. */
struct flag {
	const struct okv__option *option;
	const char *value; /* NULL: none */
	bool is_negated;
};

/* Takes the flag at *at apart and moves *at behind it. */
static enum okv_status take_flag(const struct reader *reader, int count, char *const *arguments, int *at,
				 struct flag *ret_flag)
{
	const char *name = arguments[*at] + 2, *equals = strchr(name, '=');
	size_t length = equals ? (size_t)(equals - name) : strlen(name);
	struct flag flag = {.value = equals ? equals + 1 : NULL};

	(*at)++;
	if (length == strlen(config_option.name) && memcmp(name, config_option.name, length) == 0)
		flag.option = &config_option;
	else
		flag.option = find(reader->command, name, length);
	if (!flag.option && length > 3 && memcmp(name, "no-", 3) == 0) {
		flag.option = find(reader->command, name + 3, length - 3);
		flag.is_negated = true;
	}
	if (!flag.option || (flag.is_negated && flag.option->kind != OKV__OPTION_SWITCH))
		return refuse_name(reader, name, length);
	if (flag.option->kind == OKV__OPTION_SWITCH && flag.value)
		return okv_refuse(reader->reason, OKV_ERR_INVALID, flag.option->name,
				  "--%s takes no value; write --%s or --no-%s", flag.option->name, flag.option->name,
				  flag.option->name);
	if (flag.option->kind != OKV__OPTION_SWITCH && !flag.value) {
		if (*at == count)
			return okv_refuse(reader->reason, OKV_ERR_INVALID, flag.option->name, "--%s needs %s",
					  flag.option->name, flag.option->argument);
		flag.value = arguments[(*at)++];
	}
	*ret_flag = flag;
	return OKV_OK;
}

static enum okv_status apply_flag(struct reader *reader, const struct flag *flag)
{
	size_t index = (size_t)(flag->option - reader->command->options);
	bool is_again = reader->is_from_flag[index];

	reader->is_from_flag[index] = true;
	if (flag->option->kind == OKV__OPTION_STRINGS && !is_again)
		clear_strings(field_of(flag->option, reader->settings)); /* what the file said */
	else if (flag->option->kind != OKV__OPTION_STRINGS && is_again)
		return okv_refuse(reader->reason, OKV_ERR_INVALID, flag->option->name, "--%s is given twice",
				  flag->option->name);
	if (flag->option->kind == OKV__OPTION_SWITCH) {
		*(bool *)field_of(flag->option, reader->settings) = !flag->is_negated;
		return OKV_OK;
	}
	return read_value(reader, flag->option, flag->value);
}

/* Walks the flags: first only for --config, then for all others. */
static enum okv_status walk(struct reader *reader, int count, char *const *arguments, bool for_config)
{
	bool has_config = false;

	for (int at = 0; at < count;) {
		struct flag flag = {.option = NULL};
		enum okv_status status;

		if (strncmp(arguments[at], "--", 2) != 0 || !arguments[at][2])
			return okv_refuse(reader->reason, OKV_ERR_INVALID, "arguments",
					  "unexpected argument '%.60s'; options start with --", arguments[at]);
		status = take_flag(reader, count, arguments, &at, &flag);
		if (status != OKV_OK)
			return status;
		OKV_ASSERT(flag.option);
		if (flag.option == &config_option && for_config) {
			if (has_config)
				return okv_refuse(reader->reason, OKV_ERR_INVALID, "config", "--config is given twice");
			has_config = true;
			status = read_config(reader, flag.value);
		}
		if (flag.option != &config_option && !for_config)
			status = apply_flag(reader, &flag);
		if (status != OKV_OK)
			return status;
	}
	return OKV_OK;
}

static enum okv_status set_defaults(const struct reader *reader)
{
	for (size_t i = 0; i < reader->command->option_count; i++) {
		const struct okv__option *option = &reader->command->options[i];
		enum okv_status status = option->fallback ? read_value(reader, option, option->fallback) : OKV_OK;

		if (status != OKV_OK)
			return status;
	}
	return OKV_OK;
}

enum okv_status okv__options_read(const struct okv__command *command, int count, char *const *arguments, void *settings,
				  enum okv__asked *ret_asked, struct okv_reason *reason)
{
	struct reader reader = {.command = command, .settings = settings, .reason = reason};
	enum okv_status status;

	OKV_ASSERT(command->option_count <= OPTIONS_MAX);
	for (int i = 0; i < count; i++)
		if (strcmp(arguments[i], "--help") == 0 || strcmp(arguments[i], "-h") == 0) {
			*ret_asked = OKV__ASKED_HELP;
			return OKV_OK;
		}
	status = set_defaults(&reader);
	if (status == OKV_OK)
		status = walk(&reader, count, arguments, true);
	if (status == OKV_OK)
		status = walk(&reader, count, arguments, false);
	if (status == OKV_OK)
		*ret_asked = OKV__ASKED_RUN;
	return status;
}

/* -------- help -------- */

static void print_option(const struct okv__option *option, FILE *file)
{
	char left[64];

	snprintf(left, sizeof(left), "--%s%s%s", option->name, option->argument ? " " : "",
		 option->argument ? option->argument : "");
	fprintf(file, "  %-26s %s", left, option->help);
	if (option->fallback && option->kind != OKV__OPTION_SWITCH)
		fprintf(file, " (%s)", option->fallback);
	if (option->kind == OKV__OPTION_STRINGS)
		fprintf(file, " May be given again.");
	fputc('\n', file);
}

void okv__options_help(const struct okv__command *command, FILE *file)
{
	fprintf(file, "orbitkv %s: %s\n\n%s\nOptions (in parentheses: what holds without them)\n", command->name,
		command->summary, command->description);
	for (size_t i = 0; i < command->option_count; i++)
		print_option(&command->options[i], file);
	print_option(&config_option, file);
	fprintf(file, "  %-26s %s\n", "--help", "Print this.");
}
