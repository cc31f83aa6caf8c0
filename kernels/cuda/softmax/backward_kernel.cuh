/* SPDX-License-Identifier: MIT */
/*
 * Softmax attention backward on tensor cores, bf16 in and out, fp32 sums; never a T x T matrix. With P the
 * probabilities, from the saved log of the sum of exponentials, and delta_t = do_t . o_t:
 *
 *   dv = P^T do,  dS = P (do v^T - delta),  dq = scale dS k,  dk = scale dS^T q
 *
 * Two kernels, so that no sum needs atomics: a block owns 64 queries and walks over keys (dq, and delta for the other
 * one), or owns 64 keys and walks over queries (dk, dv). A warp owns 16 of them; scores of 32 opposite rows at a time stay
 * in registers, where their fp32 accumulators are the A fragments of the next product, beside the fragments of its own rows
 * and the sums of their gradients. In shared memory are the block's own two tiles (q and do, or k and v), read once, and two
 * stages of the opposite two. More than 32 rows at a time would not leave registers for three blocks a multiprocessor. Rows
 * that are not there are zeros; such a query adds zeros, such a key has no weight (exp(0 - log sum) may be infinite).
 */
#ifndef NL_SOFTMAX_BACKWARD_CUH
#define NL_SOFTMAX_BACKWARD_CUH

#include "forward_kernel.cuh"

struct nl_flash_gradient {
    const __nv_bfloat16 *q, *k, *v, *out, *dout;
    __nv_bfloat16 *dq, *dk, *dv;
    const float *lse; /* [B h, T] */
    float *delta;     /* [B h, T], workspace */
    int64_t stride, out_stride, gradient_stride;
    int tokens, heads, head_size;
    float scale;
};

