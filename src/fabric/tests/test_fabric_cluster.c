/*
 * Three managers in one process under seeded faults: connections are cut, managers die and come back, memory is
 * damaged, blocks are evicted and come again, callers give up,
 * memory is short, and time jumps. Stores, movers and the network are
 * models of a few lines each, so what must hold can be read off them:
 *
 *   - a byte moves only while its block is pinned at the source, and nothing that was pinned is evicted;
 *   - a damaged block is never committed;
 *   - when the faults stop, every hold, ticket, pin, want and fetch goes.
 */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "okv/base/alloc.h"
#include "okv/base/clock.h"
#include "okv/base/rng.h"
#include "okv/fabric/requester.h"
#include "okv/fabric/source.h"

/* Replaces the allocator: one allocation in sixty fails while faults are on. */
static struct okv_rng *failing_by;

void *okv_alloc(size_t count, size_t size)
{
	return failing_by && okv_rng_below(failing_by, 60) == 0 ? NULL : calloc(count, size);
}

enum { MANAGERS = 3, PEERS = MANAGERS - 1, BLOCKS = 24, BLOCK_BYTES = 10, QUEUE_MAX = 256, MOVES_MAX = 256 };

struct block {
	bool is_present, is_incoming, is_damaged;
	uint64_t generation;
	unsigned pins;
};

struct frame {
	size_t size;
	uint8_t *bytes; /* owned */
};

struct queue {
	struct frame frame[QUEUE_MAX];
	unsigned count;
};

/* The control connection of one requester to one source. */
struct link {
	bool is_up;
	struct queue to_source, to_requester;
};

struct manager {
	bool is_alive;
	struct okv_uuid incarnation;
	struct okv_source *source;
	struct okv_requester *requester;
	struct block block[BLOCKS];
	uint64_t last_generation;
	struct link link[PEERS];
	struct okv_fetch *fetch; /* one that may still be cancelled */
};

/* A grant, and the read that uses it once it has begun. */
struct move {
	unsigned source, reader;
	bool is_granted, is_reading; /* the source's memory; the reader's */
	bool end_asked, cancel_asked;
	uint64_t grant_id;
	struct okv_source_hold *hold;
	struct okv_transfer *transfer;
	uint16_t landed;
	bool is_spare[OKV_PEER_AUTHORISE_MAX];
};

struct cluster {
	struct manager manager[MANAGERS];
	struct move move[MOVES_MAX];
	struct okv_rng rng;
	uint64_t now_ns, last_grant, committed, completed, deaths;
	struct okv_fetch_block name[BLOCKS];
	struct okv_materialisation_key key;
	struct okv_peer_message message, answer;
};

static bool chance(struct cluster *c, unsigned in)
{
	return okv_rng_below(&c->rng, in) == 0;
}

static unsigned manager_at(unsigned of, unsigned peer)
{
	return (of + 1 + peer) % MANAGERS;
}

static unsigned peer_of(unsigned of, unsigned manager)
{
	return (manager + MANAGERS - of - 1) % MANAGERS;
}

static unsigned number_of(const struct okv_hash *hash)
{
	return hash->bytes[0];
}

/* ---- the network ---- */

static void push(struct queue *queue, const struct okv_peer_message *message)
{
	uint8_t bytes[OKV_PEER_FRAME_BYTES_MAX];
	size_t size = okv_peer_encode(message, bytes);

	assert_true(queue->count < QUEUE_MAX);
	queue->frame[queue->count].bytes = malloc(size);
	memcpy(queue->frame[queue->count].bytes, bytes, size);
	queue->frame[queue->count++].size = size;
}

static void pop(struct queue *queue, struct okv_peer_message *ret_message)
{
	assert_int_equal(okv_peer_decode(queue->frame[0].bytes, queue->frame[0].size, ret_message, NULL), OKV_OK);
	free(queue->frame[0].bytes);
	memmove(queue->frame, queue->frame + 1, --queue->count * sizeof(queue->frame[0]));
}

static void clear(struct queue *queue)
{
	while (queue->count > 0)
		free(queue->frame[--queue->count].bytes);
}

/* ---- what the cores want ---- */

