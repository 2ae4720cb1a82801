/*
 * The requester's objects.
 *
 *   fetch --refers to--> want <--owns-- job --runs--> transfer --uses--> slot of a peer
 *
 * A job is what one fetch added: the wants that nobody was fetching yet, in order. It outlives its fetch, so that
 * another fetch that shares a want does not lose it. Wants [0, next_want) of a job are settled or in one of its
 * transfers; a transfer that releases has left its job.
 */
#ifndef OKV_FABRIC_REQUESTER_INTERNAL_H
#define OKV_FABRIC_REQUESTER_INTERNAL_H

#include "okv/base/map.h"
#include "okv/fabric/requester.h"

/* An entry of the list of things to do, embedded in what it is about. */
struct okv__todo {
	struct okv_list node;
	enum okv_requester_action_kind kind;
};

enum okv__rpc_kind { OKV__RPC_LOCATE, OKV__RPC_OPEN, OKV__RPC_AUTHORISE, OKV__RPC_RELEASE };

/* A request: first in the list of things to do, then in flight until its answer, its time or its connection's end. */
struct okv__rpc {
	struct okv__todo todo;
	struct okv_list in_flight; /* oldest first, so also by deadline */
	enum okv__rpc_kind kind;
	unsigned peer;
	void *object; /* job, nothing, transfer, transfer */
	uint64_t id;  /* 0: neither queued nor in flight */
	uint64_t deadline_ns;
};

struct okv__peer {
	bool is_connected;
	bool is_silent;	     /* it let a request time out and has not answered anything since */
	bool is_owner_known; /* `owner` may be alive */
	struct okv_uuid owner;
	bool has_window;
	struct okv_uuid window;
	struct okv__rpc open;
	struct {
		uint64_t generation; /* of the last ticket */
		bool is_busy;
	} slot[OKV_REQUESTER_SLOTS];
};

enum okv__want_state { OKV__WANT_OPEN, OKV__WANT_LANDED, OKV__WANT_FAILED };

struct okv_want {
	struct okv_list node;	     /* all */
	struct okv_map_node by_hash; /* unless it failed */
	struct okv__todo todo;	     /* UNPIN */
	struct okv_fetch_block block;
	enum okv__want_state state;
	enum okv_status failure;
	char field[OKV_PEER_NAME_MAX]; /* of a MISMATCH */
	unsigned fetches;	       /* that refer to it */
	struct okv__job *job;	       /* while it runs */
	uint64_t bytes;
	void *handle;
};

struct okv_fetch {
	struct okv_list node; /* active ones */
	struct okv__todo todo;
	struct okv_want **want;
	uint32_t count, settled; /* wants before `settled` are */
	uint64_t deadline_ns;
	void *context;
	bool is_done;
	struct okv_fetch_result result;
};

struct okv__job {
	struct okv_list node;
	struct okv_fetch *fetch; /* that added it; NULL when that has ended */
	struct okv_want **want;
	uint16_t count, next_want;
	uint8_t key[OKV_KEY_ENCODED_MAX];
	uint16_t key_size;
	struct okv_hash key_digest;
	uint64_t block_bytes, deadline_ns;
	bool is_locating, is_over; /* over: its deadline was acted on */
	uint64_t locate_until_ns;
	unsigned peer_count;		    /* when it started */
	uint64_t asked, answered, rejected; /* sets of peers, by bit */
	struct okv__rpc *locate;	    /* [peer] */
	struct okv_peer_location *location; /* [peer][want] */
	char field[OKV_PEER_NAME_MAX];	    /* of a key that differed */
	unsigned replans, window_retries;
	struct okv__transfer *next;    /* WAIT_WINDOW, AUTHORISING or READY */
	struct okv__transfer *reading; /* READING */
};

enum okv__transfer_state {
	OKV__WAIT_WINDOW,
	OKV__AUTHORISING,
	OKV__READY,
	OKV__READING,
	OKV__RELEASING,
};

