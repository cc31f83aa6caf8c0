/* SPDX-License-Identifier: MIT */
/*
 * NaLa attention backward on tensor cores, cosine map, bf16 in and out, fp32 sums. q, k, v, o, do are read once, dq, dk,
 * dv are written once, features exist in registers and in one tile of shared memory. With phi' = phi_q / denominator
 * and r_t = do_t . o_t:
 *
 *   queries  dS = phi'^T do, dz = -phi'^T r, dphi_q = (do S^T - r z) / denominator, dq
 *   keys     dv = phi_k dS / N, dphi_k = (v dS^T + dz) / N, dk
 *
 * A warp owns 16 tokens of a tile. The A fragments of q or k and the fp32 accumulators of dphi put the same elements
 * into the same threads, so the maps and their gradients are local, up to sums over the four lanes of a row. In the
 * gradient the features serve once more: with (c, s) the two halves of dphi and m the magnitude,
 *   m G = c phi_1 + s phi_2 = m (c cos t + s sin t),   m H = s phi_1 - c phi_2 = m (s cos t - c sin t),
 * so no power, sine or cosine is computed twice.
 *
 * With rope features are turned where they meet S or dS, not for the denominator and dz, and gradients of turned features
 * are turned back. dz is then a product of its own, before the features in shared memory are turned.
 *
 * Up to a few hundred tokens one block does all of a head (whole_kernel). Beyond, the query kernel leaves dS, dz of its
 * chunk of tokens in fp32 for reduce_kernel, which adds the chunks in order and leaves them as the key kernel wants them
 * (bf16 and fp32).
 */
#ifndef NL_NALA_BACKWARD_CUH
#define NL_NALA_BACKWARD_CUH

#include "features_backward.cuh"
#include "forward_kernel.cuh"
#include "prim/reduce.cuh"

struct nl_nala_gradient {
    const __nv_bfloat16 *q, *k, *v;  /* of image 0, head 0; rows `stride` apart, heads head_size */
    const __nv_bfloat16 *out, *dout; /* rows `out_stride` apart */
    __nv_bfloat16 *dq, *dk, *dv;     /* rows `gradient_stride` apart */
    int64_t stride, out_stride, gradient_stride; /* elements */
    const float *state, *total;                  /* [B h, F, d], [B h, F] */
    int tokens, heads;
    float lambda, tau, norm_scale;
    nl_nala_rope rope;
    /* Workspace, placed by the launcher. */
    float *partial;        /* [chunks, B h, F, columns] fp32 */
    __nv_bfloat16 *dstate; /* [B h, F, STRIDE] */
    float *dtotal;         /* [B h, F] */
    int query_chunk, key_chunk;
    float *sums; /* [B, (dq, dk, dv), heads, head_size] sums over the tokens of an image, or NULL */
    const float *log_lambda,
        *log_tau; /* [heads], of each head in place of lambda and tau; or NULL */
    float *
        exponents; /* with them: [parts, (log_lambda, log_tau), heads], what blocks give to their gradient */
};

