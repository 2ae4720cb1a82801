/*
 * The GGUF reader: what a true file gives, and one refusal for each rule of docs/formats/gguf.md. A refused file is
 * built next to an accepted one that differs in nothing else where that is not obvious, so that a check can fail.
 */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/resource.h>
#include <unistd.h>

#include <cmocka.h>

#include "gguf_builder.h"

/* A sanitizer maps terabytes of address space for itself. */
#if defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__)
#define UNDER_SANITIZER true
#elif defined(__has_feature)
#define UNDER_SANITIZER (__has_feature(address_sanitizer) || __has_feature(thread_sanitizer))
#else
#define UNDER_SANITIZER false
#endif

static const float ones[64] = {1, 1, 1, 1, 1, 1, 1, 1};

static enum okv_status parse(const struct gguf_builder *builder, struct okv_gguf **ret_gguf, struct okv_reason *reason)
{
	struct okv_buf file = {0};

	gguf_write(builder, &file);
	enum okv_status status = okv_gguf_parse(file.data, file.size, ret_gguf, reason);
	okv_buf_done(&file);
	return status;
}

/* The file of `builder` must be refused with `status` and a text that holds `words`. */
/* Every refusal ends by saying what to do. */
static bool says_what_to_do(const char *text)
{
	static const char *const ends[] = {"fetch it again",
					   "take another",
					   "convert the model again",
					   "requantise the model",
					   "merge them with llama-gguf-split",
					   "convert it to little-endian",
					   "name a .gguf file"};

	for (size_t i = 0; i < sizeof(ends) / sizeof(*ends); i++)
		if (strstr(text, ends[i]))
			return true;
	return false;
}

static void assert_refused(struct gguf_builder *builder, enum okv_status status, const char *words)
{
	struct okv_gguf *gguf = NULL;
	struct okv_reason reason = {0};

	assert_int_equal(parse(builder, &gguf, &reason), status);
	assert_null(gguf);
	if (!strstr(reason.text, words))
		fail_msg("\"%s\" does not say \"%s\"", reason.text, words);
	if (!says_what_to_do(reason.text))
		fail_msg("\"%s\" does not say what to do", reason.text);
	gguf_builder_done(builder);
}

static void assert_accepted(struct gguf_builder *builder)
{
	struct okv_gguf *gguf = NULL;
	struct okv_reason reason = {0};

	if (parse(builder, &gguf, &reason))
		fail_msg("refused: %s", reason.text);
	okv_gguf_close(gguf);
	gguf_builder_done(builder);
}

static void add_vector(struct gguf_builder *builder, const char *name, uint64_t values)
{
	gguf_add_tensor(builder, name, OKV_TENSOR_F32, 1, &values, ones, (size_t)values * 4);
}

static struct gguf_builder small_file(void)
{
	struct gguf_builder builder = {0};
	int32_t numbers[3] = {1, -2, 3};

	gguf_add_string(&builder, "name", "small");
	gguf_add_u32(&builder, "count", 7);
	gguf_add_bool(&builder, "flag", true);
	gguf_add_f32(&builder, "half", 0.5F);
	gguf_add_strings(&builder, "words", (const char *const[]){"one", "", "three"}, 3);
	gguf_add_array(&builder, "numbers", OKV_GGUF_I32, numbers, 3, 4);
	add_vector(&builder, "zeta", 3);
	add_vector(&builder, "alpha", 8);
	return builder;
}

