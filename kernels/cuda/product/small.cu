/* SPDX-License-Identifier: MIT */
/*
 * Products that are over before cuBLASLt would be there: loading it and its first question cost a fifth of a second, as
 * long as a picture takes. Those of a single picture of a small network, and by request (nl_product.alone) those of its
 * autoencoder, run here. bf16 factors, fp32 sums, on the tensor cores of every card.
 *
 * A block makes 64 x 64 elements of y; four warps have the sums of 32 x 32 each in registers, 32 a thread, so that two
 * fragments of x and two of w make eight products. Steps of 64 in depth of both tiles come through a ring of stages in shared
 * memory, rows of 128 bytes whose 16-byte units are swizzled by the row, so that eight rows fall into eight bank groups.
 */
#include "small.cuh"

#include "prim/cp_async.cuh"
#include "prim/mma.cuh"
#include "prim/shared_limit.cuh"

namespace
{

using namespace nl_prim;

enum {
    TILE = 64, /* rows, columns and depth of a step */
    THREADS = 128,
    STAGES = 4,
    TILE_BYTES = TILE * TILE * 2,
    SHARED_BYTES = STAGES * 2 * TILE_BYTES
};
/* Multiplications; a picture of S/2 with guidance has 512 tokens, 302 million in its largest product. */
const int64_t MOST_WORK = (int64_t)320 << 20;

struct small_params {
    const __nv_bfloat16 *x, *w;
    const void *bias; /* of y's type, or NULL */
    void *y;
    int64_t rows, x_stride, w_stride, y_stride;
    int columns, depth;
    bool gelu, relu;
};

/* A step of 64 rows of a matrix. What lies beyond the rows is any row, what lies beyond the depth is 0. */
__device__ __forceinline__ void load_rows(uint32_t to, const __nv_bfloat16 *from, int64_t stride,
                                          int64_t first, int64_t rows, int at, int depth)
{
    const int row = threadIdx.x / 8, unit = threadIdx.x % 8, column = at + unit * 8;
    to += row * 128 + ((unit ^ row % 8) << 4);
    from += min(column, depth - 8);
#pragma unroll
    for (int i = 0; i < TILE; i += THREADS / 8)
        cp_async(to + i * 128, from + min(first + row + i, rows - 1) * stride, column < depth);
}

__device__ __forceinline__ void put_pair(float *y, float2 x)
{
    y[0] = x.x, y[1] = x.y;
}
__device__ __forceinline__ void put_pair(__nv_bfloat16 *y, float2 x)
{
    *(__nv_bfloat162 *)y = __floats2bfloat162_rn(x.x, x.y);
}

template <typename T>
__global__ void __launch_bounds__(THREADS) small_product_kernel(const small_params p)
{
    extern __shared__ __align__(128) unsigned char shared[];
    const uint32_t stages = shared_address(shared);
    const int warp = threadIdx.x / 32, lane = threadIdx.x % 32;
    const int64_t first_row = (int64_t)blockIdx.x * TILE;
    const int first_column = blockIdx.y * TILE, steps = (p.depth + TILE - 1) / TILE;
    /* A warp's rows of both tiles, and within them the matrices of a fragment: of x rows 0-7, 8-15 at depth 0, then at
     * depth 8; of w columns 0-7 at depth 0, 8, then columns 8-15. */
    const int x_row = warp % 2 * 32 + lane % 16, w_row = warp / 2 * 32 + lane % 8 + lane / 16 * 8;
    const uint32_t x_at = x_row * 128 + ((lane / 16 ^ lane % 8) << 4);
    const uint32_t w_at = TILE_BYTES + w_row * 128 + ((lane / 8 % 2 ^ lane % 8) << 4);
    float sums[2][4][4] = {};

    auto load_step = [&](int step) {
        const uint32_t stage = stages + step % STAGES * 2 * TILE_BYTES;
        if (step < steps) {
            load_rows(stage, p.x, p.x_stride, first_row, p.rows, step * TILE, p.depth);
            load_rows(stage + TILE_BYTES, p.w, p.w_stride, first_column, p.columns, step * TILE,
                      p.depth);
        }
        cp_async_commit_group();
    };
    for (int step = 0; step < STAGES - 1; step++)
        load_step(step);
    for (int step = 0; step < steps; step++) {
        cp_async_wait_group<STAGES - 2>();
        __syncthreads();
        load_step(step + STAGES - 1);
        const uint32_t stage = stages + step % STAGES * 2 * TILE_BYTES;
#pragma unroll
        for (int k = 0; k < TILE / 16; k++) {
            uint32_t a[2][4], b[2][4];
#pragma unroll
            for (int i = 0; i < 2; i++) {
                ldmatrix_x4(a[i], (stage + x_at + i * 16 * 128) ^ k << 5);
                ldmatrix_x4(b[i], (stage + w_at + i * 16 * 128) ^ k << 5);
            }
#pragma unroll
            for (int m = 0; m < 2; m++)
#pragma unroll
                for (int n = 0; n < 4; n++)
                    mma_m16n8k16(sums[m][n], a[m], b[n / 2][n % 2 * 2], b[n / 2][n % 2 * 2 + 1]);
        }
    }
    cp_async_wait_group<0>();

#pragma unroll
    for (int n = 0; n < 4; n++) {
        const int column = first_column + warp / 2 * 32 + n * 8 + lane % 4 * 2;
        if (column >= p.columns)
            continue;
        const float left = p.bias ? nl_get((const T *)p.bias + column) : 0.f;
        const float right = p.bias ? nl_get((const T *)p.bias + column + 1) : 0.f;
#pragma unroll
        for (int m = 0; m < 2; m++)
#pragma unroll
            for (int half = 0; half < 2; half++) {
                const int64_t row = first_row + warp % 2 * 32 + m * 16 + half * 8 + lane / 4;
                float2 y =
                    make_float2(sums[m][n][2 * half] + left, sums[m][n][2 * half + 1] + right);
                if (p.gelu)
                    y = make_float2(nl_gelu<T>(y.x), nl_gelu<T>(y.y));
                if (p.relu)
                    y = make_float2(fmaxf(y.x, 0.f), fmaxf(y.y, 0.f));
                if (row < p.rows)
                    put_pair((T *)p.y + row * p.y_stride + column, y);
            }
    }
}

} // namespace

