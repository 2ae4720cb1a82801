/* What the HTTP server shares with the loop; private to this module. */
#ifndef OKV_LOOP_INTERNAL_H
#define OKV_LOOP_INTERNAL_H

#include "okv/loop/loop.h"

struct event_base;

/* Borrowed; lives as long as the loop. */
struct event_base *okv__loop_base(struct okv_loop *loop);

#endif
