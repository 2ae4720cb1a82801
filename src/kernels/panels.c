/* Packing GGUF rows into panels, and reading one output back. panels.h draws the layout. */
#include <string.h>

#include "panels.h"

size_t okv_weight_row_bytes(enum okv_weight_type type, uint32_t inputs)
{
	size_t blocks = inputs / OKV_BLOCK;

	switch (type) {
	case OKV_WEIGHT_F32:
		return (size_t)inputs * 4;
	case OKV_WEIGHT_F16:
		return (size_t)inputs * 2;
	case OKV_WEIGHT_Q4_0:
		return blocks * 18;
	case OKV_WEIGHT_Q4_1:
		return blocks * 20;
	case OKV_WEIGHT_Q8_0:
		return blocks * 34;
	}
	return 0;
}

size_t okv_panels_bytes(enum okv_weight_type type, uint32_t outputs, uint32_t inputs)
{
	size_t panels = ((size_t)outputs + OKV_PANEL - 1) / OKV_PANEL;

	return panels * OKV_PANEL * okv_weight_row_bytes(type, inputs);
}

static uint16_t read_u16(const uint8_t *at)
{
	uint16_t value;

	memcpy(&value, at, sizeof value);
	return value;
}

/* The low nibbles of eight bytes as one word, the first byte's lowest. */
static uint32_t nibbles_of(uint64_t bytes)
{
	bytes &= 0x0f0f0f0f0f0f0f0f;
	bytes = (bytes | bytes >> 4) & 0x00ff00ff00ff00ff;
	bytes = (bytes | bytes >> 8) & 0x0000ffff0000ffff;
	return (uint32_t)(bytes | bytes >> 16);
}

/* GGUF: byte j holds input j in its low nibble and input j + 16 in its high one. */
static void pack_nibbles(const uint8_t *nibbles, uint32_t lane, uint8_t *values)
{
	for (uint32_t half = 0; half < 2; half++) {
		uint64_t bytes;
		uint32_t low, high;

		memcpy(&bytes, nibbles + (size_t)half * 8, sizeof bytes);
		low = nibbles_of(bytes);
		high = nibbles_of(bytes >> 4);
		memcpy(values + ((size_t)half * OKV_PANEL + lane) * sizeof low, &low, sizeof low);
		memcpy(values + ((half + 2ul) * OKV_PANEL + lane) * sizeof high, &high, sizeof high);
	}
}

static void pack_block(enum okv_weight_type type, const uint8_t *from, uint32_t lane, uint8_t *to)
{
	uint8_t *values = to + okv__values_offset(type);

	switch (type) {
	case OKV_WEIGHT_F32:
		for (uint32_t k = 0; k < OKV_BLOCK; k++)
			memcpy(values + (k * OKV_PANEL + lane) * 4, from + k * 4, 4);
		break;
	case OKV_WEIGHT_F16:
		for (uint32_t k = 0; k < OKV_BLOCK; k++)
			memcpy(values + (k * OKV_PANEL + lane) * 2, from + k * 2, 2);
		break;
	case OKV_WEIGHT_Q4_0:
		memcpy(to + lane * 2, from, 2);
		pack_nibbles(from + 2, lane, values);
		break;
	case OKV_WEIGHT_Q4_1:
		memcpy(to + lane * 2, from, 2);
		memcpy(to + (OKV_PANEL + lane) * 2, from + 2, 2);
		pack_nibbles(from + 4, lane, values);
		break;
	case OKV_WEIGHT_Q8_0:
		memcpy(to + lane * 2, from, 2);
		for (uint32_t k = 0; k < OKV_BLOCK; k++)
			values[k * OKV_PANEL + lane] = from[2 + k];
		break;
	}
}

void okv_panels_pack(const struct okv_panels *panels, const uint8_t *rows)
{
	size_t row_bytes = okv_weight_row_bytes(panels->type, panels->inputs);
	size_t block_bytes = okv_weight_row_bytes(panels->type, OKV_BLOCK);

	if (panels->outputs % OKV_PANEL) {
		size_t panel_bytes = OKV_PANEL * row_bytes;

		memset(panels->bytes + panels->outputs / OKV_PANEL * panel_bytes, 0, panel_bytes);
	}
	for (uint32_t output = 0; output < panels->outputs; output++) {
		const uint8_t *row = rows + output * row_bytes;
		uint8_t *to = panels->bytes + output / OKV_PANEL * OKV_PANEL * row_bytes;

		for (uint32_t block = 0; block < panels->inputs / OKV_BLOCK; block++)
			pack_block(panels->type, row + block * block_bytes, output % OKV_PANEL,
				   to + block * OKV_PANEL * block_bytes);
	}
}

void okv__block_read(const struct okv_panels *w, uint32_t output, uint32_t block, struct okv__block *ret_block)
{
	const uint8_t *bytes = okv__panel_block(w, output / OKV_PANEL, block);
	const uint8_t *values = bytes + okv__values_offset(w->type);
	uint32_t lane = output % OKV_PANEL;

	ret_block->is_scaled = w->type != OKV_WEIGHT_F32 && w->type != OKV_WEIGHT_F16;
	ret_block->has_minimum = w->type == OKV_WEIGHT_Q4_1;
	ret_block->d = ret_block->is_scaled ? okv_widen(read_u16(bytes + lane * 2)) : 1;
	ret_block->m = ret_block->has_minimum ? okv_widen(read_u16(bytes + (OKV_PANEL + lane) * 2)) : 0;

	for (uint32_t k = 0; k < OKV_BLOCK; k++) {
		size_t at = (size_t)k * OKV_PANEL + lane;
		int nibble = values[k / 8 * OKV_PANEL * 4 + lane * 4 + k % 8 / 2] >> 4 * (k % 2) & 15;

		switch (w->type) {
		case OKV_WEIGHT_F32:
			memcpy(&ret_block->value[k], values + at * 4, 4);
			break;
		case OKV_WEIGHT_F16:
			ret_block->value[k] = okv_widen(read_u16(values + at * 2));
			break;
		case OKV_WEIGHT_Q4_0:
			ret_block->value[k] = (float)(nibble - 8);
			break;
		case OKV_WEIGHT_Q4_1:
			ret_block->value[k] = (float)nibble;
			break;
		case OKV_WEIGHT_Q8_0:
			ret_block->value[k] = (float)(int8_t)values[at];
			break;
		}
	}
}

void okv_panels_row(const struct okv_panels *panels, uint32_t output, float *ret_row)
{
	for (uint32_t block = 0; block < panels->inputs / OKV_BLOCK; block++) {
		struct okv__block read;

		okv__block_read(panels, output, block, &read);
		for (uint32_t k = 0; k < OKV_BLOCK; k++) {
			float *to = &ret_row[block * OKV_BLOCK + k];

			/* q of Q4_1 has 4 bits and d 11, so the product is exact and one rounding remains. */
			*to = read.is_scaled ? read.d * read.value[k] + read.m : read.value[k];
		}
	}
}
