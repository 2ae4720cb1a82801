/*
 * The forward pass: a step is a series of regions over the workers, five or seven a layer.
 *
 *   norm         rows to `normed` (done by the owner alone for a few rows)
 *   qkv          panels x row tiles; the end of a chunk rotates q, writes Kraw, V and rotated K to the pages
 *   attention    runs of rows of one sequence x KV heads, to `attended`
 *   o            panels x row tiles, added to the residual `h`
 *   norm, gate and up with SwiGLU to `gated`, down added to `h`
 *
 * Chunks write disjoint outputs and each output is computed whole by one chunk, so nothing depends on who runs what.
 * Everything between regions is in the graph's scratch memory; a thread's own scratch holds the chains of its chunk.
 */
#include <stdlib.h>
#include <string.h>

#include "okv/kernels/workers.h"
#include "weights.h"

enum {
	ROWS_ALONE = 4,	       /* so few rows are normed by the owner: a region costs more */
	ROWS_A_NORM = 8,       /* rows of a chunk of the norm region */
	ROWS_TO_SPLIT = 48,    /* from here on a linear region is cut along rows too */
	ROWS_A_TILE_MAX = 252, /* a multiple of the kernels' tile of 6 rows */
	CHUNKS_A_THREAD = 4,   /* of a region that is not cut along rows */
	ROWS_TO_HALVE = 6,     /* with fewer, gathering the keys twice costs more than a thread that waits */
	CHUNK_OUTPUTS = OKV_CHUNK_PANELS * OKV_PANEL,
	ALIGNMENT = 64,
};

/* Rows of one sequence that follow each other, evaluated together by attention. */
struct tile {
	uint32_t first, count;
};

/* A linear region over up to three matrices: what its chunks are. */
struct cut {
	const struct okv_panels *matrix[3];
	uint32_t matrices, units[3]; /* a unit is OKV_CHUNK_PANELS panels */
	uint32_t units_a_chunk, chunks_of_units;
	uint32_t rows_a_tile, tiles;
};

struct okv_graph {
	const struct okv_model *model; /* borrowed */
	const struct okv_kernels *kernels;
	struct okv_workers *workers; /* owned */
	struct okv_kv_layout layout;
	uint32_t rows_max, element; /* bytes of a KV element */
	uint32_t tile_rows;	    /* most rows of a struct tile */
	float score_scale;

	/* Owned scratch; [rows_max] each, activations as okv_activations with row_stride = rows_max. */
	uint8_t *memory;
	float *h;			 /* [row][width]: the residual stream */
	float *normed, *normed_sums;	 /* activations [width] */
	float *q;			 /* [row][heads * head_dim] */
	float *attended, *attended_sums; /* activations [heads * head_dim] */
	float *gated, *gated_sums;	 /* activations [ffn] */
	struct tile *tiles;
	uint8_t *threads; /* per thread: two chunks of outputs, then attention's scratch */
	size_t thread_bytes;

	/* The step in progress: written by the owner between regions. */
	const struct okv_graph_row *rows;
	uint32_t count, tile_count, layer;
	struct cut cut;
	const float *norm_weight;
	uint32_t wanting;      /* rows that want logits; their norms are the first rows of `normed` */
	uint32_t *wanting_row; /* [wanting] */
	float *logits;
};

_Static_assert(sizeof(struct okv_attended_page) == sizeof(struct okv_kv_page) &&
		       offsetof(struct okv_attended_page, bytes) == offsetof(struct okv_kv_page, bytes) &&
		       offsetof(struct okv_attended_page, rotated) == offsetof(struct okv_kv_page, rotated),
	       "a page table is read by attention as it stands");

/* ---- memory ---- */

static size_t rounded(size_t size)
{
	return (size + ALIGNMENT - 1) / ALIGNMENT * ALIGNMENT;
}

/* Lays `size` bytes out at *used; the address once there is memory. */
static void *lay_out(struct okv_graph *graph, size_t *used, size_t size)
{
	void *at = graph->memory ? graph->memory + *used : NULL;

	*used += rounded(size);
	return at;
}

