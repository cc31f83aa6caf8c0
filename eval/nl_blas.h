/* SPDX-License-Identifier: MIT */
/* OpenBLAS and its LAPACK, loaded when statistics first need them: no other room has it in its process. */
#ifndef NL_BLAS_H
#define NL_BLAS_H

#include <cblas.h>

#include "nl_core.h"

/* LAPACK as Fortran has it: numbers by address, matrices by columns, the lengths of texts at the end. */
typedef struct nl_blas {
    __typeof__(cblas_dsyr) *dsyr;
    __typeof__(cblas_dsyrk) *dsyrk;
    __typeof__(cblas_dgemm) *dgemm;
    void (*dpstrf)(const char *uplo, const int *n, double *a, const int *lda, int *pivots,
                   int *rank, const double *tolerance, double *work, int *info, size_t);
    void (*dgesdd)(const char *jobz, const int *m, const int *n, double *a, const int *lda,
                   double *s, double *u, const int *ldu, double *vt, const int *ldvt, double *work,
                   const int *lwork, int *iwork, int *info, size_t);
    void (*set_threads)(int threads);
    char *(*core_name)(void);
} nl_blas;

/* *blas is the process's, and stays. Fails where the library is not there, or where RLIMIT_AS leaves no room for it and
 * its threads (it would not come back from there): NL_ERROR_DEVICE, NL_ERROR_MEMORY. */
nl_status nl_blas_load(nl_context *context, const nl_blas **blas) NL_MUST_CHECK;

/* Kernels that suit the processor better than those that OpenBLAS has chosen, as its OPENBLAS_CORETYPE names them; NULL
 * when it has chosen well, or is not there. It reads that variable when it is loaded. */
const char *nl_blas_better_kernels(void);

#endif
