/*
 * Deriving rotated K: eight tokens by eight pairs at a time. Each token's pairs are rotated and rounded (two halves
 * make one 32-bit word), the 8 x 8 words are transposed so that a register holds one pair of eight tokens, and its even
 * and odd halves go to two rows of [dimension][token].
 */

/* Transposes the 8 x 8 words of r in place. */
INLINED void transpose8(__m256i r[8])
{
	__m256i a[8], b[8];

	UNROLLED
	for (int i = 0; i < 8; i += 2) {
		a[i] = _mm256_unpacklo_epi32(r[i], r[i + 1]);
		a[i + 1] = _mm256_unpackhi_epi32(r[i], r[i + 1]);
	}
	UNROLLED
	for (int i = 0; i < 8; i += 4) {
		b[i] = _mm256_unpacklo_epi64(a[i], a[i + 2]);
		b[i + 1] = _mm256_unpackhi_epi64(a[i], a[i + 2]);
		b[i + 2] = _mm256_unpacklo_epi64(a[i + 1], a[i + 3]);
		b[i + 3] = _mm256_unpackhi_epi64(a[i + 1], a[i + 3]);
	}
	UNROLLED
	for (int i = 0; i < 4; i++) {
		r[i] = _mm256_permute2x128_si256(b[i], b[i + 4], 0x20);
		r[i + 4] = _mm256_permute2x128_si256(b[i], b[i + 4], 0x31);
	}
}

/* Sixteen values (eight pairs) of one token, rotated and rounded. */
INLINED __m256i rotate_pairs(const uint16_t *raw, const float *table)
{
	uint16_t halves[16];

	UNROLLED
	for (unsigned i = 0; i < 16; i += LANES)
		v_store_halves(halves + i, v_rope(v_load_halves(raw + i), v_load(table + i)));
	return _mm256_loadu_si256((const __m256i *)(const void *)halves);
}

/* Eight tokens of one head. */
static void rotate8(const uint16_t *raw, size_t stride, const float *table, uint32_t head_dim, uint32_t page_tokens,
		    uint16_t *rotated)
{
	const __m256i split = _mm256_setr_epi8(0, 1, 4, 5, 8, 9, 12, 13, 2, 3, 6, 7, 10, 11, 14, 15, 0, 1, 4, 5, 8, 9,
					       12, 13, 2, 3, 6, 7, 10, 11, 14, 15);

	for (uint32_t i = 0; i < head_dim; i += 16) {
		__m256i r[8];

		UNROLLED
		for (unsigned t = 0; t < 8; t++)
			r[t] = rotate_pairs(raw + t * stride + i, table + (size_t)t * head_dim + i);
		transpose8(r);
		UNROLLED
		for (unsigned p = 0; p < 8; p++) {
			__m256i halves = _mm256_permute4x64_epi64(_mm256_shuffle_epi8(r[p], split), 0xd8);
			uint16_t *to = rotated + (size_t)(i + 2 * p) * page_tokens;

			_mm_storeu_si128((__m128i *)(void *)to, _mm256_castsi256_si128(halves));
			_mm_storeu_si128((__m128i *)(void *)(to + page_tokens), _mm256_extracti128_si256(halves, 1));
		}
	}
}

/* One token of one head, for what is left of eight and for f32. */
static void rotate1(const void *raw, size_t at, bool is_f32, const float *table, uint32_t head_dim,
		    uint32_t page_tokens, void *rotated, uint32_t token)
{
	for (uint32_t i = 0; i < head_dim; i += 16) {
		const uint16_t *from = (const uint16_t *)raw + at + i;
		const float *from_f32 = (const float *)raw + at + i;
		uint16_t halves[16];
		float values[16];

		for (unsigned j = 0; j < 16; j += LANES)
			v_store(values + j,
				v_rope(is_f32 ? v_load(from_f32 + j) : v_load_halves(from + j), v_load(table + i + j)));
		if (!is_f32)
			narrow(values, 16, halves);
		for (unsigned j = 0; j < 16; j++) {
			size_t to = (size_t)(i + j) * page_tokens + token;

			if (is_f32)
				((float *)rotated)[to] = values[j];
			else
				((uint16_t *)rotated)[to] = halves[j];
		}
	}
}

static void rotate(const void *raw, size_t stride, bool is_f32, const float *table, uint32_t head_dim, uint32_t tokens,
		   uint32_t page_tokens, void *rotated)
{
	uint32_t token = 0;

	for (; !is_f32 && token + 8 <= tokens; token += 8)
		rotate8((const uint16_t *)raw + token * stride, stride, table + (size_t)token * head_dim, head_dim,
			page_tokens, (uint16_t *)rotated + token);
	for (; token < tokens; token++)
		rotate1(raw, token * stride, is_f32, table + (size_t)token * head_dim, head_dim, page_tokens, rotated,
			token);
}
