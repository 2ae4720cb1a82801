/*
 * The linear layer. A few rows: weights are decoded in registers and used at once, panels side by side, each read once
 * in order. More rows: a block of a chunk of panels is decoded into a small f32 array that stays in the first-level
 * cache, and tiles of TILE_ROWS rows run over it; the chains of a tile live in `ret_out` between blocks.
 */
#include <string.h>

#include "panels.h"

#ifdef __clang__
#define UNROLLED _Pragma("clang loop unroll(full)")
#else
#define UNROLLED _Pragma("GCC unroll 32")
#endif
#define INLINED static inline __attribute__((always_inline))

enum {
	PANEL_VECTORS = OKV_PANEL / LANES,
	CHUNK_OUTPUTS = OKV_CHUNK_PANELS * OKV_PANEL,
	PREFETCH_BYTES = 640, /* how far ahead of each of the four streams one row reads */
};

/* One block of a chunk of panels, decoded. */
struct decoded {
	_Alignas(64) float value[OKV_BLOCK * CHUNK_OUTPUTS]; /* [panel group][k][TILE_PANELS * OKV_PANEL] */
	float d[CHUNK_OUTPUTS], m[CHUNK_OUTPUTS];
};

static inline bool is_scaled(enum okv_weight_type type)
{
	return type != OKV_WEIGHT_F32 && type != OKV_WEIGHT_F16;
}

INLINED v_float load_scale(const uint8_t *at, unsigned v)
{
	return v_load_halves((const uint16_t *)(const void *)at + v * LANES);
}

/* Inputs 8g .. 8g+7 of vector v of a block; `type` is a constant where it matters. */
INLINED void decode8(enum okv_weight_type type, const uint8_t *values, unsigned g, unsigned v, v_float table,
		     v_float ret[8])
{
	size_t at = (size_t)g * 8 * OKV_PANEL + v * LANES;
	v_word words;

	switch (type) {
	case OKV_WEIGHT_Q4_0:
	case OKV_WEIGHT_Q4_1:
		words = v_load_words(values + (g * OKV_PANEL + v * LANES) * sizeof(uint32_t));
		UNROLLED
		for (unsigned j = 0; j < 8; j++)
			ret[j] = v_nibble(words, j, table);
		break;
	case OKV_WEIGHT_Q8_0:
		UNROLLED
		for (unsigned j = 0; j < 8; j++)
			ret[j] = v_load_bytes(values + at + j * OKV_PANEL);
		break;
	case OKV_WEIGHT_F16:
		UNROLLED
		for (unsigned j = 0; j < 8; j++)
			ret[j] = v_load_halves((const uint16_t *)(const void *)values + at + j * OKV_PANEL);
		break;
	case OKV_WEIGHT_F32:
		UNROLLED
		for (unsigned j = 0; j < 8; j++)
			ret[j] = v_load((const float *)(const void *)values + at + j * OKV_PANEL);
		break;
	}
}

/* out = link of block: fma(d, part, out), then fma(m, sum, out); the one place that closes a block. */
INLINED v_float close_block(bool scaled, bool has_minimum, v_float d, v_float m, v_float sum, v_float part, v_float out)
{
	out = scaled ? v_fma(d, part, out) : v_add(out, part);
	return has_minimum ? v_fma(m, sum, out) : out;
}

/* The block two blocks of Q4_1 behind this one: where a stream of weights will be read next. */
INLINED void prefetch_block(const uint8_t *at, size_t block_bytes)
{
	for (size_t line = 0; line < block_bytes; line += 64)
		_mm_prefetch((const char *)at + PREFETCH_BYTES + line, _MM_HINT_T0);
}

/* A stretch of the reduction for a few rows: `panels`, `rows` and `type` are constants wherever these are used. */
struct few {
	const uint8_t *at;  /* the first panel's block */
	size_t panel_bytes; /* from one panel to the next */
	const float *x;	    /* [row][OKV_BLOCK] of the block */
	const float *sums;  /* [row] */
};