bool nl_small_product_serves(const nl_product *p, const void *x, const void *w, const void *y)
{
    const int64_t most_columns = (int64_t)65535 * TILE;
    return p->x_type == NL_BF16 && p->w_type == NL_BF16 && !p->w_by_depth && !p->x_by_depth &&
           !p->accumulate && p->aux == NL_AUX_NONE && p->alpha == 1.f && p->depth % 8 == 0 &&
           ((uintptr_t)x | (uintptr_t)w | (uintptr_t)y) % 16 == 0 && p->x_stride % 8 == 0 &&
           p->w_stride % 8 == 0 && p->columns % 2 == 0 && p->y_stride % 2 == 0 && p->depth >= 8 &&
           p->columns <= most_columns && p->depth <= INT32_MAX / 2 &&
           (p->alone || p->rows <= MOST_WORK / p->columns / p->depth);
}

cudaError_t nl_small_product_run(const nl_product *a, const void *x, const void *w,
                                 const void *bias, void *y, cudaStream_t stream)
{
    small_params p = {};
    p.x = (const __nv_bfloat16 *)x, p.w = (const __nv_bfloat16 *)w, p.bias = bias, p.y = y;
    p.rows = a->rows, p.columns = (int)a->columns, p.depth = (int)a->depth;
    p.x_stride = a->x_stride, p.w_stride = a->w_stride, p.y_stride = a->y_stride;
    p.gelu = a->gelu, p.relu = a->relu;
    if (!a->bias)
        p.bias = NULL;
    auto kernel =
        a->y_type == NL_BF16 ? small_product_kernel<__nv_bfloat16> : small_product_kernel<float>;
    cudaError_t error = nl_allow_shared(kernel, SHARED_BYTES);
    const dim3 grid((unsigned)((p.rows + TILE - 1) / TILE), (p.columns + TILE - 1) / TILE);
    if (error == cudaSuccess) {
        kernel<<<grid, THREADS, SHARED_BYTES, stream>>>(p);
        error = cudaGetLastError();
    }
    return error;
}