static size_t lay_out_scratch(struct okv_graph *graph)
{
	const struct okv_model_shape *s = &graph->model->shape;
	size_t rows = graph->rows_max, used = 0, f = sizeof(float), all = (size_t)s->heads * s->head_dim;

	graph->thread_bytes =
		2 * rounded(rows * CHUNK_OUTPUTS * f) + rounded(okv_attend_scratch(s->head_dim, s->context));
	graph->h = lay_out(graph, &used, rows * s->width * f);
	graph->normed = lay_out(graph, &used, rows * s->width * f);
	graph->normed_sums = lay_out(graph, &used, rows * s->width / OKV_BLOCK * f);
	graph->q = lay_out(graph, &used, rows * all * f);
	graph->attended = lay_out(graph, &used, rows * all * f);
	graph->attended_sums = lay_out(graph, &used, rows * all / OKV_BLOCK * f);
	graph->gated = lay_out(graph, &used, rows * s->ffn * f);
	graph->gated_sums = lay_out(graph, &used, rows * s->ffn / OKV_BLOCK * f);
	graph->tiles = lay_out(graph, &used, rows * sizeof *graph->tiles);
	graph->wanting_row = lay_out(graph, &used, rows * sizeof *graph->wanting_row);
	graph->threads = lay_out(graph, &used, graph->thread_bytes * okv_workers_threads(graph->workers));
	return used;
}

static float *thread_outputs(const struct okv_graph *graph, unsigned thread, unsigned which)
{
	return (float *)(void *)(graph->threads + thread * graph->thread_bytes +
				 which * rounded((size_t)graph->rows_max * CHUNK_OUTPUTS * sizeof(float)));
}

static void set_layout(struct okv_graph *graph, const struct okv_graph_options *options)
{
	const struct okv_model_shape *s = &graph->model->shape;
	struct okv_kv_layout *layout = &graph->layout;

	graph->element = options->dtype == OKV_KV_F32 ? 4 : 2;
	layout->dtype = options->dtype;
	layout->page_tokens = options->page_tokens;
	layout->segment_bytes = (size_t)options->page_tokens * s->kv_heads * s->head_dim * graph->element;
	layout->page_bytes = 2 * s->layers * layout->segment_bytes;
	layout->rotated_bytes = s->layers * layout->segment_bytes;
}

static enum okv_status check_options(const struct okv_graph_options *options, struct okv_reason *reason)
{
	if (options->page_tokens == 0 || options->page_tokens % 8 || options->page_tokens > 256)
		return okv_refuse(reason, OKV_ERR_INVALID, "page_tokens",
				  "a page of %u tokens is not a multiple of 8 from 8 to 256", options->page_tokens);
	if (options->rows_max == 0 || options->rows_max > 65536)
		return okv_refuse(reason, OKV_ERR_INVALID, "rows_max", "steps of %u rows are not between 1 and 65536",
				  options->rows_max);
	if (options->dtype != OKV_KV_F16 && options->dtype != OKV_KV_F32)
		return okv_refuse(reason, OKV_ERR_INVALID, "dtype", "there is no KV dtype %d", (int)options->dtype);
	if (!okv_float_mode_is_set())
		return okv_refuse(reason, OKV_ERR_UNSUPPORTED, "numerics_id",
				  "this thread flushes subnormals or rounds otherwise than to nearest");
	return OKV_OK;
}

static enum okv_status start(struct okv_graph *graph, const struct okv_graph_options *options,
			     struct okv_reason *reason)
{
	enum okv_status status = okv_kernels_self_test(graph->kernels, reason);
	size_t size;

	if (status != OKV_OK)
		return status;
	status = okv_workers_create(options->threads, &graph->workers, reason);
	if (status != OKV_OK)
		return status;
	size = lay_out_scratch(graph);
	graph->memory = aligned_alloc(ALIGNMENT, size);
	if (!graph->memory)
		return okv_refuse(reason, OKV_ERR_NO_MEMORY, "rows_max", "no memory for steps of %u rows",
				  options->rows_max);
	lay_out_scratch(graph);
	return OKV_OK;
}

enum okv_status okv_graph_create(const struct okv_model *model, const struct okv_graph_options *options,
				 struct okv_graph **ret_graph, struct okv_reason *reason)
{
	struct okv_graph *graph;
	enum okv_status status = check_options(options, reason);

