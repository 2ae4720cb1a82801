/*
 * Attention of a few rows of one sequence over one KV head, all query heads of the group together: keys and values are
 * widened once, STEP entries at a time, and every query vector (row, head) runs over them from the first-level cache.
 *
 *   1  scores, lanes across keys            scores[vector][entry]
 *   2  maximum, exponential, sum            the same array, in place; inverse[vector]
 *   3  weights times values, lanes across dimensions; a block of OKV_SUM_ENTRIES ends by adding part to total
 *
 * Rows of a call see different numbers of entries. Entries that all query vectors of a tile see run together, the few
 * that only later rows see run one vector at a time: nothing is ever masked by a zero weight.
 */
#include <string.h>

#include "attention_scratch.h"

enum { SCORE_COLUMNS = SCORE_VECTORS * LANES, MIX_VECTORS = 4 };

struct attending {
	const struct okv_attention *a;
	const struct okv_queries *queries;
	struct okv__attend_scratch s;
	uint32_t vectors, visible_max;
};

static inline uint32_t visible_of(const struct attending *w, uint32_t vector)
{
	return w->queries->visible + vector / w->a->group;
}

static inline const float *query_of(const struct attending *w, uint32_t vector)
{
	const struct okv_queries *queries = w->queries;

	return queries->q + vector / w->a->group * queries->q_stride + vector % w->a->group * (size_t)w->a->head_dim;
}

static inline float *scores_of(const struct attending *w, uint32_t vector)
{
	return w->s.scores + vector * w->s.scores_stride;
}

/* Entries that lie together in one page: where they are, and where to look ahead while they are read. */
struct run {
	const uint8_t *page;
	uint32_t token, count;
};

/* The run at entry `entry`, of at most `most` entries; a page table is read no further than the visible entries. */
static inline struct run run_at(const struct okv_attended_page *pages, uint32_t page_tokens, bool rotated,
				uint32_t entry, uint32_t most)
{
	uint32_t page = entry / page_tokens, token = entry % page_tokens, left = page_tokens - token;

	return (struct run){.page = rotated ? pages[page].rotated : pages[page].bytes,
			    .token = token,
			    .count = left < most ? left : most};
}

/* One page's run of `count` keys (a multiple of 8) to columns of tile[dimension][OKV__STEP]; `ahead` is prefetched. */
static void widen_keys_f16(const uint16_t *keys, const uint16_t *ahead, uint32_t head_dim, uint32_t page_tokens,
			   uint32_t count, float *tile)
{
	for (uint32_t i = 0; i < head_dim; i++, keys += page_tokens, ahead += page_tokens, tile += OKV__STEP) {
		uint32_t t = 0;

		_mm_prefetch((const char *)ahead, _MM_HINT_T0);
		for (; t + LANES <= count; t += LANES)
			v_store(tile + t, v_load_halves(keys + t));
		for (; t < count; t += 8)
			_mm256_storeu_ps(tile + t,
					 _mm256_cvtph_ps(_mm_loadu_si128((const __m128i *)(const void *)(keys + t))));
	}
}

static void copy_keys_f32(const float *keys, const float *ahead, uint32_t head_dim, uint32_t page_tokens,
			  uint32_t count, float *tile)
{
	for (uint32_t i = 0; i < head_dim; i++, keys += page_tokens, ahead += page_tokens, tile += OKV__STEP) {
		_mm_prefetch((const char *)ahead, _MM_HINT_T0);
		memcpy(tile, keys, count * sizeof(float));
	}
}

