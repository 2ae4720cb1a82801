#include <errno.h>
#include <fcntl.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include "gguf_object.h"

#define HUGE_PAGE_BYTES (2u << 20)
/* One read() moves at most this much, below the kernel's own limit of about 2 GiB. */
#define READ_BYTES (256u << 20)

static uint64_t machine_memory(void)
{
	long pages = sysconf(_SC_PHYS_PAGES), page = sysconf(_SC_PAGESIZE);

	return pages > 0 && page > 0 ? (uint64_t)pages * (uint64_t)page : UINT64_MAX;
}

/* NULL, with a reason, if there is no memory. */
static struct okv_gguf *allocate(size_t size, struct okv_reason *reason)
{
	struct okv_gguf *gguf = calloc(1, sizeof(*gguf));
	void *bytes = NULL;

	if (!gguf || posix_memalign(&bytes, size >= HUGE_PAGE_BYTES ? HUGE_PAGE_BYTES : 64, size ? size : 1) != 0) {
		free(gguf);
		(void)okv_refuse(reason, OKV_ERR_NO_MEMORY, "model", "%zu bytes for the model file cannot be had",
				 size);
		return NULL;
	}
	if (size >= HUGE_PAGE_BYTES)
		(void)madvise(bytes, size, MADV_HUGEPAGE); /* advice: a kernel without it is only slower */
	gguf->bytes = bytes;
	gguf->size = size;
	return gguf;
}

static enum okv_status read_whole(int fd, uint8_t *bytes, size_t size, struct okv_reason *reason)
{
	size_t got = 0;

	while (got < size) {
		size_t want = size - got < READ_BYTES ? size - got : READ_BYTES;
		ssize_t count = read(fd, bytes + got, want);

		if (count < 0 && errno == EINTR)
			continue;
		if (count < 0)
			return okv_refuse(reason, OKV_ERR_IO, "model", "reading stopped after %zu bytes: %s", got,
					  strerror(errno));
		if (count == 0)
			return okv_refuse(reason, OKV_ERR_INVALID, "model",
					  "the file shrank to %zu bytes while it was read; wait until it is written",
					  got);
		got += (size_t)count;
	}
	return OKV_OK;
}

/* Refuses what is not worth reading: folders, other formats, files that cannot fit. */
static enum okv_status check_before_reading(int fd, size_t *ret_size, struct okv_reason *reason)
{
	struct stat info;
	uint8_t head[8];

	if (fstat(fd, &info) != 0)
		return okv_refuse(reason, OKV_ERR_IO, "model", "cannot be examined: %s", strerror(errno));
	if (!S_ISREG(info.st_mode))
		return okv_refuse(reason, OKV_ERR_INVALID, "model", "not a regular file; name a .gguf file");

	ssize_t got = pread(fd, head, sizeof(head), 0);
	if (got < 0)
		return okv_refuse(reason, OKV_ERR_IO, "model", "cannot be read: %s", strerror(errno));
	enum okv_status status = okv__gguf_check_magic(head, (size_t)got, reason);
	if (status)
		return status;

	uint64_t size = (uint64_t)info.st_size;
	if (size > machine_memory())
		return okv_refuse(reason, OKV_ERR_NO_MEMORY, "model",
				  "%llu MiB do not fit into this machine's %llu MiB of memory; take a smaller model",
				  (unsigned long long)(size >> 20), (unsigned long long)(machine_memory() >> 20));
	*ret_size = (size_t)size;
	return OKV_OK;
}

static enum okv_status open_and_parse(int fd, struct okv_gguf **ret_gguf, struct okv_reason *reason)
{
	size_t size = 0;
	enum okv_status status = check_before_reading(fd, &size, reason);

	if (status)
		return status;

	struct okv_gguf *gguf = allocate(size, reason);
	if (!gguf)
		return OKV_ERR_NO_MEMORY;
	status = read_whole(fd, gguf->bytes, size, reason);
	if (!status)
		status = okv__gguf_parse(gguf, reason);
	if (status) {
		okv_gguf_close(gguf);
		return status;
	}
	*ret_gguf = gguf;
	return OKV_OK;
}

/* "PATH: what is wrong", with the end of a path that is too long to show whole. */
static enum okv_status refuse_with_path(struct okv_reason *reason, enum okv_status status, const char *path,
					const struct okv_reason *inner)
{
	size_t size = strlen(path);
	bool cut = size > 100;

	return okv_refuse(reason, status, inner->field, "%s%s: %s", cut ? "..." : "", cut ? path + size - 97 : path,
			  inner->text);
}

enum okv_status okv_gguf_open(const char *path, struct okv_gguf **ret_gguf, struct okv_reason *reason)
{
	struct okv_reason inner = {.field = "model"};
	struct okv_gguf *gguf = NULL;
	int fd = open(path, O_RDONLY | O_CLOEXEC);