namespace nl_flash_gradients
{

using namespace nl_flash;

constexpr int STEP = 32; /* opposite rows at a time */
constexpr float LOG2E = 1.4426950408889634f;

/* Two tiles of 64 rows in two stages, and two tiles of the block's own. */
template <int D> constexpr int shared_bytes()
{
    return 6 * 2 * shape<D>::ELEMENTS + 4 * TILE * 4;
}

/* s[n] = a b^T for 16 rows a and the STEP rows from `rows` on. */
template <int D>
__device__ __forceinline__ void
scores(float (&s)[STEP / 8][4], const uint32_t (&a)[shape<D>::KT][4], const __nv_bfloat16 *rows)
{
    using S = shape<D>;
    const int lane = threadIdx.x % 32;
#pragma unroll
    for (int n = 0; n < STEP / 8; n++)
#pragma unroll
        for (int i = 0; i < 4; i++)
            s[n][i] = 0.f;
#pragma unroll
    for (int c = 0; c < S::KT; c++)
#pragma unroll
        for (int n = 0; n < STEP / 8; n += 2) {
            uint32_t b[4];
            ldmatrix_x4(b, shared_address(rows + (n * 8 + lane / 16 * 8 + lane % 8) * S::STRIDE +
                                          c * 16 + lane / 8 % 2 * 8));
            mma_m16n8k16(s[n], a[c], b[0], b[1]);
            mma_m16n8k16(s[n + 1], a[c], b[2], b[3]);
        }
}

/* acc += s b for the scores s of 16 rows with the STEP rows b. */
template <int D>
__device__ __forceinline__ void weighted(float (&acc)[shape<D>::NT][4],
                                         const float (&s)[STEP / 8][4], const __nv_bfloat16 *rows)
{
    using S = shape<D>;
#pragma unroll
    for (int c = 0; c < STEP / 16; c++) {
        const uint32_t a[4] = {pack_bf16x2(s[2 * c][0], s[2 * c][1]),
                               pack_bf16x2(s[2 * c][2], s[2 * c][3]),
                               pack_bf16x2(s[2 * c + 1][0], s[2 * c + 1][1]),
                               pack_bf16x2(s[2 * c + 1][2], s[2 * c + 1][3])};
#pragma unroll
        for (int n = 0; n < S::NT; n += 2) {
            uint32_t b[4];
            load_b_fragments<S::NT, S::STRIDE>(b, rows + c * 16 * S::STRIDE, n);
            mma_m16n8k16(acc[n], a, b[0], b[1]);
            if (n + 1 < S::NT)
                mma_m16n8k16(acc[n + 1], a, b[2], b[3]);
        }
    }
}

template <int D>
__device__ __forceinline__ void load_fragments(uint32_t (&a)[shape<D>::KT][4],
                                               const __nv_bfloat16 *rows)
{
    const int lane = threadIdx.x % 32;
#pragma unroll
    for (int c = 0; c < shape<D>::KT; c++)
        ldmatrix_x4(a[c],
                    shared_address(rows + lane % 16 * shape<D>::STRIDE + c * 16 + lane / 16 * 8));
}

/* Zeros beyond the head in all six tiles. */
template <int D> __device__ __forceinline__ void clear_padding(__nv_bfloat16 *tiles)
{
    if (shape<D>::DP > D)
        for (int i = threadIdx.x; i < 6 * TILE; i += THREADS)
            *(uint4 *)(tiles + i * shape<D>::STRIDE + D) = make_uint4(0, 0, 0, 0);
}

template <int D>
__device__ __forceinline__ void store_rows(__nv_bfloat16 *to, int64_t stride, int first, int tokens,
                                           float scale, const float (&acc)[shape<D>::NT][4])
{
    const int lane = threadIdx.x % 32;
#pragma unroll
    for (int n = 0; n < shape<D>::NT; n++)
#pragma unroll
        for (int r = 0; r < 2; r++)
            if (first + lane / 4 + r * 8 < tokens)
                *(uint32_t *)(to + (first + lane / 4 + r * 8) * stride + n * 8 + lane % 4 * 2) =
                    pack_bf16x2(scale * acc[n][2 * r], scale * acc[n][2 * r + 1]);
}

/* dq and delta. grid (query tiles, heads, batch) */
template <int D>
__global__ void __launch_bounds__(THREADS, D <= 64 ? 3 : 1) query_kernel(const nl_flash_gradient p)
{
    using S = shape<D>;
    extern __shared__ __align__(16) unsigned char shared[];
    __nv_bfloat16 *qt = (__nv_bfloat16 *)shared, *dt = qt + S::ELEMENTS, *tiles = dt + S::ELEMENTS;
    const int warp = threadIdx.x / 32, lane = threadIdx.x % 32;
    const int64_t image = blockIdx.z * (int64_t)p.tokens, head = blockIdx.y * D;
    const int64_t pair = (int64_t)blockIdx.z * p.heads + blockIdx.y;
    const int first = blockIdx.x * TILE, count = (p.tokens + TILE - 1) / TILE;
    const int mine = first + warp * 16;

    clear_padding<D>(qt);
    auto fetch = [&](int t) {
        if (t < count) {
            __nv_bfloat16 *stage = tiles + t % 2 * 2 * S::ELEMENTS;
            load_tile<D>(stage, p.k + image * p.stride + head, p.stride, t * TILE, p.tokens);
            load_tile<D>(stage + S::ELEMENTS, p.v + image * p.stride + head, p.stride, t * TILE,
                         p.tokens);
        }
        cp_async_commit_group();
    };
    load_tile<D>(qt, p.q + image * p.stride + head, p.stride, first, p.tokens);
    load_tile<D>(dt, p.dout + image * p.out_stride + head, p.out_stride, first, p.tokens);
    fetch(0);

    uint32_t q[S::KT][4], d[S::KT][4];
    float acc[S::NT][4] = {}, shift[2], delta[2] = {0.f, 0.f};
    for (int t = 0; t < count; t++) {
        __syncthreads();
        fetch(t + 1);
        cp_async_wait_group<1>();
        __syncthreads();
        if (t == 0) {
            load_fragments<D>(q, qt + warp * 16 * S::STRIDE);
            load_fragments<D>(d, dt + warp * 16 * S::STRIDE);
            const __nv_bfloat16 *out = p.out + image * p.out_stride + head;
#pragma unroll
            for (int r = 0; r < 2; r++) {
                const int token = min(mine + lane / 4 + r * 8, p.tokens - 1);
#pragma unroll
                for (int c = 0; c < S::KT; c++)
#pragma unroll
                    for (int half = 0; half < 2; half++)
                        if (c * 16 + half * 8 < D) {
                            const float2 a = unpack_bf16x2(d[c][half * 2 + r]),
                                         b = unpack_bf16x2(
                                             *(const uint32_t *)(out + token * p.out_stride +
                                                                 c * 16 + half * 8 + lane % 4 * 2));
                            delta[r] = fmaf(a.x, b.x, fmaf(a.y, b.y, delta[r]));
                        }
                delta[r] = nl_quad_sum(delta[r]);
                shift[r] = LOG2E * p.lse[pair * p.tokens + token];
                if (lane % 4 == 0 && mine + lane / 4 + r * 8 < p.tokens)
                    p.delta[pair * p.tokens + token] = delta[r];
            }
        }
        const __nv_bfloat16 *kt = tiles + t % 2 * 2 * S::ELEMENTS, *vt = kt + S::ELEMENTS;
#pragma unroll
        for (int step = 0; step < TILE; step += STEP) {
            float s[STEP / 8][4], ds[STEP / 8][4];
            scores<D>(s, q, kt + step * S::STRIDE);
            leave_out(s, t * TILE + step, p.tokens);
            scores<D>(ds, d, vt + step * S::STRIDE);
#pragma unroll
            for (int n = 0; n < STEP / 8; n++)
#pragma unroll
                for (int i = 0; i < 4; i++)
                    ds[n][i] = exp2f(fmaf(s[n][i], p.scale * LOG2E, -shift[i / 2])) *
                               (ds[n][i] - delta[i / 2]);
            weighted<D>(acc, ds, kt + step * S::STRIDE);
        }
    }
    cp_async_wait_group<0>();
    store_rows<D>(p.dq + image * p.gradient_stride + head, p.gradient_stride, mine, p.tokens,
                  p.scale, acc);
}

/* dk and dv. grid (key tiles, heads, batch) */
template <int D>
__global__ void __launch_bounds__(THREADS, D <= 64 ? 3 : 1) key_kernel(const nl_flash_gradient p)
{
    using S = shape<D>;
    extern __shared__ __align__(16) unsigned char shared[];
    __nv_bfloat16 *kt = (__nv_bfloat16 *)shared, *vt = kt + S::ELEMENTS, *tiles = vt + S::ELEMENTS;
    float *numbers = (float *)(kt + 6 * S::ELEMENTS); /* [2 stages, (lse, delta), TILE] */
    const int warp = threadIdx.x / 32, lane = threadIdx.x % 32;
    const int64_t image = blockIdx.z * (int64_t)p.tokens, head = blockIdx.y * D;
    const int64_t pair = (int64_t)blockIdx.z * p.heads + blockIdx.y;
    const int first = blockIdx.x * TILE, count = (p.tokens + TILE - 1) / TILE;

    clear_padding<D>(kt);
    auto fetch = [&](int t) {
        if (t < count) {
            __nv_bfloat16 *stage = tiles + t % 2 * 2 * S::ELEMENTS;
            load_tile<D>(stage, p.q + image * p.stride + head, p.stride, t * TILE, p.tokens);
            load_tile<D>(stage + S::ELEMENTS, p.dout + image * p.out_stride + head, p.out_stride,
                         t * TILE, p.tokens);
            const int token = t * TILE + threadIdx.x % TILE;
            const float *from = threadIdx.x < TILE ? p.lse : p.delta;
            numbers[t % 2 * 2 * TILE + threadIdx.x] =
                token < p.tokens
                    ? (threadIdx.x < TILE ? LOG2E : 1.f) * from[pair * p.tokens + token]
                    : 0.f;
        }
        cp_async_commit_group();
    };
    load_tile<D>(kt, p.k + image * p.stride + head, p.stride, first, p.tokens);
    load_tile<D>(vt, p.v + image * p.stride + head, p.stride, first, p.tokens);
    fetch(0);

    uint32_t k[S::KT][4], v[S::KT][4];
    float dk[S::NT][4] = {}, dv[S::NT][4] = {};
    for (int t = 0; t < count; t++) {
        __syncthreads();
        fetch(t + 1);
        cp_async_wait_group<1>();
        __syncthreads();
        if (t == 0) {
            load_fragments<D>(k, kt + warp * 16 * S::STRIDE);
            load_fragments<D>(v, vt + warp * 16 * S::STRIDE);
        }
        const __nv_bfloat16 *qt = tiles + t % 2 * 2 * S::ELEMENTS, *dt = qt + S::ELEMENTS;
        const float *lse = numbers + t % 2 * 2 * TILE, *delta = lse + TILE;
#pragma unroll
        for (int step = 0; step < TILE; step += STEP) {
            float s[STEP / 8][4], ds[STEP / 8][4];
            scores<D>(s, k, qt + step * S::STRIDE);
#pragma unroll
            for (int n = 0; n < STEP / 8; n++) {
                const float2 shift = *(const float2 *)(lse + step + n * 8 + lane % 4 * 2);
#pragma unroll
                for (int i = 0; i < 4; i++)
                    s[n][i] = exp2f(fmaf(s[n][i], p.scale * LOG2E, i % 2 ? -shift.y : -shift.x));
            }
            weighted<D>(dv, s, dt + step * S::STRIDE);
            scores<D>(ds, v, dt + step * S::STRIDE);
#pragma unroll
            for (int n = 0; n < STEP / 8; n++) {
                const float2 minus = *(const float2 *)(delta + step + n * 8 + lane % 4 * 2);
#pragma unroll
                for (int i = 0; i < 4; i++)
                    ds[n][i] = s[n][i] * (ds[n][i] - (i % 2 ? minus.y : minus.x));
            }
            weighted<D>(dk, ds, qt + step * S::STRIDE);
        }
    }
    cp_async_wait_group<0>();
    store_rows<D>(p.dk + image * p.gradient_stride + head, p.gradient_stride, first + warp * 16,
                  p.tokens, p.scale, dk);
    store_rows<D>(p.dv + image * p.gradient_stride + head, p.gradient_stride, first + warp * 16,
                  p.tokens, 1.f, dv);
}

} // namespace nl_flash_gradients

#endif
