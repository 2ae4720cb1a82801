/*
 * The source side: grants by token, and the connections that read them.
 *
 *      start                READ with its token             last byte handed to the kernel
 *   --------> GRANTED ----------------------------> SENDING -------------------------------> ended OK
 *                |  end: ended CANCELLED               |  end: cut off, ended CANCELLED
 *                                                      |  connection lost: ended DISCONNECTED, reader gone
 *
 * The kernel copies what is sent, so once send has returned for the last byte nobody reads the memory any more.
 */
#include <errno.h>
#include <string.h>
#include <sys/epoll.h>
#include <sys/uio.h>
#include <unistd.h>

#include "internal.h"
#include "okv/base/clock.h"
#include "okv/base/cursor.h"

enum { IOV_MAX_A_SEND = 64 };

enum okv_status okv__source_listen(struct okv_mover *mover, const char *address, uint16_t port,
				   struct okv_reason *reason)
{
	struct sockaddr_storage at;
	socklen_t size;
	int one = 1;

	if (!okv__parse_address(address, port, &at, &size))
		return okv_refuse(reason, OKV_ERR_INVALID, "listen", "\"%s\" is not an IPv4 or IPv6 address", address);
	mover->listen_fd = socket(at.ss_family, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0);
	if (mover->listen_fd < 0)
		goto refuse;
	setsockopt(mover->listen_fd, SOL_SOCKET, SO_REUSEADDR, &one, sizeof(one));
	if (bind(mover->listen_fd, (struct sockaddr *)&at, size) != 0 || listen(mover->listen_fd, 128) != 0 ||
	    getsockname(mover->listen_fd, (struct sockaddr *)&at, &size) != 0)
		goto refuse;
	mover->port = ntohs(at.ss_family == AF_INET6 ? ((struct sockaddr_in6 *)&at)->sin6_port
						     : ((struct sockaddr_in *)&at)->sin_port);
	return OKV_OK;

refuse:
	return okv_refuse(reason, okv_status_from_errno(errno), "listen", "cannot listen for data on %s port %u: %s",
			  address, port, strerror(errno));
}

/* A listener that cannot accept would be reported as ready for ever. */
static void set_accepting(struct okv_mover *mover, bool accepting)
{
	struct epoll_event event = {.events = accepting ? EPOLLIN : 0, .data.ptr = &mover->listen_fd};

	if (mover->is_accepting == accepting)
		return;
	mover->is_accepting = accepting;
	OKV_ASSERT(epoll_ctl(mover->threaded.epoll_fd, EPOLL_CTL_MOD, mover->listen_fd, &event) == 0);
}

/* The one that waits longest stands first among the connections. */
static void await_request(struct okv_mover *mover, struct okv__connection *connection)
{
	okv_list_remove(&connection->node);
	okv_list_push_back(&mover->threaded.connections, &connection->node);
	connection->state = OKV__AWAIT_REQUEST;
	connection->head_at = 0;
	connection->head_size = OKV__DATA_REQUEST_BYTES;
	okv__connection_want(connection, EPOLLIN);
}

static void close_inbound(struct okv_mover *mover, struct okv__connection *connection)
{
	okv__connection_close(connection);
	mover->inbound_count--;
	set_accepting(mover, true);
}

/* Who connects and says nothing, or names no token that is good, is not to keep readers out: of the connections that
 * wait for a request the one that has waited longest goes, one that never read before one that did. False if none
 * waits. */
static bool make_room(struct okv_mover *mover)
{
	struct okv__connection *idlest = NULL;

	OKV_LIST_EACH(node, &mover->threaded.connections)
	{
		struct okv__connection *connection = OKV_CONTAINER_OF(node, struct okv__connection, node);

		if (connection->peer || connection->state != OKV__AWAIT_REQUEST)
			continue;
		if (!idlest || (idlest->has_read && !connection->has_read))
			idlest = connection;
	}
	if (idlest)
		close_inbound(mover, idlest);
	return idlest != NULL;
}

