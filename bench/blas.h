/* SPDX-License-Identifier: MIT */
/* OpenBLAS as a yardstick, loaded at run time if the machine has it. */
#ifndef NL_BENCH_BLAS_H
#define NL_BENCH_BLAS_H

#include <stdbool.h>

/* cblas_sgemm with the C interface's integers. */
typedef void (*nl_sgemm)(int order, int transpose_a, int transpose_b, int m, int n, int k,
                         float alpha, const float *a, int lda, const float *b, int ldb, float beta,
                         float *c, int ldc);

/* On processors with AVX-512 OPENBLAS_CORETYPE is set to SkylakeX unless the user has set it:
 * versions up to 0.3.21 take newer processors for very old ones. NULL without OpenBLAS. core: the
 * kind of processor that its kernels are for. */
nl_sgemm nl_blas_load(int threads, const char **core);

#endif
