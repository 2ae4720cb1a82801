/*
 * KV client: the engine's KV source over the manager's client, on a thread of its own.
 *
 *     step thread                          copy thread
 *       restore, publish, cancel --orders-->  orbitkv_client_*: connects, asks, copies pages, verifies
 *       poll <-------------------completions--
 *
 * The step thread only takes a lock that nobody holds for long. The client belongs to the copy thread alone; while it
 * has no manager, restore and publish give 0 and the engine goes on without. A lost manager and a found one are logged
 * once.
 */
#ifndef OKV_APP_KV_CLIENT_H
#define OKV_APP_KV_CLIENT_H

#include "okv/base/region.h"
#include "okv/engine/kv_source.h"
#include "okv/span/identity.h"

struct okv__kv_client;

struct okv__kv_client_options {
	const char *socket_path;
	const char *name;
	const struct okv_region *arena; /* borrowed until destroy */
	const struct okv_materialisation_key *key;
};

OKV_MUST_CHECK enum okv_status okv__kv_client_create(const struct okv__kv_client_options *options,
						     struct okv__kv_client **ret_client, struct okv_reason *reason);
/* Ends the copy thread; nothing touches the arena any more. Completions not taken are dropped. NULL is harmless. */
void okv__kv_client_destroy(struct okv__kv_client *client);
/* Valid until destroy. */
struct okv_kv_source okv__kv_client_source(struct okv__kv_client *client);

#endif
