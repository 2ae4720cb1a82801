#include "okv/base/memory_limit.h"

#include <inttypes.h>
#include <limits.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* The number behind `name` at the start of a line, or the file's only number if `name` is "". */
static bool read_number(const char *path, const char *name, uint64_t *ret_value)
{
	FILE *file = fopen(path, "re");
	char line[256];
	bool is_found = false;

	if (!file)
		return false;
	while (!is_found && fgets(line, sizeof(line), file)) {
		char *end;
		size_t length = strlen(name);

		if (strncmp(line, name, length) != 0)
			continue;
		uint64_t value = strtoull(line + length, &end, 10);
		is_found = end != line + length;
		if (is_found)
			*ret_value = value;
	}
	fclose(file);
	return is_found;
}

struct group_files {
	const char *mount, *limit, *usage, *inactive, *active;
};

static const struct group_files version_2 = {"/sys/fs/cgroup", "memory.max", "memory.current", "inactive_file ",
					     "active_file "};
static const struct group_files version_1 = {"/sys/fs/cgroup/memory", "memory.limit_in_bytes", "memory.usage_in_bytes",
					     "total_inactive_file ", "total_active_file "};

/* What one group leaves: its limit less what it uses and cannot drop. False if it sets no limit ("max"). */
static bool group_left(const char *root, const struct group_files *files, const char *group, uint64_t *ret_bytes)
{
	char path[PATH_MAX];
	uint64_t limit, usage = 0, inactive = 0, active = 0;

	snprintf(path, sizeof(path), "%s%s%s/%s", root, files->mount, group, files->limit);
	if (!read_number(path, "", &limit))
		return false;
	snprintf(path, sizeof(path), "%s%s%s/%s", root, files->mount, group, files->usage);
	(void)read_number(path, "", &usage);
	snprintf(path, sizeof(path), "%s%s%s/memory.stat", root, files->mount, group);
	(void)read_number(path, files->inactive, &inactive);
	(void)read_number(path, files->active, &active);

	uint64_t droppable = inactive + active < usage ? inactive + active : usage;
	usage -= droppable;
	*ret_bytes = limit > usage ? limit - usage : 0;
	return true;
}

/* The group of this process in the hierarchy with this `prefix` ("0::" is version 2); "" if it has none. */
static void own_group(const char *root, const char *prefix, char *ret_group, size_t room)
{
	char path[PATH_MAX], line[PATH_MAX];
	FILE *file;

	ret_group[0] = '\0';
	snprintf(path, sizeof(path), "%s/proc/self/cgroup", root);
	file = fopen(path, "re");
	if (!file)
		return;
	while (fgets(line, sizeof(line), file)) {
		const char *at = strstr(line, prefix);

		if (!at)
			continue;
		line[strcspn(line, "\n")] = '\0';
		at += strlen(prefix);
		snprintf(ret_group, room, "%s", strcmp(at, "/") == 0 ? "" : at);
		break;
	}
	fclose(file);
}

static void apply_groups(const char *root, const struct group_files *files, const char *prefix,
			 struct okv_memory_limit *limit)
{
	char group[PATH_MAX / 2];
	uint64_t left;

	own_group(root, prefix, group, sizeof(group));
	for (;;) {
		if (group_left(root, files, group, &left) && left < limit->available_bytes)
			*limit = (struct okv_memory_limit){.available_bytes = left, .is_control_group = true};

		char *slash = strrchr(group, '/');
		if (!slash)
			return;
		*slash = '\0'; /* the parent limits too */
	}
}

struct okv_memory_limit okv_memory_limit(const char *root)
{
	struct okv_memory_limit limit = {.available_bytes = UINT64_MAX};
	char path[PATH_MAX];
	uint64_t kib;

	snprintf(path, sizeof(path), "%s/proc/meminfo", root);
	if (read_number(path, "MemAvailable:", &kib))
		limit.available_bytes = kib * 1024;
	apply_groups(root, &version_2, "0::", &limit);
	apply_groups(root, &version_1, ":memory:", &limit);
	return limit;
}

enum okv_status okv_memory_limit_check(uint64_t bytes, const char *field, const char *what, const char *remedy,
				       struct okv_reason *reason)
{
	struct okv_memory_limit limit = okv_memory_limit("");

	if (bytes <= limit.available_bytes)
		return OKV_OK;
	return okv_refuse(reason, OKV_ERR_NO_SPACE, field,
			  "%s of %" PRIu64 " MiB is more than the %" PRIu64
			  " MiB of memory that %s available now; give %s or free memory",
			  what, bytes >> 20, limit.available_bytes >> 20,
			  limit.is_control_group ? "the control group has" : "this machine has", remedy);
}
