/* SPDX-License-Identifier: MIT */
/*
 * softmax(q k^T scale) v on tensor cores, bf16 in and out, fp32 sums; never a T x T matrix.
 *
 * A block of four warps owns 64 M queries of one head and walks over tiles of 64 keys. In registers a warp has its 16 M
 * queries as A fragments, their scores with a tile and their sums o: the fp32 accumulators of the scores, as exponentials in
 * bf16, are exactly the A fragments of the product with v. In shared memory are the queries, whose place the result takes on
 * its way out, and two stages of k and v, one filled by cp.async while the other is worked on. Reading k and v from there is
 * what bounds a warp of 16 queries; with M = 2 every fragment serves twice (bench/results/attention.md), but
 * for heads beyond 72 that would not fit the registers. o and the sum of exponentials are rescaled to each new maximum
 * (online softmax); exponentials are base 2, the scale folded in.
 */
#ifndef NL_SOFTMAX_FLASH_CUH
#define NL_SOFTMAX_FLASH_CUH

#include <utility>

#include "prim/convert.cuh"
#include "prim/cp_async.cuh"
#include "prim/mma.cuh"
#include "prim/reduce.cuh"

struct nl_flash_problem {
    const __nv_bfloat16 *q, *k, *v;
    __nv_bfloat16 *out;
    float *lse; /* [B h, T] or NULL */
    int64_t stride, out_stride;
    int tokens, heads, head_size;
    float scale_log2; /* scale * log2(e) */
};

