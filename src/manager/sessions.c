#include <inttypes.h>
#include <poll.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <unistd.h>

#include "manager_object.h"
#include "okv/base/log.h"

static void send_message(int socket, const struct okv_session_message *message, const int *fds, unsigned fd_count)
{
	uint8_t bytes[OKV_SESSION_MESSAGE_MAX];

	/* Busy: a doorbell waits there already, or the engine does not read what it asked for. Gone: the watch tells.
	 */
	(void)!okv_channel_send(socket, bytes, okv_session_encode(message, bytes), fds, fd_count);
}

static void refuse(struct okv_manager *manager, int socket, enum okv_status status, const char *text)
{
	struct okv_session_message message = {.type = OKV_SESSION_REFUSE, .refuse = {.status = status}};

	snprintf(message.refuse.text, sizeof(message.refuse.text), "%s", text);
	send_message(socket, &message, NULL, 0);
	okv_metric_add(manager->metrics.session_refusals, 1);
	okv_log(OKV_LOG_WARN, "session", "an engine is refused: %s", text);
}

static uint32_t count_live(const struct okv_manager *manager)
{
	uint32_t count = 0;

	OKV_LIST_EACH(node, &manager->sessions)
	count += OKV_CONTAINER_OF(node, struct okv__session, node)->state != OKV__SESSION_CLOSED;
	return count;
}

void okv__session_settle(struct okv__session *session)
{
	if (session->state != OKV__SESSION_CLOSED || session->jobs || session->look_again_is_posted ||
	    okv_lease_next(&session->manager->leases, session->id, 0))
		return;
	okv_watch_destroy(session->death_watch);
	if (session->peer.pidfd >= 0)
		close(session->peer.pidfd);
	okv_region_close(&session->arena);
	okv_list_remove(&session->node);
	free(session);
}

void okv__session_end(struct okv__session *session, bool is_reader_gone, const char *why)
{
	if (session->state == OKV__SESSION_OPEN) {
		okv_log(OKV_LOG_INFO, "session", "%s (process %d) leaves: %s", session->hello.name, session->peer.pid,
			why);
		okv_metric_add(session->manager->metrics.sessions, -1);
	}
	if (session->state != OKV__SESSION_CLOSED) {
		session->state = OKV__SESSION_CLOSED;
		okv_timer_stop(&session->hello_timer);
		okv_watch_destroy(session->socket_watch);
		session->socket_watch = NULL;
		close(session->socket);
		session->socket = -1;
		okv_region_close(&session->ring_region);
	}
	okv__requests_orphan(session, is_reader_gone);
	okv__session_settle(session);
}

bool okv__session_is_connected(const struct okv__session *session)
{
	struct pollfd at = {.fd = session->socket, .events = POLLRDHUP};

	return session->state == OKV__SESSION_OPEN && poll(&at, 1, 0) == 0;
}

static void break_session(struct okv__session *session, const char *why)
{
	okv_log(OKV_LOG_WARN, "session", "%s (process %d) breaks the protocol: %s", session->hello.name,
		session->peer.pid, why);
	okv_metric_add(session->manager->metrics.session_errors, 1);
	okv__session_end(session, false, "it broke the protocol");
}

static void post_look_again(struct okv__session *session)
{
	if (session->look_again_is_posted)
		return;
	session->look_again_is_posted = true;
	okv_loop_post(session->manager->loop, &session->look_again);
}

void okv__session_reply(struct okv__session *session, struct okv_ring_reply reply, const struct okv_ring_grant *grants)
{
	const struct okv_session_message bell = {.type = OKV_SESSION_DOORBELL};
	struct okv_reason reason;

	if (session->state != OKV__SESSION_OPEN || session->is_broken)
		return;
	if (okv_ring_manager_reply(&session->ring, &reply, grants, &reason) == OKV_OK) {
		send_message(session->socket, &bell, NULL, 0);
		return;
	}
	/* The caller is in the middle of something with this session: it ends from the loop. */
	session->is_broken = true;
	post_look_again(session);
}

/* Takes at most one ring full of requests, so that one engine cannot keep the loop. May free the session. */
static void take_requests(struct okv__session *session)
{
	struct okv_ring_call call;
	struct okv_reason reason;

	for (int i = 0; i < OKV_RING_SLOTS; i++) {
		enum okv_status status = okv_ring_manager_take(&session->ring, &call, &reason);

		if (status == OKV_ERR_ABSENT)
			return;
		if (status != OKV_OK) {
			break_session(session, reason.text);
			return;
		}
		okv__request(session, &call);
		if (session->is_broken)
			return;
	}
	post_look_again(session);
}

