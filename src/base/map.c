#include "okv/base/map.h"

#include <stdlib.h>

#include "okv/base/alloc.h"

static struct okv_map_node **bucket_of(const struct okv_map *map, uint64_t hash)
{
	return &map->bucket[hash & (map->bucket_count - 1)];
}

enum okv_status okv_map_init(struct okv_map *map)
{
	enum { FIRST_BUCKETS = 64 };

	*map = (struct okv_map){.bucket_count = FIRST_BUCKETS};
	map->bucket = okv_alloc(FIRST_BUCKETS, sizeof(struct okv_map_node *));
	return map->bucket ? OKV_OK : OKV_ERR_NO_MEMORY;
}

void okv_map_done(struct okv_map *map)
{
	free(map->bucket);
	*map = (struct okv_map){0};
}

static void grow(struct okv_map *map)
{
	struct okv_map old = *map;
	struct okv_map_node **bucket = okv_alloc(old.bucket_count * 2, sizeof(struct okv_map_node *));

	if (!bucket)
		return; /* longer chains are better than a failed insertion */
	map->bucket = bucket;
	map->bucket_count = old.bucket_count * 2;
	for (size_t i = 0; i < old.bucket_count; i++) {
		for (struct okv_map_node *node = old.bucket[i], *next; node; node = next) {
			struct okv_map_node **home = bucket_of(map, node->hash);

			next = node->next;
			node->next = *home;
			*home = node;
		}
	}
	free(old.bucket);
}

void okv_map_insert(struct okv_map *map, struct okv_map_node *node, uint64_t hash)
{
	if (map->size >= map->bucket_count)
		grow(map);

	struct okv_map_node **home = bucket_of(map, hash);
	node->hash = hash;
	node->next = *home;
	*home = node;
	map->size++;
}

void okv_map_remove(struct okv_map *map, struct okv_map_node *node)
{
	struct okv_map_node **link = bucket_of(map, node->hash);

	while (*link != node) {
		OKV_ASSERT(*link != NULL);
		link = &(*link)->next;
	}
	*link = node->next;
	node->next = NULL;
	map->size--;
}

static struct okv_map_node *with_hash(struct okv_map_node *node, uint64_t hash)
{
	while (node && node->hash != hash)
		node = node->next;
	return node;
}

struct okv_map_node *okv_map_first(const struct okv_map *map, uint64_t hash)
{
	return with_hash(*bucket_of(map, hash), hash);
}

struct okv_map_node *okv_map_next(const struct okv_map_node *node)
{
	return with_hash(node->next, node->hash);
}

struct okv_map_node *okv_map_walk(const struct okv_map *map, const struct okv_map_node *after)
{
	if (after && after->next)
		return after->next;

	size_t i = after ? (after->hash & (map->bucket_count - 1)) + 1 : 0;
	for (; i < map->bucket_count; i++)
		if (map->bucket[i])
			return map->bucket[i];
	return NULL;
}
