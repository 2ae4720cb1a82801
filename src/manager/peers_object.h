/*
 * The peer half of a manager: its object, shared by the files peers*.c. Everything here belongs to the owner loop.
 *
 *     inbound links (who reads from us)     -> okv_source    -> mover grants
 *     remotes (whom we read from), fetches  -> okv_requester -> mover reads
 *
 * The cores decide; these files carry their messages, pin and reserve blocks, and give the mover its orders.
 */
#ifndef OKV_MANAGER_PEERS_OBJECT_H
#define OKV_MANAGER_PEERS_OBJECT_H

#include <netinet/in.h>

#include "okv/base/fault.h"
#include "okv/base/list.h"
#include "okv/base/metrics.h"
#include "okv/fabric/requester.h"
#include "okv/fabric/source.h"
#include "okv/loop/acceptor.h"
#include "okv/mover/mover.h"
#include "okv/store/store.h"
#include "peer_link.h"
#include "peers.h"

#define OKV__CLUSTER "orbitkv" /* managers of another name do not talk to ours */

enum {
	OKV__INBOUND_LINKS_MAX = 256,
	OKV__KEYS_MAX = 64,
	OKV__VERIFICATIONS = 3,
	OKV__STAGES = 4,
	OKV__FETCH_STATUSES = 3,
};

/* A manager that connected to us. */
struct okv__inbound {
	struct okv_list node;
	struct okv_peers *peers;
	struct okv__link link;
	struct okv_timer hello_timer;
	bool is_greeted;
	struct okv_uuid requester; /* as its HELLO says: for people */
	struct okv_uuid reader;	   /* our name for this connection, of which its windows are */
};

/* A manager that we connect to. */
struct okv__remote {
	struct okv_peers *peers;
	struct okv__link link;
	struct okv_timer timer; /* the next attempt, or the end of waiting for its WELCOME */
	uint64_t backoff_ns;
	unsigned index; /* in the requester */
	bool is_up, is_self, is_complained_of;
	struct sockaddr_storage address;
	socklen_t address_size;
	char host[INET6_ADDRSTRLEN]; /* numeric, for the mover */
	char name[80];		     /* as configured, for people */
	uint16_t data_port;
};

/* A READ under way: where its ranges go. */
struct okv__read {
	struct okv_list node;
	struct okv_transfer *transfer;
	uint64_t id; /* the mover's */
	uint64_t started_ns;
	struct okv_block *block[OKV_PEER_AUTHORISE_MAX]; /* INCOMING, ours until committed or aborted */
	uint8_t *spare[OKV_PEER_AUTHORISE_MAX]; /* for a block that came from elsewhere meanwhile: its range has to go
						   somewhere */
};

/* What a caller waits for. */
struct okv__peer_fetch {
	struct okv_list node;
	uint64_t id, started_ns, block_bytes;
	struct okv_fetch *fetch;
	okv__peers_done *done;
	void *context;
	uint32_t count, asked;	 /* the first `asked` of `count` are fetched */
	struct okv_block **came; /* owned; [count], what is told to the caller */
	struct okv_fetch_block block[];
};

struct okv__peers_metrics {
	struct okv_metric *lock_active, *reserved_bytes, *expired_sessions, *lock_timeouts, *rejected_bytes,
		*rejected_sessions, *authorised, *readers_gone;
	struct okv_metric *completions, *completion_retries, *completion_rejections, *peers_gone, *connected;
	struct okv_metric *fetches[OKV__FETCH_STATUSES], *fetch_bytes, *fetch_seconds, *coalesced, *replans;
	struct okv_metric *plan_segments, *plan_segments_completed;
	struct okv_metric *stage_seconds[OKV__STAGES][2], *verification_failures[OKV__VERIFICATIONS];
};

enum okv__stage { OKV__STAGE_AUTHORISE, OKV__STAGE_ALLOCATE, OKV__STAGE_READ, OKV__STAGE_RELEASE };
enum okv__fetch_status { OKV__FETCH_OK, OKV__FETCH_REJECTED, OKV__FETCH_ERROR };

struct okv_peers {
	struct okv_loop *loop; /* borrowed, and the next three */
	struct okv_store *store;
	struct okv_faults *faults;
	struct okv_metrics *registry;
	struct okv__peers_metrics metrics;
	struct okv_uuid incarnation;
	uint64_t deadline_ns;
	struct okv_mover *mover;
	struct okv_watch *mover_watch;
	struct okv_source *source;
	struct okv_requester *requester;
	struct okv_timer overdue_timer, requester_timer;
	struct okv_task act; /* okv__peers_act() from the loop */
	bool is_act_posted;
	/* Source side. */
	int listen_fd;
	uint16_t port;
	struct okv_acceptor acceptor;
	struct okv_list inbound;
	unsigned inbound_count;
	struct okv_materialisation_key *key; /* [OKV__KEYS_MAX], those that engines here use */
	struct okv_hash key_digest[OKV__KEYS_MAX];
	unsigned key_count;
	/* Requester side. */
	struct okv__remote *remote; /* [remote_count] */
	size_t remote_count;
	struct okv_list reads, fetches;
	uint64_t last_fetch;
	struct okv_peer_message incoming, outgoing;
	/* Shutdown. */
	bool is_stopping;
	void (*drained)(void *context);
	void *drained_context;
};

/* peers.c */
/* Does what the cores want done. Every event ends with this. */
void okv__peers_act(struct okv_peers *peers);
/* The same, soon: for calls from outside, which must not be answered from inside. */
void okv__peers_post_act(struct okv_peers *peers);

/* peers_source.c */
OKV_MUST_CHECK enum okv_status okv__peers_listen(struct okv_peers *peers, const char *address, uint16_t port,
						 struct okv_reason *reason);
void okv__peers_stop_listening(struct okv_peers *peers);
void okv__peers_act_source(struct okv_peers *peers);

/* peers_requester.c */
OKV_MUST_CHECK enum okv_status okv__remote_init(struct okv_peers *peers, struct okv__remote *remote, const char *name,
						struct okv_reason *reason);
void okv__remote_close(struct okv__remote *remote);
void okv__peers_read_event(struct okv_peers *peers, const struct okv_mover_event *event);
void okv__peers_act_requester(struct okv_peers *peers);

#endif