static void every_kind_of_value_is_read_back(void **state)
{
	(void)state;
	struct gguf_builder builder = small_file();
	struct okv_gguf *gguf;
	struct okv_gguf_array array;
	struct okv_bytes text;
	struct okv_reason reason;
	uint64_t number;
	double real;
	bool flag = false;
	int32_t second;

	assert_int_equal(parse(&builder, &gguf, &reason), OKV_OK);
	assert_int_equal(okv_gguf_string(gguf, "name", &text, &reason), OKV_OK);
	assert_int_equal(text.size, 5);
	assert_memory_equal(text.data, "small", 5);
	assert_int_equal(okv_gguf_uint(gguf, "count", 7, &number, &reason), OKV_OK);
	assert_int_equal(number, 7);
	assert_int_equal(okv_gguf_bool(gguf, "flag", &flag, &reason), OKV_OK);
	assert_true(flag);
	assert_int_equal(okv_gguf_float(gguf, "half", &real, &reason), OKV_OK);
	assert_true(real == 0.5);
	assert_int_equal(okv_gguf_array(gguf, "words", OKV_GGUF_STRING, &array, &reason), OKV_OK);
	assert_int_equal(array.count, 3);
	assert_int_equal(array.strings[1].size, 0);
	assert_memory_equal(array.strings[2].data, "three", 5);
	assert_int_equal(okv_gguf_array(gguf, "numbers", OKV_GGUF_I32, &array, &reason), OKV_OK);
	memcpy(&second, array.data + 4, 4);
	assert_int_equal(second, -2);

	assert_int_equal(okv_gguf_tensor_count(gguf), 2);
	const struct okv_gguf_tensor *alpha = okv_gguf_tensor_find(gguf, "alpha");
	assert_ptr_equal(alpha, okv_gguf_tensor_at(gguf, 0));
	assert_int_equal(alpha->size, 32);
	assert_int_equal(alpha->extent[0], 8);
	assert_int_equal(alpha->extent[3], 1);
	assert_memory_equal(alpha->data, ones, 32);
	assert_null(okv_gguf_tensor_find(gguf, "beta"));
	okv_gguf_close(gguf);
	gguf_builder_done(&builder);
}

static void absent_keys_and_other_types_are_told_apart(void **state)
{
	(void)state;
	struct gguf_builder builder = small_file();
	struct okv_gguf *gguf;
	struct okv_gguf_array array;
	struct okv_bytes text;
	struct okv_reason reason;
	uint64_t number;
	double real;
	bool flag;

	gguf_add_raw(&builder, "minus", OKV_GGUF_I8, "\xff", 1);
	gguf_add_raw(&builder, "infinite", OKV_GGUF_F32, "\0\0\x80\x7f", 4);
	gguf_add_raw(&builder, "wide", OKV_GGUF_U64, "\xff\xff\xff\xff\xff\xff\xff\xff", 8);
	assert_int_equal(parse(&builder, &gguf, &reason), OKV_OK);
	assert_int_equal(okv_gguf_uint(gguf, "none", 9, &number, &reason), OKV_ERR_ABSENT);
	assert_non_null(strstr(reason.text, "none"));
	assert_int_equal(okv_gguf_uint(gguf, "name", 9, &number, &reason), OKV_ERR_INVALID);
	assert_int_equal(okv_gguf_uint(gguf, "count", 6, &number, &reason), OKV_ERR_INVALID);
	assert_int_equal(okv_gguf_uint(gguf, "minus", UINT64_MAX, &number, &reason), OKV_ERR_INVALID);
	assert_int_equal(okv_gguf_uint(gguf, "wide", INT64_MAX, &number, &reason), OKV_ERR_INVALID);
	assert_int_equal(okv_gguf_uint(gguf, "flag", 9, &number, &reason), OKV_ERR_INVALID);
	assert_int_equal(okv_gguf_float(gguf, "none", &real, &reason), OKV_ERR_ABSENT);
	assert_int_equal(okv_gguf_float(gguf, "count", &real, &reason), OKV_ERR_INVALID);
	assert_int_equal(okv_gguf_float(gguf, "infinite", &real, &reason), OKV_ERR_INVALID);
	assert_int_equal(okv_gguf_bool(gguf, "none", &flag, &reason), OKV_ERR_ABSENT);
	assert_int_equal(okv_gguf_bool(gguf, "count", &flag, &reason), OKV_ERR_INVALID);
	assert_int_equal(okv_gguf_string(gguf, "none", &text, &reason), OKV_ERR_ABSENT);
	assert_int_equal(okv_gguf_string(gguf, "words", &text, &reason), OKV_ERR_INVALID);
	assert_int_equal(okv_gguf_array(gguf, "none", OKV_GGUF_I32, &array, &reason), OKV_ERR_ABSENT);
	assert_int_equal(okv_gguf_array(gguf, "words", OKV_GGUF_I32, &array, &reason), OKV_ERR_INVALID);
	assert_int_equal(okv_gguf_array(gguf, "name", OKV_GGUF_STRING, &array, &reason), OKV_ERR_INVALID);
	okv_gguf_close(gguf);
	gguf_builder_done(&builder);
}

