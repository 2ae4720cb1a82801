/*
 * RoPE tables in double precision with nothing but + - * / and fma, so that they do not depend on a C library. Each
 * function is accurate to about 1e-15, far below the float that is stored.
 */
#include <math.h>

#include "okv/kernels/kernels.h"

static const double ln2_high = 0x1.62e42fefa39efp-1, ln2_low = 0x1.abc9e3b39803fp-56;
static const double half_pi_high = 0x1.921fb54442d18p+0, half_pi_low = 0x1.1a62633145c07p-54;
static const double two_over_pi = 0x1.45f306dc9c883p-1;

/* Adding and subtracting it rounds |x| < 2^51 to the nearest integer. */
static const double rounder = 0x1.8p+52;

static double round_nearest(double x)
{
	return x + rounder - rounder;
}

/* ln x for finite x > 0: x = 2^e m, m in [2/3, 4/3]; ln m = 2 atanh((m - 1) / (m + 1)). */
static double own_log(double x)
{
	double e = 0, s, square, series = 0;

	while (x > 4.0 / 3) {
		x *= 0.5;
		e += 1;
	}
	while (x < 2.0 / 3) {
		x *= 2;
		e -= 1;
	}
	s = (x - 1) / (x + 1); /* |s| <= 1/5 */
	square = s * s;
	for (int n = 25; n >= 3; n -= 2)
		series = fma(series, square, 1.0 / n);
	series *= square;
	return fma(e, ln2_high, fma(e, ln2_low, 2 * fma(s, series, s)));
}

/* e^x for -700 < x < 700. */
static double own_exp(double x)
{
	double n = round_nearest(x / ln2_high), sum = 1, r;

	r = fma(-n, ln2_low, fma(-n, ln2_high, x));
	for (int i = 18; i >= 1; i--)
		sum = fma(sum, r / i, 1);
	for (int doublings = (int)n; doublings > 0; doublings--)
		sum *= 2;
	for (int halvings = -(int)n; halvings > 0; halvings--)
		sum *= 0.5;
	return sum;
}

/* sin and cos of 0 <= x < 2^30 (x - n * half_pi_high is exact there: both are multiples of 2^-53 below 1). */
static void own_sincos(double x, double *ret_sin, double *ret_cos)
{
	double n = round_nearest(x * two_over_pi), square, s = 0, c = 0, r;

	r = fma(-n, half_pi_low, fma(-n, half_pi_high, x));
	square = r * r;
	for (int i = 20; i >= 2; i -= 2) {
		c = fma(c, -square / (i * (i - 1)), 1);
		s = fma(s, -square / (i * (i + 1)), 1);
	}
	s *= r;
	switch ((uint64_t)n & 3) {
	case 0:
		*ret_sin = s;
		*ret_cos = c;
		break;
	case 1:
		*ret_sin = c;
		*ret_cos = -s;
		break;
	case 2:
		*ret_sin = -s;
		*ret_cos = -c;
		break;
	default:
		*ret_sin = -c;
		*ret_cos = s;
		break;
	}
}

void okv_rope_table(double theta, uint32_t rope_dims, uint32_t head_dim, uint32_t positions, float *ret_table)
{
	double log_theta = own_log(theta);

	for (uint32_t pair = 0; pair < head_dim / 2; pair++) {
		bool turns = pair < rope_dims / 2;
		double frequency = turns ? own_exp(-2.0 * pair / rope_dims * log_theta) : 0;

		for (uint32_t position = 0; position < positions; position++) {
			float *at = ret_table + (size_t)position * head_dim + 2 * pair;
			double s, c;

			own_sincos(position * frequency, &s, &c);
			at[0] = (float)c;
			at[1] = (float)s;
		}
	}
}
