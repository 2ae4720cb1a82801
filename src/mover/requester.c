/*
 * The requester side: reads, and a few connections to each peer that are kept for the next read.
 *
 *   read: WAITING for a connection -> request sent -> header and bytes -> ended
 *   connection: CONNECTING -> IDLE <-> RECEIVING
 *
 * All of it runs on the thread of the driver that the read, the peer and the connection belong to.
 *
 * Bytes go from the socket into their destination and are hashed while they are in the cache. A read that ends before
 * its last byte takes its connection with it, since what is still on its way cannot be told from the next response.
 */
#include <errno.h>
#include <stdlib.h>
#include <string.h>
#include <sys/epoll.h>
#include <sys/uio.h>
#include <unistd.h>

#include "internal.h"
#include "okv/base/cursor.h"

static struct okv__peer *peer_of(const struct okv__operation *read)
{
	struct okv__peer *peer;

	OKV_LIST_EACH(node, &read->driver->peers)
	{
		peer = OKV_CONTAINER_OF(node, struct okv__peer, node);
		if (memcmp(&peer->address, &read->peer_address, sizeof(peer->address)) == 0)
			return peer;
	}
	peer = calloc(1, sizeof(*peer));
	if (!peer)
		return NULL;
	peer->driver = read->driver;
	peer->address = read->peer_address;
	peer->address_size = read->peer_address_size;
	okv_list_init(&peer->connections);
	okv_list_init(&peer->waiting);
	okv_list_init(&peer->node);
	okv_list_push_back(&read->driver->peers, &peer->node);
	return peer;
}

static void forget_peer_if_unused(struct okv__peer *peer)
{
	if (!okv_list_is_empty(&peer->connections) || !okv_list_is_empty(&peer->waiting))
		return;
	okv_list_remove(&peer->node);
	free(peer);
}

/* Asks, on a connection that is free. */
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
	okv_crc_stream_init(&connection->crc);
	connection->state = OKV__RECEIVING;
}

static struct okv__connection *idle_connection(const struct okv__peer *peer)
{
	OKV_LIST_EACH(node, &peer->connections)
	{
		struct okv__connection *connection = OKV_CONTAINER_OF(node, struct okv__connection, sibling);

		if (connection->state == OKV__IDLE)
			return connection;
	}
	return NULL;
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

/* A receive buffer of fixed size where the system allows it without privileges (net.core.rmem_max): one that the kernel
 * sizes made reads of 1 MiB up to twice as slow (docs/performance.md). Where it does not, the kernel's own sizing is
 * far better than the little that it would grant. Not for the connections that we accept: nothing large comes in there,
 * and a reader that floods them would have so much kept for it. */
static void fix_receive_buffer(int fd)
{
	enum { BYTES = 4 << 20, KERNEL_SIZES = 0 };
	int value = BYTES;
	socklen_t size = sizeof(value);

	setsockopt(fd, SOL_SOCKET, SO_RCVBUF, &value, sizeof(value));
	if (getsockopt(fd, SOL_SOCKET, SO_RCVBUF, &value, &size) == 0 && value >= BYTES)
		return;
	value = KERNEL_SIZES;
	setsockopt(fd, SOL_SOCKET, SO_BUF_LOCK, &value, sizeof(value));
}

static struct okv__connection *open_connection(struct okv__peer *peer)
{
	int fd = socket(peer->address.ss_family, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0);
	struct okv__connection *connection;

