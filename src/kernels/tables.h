/* The three ops tables; kernels_choose.c decides which one a caller may have. */
#ifndef OKV_KERNELS_TABLES_H
#define OKV_KERNELS_TABLES_H

#include "okv/kernels/kernels.h"

extern const struct okv_kernels okv__kernels_reference;
extern const struct okv_kernels okv__kernels_avx2;
extern const struct okv_kernels okv__kernels_avx512;

#endif
