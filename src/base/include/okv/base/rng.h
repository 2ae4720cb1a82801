/*
 * Random numbers: a seedable generator for protocol cores and tests (xoshiro256**, Blackman and Vigna 2018, seeded with
 * splitmix64), and the operating system's generator for identities and secrets.
 */
#ifndef OKV_BASE_RNG_H
#define OKV_BASE_RNG_H

#include <stddef.h>
#include <stdint.h>

struct okv_rng {
	uint64_t state[4];
};

struct okv_rng okv_rng_seeded(uint64_t seed);
uint64_t okv_rng_next(struct okv_rng *rng);

/* Uniform in [0, bound); bound >= 1. */
uint64_t okv_rng_below(struct okv_rng *rng, uint64_t bound);

/* One splitmix64 step of `value`: a stateless mix, good for hashing counters. */
uint64_t okv_mix64(uint64_t value);

/* Fills from the operating system; never fails and never blocks after boot. */
void okv_random_bytes(void *bytes, size_t size);

#endif