	if (status != OKV_OK)
		return status;
	graph = calloc(1, sizeof *graph);
	if (!graph)
		return okv_refuse(reason, OKV_ERR_NO_MEMORY, "", "no memory for a graph");
	graph->model = model;
	graph->kernels = options->kernels ? options->kernels : okv_kernels_best();
	graph->rows_max = options->rows_max;
	graph->tile_rows = OKV_QUERY_VECTORS / (model->shape.heads / model->shape.kv_heads);
	graph->score_scale = okv_score_scale(model->shape.head_dim);
	set_layout(graph, options);
	status = start(graph, options, reason);
	if (status != OKV_OK) {
		okv_graph_destroy(graph);
		return status;
	}
	*ret_graph = graph;
	return OKV_OK;
}

void okv_graph_destroy(struct okv_graph *graph)
{
	if (!graph)
		return;
	okv_workers_destroy(graph->workers);
	free(graph->memory);
	free(graph);
}

const struct okv_kv_layout *okv_graph_layout(const struct okv_graph *graph)
{
	return &graph->layout;
}

/* ---- where things are ---- */

static const struct okv__layer *layer_of(const struct okv_graph *graph)
{
	return &graph->model->layers[graph->layer];
}

static const float *rope_at(const struct okv_graph *graph, uint32_t position)
{
	return graph->model->rope + (size_t)position * graph->model->shape.head_dim;
}

/* Rows first .. first + count - 1 of activations with row_stride rows_max. */
static struct okv_activations activations(const struct okv_graph *graph, const float *x, const float *sums,
					  uint32_t first, uint32_t count)
{
	return (struct okv_activations){
		.x = x + (size_t)first * OKV_BLOCK, .sums = sums + first, .rows = count, .row_stride = graph->rows_max};
}

/* ---- cutting a linear region ---- */

static uint32_t divided_up(uint32_t a, uint32_t b)
{
	return (a + b - 1) / b;
}

static void cut_rows(struct cut *cut, uint32_t rows, uint32_t units, unsigned threads)
{
	OKV_ASSERT(rows >= 1 && units >= 1 && threads >= 1);
	cut->tiles = divided_up(rows, ROWS_A_TILE_MAX);
	if (rows >= ROWS_TO_SPLIT && cut->tiles == 1 && units % threads)
		cut->tiles = 2;
	cut->rows_a_tile = divided_up(divided_up(rows, cut->tiles), 6) * 6;
	cut->tiles = divided_up(rows, cut->rows_a_tile);
	cut->units_a_chunk = rows >= ROWS_TO_SPLIT ? 1 : divided_up(units, threads * CHUNKS_A_THREAD);
	cut->chunks_of_units = divided_up(units, cut->units_a_chunk);
}

static void run_linear(struct okv_graph *graph, uint32_t rows, okv_chunk_run run, uint32_t matrices,
		       const struct okv_panels *const *matrix)
{
	struct cut *cut = &graph->cut;
	uint32_t units = 0;

	cut->matrices = matrices;
	for (uint32_t i = 0; i < matrices; i++) {
		cut->matrix[i] = matrix[i];
		cut->units[i] = divided_up(matrix[i]->outputs, CHUNK_OUTPUTS);
		units += cut->units[i];
	}
	cut_rows(cut, rows, units, okv_workers_threads(graph->workers));
	okv_workers_run(graph->workers, run, graph, cut->chunks_of_units * cut->tiles);
}

/* One unit for one tile of rows. */
struct piece {
	uint32_t matrix, first_panel, panels, outputs; /* outputs: without what fills up the last panel */
	uint32_t first_row, rows;
};

/* The piece of unit number `unit` of a chunk; false past the last. */
static bool piece_of(const struct okv_graph *graph, uint32_t chunk, uint32_t unit, uint32_t rows,
		     struct piece *ret_piece)
{
	const struct cut *cut = &graph->cut;
	uint32_t at = chunk % cut->chunks_of_units * cut->units_a_chunk + unit, matrix = 0, left;

	if (unit == cut->units_a_chunk)
		return false;
	while (matrix < cut->matrices && at >= cut->units[matrix])
		at -= cut->units[matrix++];
	if (matrix == cut->matrices)
		return false;
	left = cut->matrix[matrix]->outputs - at * CHUNK_OUTPUTS;
	ret_piece->matrix = matrix;
	ret_piece->first_panel = at * OKV_CHUNK_PANELS;
	ret_piece->outputs = left < CHUNK_OUTPUTS ? left : CHUNK_OUTPUTS;
	ret_piece->panels = divided_up(ret_piece->outputs, OKV_PANEL);
	ret_piece->first_row = chunk / cut->chunks_of_units * cut->rows_a_tile;
	left = rows - ret_piece->first_row;
	ret_piece->rows = left < cut->rows_a_tile ? left : cut->rows_a_tile;
	return true;
}

