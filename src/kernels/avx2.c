/* The AVX2, FMA and F16C kernels: the vector code over the lanes of lanes_avx2.h. */
#include "okv/kernels/kernels.h"

#include "tables.h"

#include "lanes_avx2.h"

#include "vector_linear.h"

#include "vector_rows.h"

#include "vector_attention.h"

#include "vector_rotate.h"

const struct okv_kernels okv__kernels_avx2 = {
	.name = "avx2",
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