struct okv__transfer {
	struct okv_transfer seen; /* by the driver */
	struct okv_list node;
	struct okv__todo todo; /* SUBMIT, CANCEL_READ */
	struct okv__rpc rpc;   /* AUTHORISE, then RELEASE */
	enum okv__transfer_state state;
	struct okv__job *job; /* until it releases */
	uint16_t first_want, landed;
	bool is_submitted, is_cancelled;
	uint64_t release_asked_ns;	/* RELEASING: for the first time; 0 before */
	uint64_t backoff_ns, resend_ns; /* RELEASING without a request: when to ask again; UINT64_MAX: when connected */
};

struct okv_requester {
	struct okv_requester_options options;
	struct okv__peer *peer; /* [OKV_REQUESTER_PEERS_MAX] */
	unsigned peer_count;
	uint64_t last_rpc_id;
	struct okv_list todo, in_flight;
	struct okv_list wants, fetches, done_fetches, jobs, transfers; /* owned */
	struct okv_map by_hash;
	struct okv_requester_counts counts;
};

/* requester.c */
void okv__todo_init(struct okv__todo *todo);
void okv__todo_push(struct okv_requester *requester, struct okv__todo *todo, enum okv_requester_action_kind kind);
void okv__rpc_init(struct okv__rpc *rpc, enum okv__rpc_kind kind, unsigned peer, void *object);
void okv__rpc_queue(struct okv_requester *requester, struct okv__rpc *rpc);
void okv__rpc_drop(struct okv__rpc *rpc);

/* requester_job.c */
void okv__want_fail(struct okv_requester *requester, struct okv_want *want, enum okv_status failure);
void okv__want_unref(struct okv_requester *requester, struct okv_want *want);
struct okv__job *okv__job_create(struct okv_requester *requester, const struct okv_materialisation_key *key,
				 uint64_t block_bytes, uint16_t count, uint64_t deadline_ns);
void okv__job_free(struct okv__job *job); /* the memory only */
void okv__job_locate(struct okv_requester *requester, struct okv__job *job, uint64_t now_ns);
bool okv__job_located(struct okv_requester *requester, struct okv__job *job, unsigned peer,
		      const struct okv_peer_message *message, uint64_t now_ns);
/* No more of this owner for this job. */
void okv__job_reject_peer(struct okv__job *job, unsigned peer);
/* Goes on as far as it can: plans, submits, ends. The job may be gone after it. */
void okv__job_advance(struct okv_requester *requester, struct okv__job *job, uint64_t now_ns);
/* The transfer in `next` failed before it was submitted, and has left the job: its wants are to be planned again. */
void okv__job_replan(struct okv_requester *requester, struct okv__job *job, uint16_t first_want);
/* The prefix ends here: what is not being read fails. */
void okv__job_cut(struct okv_requester *requester, struct okv__job *job, enum okv_status failure);
void okv__job_deadline(struct okv_requester *requester, struct okv__job *job, uint64_t now_ns);
bool okv__job_is_wanted(const struct okv__job *job);

/* requester_transfer.c */
struct okv__transfer *okv__transfer_create(struct okv_requester *requester, struct okv__job *job, unsigned peer,
					   uint16_t first_want, uint16_t count);
void okv__transfer_begin(struct okv_requester *requester, struct okv__transfer *transfer);
void okv__transfer_submit(struct okv_requester *requester, struct okv__transfer *transfer);
/* Leaves its job; released if it has a ticket, gone if not. */
void okv__transfer_close(struct okv_requester *requester, struct okv__transfer *transfer);
void okv__transfer_released(struct okv_requester *requester, struct okv__transfer *transfer,
			    enum okv_peer_refusal refusal, uint64_t now_ns);
void okv__transfer_authorised(struct okv_requester *requester, struct okv__transfer *transfer,
			      const struct okv_peer_message *message, uint64_t now_ns);
void okv__transfer_ask_release(struct okv_requester *requester, struct okv__transfer *transfer);
void okv__transfer_back_off(struct okv_requester *requester, struct okv__transfer *transfer, uint64_t now_ns);
/* No answer will come to its AUTHORISE: it may be pinned, or not. */
void okv__transfer_lost(struct okv_requester *requester, struct okv__transfer *transfer, uint64_t now_ns);
/* The answer of an OPEN_WINDOW, for all who wait for it; NULL: there is no window to be had. */
void okv__window_settled(struct okv_requester *requester, unsigned peer, const struct okv_uuid *window,
			 uint64_t now_ns);

#endif
