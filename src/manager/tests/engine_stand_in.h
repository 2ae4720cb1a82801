/*
 * An engine for the manager's tests, on the test's own thread: it speaks the session protocol by hand, so that it can
 * also lie. The manager's loop is turned by the test; its clock is the test's; its worker thread is real.
 */
#ifndef OKV_MANAGER_TESTS_ENGINE_STAND_IN_H
#define OKV_MANAGER_TESTS_ENGINE_STAND_IN_H

#include "manager_object.h"
#include "tiny_key.h"

enum { PAGE = 16384, ARENA_PAGES = 64, TOKENS = 4, CHAIN_MAX = 64 };

struct stage {
	char folder[32], path[64];
	uint64_t now_ns;
	struct okv_loop *loop;
	struct okv_manager *manager;
	bool is_stopped;
};

struct engine {
	struct stage *stage;
	int socket;
	uint64_t session; /* 0 until accepted */
	struct okv_session_refuse refusal;
	struct okv_region arena, ring_region, pool;
	struct okv_ring_client ring;
	struct okv_ring_grant grants[OKV_RING_BLOCKS_MAX];
};

/* A loop; then a manager on it, which reads from the one at `peer_port` if that is not 0. */
void stage_prepare(struct stage *stage);
void stage_start(struct stage *stage, uint64_t pool_bytes, const char *faults, uint16_t peer_port);
/* Both, without a peer. */
void stage_open(struct stage *stage, uint64_t pool_bytes, const char *faults);
void stage_close(struct stage *stage);
/* Turns the loop once, then lets the worker run. */
void stage_turn(struct stage *stage);
/* Turns the loop until *condition, 10 s at most. */
#define STAGE_UNTIL(stage, condition)                                                                                  \
	do {                                                                                                           \
		for (int turn_ = 0; !(condition); turn_++) {                                                           \
			assert_true(turn_ < 100000);                                                                   \
			stage_turn(stage);                                                                             \
		}                                                                                                      \
	} while (0)

/* Connects without a word. */
void engine_connect(struct stage *stage, struct engine *engine);
/* Connects and says HELLO; waits for the answer: accepted, or engine->refusal. */
void engine_attach(struct stage *stage, struct engine *engine, uint64_t previous_session);
/* Closes socket and memory without a word. */
void engine_drop(struct engine *engine);
/* Takes what the manager has sent. False: the manager has hung up. */
bool engine_read_socket(struct engine *engine);

/* Fills arena pages 0 .. count - 1 by `seed` and sends `count` chained blocks of it with the operation. */
uint32_t engine_send_chain(struct engine *engine, enum okv_ring_op op, uint32_t seed, uint32_t count);
/* The same with blocks first .. end - 1 of the chain alone. */
uint32_t engine_send_piece(struct engine *engine, enum okv_ring_op op, uint32_t seed, uint32_t first, uint32_t end);
uint32_t engine_send(struct engine *engine, struct okv_ring_request request);
/* The answer to the request in `slot`, whose slot is given back. */
struct okv_ring_reply engine_answer(struct engine *engine, uint32_t slot);
/* Both at once. */
struct okv_ring_reply engine_chain(struct engine *engine, enum okv_ring_op op, uint32_t seed, uint32_t count);
struct okv_ring_reply engine_lease(struct engine *engine, enum okv_ring_op op, uint64_t lease);
uint8_t engine_byte(uint32_t seed, uint32_t page);
/* Block i of the chain, hashed after `parent`. */
struct okv_ring_block engine_block(uint32_t seed, uint32_t i, const struct okv_hash *parent);

/* The value of a metric line such as `orbitkv_sessions` in /metrics. */
double stage_metric(struct stage *stage, const char *name);
/* One HTTP request; the whole answer, to be freed. */
char *stage_http(struct stage *stage, const char *request_line);

#endif
