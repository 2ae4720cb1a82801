/* The option tables' machinery: every kind of value, the three sources and their order, and each refusal's words. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include <cmocka.h>

#include "dispatch.h"
#include "options.h"

struct settings {
	char *name;
	struct okv__strings peers;
	uint64_t count, pool;
	double heat;
	bool loud;
	unsigned dtype;
};

#define FIELD(name) offsetof(struct settings, name)

static const struct okv__option options[] = {
	{"name", OKV__OPTION_STRING, FIELD(name), "TEXT", "nobody", "A name.", 0, 0},
	{"peer", OKV__OPTION_STRINGS, FIELD(peers), "HOST", NULL, "A peer.", 0, 0},
	{"count", OKV__OPTION_INTEGER, FIELD(count), "N", "3", "How many.", 1, 10},
	{"pool-size", OKV__OPTION_SIZE, FIELD(pool), "SIZE", "1gb", "How large.", 4096, 1ULL << 40},
	{"heat", OKV__OPTION_REAL, FIELD(heat), "T", "0.5", "How hot.", 0, 2},
	{"loud", OKV__OPTION_SWITCH, FIELD(loud), NULL, NULL, "Say more.", 0, 0},
	{"dtype", OKV__OPTION_CHOICE, FIELD(dtype), "f16|f32", "f16", "Which type.", 0, 0},
};

static const struct okv__command command = {.name = "try",
					    .summary = "a command of this test",
					    .description = "Does nothing.\n",
					    .options = options,
					    .option_count = sizeof(options) / sizeof(*options),
					    .settings_size = sizeof(struct settings)};

#define READ(settings, asked, reason, ...)                                                                             \
	read_words(settings, asked, reason, (char *[]){__VA_ARGS__}, sizeof((char *[]){__VA_ARGS__}) / sizeof(char *))

static enum okv_status read_words(struct settings *settings, enum okv__asked *asked, struct okv_reason *reason,
				  char **words, size_t count)
{
	*settings = (struct settings){.name = NULL};
	return okv__options_read(&command, (int)count, words, settings, asked, reason);
}

static char word_name[] = "--name", word_loud[] = "--loud", word_peer[] = "--peer";
static char word_config[] = "--config";

static void defaults_hold_until_something_else_is_said(void **state)
{
	struct settings settings = {.name = NULL};
	enum okv__asked asked;

	(void)state;
	assert_int_equal(okv__options_read(&command, 0, NULL, &settings, &asked, NULL), OKV_OK);
	assert_int_equal(asked, OKV__ASKED_RUN);
	assert_string_equal(settings.name, "nobody");
	assert_int_equal(settings.count, 3);
	assert_int_equal(settings.pool, 1ULL << 30);
	assert_true(settings.heat == 0.5);
	assert_false(settings.loud);
	assert_int_equal(settings.dtype, 0);
	assert_int_equal(settings.peers.count, 0);
	okv__options_done(&command, &settings);
}

static void every_kind_of_value_is_read_in_both_spellings(void **state)
{
	struct settings settings;
	enum okv__asked asked;
	char name[] = "x=y", count[] = "--count=10", pool[] = "--pool-size=512MB", heat[] = "--heat=1.25";
	char dtype[] = "--dtype=f32", one[] = "one", two[] = "--peer=two";

	(void)state;
	assert_int_equal(READ(&settings, &asked, NULL, word_name, name, count, pool, heat, dtype, word_loud, word_peer,
			      one, two),
			 OKV_OK);
	assert_string_equal(settings.name, "x=y");
	assert_int_equal(settings.count, 10);
	assert_int_equal(settings.pool, 512 << 20);
	assert_true(settings.heat == 1.25);
	assert_int_equal(settings.dtype, 1);
	assert_true(settings.loud);
	assert_int_equal(settings.peers.count, 2);
	assert_string_equal(settings.peers.item[1], "two");
	okv__options_done(&command, &settings);
}

static void sizes_are_bytes_or_carry_a_suffix(void **state)
{
	static const struct {
		const char *text;
		uint64_t bytes; /* 0: refused */
	} cases[] = {{"4096", 4096},
		     {"8kb", 8192},
		     {"1mb", 1 << 20},
		     {"10gb", 10ULL << 30},
		     {"1tb", 1ULL << 40},
		     {"4095", 0},
		     {"2tb", 0},
		     {"", 0},
		     {"-1", 0},
		     {"1.5gb", 0},
		     {"10 gb", 0},
		     {"10xb", 0},
		     {"99999999999999999999", 0},
		     {"9999999999tb", 0}};

	(void)state;
	for (size_t i = 0; i < sizeof(cases) / sizeof(*cases); i++) {
		struct settings settings;
		struct okv_reason reason = {.field = ""};
		enum okv__asked asked;
		char word[64];

		snprintf(word, sizeof(word), "--pool-size=%s", cases[i].text);
		if (cases[i].bytes) {
			assert_int_equal(READ(&settings, &asked, &reason, word), OKV_OK);
			assert_int_equal(settings.pool, cases[i].bytes);
		} else {
			assert_int_equal(READ(&settings, &asked, &reason, word), OKV_ERR_INVALID);
			assert_non_null(strstr(reason.text, "a size such as 512mb or 10gb, at least 4096 bytes"));
		}
		okv__options_done(&command, &settings);
	}
}