static void every_integer_type_is_read_as_a_number(void **state)
{
	(void)state;
	static const struct {
		const char *key;
		enum okv_gguf_type type;
		size_t size;
	} kinds[] = {{"u8", OKV_GGUF_U8, 1},   {"i8", OKV_GGUF_I8, 1},	 {"u16", OKV_GGUF_U16, 2},
		     {"i16", OKV_GGUF_I16, 2}, {"u32", OKV_GGUF_U32, 4}, {"i32", OKV_GGUF_I32, 4},
		     {"u64", OKV_GGUF_U64, 8}, {"i64", OKV_GGUF_I64, 8}};
	struct gguf_builder builder = {0};
	struct okv_gguf *gguf;
	struct okv_reason reason;
	double real;

	for (size_t i = 0; i < sizeof(kinds) / sizeof(kinds[0]); i++)
		gguf_add_raw(&builder, kinds[i].key, kinds[i].type, "\x2a\0\0\0\0\0\0", kinds[i].size);
	gguf_add_raw(&builder, "f64", OKV_GGUF_F64, "\0\0\0\0\0\0\xf8\x3f", 8);
	assert_int_equal(parse(&builder, &gguf, &reason), OKV_OK);
	for (size_t i = 0; i < sizeof(kinds) / sizeof(kinds[0]); i++) {
		uint64_t number = 0;

		assert_int_equal(okv_gguf_uint(gguf, kinds[i].key, 42, &number, &reason), OKV_OK);
		assert_int_equal(number, 42);
	}
	assert_int_equal(okv_gguf_float(gguf, "f64", &real, &reason), OKV_OK);
	assert_true(real == 1.5);
	okv_gguf_close(gguf);
	gguf_builder_done(&builder);
}

static void both_versions_are_read_and_no_other(void **state)
{
	(void)state;
	struct gguf_builder builder = small_file();

	builder.version = 2;
	assert_accepted(&builder);
	for (const uint32_t *version = (const uint32_t[]){1, 4, 0xffff, 0}; *version; version++) {
		builder = small_file();
		builder.version = *version;
		assert_refused(&builder, OKV_ERR_UNSUPPORTED, "version");
	}
	builder = small_file();
	builder.version = 3U << 24;
	assert_refused(&builder, OKV_ERR_UNSUPPORTED, "big-endian");
}

static void another_file_format_is_refused(void **state)
{
	(void)state;
	struct okv_gguf *gguf;
	struct okv_reason reason;

	assert_int_equal(okv_gguf_parse("PK\3\4 and so on, for long", 24, &gguf, &reason), OKV_ERR_INVALID);
	assert_non_null(strstr(reason.text, "not a GGUF file"));
}

static void file_cut_at_any_byte_is_refused(void **state)
{
	(void)state;
	struct gguf_builder builder = small_file();
	struct okv_buf file = {0};
	struct okv_gguf *gguf = NULL;

	gguf_write(&builder, &file);
	for (size_t size = 0; size < file.size; size++) {
		struct okv_reason reason = {0};

		assert_int_equal(okv_gguf_parse(file.data, size, &gguf, &reason), OKV_ERR_INVALID);
		assert_int_not_equal(reason.text[0], 0);
	}
	assert_int_equal(okv_gguf_parse(file.data, file.size, &gguf, NULL), OKV_OK);
	okv_gguf_close(gguf);
	okv_buf_done(&file);
	gguf_builder_done(&builder);
}

/* Any byte may be anything: the reader must only stay inside the file (the sanitizers watch) and give a status. */
static void file_with_any_byte_changed_is_survived(void **state)
{
	(void)state;
	struct gguf_builder builder = small_file();
	struct okv_buf file = {0};

	gguf_write(&builder, &file);
	for (size_t at = 0; at < file.size; at++) {
		char true_byte = file.data[at];

		for (const char *lie = "\x01\x7f\x80\xff"; *lie; lie++) {
			struct okv_gguf *gguf = NULL;
			struct okv_reason reason;

			file.data[at] = *lie;
			if (!okv_gguf_parse(file.data, file.size, &gguf, &reason))
				okv_gguf_close(gguf);
		}
		file.data[at] = true_byte;
	}
	okv_buf_done(&file);
	gguf_builder_done(&builder);
}

static void lying_counts_are_refused(void **state)
{
	(void)state;
	for (const uint64_t *more = (const uint64_t[]){65536, 1ULL << 32, UINT64_MAX - 100, 0}; *more; more++) {
		struct gguf_builder builder = small_file();

		builder.pairs_claimed = *more;
		assert_refused(&builder, OKV_ERR_INVALID, "metadata pairs do not fit");
		builder = small_file();
		builder.tensors_claimed = *more;
		assert_refused(&builder, OKV_ERR_INVALID, "tensors do not fit");
	}
}

