/* SPDX-License-Identifier: MIT */
/* Sums over the rows of a matrix in two stages of fixed order: parts of rows, then the parts. */
#ifndef NL_CUDA_COLUMN_SUMS_CUH
#define NL_CUDA_COLUMN_SUMS_CUH

#include <initializer_list>

#include "cuda_common.cuh"

/* sums[c] += sum over the rows of x [rows, columns]; rows `stride` apart. Takes scratch memory. */
nl_status nl_cuda_column_sums(nl_device *device, const nl_tensor *x, float *sums);

/* Neighbouring columns and where their sums are added; NULL: nowhere. */
struct nl_column_run {
    float *sums;
    int64_t columns;
};
enum { NL_MAX_COLUMN_RUNS = 4 };

/* sums[c] += parts[0][c] + parts[1][c] + ... of each run, one run beside the other in parts [count, columns of all]. */
void nl_cuda_add_parts(cudaStream_t stream, const float *parts, int64_t count,
                       std::initializer_list<nl_column_run> runs);

#endif