void okv__sessions_take_requests(struct okv_manager *manager)
{
	OKV_LIST_EACH_SAFE(node, &manager->sessions)
	{
		struct okv__session *session = OKV_CONTAINER_OF(node, struct okv__session, node);

		if (session->state == OKV__SESSION_OPEN && !session->is_broken)
			take_requests(session);
	}
}

static void look_again(void *context)
{
	struct okv__session *session = context;

	session->look_again_is_posted = false;
	if (session->state != OKV__SESSION_OPEN)
		okv__session_settle(session);
	else if (session->is_broken)
		break_session(session, "the engine's counter of replies");
	else
		take_requests(session);
}

/* An engine that comes back says that it reads nothing of its last session. Believed only from the same process. */
static void disclaim(struct okv__session *session)
{
	OKV_LIST_EACH_SAFE(node, &session->manager->sessions)
	{
		struct okv__session *previous = OKV_CONTAINER_OF(node, struct okv__session, node);

		if (previous == session || previous->id != session->hello.previous_session ||
		    previous->peer.pid != session->peer.pid)
			continue;
		okv__session_end(previous, true, "its engine comes back");
	}
}

static enum okv_status enter(struct okv__session *session, struct okv_channel_packet *packet, struct okv_reason *reason)
{
	struct okv_manager *manager = session->manager;
	const struct okv_session_hello *hello = &session->hello;
	struct okv_ring_limits limits = {
		.page_bytes = hello->page_bytes,
		.arena_bytes = hello->arena_bytes,
		.page_tokens = hello->key.page_tokens,
		.key_digest = okv_key_digest(&hello->key),
	};
	uint64_t pool_bytes = okv_store_pool(manager->store)->size;
	enum okv_status status;

	if (packet->fd_count != OKV_SESSION_HELLO_FDS)
		return okv_refuse(reason, OKV_ERR_PROTOCOL, "session",
				  "HELLO needs two descriptors, the arena and the ring");
	if (hello->page_bytes > pool_bytes / 4)
		return okv_refuse(reason, OKV_ERR_NO_SPACE, "pool-size",
				  "a page has %" PRIu64 " bytes, which is too much for a pool of %" PRIu64
				  "; start the manager with a larger --pool-size",
				  hello->page_bytes, pool_bytes);
	packet->fd_count = 0; /* okv_region_open() owns each, also when it refuses */
	status = okv_region_open(packet->fd[0], hello->arena_bytes, false, &session->arena, reason);
	if (status != OKV_OK) {
		close(packet->fd[1]);
		return status;
	}
	status = okv_region_open(packet->fd[1], okv_ring_bytes(), true, &session->ring_region, reason);
	if (status != OKV_OK)
		return status;
	return okv_ring_manager_init(&session->ring, session->ring_region.base, manager->scratch, &limits, reason);
}

/* False: the session has ended. */
static bool greet(struct okv__session *session, const struct okv_session_message *message,
		  struct okv_channel_packet *packet)
{
	struct okv_manager *manager = session->manager;
	struct okv_session_message accept = {.type = OKV_SESSION_ACCEPT};
	struct okv_reason reason;

	session->hello = message->hello;
	enum okv_status status = enter(session, packet, &reason);
	if (status != OKV_OK) {
		refuse(manager, session->socket, status, reason.text);
		okv__session_end(session, true, "refused");
		return false;
	}
	okv_timer_stop(&session->hello_timer);
	session->state = OKV__SESSION_OPEN;
	okv__peers_add_key(manager->peers, &session->hello.key);
	if (session->hello.previous_session)
		disclaim(session);
	accept.accept = (struct okv_session_accept){
		.session = session->id,
		.pool_bytes = okv_store_pool(manager->store)->size,
		.incarnation = manager->incarnation,
		.verification = OKV_SESSION_VERIFY_CRC,
	};
	send_message(session->socket, &accept, &okv_store_pool(manager->store)->fd, 1);
	okv_metric_add(manager->metrics.sessions, 1);
	okv__manager_touch_ahead(manager);
	okv_log(OKV_LOG_INFO, "session",
		"%s (process %d) attaches: pages of %" PRIu64 " bytes, arena of %" PRIu64 " MiB", session->hello.name,
		session->peer.pid, session->hello.page_bytes, session->hello.arena_bytes >> 20);
	return true;
}

