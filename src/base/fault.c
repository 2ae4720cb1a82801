#include "okv/base/fault.h"

#include <stdlib.h>
#include <string.h>

static struct okv_fault *find(struct okv_faults *faults, const char *name, size_t length)
{
	for (unsigned i = 0; i < faults->count; i++)
		if (strlen(faults->fault[i].name) == length && memcmp(faults->fault[i].name, name, length) == 0)
			return &faults->fault[i];
	return NULL;
}

enum okv_status okv_faults_parse(const char *text, struct okv_faults *ret_faults, struct okv_reason *reason)
{
	struct okv_faults faults = {0};

	for (const char *at = text ? text : ""; *at;) {
		size_t whole = strcspn(at, ","), name = strcspn(at, "=,");
		char *end;

		if (name == 0 || name >= OKV_FAULT_NAME_MAX || at[name] != '=' || find(&faults, at, name) ||
		    faults.count == OKV_FAULTS_MAX)
			return okv_refuse(reason, OKV_ERR_INVALID, "faults",
					  "\"%.*s\" is not a new fault point like name=1",
					  (int)(whole > 60 ? 60 : whole), at);

		struct okv_fault *fault = &faults.fault[faults.count++];
		memcpy(fault->name, at, name);
		fault->value = strtoll(at + name + 1, &end, 10);
		if (end == at + name + 1 || end != at + whole)
			return okv_refuse(reason, OKV_ERR_INVALID, "faults",
					  "the value of fault point %s is not a number", fault->name);
		at += whole + (at[whole] == ',');
	}
	*ret_faults = faults;
	return OKV_OK;
}

int64_t okv_fault_value(const struct okv_faults *faults, const char *name)
{
	for (unsigned i = 0; faults && i < faults->count; i++)
		if (strcmp(faults->fault[i].name, name) == 0)
			return faults->fault[i].value;
	return 0;
}

bool okv_fault_take(struct okv_faults *faults, const char *name)
{
	struct okv_fault *fault = faults ? find(faults, name, strlen(name)) : NULL;

	if (!fault || fault->value <= 0)
		return false;
	fault->value--;
	return true;
}