/* Entries [start, start + count), start a multiple of OKV__STEP; columns up to the next multiple of 8 are filled. */
static void gather_keys(const struct attending *w, uint32_t start, uint32_t count)
{
	const struct okv_attention *a = w->a;
	uint32_t filled = 0;

	count = (count + 7) & ~7u;
	while (filled < count) {
		uint32_t entry = start + filled, later = entry + OKV__STEP < w->visible_max ? entry + OKV__STEP : entry;
		struct run run = run_at(a->pages, a->page_tokens, true, entry, count - filled);
		struct run next = run_at(a->pages, a->page_tokens, true, later, 1);
		const uint8_t *keys = run.page + a->keys_offset, *ahead = next.page + a->keys_offset;

		if (a->is_f32)
			copy_keys_f32((const float *)(const void *)keys + run.token,
				      (const float *)(const void *)ahead + next.token, a->head_dim, a->page_tokens,
				      run.count, w->s.tile + filled);
		else
			widen_keys_f16((const uint16_t *)(const void *)keys + run.token,
				       (const uint16_t *)(const void *)ahead + next.token, a->head_dim, a->page_tokens,
				       run.count, w->s.tile + filled);
		filled += run.count;
	}
}

/* Scores of `n` (a constant) query vectors for SCORE_COLUMNS keys. */
INLINED void score_tile(unsigned n, const struct attending *w, uint32_t vector, const float *tile, uint32_t entry)
{
	uint32_t half = w->a->head_dim / 2;
	v_float sum[2][3][SCORE_VECTORS];
	const float *q[3];

	UNROLLED
	for (unsigned j = 0; j < n; j++)
		q[j] = query_of(w, vector + j);
	UNROLLED
	for (unsigned h = 0; h < 2; h++) {
		UNROLLED
		for (unsigned j = 0; j < n; j++) {
			UNROLLED
			for (unsigned c = 0; c < SCORE_VECTORS; c++)
				sum[h][j][c] = v_zero();
		}
		for (uint32_t i = h * half; i < (h + 1) * half; i++) {
			const float *key = tile + (size_t)i * OKV__STEP;

			UNROLLED
			for (unsigned j = 0; j < n; j++) {
				UNROLLED
				for (unsigned c = 0; c < SCORE_VECTORS; c++)
					sum[h][j][c] = v_fma(v_set1(q[j][i]), v_load(key + c * LANES), sum[h][j][c]);
			}
		}
	}
	UNROLLED
	for (unsigned j = 0; j < n; j++) {
		UNROLLED
		for (unsigned c = 0; c < SCORE_VECTORS; c++)
			v_store(scores_of(w, vector + j) + entry + c * LANES,
				v_mul(v_add(sum[0][j][c], sum[1][j][c]), v_set1(w->a->scale)));
	}
}

static void score_all(const struct attending *w)
{
	for (uint32_t start = 0; start < w->visible_max; start += OKV__STEP) {
		uint32_t left = w->visible_max - start, count = left < OKV__STEP ? left : OKV__STEP;
		uint32_t visible = w->queries->visible;
		uint32_t first = start < visible ? 0 : (start - visible + 1) * w->a->group;

		gather_keys(w, start, count);
		for (uint32_t column = 0; column < count; column += SCORE_COLUMNS) {
			uint32_t v = first;

			for (; v + 3 <= w->vectors; v += 3)
				score_tile(3, w, v, w->s.tile + column, start + column);
			for (; v < w->vectors; v++)
				score_tile(1, w, v, w->s.tile + column, start + column);
		}
	}
}

static float greatest(const float *scores, uint32_t count)
{
	v_float most = v_set1(scores[0]);
	uint32_t i = 0;
	float result;

	for (; i + LANES <= count; i += LANES)
		most = v_max(most, v_load(scores + i));
	result = v_greatest(most);
	for (; i < count; i++)
		result = scores[i] > result ? scores[i] : result;
	return result;
}

/* Turns one vector's scores into weights and returns their sum. The array has room for whole vectors. */
static float weigh(float *scores, uint32_t count)
{
	v_float most = v_set1(greatest(scores, count));
	float total = 0;

	for (uint32_t start = 0; start < count; start += OKV_SUM_ENTRIES) {
		uint32_t end = count < start + OKV_SUM_ENTRIES ? count : start + OKV_SUM_ENTRIES;
		__m256 sums = _mm256_setzero_ps();

		for (uint32_t i = start; i < end; i += LANES) {
			v_store(scores + i, v_exp(v_sub(v_load(scores + i), most)));
			for (uint32_t past = end; past < i + LANES; past++)
				scores[past] = 0; /* adds nothing: partial sums are never -0 */
			for (uint32_t j = 0; j < LANES; j += 8)
				sums = _mm256_add_ps(sums, _mm256_loadu_ps(scores + i + j));
		}
		total += tree(sums);
	}
	return total;
}