/* One block: out[row * vectors + v] gets one more link. */
INLINED void few_block(enum okv_weight_type type, unsigned rows, unsigned panels, const struct few *f, v_float table,
		       v_float *out)
{
	unsigned vectors = panels * PANEL_VECTORS;
	bool scaled = is_scaled(type), has_minimum = type == OKV_WEIGHT_Q4_1;
	v_float part[FEW_ROWS * OKV_CHUNK_PANELS * PANEL_VECTORS];

	UNROLLED
	for (unsigned i = 0; i < rows * vectors; i++)
		part[i] = v_zero();
	for (unsigned g = 0; g < OKV_BLOCK / 8; g++) {
		UNROLLED
		for (unsigned v = 0; v < vectors; v++) {
			const uint8_t *values = f->at + v / PANEL_VECTORS * f->panel_bytes + okv__values_offset(type);
			v_float value[8];

			decode8(type, values, g, v % PANEL_VECTORS, table, value);
			UNROLLED
			for (unsigned j = 0; j < 8; j++) {
				UNROLLED
				for (unsigned r = 0; r < rows; r++)
					part[r * vectors + v] = v_fma(value[j], v_set1(f->x[r * OKV_BLOCK + g * 8 + j]),
								      part[r * vectors + v]);
			}
		}
	}
	UNROLLED
	for (unsigned v = 0; v < vectors; v++) {
		const uint8_t *scales = f->at + v / PANEL_VECTORS * f->panel_bytes;
		v_float d = scaled ? load_scale(scales, v % PANEL_VECTORS) : v_zero();
		v_float m = has_minimum ? load_scale(scales + 2 * OKV_PANEL, v % PANEL_VECTORS) : v_zero();

		UNROLLED
		for (unsigned r = 0; r < rows; r++)
			out[r * vectors + v] = close_block(scaled, has_minimum, d, m, v_set1(f->sums[r]),
							   part[r * vectors + v], out[r * vectors + v]);
	}
}

/* `panels` panels from `panel` on, all groups; `out_stride` floats from row to row of the result. */
INLINED void few_panels(enum okv_weight_type type, unsigned rows, unsigned panels, const struct okv_panels *w,
			uint32_t panel, const struct okv_activations *x, float *ret_out, size_t out_stride)
{
	unsigned vectors = panels * PANEL_VECTORS;
	size_t block_bytes = okv__block_bytes(type);
	struct few f = {.panel_bytes = w->inputs / OKV_BLOCK * block_bytes};
	v_float table = v_nibble_table(type == OKV_WEIGHT_Q4_0 ? 8 : 0);

	for (uint32_t group = 0; group < w->groups; group++) {
		uint32_t block = okv__group_start(w, group), end = okv__group_start(w, group + 1);
		v_float out[FEW_ROWS * OKV_CHUNK_PANELS * PANEL_VECTORS];

		f.at = okv__panel_block(w, panel, block);
		UNROLLED
		for (unsigned i = 0; i < rows * vectors; i++)
			out[i] = v_zero();
		for (; block < end; block++, f.at += block_bytes) {
			f.x = x->x + (size_t)block * x->row_stride * OKV_BLOCK;
			f.sums = x->sums + (size_t)block * x->row_stride;
			for (unsigned p = 0; p < panels; p++)
				prefetch_block(f.at + p * f.panel_bytes, block_bytes);
			few_block(type, rows, panels, &f, table, out);
		}
		UNROLLED
		for (unsigned i = 0; i < rows * vectors; i++) {
			float *to = ret_out + i / vectors * out_stride + i % vectors * LANES;

			v_store(to, group == 0 ? out[i] : v_add(v_load(to), out[i]));
		}
	}
}

INLINED void few_of(enum okv_weight_type type, unsigned rows, const struct okv_panels *w, uint32_t first,
		    uint32_t count, const struct okv_activations *x, float *ret_out)
{
	unsigned together = rows == 1 ? OKV_CHUNK_PANELS : FEW_PANELS;
	size_t stride = (size_t)count * OKV_PANEL;
	uint32_t p = 0;

	for (; p + together <= count; p += together)
		few_panels(type, rows, together, w, first + p, x, ret_out + p * OKV_PANEL, stride);
	for (; p < count; p++)
		few_panels(type, rows, 1, w, first + p, x, ret_out + p * OKV_PANEL, stride);
}

INLINED void few_rows_of(enum okv_weight_type type, const struct okv_panels *w, uint32_t first, uint32_t count,
			 const struct okv_activations *x, float *ret_out)
{
	switch (x->rows) {
	case 1:
		few_of(type, 1, w, first, count, x, ret_out);
		break;
	case 2:
		few_of(type, 2, w, first, count, x, ret_out);
		break;
	default:
		few_of(type, FEW_ROWS, w, first, count, x, ret_out);
		break;
	}
}

