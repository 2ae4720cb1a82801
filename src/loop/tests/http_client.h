/*
 * A raw socket client for tests of HTTP servers in the same thread: while it waits, it turns the server's loop. It
 * knows nothing of HTTP; a test says what bytes go out and what text must come back.
 */
#ifndef OKV_LOOP_TESTS_HTTP_CLIENT_H
#define OKV_LOOP_TESTS_HTTP_CLIENT_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "okv/base/buf.h"
#include "okv/loop/loop.h"

struct http_client {
	struct okv_loop *loop; /* borrowed; NULL when the server's loop runs in another thread */
	struct okv_buf got;    /* all that has come */
	int fd;
	bool ended; /* the server closed */
};

/* Connects to a port of 127.0.0.1; aborts the program if it cannot. */
struct http_client http_client_connect(struct okv_loop *loop, uint16_t port);
/* Sends all, or stops early when the server does not want it: its answer tells. */
void http_client_send(struct http_client *client, const void *bytes, size_t size);
void http_client_send_text(struct http_client *client, const char *text);
/* Takes what is there. */
void http_client_receive(struct http_client *client);
/* Waits until `text` has come, or with NULL until the server closes. False after many turns without. */
bool http_client_await(struct http_client *client, const char *text);
/* Closes. */
void http_client_done(struct http_client *client);

#endif