/* One token's V of `head_dim` values; the same of a later token is prefetched. */
static void widen_value(const struct okv_attention *a, const uint8_t *value, const uint8_t *ahead, float *ret)
{
	size_t bytes = (size_t)a->head_dim * (a->is_f32 ? sizeof(float) : sizeof(uint16_t));

	for (size_t line = 0; line < bytes; line += 64)
		_mm_prefetch((const char *)ahead + line, _MM_HINT_T0);
	if (a->is_f32) {
		memcpy(ret, value, bytes);
		return;
	}
	for (uint32_t i = 0; i < a->head_dim; i += LANES)
		v_store(ret + i, v_load_halves((const uint16_t *)(const void *)value + i));
}

/* Entries [start, start + count) to tile[entry][head_dim]. */
static void gather_values(const struct attending *w, uint32_t start, uint32_t count)
{
	const struct okv_attention *a = w->a;
	size_t token_bytes = a->value_stride * (a->is_f32 ? sizeof(float) : sizeof(uint16_t));
	float *to = w->s.tile;

	for (uint32_t filled = 0; filled < count;) {
		uint32_t entry = start + filled, later = entry + OKV__STEP < w->visible_max ? entry + OKV__STEP : entry;
		struct run run = run_at(a->pages, a->page_tokens, false, entry, count - filled);
		struct run next = run_at(a->pages, a->page_tokens, false, later, 1);
		const uint8_t *value = run.page + a->values_offset + run.token * token_bytes;
		const uint8_t *ahead = next.page + a->values_offset + next.token * token_bytes;

		for (uint32_t j = 0; j < run.count; j++, to += a->head_dim)
			widen_value(a, value + j * token_bytes, ahead + j * token_bytes, to);
		filled += run.count;
	}
}

/* part[vector + j] goes on over keys [from, to) of the step, for `n` query vectors and `width` vectors of dimensions.
 */
INLINED void mix_tile(unsigned n, unsigned width, const struct attending *w, uint32_t vector, uint32_t start,
		      uint32_t from, uint32_t to, uint32_t dim)
{
	size_t head_dim = w->a->head_dim;
	float *part = w->s.part + vector * head_dim + dim;
	const float *value = w->s.tile + from * head_dim + dim, *weights = scores_of(w, vector) + start;
	v_float sum[MIX_QUERIES][MIX_VECTORS];

	UNROLLED
	for (unsigned j = 0; j < n; j++) {
		UNROLLED
		for (unsigned c = 0; c < width; c++)
			sum[j][c] = v_load(part + j * head_dim + c * LANES);
	}
	for (uint32_t key = from; key < to; key++, value += head_dim) {
		UNROLLED
		for (unsigned j = 0; j < n; j++) {
			v_float weight = v_set1(weights[j * w->s.scores_stride + key]);

			UNROLLED
			for (unsigned c = 0; c < width; c++)
				sum[j][c] = v_fma(weight, v_load(value + c * LANES), sum[j][c]);
		}
	}
	UNROLLED
	for (unsigned j = 0; j < n; j++) {
		UNROLLED
		for (unsigned c = 0; c < width; c++)
			v_store(part + j * head_dim + c * LANES, sum[j][c]);
	}
}

INLINED void mix(unsigned n, const struct attending *w, uint32_t vector, uint32_t start, uint32_t from, uint32_t to)
{
	uint32_t dim = 0;

	if (from >= to)
		return;
	for (; dim + MIX_VECTORS * LANES <= w->a->head_dim; dim += MIX_VECTORS * LANES)
		mix_tile(n, MIX_VECTORS, w, vector, start, from, to, dim);
	for (; dim < w->a->head_dim; dim += LANES)
		mix_tile(n, 1, w, vector, start, from, to, dim);
}

