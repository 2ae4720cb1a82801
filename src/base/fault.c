#include "okv/base/fault.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* All there are. What each does is in docs/manager.md. */
static const char *const points[] = {
	"pool_flip_bit", "pool_flip_bit_on_authorise", "mover_stall_ms", "mover_cut_after_bytes",
	"mover_short",	 "mover_fault_from",
};
static const size_t point_count = sizeof(points) / sizeof(*points);
_Static_assert(sizeof(points) / sizeof(*points) <= OKV_FAULTS_MAX, "every point can be armed");

/* The name as it stands in the table; NULL if it does not. */
static const char *known(const char *name, size_t length)
{
	for (size_t i = 0; i < point_count; i++)
		if (strlen(points[i]) == length && memcmp(points[i], name, length) == 0)
			return points[i];
	return NULL;
}

static enum okv_status refuse_unknown(const char *name, size_t length, struct okv_reason *reason)
{
	char all[OKV_REASON_TEXT_BYTES] = "";

	for (size_t i = 0, at = 0; i < point_count && at < sizeof(all); i++)
		at += (size_t)snprintf(all + at, sizeof(all) - at, "%s%s", i ? ", " : "", points[i]);
	return okv_refuse(reason, OKV_ERR_INVALID, "faults", "there is no fault point %.*s, only %s",
			  (int)(length > 60 ? 60 : length), name, all);
}

static struct okv_fault *find(struct okv_faults *faults, const char *name)
{
	for (unsigned i = 0; i < faults->count; i++)
		if (strcmp(faults->fault[i].name, name) == 0)
			return &faults->fault[i];
	return NULL;
}

enum okv_status okv_faults_parse(const char *text, struct okv_faults *ret_faults, struct okv_reason *reason)
{
	struct okv_faults faults = {0};

	for (const char *at = text ? text : ""; *at;) {
		size_t whole = strcspn(at, ","), length = strcspn(at, "=,");
		const char *name = known(at, length);
		char *end;

		if (length == 0 || at[length] != '=')
			return okv_refuse(reason, OKV_ERR_INVALID, "faults", "\"%.*s\" is not of the form name=1",
					  (int)(whole > 60 ? 60 : whole), at);
		if (!name)
			return refuse_unknown(at, length, reason);
		if (find(&faults, name))
			return okv_refuse(reason, OKV_ERR_INVALID, "faults", "fault point %s is given twice", name);

		struct okv_fault *fault = &faults.fault[faults.count++];
		fault->name = name;
		fault->value = strtoll(at + length + 1, &end, 10);
		if (end != at + whole || fault->value < 1)
			return okv_refuse(reason, OKV_ERR_INVALID, "faults",
					  "the value of fault point %s is not a number from 1", name);
		at += whole + (at[whole] == ',');
	}
	*ret_faults = faults;
	return OKV_OK;
}

int64_t okv_fault_value(const struct okv_faults *faults, const char *name)
{
	OKV_ASSERT(known(name, strlen(name)));
	for (unsigned i = 0; faults && i < faults->count; i++)
		if (strcmp(faults->fault[i].name, name) == 0)
			return faults->fault[i].value;
	return 0;
}

bool okv_fault_take(struct okv_faults *faults, const char *name)
{
	struct okv_fault *fault = okv_fault_value(faults, name) > 0 ? find(faults, name) : NULL;

	if (fault)
		fault->value--;
	return fault;
}
