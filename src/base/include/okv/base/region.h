/*
 * Region: a memfd of fixed size, mapped, sealed against growth and shrinking, so that neither side of a shared mapping
 * can make the other fault. The creator maps it writable; okv_region_seal_for_readers() then refuses any further
 * writable map, also through a passed file descriptor.
 *
 * A received descriptor is hostile until checked: okv_region_open() verifies the seals and the size before it maps.
 */
#ifndef OKV_BASE_REGION_H
#define OKV_BASE_REGION_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "okv/base/status.h"

struct okv_region {
	int fd;	       /* owned; -1 when closed */
	uint8_t *base; /* owned mapping of `size` bytes; NULL when closed */
	size_t size;
	bool is_writable;
};

/* Creates a zeroed region of `size` bytes (rounded up to 4 KiB), mapped writable and sealed against resizing. */
OKV_MUST_CHECK enum okv_status okv_region_create(const char *name, size_t size, struct okv_region *ret_region,
						 struct okv_reason *reason);

/* After this the creator's mapping is the only writable one there will ever be (F_SEAL_FUTURE_WRITE). */
OKV_MUST_CHECK enum okv_status okv_region_seal_for_readers(struct okv_region *region, struct okv_reason *reason);

/*
 * Maps a received memfd. Takes ownership of `fd`, also on failure. Refuses a descriptor that is not a memfd of ordinary
 * pages sealed against shrinking and growth, or whose size is not `size_expected`.
 */
OKV_MUST_CHECK enum okv_status okv_region_open(int fd, size_t size_expected, bool writable,
					       struct okv_region *ret_region, struct okv_reason *reason);

/* Touches every page of [offset, offset + size), so that later use does not pay the first-touch cost. */
OKV_MUST_CHECK enum okv_status okv_region_populate(struct okv_region *region, size_t offset, size_t size,
						   struct okv_reason *reason);

void okv_region_close(struct okv_region *region);

#endif