/* ---- chunks ---- */

static void embed_chunk(void *context, uint32_t chunk, unsigned thread)
{
	struct okv_graph *graph = context;
	uint32_t end = (chunk + 1) * ROWS_A_NORM;

	(void)thread;
	for (uint32_t row = chunk * ROWS_A_NORM; row < end && row < graph->count; row++)
		okv_panels_row(&graph->model->embedding, graph->rows[row].token,
			       graph->h + (size_t)row * graph->model->shape.width);
}

static void norm_row(struct okv_graph *graph, uint32_t from, uint32_t to)
{
	const struct okv_model_shape *s = &graph->model->shape;

	graph->kernels->rms_norm(graph->h + (size_t)from * s->width, graph->norm_weight, s->width,
				 (float)s->norm_epsilon, graph->rows_max, graph->normed + (size_t)to * OKV_BLOCK,
				 graph->normed_sums + to);
}

static void norm_chunk(void *context, uint32_t chunk, unsigned thread)
{
	struct okv_graph *graph = context;
	uint32_t end = (chunk + 1) * ROWS_A_NORM;

	(void)thread;
	for (uint32_t row = chunk * ROWS_A_NORM; row < end && row < graph->count; row++)
		norm_row(graph, row, row);
}

static void run_norm(struct okv_graph *graph, const float *weight)
{
	graph->norm_weight = weight;
	if (graph->count > ROWS_ALONE) {
		okv_workers_run(graph->workers, norm_chunk, graph, divided_up(graph->count, ROWS_A_NORM));
		return;
	}
	for (uint32_t row = 0; row < graph->count; row++)
		norm_row(graph, row, row);
}

/* Rotates `count` values whose first is output `output` of a matrix of heads, for one position. */
static void rotate_outputs(const struct okv_graph *graph, float *x, uint32_t output, uint32_t count, uint32_t position)
{
	uint32_t head_dim = graph->model->shape.head_dim;

	while (count) {
		uint32_t dim = output % head_dim, run = head_dim - dim < count ? head_dim - dim : count;

		graph->kernels->rope(x, rope_at(graph, position) + dim, run);
		x += run;
		output += run;
		count -= run;
	}
}

static void store_kv(const struct okv_graph *graph, const float *x, uint32_t count, void *to)
{
	if (graph->layout.dtype == OKV_KV_F32)
		memcpy(to, x, count * sizeof(float));
	else
		graph->kernels->narrow(x, count, to);
}

/* Kraw or V of one row: `count` values from output `output` on, to the row's page. Returns where they went. */
static void *store_row(const struct okv_graph *graph, const struct okv_graph_row *row, bool is_value, const float *x,
		       uint32_t output, uint32_t count)
{
	const struct okv_model_shape *s = &graph->model->shape;
	uint32_t page_tokens = graph->layout.page_tokens;
	const struct okv_kv_page *page = &row->pages[row->position / page_tokens];
	size_t at = (size_t)(row->position % page_tokens) * s->kv_heads * s->head_dim + output;
	uint8_t *to = page->bytes + (2 * graph->layer + is_value) * graph->layout.segment_bytes + at * graph->element;

	store_kv(graph, x, count, to);
	return to;
}

/* K = round(RoPE(widen(Kraw))) of one row, scattered into [kv head][dimension][token]. */
static void store_rotated(const struct okv_graph *graph, const struct okv_graph_row *row, const void *raw,
			  uint32_t output, uint32_t count)
{
	uint32_t page_tokens = graph->layout.page_tokens;
	uint8_t *to = row->pages[row->position / page_tokens].rotated + graph->layer * graph->layout.segment_bytes +
		      ((size_t)output * page_tokens + row->position % page_tokens) * graph->element;
	float x[CHUNK_OUTPUTS];
	uint16_t halves[CHUNK_OUTPUTS];

	if (graph->layout.dtype == OKV_KV_F32) {
		memcpy(x, raw, count * sizeof(float));
		rotate_outputs(graph, x, output, count, row->position);
		for (uint32_t i = 0; i < count; i++)
			((float *)(void *)to)[(size_t)i * page_tokens] = x[i];
		return;
	}
	graph->kernels->widen(raw, count, x);
	rotate_outputs(graph, x, output, count, row->position);
	graph->kernels->narrow(x, count, halves);
	for (uint32_t i = 0; i < count; i++)
		((uint16_t *)(void *)to)[(size_t)i * page_tokens] = halves[i];
}

