/* SPDX-License-Identifier: MIT */
/* bf16 and f16 to float and back, rounded to nearest even, one number or many. */
#include <math.h>

#include "nl_e4m3.h"
#include "nl_tensor.h"

float nl_bf16_to_float(uint16_t x)
{
    return nl_float_of_bits((uint32_t)x << 16);
}

uint16_t nl_float_to_bf16(float x)
{
    uint32_t bits = nl_bits_of_float(x);
    uint32_t quiet = bits >> 16 | 0x40; /* of NaN: rounding up could turn it into infinity */
    uint32_t rounded = (bits + 0x7FFF + (bits >> 16 & 1)) >> 16;
    return (uint16_t)(x != x ? quiet
                             : rounded); /* without a branch: loops over it are vectorised */
}

float nl_f16_to_float(uint16_t x)
{
    uint32_t sign = (uint32_t)(x & 0x8000) << 16;
    uint32_t exponent = x >> 10 & 31, mantissa = x & 1023;
    if (exponent == 31)
        return nl_float_of_bits(sign | 0x7F800000 | mantissa << 13);
    if (exponent == 0) { /* zero or subnormal: mantissa 2^-24 */
        float magnitude = (float)mantissa * 0x1p-24f;
        return sign ? -magnitude : magnitude;
    }
    return nl_float_of_bits(sign | (exponent + 112) << 23 | mantissa << 13);
}

uint16_t nl_float_to_f16(float x)
{
    uint32_t bits = nl_bits_of_float(x);
    uint16_t sign = (uint16_t)(bits >> 16 & 0x8000);
    uint32_t magnitude = bits & 0x7FFFFFFF;
    if (magnitude > 0x7F800000)
        return sign | 0x7E00;
    if (magnitude >= 0x477FF000) /* 65520 and more round to infinity */
        return sign | 0x7C00;
    if (magnitude < 0x38800000) /* below 2^-14: a multiple of 2^-24, ties to even */
        return sign | (uint16_t)nearbyintf(nl_float_of_bits(magnitude) * 0x1p24f);
    magnitude += 0xFFF + (magnitude >> 13 & 1);
    return sign | (uint16_t)((magnitude >> 13) - (112 << 10));
}

#define CONVERT(type, expression)                                                                  \
    for (int64_t i = 0; i < count; i++) {                                                          \
        type x;                                                                                    \
        memcpy(&x, (const char *)from + (size_t)i * sizeof(x), sizeof(x));                         \
        to[i] = (expression);                                                                      \
    }                                                                                              \
    return

void nl_convert_to_float(const void *from, nl_dtype dtype, int64_t count, float *to)
{
    switch (dtype) {
    case NL_F32:
        if (count > 0)
            memcpy(to, from, (size_t)count * sizeof(float));
        return;
    case NL_BF16:
        CONVERT(uint16_t, nl_bf16_to_float(x));
    case NL_F16:
        CONVERT(uint16_t, nl_f16_to_float(x));
    case NL_F64:
        CONVERT(double, (float)x);
    case NL_I8:
        CONVERT(int8_t, (float)x);
    case NL_U8:
        CONVERT(uint8_t, (float)x);
    case NL_BOOL:
        CONVERT(uint8_t, x != 0);
    case NL_I16:
        CONVERT(int16_t, (float)x);
    case NL_I32:
        CONVERT(int32_t, (float)x);
    case NL_I64:
        CONVERT(int64_t, (float)x);
    case NL_F8:
        CONVERT(uint8_t, nl_e4m3_to_float(x));
    case NL_DTYPE_COUNT:
        return;
    }
}

#undef CONVERT
#define CONVERT(type, expression)                                                                  \
    for (int64_t i = 0; i < count; i++) {                                                          \
        float x = from[i];                                                                         \
        type y = (expression);                                                                     \
        memcpy((char *)to + (size_t)i * sizeof(y), &y, sizeof(y));                                 \
    }                                                                                              \
    return

void nl_convert_from_float(const float *from, int64_t count, nl_dtype dtype, void *to)
{
    switch (dtype) {
    case NL_BF16:
        CONVERT(uint16_t, nl_float_to_bf16(x));
    case NL_F16:
        CONVERT(uint16_t, nl_float_to_f16(x));
    case NL_F64:
        CONVERT(double, (double)x);
    default:
        if (count > 0)
            memcpy(to, from, (size_t)count * sizeof(float));
    }
}

void nl_quantize(const float *x, int64_t rows, int64_t columns, uint8_t *y, float *scale)
{
    for (int64_t row = 0; row < rows; row++, x += columns, y += columns) {
        uint32_t largest = 0; /* as bits, which order numbers without a sign; NaN is above all */
        float inverse;
        for (int64_t i = 0; i < columns; i++) {
            uint32_t magnitude = nl_bits_of_float(x[i]) & 0x7FFFFFFF;
            largest = magnitude > largest ? magnitude : largest;
        }
        scale[row] = nl_e4m3_scale(nl_float_of_bits(largest), &inverse);
        for (int64_t i = 0; i < columns; i++)
            y[i] = nl_float_to_e4m3(x[i] * inverse);
    }
}

void nl_dequantize(const uint8_t *y, const float *scale, int64_t rows, int64_t columns, float *x)
{
    for (int64_t row = 0; row < rows; row++)
        for (int64_t i = 0; i < columns; i++)
            x[row * columns + i] = scale[row] * nl_e4m3_to_float(y[row * columns + i]);
}
