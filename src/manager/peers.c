/* A manager without peers: nothing is listened to and nothing is asked. */
#include "peers.h"

#include <stdlib.h>

struct okv_peers {
	uint16_t port;
};

enum okv_status okv__peers_create(const struct okv_peers_options *options, struct okv_peers **ret_peers,
				  struct okv_reason *reason)
{
	if (options->peer_count)
		return okv_refuse(reason, OKV_ERR_UNSUPPORTED, "peer", "this build has no peers");
	*ret_peers = calloc(1, sizeof(**ret_peers));
	return *ret_peers ? OKV_OK : okv_refuse(reason, OKV_ERR_NO_MEMORY, "peer", "no memory for peers");
}

uint16_t okv__peers_port(const struct okv_peers *peers)
{
	return peers->port;
}

uint64_t okv__peers_fetch(struct okv_peers *peers, const struct okv_block_record *wanted, uint32_t count,
			  okv__peers_done *done, void *context)
{
	(void)peers;
	(void)wanted;
	(void)count;
	(void)done;
	(void)context;
	return 0;
}

void okv__peers_cancel(struct okv_peers *peers, uint64_t id)
{
	(void)peers;
	(void)id;
}

void okv__peers_shutdown(struct okv_peers *peers, void (*drained)(void *context), void *context)
{
	(void)peers;
	drained(context);
}

void okv__peers_destroy(struct okv_peers *peers)
{
	free(peers);
}