static struct move *free_move(struct cluster *c)
{
	for (unsigned i = 0; i < MOVES_MAX; i++)
		if (!c->move[i].is_granted && !c->move[i].is_reading)
			return &c->move[i];
	abort(); /* more reads at a time than slots */
}

static struct link *link_of(struct cluster *c, void *connection)
{
	for (unsigned i = 0; i < MANAGERS; i++)
		for (unsigned p = 0; p < PEERS; p++)
			if (&c->manager[i].link[p] == connection && c->manager[i].link[p].is_up)
				return connection;
	return NULL;
}

static void act_source(struct cluster *c, unsigned at)
{
	struct okv_source_action action;

	while (okv_source_next(c->manager[at].source, &action)) {
		if (action.kind == OKV_SOURCE_END_GRANT) {
			for (unsigned i = 0; i < MOVES_MAX; i++)
				if (c->move[i].is_granted && c->move[i].grant_id == action.hold->grant_id)
					c->move[i].end_asked = true;
			continue;
		}
		for (uint16_t i = 0; i < action.hold->count; i++) {
			struct block *block = action.hold->block[i];

			assert_true(block->pins > 0);
			block->pins--;
		}
		struct link *link = link_of(c, action.hold->reply.connection);
		if (link) {
			c->answer = (struct okv_peer_message){.type = OKV_PEER_RELEASED,
							      .request_id = action.hold->reply.request_id};
			c->answer.released.blocks = action.hold->count;
			push(&link->to_requester, &c->answer);
		}
		okv_source_hold_free(action.hold);
	}
}

static enum okv_status submit(struct cluster *c, unsigned at, struct okv_transfer *transfer)
{
	unsigned source = manager_at(at, transfer->peer);
	struct move *move = NULL;
	uint64_t grant_id;

	if (chance(c, 30))
		return OKV_ERR_NO_SPACE;
	memcpy(&grant_id, transfer->token, sizeof(grant_id));
	for (unsigned i = 0; i < MOVES_MAX; i++)
		if (c->move[i].is_granted && c->move[i].source == source && c->move[i].grant_id == grant_id)
			move = &c->move[i];
	if (!move) { /* the grant is over: the mover will say ABSENT */
		move = free_move(c);
		memset(move, 0, sizeof(*move));
		move->source = source;
	}
	move->reader = at;
	move->is_reading = true;
	move->cancel_asked = false;
	move->transfer = transfer;
	move->landed = 0;
	transfer->driver = move;
	for (uint16_t i = 0; i < transfer->count; i++) {
		struct block *block = &c->manager[at].block[number_of(&transfer->block[i].hash)];

		move->is_spare[i] = block->is_present || block->is_incoming;
		if (!move->is_spare[i])
			block->is_incoming = true;
	}
	return OKV_OK;
}

static void done(struct cluster *c, unsigned at, struct okv_fetch *fetch)
{
	struct okv_fetch_result result = okv_fetch_result(fetch);
	void *handle;

	for (uint32_t i = 0; i < result.leading; i++)
		assert_true(okv_fetch_landed(fetch, i, &handle));
	c->completed += result.status == OKV_OK;
	if (c->manager[at].fetch == fetch)
		c->manager[at].fetch = NULL;
	okv_requester_fetch_free(c->manager[at].requester, fetch);
}

static void act_requester(struct cluster *c, unsigned at)
{
	struct manager *m = &c->manager[at];
	struct okv_requester_action action;

	while (okv_requester_next(m->requester, c->now_ns, &action, &c->message)) {
		switch (action.kind) {
		case OKV_REQUESTER_SEND:
			assert_true(m->link[action.peer].is_up);
			push(&m->link[action.peer].to_source, &c->message);
			break;
		case OKV_REQUESTER_SUBMIT:
			okv_requester_submitted(m->requester, action.transfer, submit(c, at, action.transfer),
						c->now_ns);
			break;
		case OKV_REQUESTER_CANCEL_READ:
			((struct move *)action.transfer->driver)->cancel_asked = true;
			break;
		case OKV_REQUESTER_DONE:
			done(c, at, action.fetch);
			break;
		case OKV_REQUESTER_UNPIN:
			assert_true(((struct block *)action.handle)->pins > 0);
			((struct block *)action.handle)->pins--;
			break;
		}
	}
}

