/*
 * Managers' peer halves for tests: each with a store, a metrics registry and a mover of its own, all on one loop that
 * the test turns, over loopback and by the real clock. Blocks are put into stores by hand.
 */
#ifndef OKV_MANAGER_TESTS_PEER_STAND_IN_H
#define OKV_MANAGER_TESTS_PEER_STAND_IN_H

#include "peers_object.h"

enum { BLOCK_BYTES = 65536, CHAIN_BLOCKS_MAX = 300 };

struct node {
	struct okv_loop *loop; /* borrowed */
	struct okv_store *store;
	struct okv_metrics *metrics;
	struct okv_faults faults;
	struct okv_peers *peers;
	bool is_drained;
};

/* What a fetch brought. */
struct outcome {
	struct node *node;
	bool is_done;
	enum okv_status status;
	uint32_t count, leading, brought;
	uint64_t remote_bytes, id;
	struct okv_block *block[CHAIN_BLOCKS_MAX];
};

struct okv_loop *test_loop(void);
void turn(struct okv_loop *loop);
/* Turns the loop until *condition, 20 s at most. */
#define UNTIL(loop, condition)                                                                                         \
	do {                                                                                                           \
		uint64_t end_ = okv_clock_now(okv_clock_boottime()) + 20 * OKV_NS_PER_S;                               \
		while (!(condition)) {                                                                                 \
			assert_true(okv_clock_now(okv_clock_boottime()) < end_);                                       \
			turn(loop);                                                                                    \
		}                                                                                                      \
	} while (0)
/* Turns it for a while. */
void turn_for_ms(struct okv_loop *loop, unsigned ms);

/* Listens on loopback; reads from the manager at `peer_port`, if that is not 0, and from `second_port`. */
void node_open(struct node *node, struct okv_loop *loop, uint16_t peer_port, uint16_t second_port, const char *faults,
	       unsigned deadline_ms);
/* Shuts down, waits until all is drained, and checks that nothing is pinned. */
void node_close(struct node *node);

struct okv_materialisation_key test_key(void);
/* Block i of the chain of `seed`, as every node names it. */
struct okv_block_record chain_record(uint32_t seed, uint32_t i);
/* Puts blocks [0, count) of the chain into the store, with bytes that depend on seed, index and position. */
void put_chain(struct node *node, uint32_t seed, uint32_t count);
void start_fetch(struct node *node, uint32_t seed, uint32_t count, struct outcome *outcome);
void start_fetch_of(struct node *node, const struct okv_materialisation_key *key, uint32_t seed, uint32_t count,
		    struct outcome *outcome);
/* Checks every byte that came and gives the pins back. */
void end_fetch(struct outcome *outcome, uint32_t seed);
/* All of it. */
void fetch_chain(struct node *node, uint32_t seed, uint32_t count, struct outcome *outcome);
bool is_connected(const struct node *node);
/* No ticket, hold, want or read is left. */
bool is_quiet(const struct node *node);

#endif