/* Handles one packet. False: the session has ended. */
static bool take_packet(struct okv__session *session, const uint8_t *bytes, struct okv_channel_packet *packet)
{
	struct okv_session_message message;
	struct okv_reason reason;
	enum okv_status status = okv_session_decode(bytes, packet->size, &message, &reason);

	if (session->state == OKV__SESSION_GREETING) {
		if (status == OKV_OK && message.type == OKV_SESSION_HELLO)
			return greet(session, &message, packet);
		if (status == OKV_OK)
			status = okv_refuse(&reason, OKV_ERR_PROTOCOL, "session", "the first message must be HELLO");
		refuse(session->manager, session->socket, status, reason.text);
		okv__session_end(session, true, "refused");
		return false;
	}
	if (status == OKV_OK && message.type == OKV_SESSION_DOORBELL)
		return true;
	if (status == OKV_OK && message.type == OKV_SESSION_BYE) {
		okv__session_end(session, true, "it says good-bye");
		return false;
	}
	break_session(session, status == OKV_OK ? "a message out of turn" : reason.text);
	return false;
}

static void socket_ready(void *context, bool readable, bool writable)
{
	enum { PACKETS = 64 };
	struct okv__session *session = context;
	uint8_t bytes[OKV_SESSION_MESSAGE_MAX];
	struct okv_channel_packet packet;

	(void)readable;
	(void)writable;
	for (int i = 0; i < PACKETS; i++) {
		unsigned fds_max = session->state == OKV__SESSION_GREETING ? OKV_SESSION_HELLO_FDS : 0;
		enum okv_status status = okv_channel_receive(session->socket, bytes, sizeof(bytes), fds_max, &packet);

		if (status == OKV_ERR_ABSENT)
			break;
		if (status == OKV_ERR_DISCONNECTED) {
			okv__session_end(session, false, "its socket is closed");
			return;
		}
		if (status != OKV_OK) {
			break_session(session, "a packet that is too long or brings descriptors");
			return;
		}
		bool goes_on = take_packet(session, bytes, &packet);
		okv_channel_close_fds(&packet);
		if (!goes_on)
			return;
	}
	if (session->state == OKV__SESSION_OPEN && !session->is_broken)
		take_requests(session);
}

static void process_is_dead(void *context, bool readable, bool writable)
{
	struct okv__session *session = context;

	(void)readable;
	(void)writable;
	okv_watch_destroy(session->death_watch);
	session->death_watch = NULL;
	okv__session_end(session, true, "its process is dead");
}

static void hello_is_late(void *context)
{
	struct okv__session *session = context;

	refuse(session->manager, session->socket, OKV_ERR_DEADLINE, "it did not say HELLO within 5 s of connecting");
	okv__session_end(session, true, "refused");
}

static enum okv_status watch(struct okv__session *session, struct okv_reason *reason)
{
	struct okv_loop *loop = session->manager->loop;
	enum okv_status status = okv_channel_peer_open(session->socket, &session->peer, reason);

	if (status != OKV_OK)
		return status;
	if (session->peer.uid != geteuid())
		return okv_refuse(reason, OKV_ERR_PERMISSION, "user",
				  "the manager runs as user %u, the engine as user %u; run both as one user", geteuid(),
				  session->peer.uid);
	if (session->peer.pidfd < 0)
		return okv_refuse(reason, OKV_ERR_UNSUPPORTED, "pidfd",
				  "the kernel cannot prove the death of a process; Linux 5.3 or later is needed");
	status = okv_watch_create(loop, session->socket, socket_ready, session, &session->socket_watch, reason);
	if (status == OKV_OK)
		status = okv_watch_create(loop, session->peer.pidfd, process_is_dead, session, &session->death_watch,
					  reason);
	return status;
}

void okv__session_start(void *context, int socket)
{
	const uint64_t hello_ns = 5 * OKV_NS_PER_S;
	struct okv_manager *manager = context;
	struct okv__session *session = calloc(1, sizeof(*session));
	struct okv_reason reason = {0};
	enum okv_status status;

	if (!session) {
		refuse(manager, socket, OKV_ERR_NO_MEMORY, "the manager has no memory for another engine");
		close(socket);
		return;
	}
	session->manager = manager;
	session->id = manager->next_session++;
	session->socket = socket;
	strcpy(session->hello.name, "an engine"); /* until it says its own */
	session->peer.pidfd = session->arena.fd = session->ring_region.fd = -1;
	session->look_again = (struct okv_task){.run = look_again, .context = session};
	okv_timer_init(&session->hello_timer, manager->loop, hello_is_late, session);
	okv_list_push_back(&manager->sessions, &session->node);
	status = count_live(manager) > OKV__SESSIONS_MAX
			 ? okv_refuse(&reason, OKV_ERR_BUSY, "session", "the manager has %d engines already",
				      OKV__SESSIONS_MAX)
			 : watch(session, &reason);
	if (status != OKV_OK) {
		refuse(manager, socket, status, reason.text);
		okv__session_end(session, true, "refused");
		return;
	}
	okv_watch_set(session->socket_watch, true, false);
	okv_watch_set(session->death_watch, true, false);
	okv_timer_start(&session->hello_timer, okv_loop_now_ns(manager->loop) + hello_ns);
}