static void qkv_chunk(void *context, uint32_t chunk, unsigned thread)
{
	struct okv_graph *graph = context;
	size_t all = (size_t)graph->model->shape.heads * graph->model->shape.head_dim;
	float *out = thread_outputs(graph, thread, 0);
	struct piece p;

	for (uint32_t unit = 0; piece_of(graph, chunk, unit, graph->count, &p); unit++) {
		struct okv_activations x = activations(graph, graph->normed, graph->normed_sums, p.first_row, p.rows);
		uint32_t output = p.first_panel * OKV_PANEL;

		graph->kernels->linear(graph->cut.matrix[p.matrix], p.first_panel, p.panels, &x, out, NULL);
		for (uint32_t r = 0; r < p.rows; r++) {
			const struct okv_graph_row *row = &graph->rows[p.first_row + r];
			float *from = out + (size_t)r * p.panels * OKV_PANEL;

			if (p.matrix == 0) {
				rotate_outputs(graph, from, output, p.outputs, row->position);
				memcpy(graph->q + (p.first_row + r) * all + output, from, p.outputs * sizeof(float));
			} else if (p.matrix == 1) {
				void *raw = store_row(graph, row, false, from, output, p.outputs);

				store_rotated(graph, row, raw, output, p.outputs);
			} else {
				store_row(graph, row, true, from, output, p.outputs);
			}
		}
	}
}

static void attention_chunk(void *context, uint32_t chunk, unsigned thread)
{
	struct okv_graph *graph = context;
	const struct okv_model_shape *s = &graph->model->shape;
	struct tile tile = graph->tiles[chunk / s->kv_heads];
	uint32_t head = chunk % s->kv_heads, group = s->heads / s->kv_heads;
	const struct okv_graph_row *row = &graph->rows[tile.first];
	size_t width = (size_t)group * s->head_dim, block = head * width / OKV_BLOCK;
	size_t at = block * graph->rows_max + tile.first, page_tokens = graph->layout.page_tokens;
	struct okv_attention attention = {
		.pages = (const struct okv_attended_page *)row->pages,
		.is_f32 = graph->layout.dtype == OKV_KV_F32,
		.page_tokens = graph->layout.page_tokens,
		.head_dim = s->head_dim,
		.group = group,
		.keys_offset =
			graph->layer * graph->layout.segment_bytes + head * s->head_dim * page_tokens * graph->element,
		.values_offset = (2 * graph->layer + 1) * graph->layout.segment_bytes +
				 (size_t)head * s->head_dim * graph->element,
		.value_stride = (size_t)s->kv_heads * s->head_dim,
		.scale = graph->score_scale,
	};
	struct okv_queries queries = {
		.q = graph->q + (size_t)tile.first * s->heads * s->head_dim + head * width,
		.q_stride = (size_t)s->heads * s->head_dim,
		.count = tile.count,
		.visible = row->position + 1,
		.out = graph->attended + at * OKV_BLOCK,
		.row_stride = graph->rows_max,
		.sums = graph->attended_sums + at,
	};

	graph->kernels->attend(&attention, &queries, thread_outputs(graph, thread, 2));
}

/* A matrix whose result is added to the residual; cut.matrix[0] reads `attended` or `gated`. */
static void residual_chunk(struct okv_graph *graph, uint32_t chunk, unsigned thread, const float *from,
			   const float *sums)
{
	float *out = thread_outputs(graph, thread, 0);
	uint32_t width = graph->model->shape.width;
	struct piece p;

	for (uint32_t unit = 0; piece_of(graph, chunk, unit, graph->count, &p); unit++) {
		struct okv_activations x = activations(graph, from, sums, p.first_row, p.rows);

		graph->kernels->linear(graph->cut.matrix[0], p.first_panel, p.panels, &x, out,
				       thread_outputs(graph, thread, 1));
		for (uint32_t r = 0; r < p.rows; r++) {
			float *h = graph->h + (size_t)(p.first_row + r) * width + p.first_panel * OKV_PANEL;

			for (uint32_t i = 0; i < p.outputs; i++)
				h[i] += out[r * p.panels * OKV_PANEL + i];
		}
	}
}