	if (fd < 0) {
		enum okv_status status = okv_status_from_errno(errno);

		okv_refuse(&inner, status, "model", "cannot be opened: %s; check --model", strerror(errno));
		return refuse_with_path(reason, status, path, &inner);
	}
	enum okv_status status = open_and_parse(fd, &gguf, &inner);
	close(fd);
	if (status)
		return refuse_with_path(reason, status, path, &inner);
	gguf->path = strdup(path);
	if (!gguf->path) {
		okv_gguf_close(gguf);
		return okv_refuse(reason, OKV_ERR_NO_MEMORY, "model", "no memory for the model's path");
	}
	*ret_gguf = gguf;
	return OKV_OK;
}

enum okv_status okv__gguf_blame(const struct okv_gguf *gguf, enum okv_status status, struct okv_reason *reason)
{
	struct okv_reason inner;

	if (!gguf->path || !reason || status == OKV_ERR_NO_MEMORY)
		return status;
	okv_refuse(&inner, status, reason->field, "%s; convert the model again, or take another", reason->text);
	return refuse_with_path(reason, status, gguf->path, &inner);
}

enum okv_status okv_gguf_parse(const void *bytes, size_t size, struct okv_gguf **ret_gguf, struct okv_reason *reason)
{
	struct okv_gguf *gguf = allocate(size, reason);

	if (!gguf)
		return OKV_ERR_NO_MEMORY;
	if (size)
		memcpy(gguf->bytes, bytes, size);

	enum okv_status status = okv__gguf_parse(gguf, reason);
	if (status) {
		okv_gguf_close(gguf);
		return status;
	}
	*ret_gguf = gguf;
	return OKV_OK;
}

void okv_gguf_close(struct okv_gguf *gguf)
{
	if (!gguf)
		return;
	for (size_t i = 0; i < gguf->pair_count; i++)
		free(gguf->pair[i].strings);
	free(gguf->pair);
	free(gguf->tensor);
	free(gguf->bytes);
	free(gguf->path);
	free(gguf);
}

int okv__bytes_compare(struct okv_bytes a, struct okv_bytes b)
{
	size_t shared = a.size < b.size ? a.size : b.size;
	int order = shared ? memcmp(a.data, b.data, shared) : 0;

	return order ? order : (a.size > b.size) - (a.size < b.size);
}

struct okv__shown okv__show(struct okv_bytes bytes)
{
	struct okv__shown shown = {0};

	for (size_t i = 0; i < bytes.size && i < sizeof(shown.text) - 1; i++)
		shown.text[i] = bytes.data[i] >= 0x20 && bytes.data[i] < 0x7f ? (char)bytes.data[i] : '?';
	return shown;
}

static struct okv_bytes bytes_of(const char *text)
{
	return (struct okv_bytes){(const uint8_t *)text, strlen(text)};
}

/* NULL, with a reason, if there is no such key. */
static const struct okv__gguf_pair *find(const struct okv_gguf *gguf, const char *key, struct okv_reason *reason)
{
	struct okv_bytes wanted = bytes_of(key);
	size_t low = 0, high = gguf->pair_count;

	while (low < high) {
		size_t middle = low + (high - low) / 2;
		int order = okv__bytes_compare(gguf->pair[middle].key, wanted);

		if (order == 0)
			return &gguf->pair[middle];
		if (order < 0)
			low = middle + 1;
		else
			high = middle;
	}
	(void)okv_refuse(reason, OKV_ERR_ABSENT, "model", "the model file has no metadata key %s", key);
	return NULL;
}

/* Reads any integer type. False for other types and for negative values. */
static bool integer_of(const struct okv__gguf_pair *pair, uint64_t *ret_value)
{
	static const struct {
		uint8_t size;
		bool is_signed;
	} integers[] = {
		[OKV_GGUF_U8] = {1, false},  [OKV_GGUF_I8] = {1, true},	  [OKV_GGUF_U16] = {2, false},
		[OKV_GGUF_I16] = {2, true},  [OKV_GGUF_U32] = {4, false}, [OKV_GGUF_I32] = {4, true},
		[OKV_GGUF_U64] = {8, false}, [OKV_GGUF_I64] = {8, true},
	};
	size_t size = pair->type <= OKV_GGUF_I64 ? integers[pair->type].size : 0;
	uint64_t value = 0;

	if (size == 0 || (integers[pair->type].is_signed && pair->data[size - 1] >= 0x80))
		return false;
	memcpy(&value, pair->data, size);
	*ret_value = value;
	return true;
}