/* With 256 MiB of address space left, a file of under 200 bytes that claims anything must still be refused as a lie. */
static void tiny_file_claiming_much_allocates_little(void **state)
{
	(void)state;
	struct rlimit before, tight;
	struct gguf_builder builder;
	struct {
		uint32_t element;
		uint64_t count;
	} __attribute__((packed)) claims[] = {
		{OKV_GGUF_STRING, 16 << 20}, {OKV_GGUF_U64, 16 << 20}, {OKV_GGUF_F64, 16 << 20}, {OKV_GGUF_U8, 1000}};

	assert_int_equal(getrlimit(RLIMIT_AS, &before), 0);
	tight = before;
	if (!UNDER_SANITIZER)
		tight.rlim_cur = 256 << 20;
	assert_int_equal(setrlimit(RLIMIT_AS, &tight), 0);
	for (size_t i = 0; i < sizeof(claims) / sizeof(claims[0]); i++) {
		builder = (struct gguf_builder){0};
		gguf_add_raw(&builder, "array", OKV_GGUF_ARRAY, &claims[i], sizeof(claims[i]));
		assert_refused(&builder, OKV_ERR_INVALID, "array");
	}
	builder = (struct gguf_builder){0};
	gguf_add_raw(&builder, "text", OKV_GGUF_STRING, "\xff\xff\x0f\0\0\0\0\0", 8);
	assert_refused(&builder, OKV_ERR_INVALID, "text");
	builder = (struct gguf_builder){0};
	gguf_add_row(&builder, "big", OKV_TENSOR_F32, 2, (uint64_t[]){1ULL << 31, 1ULL << 31}, 0);
	assert_refused(&builder, OKV_ERR_INVALID, "big");
	assert_int_equal(setrlimit(RLIMIT_AS, &before), 0);
}

static void lengths_over_the_caps_are_refused(void **state)
{
	(void)state;
	struct gguf_builder builder = {0};
	struct okv_buf text = {0};

	while (text.size <= 1 << 20)
		okv_buf_text(&text, "sixteen letters.");
	gguf_add_string(&builder, "long", text.data);
	assert_refused(&builder, OKV_ERR_INVALID, "more than the 1048576");
	text.data[65536] = '\0';
	gguf_add_u32(&builder, text.data, 1);
	assert_refused(&builder, OKV_ERR_INVALID, "more than the 65535");
	text.data[65535] = '\0';
	gguf_add_u32(&builder, text.data, 1);
	assert_accepted(&builder);
	okv_buf_done(&text);

	gguf_add_raw(&builder, "many", OKV_GGUF_ARRAY, "\0\0\0\0\1\0\0\1\0\0\0\0", 12);
	assert_refused(&builder, OKV_ERR_INVALID, "16777217 elements");
}

static void empty_and_repeated_keys_are_refused(void **state)
{
	(void)state;
	struct gguf_builder builder = {0};

	gguf_add_u32(&builder, "", 1);
	assert_refused(&builder, OKV_ERR_INVALID, "key is empty");
	gguf_add_u32(&builder, "once", 1);
	gguf_add_u32(&builder, "other", 1);
	gguf_add_string(&builder, "once", "again");
	assert_refused(&builder, OKV_ERR_INVALID, "once stands there twice");
}

static void unknown_metadata_types_and_nested_arrays_are_refused(void **state)
{
	(void)state;
	struct gguf_builder builder = {0};

	gguf_add_raw(&builder, "odd", 13, "\0\0\0\0\0\0\0\0", 8);
	assert_refused(&builder, OKV_ERR_INVALID, "unknown metadata type 13");
	gguf_add_raw(&builder, "odd", OKV_GGUF_ARRAY, "\x0d\0\0\0\0\0\0\0\0\0\0\0", 12);
	assert_refused(&builder, OKV_ERR_INVALID, "unknown type 13");
	gguf_add_raw(&builder, "odd", OKV_GGUF_ARRAY, "\x09\0\0\0\0\0\0\0\0\0\0\0", 12);
	assert_refused(&builder, OKV_ERR_UNSUPPORTED, "array of arrays");
}