static void o_chunk(void *context, uint32_t chunk, unsigned thread)
{
	struct okv_graph *graph = context;

	residual_chunk(graph, chunk, thread, graph->attended, graph->attended_sums);
}

static void down_chunk(void *context, uint32_t chunk, unsigned thread)
{
	struct okv_graph *graph = context;

	residual_chunk(graph, chunk, thread, graph->gated, graph->gated_sums);
}

/* The region is cut by the gate matrix; `up` has the same shape. */
static void gate_chunk(void *context, uint32_t chunk, unsigned thread)
{
	struct okv_graph *graph = context;
	float *gate = thread_outputs(graph, thread, 0), *up = thread_outputs(graph, thread, 1);
	const struct okv__layer *layer = layer_of(graph);
	struct piece p;

	for (uint32_t unit = 0; piece_of(graph, chunk, unit, graph->count, &p); unit++) {
		struct okv_activations x = activations(graph, graph->normed, graph->normed_sums, p.first_row, p.rows);
		size_t stride = (size_t)p.panels * OKV_PANEL, block = p.first_panel * OKV_PANEL / OKV_BLOCK;

		graph->kernels->linear(&layer->gate, p.first_panel, p.panels, &x, gate, NULL);
		graph->kernels->linear(&layer->up, p.first_panel, p.panels, &x, up, NULL);
		for (uint32_t r = 0; r < p.rows; r++) {
			size_t at = block * graph->rows_max + p.first_row + r;

			graph->kernels->swiglu(gate + r * stride, up + r * stride, p.outputs, graph->rows_max,
					       graph->gated + at * OKV_BLOCK, graph->gated_sums + at);
		}
	}
}

static void logits_chunk(void *context, uint32_t chunk, unsigned thread)
{
	struct okv_graph *graph = context;
	float *out = thread_outputs(graph, thread, 0);
	struct piece p;

	for (uint32_t unit = 0; piece_of(graph, chunk, unit, graph->wanting, &p); unit++) {
		struct okv_activations x = activations(graph, graph->normed, graph->normed_sums, p.first_row, p.rows);

		graph->kernels->linear(&graph->model->output, p.first_panel, p.panels, &x, out, NULL);
		for (uint32_t r = 0; r < p.rows; r++)
			memcpy(graph->logits + (size_t)(p.first_row + r) * graph->model->shape.vocabulary +
				       p.first_panel * OKV_PANEL,
			       out + (size_t)r * p.panels * OKV_PANEL, p.outputs * sizeof(float));
	}
}

/* ---- the step ---- */

/* Rows of one page table that follow each other share a tile; a tile has at most `most` rows. */
static void cut_tiles(struct okv_graph *graph, uint32_t most)
{
	graph->tile_count = 0;
	for (uint32_t row = 0; row < graph->count; row++) {
		struct tile *last = &graph->tiles[graph->tile_count - (graph->tile_count > 0)];
		bool follows = row > 0 && graph->rows[row].pages == graph->rows[row - 1].pages &&
			       graph->rows[row].position == graph->rows[row - 1].position + 1;

		if (follows && last->count < most)
			last->count++;
		else
			graph->tiles[graph->tile_count++] = (struct tile){.first = row, .count = 1};
	}
}

/* Tiles as large as the kernels take them, or half as large where so few chunks do not come out even: the 16 rows that
 * a restore leaves to compute would be 3 chunks for 2 threads. */
static void cut_attention(struct okv_graph *graph)
{
	unsigned threads = okv_workers_threads(graph->workers);
	uint32_t chunks, largest = 0;

	cut_tiles(graph, graph->tile_rows);
	chunks = graph->tile_count * graph->model->shape.kv_heads;
	if (chunks % threads == 0 || chunks >= threads * CHUNKS_A_THREAD)
		return;
	for (uint32_t i = 0; i < graph->tile_count; i++)
		if (graph->tiles[i].count > largest)
			largest = graph->tiles[i].count;
	if (largest >= ROWS_TO_HALVE)
		cut_tiles(graph, divided_up(largest, 2));
}