/* Short of descriptors or memory: the listener would stay readable and take the whole thread. */
static void accept_later(struct okv_mover *mover)
{
	const uint64_t pause_ns = 100 * OKV_NS_PER_MS;

	set_accepting(mover, false);
	mover->accept_again_ns = okv_clock_now(okv_clock_boottime()) + pause_ns;
}

/* Takes one connection: in a loop the last call would find no descriptor free, and no way to tell whether it needs one.
 */
void okv__source_accept(struct okv_mover *mover)
{
	struct okv__connection *connection;

	if (mover->inbound_count == OKV__INBOUND_MAX && !make_room(mover)) {
		accept_later(mover);
		return;
	}
	int fd = accept4(mover->listen_fd, NULL, NULL, SOCK_CLOEXEC | SOCK_NONBLOCK);
	if (fd < 0) {
		if (errno != EAGAIN && errno != EINTR && errno != ECONNABORTED && !make_room(mover))
			accept_later(mover);
		return;
	}
	connection = okv__connection_create(&mover->threaded, fd, OKV__AWAIT_REQUEST);
	if (!connection) {
		close(fd);
		return;
	}
	okv__tune_socket(fd);
	mover->inbound_count++;
	await_request(mover, connection);
}

static uint64_t token_hash(const struct okv_mover_token *token)
{
	return okv_table_hash(token->bytes, sizeof(token->bytes));
}

static struct okv__operation *grant_of(struct okv_mover *mover, const struct okv_mover_token *token)
{
	for (struct okv_map_node *node = okv_map_first(&mover->grants, token_hash(token)); node;
	     node = okv_map_next(node)) {
		struct okv__operation *grant = OKV_CONTAINER_OF(node, struct okv__operation, by_token);

		if (memcmp(&grant->token, token, sizeof(*token)) == 0)
			return grant;
	}
	return NULL;
}

void okv__source_start(struct okv_mover *mover, struct okv__operation *grant)
{
	okv_map_insert(&mover->grants, &grant->by_token, token_hash(&grant->token));
}

/* The memory is the owner's again. */
static void end_grant(struct okv__connection *connection, enum okv_status status, bool reader_gone)
{
	struct okv__operation *grant = connection->operation;

	connection->operation = NULL;
	grant->connection = NULL;
	okv__operation_ended(grant, status, reader_gone);
}

static void cut_off(struct okv_mover *mover, struct okv__connection *connection, enum okv_status status,
		    bool reader_gone)
{
	struct linger reset = {.l_onoff = 1, .l_linger = 0};

	/* A reset, so that the reader cannot take what it got for the whole. */
	setsockopt(connection->fd, SOL_SOCKET, SO_LINGER, &reset, sizeof(reset));
	if (connection->operation)
		end_grant(connection, status, reader_gone);
	close_inbound(mover, connection);
}

void okv__source_end(struct okv_mover *mover, struct okv__operation *grant)
{
	if (grant->connection) {
		cut_off(mover, grant->connection, OKV_ERR_CANCELLED, false);
		return;
	}
	okv_map_remove(&mover->grants, &grant->by_token);
	okv__operation_ended(grant, OKV_ERR_CANCELLED, false);
}

/* Builds the response header in place of the request. */
static void build_response(struct okv__connection *connection, enum okv_status status, uint64_t size)
{
	struct okv_writer writer = okv_writer_of(connection->head, sizeof(connection->head));

	okv_write_u32(&writer, OKV__DATA_MAGIC);
	okv_write_u16(&writer, OKV__DATA_VERSION);
	okv_write_u16(&writer, (uint16_t)status);
	okv_write_u64(&writer, size);
	connection->head_at = 0;
	connection->head_size = OKV__DATA_RESPONSE_BYTES;
}