static void bools_other_than_zero_and_one_are_refused(void **state)
{
	(void)state;
	struct gguf_builder builder = {0};

	gguf_add_raw(&builder, "flag", OKV_GGUF_BOOL, "\2", 1);
	assert_refused(&builder, OKV_ERR_INVALID, "flag holds 2");
	gguf_add_array(&builder, "flags", OKV_GGUF_BOOL, "\1\0\xff", 3, 1);
	assert_refused(&builder, OKV_ERR_INVALID, "flags holds 255");
	gguf_add_array(&builder, "flags", OKV_GGUF_BOOL, "\1\0\1", 3, 1);
	assert_accepted(&builder);
}

static void alignment_out_of_bounds_is_refused(void **state)
{
	(void)state;
	for (const uint32_t *bad = (const uint32_t[]){4, 24, 1 << 21, UINT32_MAX, 0}; *bad; bad++) {
		struct gguf_builder builder = {0};

		gguf_add_u32(&builder, "general.alignment", *bad);
		assert_refused(&builder, OKV_ERR_INVALID, "alignment");
	}
	struct gguf_builder builder = {0};
	gguf_add_u32(&builder, "general.alignment", 0);
	assert_refused(&builder, OKV_ERR_INVALID, "alignment");
	gguf_add_string(&builder, "general.alignment", "32");
	assert_refused(&builder, OKV_ERR_INVALID, "alignment");

	builder.alignment = 64;
	gguf_add_u32(&builder, "general.alignment", 64);
	add_vector(&builder, "a", 3);
	add_vector(&builder, "b", 3);
	assert_accepted(&builder);
}

static void one_shard_of_a_split_model_is_refused(void **state)
{
	(void)state;
	struct gguf_builder builder = small_file();

	gguf_add_u32(&builder, "split.count", 2);
	assert_refused(&builder, OKV_ERR_UNSUPPORTED, "split");
	builder = small_file();
	gguf_add_u32(&builder, "split.count", 1);
	assert_accepted(&builder);
}

static void tensor_names_are_checked(void **state)
{
	(void)state;
	struct gguf_builder builder = {0};
	char name[65];

	add_vector(&builder, "", 1);
	assert_refused(&builder, OKV_ERR_INVALID, "no name");
	memset(name, 'n', 64);
	name[64] = '\0';
	add_vector(&builder, name, 1);
	assert_refused(&builder, OKV_ERR_INVALID, "tensor name claims 64 bytes");
	add_vector(&builder, name + 1, 1);
	assert_accepted(&builder);
	add_vector(&builder, "same", 1);
	add_vector(&builder, "other", 1);
	add_vector(&builder, "same", 1);
	assert_refused(&builder, OKV_ERR_INVALID, "same stands there twice");
	add_vector(&builder, "line\nbreak", 1);
	add_vector(&builder, "line\nbreak", 1);
	assert_refused(&builder, OKV_ERR_INVALID, "line?break");
}

static void extents_and_dimensions_are_checked(void **state)
{
	(void)state;
	static const struct {
		uint32_t type, dimensions;
		uint64_t extents[5];
		const char *words;
	} bad[] = {
		{OKV_TENSOR_F32, 0, {0}, "0 dimensions"},
		{OKV_TENSOR_F32, 5, {1, 1, 1, 1, 1}, "5 dimensions"},
		{OKV_TENSOR_F32, 2, {4, 0}, "extent of 0"},
		{OKV_TENSOR_F32, 2, {1ULL << 40, 1ULL << 40}, "more elements than can be counted"},
		{OKV_TENSOR_F32, 1, {1ULL << 63}, "more bytes than can be counted"},
		{OKV_TENSOR_F32, 1, {UINT64_MAX}, "more bytes than can be counted"},
		{OKV_TENSOR_F32, 4, {1ULL << 16, 1ULL << 16, 1ULL << 16, 1ULL << 16}, "more elements"},
		{OKV_TENSOR_Q4_0, 1, {31}, "not whole Q4_0 blocks"},
		{OKV_TENSOR_Q4_1, 2, {16, 2}, "not whole Q4_1 blocks"},
		{OKV_TENSOR_Q8_0, 2, {48, 2}, "not whole Q8_0 blocks"},
	};

	for (size_t i = 0; i < sizeof(bad) / sizeof(bad[0]); i++) {
		struct gguf_builder builder = {0};

		gguf_add_tensor(&builder, "t", bad[i].type, bad[i].dimensions, bad[i].extents, ones, sizeof(ones));
		assert_refused(&builder, OKV_ERR_INVALID, bad[i].words);
	}
}