static void act(struct cluster *c)
{
	for (unsigned i = 0; i < MANAGERS; i++) {
		if (!c->manager[i].is_alive)
			continue;
		act_source(c, i);
		act_requester(c, i);
	}
}

/* ---- the source's half of the driver ---- */

static void authorise(struct cluster *c, unsigned at)
{
	struct manager *m = &c->manager[at];
	struct okv_source_block found[OKV_PEER_AUTHORISE_MAX] = {0};
	struct okv_source_hold *hold;

	for (uint16_t i = 0; i < c->message.authorise.count; i++) {
		struct block *block = &m->block[number_of(&c->message.authorise.wanted[i].hash)];

		if (block->is_present)
			found[i] = (struct okv_source_block){block, block->generation, BLOCK_BYTES};
	}
	c->answer.type = OKV_PEER_AUTHORISED;
	c->answer.authorised.refusal =
		okv_source_authorise(m->source, &c->message.authorise.ticket, &c->message.authorise.owner,
				     c->message.authorise.wanted, found, c->message.authorise.count, c->now_ns, &hold);
	if (c->answer.authorised.refusal != OKV_PEER_GRANTED)
		return;

	struct move *move = free_move(c);
	memset(move, 0, sizeof(*move));
	*move = (struct move){.source = at, .is_granted = true, .grant_id = ++c->last_grant, .hold = hold};
	memcpy(c->answer.authorised.token, &move->grant_id, sizeof(move->grant_id));
	c->answer.authorised.count = hold->count;
	for (uint16_t i = 0; i < hold->count; i++) {
		struct block *block = hold->block[i];
		const struct okv_fetch_block *name = &c->name[block - m->block];
		struct okv_peer_authorised *out = &c->answer.authorised.block[i];

		block->pins++;
		*out = (struct okv_peer_authorised){.hash = name->hash,
						    .parent = name->parent,
						    .key_digest = c->message.authorise.key_digest,
						    .token_count = name->token_count,
						    .length = BLOCK_BYTES};
		out->crc.bytes[0] = name->hash.bytes[0];
	}
	okv_source_granted(m->source, hold, true, move->grant_id);
}

/* False: the answer comes later. */
static bool answer(struct cluster *c, unsigned at, struct link *link)
{
	struct manager *m = &c->manager[at];
	struct okv_uuid fresh;

	memset(&c->answer, 0, sizeof(c->answer));
	c->answer.request_id = c->message.request_id;
	switch (c->message.type) {
	case OKV_PEER_LOCATE:
		c->answer.type = OKV_PEER_LOCATED;
		c->answer.located.count = c->message.locate.count;
		for (uint16_t i = 0; i < c->message.locate.count; i++) {
			const struct block *block = &m->block[number_of(&c->message.locate.hash[i])];

			if (block->is_present)
				c->answer.located.location[i] =
					(struct okv_peer_location){block->generation, OKV_PEER_DRAM, BLOCK_BYTES, 16};
		}
		return true;
	case OKV_PEER_OPEN_WINDOW:
		c->answer.type = OKV_PEER_WINDOW;
		for (size_t i = 0; i < sizeof(fresh); i++)
			fresh.bytes[i] = (uint8_t)okv_rng_next(&c->rng);
		c->answer.window.window = fresh;
		c->answer.window.refusal = okv_source_open(m->source, &c->message.open_window.owner,
							   &c->message.open_window.requester, &fresh);
		return true;
	case OKV_PEER_AUTHORISE:
		authorise(c, at);
		return true;
	default:
		assert_int_equal(c->message.type, OKV_PEER_RELEASE);
		c->answer.type = OKV_PEER_RELEASED;
		return okv_source_release(m->source, &c->message.release,
					  (struct okv_source_reply){link, c->message.request_id},
					  &c->answer.released.refusal, &c->answer.released.blocks);
	}
}

/* ---- events ---- */

