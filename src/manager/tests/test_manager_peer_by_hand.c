/* A reader made by hand, so that it can do what an honest one does only by bad luck. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <string.h>

#include <errno.h>
#include <netinet/in.h>
#include <sys/socket.h>
#include <unistd.h>

#include <cmocka.h>

#include "okv/base/clock.h"
#include "okv/base/cursor.h"
#include "peer_stand_in.h"

/* Its control connection to `node`. */
struct hand {
	struct node *node;
	int fd;
	struct okv_uuid owner, window;
	uint16_t data_port;
	uint64_t last_request;
};

static struct okv_peer_message message;

static int connect_to(uint16_t port)
{
	struct sockaddr_in at = {
		.sin_family = AF_INET, .sin_port = htons(port), .sin_addr.s_addr = htonl(INADDR_LOOPBACK)};
	int fd = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);

	assert_int_equal(connect(fd, (struct sockaddr *)&at, sizeof(at)), 0);
	return fd;
}

/* Sends `message` and waits for the answer, which takes its place. */
static void ask(struct hand *hand)
{
	uint8_t frame[OKV_PEER_FRAME_BYTES_MAX];
	size_t have = 0, size = 0;

	message.request_id = ++hand->last_request;
	size_t sent = okv_peer_encode(&message, frame);
	assert_int_equal(write(hand->fd, frame, sent), (ssize_t)sent);
	while (size == 0 || have < size) {
		ssize_t got =
			recv(hand->fd, frame + have, size ? size - have : OKV_PEER_HEADER_BYTES - have, MSG_DONTWAIT);

		assert_true(got > 0 || (got < 0 && errno == EAGAIN));
		have += got > 0 ? (size_t)got : 0;
		if (size == 0 && have == OKV_PEER_HEADER_BYTES)
			assert_int_equal(okv_peer_frame_size(frame, have, &size, NULL), OKV_OK);
		turn(hand->node->loop);
	}
	assert_int_equal(okv_peer_decode(frame, size, &message, NULL), OKV_OK);
	assert_int_equal(message.request_id, hand->last_request);
}

static void hand_open(struct hand *hand, struct node *node)
{
	*hand = (struct hand){.node = node, .fd = connect_to(okv__peers_port(node->peers))};
	message = (struct okv_peer_message){.type = OKV_PEER_HELLO, .hello.cluster = "orbitkv"};
	memset(&message.hello.requester, 7, sizeof(message.hello.requester)); /* the same for every hand */
	ask(hand);
	assert_int_equal(message.welcome.refusal, OKV_PEER_GRANTED);
	hand->owner = message.welcome.owner;
	hand->data_port = message.welcome.data_port;
	message = (struct okv_peer_message){.type = OKV_PEER_OPEN_WINDOW, .open_window.owner = hand->owner};
	ask(hand);
	assert_int_equal(message.window.refusal, OKV_PEER_GRANTED);
	hand->window = message.window.window;
}

/* Authorises blocks [0, count) of chain 1, and opens a data connection that asks for them. */
static int begin_read(struct hand *hand, uint32_t slot, uint16_t count)
{
	uint8_t request[24];
	struct okv_writer writer = okv_writer_of(request, sizeof(request));

	message = (struct okv_peer_message){.type = OKV_PEER_AUTHORISE};
	message.authorise.ticket = (struct okv_ticket){.window = hand->window, .slot = slot, .generation = 1};
	message.authorise.owner = hand->owner;
	message.authorise.key_digest = chain_record(1, 0).key_digest;
	message.authorise.count = count;
	for (uint16_t i = 0; i < count; i++) {
		message.authorise.wanted[i].hash = chain_record(1, i).hash;
		message.authorise.wanted[i].generation = 1U + i;
	}
	ask(hand);
	assert_int_equal(message.authorised.refusal, OKV_PEER_GRANTED);
	okv_write_u32(&writer, 0x44564b4f);
	okv_write_u16(&writer, 1);
	okv_write_u16(&writer, 1);
	okv_write_bytes(&writer, message.authorised.token, sizeof(message.authorised.token));

	int fd = connect_to(hand->data_port);
	assert_int_equal(write(fd, request, sizeof(request)), sizeof(request));
	return fd;
}

static uint64_t sessions(const struct node *node)
{
	return okv_source_counts(node->peers->source)->sessions;
}

/* Takes what has come; whether the connection still stands. */
static bool stands(int fd)
{
	uint8_t bytes[4096];
	ssize_t got;

	while ((got = recv(fd, bytes, sizeof(bytes), MSG_DONTWAIT)) > 0)
		;
	return got < 0 && errno == EAGAIN;
}

static void a_read_that_is_given_up_leaves_the_readers_other_reads_alone(void **state)
{
	(void)state;
	struct okv_loop *loop = test_loop();
	struct node node;
	struct hand hand;

	node_open(&node, loop, 0, 0, "mover_stall_ms=60000", 3000);
	put_chain(&node, 1, 8);
	hand_open(&hand, &node);
	int slow = begin_read(&hand, 0, 8), good = begin_read(&hand, 1, 8);
	turn_for_ms(loop, 50);
	close(slow);
	UNTIL(loop, sessions(&node) == 1);
	turn_for_ms(loop, 50);
	assert_true(stands(good));
	assert_int_equal(sessions(&node), 1);
	int next = begin_read(&hand, 2, 8); /* the window is as good as before */

	close(hand.fd);
	UNTIL(loop, sessions(&node) == 0);
	assert_false(stands(good));
	close(good);
	close(next);
	node_close(&node);
	okv_loop_destroy(loop);
}

static void the_end_of_one_connection_ends_no_hold_of_another_of_the_same_name(void **state)
{
	(void)state;
	struct okv_loop *loop = test_loop();
	struct node node;
	struct hand old, fresh;

	node_open(&node, loop, 0, 0, "mover_stall_ms=60000", 3000);
	put_chain(&node, 1, 8);
	hand_open(&old, &node);
	hand_open(&fresh, &node);
	int data = begin_read(&fresh, 0, 8);
	turn_for_ms(loop, 50);
	close(old.fd);
	UNTIL(loop, node.peers->inbound_count == 1);
	turn_for_ms(loop, 50);
	assert_int_equal(sessions(&node), 1);
	assert_true(stands(data));
	close(fresh.fd);
	UNTIL(loop, sessions(&node) == 0);
	close(data);
	node_close(&node);
	okv_loop_destroy(loop);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(a_read_that_is_given_up_leaves_the_readers_other_reads_alone),
		cmocka_unit_test(the_end_of_one_connection_ends_no_hold_of_another_of_the_same_name),
	};
	return cmocka_run_group_tests_name("manager_peer_by_hand", tests, NULL, NULL);
}