static void tensor_types_we_do_not_read_are_refused_by_name(void **state)
{
	(void)state;
	static const struct {
		uint32_t type;
		enum okv_status status;
		const char *words;
	} bad[] = {
		{6, OKV_ERR_UNSUPPORTED, "Q5_0"},
		{9, OKV_ERR_UNSUPPORTED, "Q8_1"},
		{14, OKV_ERR_UNSUPPORTED, "Q6_K"},
		{23, OKV_ERR_UNSUPPORTED, "IQ4_XS"},
		{28, OKV_ERR_UNSUPPORTED, "F64"},
		{30, OKV_ERR_UNSUPPORTED, "BF16"},
		{39, OKV_ERR_UNSUPPORTED, "MXFP4"},
		{4, OKV_ERR_INVALID, "type 4"},
		{5, OKV_ERR_INVALID, "type 5"},
		{31, OKV_ERR_INVALID, "type 31"},
		{33, OKV_ERR_INVALID, "type 33"},
		{36, OKV_ERR_INVALID, "type 36"},
		{38, OKV_ERR_INVALID, "type 38"},
		{43, OKV_ERR_INVALID, "type 43"},
		{UINT32_MAX, OKV_ERR_INVALID, "type 4294967295"},
	};

	for (size_t i = 0; i < sizeof(bad) / sizeof(bad[0]); i++) {
		struct gguf_builder builder = {0};

		gguf_add_tensor(&builder, "t", bad[i].type, 1, (uint64_t[]){32}, ones, sizeof(ones));
		assert_refused(&builder, bad[i].status, bad[i].words);
	}
}

static void offsets_must_be_aligned_inside_the_file_and_apart(void **state)
{
	(void)state;
	struct gguf_builder builder = {0};
	uint64_t eight = 8;

	add_vector(&builder, "a", 8);
	gguf_add_row(&builder, "b", OKV_TENSOR_F32, 1, &eight, 16);
	assert_refused(&builder, OKV_ERR_INVALID, "not a multiple of 32");

	add_vector(&builder, "a", 8);
	gguf_add_row(&builder, "b", OKV_TENSOR_F32, 1, &eight, 32);
	assert_refused(&builder, OKV_ERR_INVALID, "truncated or lies");

	add_vector(&builder, "a", 8);
	gguf_add_row(&builder, "b", OKV_TENSOR_F32, 1, &eight, UINT64_MAX - 31);
	assert_refused(&builder, OKV_ERR_INVALID, "truncated or lies");

	add_vector(&builder, "a", 16);
	add_vector(&builder, "b", 8);
	gguf_add_row(&builder, "c", OKV_TENSOR_F32, 1, &eight, 32);
	assert_refused(&builder, OKV_ERR_INVALID, "a and c overlap");

	add_vector(&builder, "a", 8);
	gguf_add_row(&builder, "c", OKV_TENSOR_F32, 1, &eight, 0);
	assert_refused(&builder, OKV_ERR_INVALID, "overlap");

	/* Any order and gaps are fine. */
	add_vector(&builder, "gap", 8);
	add_vector(&builder, "b", 8);
	builder.table.size = 0;
	builder.tensor_count = 0;
	add_vector(&builder, "last", 8);
	gguf_add_row(&builder, "first", OKV_TENSOR_F32, 1, &eight, 0);
	assert_accepted(&builder);
}

/* Puts 16 bits at `at` of otherwise good tensor bytes; true if the reader refuses the file. */
static bool refuses_value(enum okv_tensor_type type, size_t at, uint16_t bits)
{
	struct gguf_builder builder = {0};
	struct okv_buf data = {0};
	struct okv_gguf *gguf = NULL;
	struct okv_reason reason = {0};

	tiny_weights_append(&data, type, 64, 3);
	memcpy(data.data + at, &bits, 2);
	gguf_add_tensor(&builder, "weights", type, 2, (uint64_t[]){32, 2}, data.data, data.size);
	enum okv_status status = parse(&builder, &gguf, &reason);
	if (status) {
		assert_int_equal(status, OKV_ERR_INVALID);
		assert_non_null(strstr(reason.text, "weights holds a NaN or an infinity"));
	}
	okv_gguf_close(gguf);
	okv_buf_done(&data);
	gguf_builder_done(&builder);
	return status != OKV_OK;
}