static void refused_words_are_answered_with_what_would_be_right(void **state)
{
	static const struct {
		const char *words[3];
		const char *text;
	} cases[] = {
		{{"--cuont", "3"}, "there is no option --cuont; did you mean --count?"},
		{{"--cofnig", "f"}, "did you mean --config?"},
		{{"--zzzzzzzz"}, "there is no option --zzzzzzzz; see `orbitkv try --help`"},
		{{"--no-count"}, "there is no option --no-count"},
		{{"count"}, "unexpected argument 'count'"},
		{{"--"}, "unexpected argument '--'"},
		{{"--count"}, "--count needs N"},
		{{"--count", "11"}, "--count takes a whole number from 1 to 10, not '11'"},
		{{"--count", "0"}, "--count takes a whole number from 1 to 10, not '0'"},
		{{"--count", "3x"}, "not '3x'"},
		{{"--heat", "nan"}, "--heat takes a number from 0 to 2, not 'nan'"},
		{{"--heat=3"}, "not '3'"},
		{{"--heat="}, "not ''"},
		{{"--name="}, "--name takes TEXT, not ''"},
		{{"--name", ""}, "--name takes TEXT, not ''"},
		{{"--dtype", "f64"}, "--dtype takes f16|f32, not 'f64'"},
		{{"--dtype", "f1"}, "not 'f1'"},
		{{"--loud=yes"}, "--loud takes no value; write --loud or --no-loud"},
		{{"--count=1", "--count=2"}, "--count is given twice"},
		{{"--config", "/nonexistent/file"}, "/nonexistent/file: No such file"},
		{{"--config=a", "--config=b"}, "a: No such file"},
	};

	(void)state;
	for (size_t i = 0; i < sizeof(cases) / sizeof(*cases); i++) {
		struct settings settings = {.name = NULL};
		struct okv_reason reason = {.field = ""};
		enum okv__asked asked;
		char *words[3];
		int count = 0;

		for (; count < 3 && cases[i].words[count]; count++)
			words[count] = strdup(cases[i].words[count]);
		assert_int_not_equal(okv__options_read(&command, count, words, &settings, &asked, &reason), OKV_OK);
		if (!strstr(reason.text, cases[i].text))
			fail_msg("'%s' lacks '%s'", reason.text, cases[i].text);
		okv__options_done(&command, &settings);
		while (count > 0)
			free(words[--count]);
	}
}

/* Writes `text` to a file of its own and puts its path into `path`. */
static void write_file(char *path, const char *text)
{
	int fd;

	strcpy(path, "okv-options-XXXXXX");
	fd = mkstemp(path);
	assert_true(fd >= 0);
	assert_int_equal(write(fd, text, strlen(text)), strlen(text));
	close(fd);
}

