/*
 * Oracle: the naive engine of docs/numerics.md. One sequence, contiguous arrays, one thread, no pages, no batches, no
 * packing: plain loops over the tensors as the file holds them. It shares the half conversions and the RoPE table with
 * the product, both of which have oracles of their own, and nothing else. For tiny models only.
 */
#ifndef OKV_MODEL_TESTS_ORACLE_H
#define OKV_MODEL_TESTS_ORACLE_H

#include <stdbool.h>
#include <stdint.h>

#include "okv/model/gguf.h"
#include "okv/model/graph.h"

struct oracle;

/* False on a processor without FMA, for which the oracle is not compiled. */
bool oracle_can_run(void);

/* `gguf` and `shape` are borrowed and must be those of a model that loads. */
struct oracle *oracle_create(const struct okv_gguf *gguf, const struct okv_model_shape *shape, enum okv_kv_dtype dtype);
void oracle_destroy(struct oracle *oracle);

/* Forgets the sequence. */
void oracle_clear(struct oracle *oracle);
/* Appends one token and writes the logits behind it: ret_logits[vocabulary]. */
void oracle_append(struct oracle *oracle, uint32_t token, float *ret_logits);

#endif
