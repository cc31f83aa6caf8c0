/* SPDX-License-Identifier: MIT */
/* Whether OpenBLAS took this processor for an old one, and which kernels it should use instead. */
#include "nl_statistics.h"

#include <cblas.h>
#include <string.h>

/* Prescott is what OpenBLAS takes a processor for that it does not know. */
const char *nl_blas_better_kernels(void)
{
#ifdef __x86_64__
    if (strcmp(openblas_get_corename(), "Prescott"))
        return NULL;
    if (__builtin_cpu_supports("avx512f") && __builtin_cpu_supports("avx512vl") &&
        __builtin_cpu_supports("avx512bw") && __builtin_cpu_supports("avx512dq"))
        return "SkylakeX";
    if (__builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma"))
        return "Haswell";
#endif
    return NULL;
}
