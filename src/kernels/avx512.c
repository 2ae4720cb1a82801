/* The AVX-512 kernels: the vector code over the lanes of lanes_avx512.h. */
#include "okv/kernels/kernels.h"

#include "tables.h"

#include "lanes_avx512.h"

#include "vector_linear.h"

#include "vector_rows.h"

#include "vector_attention.h"

#include "vector_rotate.h"

const struct okv_kernels okv__kernels_avx512 = {
	.name = "avx512",
	.linear = linear,
	.rms_norm = rms_norm,
	.swiglu = swiglu,
	.exponential = exponential,
	.rope = rope,
	.widen = widen,
	.narrow = narrow,
	.rotate = rotate,
	.attend = attend,
};