static void deliver(struct cluster *c, unsigned at, unsigned peer)
{
	struct link *link = &c->manager[at].link[peer];

	if (link->to_source.count > 0 && chance(c, 2)) {
		pop(&link->to_source, &c->message);
		if (answer(c, manager_at(at, peer), link))
			push(&link->to_requester, &c->answer);
	} else if (link->to_requester.count > 0) {
		pop(&link->to_requester, &c->message);
		assert_true(okv_requester_reply(c->manager[at].requester, peer, &c->message, c->now_ns));
	}
}

static void end_grant(struct cluster *c, struct move *move, bool reader_gone)
{
	if (!move->is_granted)
		return;
	move->is_granted = false;
	if (c->manager[move->source].is_alive)
		okv_source_grant_ended(c->manager[move->source].source, move->grant_id, reader_gone);
}

static void end_read(struct cluster *c, struct move *move, enum okv_status status)
{
	if (!move->is_reading)
		return;
	move->is_reading = false;
	for (uint16_t i = move->landed; i < move->transfer->count; i++)
		if (!move->is_spare[i])
			c->manager[move->reader].block[number_of(&move->transfer->block[i].hash)].is_incoming = false;
	okv_requester_read_ended(c->manager[move->reader].requester, move->transfer, status, c->now_ns);
}

static void land(struct cluster *c, struct move *move)
{
	struct manager *reader = &c->manager[move->reader];
	unsigned number = number_of(&move->transfer->block[move->landed].hash);
	struct block *from = &c->manager[move->source].block[number], *to = &reader->block[number];
	struct okv_crc crc = {{(uint8_t)number}};

	assert_true(from->is_present && from->pins > 0);
	if (from->is_damaged)
		crc.bytes[1] = 1;
	enum okv_status status = okv_requester_landed(reader->requester, move->transfer, move->landed, &crc);
	assert_int_equal(status, from->is_damaged ? OKV_ERR_DAMAGED : OKV_OK);
	if (!move->is_spare[move->landed])
		to->is_incoming = false;
	if (status == OKV_OK && !move->is_spare[move->landed]) {
		*to = (struct block){.is_present = true, .generation = ++reader->last_generation, .pins = 1};
		c->committed++;
	}
	if (status == OKV_OK)
		okv_requester_committed(reader->requester, move->transfer, move->landed,
					move->is_spare[move->landed] ? NULL : to);
	move->landed++;
}

/* One step of whoever moves bytes. */
static void move_on(struct cluster *c, struct move *move)
{
	if (move->end_asked && move->is_granted) {
		end_grant(c, move, false);
		end_read(c, move, OKV_ERR_DISCONNECTED);
	} else if (move->is_reading && move->cancel_asked) {
		end_read(c, move, OKV_ERR_CANCELLED);
		end_grant(c, move, true);
	} else if (move->is_reading && !move->is_granted) {
		end_read(c, move, OKV_ERR_ABSENT);
	} else if (move->is_reading && move->landed < move->transfer->count) {
		land(c, move);
	} else if (move->is_reading) {
		end_grant(c, move, false);
		end_read(c, move, OKV_OK);
	}
}

static void cut(struct cluster *c, unsigned at, unsigned peer)
{
	struct manager *m = &c->manager[at], *source = &c->manager[manager_at(at, peer)];
	struct link *link = &m->link[peer];

	if (!link->is_up)
		return;
	link->is_up = false;
	clear(&link->to_source);
	clear(&link->to_requester);
	if (m->is_alive)
		okv_requester_disconnected(m->requester, peer, c->now_ns);
	if (source->is_alive) {
		okv_source_forget_connection(source->source, link);
		okv_source_reader_gone(source->source, &m->incarnation);
	}
}

static void connect_to(struct cluster *c, unsigned at, unsigned peer)
{
	struct manager *m = &c->manager[at], *source = &c->manager[manager_at(at, peer)];

	if (m->link[peer].is_up || !m->is_alive)
		return;
	if (!source->is_alive) {
		okv_requester_refused(m->requester, peer, c->now_ns);
		return;
	}
	m->link[peer].is_up = true;
	okv_requester_connected(m->requester, peer, &source->incarnation, c->now_ns);
}

