/* SPDX-License-Identifier: MIT */
/* A block adds to a tile of 64 x 64 on or above the diagonal, a thread to 4 x 4 elements of it, which it keeps in registers
 * while the rows come by through shared memory. */
#include "cuda_common.cuh"

enum { TILE = 64, ROWS = 16, SIDE = 16, EACH = TILE / SIDE };

/* Columns [first, first + TILE) of ROWS rows, from the shift; zeros beyond the matrix. */
__device__ __forceinline__ void load_tile(const float *x, const float *shift, int64_t rows,
                                          int64_t size, int64_t first, double (*tile)[TILE])
{
    const int64_t column = first + threadIdx.x % TILE;
    for (int row = threadIdx.x / TILE; row < ROWS; row += SIDE * SIDE / TILE)
        tile[row][threadIdx.x % TILE] =
            row < rows && column < size ? (double)x[row * size + column] - shift[column] : 0.;
}

/* Calls body with i, j and where the thread's element (i, j) lies, if that is on or above the diagonal of the matrix. */
template <typename Body>
__device__ __forceinline__ void for_elements(int64_t first_row, int64_t first_column, int64_t size,
                                             Body body)
{
#pragma unroll
    for (int i = 0; i < EACH; i++)
#pragma unroll
        for (int j = 0; j < EACH; j++) {
            const int64_t row = first_row + i * SIDE, column = first_column + j * SIDE;
            if (row <= column && column < size)
                body(i, j, row * size + column);
        }
}

__global__ void __launch_bounds__(SIDE *SIDE)
    scatter_kernel(const float *x, const float *shift, int64_t rows, int64_t size, double *scatter,
                   double *sums)
{
    __shared__ double left[ROWS][TILE], right[ROWS][TILE];
    if (blockIdx.x < blockIdx.y)
        return;
    const int64_t first_row = blockIdx.y * (int64_t)TILE, first_column = blockIdx.x * (int64_t)TILE;
    const int down = threadIdx.x / SIDE, across = threadIdx.x % SIDE;
    const int64_t own = first_row + threadIdx.x; /* whose sum this thread makes */
    const bool adds = blockIdx.x == blockIdx.y && threadIdx.x < TILE && own < size;
    double kept[EACH][EACH] = {}, sum = adds ? sums[own] : 0.;
    for_elements(first_row + down, first_column + across, size,
                 [&](int i, int j, int64_t at) { kept[i][j] = scatter[at]; });
    for (int64_t done = 0; done < rows; done += ROWS) {
        load_tile(x + done * size, shift, rows - done, size, first_row, left);
        load_tile(x + done * size, shift, rows - done, size, first_column, right);
        __syncthreads();
#pragma unroll
        for (int row = 0; row < ROWS; row++) {
            double a[EACH], b[EACH];
#pragma unroll
            for (int i = 0; i < EACH; i++) {
                a[i] = left[row][down + i * SIDE];
                b[i] = right[row][across + i * SIDE];
            }
#pragma unroll
            for (int i = 0; i < EACH; i++)
#pragma unroll
                for (int j = 0; j < EACH; j++)
                    kept[i][j] += a[i] * b[j];
            if (adds)
                sum += left[row][threadIdx.x];
        }
        __syncthreads();
    }
    for_elements(first_row + down, first_column + across, size,
                 [&](int i, int j, int64_t at) { scatter[at] = kept[i][j]; });
    if (adds)
        sums[own] = sum;
}

extern "C" nl_status nl_cuda_scatter_matrix(nl_device *device, const nl_scatter_matrix_args *a)
{
    const int64_t rows = a->x.shape[0], size = a->x.shape[1];
    const unsigned tiles = nl_blocks(size, TILE);
    if (tiles > 65535)
        return nl_fail(device->context, NL_ERROR_INTERNAL,
                       "scatter_matrix: %lld columns are too many", (long long)size);
    scatter_kernel<<<dim3(tiles, tiles), SIDE * SIDE, 0, nl_cuda_of(device)->stream>>>(
        (const float *)a->x.data, (const float *)a->shift.data, rows, size,
        (double *)a->scatter.data, (double *)a->sums.data);
    return NL_CUDA_LAUNCHED(device, "scatter_matrix");
}
