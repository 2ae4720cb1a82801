#include "okv/session/lease.h"

static uint64_t id_of(uint32_t index, uint64_t generation)
{
	return generation * OKV_LEASES + index;
}

static void set_state(struct okv_leases *leases, struct okv_lease *lease, enum okv_lease_state state)
{
	leases->count[lease->state]--;
	leases->count[state]++;
	lease->state = state;
	leases->count[OKV_LEASE_FREE] = 0;
}

static void set_free(struct okv_leases *leases, struct okv_lease *lease)
{
	leases->held_bytes -= lease->bytes;
	lease->bytes = 0;
	set_state(leases, lease, OKV_LEASE_FREE);
}

/* A lease that the owner itself names. */
static struct okv_lease *own(struct okv_leases *leases, uint64_t id)
{
	struct okv_lease *lease = &leases->lease[okv_lease_index(id)];

	OKV_ASSERT(lease->state != OKV_LEASE_FREE && lease->generation == id / OKV_LEASES);
	return lease;
}

/* A lease that a client names. */
static enum okv_status find(const struct okv_leases *leases, uint64_t session, uint64_t id, uint32_t *ret_index)
{
	uint32_t index = okv_lease_index(id);
	const struct okv_lease *lease = &leases->lease[index];
	uint64_t generation = id / OKV_LEASES;

	if (generation == 0 || generation > lease->generation)
		return OKV_ERR_AHEAD;
	if (generation < lease->generation || lease->state == OKV_LEASE_FREE)
		return OKV_ERR_STALE;
	if (lease->session != session)
		return OKV_ERR_PERMISSION;
	*ret_index = index;
	return OKV_OK;
}

enum okv_status okv_lease_open(struct okv_leases *leases, uint64_t session, uint64_t bytes, uint64_t *ret_id)
{
	uint32_t of_session = 0, index = OKV_LEASES;

	if (bytes > leases->limit_bytes - leases->held_bytes)
		return OKV_ERR_BUDGET;
	for (uint32_t i = 0; i < OKV_LEASES; i++) {
		uint32_t at = (leases->next + i) % OKV_LEASES;

		if (leases->lease[at].state == OKV_LEASE_FREE && index == OKV_LEASES)
			index = at;
		of_session += leases->lease[at].state != OKV_LEASE_FREE && leases->lease[at].session == session;
	}
	if (index == OKV_LEASES || of_session >= OKV_LEASES_PER_SESSION)
		return OKV_ERR_BUSY;

	struct okv_lease *lease = &leases->lease[index];
	lease->generation++;
	lease->session = session;
	lease->bytes = bytes;
	leases->held_bytes += bytes;
	leases->next = (index + 1) % OKV_LEASES;
	set_state(leases, lease, OKV_LEASE_PREPARING);
	*ret_id = id_of(index, lease->generation);
	return OKV_OK;
}

enum okv_status okv_lease_ready(struct okv_leases *leases, uint64_t id, uint64_t bytes)
{
	struct okv_lease *lease = own(leases, id);

	if (lease->state == OKV_LEASE_UNWANTED) {
		set_free(leases, lease);
		return OKV_ERR_CANCELLED;
	}
	OKV_ASSERT(lease->state == OKV_LEASE_PREPARING && bytes <= lease->bytes);
	leases->held_bytes -= lease->bytes - bytes;
	lease->bytes = bytes;
	set_state(leases, lease, OKV_LEASE_READY);
	return OKV_OK;
}

void okv_lease_drop(struct okv_leases *leases, uint64_t id)
{
	struct okv_lease *lease = own(leases, id);

	OKV_ASSERT(lease->state == OKV_LEASE_PREPARING || lease->state == OKV_LEASE_UNWANTED);
	set_free(leases, lease);
}

enum okv_status okv_lease_cancel(struct okv_leases *leases, uint64_t session, uint64_t id)
{
	uint32_t index;
	enum okv_status status = find(leases, session, id, &index);

	if (status != OKV_OK)
		return status;
	if (leases->lease[index].state != OKV_LEASE_PREPARING)
		return OKV_ERR_BUSY;
	set_state(leases, &leases->lease[index], OKV_LEASE_UNWANTED);
	return OKV_OK;
}

enum okv_status okv_lease_activate(struct okv_leases *leases, uint64_t session, uint64_t id)
{
	uint32_t index;
	enum okv_status status = find(leases, session, id, &index);

	if (status != OKV_OK)
		return status;
	if (leases->lease[index].state == OKV_LEASE_ACTIVE)
		return OKV_ERR_EXISTS;
	if (leases->lease[index].state != OKV_LEASE_READY)
		return OKV_ERR_BUSY;
	set_state(leases, &leases->lease[index], OKV_LEASE_ACTIVE);
	return OKV_OK;
}

enum okv_status okv_lease_release(struct okv_leases *leases, uint64_t session, uint64_t id)
{
	uint32_t index;
	enum okv_status status = find(leases, session, id, &index);

	if (status != OKV_OK)
		return status;
	if (leases->lease[index].state != OKV_LEASE_READY && leases->lease[index].state != OKV_LEASE_ACTIVE)
		return OKV_ERR_BUSY;
	set_free(leases, &leases->lease[index]);
	return OKV_OK;
}

enum okv_status okv_lease_check_active(const struct okv_leases *leases, uint64_t session, uint64_t id)
{
	uint32_t index;
	enum okv_status status = find(leases, session, id, &index);

	if (status != OKV_OK)
		return status;
	return leases->lease[index].state == OKV_LEASE_ACTIVE ? OKV_OK : OKV_ERR_BUSY;
}

bool okv_lease_orphan(struct okv_leases *leases, uint64_t id, bool is_reader_gone)
{
	struct okv_lease *lease = own(leases, id);

	switch (lease->state) {
	case OKV_LEASE_PREPARING:
		set_state(leases, lease, OKV_LEASE_UNWANTED); /* the fetch that fills it must end first */
		return false;
	case OKV_LEASE_ACTIVE:
	case OKV_LEASE_QUARANTINED:
		if (!is_reader_gone) {
			set_state(leases, lease, OKV_LEASE_QUARANTINED);
			return false;
		}
		set_free(leases, lease);
		return true;
	case OKV_LEASE_READY:
		set_free(leases, lease);
		return true;
	case OKV_LEASE_UNWANTED:
	case OKV_LEASE_FREE:
	case OKV_LEASE_STATES:
		break;
	}
	return false;
}

uint64_t okv_lease_next(const struct okv_leases *leases, uint64_t session, uint64_t after)
{
	for (uint32_t i = after ? okv_lease_index(after) + 1 : 0; i < OKV_LEASES; i++)
		if (leases->lease[i].state != OKV_LEASE_FREE && leases->lease[i].session == session)
			return id_of(i, leases->lease[i].generation);
	return 0;
}