static inline uint32_t seen_in_step(const struct attending *w, uint32_t vector, uint32_t start, uint32_t count)
{
	uint32_t visible = visible_of(w, vector), seen = visible > start ? visible - start : 0;

	return seen < count ? seen : count;
}

/* One step of entries for query vectors [vector, vector + n): what all see together, then what some see alone. */
INLINED void mix_vectors(unsigned n, const struct attending *w, uint32_t vector, uint32_t start, uint32_t count)
{
	uint32_t common = seen_in_step(w, vector, start, count);

	mix(n, w, vector, start, 0, common);
	for (unsigned j = 0; j < n; j++)
		mix(1, w, vector + j, start, common, seen_in_step(w, vector + j, start, count));
}

/* Ends the block that began at entry `start`: total += part, for the vectors that saw any of it. */
static void end_block(const struct attending *w, uint32_t start)
{
	size_t head_dim = w->a->head_dim;

	for (uint32_t v = 0; v < w->vectors; v++) {
		float *part = w->s.part + v * head_dim, *total = w->s.total + v * head_dim;

		if (visible_of(w, v) <= start)
			continue;
		for (uint32_t i = 0; i < head_dim; i += LANES)
			v_store(total + i, v_add(v_load(total + i), v_load(part + i)));
		memset(part, 0, head_dim * sizeof(float));
	}
}

static void mix_all(const struct attending *w)
{
	size_t size = (size_t)w->vectors * w->a->head_dim * sizeof(float);

	memset(w->s.part, 0, size);
	memset(w->s.total, 0, size);
	for (uint32_t start = 0; start < w->visible_max; start += OKV__STEP) {
		uint32_t left = w->visible_max - start, count = left < OKV__STEP ? left : OKV__STEP, v = 0;

		gather_values(w, start, count);
		for (; v + MIX_QUERIES <= w->vectors; v += MIX_QUERIES)
			mix_vectors(MIX_QUERIES, w, v, start, count);
		for (; v + 3 <= w->vectors; v += 3)
			mix_vectors(3, w, v, start, count);
		for (; v < w->vectors; v++)
			mix_vectors(1, w, v, start, count);
		if ((start + OKV__STEP) % OKV_SUM_ENTRIES == 0 || left <= OKV__STEP)
			end_block(w, start / OKV_SUM_ENTRIES * OKV_SUM_ENTRIES);
	}
}

static void attend(const struct okv_attention *a, const struct okv_queries *queries, void *scratch)
{
	struct attending w = {
		.a = a,
		.queries = queries,
		.vectors = queries->count * a->group,
		.visible_max = queries->visible + queries->count - 1,
	};
	float inverse[OKV_QUERY_VECTORS];

	w.s = okv__attend_scratch_of(scratch, a->head_dim, w.visible_max);
	score_all(&w);
	for (uint32_t v = 0; v < w.vectors; v++)
		inverse[v] = 1 / weigh(scores_of(&w, v), visible_of(&w, v));
	mix_all(&w);

	for (uint32_t v = 0; v < w.vectors; v++) {
		uint32_t row = v / a->group, head = v % a->group;

		for (uint32_t i = 0; i < a->head_dim; i += LANES) {
			size_t at = (size_t)head * a->head_dim + i;
			v_float total = v_load(w.s.total + (size_t)v * a->head_dim + i);

			v_store(queries->out + (at / OKV_BLOCK * queries->row_stride + row) * OKV_BLOCK +
					at % OKV_BLOCK,
				v_mul(total, v_set1(inverse[v])));
		}
	}
	for (uint32_t row = 0; row < queries->count; row++)
		for (uint32_t block = 0; block < a->group * a->head_dim / OKV_BLOCK; block++) {
			size_t at = block * queries->row_stride + row;

			queries->sums[at] = sum_of_block(queries->out + at * OKV_BLOCK);
		}
}
