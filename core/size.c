/* SPDX-License-Identifier: MIT */
/* Sums and products of sizes that say when they overflow. */
#include "nl_core.h"

bool nl_mul_size(int64_t a, int64_t b, int64_t *product)
{
    return a >= 0 && b >= 0 && !__builtin_mul_overflow(a, b, product);
}

bool nl_add_size(int64_t a, int64_t b, int64_t *sum)
{
    return a >= 0 && b >= 0 && !__builtin_add_overflow(a, b, sum);
}
