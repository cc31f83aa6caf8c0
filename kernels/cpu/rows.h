/* SPDX-License-Identifier: MIT */
/* Loops over rows of floats whose bits do not depend on where they are called. */
#ifndef NL_CPU_ROWS_H
#define NL_CPU_ROWS_H

#include <stdint.h>

/* Copies that a compiler makes of a loop may sum in another order: these functions stay the only one. */
#define NL_ONE_COPY __attribute__((noinline, unused)) static

/* to [count] += factor from */
NL_ONE_COPY void nl_add_scaled(float factor, const float *from, int64_t count, float *restrict to)
{
#pragma omp simd
    for (int64_t i = 0; i < count; i++)
        to[i] += factor * from[i];
}

#endif