namespace nl_flash
{

using namespace nl_prim;

constexpr int TILE = 64, THREADS = 128;

/* use(a constant: the head size), if it is one of those that have kernels. */
template <int... SIZES, typename Use>
static bool for_head_size_of(std::integer_sequence<int, SIZES...>, int64_t head_size, Use use)
{
    return ((head_size == SIZES && (use(std::integral_constant<int, SIZES>()), true)) || ...);
}
template <typename Use> static bool for_head_size(int64_t head_size, Use use)
{
    return for_head_size_of(std::integer_sequence<int, 32, 48, 64, 72, 80, 96, 128>(), head_size,
                            use);
}

template <int D> struct shape {
    static constexpr int DP = (D + 15) / 16 * 16, KT = DP / 16, NT = D / 8;
    static constexpr int STRIDE = DP / 8 % 2 ? DP : DP + 8; /* odd number of 16-byte units */
    static constexpr int ELEMENTS = TILE * STRIDE;
    static constexpr int shared_bytes(int m) /* q, two stages of k and v */
    {
        return 2 * ELEMENTS * (m + 4);
    }
};

template <int D, int ROWS = TILE>
__device__ __forceinline__ void load_tile(__nv_bfloat16 *tile, const __nv_bfloat16 *from,
                                          int64_t stride, int first, int tokens)
{
    constexpr int CHUNKS = D / 8;
    for (int i = threadIdx.x; i < ROWS * CHUNKS; i += THREADS) {
        const int row = i / CHUNKS, chunk = i % CHUNKS;
        const bool valid = first + row < tokens;
        cp_async(shared_address(tile + row * shape<D>::STRIDE + chunk * 8),
                 from + (valid ? first + row : 0) * stride + chunk * 8, valid);
    }
}

/* Scores of 16 queries with keys from `first` on: -infinity where there is no such key, so that it has no weight. */
template <int N> __device__ __forceinline__ void leave_out(float (&s)[N][4], int first, int tokens)
{
    if (first + N * 8 <= tokens)
        return;
#pragma unroll
    for (int n = 0; n < N; n++)
#pragma unroll
        for (int i = 0; i < 4; i++)
            if (first + n * 8 + (int)threadIdx.x % 4 * 2 + i % 2 >= tokens)
                s[n][i] = -INFINITY;
}

/* One tile of 64 keys for 16 queries: scores to exponentials, the sums so far to the new maximum. */
template <int NT>
__device__ __forceinline__ void online_softmax(float (&s)[TILE / 8][4], float (&acc)[NT][4],
                                               float (&row_max)[2], float (&row_sum)[2],
                                               float scale)
{
#pragma unroll
    for (int r = 0; r < 2; r++) { /* rows lane / 4 and lane / 4 + 8 */
        float high = row_max[r];
#pragma unroll
        for (int n = 0; n < TILE / 8; n++)
            high = fmaxf(high, fmaxf(s[n][2 * r], s[n][2 * r + 1]));
        high = nl_quad_max(high);
        const float shift = high * scale, correction = exp2_approx(row_max[r] * scale - shift);
        row_max[r] = high;
        float sum = 0.f;
#pragma unroll
        for (int n = 0; n < TILE / 8; n++)
#pragma unroll
            for (int i = 2 * r; i < 2 * r + 2; i++) {
                s[n][i] = exp2_approx(fmaf(s[n][i], scale, -shift));
                sum += s[n][i];
            }
        row_sum[r] = fmaf(row_sum[r], correction, sum);
#pragma unroll
        for (int n = 0; n < NT; n++)
            acc[n][2 * r] *= correction, acc[n][2 * r + 1] *= correction;
    }
}

/* grid (tiles of 64 M queries, heads, batch) */
template <int D, int M> __global__ void __launch_bounds__(THREADS) kernel(const nl_flash_problem p)
{
    using S = shape<D>;
    extern __shared__ __align__(16) unsigned char shared[];
    __nv_bfloat16 *qt = (__nv_bfloat16 *)shared, *tiles = qt + M * S::ELEMENTS;
    const int warp = threadIdx.x / 32, lane = threadIdx.x % 32;
    const int64_t offset = blockIdx.z * (int64_t)p.tokens * p.stride + blockIdx.y * D;
    const int first = blockIdx.x * M * TILE, count = (p.tokens + TILE - 1) / TILE;
    __nv_bfloat16 *rows = qt + warp * M * 16 * S::STRIDE; /* the warp's own queries */

    if (S::DP > D) /* dimensions beyond the head are zeros in all tiles */
        for (int i = threadIdx.x; i < (M + 4) * TILE; i += THREADS)
            *(uint4 *)(qt + i * S::STRIDE + D) = make_uint4(0, 0, 0, 0);
    auto fetch = [&](int tile) {
        if (tile < count) {
            __nv_bfloat16 *stage = tiles + tile % 2 * 2 * S::ELEMENTS;
            load_tile<D>(stage, p.k + offset, p.stride, tile * TILE, p.tokens);
            load_tile<D>(stage + S::ELEMENTS, p.v + offset, p.stride, tile * TILE, p.tokens);
        }
        cp_async_commit_group();
    };
    load_tile<D, M * TILE>(qt, p.q + offset, p.stride, first, p.tokens);
    fetch(0);

    uint32_t q[M][S::KT][4];
    float acc[M][S::NT][4] = {}, row_max[M][2], row_sum[M][2] = {};
#pragma unroll
    for (int m = 0; m < M; m++)
        row_max[m][0] = row_max[m][1] = -INFINITY;
    for (int tile = 0; tile < count; tile++) {
        __syncthreads();
        fetch(tile + 1);
        cp_async_wait_group<1>();
        __syncthreads();
        const __nv_bfloat16 *kt = tiles + tile % 2 * 2 * S::ELEMENTS, *vt = kt + S::ELEMENTS;
        if (tile == 0)
#pragma unroll
            for (int m = 0; m < M; m++)
#pragma unroll
                for (int c = 0; c < S::KT; c++)
                    ldmatrix_x4(q[m][c], shared_address(rows + (m * 16 + lane % 16) * S::STRIDE +
                                                        c * 16 + lane / 16 * 8));

        float s[M][TILE / 8][4] = {};
#pragma unroll
        for (int c = 0; c < S::KT; c++)
#pragma unroll
            for (int n = 0; n < TILE / 8; n += 2) {
                uint32_t
                    b[4]; /* keys n 8 .. + 7 of dimensions 0-7, 8-15, then keys (n + 1) 8 .. + 7 */
                ldmatrix_x4(b, shared_address(kt + (n * 8 + lane / 16 * 8 + lane % 8) * S::STRIDE +
                                              c * 16 + lane / 8 % 2 * 8));
#pragma unroll
                for (int m = 0; m < M; m++) {
                    mma_m16n8k16(s[m][n], q[m][c], b[0], b[1]);
                    mma_m16n8k16(s[m][n + 1], q[m][c], b[2], b[3]);
                }
            }
#pragma unroll
        for (int m = 0; m < M; m++) {
            leave_out(s[m], tile * TILE, p.tokens);
            online_softmax<S::NT>(s[m], acc[m], row_max[m], row_sum[m], p.scale_log2);
        }
#pragma unroll
        for (int c = 0; c < TILE / 16; c++) {
            uint32_t a[M][4];
#pragma unroll
            for (int m = 0; m < M; m++)
#pragma unroll
                for (int i = 0; i < 4; i++)
                    a[m][i] = pack_bf16x2(s[m][2 * c + i / 2][i % 2 * 2],
                                          s[m][2 * c + i / 2][i % 2 * 2 + 1]);
#pragma unroll
            for (int n = 0; n < S::NT; n += 2) {
                uint32_t b[4];
                load_b_fragments<S::NT, S::STRIDE>(b, vt + c * 16 * S::STRIDE, n);
#pragma unroll
                for (int m = 0; m < M; m++) {
                    mma_m16n8k16(acc[m][n], a[m], b[0], b[1]);
                    if (n + 1 < S::NT)
                        mma_m16n8k16(acc[m][n + 1], a[m], b[2], b[3]);
                }
            }
        }
    }
    cp_async_wait_group<0>();
    __syncwarp(); /* with one tile of keys no barrier has come since the queries were read, whose place the result takes */
#pragma unroll
    for (int m = 0; m < M; m++)
#pragma unroll
        for (int r = 0; r < 2; r++) {
            const float sum = nl_quad_sum(row_sum[m][r]);
            const int row = m * 16 + lane / 4 + r * 8, token = first + warp * M * 16 + row;
            if (p.lse && token < p.tokens && lane % 4 == 0)
                p.lse[((int64_t)blockIdx.z * p.heads + blockIdx.y) * p.tokens + token] =
                    0.6931471805599453f * (row_max[m][r] * p.scale_log2 + log2f(sum));
            const float inverse = 1.f / sum;
#pragma unroll
            for (int n = 0; n < S::NT; n++)
                *(uint32_t *)(rows + row * S::STRIDE + n * 8 + lane % 4 * 2) =
                    pack_bf16x2(acc[m][n][2 * r] * inverse, acc[m][n][2 * r + 1] * inverse);
        }
    __syncwarp();
    constexpr int CHUNKS = D / 8;
    __nv_bfloat16 *out = p.out + blockIdx.z * (int64_t)p.tokens * p.out_stride + blockIdx.y * D;
    for (int i = lane; i < M * 16 * CHUNKS; i += 32) {
        const int row = i / CHUNKS, chunk = i % CHUNKS, token = first + warp * M * 16 + row;
        if (token < p.tokens)
            *(uint4 *)(out + token * p.out_stride + chunk * 8) =
                *(const uint4 *)(rows + row * S::STRIDE + chunk * 8);
    }
}

} // namespace nl_flash

#endif