static void few_rows(const struct okv_panels *w, uint32_t first, uint32_t count, const struct okv_activations *x,
		     float *ret_out)
{
	switch (w->type) {
	case OKV_WEIGHT_F32:
		few_rows_of(OKV_WEIGHT_F32, w, first, count, x, ret_out);
		break;
	case OKV_WEIGHT_F16:
		few_rows_of(OKV_WEIGHT_F16, w, first, count, x, ret_out);
		break;
	case OKV_WEIGHT_Q4_0:
		few_rows_of(OKV_WEIGHT_Q4_0, w, first, count, x, ret_out);
		break;
	case OKV_WEIGHT_Q4_1:
		few_rows_of(OKV_WEIGHT_Q4_1, w, first, count, x, ret_out);
		break;
	case OKV_WEIGHT_Q8_0:
		few_rows_of(OKV_WEIGHT_Q8_0, w, first, count, x, ret_out);
		break;
	}
}

/* Decodes one block of one panel into columns of `ret_values`, whose rows are `stride` floats. */
INLINED void decode_panel(enum okv_weight_type type, const uint8_t *block, float *ret_values, size_t stride,
			  float *ret_d, float *ret_m)
{
	v_float table = v_nibble_table(type == OKV_WEIGHT_Q4_0 ? 8 : 0);
	const uint8_t *values = block + okv__values_offset(type);

	prefetch_block(block, okv__block_bytes(type));
	UNROLLED
	for (unsigned v = 0; v < PANEL_VECTORS; v++) {
		for (unsigned g = 0; g < OKV_BLOCK / 8; g++) {
			v_float value[8];

			decode8(type, values, g, v, table, value);
			UNROLLED
			for (unsigned j = 0; j < 8; j++)
				v_store(ret_values + (g * 8 + j) * stride + v * LANES, value[j]);
		}
		if (is_scaled(type))
			v_store(ret_d + v * LANES, load_scale(block, v));
		if (type == OKV_WEIGHT_Q4_1)
			v_store(ret_m + v * LANES, load_scale(block + 2 * OKV_PANEL, v));
	}
}

static void decode_block(const struct okv_panels *w, uint32_t panel, uint32_t block, float *ret_values, size_t stride,
			 float *ret_d, float *ret_m)
{
	const uint8_t *bytes = okv__panel_block(w, panel, block);

	switch (w->type) {
	case OKV_WEIGHT_F32:
		decode_panel(OKV_WEIGHT_F32, bytes, ret_values, stride, ret_d, ret_m);
		break;
	case OKV_WEIGHT_F16:
		decode_panel(OKV_WEIGHT_F16, bytes, ret_values, stride, ret_d, ret_m);
		break;
	case OKV_WEIGHT_Q4_0:
		decode_panel(OKV_WEIGHT_Q4_0, bytes, ret_values, stride, ret_d, ret_m);
		break;
	case OKV_WEIGHT_Q4_1:
		decode_panel(OKV_WEIGHT_Q4_1, bytes, ret_values, stride, ret_d, ret_m);
		break;
	case OKV_WEIGHT_Q8_0:
		decode_panel(OKV_WEIGHT_Q8_0, bytes, ret_values, stride, ret_d, ret_m);
		break;
	}
}

/* What a tile reads and writes besides the weights. */
struct tile {
	const float *x, *sums; /* of the tile's first row and the block */
	float *out;	       /* of the tile's first row and first output */
	size_t out_stride;
	bool starts; /* the block starts a chain */
	bool scaled, has_minimum;
};

/* One block for `rows` rows and `vectors` vectors of outputs (constants) */
INLINED void run_tile(unsigned rows, unsigned vectors, const float *value, const float *d, const float *m,
		      const struct tile *t)
{
	v_float part[TILE_ROWS][TILE_PANELS * PANEL_VECTORS];

	UNROLLED
	for (unsigned r = 0; r < rows; r++) {
		UNROLLED
		for (unsigned v = 0; v < vectors; v++)
			part[r][v] = v_zero();
	}
	for (unsigned k = 0; k < OKV_BLOCK; k++) {
		v_float weight[TILE_PANELS * PANEL_VECTORS];

		UNROLLED
		for (unsigned v = 0; v < vectors; v++)
			weight[v] = v_load(value + (k * vectors + v) * LANES);
		UNROLLED
		for (unsigned r = 0; r < rows; r++) {
			v_float x = v_set1(t->x[r * OKV_BLOCK + k]);

			UNROLLED
			for (unsigned v = 0; v < vectors; v++)
				part[r][v] = v_fma(weight[v], x, part[r][v]);
		}
	}
	UNROLLED
	for (unsigned r = 0; r < rows; r++) {
		v_float sum = v_set1(t->sums[r]);

		UNROLLED
		for (unsigned v = 0; v < vectors; v++) {
			float *at = t->out + r * t->out_stride + v * LANES;
			v_float out = t->starts ? v_zero() : v_load(at);

			v_store(at, close_block(t->scaled, t->has_minimum, v_load(d + v * LANES), v_load(m + v * LANES),
						sum, part[r][v], out));
		}
	}
}