static void nan_and_infinite_scales_are_refused_in_every_type(void **state)
{
	(void)state;
	static const struct {
		enum okv_tensor_type type;
		size_t at;
	} places[] = {{OKV_TENSOR_F16, 126}, {OKV_TENSOR_Q4_0, 0},  {OKV_TENSOR_Q4_0, 18},
		      {OKV_TENSOR_Q4_1, 20}, {OKV_TENSOR_Q4_1, 22}, {OKV_TENSOR_Q8_0, 34}};

	for (size_t i = 0; i < sizeof(places) / sizeof(places[0]); i++) {
		assert_true(refuses_value(places[i].type, places[i].at, 0x7c00));
		assert_true(refuses_value(places[i].type, places[i].at, 0xfc00));
		assert_true(refuses_value(places[i].type, places[i].at, 0x7e00));
		assert_true(refuses_value(places[i].type, places[i].at, 0xfc01));
		assert_false(refuses_value(places[i].type, places[i].at, 0x7bff));
	}
	assert_true(refuses_value(OKV_TENSOR_F32, 254, 0x7f80));
	assert_true(refuses_value(OKV_TENSOR_F32, 254, 0xffc0));
	assert_false(refuses_value(OKV_TENSOR_F32, 254, 0x7f7f));
	/* Quants are not numbers of their own: any byte is good there. */
	assert_false(refuses_value(OKV_TENSOR_Q8_0, 4, 0x7c00));
	assert_false(refuses_value(OKV_TENSOR_Q4_1, 6, 0xffff));
}

static bool is_resident(const uint8_t *at)
{
	uintptr_t page = (uintptr_t)sysconf(_SC_PAGESIZE);
	unsigned char resident;

	assert_int_equal(mincore((void *)((uintptr_t)at / page * page), 1, &resident), 0);
	return resident & 1;
}

static void a_released_tensor_is_out_of_memory_and_its_neighbours_are_whole(void **state)
{
	(void)state;
	enum { VALUES = 50000, BYTES = VALUES * 4 };
	static float values[VALUES];
	struct gguf_builder builder = {0};
	struct okv_gguf *gguf;
	uint64_t extent = VALUES;

	for (int i = 0; i < VALUES; i++)
		values[i] = (float)(i + 1);
	gguf_add_tensor(&builder, "a", OKV_TENSOR_F32, 1, &extent, values, BYTES);
	gguf_add_tensor(&builder, "b", OKV_TENSOR_F32, 1, &extent, values, BYTES);
	gguf_add_tensor(&builder, "c", OKV_TENSOR_F32, 1, &extent, values, BYTES);
	assert_int_equal(parse(&builder, &gguf, NULL), OKV_OK);
	const struct okv_gguf_tensor *b = okv_gguf_tensor_find(gguf, "b");
	const uint8_t *middle = b->data + BYTES / 2;

	okv_gguf_tensor_release(gguf, b, 0);
	okv_gguf_tensor_release(gguf, b, 40);
	assert_memory_equal(b->data, values, BYTES);
	okv_gguf_tensor_release(gguf, b, BYTES / 2);
	assert_memory_equal(middle, values + VALUES / 2, BYTES / 2);
	assert_false(is_resident(b->data + BYTES / 4));
	okv_gguf_tensor_release(gguf, b, BYTES);
	assert_null(b->data);
	assert_false(is_resident(middle + BYTES / 4));
	assert_memory_equal(okv_gguf_tensor_find(gguf, "a")->data, values, BYTES);
	assert_memory_equal(okv_gguf_tensor_find(gguf, "c")->data, values, BYTES);
	okv_gguf_close(gguf);
	gguf_builder_done(&builder);
}

static void assert_open_refused(const char *path, enum okv_status status, const char *words)
{
	struct okv_gguf *gguf = NULL;
	struct okv_reason reason = {0};

	assert_int_equal(okv_gguf_open(path, &gguf, &reason), status);
	if (!strstr(reason.text, words))
		fail_msg("\"%s\" does not say \"%s\"", reason.text, words);
}