static void flags_win_over_the_file_and_the_file_over_defaults(void **state)
{
	struct settings settings;
	struct okv_reason reason = {.field = ""};
	enum okv__asked asked;
	char path[32], count[] = "--count=4", peer[] = "--peer=mine";

	(void)state;
	write_file(path, "# a comment\n\n  name = from file  # and another\ncount=7\nloud = true\npeer = a\npeer = b");
	assert_int_equal(READ(&settings, &asked, &reason, count, word_config, path, peer), OKV_OK);
	assert_string_equal(settings.name, "from file");
	assert_int_equal(settings.count, 4);
	assert_true(settings.loud);
	assert_int_equal(settings.peers.count, 1);
	assert_string_equal(settings.peers.item[0], "mine");
	okv__options_done(&command, &settings);
	unlink(path);
}

static void a_bad_file_is_refused_with_its_line(void **state)
{
	static const struct {
		const char *text, *refusal;
	} cases[] = {
		{"count = 3\nnmae = x\n", "line 2: there is no option --nmae; did you mean --name?"},
		{"count = 11\n", "line 1: --count takes a whole number"},
		{"loud = yes\n", "line 1: --loud takes true or false, not 'yes'"},
		{"count\n", "line 1: `count` is not `key = value`"},
		{"name =\n", "line 1: --name takes TEXT, not ''"},
		{"config = other\n", "line 1: a file cannot name another one; give --config on the command line"},
		{"count = 3\nloud = true\n\ncount = 3\n", "line 4: count is given twice, on line 1 already"},
		{"loud = true\nloud = false\n", "line 2: loud is given twice, on line 1 already"},
	};

	(void)state;
	for (size_t i = 0; i < sizeof(cases) / sizeof(*cases); i++) {
		struct settings settings;
		struct okv_reason reason = {.field = ""};
		enum okv__asked asked;
		char path[32];

		write_file(path, cases[i].text);
		assert_int_equal(READ(&settings, &asked, &reason, word_config, path), OKV_ERR_INVALID);
		if (!strstr(reason.text, cases[i].refusal))
			fail_msg("'%s' lacks '%s'", reason.text, cases[i].refusal);
		okv__options_done(&command, &settings);
		unlink(path);
	}
}

/* fgets() and the text functions would read past a NUL, or read /dev/zero for ever. */
static void a_nul_in_a_file_is_refused(void **state)
{
	static const char text[] = "count = 3\nname = x\0y\n";
	const size_t sizes[] = {sizeof(text) - 1, sizeof(text) - 2, 0}; /* less the newline; 0: /dev/zero */

	(void)state;
	for (size_t i = 0; i < 3; i++) {
		char path[32] = "okv-options-XXXXXX", zero[] = "/dev/zero";
		struct settings settings;
		struct okv_reason reason = {.field = ""};
		enum okv__asked asked;
		int fd = mkstemp(path);

		assert_int_equal(write(fd, text, sizes[i]), sizes[i]);
		close(fd);
		assert_int_equal(READ(&settings, &asked, &reason, word_config, sizes[i] ? path : zero),
				 OKV_ERR_INVALID);
		assert_non_null(strstr(reason.text, sizes[i] ? "line 2: " : "line 1: "));
		assert_non_null(strstr(reason.text, "too long or holds a NUL"));
		okv__options_done(&command, &settings);
		unlink(path);
	}
}

static void a_line_that_is_too_long_is_refused(void **state)
{
	struct settings settings;
	struct okv_reason reason = {.field = ""};
	enum okv__asked asked;
	char path[32], text[6000];

	(void)state;
	memset(text, 'a', sizeof(text) - 1);
	text[sizeof(text) - 1] = '\0';
	write_file(path, text);
	assert_int_equal(READ(&settings, &asked, &reason, word_config, path), OKV_ERR_INVALID);
	assert_non_null(strstr(reason.text, "line 1: the line is too long"));
	okv__options_done(&command, &settings);
	unlink(path);
}