	if (fd < 0)
		return NULL;
	okv__tune_socket(fd);
	fix_receive_buffer(fd);
	if (connect(fd, (struct sockaddr *)&peer->address, peer->address_size) != 0 && errno != EINPROGRESS)
		goto close_fd;
	connection = okv__connection_create(peer->driver, fd, OKV__CONNECTING);
	if (!connection)
		goto close_fd;
	connection->peer = peer;
	okv_list_push_back(&peer->connections, &connection->sibling);
	peer->connection_count++;
	okv__connection_want(connection, EPOLLOUT);
	return connection;

close_fd:
	close(fd);
	return NULL;
}

/* Gives waiting reads to idle or new connections, as far as there are any. */
static void serve_waiting(struct okv__peer *peer)
{
	while (!okv_list_is_empty(&peer->waiting)) {
		struct okv__connection *connection = idle_connection(peer);
		struct okv__operation *read;

		if (connection) {
			send_request(connection, take_waiting(peer));
			continue;
		}
		if (peer->connection_count >= peer->driver->mover->connections_max)
			return;
		connection = open_connection(peer);
		read = take_waiting(peer);
		if (connection) {
			connection->operation = read;
			read->connection = connection;
		} else {
			okv__operation_ended(read, OKV_ERR_DISCONNECTED, false);
		}
	}
}

void okv__requester_start(struct okv__operation *read)
{
	struct okv__peer *peer = peer_of(read);

	if (!peer) {
		okv__operation_ended(read, OKV_ERR_NO_MEMORY, false);
		return;
	}
	okv_list_push_back(&peer->waiting, &read->waiting);
	serve_waiting(peer);
	forget_peer_if_unused(peer);
}

/* Ends the connection and the read on it, if there is one; what waits gets another connection. */
static void lose(struct okv__connection *connection, enum okv_status status)
{
	struct okv__peer *peer = connection->peer;
	struct okv__operation *read = connection->operation;

	connection->operation = NULL;
	okv_list_remove(&connection->sibling);
	peer->connection_count--;
	okv__connection_close(connection);
	if (read) {
		read->connection = NULL;
		okv__operation_ended(read, status, false);
	}
	serve_waiting(peer);
	forget_peer_if_unused(peer);
}

void okv__requester_end(struct okv__operation *read)
{
	if (read->connection) {
		lose(read->connection, OKV_ERR_CANCELLED);
		return;
	}
	okv_list_remove(&read->waiting);
	okv__operation_ended(read, OKV_ERR_CANCELLED, false);
}

/* Every byte of the response was taken: the connection is free. It stays watched, to notice that the peer hung up. */
static void finish(struct okv__connection *connection, enum okv_status status)
{
	struct okv__operation *read = connection->operation;

	connection->operation = NULL;
	connection->state = OKV__IDLE;
	read->connection = NULL;
	okv__operation_ended(read, status, false);
	serve_waiting(connection->peer);
}

/* Looks at a header that is complete, behind which `taken` bytes came with it. True if bytes of the grant follow. */
static bool accept_response(struct okv__connection *connection, size_t taken)
{
	struct okv_reader reader = okv_reader_of(connection->head, OKV__DATA_RESPONSE_BYTES);
	uint32_t magic = okv_read_u32(&reader);
	uint16_t version = okv_read_u16(&reader);
	uint16_t status = okv_read_u16(&reader);
	uint64_t size = okv_read_u64(&reader);

	if (magic == OKV__DATA_MAGIC && version == OKV__DATA_VERSION && status == OKV_OK &&
	    size == connection->operation->size)
		return true;
	if (magic == OKV__DATA_MAGIC && (version != OKV__DATA_VERSION || status == OKV_ERR_VERSION))
		lose(connection, OKV_ERR_VERSION);
	else if (magic == OKV__DATA_MAGIC && status == OKV_ERR_ABSENT && size == 0 && taken == 0)
		finish(connection, OKV_ERR_ABSENT);
	else
		lose(connection, OKV_ERR_PROTOCOL);
	return false;
}

/* Hashes and counts bytes that have come for the current range. False if they were the read's last. */
static bool take_bytes(struct okv__connection *connection, size_t size)
{
	struct okv__operation *read = connection->operation;
	const struct okv_mover_range *range = &read->range[read->at_range];

	okv_crc_stream_update(&connection->crc, range->bytes + read->at_offset, size);
	read->moved += size;
	read->at_offset += size;
	if (read->at_offset < range->size)
		return true;
	okv__operation_landed(read, read->at_range, okv_crc_stream_value(&connection->crc));
	okv_crc_stream_init(&connection->crc);
	read->at_offset = 0;
	if (++read->at_range < read->range_count)
		return true;
	finish(connection, OKV_OK);
	return false;
}

/* Receives for one turn. The first call takes the header and bytes behind it: a small read is one receive. Bytes that
 * no good header announced may land too; that memory is the mover's until the read ends, and is vouched for only by the
 * digests of a read that went well. */
static void receive(struct okv__connection *connection)
{
	for (size_t turn = 0; turn < OKV__TURN_BYTES;) {
		const struct okv__operation *read = connection->operation;
		const struct okv_mover_range *range = &read->range[read->at_range];
		uint64_t wanted = range->size - read->at_offset;
		size_t of_head = connection->head_size - connection->head_at;
		struct iovec iov[2] = {
			{.iov_base = connection->head + connection->head_at, .iov_len = of_head},
			{.iov_base = range->bytes + read->at_offset,
			 .iov_len = wanted < OKV__CHUNK_BYTES ? wanted : OKV__CHUNK_BYTES},
		};
		ssize_t got = readv(connection->fd, iov, 2);

		if (got < 0 && (errno == EAGAIN || errno == EINTR))
			return;
		if (got <= 0) {
			lose(connection, OKV_ERR_DISCONNECTED);
			return;
		}
		turn += (size_t)got;
		if (of_head > 0) {
			size_t taken = (size_t)got < of_head ? (size_t)got : of_head;

			connection->head_at += taken;
			got -= (ssize_t)taken;
			if (connection->head_at < connection->head_size)
				continue;
			if (!accept_response(connection, (size_t)got))
				return;
		}
		if (got > 0 && !take_bytes(connection, (size_t)got))
			return;
	}
}

static void connected(struct okv__connection *connection)
{
	int error = 0;
	socklen_t size = sizeof(error);

	if (getsockopt(connection->fd, SOL_SOCKET, SO_ERROR, &error, &size) != 0 || error != 0) {
		lose(connection, OKV_ERR_DISCONNECTED);
		return;
	}
	okv__connection_want(connection, EPOLLIN);
	send_request(connection, connection->operation);
}

/* Errors and hang-ups come out of the next call on the socket. */
void okv__requester_ready(struct okv__connection *connection)
{
	if (connection->state == OKV__CONNECTING)
		connected(connection);
	else if (connection->state == OKV__IDLE)
		lose(connection, OKV_ERR_DISCONNECTED); /* hung up, or bytes that nobody asked for */
	else
		receive(connection);
}