static void start(struct cluster *c, unsigned at)
{
	struct manager *m = &c->manager[at];
	struct okv_requester_options options = okv_requester_defaults();
	unsigned peer;

	if (m->is_alive)
		return;
	memset(m->block, 0, sizeof(m->block));
	for (size_t i = 0; i < sizeof(m->incarnation); i++)
		m->incarnation.bytes[i] = (uint8_t)okv_rng_next(&c->rng);
	options.incarnation = m->incarnation;
	if (okv_source_create(&m->incarnation, 12 * BLOCK_BYTES, &m->source) != OKV_OK)
		return;
	if (okv_requester_create(&options, &m->requester) != OKV_OK) {
		okv_source_destroy(m->source);
		return;
	}
	m->is_alive = true;
	m->fetch = NULL;
	for (unsigned p = 0; p < PEERS; p++)
		assert_int_equal(okv_requester_peer(m->requester, &peer), OKV_OK);
}

/* The process is gone at once; the others learn of it by their connections. */
static void kill_manager(struct cluster *c, unsigned at)
{
	struct manager *m = &c->manager[at];

	if (!m->is_alive)
		return;
	m->is_alive = false;
	c->deaths++;
	for (unsigned i = 0; i < MOVES_MAX; i++) {
		struct move *move = &c->move[i];

		if (move->is_reading && move->reader == at) {
			move->is_reading = false;
			end_grant(c, move, true);
		}
		if (move->is_granted && move->source == at) {
			move->is_granted = false;
			end_read(c, move, OKV_ERR_DISCONNECTED);
		}
	}
	for (unsigned p = 0; p < PEERS; p++) {
		unsigned other = manager_at(at, p);

		cut(c, at, p);
		cut(c, other, peer_of(other, at));
	}
	okv_source_destroy(m->source);
	okv_requester_destroy(m->requester);
}

static void change_store(struct cluster *c, unsigned at)
{
	struct manager *m = &c->manager[at];
	struct block *block = &m->block[okv_rng_below(&c->rng, BLOCKS)];

	if (block->is_incoming || block->pins > 0)
		return;
	if (block->is_present)
		block->is_present = false;
	else
		*block = (struct block){
			.is_present = true, .is_damaged = chance(c, 10), .generation = ++m->last_generation};
}

static void start_fetch(struct cluster *c, unsigned at)
{
	uint32_t first = (uint32_t)okv_rng_below(&c->rng, BLOCKS / 2);
	uint32_t count = 1 + (uint32_t)okv_rng_below(&c->rng, BLOCKS / 2);
	uint64_t deadline_ns = c->now_ns + okv_rng_below(&c->rng, 4 * OKV_NS_PER_S);

	enum okv_status status = okv_requester_fetch(c->manager[at].requester, &c->key, BLOCK_BYTES, c->name + first,
						     count, deadline_ns, c->now_ns, NULL, &c->manager[at].fetch);

	assert_true(status == OKV_OK || status == OKV_ERR_NO_MEMORY);
}

/* Everything that happens of itself, when nobody interferes. */
static void go_on(struct cluster *c)
{
	unsigned at = (unsigned)okv_rng_below(&c->rng, MANAGERS);

	for (int i = 0; i < 4; i++)
		deliver(c, at, (unsigned)okv_rng_below(&c->rng, PEERS));
	for (int i = 0; i < 64; i++)
		move_on(c, &c->move[okv_rng_below(&c->rng, MOVES_MAX)]);
	c->now_ns += okv_rng_below(&c->rng, 20 * OKV_NS_PER_MS);
	for (unsigned i = 0; i < MANAGERS; i++)
		if (c->manager[i].is_alive && okv_requester_wake_ns(c->manager[i].requester) <= c->now_ns)
			okv_requester_tick(c->manager[i].requester, c->now_ns);
	act(c);
}

