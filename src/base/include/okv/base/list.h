/*
 * List: an intrusive doubly linked list with a sentinel head. A node is in at most one list; an initialised node that
 * is in none points at itself. Nothing is allocated.
 */
#ifndef OKV_BASE_LIST_H
#define OKV_BASE_LIST_H

#include <stdbool.h>
#include <stddef.h>

struct okv_list {
	struct okv_list *next, *prev;
};

#define OKV_CONTAINER_OF(pointer, type, member) ((type *)(void *)((char *)(pointer)-offsetof(type, member)))

static inline void okv_list_init(struct okv_list *node)
{
	node->next = node->prev = node;
}

static inline bool okv_list_is_empty(const struct okv_list *head)
{
	return head->next == head;
}

static inline void okv_list_remove(struct okv_list *node)
{
	node->prev->next = node->next;
	node->next->prev = node->prev;
	okv_list_init(node);
}

static inline void okv_list_push_back(struct okv_list *head, struct okv_list *node)
{
	node->prev = head->prev;
	node->next = head;
	head->prev->next = node;
	head->prev = node;
}

static inline void okv_list_push_front(struct okv_list *head, struct okv_list *node)
{
	okv_list_push_back(head->next, node);
}

#define OKV_LIST_EACH(at, head) for (struct okv_list *at = (head)->next; at != (head); at = at->next)

/* Like OKV_LIST_EACH; the body may remove and free `at`. */
#define OKV_LIST_EACH_SAFE(at, head)                                                                                   \
	for (struct okv_list *at = (head)->next, *at##_next = at->next; at != (head);                                  \
	     at = at##_next, at##_next = at->next)

#endif