static void begin_send(struct okv_mover *mover, struct okv__connection *connection, struct okv__operation *grant)
{
	bool is_faulty = ++mover->reads_served >= (uint64_t)mover->fault_from;
	uint64_t announced = grant->size - (is_faulty && mover->fault_short ? 1 : 0);

	okv_map_remove(&mover->grants, &grant->by_token); /* one read a grant */
	connection->has_read = true;
	grant->connection = connection;
	connection->operation = grant;
	connection->send_limit = announced;
	if (is_faulty && mover->fault_cut_bytes > 0 && (uint64_t)mover->fault_cut_bytes < announced)
		connection->send_limit = (uint64_t)mover->fault_cut_bytes;
	connection->has_stalled = !is_faulty || mover->fault_stall_ms <= 0;
	build_response(connection, OKV_OK, announced);
}

static unsigned next_bytes(const struct okv__operation *grant, uint64_t limit, struct iovec *iov, unsigned iov_count)
{
	unsigned used = 0;
	uint64_t offset = grant->at_offset;

	for (uint32_t i = grant->at_range; i < grant->range_count && limit > 0 && used < iov_count; i++) {
		uint64_t size = grant->range[i].size - offset;

		if (size > limit)
			size = limit;
		iov[used++] = (struct iovec){.iov_base = grant->range[i].bytes + offset, .iov_len = size};
		limit -= size;
		offset = 0;
	}
	return used;
}

static void advance(struct okv__operation *grant, uint64_t bytes)
{
	grant->moved += bytes;
	grant->at_offset += bytes;
	while (grant->at_range < grant->range_count && grant->at_offset >= grant->range[grant->at_range].size) {
		grant->at_offset -= grant->range[grant->at_range].size;
		grant->at_range++;
	}
}

/* Sends header and bytes in one call, as far as the socket takes them. Bytes moved, or -1 with errno. */
static ssize_t send_some(struct okv__connection *connection)
{
	struct okv__operation *grant = connection->operation;
	struct iovec iov[1 + IOV_MAX_A_SEND];
	struct msghdr message = {.msg_iov = iov};
	uint64_t limit = connection->send_limit - grant->moved;

	if (!connection->has_stalled && grant->moved < grant->size / 2)
		limit = grant->size / 2 - grant->moved;
	if (limit > OKV__TURN_BYTES)
		limit = OKV__TURN_BYTES;
	if (connection->head_at < connection->head_size)
		iov[message.msg_iovlen++] = (struct iovec){.iov_base = connection->head + connection->head_at,
							   .iov_len = connection->head_size - connection->head_at};
	message.msg_iovlen += next_bytes(grant, limit, iov + message.msg_iovlen, IOV_MAX_A_SEND);

	ssize_t sent = sendmsg(connection->fd, &message, MSG_NOSIGNAL);
	if (sent <= 0)
		return sent;
	size_t of_head = connection->head_size - connection->head_at;
	if (of_head > (size_t)sent)
		of_head = (size_t)sent;
	connection->head_at += of_head;
	advance(grant, (uint64_t)sent - of_head);
	return sent;
}

/* Fault point mover_stall_ms: half of the bytes, then silence. */
static bool stalls(struct okv_mover *mover, struct okv__connection *connection)
{
	if (connection->has_stalled || connection->operation->moved < connection->operation->size / 2)
		return false;
	connection->has_stalled = true;
	connection->stall_until_ns =
		okv_clock_now(okv_clock_boottime()) + (uint64_t)mover->fault_stall_ms * OKV_NS_PER_MS;
	okv__connection_want(connection, EPOLLRDHUP);
	return true;
}

static void go_on_sending(struct okv_mover *mover, struct okv__connection *connection)
{
	struct okv__operation *grant = connection->operation;

	if (stalls(mover, connection))
		return;
	ssize_t sent = send_some(connection);
	if (sent < 0 && errno != EAGAIN && errno != EINTR) {
		cut_off(mover, connection, OKV_ERR_DISCONNECTED, true);
		return;
	}
	if (grant->moved < connection->send_limit) {
		okv__connection_want(connection, EPOLLOUT | EPOLLRDHUP);
		return;
	}
	if (grant->moved < grant->size) { /* a fault point */
		cut_off(mover, connection, OKV_ERR_DISCONNECTED, false);
		return;
	}
	end_grant(connection, OKV_OK, false);
	await_request(mover, connection);
}

