/* SPDX-License-Identifier: MIT */
/*
 * E4M3, the 8-bit floating-point numbers of matrix products: sign, 4 bits of exponent, 3 of mantissa, from 2^-9 to 448,
 * no infinity. A row has one factor (nl_tensor.scale). It is a power of two, so that scaling rounds nothing: whoever
 * quantises a row on whatever device gets the same bits, and a product may be multiplied by it before or after any
 * rounding. Without branches, so that loops over these are vectorised.
 */
#ifndef NL_E4M3_H
#define NL_E4M3_H

#include <stdint.h>
#include <string.h>

static inline uint32_t nl_bits_of_float(float x)
{
    uint32_t bits;
    memcpy(&bits, &x, sizeof(bits));
    return bits;
}

static inline float nl_float_of_bits(uint32_t bits)
{
    float x;
    memcpy(&x, &bits, sizeof(x));
    return x;
}

static inline float nl_e4m3_to_float(uint8_t x)
{
    uint32_t sign = (uint32_t)(x & 0x80) << 24, magnitude = x & 0x7F;
    uint32_t normal = (magnitude << 20) + (120u << 23);
    uint32_t small = nl_bits_of_float((float)(int32_t)magnitude * 0x1p-9f);
    return nl_float_of_bits(sign | (magnitude == 0x7F ? 0x7FC00000
                                    : magnitude < 8   ? small
                                                      : normal));
}

/* Rounded to nearest even; beyond 448, infinity too, it is 448; NaN stays NaN. */
static inline uint8_t nl_float_to_e4m3(float x)
{
    uint32_t bits = nl_bits_of_float(x), magnitude = bits & 0x7FFFFFFF;
    uint32_t kept = magnitude > 0x43E00000 ? 0x43E00000 : magnitude; /* 448 */
    uint32_t normal = ((kept + 0x7FFFF + (kept >> 20 & 1)) >> 20) - (120u << 3);
    /* 2^14 has room for multiples of 2^-9 behind it. */
    uint32_t small = nl_bits_of_float(nl_float_of_bits(kept) + 0x1p14f) - 0x46800000;
    uint32_t code = kept < 0x3C800000 ? small : normal;
    return (uint8_t)((bits >> 24 & 0x80) | (magnitude > 0x7F800000 ? 0x7F : code));
}

/* The factor of a row whose elements are at most `largest`, and its inverse; both are NaN when that is not finite. */
static inline float nl_e4m3_scale(float largest, float *inverse)
{
    uint32_t bits = nl_bits_of_float(largest) & 0x7FFFFFFF;
    uint32_t exponent = (bits + 0x1FFFFF) >> 23; /* up where the mantissa passes that of 448 */
    exponent = exponent < 9 ? 1 : exponent - 8;
    int finite = bits < 0x7F800000;
    *inverse = nl_float_of_bits(finite ? (254 - exponent) << 23 : 0x7FC00000);
    return nl_float_of_bits(finite ? exponent << 23 : 0x7FC00000);
}

#endif
