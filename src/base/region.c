#include "okv/base/region.h"

#include <errno.h>
#include <fcntl.h>
#include <linux/magic.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <sys/vfs.h>
#include <unistd.h>

enum { PAGE_BYTES = 4096 };

static enum okv_status os_refusal(struct okv_reason *reason, const char *what)
{
	int error = errno;

	return okv_refuse(reason, okv_status_from_errno(error), "memory", "%s: %s", what, strerror(error));
}

static enum okv_status map_region(struct okv_region *region, struct okv_reason *reason)
{
	int protection = PROT_READ | (region->is_writable ? PROT_WRITE : 0);
	void *base = mmap(NULL, region->size, protection, MAP_SHARED | MAP_NORESERVE, region->fd, 0);

	if (base == MAP_FAILED)
		return os_refusal(reason, "shared memory cannot be mapped");
	region->base = base;
	return OKV_OK;
}

enum okv_status okv_region_create(const char *name, size_t size, struct okv_region *ret_region,
				  struct okv_reason *reason)
{
	struct okv_region region = {.fd = -1, .is_writable = true};
	enum okv_status status;

	if (size == 0 || size > SIZE_MAX - PAGE_BYTES)
		return okv_refuse(reason, OKV_ERR_INVALID, "memory", "%zu bytes is not a size for shared memory", size);
	region.size = (size + PAGE_BYTES - 1) / PAGE_BYTES * PAGE_BYTES;
	region.fd = memfd_create(name, MFD_CLOEXEC | MFD_ALLOW_SEALING);
	if (region.fd < 0)
		return os_refusal(reason, "shared memory cannot be created");
	if (ftruncate(region.fd, (off_t)region.size) != 0 ||
	    fcntl(region.fd, F_ADD_SEALS, F_SEAL_GROW | F_SEAL_SHRINK) != 0) {
		status = os_refusal(reason, "shared memory cannot be sized");
		goto close_fd;
	}
	status = map_region(&region, reason);
	if (status != OKV_OK)
		goto close_fd;
	*ret_region = region;
	return OKV_OK;

close_fd:
	close(region.fd);
	return status;
}

enum okv_status okv_region_seal_for_readers(struct okv_region *region, struct okv_reason *reason)
{
	if (fcntl(region->fd, F_ADD_SEALS, F_SEAL_FUTURE_WRITE) != 0)
		return os_refusal(reason, "shared memory cannot be sealed");
	return OKV_OK;
}

enum okv_status okv_region_open(int fd, size_t size_expected, bool writable, struct okv_region *ret_region,
				struct okv_reason *reason)
{
	struct okv_region region = {.fd = fd, .size = size_expected, .is_writable = writable};
	struct stat info;
	struct statfs system;
	enum okv_status status;
	int seals = fcntl(fd, F_GET_SEALS);

	/* Not tmpfs: huge pages, where touching a page that the system cannot give is SIGBUS. */
	if (seals < 0 || (seals & (F_SEAL_GROW | F_SEAL_SHRINK)) != (F_SEAL_GROW | F_SEAL_SHRINK) ||
	    fstatfs(fd, &system) != 0 || system.f_type != TMPFS_MAGIC) {
		status = okv_refuse(reason, OKV_ERR_INVALID, "memory",
				    "a received descriptor is not sealed shared memory");
		goto close_fd;
	}
	if (fstat(fd, &info) != 0 || size_expected == 0 || info.st_size < 0 ||
	    (uint64_t)info.st_size != size_expected) {
		status = okv_refuse(reason, OKV_ERR_INVALID, "memory",
				    "shared memory is not of the announced %zu bytes", size_expected);
		goto close_fd;
	}
	status = map_region(&region, reason);
	if (status != OKV_OK)
		goto close_fd;
	*ret_region = region;
	return OKV_OK;

close_fd:
	close(fd);
	return status;
}

enum okv_status okv_region_populate(struct okv_region *region, size_t offset, size_t size, struct okv_reason *reason)
{
	OKV_ASSERT(offset <= region->size && size <= region->size - offset);
	int advice = region->is_writable ? MADV_POPULATE_WRITE : MADV_POPULATE_READ;

	if (size && madvise(region->base + offset, size, advice) != 0)
		return os_refusal(reason, "memory cannot be made resident");
	return OKV_OK;
}

void okv_region_close(struct okv_region *region)
{
	if (region->base)
		munmap(region->base, region->size);
	if (region->fd >= 0)
		close(region->fd);
	*region = (struct okv_region){.fd = -1};
}
