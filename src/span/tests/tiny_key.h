/* A key for tests that need some key: pages of 4 tokens and 16 KiB. */
#ifndef OKV_SPAN_TINY_KEY_H
#define OKV_SPAN_TINY_KEY_H

#include "okv/span/identity.h"

struct okv_materialisation_key tiny_key(void);

#endif
