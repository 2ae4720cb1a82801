/*
 * Map: an intrusive chained hash table. The owner embeds a struct okv_map_node in its objects, supplies the 64-bit hash
 * (okv_table_hash) and compares keys itself while walking the candidates. The table grows by doubling; if it cannot
 * grow it goes on with longer chains, so insertion never fails after okv_map_init().
 *
 *     for (struct okv_map_node *n = okv_map_first(&map, hash); n; n = okv_map_next(n))
 *             if (okv_hash_equal(&OKV_CONTAINER_OF(n, struct thing, node)->key, key)) ...
 */
#ifndef OKV_BASE_MAP_H
#define OKV_BASE_MAP_H

#include <stddef.h>
#include <stdint.h>

#include "okv/base/status.h"

struct okv_map_node {
	struct okv_map_node *next;
	uint64_t hash;
};

struct okv_map {
	struct okv_map_node **bucket; /* owned; count is a power of two */
	size_t bucket_count, size;
};

OKV_MUST_CHECK enum okv_status okv_map_init(struct okv_map *map);
/* Frees the table, not the objects. */
void okv_map_done(struct okv_map *map);
void okv_map_insert(struct okv_map *map, struct okv_map_node *node, uint64_t hash);
/* `node` must be in the map. */
void okv_map_remove(struct okv_map *map, struct okv_map_node *node);
/* First and following nodes with exactly this hash; NULL at the end. */
struct okv_map_node *okv_map_first(const struct okv_map *map, uint64_t hash);
struct okv_map_node *okv_map_next(const struct okv_map_node *node);
/* All nodes in no particular order: start with NULL. The map must not change in between. */
struct okv_map_node *okv_map_walk(const struct okv_map *map, const struct okv_map_node *after);

#endif
