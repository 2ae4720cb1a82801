/*
 * The constants of our e^x, one place for the reference and the vector code. The steps are in docs/numerics.md:
 * n = nearest(x log2 e), r = x - n ln 2 in two fma, a polynomial of degree 6 in r, times 2^n. Below the least argument
 * the result is 0; above the greatest it stays e^88. Relative error 2e-7 at most.
 */
#ifndef OKV_KERNELS_EXPONENTIAL_H
#define OKV_KERNELS_EXPONENTIAL_H

#define OKV__EXP_LEAST	  -87.0f
#define OKV__EXP_GREATEST 88.0f
#define OKV__EXP_ROUNDER  0x1.8p+23f /* adding it leaves nearest(x log2 e) in the low bits of the sum */
#define OKV__EXP_LOG2E	  0x1.715476p+0f
#define OKV__EXP_LN2_HIGH 0x1.63p-1f /* 355 / 512: n times it is exact */
#define OKV__EXP_LN2_LOW  -0x1.bd0106p-13f
/* Least squares of (e^r - 1 - r) / r^2 over 2000 Chebyshev nodes of |r| <= 0.3473, rounded to float. */
#define OKV__EXP_C2 0x1.000000p-1f
#define OKV__EXP_C3 0x1.5554dcp-3f
#define OKV__EXP_C4 0x1.5554e8p-5f
#define OKV__EXP_C5 0x1.120c68p-7f
#define OKV__EXP_C6 0x1.6d444ep-10f

#endif
