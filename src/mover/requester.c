/*
 * The requester side: reads, and a few connections to each peer that are kept for the next read.
 *
 *   read: WAITING for a connection -> request sent -> header -> bytes -> ended
 *   connection: CONNECTING -> IDLE <-> AWAIT_RESPONSE -> RECEIVING -> IDLE
 *
 * A read that finds an idle connection is asked for by the owner's own thread, which saves a wake-up; all else happens
 * on the mover's. Taking a connection out of mover->idle, under the lock, is what makes it one's own.
 *
 * Bytes go from the socket into their destination and are hashed while they are in the cache. A read that ends before
 * its last byte takes its connection with it, since what is still on its way cannot be told from the next response.
 */
#include <errno.h>
#include <stdlib.h>
#include <string.h>
#include <sys/epoll.h>
#include <unistd.h>

#include "internal.h"
#include "okv/base/cursor.h"

static struct okv__peer *peer_of(struct okv_mover *mover, const struct okv__operation *read)
{
	struct okv__peer *peer;

	OKV_LIST_EACH(node, &mover->peers)
	{
		peer = OKV_CONTAINER_OF(node, struct okv__peer, node);
		if (memcmp(&peer->address, &read->peer_address, sizeof(peer->address)) == 0)
			return peer;
	}
	peer = calloc(1, sizeof(*peer));
	if (!peer)
		return NULL;
	peer->address = read->peer_address;
	peer->address_size = read->peer_address_size;
	okv_list_init(&peer->connections);
	okv_list_init(&peer->waiting);
	okv_list_init(&peer->node);
	okv_list_push_back(&mover->peers, &peer->node);
	return peer;
}

static void forget_peer_if_unused(struct okv__peer *peer)
{
	if (!okv_list_is_empty(&peer->connections) || !okv_list_is_empty(&peer->waiting))
		return;
	okv_list_remove(&peer->node);
	free(peer);
}

/* Asks, on a connection that is the caller's own and watched for reading. */
static void send_request(struct okv__connection *connection, struct okv__operation *read)
{
	struct okv_writer writer = okv_writer_of(connection->head, sizeof(connection->head));

	connection->operation = read;
	read->connection = connection;
	okv_write_u32(&writer, OKV__DATA_MAGIC);
	okv_write_u16(&writer, OKV__DATA_VERSION);
	okv_write_u16(&writer, OKV__DATA_READ);
	okv_write_bytes(&writer, read->token.bytes, sizeof(read->token.bytes));
	connection->head_at = 0;
	connection->head_size = OKV__DATA_REQUEST_BYTES;

	/* It fits an empty socket buffer. If the connection is broken, reading the response will say so. */
	(void)okv__head_send(connection);
	connection->head_at = 0;
	connection->head_size = OKV__DATA_RESPONSE_BYTES;
	connection->state = OKV__AWAIT_RESPONSE;
}

/* Takes an idle connection to this address. With the lock held. */
static struct okv__connection *take_idle(struct okv_mover *mover, const struct sockaddr_storage *address)
{
	OKV_LIST_EACH(node, &mover->idle)
	{
		struct okv__connection *connection = OKV_CONTAINER_OF(node, struct okv__connection, idle);

		if (memcmp(&connection->peer->address, address, sizeof(*address)) != 0)
			continue;
		okv_list_remove(node);
		return connection;
	}
	return NULL;
}

bool okv__requester_start_at_once(struct okv_mover *mover, struct okv__operation *read)
{
	struct okv__connection *connection = take_idle(mover, &read->peer_address);

	/* Under the lock to the end: the mover must not close the descriptor in between. */
	if (connection)
		send_request(connection, read);
	return connection != NULL;
}

static struct okv__operation *take_waiting(struct okv__peer *peer)
{
	struct okv__operation *read;

	if (okv_list_is_empty(&peer->waiting))
		return NULL;
	read = OKV_CONTAINER_OF(peer->waiting.next, struct okv__operation, waiting);
	okv_list_remove(&read->waiting);
	return read;
}

static struct okv__connection *open_connection(struct okv_mover *mover, struct okv__peer *peer)
{
	int fd = socket(peer->address.ss_family, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0);
	struct okv__connection *connection;

	if (fd < 0)
		return NULL;
	okv__tune_socket(fd);
	if (connect(fd, (struct sockaddr *)&peer->address, peer->address_size) != 0 && errno != EINPROGRESS)
		goto close_fd;
	connection = okv__connection_create(mover, fd, OKV__CONNECTING);
	if (!connection)
		goto close_fd;
	connection->peer = peer;
	okv_list_push_back(&peer->connections, &connection->sibling);
	peer->connection_count++;
	okv__connection_want(mover, connection, EPOLLOUT);
	return connection;

close_fd:
	close(fd);
	return NULL;
}

/* Gives waiting reads to idle or new connections, as far as there are any. */
static void serve_waiting(struct okv_mover *mover, struct okv__peer *peer)
{
	while (!okv_list_is_empty(&peer->waiting)) {
		struct okv__connection *connection;
		struct okv__operation *read;

		pthread_mutex_lock(&mover->lock);
		connection = take_idle(mover, &peer->address);
		pthread_mutex_unlock(&mover->lock);
		if (connection) {
			send_request(connection, take_waiting(peer));
			continue;
		}
		if (peer->connection_count >= mover->connections_max)
			return;
		connection = open_connection(mover, peer);
		read = take_waiting(peer);
		if (connection) {
			connection->operation = read;
			read->connection = connection;
		} else {
			okv__operation_ended(mover, read, OKV_ERR_DISCONNECTED, false);
		}
	}
}

