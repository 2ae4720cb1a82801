/* IEEE binary16 in integers: what F16C does, for the reference kernels and for loading. */
#include <string.h>

#include "okv/kernels/kernels.h"

float okv_widen(uint16_t half)
{
	uint32_t sign = (uint32_t)(half & 0x8000) << 16;
	uint32_t exponent = (half >> 10) & 0x1f, fraction = half & 0x3ff, bits;
	float value;

	if (exponent == 0x1f) {
		bits = sign | 0x7f800000 | (fraction ? 0x400000 | fraction << 13 : 0);
	} else if (exponent) {
		bits = sign | (exponent + 112) << 23 | fraction << 13;
	} else {
		value = (float)fraction * 0x1p-24f;
		memcpy(&bits, &value, sizeof bits);
		bits |= sign;
	}
	memcpy(&value, &bits, sizeof value);
	return value;
}

uint16_t okv_narrow(float value)
{
	uint32_t bits, sign, magnitude;

	memcpy(&bits, &value, sizeof bits);
	sign = bits >> 16 & 0x8000;
	magnitude = bits & 0x7fffffff;
	if (magnitude > 0x7f800000) /* NaN: quiet, the upper bits of the payload */
		return (uint16_t)(sign | 0x7e00 | (magnitude >> 13 & 0x3ff));
	if (magnitude >= 0x477ff000) /* 65520 and above round to infinity */
		return (uint16_t)(sign | 0x7c00);
	if (magnitude < 0x38800000) { /* subnormal: the sum's rounding at 2^-24 is the one we want */
		float small;

		memcpy(&small, &magnitude, sizeof small);
		small += 0.5f;
		memcpy(&magnitude, &small, sizeof magnitude);
		return (uint16_t)(sign | (magnitude - 0x3f000000));
	}
	magnitude += 0xfff + (magnitude >> 13 & 1); /* ties to even */
	return (uint16_t)(sign | ((magnitude - 0x38000000) >> 13));
}
