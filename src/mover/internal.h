/*
 * What the files of the mover share: operations (grants and reads), connections, and the two drivers that move bytes.
 *
 * A driver is an epoll instance with the connections and operations that it moves, and one thread that works it:
 *
 *     threaded   the mover's thread: everything the source does, and large reads
 *     polled     the owner's thread, inside okv_mover_read(), _read_cancel() and _poll(): small reads, of whose time
 *                waking another thread, and then the owner, would be a good part
 *
 * An operation is born on the owner's thread, handed to the mover's thread through the command list if that one drives
 * it, and handed back by its ENDED event. Its events are allocated with it, so that saying that memory is free again
 * cannot fail.
 *
 * Fields are marked with who may touch them: [o] owner's thread, [m] mover's thread, [d] the thread of the driver,
 * [l] under mover->lock, [c] constant after creation.
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
	OKV__CHUNK_BYTES = 64 << 10,  /* received and hashed at a time (docs/performance.md) */
	OKV__TURN_BYTES = 1 << 20,    /* moved for one connection before the others get their turn */
	OKV__POLLED_BYTES = 1 << 20,  /* the largest read that its owner's thread receives, in one turn */
	OKV__INBOUND_MAX = 256,	      /* connections accepted at a time: those of 64 peers */
	OKV__DEFAULT_CONNECTIONS = 2, /* to a peer, of each driver */
};

struct okv__event {
	struct okv_list node; /* [l] */
	struct okv__operation *operation;
	struct okv_mover_event event;
};

enum okv__operation_kind { OKV__GRANT, OKV__READ };

/* All of it [d]. */
struct okv__driver {
	struct okv_mover *mover; /* [c] */
	int epoll_fd;		 /* [c] */
	bool has_news;		 /* events that the owner was not woken for yet */
	struct okv_list connections;
	struct okv_list closed; /* freed at the end of the turn, since epoll may have told of them already */
	struct okv_list peers;
};

struct okv__operation {
	struct okv_map_node by_id;   /* [o] */
	bool is_end_asked;	     /* [o] */
	bool end_is_told;	     /* [l] its ENDED event waits for the owner, or was taken */
	struct okv_list command;     /* [l] */
	bool wants_start, wants_end; /* [l] orders not yet taken */
	unsigned references;	     /* [l] the owner's table, the command list */

	enum okv__operation_kind kind;	      /* [c] */
	struct okv__driver *driver;	      /* [c] */
	uint64_t id;			      /* [c] */
	struct okv_mover_token token;	      /* [c] */
	uint64_t size;			      /* [c] of all ranges */
	struct okv_mover_range *range;	      /* [c] */
	uint32_t range_count;		      /* [c] */
	struct sockaddr_storage peer_address; /* [c] read */
	socklen_t peer_address_size;	      /* [c] read */

	bool is_ended;			    /* [d] */
	struct okv__connection *connection; /* [d] while bytes move */
	struct okv_map_node by_token;	    /* [d] grant, until it is read or ended */
	struct okv_list waiting;	    /* [d] read, for a free connection */
	uint32_t at_range;		    /* [d] next byte: range and offset in it */
	uint64_t at_offset, moved;	    /* [d] */
	uint32_t events_used;		    /* [d] */
	struct okv__event *event;	    /* [d] range_count + 1 for a read, 1 for a grant */
};

enum okv__connection_state {
	/* source side */
	OKV__AWAIT_REQUEST,
	OKV__SENDING,
	/* requester side */
	OKV__CONNECTING,
	OKV__IDLE,
	OKV__RECEIVING, /* the header of the response and its bytes */
};

/* All of it [d]. */
struct okv__peer {
	struct okv__driver *driver;
	struct okv_list node;
	struct sockaddr_storage address;
	socklen_t address_size;
	struct okv_list connections; /* by `sibling` */
	unsigned connection_count;
	struct okv_list waiting; /* operations that wait for a connection */
};

/* All of it [d]. */
struct okv__connection {
	struct okv__driver *driver;
	struct okv_list node;
	struct okv_list sibling;
	struct okv__peer *peer;		  /* requester side */
	struct okv__operation *operation; /* the one that is moved */
	enum okv__connection_state state;
	int fd;				       /* -1: closed */
	uint32_t interest;		       /* epoll events asked for */
	bool has_read;			       /* source side: it brought a good token once */
	bool has_stalled;		       /* fault point mover_stall_ms, as the next one */
	uint64_t stall_until_ns;	       /* 0 if it does not stall */
	uint64_t send_limit;		       /* bytes of the operation that will be sent: less under a fault */
	uint8_t head[OKV__DATA_REQUEST_BYTES]; /* header on its way in or out */
	size_t head_at, head_size;
	struct okv_crc_stream crc;
};

struct okv_mover {
	/* [c] */
	unsigned connections_max;
	int command_fd, event_fd, listen_fd;
	uint16_t port;
	int64_t fault_stall_ms, fault_cut_bytes, fault_short, fault_from;
	pthread_t thread;

	struct okv__driver threaded, polled;

	/* [o] */
	struct okv_map operations;
	uint64_t last_id;

	pthread_mutex_t lock;
	struct okv_list commands; /* [l] for the mover's thread */
	struct okv_list events;	  /* [l] for the owner */
	bool is_event_fd_raised;  /* [l] */
	bool is_stopping;	  /* [l] */

	/* [m] the source side */
	bool has_stopped;
	unsigned inbound_count;
	bool is_accepting;
	uint64_t accept_again_ns; /* the process was out of descriptors; 0 if not */
	struct okv_map grants;	  /* by token */
	uint64_t reads_served;
};

/* mover.c: orders from the owner, events to the owner */
void okv__take_commands(struct okv_mover *mover);
void okv__operation_landed(struct okv__operation *read, uint32_t index, struct okv_crc crc);
void okv__operation_ended(struct okv__operation *operation, enum okv_status status, bool reader_gone);

/* connection.c: both sides */
struct okv__connection *okv__connection_create(struct okv__driver *driver, int fd, enum okv__connection_state state);
void okv__connection_close(struct okv__connection *connection);
void okv__connection_want(struct okv__connection *connection, uint32_t interest);
void okv__tune_socket(int fd);
/* False unless `address` is an IPv4 or IPv6 literal. */
bool okv__parse_address(const char *address, uint16_t port, struct sockaddr_storage *ret_address, socklen_t *ret_size);
/* Writes the header. 1 when it is complete, 0 when it must go on later, -1 when the connection is lost. */
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
void okv__requester_ready(struct okv__connection *connection);
void okv__requester_start(struct okv__operation *read);
void okv__requester_end(struct okv__operation *read);

#endif