void okv__requester_start(struct okv_mover *mover, struct okv__operation *read)
{
	struct okv__peer *peer = peer_of(mover, read);

	if (!peer) {
		okv__operation_ended(mover, read, OKV_ERR_NO_MEMORY, false);
		return;
	}
	okv_list_push_back(&peer->waiting, &read->waiting);
	serve_waiting(mover, peer);
	forget_peer_if_unused(peer);
}

/* Ends the connection and the read on it, if there is one; what waits gets another connection. */
static void lose(struct okv_mover *mover, struct okv__connection *connection, enum okv_status status)
{
	struct okv__peer *peer = connection->peer;
	struct okv__operation *read = connection->operation;

	connection->operation = NULL;
	okv_list_remove(&connection->sibling);
	peer->connection_count--;
	okv__connection_close(mover, connection);
	if (read) {
		read->connection = NULL;
		okv__operation_ended(mover, read, status, false);
	}
	serve_waiting(mover, peer);
	forget_peer_if_unused(peer);
}

void okv__requester_end(struct okv_mover *mover, struct okv__operation *read)
{
	if (read->connection) {
		lose(mover, read->connection, OKV_ERR_CANCELLED);
		return;
	}
	okv_list_remove(&read->waiting);
	okv__operation_ended(mover, read, OKV_ERR_CANCELLED, false);
}

static void go_idle(struct okv_mover *mover, struct okv__connection *connection)
{
	okv__connection_want(mover, connection, EPOLLIN); /* to notice that the peer hung up */
	pthread_mutex_lock(&mover->lock);
	connection->state = OKV__IDLE;
	okv_list_push_back(&mover->idle, &connection->idle);
	pthread_mutex_unlock(&mover->lock);
	serve_waiting(mover, connection->peer);
}

static void finish(struct okv_mover *mover, struct okv__connection *connection, enum okv_status status)
{
	struct okv__operation *read = connection->operation;

	connection->operation = NULL;
	read->connection = NULL;
	okv__operation_ended(mover, read, status, false);
	go_idle(mover, connection);
}

/* Receives for one turn. */
static void receive(struct okv_mover *mover, struct okv__connection *connection)
{
	struct okv__operation *read = connection->operation;
	uint64_t turn = 0;

	while (turn < OKV__TURN_BYTES) {
		const struct okv_mover_range *range = &read->range[read->at_range];
		uint64_t wanted = range->size - read->at_offset;

		if (wanted > OKV__CHUNK_BYTES)
			wanted = OKV__CHUNK_BYTES;
		ssize_t got = recv(connection->fd, range->bytes + read->at_offset, wanted, 0);
		if (got < 0 && (errno == EAGAIN || errno == EINTR))
			return;
		if (got <= 0) {
			lose(mover, connection, OKV_ERR_DISCONNECTED);
			return;
		}
		okv_crc_stream_update(&connection->crc, range->bytes + read->at_offset, (size_t)got);
		turn += (uint64_t)got;
		read->moved += (uint64_t)got;
		read->at_offset += (uint64_t)got;
		if (read->at_offset < range->size)
			continue;

		okv__operation_landed(mover, read, read->at_range, okv_crc_stream_value(&connection->crc));
		okv_crc_stream_init(&connection->crc);
		read->at_offset = 0;
		if (++read->at_range == read->range_count) {
			finish(mover, connection, OKV_OK);
			return;
		}
	}
}

static void take_response(struct okv_mover *mover, struct okv__connection *connection)
{
	struct okv_reader reader = okv_reader_of(connection->head, OKV__DATA_RESPONSE_BYTES);
	uint32_t magic = okv_read_u32(&reader);
	uint16_t version = okv_read_u16(&reader);
	uint16_t status = okv_read_u16(&reader);
	uint64_t size = okv_read_u64(&reader);

	if (magic == OKV__DATA_MAGIC && (version != OKV__DATA_VERSION || status == OKV_ERR_VERSION)) {
		lose(mover, connection, OKV_ERR_VERSION);
	} else if (magic == OKV__DATA_MAGIC && status == OKV_ERR_ABSENT && size == 0) {
		finish(mover, connection, OKV_ERR_ABSENT);
	} else if (magic != OKV__DATA_MAGIC || status != OKV_OK || size != connection->operation->size) {
		lose(mover, connection, OKV_ERR_PROTOCOL);
	} else {
		connection->state = OKV__RECEIVING;
		okv_crc_stream_init(&connection->crc);
		receive(mover, connection);
	}
}

static void connected(struct okv_mover *mover, struct okv__connection *connection)
{
	int error = 0;
	socklen_t size = sizeof(error);

	if (getsockopt(connection->fd, SOL_SOCKET, SO_ERROR, &error, &size) != 0 || error != 0) {
		lose(mover, connection, OKV_ERR_DISCONNECTED);
		return;
	}
	okv__connection_want(mover, connection, EPOLLIN);
	send_request(connection, connection->operation);
}

void okv__requester_ready(struct okv_mover *mover, struct okv__connection *connection, uint32_t events)
{
	bool is_idle;

	(void)events; /* errors and hang-ups come out of the next call on the socket */
	pthread_mutex_lock(&mover->lock);
	is_idle = !okv_list_is_empty(&connection->idle);
	okv_list_remove(&connection->idle);
	pthread_mutex_unlock(&mover->lock);
	if (connection->state == OKV__CONNECTING) {
		connected(mover, connection);
	} else if (is_idle) {
		lose(mover, connection, OKV_ERR_DISCONNECTED); /* hung up, or bytes that nobody asked for */
	} else if (connection->state == OKV__AWAIT_RESPONSE) {
		int got = okv__head_receive(connection);

		if (got < 0)
			lose(mover, connection, OKV_ERR_DISCONNECTED);
		else if (got > 0)
			take_response(mover, connection);
	} else {
		receive(mover, connection);
	}
}
