#include "okv/base/rng.h"

#include <errno.h>
#include <sys/random.h>

#include "okv/base/status.h"

uint64_t okv_mix64(uint64_t value)
{
	value += 0x9e3779b97f4a7c15ULL;
	value = (value ^ (value >> 30)) * 0xbf58476d1ce4e5b9ULL;
	value = (value ^ (value >> 27)) * 0x94d049bb133111ebULL;
	return value ^ (value >> 31);
}

struct okv_rng okv_rng_seeded(uint64_t seed)
{
	struct okv_rng rng;

	for (uint64_t i = 0; i < 4; i++)
		rng.state[i] = okv_mix64(seed + i * UINT64_C(0x9e3779b97f4a7c15));
	return rng;
}

static uint64_t rotate_left(uint64_t value, int count)
{
	return (value << count) | (value >> (64 - count));
}

uint64_t okv_rng_next(struct okv_rng *rng)
{
	uint64_t *s = rng->state;
	uint64_t result = rotate_left(s[1] * 5, 7) * 9;
	uint64_t t = s[1] << 17;

	s[2] ^= s[0];
	s[3] ^= s[1];
	s[1] ^= s[2];
	s[0] ^= s[3];
	s[2] ^= t;
	s[3] = rotate_left(s[3], 45);
	return result;
}

uint64_t okv_rng_below(struct okv_rng *rng, uint64_t bound)
{
	uint64_t limit = UINT64_MAX - UINT64_MAX % bound;
	uint64_t value;

	do
		value = okv_rng_next(rng);
	while (value >= limit);
	return value % bound;
}

void okv_random_bytes(void *bytes, size_t size)
{
	uint8_t *at = bytes;

	while (size > 0) {
		ssize_t got = getrandom(at, size, 0);

		OKV_ASSERT(got > 0 || errno == EINTR);
		if (got < 0)
			continue;
		at += got;
		size -= (size_t)got;
	}
}
