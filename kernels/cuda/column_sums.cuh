/* Sums over the rows of a matrix in two stages of fixed order: parts of rows, then the parts. */
#ifndef NL_CUDA_COLUMN_SUMS_CUH
#define NL_CUDA_COLUMN_SUMS_CUH

#include "cuda_common.cuh"

/* sums[c] += sum over the rows of x [rows, columns]; rows `stride` apart. Takes scratch memory. */
nl_status nl_cuda_column_sums(nl_device *device, const nl_tensor *x, float *sums);

/* sums[c] += parts[0][c] + parts[1][c] + ... for parts [count, columns] that lie `part_stride` apart. */
void nl_cuda_add_parts(cudaStream_t stream, const float *parts, int64_t count, int64_t part_stride,
                       int64_t columns, float *sums);

#endif
