/* SPDX-License-Identifier: MIT */
/*
 * Vectors of floats as wide as the level's registers, in the vector extension of gcc and clang, for
 * the few loops that the compiler does not arrange well by itself: small products.
 */
#ifndef NL_VECTOR_H
#define NL_VECTOR_H

#include <stdbool.h>
#include <stdint.h>
#include <string.h>

#if defined(__AVX512F__)
enum { NL_LANES = 16, NL_TILE_ROWS = 8 };
#elif defined(__AVX__)
enum { NL_LANES = 8, NL_TILE_ROWS = 4 };
#elif defined(__aarch64__)
enum { NL_LANES = 4, NL_TILE_ROWS = 8 };
#else
enum { NL_LANES = 4, NL_TILE_ROWS = 4 };
#endif

/* Small products take columns in multiples of this, rows in multiples of NL_ROW_UNIT, at every
 * level. */
enum { NL_COLUMN_UNIT = 16, NL_ROW_UNIT = 8 };

#define NL_INLINE static inline __attribute__((always_inline))

typedef float nl_vec __attribute__((vector_size(NL_LANES * 4)));
typedef uint32_t nl_vec_bits __attribute__((vector_size(NL_LANES * 4)));
typedef uint16_t nl_vec_half __attribute__((vector_size(NL_LANES * 2)));

NL_INLINE nl_vec nl_load(const float *from)
{
    nl_vec x;
    memcpy(&x, from, sizeof(x));
    return x;
}

NL_INLINE void nl_store(float *to, nl_vec x)
{
    memcpy(to, &x, sizeof(x));
}

NL_INLINE nl_vec nl_load_bf16(const uint16_t *from)
{
    nl_vec_half half;
    memcpy(&half, from, sizeof(half));
    return (nl_vec)(__builtin_convertvector(half, nl_vec_bits) << 16);
}

/* The sum of the lanes, pairwise. */
NL_INLINE float nl_sum(nl_vec x)
{
    float lanes[NL_LANES];
    nl_store(lanes, x);
    for (int width = NL_LANES / 2; width > 0; width /= 2)
        for (int i = 0; i < width; i++)
            lanes[i] += lanes[i + width];
    return lanes[0];
}

NL_INLINE float nl_dot(const float *a, const float *b, int64_t count)
{
    nl_vec partial = {0};
    int64_t i = 0;
    for (; i + NL_LANES <= count; i += NL_LANES)
        partial += nl_load(a + i) * nl_load(b + i);
    float sum = nl_sum(partial);
    for (; i < count; i++)
        sum += a[i] * b[i];
    return sum;
}

/* NL_TILE_ROWS rows and `vectors` (a constant, 1 or 2) vectors of columns of c. */
NL_INLINE void nl_micro_product(int vectors, bool add, int64_t k, const float *a, int64_t a_row,
                                int64_t a_step, const float *b, int64_t b_row, float *c,
                                int64_t c_row)
{
    nl_vec sum[NL_TILE_ROWS][2] = {0};
    for (int64_t i = 0; i < k; i++) {
        nl_vec right[2] = {0};
        for (int v = 0; v < vectors; v++)
            right[v] = nl_load(b + i * b_row + v * NL_LANES);
        for (int row = 0; row < NL_TILE_ROWS; row++)
            for (int v = 0; v < vectors; v++)
                sum[row][v] += a[row * a_row + i * a_step] * right[v];
    }
    for (int row = 0; row < NL_TILE_ROWS; row++)
        for (int v = 0; v < vectors; v++) {
            float *to = c + row * c_row + v * NL_LANES;
            nl_store(to, add ? nl_load(to) + sum[row][v] : sum[row][v]);
        }
}

/* c [m, n] = or += sum over k of a(m, k) b [k, n], for operands that fit in the nearer caches. a(m,
 * k) = a[m * a_row + k * a_step]; m % NL_ROW_UNIT == 0, n % NL_COLUMN_UNIT == 0; `add` and the unit
 * stride, where there is one, are constants to the compiler. */
NL_INLINE void nl_small_product(bool add, int64_t m, int64_t n, int64_t k, const float *a,
                                int64_t a_row, int64_t a_step, const float *b, int64_t b_row,
                                float *c, int64_t c_row)
{
    int64_t column = 0;
    for (; column + 2 * NL_LANES <= n; column += 2 * NL_LANES)
        for (int64_t row = 0; row < m; row += NL_TILE_ROWS)
            nl_micro_product(2, add, k, a + row * a_row, a_row, a_step, b + column, b_row,
                             c + row * c_row + column, c_row);
    if (column < n)
        for (int64_t row = 0; row < m; row += NL_TILE_ROWS)
            nl_micro_product(1, add, k, a + row * a_row, a_row, a_step, b + column, b_row,
                             c + row * c_row + column, c_row);
}

#endif