static void help_wins_and_names_every_option_with_its_default(void **state)
{
	struct settings settings;
	enum okv__asked asked;
	char bad[] = "--nonsense", help[] = "--help", *text = NULL;
	size_t size;
	FILE *file = open_memstream(&text, &size);

	(void)state;
	assert_int_equal(READ(&settings, &asked, NULL, bad, help), OKV_OK);
	assert_int_equal(asked, OKV__ASKED_HELP);
	okv__options_done(&command, &settings);
	okv__options_help(&command, file);
	fclose(file);
	for (size_t i = 0; i < command.option_count; i++)
		assert_non_null(strstr(text, options[i].name));
	assert_non_null(strstr(text, "--pool-size SIZE"));
	assert_non_null(strstr(text, "How large. (1gb)"));
	assert_non_null(strstr(text, "--config FILE"));
	free(text);
}

static char program[32] = "orbitkv";

static int dispatch(const char *first, const char *second, char *ret_out, char *ret_complaints)
{
	char *words[3] = {strdup(program), first ? strdup(first) : NULL, second ? strdup(second) : NULL};
	FILE *out = fmemopen(ret_out, 8192, "w"), *complaints = fmemopen(ret_complaints, 8192, "w");
	int status = okv__dispatch(1 + (first != NULL) + (second != NULL), words, out, complaints);

	fclose(out);
	fclose(complaints);
	for (int i = 0; i < 3; i++)
		free(words[i]);
	return status;
}

static void the_first_word_chooses_the_command(void **state)
{
	static char out[8192], complaints[8192];

	(void)state;
	assert_int_equal(dispatch("--version", NULL, out, complaints), 0);
	assert_int_equal(strncmp(out, "orbitkv ", 8), 0);
	assert_int_equal(dispatch("--help", NULL, out, complaints), 0);
	assert_non_null(strstr(out, "generate"));
	assert_int_equal(dispatch(NULL, NULL, out, complaints), 2);
	assert_non_null(strstr(complaints, "Usage"));
	assert_int_equal(dispatch("genrate", NULL, out, complaints), 2);
	assert_non_null(strstr(complaints, "did you mean 'generate'?"));
	assert_int_equal(dispatch("help", NULL, out, complaints), 0);
	assert_non_null(strstr(out, "Usage: orbitkv COMMAND"));
	assert_int_equal(dispatch("help", "serve", out, complaints), 0);
	assert_non_null(strstr(out, "orbitkv serve: "));
	assert_int_equal(dispatch("help", "sreve", out, complaints), 2);
	assert_non_null(strstr(complaints, "did you mean 'serve'?"));
	assert_int_equal(dispatch("generate", "--help", out, complaints), 0);
	assert_non_null(strstr(out, "--max-tokens N"));
	assert_int_equal(dispatch("generate", "--max-token=3", out, complaints), 2);
	assert_non_null(strstr(complaints, "did you mean --max-tokens?"));
}

static void the_cache_manager_has_a_program_name_of_its_own(void **state)
{
	static char out[8192], complaints[8192];

	(void)state;
	strcpy(program, "/usr/bin/orbitkv-cache-manager");
	assert_int_equal(dispatch("--help", NULL, out, complaints), 0);
	assert_non_null(strstr(out, "--pool-size SIZE"));
	assert_int_equal(dispatch("--version", NULL, out, complaints), 0);
	assert_int_equal(strncmp(out, "orbitkv ", 8), 0);
	assert_int_equal(dispatch("--pool-sise", "1gb", out, complaints), 2);
	assert_non_null(strstr(complaints, "did you mean --pool-size?"));
	strcpy(program, "orbitkv");
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(defaults_hold_until_something_else_is_said),
		cmocka_unit_test(every_kind_of_value_is_read_in_both_spellings),
		cmocka_unit_test(sizes_are_bytes_or_carry_a_suffix),
		cmocka_unit_test(refused_words_are_answered_with_what_would_be_right),
		cmocka_unit_test(flags_win_over_the_file_and_the_file_over_defaults),
		cmocka_unit_test(a_bad_file_is_refused_with_its_line),
		cmocka_unit_test(a_nul_in_a_file_is_refused),
		cmocka_unit_test(a_line_that_is_too_long_is_refused),
		cmocka_unit_test(help_wins_and_names_every_option_with_its_default),
		cmocka_unit_test(the_first_word_chooses_the_command),
		cmocka_unit_test(the_cache_manager_has_a_program_name_of_its_own),
	};

	return cmocka_run_group_tests_name("options", tests, NULL, NULL);
}
