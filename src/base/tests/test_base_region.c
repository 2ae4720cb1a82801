/* Memory: seals hold against the other side of a mapping, hostile descriptors are refused, and limits are known. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <errno.h>
#include <fcntl.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cmocka.h>

#include "okv/base/memory_limit.h"
#include "okv/base/region.h"

static void a_reader_sees_the_writers_bytes_and_cannot_map_for_writing(void **state)
{
	(void)state;
	struct okv_region writer, reader;
	struct okv_reason reason;

	assert_int_equal(okv_region_create("okv-test", 10000, &writer, &reason), OKV_OK);
	assert_int_equal(writer.size, 12288);
	assert_int_equal(okv_region_seal_for_readers(&writer, &reason), OKV_OK);
	assert_int_equal(okv_region_populate(&writer, 4096, 8192, &reason), OKV_OK);
	memcpy(writer.base + 5000, "kv", 2);

	assert_int_equal(okv_region_open(dup(writer.fd), 12288, false, &reader, &reason), OKV_OK);
	assert_memory_equal(reader.base + 5000, "kv", 2);
	okv_region_close(&reader);

	assert_int_equal(okv_region_open(dup(writer.fd), 12288, true, &reader, &reason), OKV_ERR_PERMISSION);
	assert_int_equal(ftruncate(writer.fd, 4096), -1);
	okv_region_close(&writer);
	okv_region_close(&writer); /* closing twice is harmless */
}

static void a_descriptor_that_lies_about_its_size_is_refused(void **state)
{
	(void)state;
	struct okv_region region, opened;
	struct okv_reason reason;

	assert_int_equal(okv_region_create("okv-test", 4096, &region, &reason), OKV_OK);
	assert_int_equal(okv_region_open(dup(region.fd), 8192, false, &opened, &reason), OKV_ERR_INVALID);
	okv_region_close(&region);
}

static void a_descriptor_that_can_shrink_is_refused(void **state)
{
	(void)state;
	struct okv_region opened;
	struct okv_reason reason;
	int fd = memfd_create("okv-test", MFD_CLOEXEC | MFD_ALLOW_SEALING);

	assert_int_equal(ftruncate(fd, 4096), 0);
	assert_int_equal(okv_region_open(fd, 4096, false, &opened, &reason), OKV_ERR_INVALID);
	assert_int_equal(okv_region_open(dup(0), 4096, false, &opened, &reason), OKV_ERR_INVALID);
	assert_int_equal(okv_region_create("okv-test", 0, &opened, &reason), OKV_ERR_INVALID);
}

static void a_descriptor_of_huge_pages_is_refused(void **state)
{
	(void)state;
	struct okv_region opened;
	struct okv_reason reason;
	const size_t size = (size_t)2 << 20;
	int fd = memfd_create("okv-test", MFD_CLOEXEC | MFD_ALLOW_SEALING | MFD_HUGETLB);

	if (fd < 0 || ftruncate(fd, (off_t)size) != 0)
		skip(); /* a kernel without huge pages */
	assert_int_equal(fcntl(fd, F_ADD_SEALS, F_SEAL_GROW | F_SEAL_SHRINK), 0);
	assert_int_equal(okv_region_open(fd, size, false, &opened, &reason), OKV_ERR_INVALID);
}

static void write_file(const char *root, const char *path, const char *text)
{
	char full[512];

	snprintf(full, sizeof(full), "%s/%s", root, path);
	for (char *slash = strchr(full + 1, '/'); slash; slash = strchr(slash + 1, '/')) {
		*slash = '\0';
		mkdir(full, 0700);
		*slash = '/';
	}
	FILE *file = fopen(full, "w");
	assert_non_null(file);
	fputs(text, file);
	fclose(file);
}

static void the_tightest_control_group_limits_memory(void **state)
{
	(void)state;
	char root[] = "okv-limit-XXXXXX", command[64];
	struct okv_memory_limit limit;

	assert_non_null(mkdtemp(root));
	assert_true(okv_memory_limit(root).available_bytes == UINT64_MAX);

	write_file(root, "proc/meminfo", "MemTotal: 100 kB\nMemAvailable:   4096 kB\n");
	limit = okv_memory_limit(root);
	assert_int_equal(limit.available_bytes, 4096 * 1024);
	assert_false(limit.is_control_group);

	write_file(root, "proc/self/cgroup", "0::/a/b\n");
	write_file(root, "sys/fs/cgroup/a/b/memory.max", "max\n");
	write_file(root, "sys/fs/cgroup/a/memory.max", "2000000\n");
	write_file(root, "sys/fs/cgroup/a/memory.current", "900000\n");
	write_file(root, "sys/fs/cgroup/a/memory.stat", "anon 1\ninactive_file 300000\nactive_file 100000\n");
	limit = okv_memory_limit(root);
	assert_int_equal(limit.available_bytes, 2000000 - (900000 - 400000));
	assert_true(limit.is_control_group);

	write_file(root, "proc/self/cgroup", "5:memory:/c\n");
	write_file(root, "sys/fs/cgroup/memory/c/memory.limit_in_bytes", "1000\n");
	write_file(root, "sys/fs/cgroup/memory/c/memory.usage_in_bytes", "4000\n");
	assert_int_equal(okv_memory_limit(root).available_bytes, 0);

	snprintf(command, sizeof(command), "rm -rf %s", root);
	assert_int_equal(system(command), 0);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(a_reader_sees_the_writers_bytes_and_cannot_map_for_writing),
		cmocka_unit_test(a_descriptor_that_lies_about_its_size_is_refused),
		cmocka_unit_test(a_descriptor_that_can_shrink_is_refused),
		cmocka_unit_test(a_descriptor_of_huge_pages_is_refused),
		cmocka_unit_test(the_tightest_control_group_limits_memory),
	};
	return cmocka_run_group_tests_name("base_region", tests, NULL, NULL);
}
