/* Which table a processor can run, and the floating-point mode that all of them need. */
#include <cpuid.h>
#include <immintrin.h>
#include <string.h>

#include "attention_scratch.h"
#include "tables.h"

/* Round to nearest, no flush-to-zero, no denormals-are-zero, every exception masked. */
enum { MODE_MASK = 0xffc0, MODE = 0x1f80 };

void okv_float_mode_set(void)
{
	_mm_setcsr(MODE);
}

bool okv_float_mode_is_set(void)
{
	return (_mm_getcsr() & MODE_MASK) == MODE;
}

/* __builtin_cpu_supports also asks the operating system (XGETBV) for the registers; clang 14 does not know "f16c". */
static bool has_avx2(void)
{
	unsigned a, b, c = 0, d;

	return __builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma") && __get_cpuid(1, &a, &b, &c, &d) &&
	       c & bit_F16C;
}

static bool has_avx512(void)
{
	return has_avx2() && __builtin_cpu_supports("avx512f") && __builtin_cpu_supports("avx512bw") &&
	       __builtin_cpu_supports("avx512dq") && __builtin_cpu_supports("avx512vl");
}

const struct okv_kernels *okv_kernels_named(const char *name)
{
	if (!strcmp(name, "reference"))
		return &okv__kernels_reference;
	if (!strcmp(name, "avx2") && has_avx2())
		return &okv__kernels_avx2;
	if (!strcmp(name, "avx512") && has_avx512())
		return &okv__kernels_avx512;
	return NULL;
}

const struct okv_kernels *okv_kernels_best(void)
{
	const struct okv_kernels *best = okv_kernels_named("avx512");

	if (!best)
		best = okv_kernels_named("avx2");
	return best ? best : &okv__kernels_reference;
}

const char *okv_kernels_numerics_id(void)
{
	return "okv-f32-1";
}

size_t okv_attend_scratch(uint32_t head_dim, uint32_t visible_max)
{
	return okv__attend_scratch_floats(head_dim, visible_max) * sizeof(float);
}

float okv_score_scale(uint32_t head_dim)
{
	return 1 / _mm_cvtss_f32(_mm_sqrt_ss(_mm_set_ss((float)head_dim)));
}
