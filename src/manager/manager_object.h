/*
 * The manager's object and its sessions, shared by its files. Everything here belongs to the owner loop.
 *
 * A session outlives its socket: it goes when the socket is closed, no job reads its arena, and no lease of it is left
 * (okv__session_settle). So the object is also the record of whom quarantined leases wait for.
 */
#ifndef OKV_MANAGER_MANAGER_OBJECT_H
#define OKV_MANAGER_MANAGER_OBJECT_H

#include "listener.h"
#include "manager_metrics.h"
#include "okv/base/fault.h"
#include "okv/base/region.h"
#include "okv/loop/acceptor.h"
#include "okv/loop/http_server.h"
#include "okv/loop/loop.h"
#include "okv/manager/manager.h"
#include "okv/session/channel.h"
#include "okv/session/lease.h"
#include "okv/session/message.h"
#include "okv/session/ring.h"
#include "okv/store/store.h"
#include "peers.h"
#include "worker.h"

enum { OKV__SESSIONS_MAX = 64 };

enum okv__session_state { OKV__SESSION_GREETING, OKV__SESSION_OPEN, OKV__SESSION_CLOSED };

struct okv__session {
	struct okv_manager *manager; /* borrowed */
	struct okv_list node;	     /* in manager->sessions */
	enum okv__session_state state;
	uint64_t id;
	int socket; /* owned; -1 when closed */
	struct okv_watch *socket_watch, *death_watch;
	struct okv_channel_peer peer; /* pidfd owned */
	struct okv_timer hello_timer; /* GREETING: it has said nothing yet */
	struct okv_task look_again;   /* more in the ring than one turn takes, or the end of a broken session */
	bool look_again_is_posted, is_broken;
	struct okv_session_hello hello;
	struct okv_region arena, ring_region;
	struct okv_ring_manager ring;
	uint32_t jobs; /* that read the arena or will answer */
};

/* What a lease holds, in the place of its index. */
struct okv__held {
	struct okv__session *session;
	uint32_t slot;		  /* PREPARING: the request to answer */
	uint64_t generation;	  /* of that request */
	struct okv_block **block; /* owned; one a wanted block, pinned once, NULL while missing */
	bool *is_remote;	  /* owned; came for this lease */
	uint32_t *missing;	  /* owned; index of each block that the fetch brings */
	uint32_t wanted, count, missing_count;
	uint64_t fetch; /* 0 if none is under way */
	uint64_t granted_ns;
};

struct okv_manager {
	struct okv_loop *loop; /* borrowed */
	struct okv_store *store;
	struct okv_metrics *registry;
	struct okv__manager_metrics metrics;
	struct okv_faults faults;
	struct okv_uuid incarnation;
	struct okv__listener listener;
	struct okv_acceptor acceptor; /* of it */
	struct okv__worker *worker;
	struct okv_peers *peers;
	struct okv_http_server *http;
	struct okv_timer touch_timer;
	uint8_t *scratch; /* of all sessions' rings */
	struct okv_list sessions;
	uint64_t next_session;
	struct okv_leases leases;
	struct okv__held held[OKV_LEASES];
	uint64_t jobs_submitted, jobs_done;
	struct okv_list syncs; /* POST /cache/sync that wait, oldest first */
	/* Shutdown. */
	bool is_stopping, http_is_drained, peers_are_drained;
	void (*stopped)(void *context);
	void *stopped_context;
};

/* sessions.c */
/* Of the connection `socket`, which is its own. */
void okv__session_start(void *manager, int socket);
/* `is_reader_gone`: it reads nothing of the pool any more. `why` is for the log. May free the session. */
void okv__session_end(struct okv__session *session, bool is_reader_gone, const char *why);
/* Frees the session if nothing refers to it any more. */
void okv__session_settle(struct okv__session *session);
/* False once the engine has hung up, whether or not the loop has heard of it. */
bool okv__session_is_connected(const struct okv__session *session);
void okv__session_reply(struct okv__session *session, struct okv_ring_reply reply, const struct okv_ring_grant *grants);
void okv__sessions_take_requests(struct okv_manager *manager);

/* requests.c */
void okv__request(struct okv__session *session, const struct okv_ring_call *call);
void okv__requests_orphan(struct okv__session *session, bool is_reader_gone);

/* admin.c */
void okv__admin_handle(void *manager, struct okv_http_exchange *exchange);
/* Answers every sync whose jobs are done, or all of them when the manager stops. */
void okv__admin_jobs_changed(struct okv_manager *manager);

/* manager.c */
/* A job was submitted or is done. */
void okv__manager_submit(struct okv_manager *manager, struct okv__job *job);
void okv__manager_job_done(struct okv_manager *manager);
/* Keeps a reserve of the pool resident ahead of its use, in small steps from now on. */
void okv__manager_touch_ahead(struct okv_manager *manager);

#endif