INLINED void run_tiles(unsigned vectors, const float *value, const float *d, const float *m, struct tile t,
		       uint32_t rows)
{
	for (; rows >= TILE_ROWS; rows -= TILE_ROWS) {
		run_tile(TILE_ROWS, vectors, value, d, m, &t);
		t.x += TILE_ROWS * OKV_BLOCK;
		t.sums += TILE_ROWS;
		t.out += TILE_ROWS * t.out_stride;
	}
	switch (rows) {
	case 1:
		run_tile(1, vectors, value, d, m, &t);
		break;
	case 2:
		run_tile(2, vectors, value, d, m, &t);
		break;
	case 3:
		run_tile(3, vectors, value, d, m, &t);
		break;
	case 4:
		run_tile(4, vectors, value, d, m, &t);
		break;
	case 5:
		run_tile(5, vectors, value, d, m, &t);
		break;
	default:
		break;
	}
}

/* The chains of one group, for all rows; `out_stride` floats from row to row. Written through struct tile. */
/* NOLINTBEGIN(readability-non-const-parameter) */
INLINED void group_of_rows(unsigned panels, const struct okv_panels *w, uint32_t panel, uint32_t group,
			   const struct okv_activations *x, float *ret_out, size_t out_stride)
/* NOLINTEND(readability-non-const-parameter) */
{
	uint32_t start = okv__group_start(w, group), end = okv__group_start(w, group + 1);
	struct decoded decoded;

	memset(decoded.d, 0, sizeof decoded.d);
	memset(decoded.m, 0, sizeof decoded.m);
	for (uint32_t block = start; block < end; block++) {
		size_t at = (size_t)block * x->row_stride;
		struct tile t = {
			.x = x->x + at * OKV_BLOCK,
			.sums = x->sums + at,
			.out = ret_out,
			.out_stride = out_stride,
			.starts = block == start,
			.scaled = is_scaled(w->type),
			.has_minimum = w->type == OKV_WEIGHT_Q4_1,
		};

		for (unsigned p = 0; p < panels; p++)
			decode_block(w, panel + p, block, decoded.value + p * OKV_PANEL, (size_t)panels * OKV_PANEL,
				     decoded.d + p * OKV_PANEL, decoded.m + p * OKV_PANEL);
		run_tiles(panels * PANEL_VECTORS, decoded.value, decoded.d, decoded.m, t, x->rows);
	}
}

static void rows_of(const struct okv_panels *w, uint32_t first, uint32_t count, uint32_t group,
		    const struct okv_activations *x, float *ret_out)
{
	size_t stride = (size_t)count * OKV_PANEL;
	uint32_t p = 0;

	for (; p + TILE_PANELS <= count; p += TILE_PANELS)
		group_of_rows(TILE_PANELS, w, first + p, group, x, ret_out + p * OKV_PANEL, stride);
	for (; p < count; p++)
		group_of_rows(1, w, first + p, group, x, ret_out + p * OKV_PANEL, stride);
}

static void many_rows(const struct okv_panels *w, uint32_t first, uint32_t count, const struct okv_activations *x,
		      float *ret_out, float *scratch)
{
	size_t size = (size_t)x->rows * count * OKV_PANEL;

	rows_of(w, first, count, 0, x, ret_out);
	for (uint32_t group = 1; group < w->groups; group++) {
		rows_of(w, first, count, group, x, scratch);
		for (size_t i = 0; i < size; i += LANES)
			v_store(ret_out + i, v_add(v_load(ret_out + i), v_load(scratch + i)));
	}
}

static void linear(const struct okv_panels *w, uint32_t first, uint32_t count, const struct okv_activations *x,
		   float *ret_out, float *scratch)
{
	if (x->rows <= FEW_ROWS)
		few_rows(w, first, count, x, ret_out);
	else
		many_rows(w, first, count, x, ret_out, scratch);
}