enum okv_status okv_gguf_uint(const struct okv_gguf *gguf, const char *key, uint64_t max, uint64_t *ret_value,
			      struct okv_reason *reason)
{
	const struct okv__gguf_pair *pair = find(gguf, key, reason);
	uint64_t value;

	if (!pair)
		return OKV_ERR_ABSENT;
	if (!integer_of(pair, &value) || value > max)
		return okv_refuse(reason, OKV_ERR_INVALID, "model", "%s is not an integer of 0 to %llu", key,
				  (unsigned long long)max);
	*ret_value = value;
	return OKV_OK;
}

enum okv_status okv_gguf_float(const struct okv_gguf *gguf, const char *key, double *ret_value,
			       struct okv_reason *reason)
{
	const struct okv__gguf_pair *pair = find(gguf, key, reason);
	float narrow;
	double value = NAN;

	if (!pair)
		return OKV_ERR_ABSENT;
	if (pair->type == OKV_GGUF_F32) {
		memcpy(&narrow, pair->data, sizeof(narrow));
		value = (double)narrow;
	} else if (pair->type == OKV_GGUF_F64) {
		memcpy(&value, pair->data, sizeof(value));
	}
	if (!isfinite(value))
		return okv_refuse(reason, OKV_ERR_INVALID, "model", "%s is not a finite floating-point number", key);
	*ret_value = value;
	return OKV_OK;
}

enum okv_status okv_gguf_bool(const struct okv_gguf *gguf, const char *key, bool *ret_value, struct okv_reason *reason)
{
	const struct okv__gguf_pair *pair = find(gguf, key, reason);

	if (!pair)
		return OKV_ERR_ABSENT;
	if (pair->type != OKV_GGUF_BOOL)
		return okv_refuse(reason, OKV_ERR_INVALID, "model", "%s is not a bool", key);
	*ret_value = *pair->data == 1;
	return OKV_OK;
}

enum okv_status okv_gguf_string(const struct okv_gguf *gguf, const char *key, struct okv_bytes *ret_value,
				struct okv_reason *reason)
{
	const struct okv__gguf_pair *pair = find(gguf, key, reason);

	if (!pair)
		return OKV_ERR_ABSENT;
	if (pair->type != OKV_GGUF_STRING)
		return okv_refuse(reason, OKV_ERR_INVALID, "model", "%s is not a string", key);
	*ret_value = (struct okv_bytes){pair->data, (size_t)pair->count};
	return OKV_OK;
}

enum okv_status okv_gguf_array(const struct okv_gguf *gguf, const char *key, enum okv_gguf_type type,
			       struct okv_gguf_array *ret_array, struct okv_reason *reason)
{
	const struct okv__gguf_pair *pair = find(gguf, key, reason);

	if (!pair)
		return OKV_ERR_ABSENT;
	if (pair->type != OKV_GGUF_ARRAY || pair->element != type)
		return okv_refuse(reason, OKV_ERR_INVALID, "model", "%s is not an array of the expected element type",
				  key);
	*ret_array = (struct okv_gguf_array){type, pair->count, pair->data, pair->strings};
	return OKV_OK;
}

size_t okv_gguf_tensor_count(const struct okv_gguf *gguf)
{
	return gguf->tensor_count;
}

const struct okv_gguf_tensor *okv_gguf_tensor_at(const struct okv_gguf *gguf, size_t index)
{
	OKV_ASSERT(index < gguf->tensor_count);
	return &gguf->tensor[index];
}

const struct okv_gguf_tensor *okv_gguf_tensor_find(const struct okv_gguf *gguf, const char *name)
{
	struct okv_bytes wanted = bytes_of(name);
	size_t low = 0, high = gguf->tensor_count;

	while (low < high) {
		size_t middle = low + (high - low) / 2;
		int order = okv__bytes_compare(gguf->tensor[middle].name, wanted);

		if (order == 0)
			return &gguf->tensor[middle];
		if (order < 0)
			low = middle + 1;
		else
			high = middle;
	}
	return NULL;
}

void okv_gguf_tensor_release(struct okv_gguf *gguf, const struct okv_gguf_tensor *tensor, uint64_t size)
{
	size_t page = (size_t)sysconf(_SC_PAGESIZE), index = (size_t)(tensor - gguf->tensor);

	OKV_ASSERT(index < gguf->tensor_count && tensor->data && size <= tensor->size);
	size_t from = (size_t)(tensor->data - gguf->bytes), to = from + size;
	uintptr_t base = (uintptr_t)gguf->bytes;

	from = (base + from + page - 1) / page * page - base;
	to = (base + to) / page * page;
	to = to > base ? to - base : 0;
	if (from < to)
		(void)madvise(gguf->bytes + from, to - from, MADV_DONTNEED); /* a refusal only costs memory */
	if (size == tensor->size)
		gguf->tensor[index].data = NULL;
}