static void interfere(struct cluster *c)
{
	unsigned at = (unsigned)okv_rng_below(&c->rng, MANAGERS), peer = (unsigned)okv_rng_below(&c->rng, PEERS);
	struct manager *m = &c->manager[at];

	switch (okv_rng_below(&c->rng, 40)) {
	case 0:
		cut(c, at, peer);
		break;
	case 1:
		if (chance(c, 20))
			kill_manager(c, at);
		break;
	case 2:
	case 3:
		start(c, at);
		break;
	case 4:
		if (chance(c, 4))
			c->now_ns += 5 * OKV_NS_PER_S;
		break;
	case 5:
		if (m->is_alive && m->fetch)
			okv_requester_cancel(m->requester, m->fetch);
		break;
	case 6:
		if (m->is_alive)
			(void)okv_source_mark_overdue(m->source, c->now_ns, 120 * OKV_NS_PER_S);
		break;
	case 7:
	case 8:
	case 9:
	case 10:
		if (m->is_alive && okv_requester_counts(m->requester)->fetches < 6)
			start_fetch(c, at);
		break;
	case 11:
	case 12:
	case 13:
		connect_to(c, at, peer);
		break;
	default:
		if (m->is_alive)
			change_store(c, at);
		break;
	}
	act(c);
}

static bool is_quiet(const struct cluster *c)
{
	for (unsigned i = 0; i < MANAGERS; i++) {
		const struct okv_source_counts *source = okv_source_counts(c->manager[i].source);
		const struct okv_requester_counts *requester = okv_requester_counts(c->manager[i].requester);

		if (source->sessions || source->active_blocks || source->reserved_bytes || requester->fetches ||
		    requester->wants || requester->transfers || requester->reading ||
		    requester->completions_outstanding)
			return false;
	}
	return true;
}

static void run(uint64_t seed, uint64_t *ret_committed, uint64_t *ret_deaths)
{
	struct cluster *c = calloc(1, sizeof(*c));

	assert_non_null(c);
	c->rng = okv_rng_seeded(seed);
	for (unsigned i = 0; i < BLOCKS; i++) {
		c->name[i].hash.bytes[0] = (uint8_t)i;
		c->name[i].hash.bytes[1] = 0xb1;
		c->name[i].token_count = 16;
		if (i > 0)
			c->name[i].parent = c->name[i - 1].hash;
	}
	for (unsigned i = 0; i < MANAGERS; i++)
		start(c, i);
	for (int i = 0; i < 1500; i++) {
		failing_by = i % 3 == 0 ? &c->rng : NULL;
		interfere(c);
		go_on(c);
	}
	failing_by = NULL;

	/* No more faults: everything must come to rest, and to zero. */
	for (unsigned i = 0; i < MANAGERS; i++)
		start(c, i);
	for (unsigned i = 0; i < MANAGERS; i++)
		for (unsigned p = 0; p < PEERS; p++)
			connect_to(c, i, p);
	act(c);
	for (int i = 0; i < 20000 && !is_quiet(c); i++)
		go_on(c);
	if (!is_quiet(c))
		fail_msg("seed %llu does not come to rest", (unsigned long long)seed);
	for (unsigned i = 0; i < MANAGERS; i++)
		for (unsigned b = 0; b < BLOCKS; b++)
			if (c->manager[i].block[b].pins || c->manager[i].block[b].is_incoming)
				fail_msg("seed %llu leaves a pin", (unsigned long long)seed);

	*ret_committed += c->committed;
	*ret_deaths += c->deaths;
	for (unsigned i = 0; i < MANAGERS; i++)
		kill_manager(c, i);
	free(c);
}

static void whatever_fails_everything_comes_to_rest_and_nothing_damaged_is_kept(void **state)
{
	(void)state;
	uint64_t committed = 0, deaths = 0;

	print_message("seeds 1..300\n");
	for (uint64_t seed = 1; seed <= 300; seed++)
		run(seed, &committed, &deaths);
	/* A run in which nothing happened would prove nothing. */
	print_message("%llu blocks moved, %llu managers died\n", (unsigned long long)committed,
		      (unsigned long long)deaths);
	assert_true(committed > 5000);
	assert_true(deaths > 300);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(whatever_fails_everything_comes_to_rest_and_nothing_damaged_is_kept),
	};
	return cmocka_run_group_tests_name("fabric_cluster", tests, NULL, NULL);
}
