/*
 * The requester with scripted peers on a virtual clock: a test says what the peers answer, or that they do not, and
 * what must then be asked, read, committed and released. Each function that answers also checks that it was asked.
 */
#ifndef OKV_FABRIC_TESTS_REQUESTER_RIG_H
#define OKV_FABRIC_TESTS_REQUESTER_RIG_H

#include "okv/base/clock.h"
#include "okv/fabric/requester.h"

enum { BLOCK_BYTES = 1000, SENT_MAX = 64, BLOCKS = 300 };

struct rig {
	struct okv_requester *requester;
	struct okv_materialisation_key key;
	struct okv_fetch_block block[BLOCKS];
	uint64_t now_ns, deadline_ns;
	/* What the core asked for. */
	struct okv_peer_message sent[SENT_MAX];
	unsigned sent_to[SENT_MAX], sent_count, looked_at;
	struct okv_transfer *submitted[8];
	unsigned submit_count, cancel_count, unpin_count;
	enum okv_status submit_status;
	struct okv_fetch_result result[8];
	void *done_context[8];
	unsigned done_count;
	int handles;
};

struct okv_uuid uuid(uint8_t byte);
void drain(struct rig *rig);
void rig_init(struct rig *rig, unsigned peers);
void rig_done(struct rig *rig);
struct okv_fetch *fetch_from(struct rig *rig, uint32_t first, uint32_t count, void *context);
struct okv_fetch *fetch(struct rig *rig, uint32_t count);
const struct okv_peer_message *expect(struct rig *rig, unsigned peer, enum okv_peer_type type);
void expect_silence(struct rig *rig);
void reply(struct rig *rig, unsigned peer, const struct okv_peer_message *message);
void located(struct rig *rig, unsigned peer, uint16_t from, uint16_t to);
void window(struct rig *rig, unsigned peer);
struct okv_peer_message authorised_for(const struct okv_peer_message *authorise);
struct okv_ticket authorise(struct rig *rig, unsigned peer);
void refuse_authorise(struct rig *rig, unsigned peer, enum okv_peer_refusal refusal);
enum okv_status land(struct rig *rig, struct okv_transfer *transfer, uint16_t index, bool damaged);
void read_ended(struct rig *rig, struct okv_transfer *transfer, enum okv_status status);
void read_all(struct rig *rig, struct okv_transfer *transfer);
void released(struct rig *rig, unsigned peer, struct okv_ticket ticket);
void advance(struct rig *rig, uint64_t ns);
void rig_init_two_owners(struct rig *rig, uint32_t count);
void finish_at(struct rig *rig, unsigned peer);

#endif