namespace nl_nala_gradients
{

using namespace nl_prim;
using nl_nala::add_squares;

/* F here counts padded dimensions: feature (half, i) is row half * DP + i. */
template <int D> struct shape {
    static constexpr int DP = (D + 15) / 16 * 16, CHUNKS = DP / 16, F = 2 * DP;
    static constexpr int NT = D / 8 + 1; /* 8-column tiles of [do | r] */
    static constexpr int FOURS = (D + 31) / 32;
    static constexpr int WIDE =
        F + 8; /* row of [q | o], then of features: an odd number of 16-byte units */
    static constexpr int COLUMNS = NT * 8 > DP ? NT * 8 : DP;
    static constexpr int STRIDE = COLUMNS / 8 % 2 ? COLUMNS : COLUMNS + 8;
    static constexpr int STATE = F * STRIDE;

    static constexpr int QUERY_WARPS = F / 16; /* each owns 16 rows of dS */
    static constexpr int QUERY_TILE = 16 * QUERY_WARPS;
    static constexpr int QUERY_RESIDENT = D <= 64 ? 2 : 1;
    static constexpr int QUERY_BYTES =
        2 * (QUERY_TILE * (WIDE + STRIDE) + STATE + 2 * WIDE) + 4 * F;

    static constexpr int WHOLE_BYTES = QUERY_BYTES + 4 * QUERY_TILE * STRIDE;

    static constexpr int KEY_WARPS = 4, KEY_TILE = 16 * KEY_WARPS;
    static constexpr int KEY_RESIDENT = D <= 64 ? 4 : 2;
    static constexpr int KEY_BYTES = 2 * (4 * KEY_TILE * STRIDE + STATE) + 4 * F;
};

/* Queues the copy of ROWS tokens from `first` on, zeros from `last` on. */
template <int D, int ROWS, int STRIDE>
__device__ __forceinline__ void load_rows(__nv_bfloat16 *to, const __nv_bfloat16 *from,
                                          int64_t stride, int first, int last)
{
    constexpr int PIECES = D / 8;
    for (int i = threadIdx.x; i < ROWS * PIECES; i += blockDim.x) {
        const int row = i / PIECES, piece = i % PIECES;
        cp_async(shared_address(to + row * STRIDE + piece * 8),
                 from + min(first + row, last - 1) * stride + piece * 8, first + row < last);
    }
}

/* Brings ROWS tokens from `first` on into the second level cache, as far as they are before `last`. */
template <int ROWS>
__device__ __forceinline__ void prefetch_rows(const __nv_bfloat16 *from, int64_t stride, int first,
                                              int last)
{
    for (int row = first + threadIdx.x; row < min(first + ROWS, last); row += blockDim.x)
        asm volatile("prefetch.global.L2 [%0];" ::"l"(from + row * stride));
}

/* A fragments of 16 rows, dimensions 16 c ..; those beyond the head are 0. */
template <int D, int STRIDE>
__device__ __forceinline__ void load_fragment(uint32_t (&a)[4], const __nv_bfloat16 *rows, int c)
{
    const int lane = threadIdx.x % 32;
    ldmatrix_x4(a, shared_address(rows + lane % 16 * STRIDE + c * 16 + lane / 16 * 8));
#pragma unroll
    for (int i = 0; i < 4; i++)
        if (c * 16 + i / 2 * 8 >= D)
            a[i] = 0;
}

/* Two 8-column tiles of x S^T: acc[t] += x [16, d] times rows f + 8 t .. + 7 of `matrix` [F, d] for 16 dimensions. */
template <int STRIDE>
__device__ __forceinline__ void multiply_transposed(float (&acc)[2][4], const uint32_t (&a)[4],
                                                    const __nv_bfloat16 *matrix, int f, int c)
{
    const int lane = threadIdx.x % 32;
    uint32_t b[4];
    ldmatrix_x4(b, shared_address(matrix + (f + lane / 16 * 8 + lane % 8) * STRIDE + c * 16 +
                                  lane / 8 % 2 * 8));
    mma_m16n8k16(acc[0], a, b[0], b[1]);
    mma_m16n8k16(acc[1], a, b[2], b[3]);
}

/* Added to an element before its reciprocal and logarithm: what they are multiplied by is 0 where the element is, and
 * no bf16 number is its negative. */
constexpr float TINY = 1.2345e-30f;

/* S in bf16 and z in shared memory: rows of dimensions and columns beyond the head are 0. zt: z as the sum of two bf16
 * numbers, [2, WIDE]. */
template <int D>
__device__ __forceinline__ void load_state(const nl_nala_gradient &p, int64_t pair,
                                           __nv_bfloat16 *state, float *total, __nv_bfloat16 *zt)
{
    using S = shape<D>;
    constexpr int PIECES = S::STRIDE / 4, COUNT = S::F * PIECES, THREADS = 32 * S::QUERY_WARPS;
    const float *from = p.state + pair * 2 * D * D;
#pragma unroll 3
    for (int round = 0; round < (COUNT + THREADS - 1) / THREADS; round++) {
        const int i = threadIdx.x + round * THREADS;
        const int f = i / PIECES, column = i % PIECES * 4, half = f / S::DP, dim = f % S::DP;
        float4 x = make_float4(0.f, 0.f, 0.f, 0.f);
        if (f < S::F && dim < D && column < D)
            x = *(const float4 *)(from + (half * D + dim) * D + column);
        if (COUNT % THREADS == 0 || i < COUNT)
            *(uint2 *)(state + f * S::STRIDE + column) =
                make_uint2(pack_bf16x2(x.x, x.y), pack_bf16x2(x.z, x.w));
    }
    for (int f = threadIdx.x; f < S::F; f += blockDim.x) {
        const int half = f / S::DP, dim = f % S::DP;
        const float z = dim < D ? p.total[pair * 2 * D + half * D + dim] : 0.f;
        const __nv_bfloat16 high = __float2bfloat16(z);
        total[f] = z;
        zt[f] = high;
        zt[S::WIDE + f] = __float2bfloat16(z - __bfloat162float(high));
    }
}

/* Angles of a thread's two rows, lane / 4 and lane / 4 + 8 from `first` on, of its first pair of dimensions that turns with
 * the row of the grid, and with the column; rows beyond the last token have its. */
template <int D> struct row_angles {
    const float2 *of[2][2];
    __device__ __forceinline__ row_angles(const nl_nala_gradient &p, int first)
    {
        const int lane = threadIdx.x % 32;
#pragma unroll
        for (int r = 0; r < 2; r++) {
            const int2 place = nl_place_of(p.rope, min(first + lane / 4 + r * 8, p.tokens - 1));
            of[r][0] = p.rope.table + place.x * (D / 4) + lane % 4;
            of[r][1] = p.rope.table + place.y * (D / 4) + lane % 4;
        }
    }
    /* Of row r's pair in the 8-column tile that begins at `dim`, a constant; what is padded turns by anything. */
    __device__ __forceinline__ float2 at(int r, int dim) const
    {
        const int pair = min(dim, D - 8) / 2;
        const bool column = (D % 16 == 0 ? pair : pair + (int)threadIdx.x % 4) >= D / 4;
        return column ? of[r][1][pair - D / 4] : of[r][0][pair];
    }
};

__device__ __forceinline__ float2 turn_pair(float2 x, float2 angle)
{
    return make_float2(fmaf(x.x, angle.x, -x.y * angle.y), fmaf(x.y, angle.x, x.x * angle.y));
}
__device__ __forceinline__ uint32_t turn_pair(uint32_t x, float2 angle)
{
    const float2 y = turn_pair(unpack_bf16x2(x), angle);
    return pack_bf16x2(y.x, y.y);
}

/* What the map's gradient needs of the two rows (lane / 4 and lane / 4 + 8) of a thread. */
struct row_pair {
    float norm[2], scale[2], power[2], log_scale[2]; /* log2 */
};

template <int D, bool QUERY>
__device__ __forceinline__ row_pair row_scalars(const nl_nala_gradient &p,
                                                const uint32_t (&raw)[shape<D>::CHUNKS][4])
{
    float sums[4] = {};
#pragma unroll
    for (int c = 0; c < shape<D>::CHUNKS; c++)
        add_squares(sums, raw[c]);
    row_pair rows;
#pragma unroll
    for (int r = 0; r < 2; r++) {
        const float norm = nl_root<false>(sums[2 * r]);
        rows.norm[r] = norm;
        rows.scale[r] = nl_reciprocal<false>(norm + NL_NORM_EPS);
        rows.log_scale[r] = log2_approx(rows.scale[r]);
        rows.power[r] = QUERY ? p.lambda * (p.tau + nl_tanh<false>(p.norm_scale * norm)) : p.lambda;
    }
    return rows;
}

/* The same times what all of a row's gradient is to be multiplied by: 1 / denominator of a query. */
struct row_factors {
    float power[2], scale[2];
};

/* One chunk of 16 dimensions of the map's gradient: own parts as bf16 pairs, and the sums of the two rows (sums.x, by the
 * exponent, still without the factor; of a key where that is LEARNT). c, s: the gradients by the two halves. */
template <bool QUERY, bool LEARNT>
__device__ __forceinline__ void
chunk_gradient(const uint32_t (&raw)[4], const uint32_t (&first)[4], const uint32_t (&second)[4],
               const float (&c)[2][4], const float (&s)[2][4], const row_pair &rows,
               const row_factors &factors, uint32_t (&own)[4], float2 (&sums)[2])
{
#pragma unroll
    for (int i = 0; i < 4; i++) {
        const int r = i % 2, t = i / 2;
        const float2 x2 = unpack_bf16x2(raw[i]), f2 = unpack_bf16x2(first[i]),
                     g2 = unpack_bf16x2(second[i]);
        float result[2];
#pragma unroll
        for (int e = 0; e < 2; e++) {
            const float x = e ? x2.y : x2.x, f = e ? f2.y : f2.x, g = e ? g2.y : g2.x;
            const float dc = c[t][2 * r + e], ds = s[t][2 * r + e], nonzero = x + TINY;
            const float by_magnitude = fmaf(dc, f, ds * g);
            const float by_angle = nl_angle_slope<false>(x * rows.scale[r]) * fmaf(ds, f, -dc * g);
            result[e] = fmaf(factors.power[r], by_magnitude * rcp_approx(nonzero),
                             by_angle * factors.scale[r]);
            if (QUERY) {
                const float log = log2_approx(fabsf(nonzero)) + rows.log_scale[r];
                sums[r].x = fmaf(log, by_magnitude, sums[r].x);
                sums[r].y = fmaf(result[e], x, sums[r].y);
            } else {
                if (LEARNT)
                    sums[r].x = fmaf(log2_approx(fabsf(nonzero)), by_magnitude, sums[r].x);
                sums[r].y = fmaf(by_angle, x, sums[r].y);
            }
        }
        own[i] = pack_bf16x2(result[0], result[1]);
    }
}

/* A 4 x 4 matrix of words of which lane q of four has column q: afterwards it has row q. */
__device__ __forceinline__ void transpose_quad(uint32_t (&w)[4])
{
    const bool odd = threadIdx.x & 1, high = threadIdx.x & 2;
#pragma unroll
    for (int i = 0; i < 4; i += 2) {
        const uint32_t got = __shfl_xor_sync(~0u, odd ? w[i] : w[i + 1], 1);
        (odd ? w[i] : w[i + 1]) = got;
    }
#pragma unroll
    for (int i = 0; i < 2; i++) {
        const uint32_t got = __shfl_xor_sync(~0u, high ? w[i] : w[i + 2], 2);
        (high ? w[i] : w[i + 2]) = got;
    }
}

/* Four 8-column tiles of a row of D columns, of which a thread has two columns in each, the first of the row at `to` (NULL:
 * no row). Four threads exchange theirs, so that each writes 16 bytes. */
template <int D>
__device__ __forceinline__ void store_tiles(__nv_bfloat16 *to, int first, uint32_t (&w)[4])
{
    if (first + 4 <= D / 8) {
        transpose_quad(w);
        if (to)
            *(uint4 *)(to + first * 8 + threadIdx.x % 4 * 6) = make_uint4(w[0], w[1], w[2], w[3]);
    } else if (to) {
#pragma unroll
        for (int i = 0; i < 4; i++)
            if (first + i < D / 8)
                *(uint32_t *)(to + (first + i) * 8) = w[i];
    }
}

/* dx = mean (own + x shared) of the rows lane / 4 and lane / 4 + 8, which begin at to[0] and to[1]; NULL: no row. SUMS: the
 * sums over the warp's 16 rows are added to `sums`, of four tiles each lane the one of column summed_column. */
template <int D, bool SUMS>
__device__ __forceinline__ void store_gradient(__nv_bfloat16 *const (&to)[2], float mean,
                                               const uint32_t (&raw)[shape<D>::CHUNKS][4],
                                               const uint32_t (&own)[shape<D>::CHUNKS][4],
                                               const float (&shared)[2],
                                               float (&sums)[shape<D>::FOURS])
{
#pragma unroll
    for (int four = 0; four < shape<D>::FOURS; four++) {
        float columns[8] = {};
#pragma unroll
        for (int r = 0; r < 2; r++) {
            uint32_t words[4] = {};
#pragma unroll
            for (int i = 0; i < 4; i++) {
                const int t = four * 4 + i;
                if (t >= D / 8)
                    continue;
                const float2 x = unpack_bf16x2(raw[t / 2][t % 2 * 2 + r]),
                             o = unpack_bf16x2(own[t / 2][t % 2 * 2 + r]);
                const float a = mean * fmaf(x.x, shared[r], o.x),
                            b = mean * fmaf(x.y, shared[r], o.y);
                words[i] = pack_bf16x2(a, b);
                columns[2 * i] += a, columns[2 * i + 1] += b;
            }
            store_tiles<D>(to[r], four * 4, words);
        }
        if (SUMS)
            sums[four] += nl_column_sum(columns);
    }
}
__device__ __forceinline__ int summed_column(int four)
{
    const int kept = nl_column_of_sum();
    return four * 32 + kept / 2 * 8 + threadIdx.x % 4 * 2 + kept % 2;
}

/* Where this thread's two elements of the first 8-column tile lie in rows first + lane / 4 (+ 8). */
__device__ __forceinline__ void row_pointers(__nv_bfloat16 *base, int64_t stride, int first,
                                             int last, __nv_bfloat16 *(&to)[2])
{
    const int lane = threadIdx.x % 32;
#pragma unroll
    for (int r = 0; r < 2; r++) {
        const int token = first + lane / 4 + r * 8;
        to[r] = token < last ? base + token * stride + lane % 4 * 2 : NULL;
    }
}

/* What a warp keeps of its 16 queries; r: do . o, inverse: of the denominator; two rows a thread. */
template <int D> struct query_rows {
    uint32_t raw[shape<D>::CHUNKS][4];
    row_pair scalars;
    float r[2], inverse[2];
};

/* The features of 16 queries, in place of q | o in `rows`; zt: z in two parts. */
template <int D, bool CUBE>
__device__ __forceinline__ void query_features(const nl_nala_gradient &p, __nv_bfloat16 *rows,
                                               const __nv_bfloat16 *drows, const __nv_bfloat16 *zt,
                                               query_rows<D> &query)
{
    using S = shape<D>;
    const int lane = threadIdx.x % 32;
    float products[2][4] = {}; /* do . o of all pairs of the 16 tokens; the diagonal is wanted */
#pragma unroll
    for (int c = 0; c < S::CHUNKS; c++) {
        uint32_t d[4];
        load_fragment<D, S::WIDE>(query.raw[c], rows, c);
        load_fragment<D, S::STRIDE>(d, drows, c);
        multiply_transposed<S::WIDE>(products, d, rows + S::DP, 0, c);
    }
#pragma unroll
    for (int i = 0; i < 2; i++) {
        /* Of row lane / 4 + 8 i: column lane / 4 of tile i, which lane lane / 8 of the four has. */
        const float own = lane / 4 % 2 ? products[i][2 * i + 1] : products[i][2 * i];
        query.r[i] = __shfl_sync(~0u, own, (lane & ~3) + lane / 8);
    }
    query.scalars = row_scalars<D, true>(p, query.raw);
    const __nv_bfloat162 scale[2] = {nl_pair_of(query.scalars.scale[0]),
                                     nl_pair_of(query.scalars.scale[1])};
    const float offset[2] = {query.scalars.power[0] * query.scalars.log_scale[0],
                             query.scalars.power[1] * query.scalars.log_scale[1]};
    float denominator[4] = {}; /* columns 0 and 1: by the two parts of z */
    __syncwarp();
#pragma unroll
    for (int c = 0; c < S::CHUNKS; c++) {
        uint32_t phi[2][4];
#pragma unroll
        for (int i = 0; i < 4; i++)
            nl_query_pair<CUBE>(query.raw[c][i], scale[i % 2], query.scalars.power[i % 2],
                                offset[i % 2], &phi[0][i], &phi[1][i]);
#pragma unroll
        for (int half = 0; half < 2; half++) {
            const int column = half * S::DP + c * 16 + lane % 4 * 2;
            const __nv_bfloat16 *z = zt + lane / 4 * S::WIDE + column;
            const uint32_t b0 = lane < 8 ? *(const uint32_t *)z : 0;
            const uint32_t b1 = lane < 8 ? *(const uint32_t *)(z + 8) : 0;
            mma_m16n8k16(denominator, phi[half], b0, b1);
#pragma unroll
            for (int i = 0; i < 4; i++)
                *(uint32_t *)(rows + (lane / 4 + i % 2 * 8) * S::WIDE + column + i / 2 * 8) =
                    phi[half][i];
        }
    }
    __syncwarp();
#pragma unroll
    for (int i = 0; i < 2; i++) {
        const float sum = denominator[2 * i] + denominator[2 * i + 1];
        query.inverse[i] = 1.f / (__shfl_sync(~0u, sum, lane & ~3) + 1e-6f);
    }
}

/* What the thread's rows give to the gradient by ln lambda (x), and by ln tau (y) without its factor lambda tau. */
using log_exponents = float2;

/* The block's, as row `part` of p.exponents; for all threads. */
__device__ __forceinline__ void put_exponents(const nl_nala_gradient &p, int64_t part,
                                              log_exponents own)
{
    const float by_lambda = nl_block_sum(own.x), by_tau = nl_block_sum(own.y);
    float *to = p.exponents + part * 2 * p.heads + blockIdx.x;
    if (threadIdx.x == 0)
        to[0] = by_lambda, to[p.heads] = p.lambda * p.tau * by_tau;
}

/* d = both halves of a chunk of 16 dimensions of x S^T, turned back with rope, plus factor times z of either row. x: the warp's 16
 * rows; matrix [F, STRIDE], z [F]. */
template <int D, bool ROPE>
__device__ __forceinline__ void feature_gradient(const nl_nala_gradient &p, const __nv_bfloat16 *x,
                                                 const __nv_bfloat16 *matrix, const float *z,
                                                 float2 factor, const row_angles<D> &angles, int c,
                                                 float (&d)[2][2][4])
{
    using S = shape<D>;
    auto add_z = [&](int half, int t) {
        const float2 own =
            *(const float2 *)(z + half * S::DP + c * 16 + t * 8 + threadIdx.x % 4 * 2);
        float(&at)[4] = d[half][t];
        at[0] = fmaf(factor.x, own.x, at[0]), at[1] = fmaf(factor.x, own.y, at[1]);
        at[2] = fmaf(factor.y, own.x, at[2]), at[3] = fmaf(factor.y, own.y, at[3]);
    };
#pragma unroll
    for (int half = 0; half < 2; half++)
#pragma unroll
        for (int t = 0; t < 2; t++) {
            d[half][t][0] = d[half][t][1] = d[half][t][2] = d[half][t][3] = 0.f;
            if (!ROPE)
                add_z(half, t);
        }
#pragma unroll
    for (int k = 0; k < S::CHUNKS; k++) {
        uint32_t a[4];
        load_fragment<D, S::STRIDE>(a, x, k);
        multiply_transposed<S::STRIDE>(d[0], a, matrix, c * 16, k);
        multiply_transposed<S::STRIDE>(d[1], a, matrix, S::DP + c * 16, k);
    }
    if (ROPE)
#pragma unroll
        for (int t = 0; t < 2; t++) {
#pragma unroll
            for (int r = 0; r < 2; r++) {
                float2 angle = angles.at(r, c * 16 + t * 8);
                angle.y = -angle.y;
#pragma unroll
                for (int half = 0; half < 2; half++) {
                    float *at = d[half][t] + 2 * r;
                    const float2 back = turn_pair(make_float2(at[0], at[1]), angle);
                    at[0] = back.x, at[1] = back.y;
                }
            }
            add_z(0, t), add_z(1, t);
        }
}

/* dq of 16 queries into the rows at `to`. SUMS: see store_gradient; LEARNT: adds to `exponents`. */
template <int D, bool ROPE, bool SUMS, bool LEARNT>
__device__ __forceinline__ void
query_gradient(const nl_nala_gradient &p, const __nv_bfloat16 *rows, const __nv_bfloat16 *drows,
               const __nv_bfloat16 *state, const float *total, const query_rows<D> &query,
               const row_angles<D> &angles, __nv_bfloat16 *const (&to)[2],
               float (&sums_of_dq)[shape<D>::FOURS], log_exponents &exponents)
{
    using S = shape<D>;
    const int lane = threadIdx.x % 32;
    const row_pair &scalars = query.scalars;
    row_factors factors;
#pragma unroll
    for (int i = 0; i < 2; i++)
        factors.power[i] = scalars.power[i] * query.inverse[i],
        factors.scale[i] = scalars.scale[i] * query.inverse[i];
    uint32_t own[S::CHUNKS][4];
    float2 sums[2] = {};
#pragma unroll
    for (int c = 0; c < S::CHUNKS; c++) {
        float d[2][2][4];
        feature_gradient<D, ROPE>(p, drows, state, total, make_float2(-query.r[0], -query.r[1]),
                                  angles, c, d);
        uint32_t phi[2][4];
#pragma unroll
        for (int half = 0; half < 2; half++)
            ldmatrix_x4(phi[half], shared_address(rows + lane % 16 * S::WIDE + half * S::DP +
                                                  c * 16 + lane / 16 * 8));
        chunk_gradient<true, LEARNT>(query.raw[c], phi[0], phi[1], d[0], d[1], scalars, factors,
                                     own[c], sums);
        __syncwarp(); /* one chunk's numbers at a time: registers */
    }
    float shared[2];
#pragma unroll
    for (int i = 0; i < 2; i++) {
        if (LEARNT) {
            const float x = 0.6931471805599453f * query.inverse[i] * sums[i].x;
            exponents.x = fmaf(x, scalars.power[i], exponents.x), exponents.y += x;
        }
        const float by_power = 0.6931471805599453f * query.inverse[i] * nl_quad_sum(sums[i].x);
        const float t = nl_tanh<false>(p.norm_scale * scalars.norm[i]);
        const float by_norm = p.lambda * p.norm_scale * by_power * (1.f - t * t) -
                              nl_quad_sum(sums[i].y) * scalars.scale[i];
        shared[i] = by_norm * rcp_approx(scalars.norm[i] + TINY);
    }
    store_gradient<D, SUMS>(to, 1.f, query.raw, own, shared, sums_of_dq);
}

/* do becomes u = do / denominator, and two columns beside it -r / denominator, as the sum of two bf16 numbers. */
template <int D>
__device__ __forceinline__ void divide_rows(__nv_bfloat16 *drows, const query_rows<D> &query)
{
    using S = shape<D>;
    const int lane = threadIdx.x % 32;
    const __nv_bfloat162 inverse[2] = {nl_pair_of(query.inverse[0]), nl_pair_of(query.inverse[1])};
#pragma unroll
    for (int c = 0; c < S::CHUNKS; c++) {
        uint32_t d[4];
        load_fragment<D, S::STRIDE>(d, drows, c);
        __syncwarp();
#pragma unroll
        for (int i = 0; i < 4; i++)
            if (c * 16 + i / 2 * 8 < D)
                *(uint32_t *)(drows + (lane / 4 + i % 2 * 8) * S::STRIDE + c * 16 + i / 2 * 8 +
                              lane % 4 * 2) = nl_bits(__hmul2(nl_pair(d[i]), inverse[i % 2]));
    }
    if (lane % 4 == 0)
#pragma unroll
        for (int i = 0; i < 2; i++) {
            const float product = -query.r[i] * query.inverse[i];
            const float high = __bfloat162float(__float2bfloat16(product));
            *(uint32_t *)(drows + (lane / 4 + i * 8) * S::STRIDE + D) =
                pack_bf16x2(high, product - high);
        }
}

/* Turns the features of the warp's 16 queries, in place. */
template <int D>
__device__ __forceinline__ void turn_features(__nv_bfloat16 *rows, const row_angles<D> &angles)
{
    using S = shape<D>;
    const int lane = threadIdx.x % 32;
#pragma unroll
    for (int n = 0; n < S::DP / 8; n++)
#pragma unroll
        for (int r = 0; r < 2; r++) {
            const float2 angle = angles.at(r, n * 8);
            __nv_bfloat16 *at = rows + (lane / 4 + r * 8) * S::WIDE + n * 8 + lane % 4 * 2;
#pragma unroll
            for (int half = 0; half < 2; half++) {
                uint32_t *pair = (uint32_t *)(at + half * S::DP);
                *pair = turn_pair(*pair, angle);
            }
        }
}

/* acc += features^T [16 features of the warp, tokens of a tile] times the 8-column tiles FIRST to LAST of u | -r. */
template <int D, int FIRST, int LAST>
__device__ __forceinline__ void multiply_features(const __nv_bfloat16 *tile,
                                                  const __nv_bfloat16 *dtile,
                                                  float (&acc)[shape<D>::NT][4])
{
    using S = shape<D>;
    const int warp = threadIdx.x / 32, lane = threadIdx.x % 32;
#pragma unroll 4
    for (int token = 0; token < S::QUERY_TILE; token += 16) {
        uint32_t a[4];
        ldmatrix_x4_trans(a, shared_address(tile + (token + lane % 8 + lane / 16 * 8) * S::WIDE +
                                            warp * 16 + lane / 8 % 2 * 8));
#pragma unroll
        for (int n = FIRST; n < LAST; n += 2) {
            uint32_t b[4];
            load_b_fragments<LAST, S::STRIDE>(b, dtile + token * S::STRIDE, n);
            mma_m16n8k16(acc[n], a, b[0], b[1]);
            if (n + 1 < LAST)
                mma_m16n8k16(acc[n + 1], a, b[2], b[3]);
        }
    }
}

/* One tile of queries from token `first` on, [TILE, WIDE] q | o and [TILE, STRIDE] do, of which a warp has 16 rows: dq of them
 * to `to`, and dS | dz of the warp's 16 features added to acc. SUMS, LEARNT: see query_gradient. Ends with tiles that other
 * warps may still read. */
template <int D, bool CUBE, bool ROPE, bool SUMS, bool LEARNT>
__device__ __forceinline__ void
query_tile(const nl_nala_gradient &p, int first, __nv_bfloat16 *tile, __nv_bfloat16 *dtile,
           const __nv_bfloat16 *state, const float *total, const __nv_bfloat16 *zt,
           __nv_bfloat16 *const (&to)[2], float (&acc)[shape<D>::NT][4],
           float (&sums)[shape<D>::FOURS], log_exponents &exponents)
{
    using S = shape<D>;
    const int warp = threadIdx.x / 32;
    __nv_bfloat16 *rows = tile + warp * 16 * S::WIDE, *drows = dtile + warp * 16 * S::STRIDE;
    const row_angles<D> angles(p, first + warp * 16);
    query_rows<D> query;
    query_features<D, CUBE>(p, rows, drows, zt, query);
    query_gradient<D, ROPE, SUMS, LEARNT>(p, rows, drows, state, total, query, angles, to, sums,
                                          exponents);
    divide_rows<D>(drows, query);

    __syncthreads(); /* features and u of the whole tile are there; state and total are done with */
    if (!ROPE) {
        multiply_features<D, 0, S::NT>(tile, dtile, acc);
        return;
    }
    multiply_features<D, S::NT - 1, S::NT>(tile, dtile, acc);
    __syncthreads(); /* the features as they were are done with */
    turn_features<D>(rows, angles);
    __syncthreads();
    multiply_features<D, 0, S::NT - 1>(tile, dtile, acc);
}

/* Sums over tokens as store_gradient adds them up. v: with rope alone. */
template <int D> struct key_sums {
    float k[shape<D>::FOURS], v[shape<D>::FOURS];
};

/* dk and dv of a warp's 16 keys from token `first` on, rows STRIDE apart; dstate, dtotal: dS and dz. SUMS: of dk, see
 * store_gradient; LEARNT: adds to `exponents`. */
template <int D, bool CUBE, bool ROPE, bool SUMS, bool LEARNT>
__device__ __forceinline__ void
key_rows(const nl_nala_gradient &p, int first, const __nv_bfloat16 *krows,
         const __nv_bfloat16 *vrows, const __nv_bfloat16 *dstate, const float *dtotal,
         __nv_bfloat16 *const (&dk)[2], __nv_bfloat16 *const (&dv)[2], key_sums<D> &sums_of,
         log_exponents &exponents)
{
    using S = shape<D>;
    constexpr int CHUNKS = S::CHUNKS, STRIDE = S::STRIDE;
    const float mean = 1.f / p.tokens;
    const row_angles<D> angles(p, first);
    uint32_t raw[CHUNKS][4], phi[2][CHUNKS][4];
#pragma unroll
    for (int c = 0; c < CHUNKS; c++)
        load_fragment<D, STRIDE>(raw[c], krows, c);
    const row_pair scalars = row_scalars<D, false>(p, raw);
    float sum[S::NT - 1][4] = {};
#pragma unroll
    for (int c = 0; c < CHUNKS; c++) {
#pragma unroll
        for (int i = 0; i < 4; i++)
            nl_key_pair<CUBE>(raw[c][i], nl_bits(nl_pair_of(scalars.scale[i % 2])), p.lambda,
                              &phi[0][c][i], &phi[1][c][i]);
        uint32_t turned[2][4];
#pragma unroll
        for (int i = 0; i < 4; i++) {
            const float2 angle =
                ROPE ? angles.at(i % 2, c * 16 + i / 2 * 8) : make_float2(1.f, 0.f);
#pragma unroll
            for (int half = 0; half < 2; half++)
                turned[half][i] = ROPE ? turn_pair(phi[half][c][i], angle) : phi[half][c][i];
        }
#pragma unroll
        for (int half = 0; half < 2; half++)
#pragma unroll
            for (int n = 0; n < S::NT - 1; n += 2) {
                uint32_t b[4];
                load_b_fragments<S::NT - 1, STRIDE>(b, dstate + (half * S::DP + c * 16) * STRIDE,
                                                    n);
                mma_m16n8k16(sum[n], turned[half], b[0], b[1]);
                if (n + 1 < S::NT - 1)
                    mma_m16n8k16(sum[n + 1], turned[half], b[2], b[3]);
            }
        if (ROPE)
            __syncwarp(); /* one chunk's numbers at a time: registers */
    }
#pragma unroll
    for (int four = 0; four < S::FOURS; four++) {
        float columns[8] = {};
#pragma unroll
        for (int r = 0; r < 2; r++) {
            uint32_t words[4] = {};
#pragma unroll
            for (int i = 0; i < 4; i++)
                if (four * 4 + i < D / 8) {
                    const float a = sum[four * 4 + i][2 * r] * mean,
                                b = sum[four * 4 + i][2 * r + 1] * mean;
                    words[i] = pack_bf16x2(a, b);
                    columns[2 * i] += a, columns[2 * i + 1] += b;
                }
            store_tiles<D>(dv[r], four * 4, words);
        }
        if (SUMS && ROPE)
            sums_of.v[four] += nl_column_sum(columns);
    }

    const row_factors factors = {{p.lambda, p.lambda}, {scalars.scale[0], scalars.scale[1]}};
    uint32_t own[CHUNKS][4];
    float2 sums[2] = {};
#pragma unroll
    for (int c = 0; c < CHUNKS; c++) {
        float d[2][2][4];
        feature_gradient<D, ROPE>(p, vrows, dstate, dtotal, make_float2(1.f, 1.f), angles, c, d);
        chunk_gradient<false, LEARNT>(raw[c], phi[0][c], phi[1][c], d[0], d[1], scalars, factors,
                                      own[c], sums);
        __syncwarp(); /* one chunk's numbers at a time: registers */
    }
    if (LEARNT)
        exponents.x =
            fmaf(0.6931471805599453f * p.lambda * mean, sums[0].x + sums[1].x, exponents.x);
    float factor[2];
#pragma unroll
    for (int i = 0; i < 2; i++)
        factor[i] = -nl_quad_sum(sums[i].y) * scalars.scale[i] * scalars.scale[i] *
                    rcp_approx(scalars.norm[i] + TINY);
    store_gradient<D, SUMS>(dk, mean, raw, own, factor, sums_of.k);
}

} // namespace nl_nala_gradients

/* Bytes of workspace of nl_nala_backward, whether it leaves the sums, and how many parts of exponents an image has. */
int64_t nl_nala_backward_workspace(int64_t batch, int64_t heads, int64_t tokens, int64_t head_size);
bool nl_nala_backward_leaves_sums(int64_t tokens, int64_t head_size);
int64_t nl_nala_backward_parts(int64_t tokens, int64_t head_size);
/* bf16, cosine map; head sizes 32, 48, 64, 72, 80 and 96; rope with lambda 3 and tau > 0, none of them learnt.
 * cudaErrorInvalidValue otherwise. */
cudaError_t nl_nala_backward(nl_nala_gradient problem, int64_t batch, int64_t head_size,
                             void *workspace, cudaStream_t stream);

#endif