static void run_layer(struct okv_graph *graph)
{
	const struct okv__layer *layer = layer_of(graph);

	run_norm(graph, layer->attention_norm);
	run_linear(graph, graph->count, qkv_chunk, 3, (const struct okv_panels *[]){&layer->q, &layer->k, &layer->v});
	okv_workers_run(graph->workers, attention_chunk, graph, graph->tile_count * graph->model->shape.kv_heads);
	run_linear(graph, graph->count, o_chunk, 1, (const struct okv_panels *[]){&layer->o});
	run_norm(graph, layer->ffn_norm);
	run_linear(graph, graph->count, gate_chunk, 1, (const struct okv_panels *[]){&layer->gate});
	run_linear(graph, graph->count, down_chunk, 1, (const struct okv_panels *[]){&layer->down});
}

static void run_logits(struct okv_graph *graph)
{
	graph->norm_weight = graph->model->output_norm;
	for (uint32_t i = 0; i < graph->wanting; i++)
		norm_row(graph, graph->wanting_row[i], i);
	run_linear(graph, graph->wanting, logits_chunk, 1, (const struct okv_panels *[]){&graph->model->output});
}

void okv_graph_step(struct okv_graph *graph, const struct okv_graph_row *rows, uint32_t count, float *ret_logits)
{
	OKV_ASSERT(count >= 1 && count <= graph->rows_max);
	OKV_ASSERT(okv_float_mode_is_set());
	graph->rows = rows;
	graph->count = count;
	graph->logits = ret_logits;
	graph->wanting = 0;
	for (uint32_t row = 0; row < count; row++) {
		OKV_ASSERT(rows[row].token < graph->model->shape.vocabulary);
		OKV_ASSERT(rows[row].position < graph->model->shape.context);
		if (rows[row].wants_logits)
			graph->wanting_row[graph->wanting++] = row;
	}
	cut_attention(graph);
	okv_workers_run(graph->workers, embed_chunk, graph, divided_up(count, ROWS_A_NORM));
	for (graph->layer = 0; graph->layer < graph->model->shape.layers; graph->layer++)
		run_layer(graph);
	if (graph->wanting)
		run_logits(graph);
}

/* ---- restored pages ---- */

struct rotation {
	const struct okv_graph *graph;
	const struct okv_kv_page *pages;
	uint32_t position, tokens, units, units_a_chunk; /* a unit is one layer of one page */
};

static void rotate_unit(const struct rotation *rotation, uint32_t unit)
{
	const struct okv_graph *graph = rotation->graph;
	const struct okv_model_shape *s = &graph->model->shape;
	uint32_t page_tokens = graph->layout.page_tokens, index = unit / s->layers, layer = unit % s->layers;
	uint32_t left = rotation->tokens - index * page_tokens;
	const struct okv_kv_page *page = &rotation->pages[index];
	size_t head_bytes = s->head_dim * graph->element, segment = graph->layout.segment_bytes;

	for (uint32_t head = 0; head < s->kv_heads; head++)
		graph->kernels->rotate(page->bytes + 2 * layer * segment + head * head_bytes,
				       (size_t)s->kv_heads * s->head_dim, graph->layout.dtype == OKV_KV_F32,
				       rope_at(graph, rotation->position + index * page_tokens), s->head_dim,
				       left < page_tokens ? left : page_tokens, page_tokens,
				       page->rotated + layer * segment + head * head_bytes * page_tokens);
}

static void rotate_chunk(void *context, uint32_t chunk, unsigned thread)
{
	const struct rotation *rotation = context;
	uint32_t end = (chunk + 1) * rotation->units_a_chunk;

	(void)thread;
	for (uint32_t unit = chunk * rotation->units_a_chunk; unit < end && unit < rotation->units; unit++)
		rotate_unit(rotation, unit);
}

void okv_graph_rotate(struct okv_graph *graph, const struct okv_kv_page *pages, uint32_t position, uint32_t tokens)
{
	const struct okv_model_shape *s = &graph->model->shape;
	uint32_t chunks =
		okv_workers_threads(graph->workers) * 8; /* so that a thread that was held up costs an eighth */
	uint32_t units = divided_up(tokens, graph->layout.page_tokens) * s->layers;
	struct rotation rotation = {.graph = graph,
				    .pages = pages,
				    .position = position,
				    .tokens = tokens,
				    .units = units,
				    .units_a_chunk = divided_up(units, chunks)};

	OKV_ASSERT(tokens >= 1 && tokens <= s->context && position <= s->context - tokens);
	okv_workers_run(graph->workers, rotate_chunk, &rotation, divided_up(units, rotation.units_a_chunk));
}
