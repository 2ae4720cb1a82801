/*
 * What the files of the mover share: operations (grants and reads) and connections.
 *
 * An operation is born on the owner's thread, handed to the mover's thread through the command list, and handed back
 * by its ENDED event. Its events are allocated with it, so that saying that memory is free again cannot fail.
 *
 * Fields are marked with who may touch them: [o] owner's thread, [m] mover's thread, [l] under mover->lock,
 * [c] constant after creation.
 */
#ifndef OKV_MOVER_INTERNAL_H
#define OKV_MOVER_INTERNAL_H

#include <netinet/in.h>
#include <pthread.h>
#include <sys/socket.h>

#include "okv/base/list.h"
#include "okv/base/map.h"
#include "okv/mover/mover.h"
#include "wire.h"

enum {
	OKV__CHUNK_BYTES = 256 << 10, /* moved and hashed at a time: fits the second-level cache */
	OKV__TURN_BYTES = 1 << 20,    /* moved for one connection before the others get their turn */
	OKV__INBOUND_MAX = 256,	      /* connections accepted at a time: those of 128 peers */
	OKV__DEFAULT_CONNECTIONS = 2,
};

struct okv__event {
	struct okv_list node; /* [l] */
	struct okv__operation *operation;
	struct okv_mover_event event;
};

enum okv__operation_kind { OKV__GRANT, OKV__READ };

struct okv__operation {
	struct okv_map_node by_id;   /* [o] */
	bool is_end_asked;	     /* [o] */
	struct okv_list command;     /* [l] */
	bool wants_start, wants_end; /* [l] orders not yet taken */
	unsigned references;	     /* [l] the owner's table, the command list */

	enum okv__operation_kind kind;	      /* [c] */
	uint64_t id;			      /* [c] */
	struct okv_mover_token token;	      /* [c] */
	uint64_t size;			      /* [c] of all ranges */
	struct okv_mover_range *range;	      /* [c] */
	uint32_t range_count;		      /* [c] */
	struct sockaddr_storage peer_address; /* [c] read */
	socklen_t peer_address_size;	      /* [c] read */

	bool is_ended;			    /* [m] */
	struct okv__connection *connection; /* [m] while bytes move */
	struct okv_map_node by_token;	    /* [m] grant, until it is read or ended */
	struct okv_list waiting;	    /* [m] read, for a free connection */
	uint32_t at_range;		    /* [m] next byte: range and offset in it */
	uint64_t at_offset, moved;	    /* [m] */
	uint32_t events_used;		    /* [m] */
	struct okv__event *event;	    /* [m] range_count + 1 for a read, 1 for a grant */
};

enum okv__connection_state {
	/* source side */
	OKV__AWAIT_REQUEST,
	OKV__SENDING,
	/* requester side */
	OKV__CONNECTING,
	OKV__IDLE, /* in mover->idle */
	OKV__AWAIT_RESPONSE,
	OKV__RECEIVING,
};

struct okv__peer {
	struct okv_list node;
	struct sockaddr_storage address;
	socklen_t address_size;
	struct okv_list connections; /* by `sibling` */
	unsigned connection_count;
	struct okv_list waiting; /* operations that wait for a connection */
};

/* All of it [m], except while it is in mover->idle: then it is whoever's takes it out. */
struct okv__connection {
	struct okv_list node;
	struct okv_list idle; /* [l] */
	struct okv_list sibling;
	enum okv__connection_state state;
	int fd;				       /* -1: closed, and freed at the end of the turn */
	uint32_t interest;		       /* epoll events asked for */
	struct okv__peer *peer;		       /* requester side */
	struct okv__operation *operation;      /* the one that is moved */
	uint8_t head[OKV__DATA_REQUEST_BYTES]; /* header on its way in or out */
	size_t head_at, head_size;
	bool has_read;		 /* source side: it brought a good token once */
	uint64_t stall_until_ns; /* fault point mover_stall_ms; 0 if it does not stall */
	bool has_stalled;
	uint64_t send_limit; /* bytes of the operation that will be sent: less than its size under a fault */
	struct okv_crc_stream crc;
};

struct okv_mover {
	/* [c] */
	unsigned connections_max;
	int command_fd, event_fd, epoll_fd, listen_fd;
	uint16_t port;
	int64_t fault_stall_ms, fault_cut_bytes, fault_short, fault_from;
	pthread_t thread;

	/* [o] */
	struct okv_map operations;
	uint64_t last_id;

	pthread_mutex_t lock;
	struct okv_list commands; /* [l] */
	struct okv_list events;	  /* [l] */
	struct okv_list idle;	  /* [l] connections to peers that wait for the next read */
	bool is_stopping;	  /* [l] */

	/* [m] */
	bool has_stopped, has_news;  /* news: events that the owner was not woken for yet */
	struct okv_list connections; /* all, both sides */
	struct okv_list closed;
	struct okv_list peers;
	unsigned inbound_count;
	bool is_accepting;
	uint64_t accept_again_ns; /* the process was out of descriptors; 0 if not */
	struct okv_map grants;	  /* by token */
	uint64_t reads_served;
};

/* mover.c: orders from the owner, events to the owner */
void okv__take_commands(struct okv_mover *mover);
void okv__operation_landed(struct okv_mover *mover, struct okv__operation *read, uint32_t index, struct okv_crc crc);
void okv__operation_ended(struct okv_mover *mover, struct okv__operation *operation, enum okv_status status,
			  bool reader_gone);

/* connection.c: both sides */
struct okv__connection *okv__connection_create(struct okv_mover *mover, int fd, enum okv__connection_state state);
void okv__connection_close(struct okv_mover *mover, struct okv__connection *connection);
void okv__connection_want(struct okv_mover *mover, struct okv__connection *connection, uint32_t interest);
void okv__tune_socket(int fd);
/* False unless `address` is an IPv4 or IPv6 literal. */
bool okv__parse_address(const char *address, uint16_t port, struct sockaddr_storage *ret_address, socklen_t *ret_size);
/* Reads or writes the header. 1 when it is complete, 0 when it must go on later, -1 when the connection is lost. */
int okv__head_receive(struct okv__connection *connection);
int okv__head_send(struct okv__connection *connection);

/* source.c */
enum okv_status okv__source_listen(struct okv_mover *mover, const char *address, uint16_t port,
				   struct okv_reason *reason);
void okv__source_accept(struct okv_mover *mover);
void okv__source_ready(struct okv_mover *mover, struct okv__connection *connection, uint32_t events);
void okv__source_start(struct okv_mover *mover, struct okv__operation *grant);
void okv__source_end(struct okv_mover *mover, struct okv__operation *grant);
/* Does what is due: stalls that are over, a listener that was left alone. The milliseconds until more is, -1 if never.
 */
int okv__source_due(struct okv_mover *mover);

/* requester.c */
void okv__requester_ready(struct okv_mover *mover, struct okv__connection *connection, uint32_t events);
/* Owner's thread, with the lock held: gives the read to an idle connection and asks at once. False if there is none. */
bool okv__requester_start_at_once(struct okv_mover *mover, struct okv__operation *read);
void okv__requester_start(struct okv_mover *mover, struct okv__operation *read);
void okv__requester_end(struct okv_mover *mover, struct okv__operation *read);

#endif