/* The request is complete. A grant that does not exist is an ordinary answer; anything malformed ends the connection.
 */
static void answer(struct okv_mover *mover, struct okv__connection *connection)
{
	struct okv_reader reader = okv_reader_of(connection->head, OKV__DATA_REQUEST_BYTES);
	uint32_t magic = okv_read_u32(&reader);
	uint16_t version = okv_read_u16(&reader);
	uint16_t type = okv_read_u16(&reader);
	struct okv_mover_token token;

	okv_read_bytes(&reader, token.bytes, sizeof(token.bytes));
	if (magic != OKV__DATA_MAGIC) {
		close_inbound(mover, connection);
		return;
	}

	/* The owner ordered the grant before it told anyone the token, but the order may not have been taken yet. */
	okv__take_commands(mover);
	struct okv__operation *grant = grant_of(mover, &token);
	enum okv_status refusal = version != OKV__DATA_VERSION ? OKV_ERR_VERSION
				  : type != OKV__DATA_READ     ? OKV_ERR_PROTOCOL
				  : !grant		       ? OKV_ERR_ABSENT
							       : OKV_OK;
	if (refusal == OKV_OK) {
		begin_send(mover, connection, grant);
		connection->state = OKV__SENDING;
		go_on_sending(mover, connection);
		return;
	}
	/* Sixteen bytes fit an empty socket buffer; a reader for whom they do not is not worth waiting for. */
	build_response(connection, refusal, 0);
	if (okv__head_send(connection) != 1 || refusal != OKV_ERR_ABSENT)
		close_inbound(mover, connection);
	else
		await_request(mover, connection);
}

void okv__source_ready(struct okv_mover *mover, struct okv__connection *connection, uint32_t events)
{
	if (connection->state == OKV__SENDING) {
		if (events & (EPOLLRDHUP | EPOLLHUP | EPOLLERR))
			cut_off(mover, connection, OKV_ERR_DISCONNECTED, true);
		else
			go_on_sending(mover, connection);
		return;
	}
	ssize_t got = recv(connection->fd, connection->head + connection->head_at,
			   connection->head_size - connection->head_at, 0);
	if (got < 0 && (errno == EAGAIN || errno == EINTR))
		return;
	if (got <= 0) {
		close_inbound(mover, connection);
		return;
	}
	connection->head_at += (size_t)got;
	if (connection->head_at == connection->head_size)
		answer(mover, connection);
}

static uint64_t sooner(uint64_t a_ns, uint64_t b_ns)
{
	return a_ns == 0 || b_ns < a_ns ? b_ns : a_ns;
}

int okv__source_due(struct okv_mover *mover)
{
	uint64_t soonest = 0, now;

	if (mover->fault_stall_ms <= 0 && mover->accept_again_ns == 0)
		return -1;
	now = okv_clock_now(okv_clock_boottime());
	if (mover->accept_again_ns > now) {
		soonest = mover->accept_again_ns;
	} else if (mover->accept_again_ns) {
		mover->accept_again_ns = 0;
		set_accepting(mover, true);
	}
	OKV_LIST_EACH_SAFE(node, &mover->threaded.connections)
	{
		struct okv__connection *connection = OKV_CONTAINER_OF(node, struct okv__connection, node);

		if (connection->peer || connection->state != OKV__SENDING || connection->stall_until_ns == 0)
			continue;
		if (connection->stall_until_ns <= now) {
			connection->stall_until_ns = 0;
			go_on_sending(mover, connection);
		} else {
			soonest = sooner(soonest, connection->stall_until_ns);
		}
	}
	return soonest == 0 ? -1 : (int)((soonest - now) / OKV_NS_PER_MS) + 1;
}