static void files_are_opened_and_refusals_name_the_path(void **state)
{
	(void)state;
	char path[] = "/tmp/okv-gguf-XXXXXX";
	int fd = mkstemp(path);
	struct okv_buf file = {0};
	struct okv_gguf *gguf;
	struct okv_reason reason;
	struct tiny_model_options options = tiny_model_default(OKV_TENSOR_Q4_1);

	assert_true(fd >= 0);
	tiny_model_write(&options, &file);
	assert_open_refused(path, OKV_ERR_INVALID, "truncated");
	assert_int_equal(write(fd, file.data, 100), 100);
	assert_open_refused(path, OKV_ERR_INVALID, path);
	assert_int_equal(write(fd, file.data + 100, file.size - 100), (ssize_t)(file.size - 100));
	if (okv_gguf_open(path, &gguf, &reason))
		fail_msg("%s", reason.text);
	assert_int_equal(okv_gguf_tensor_count(gguf), 20);
	okv_gguf_close(gguf);

	/* A sparse file larger than any memory: refused by its size, not by the out-of-memory killer. */
	if (ftruncate(fd, 1LL << 43) == 0)
		assert_open_refused(path, OKV_ERR_NO_MEMORY, "smaller model");
	assert_int_equal(pwrite(fd, "ELF?", 4, 0), 4);
	assert_open_refused(path, OKV_ERR_INVALID, "not a GGUF file");
	close(fd);
	unlink(path);
	assert_open_refused(path, OKV_ERR_ABSENT, "cannot be opened");
	assert_open_refused("/", OKV_ERR_INVALID, "not a regular file");
	okv_buf_done(&file);

	char long_path[300];
	memset(long_path, 'p', sizeof(long_path) - 1);
	memcpy(long_path + sizeof(long_path) - 9, "/end.xyz", 9);
	assert_open_refused(long_path, OKV_ERR_IO, "/end.xyz: cannot be opened");
}

static void tiny_models_of_every_type_are_read_and_repeat(void **state)
{
	(void)state;
	static const enum okv_tensor_type types[] = {OKV_TENSOR_F32, OKV_TENSOR_F16, OKV_TENSOR_Q4_0, OKV_TENSOR_Q4_1,
						     OKV_TENSOR_Q8_0};

	for (size_t i = 0; i < sizeof(types) / sizeof(types[0]); i++) {
		struct tiny_model_options options = tiny_model_default(types[i]);
		struct okv_buf file = {0}, again = {0};
		struct okv_gguf *gguf;
		struct okv_reason reason;

		options.separate_output = true;
		tiny_model_write(&options, &file);
		tiny_model_write(&options, &again);
		assert_int_equal(file.size, again.size);
		assert_memory_equal(file.data, again.data, file.size);
		assert_int_equal(okv_gguf_parse(file.data, file.size, &gguf, &reason), OKV_OK);
		const struct okv_gguf_tensor *down = okv_gguf_tensor_find(gguf, "blk.1.ffn_down.weight");
		assert_int_equal(down->type, types[i]);
		assert_int_equal(down->size, tiny_weights_size(types[i], 128 * 64));
		assert_non_null(okv_gguf_tensor_find(gguf, "output.weight"));
		okv_gguf_close(gguf);
		okv_buf_done(&file);
		okv_buf_done(&again);
	}
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(every_kind_of_value_is_read_back),
		cmocka_unit_test(absent_keys_and_other_types_are_told_apart),
		cmocka_unit_test(every_integer_type_is_read_as_a_number),
		cmocka_unit_test(both_versions_are_read_and_no_other),
		cmocka_unit_test(another_file_format_is_refused),
		cmocka_unit_test(file_cut_at_any_byte_is_refused),
		cmocka_unit_test(file_with_any_byte_changed_is_survived),
		cmocka_unit_test(lying_counts_are_refused),
		cmocka_unit_test(tiny_file_claiming_much_allocates_little),
		cmocka_unit_test(lengths_over_the_caps_are_refused),
		cmocka_unit_test(empty_and_repeated_keys_are_refused),
		cmocka_unit_test(unknown_metadata_types_and_nested_arrays_are_refused),
		cmocka_unit_test(bools_other_than_zero_and_one_are_refused),
		cmocka_unit_test(alignment_out_of_bounds_is_refused),
		cmocka_unit_test(one_shard_of_a_split_model_is_refused),
		cmocka_unit_test(tensor_names_are_checked),
		cmocka_unit_test(extents_and_dimensions_are_checked),
		cmocka_unit_test(tensor_types_we_do_not_read_are_refused_by_name),
		cmocka_unit_test(offsets_must_be_aligned_inside_the_file_and_apart),
		cmocka_unit_test(nan_and_infinite_scales_are_refused_in_every_type),
		cmocka_unit_test(a_released_tensor_is_out_of_memory_and_its_neighbours_are_whole),
		cmocka_unit_test(files_are_opened_and_refusals_name_the_path),
		cmocka_unit_test(tiny_models_of_every_type_are_read_and_repeat),
	};
	return cmocka_run_group_tests_name("model_gguf", tests, NULL, NULL);
}
