/* SPDX-License-Identifier: MIT */
/*
 * NaLa attention forward on Hopper: forward_kernel.cuh with the products of a warp group.
 *
 * A block is one warp group and has one (image, head), or a chunk of its tokens. A tile is 64 tokens of 64 dimensions, rows
 * of 128 bytes, swizzled as TMA leaves them. Fragments of features stay in registers as A operands; v and the state S [128, 64] are B operands,
 * read from shared memory once for four warps:
 *
 *   state   S[f, j] += phi_k^T [64 features, 16 tokens] v [16 tokens, 64], warp w: dimensions 16 w .. 16 w + 15
 *   apply   o [64 tokens, 64] += phi_q [64 tokens, 16 features] S [16 features, 64]
 *
 * Norms and z are small and go through mma.sync. Two stages of two tiles: k and v, then queries, the next stage on its
 * way while one is worked on. Results leave through the place of their queries.
 *
 * Heads of 72 and 80 have a tail of 16 columns, rows of 32 bytes in boxes of their own; behind the head's last column
 * TMA reads zeros and writes nothing. The tail's columns of S and of o are products of a warp group too, of 16 columns.
 * The tail's features are 16 of both halves, or 32: a quarter or half of the 64 rows that such a product has. So their
 * rows of S are made by mma.sync. Each warp writes these features of its own sixteen keys over the keys' tail, and
 * multiplies those of all keys for its share of the columns. When the state is applied they are the last steps of the
 * depth.
 */
#include "forward_sm90.cuh"

#include "prim/is_hopper.cuh"
#include "prim/mma.cuh"
#include "prim/shared_limit.cuh"
#include "prim/tma.cuh"
#include "prim/wgmma.cuh"

using namespace nl_prim;

namespace
{

using nl_nala::add_squares;

enum {
    TILE = 64, /* tokens */
    THREADS = 128,
    STAGES = 2,
    WIDE_BYTES = TILE * WIDE * 2, /* of a tile */
    WIDE_ROWS = 16 * WIDE * 2,    /* bytes of sixteen rows, a warp's of a tile */
    TAIL_ROWS = 16 * TAIL * 2
};

/* Sizes for heads of D: 64, 72 or 80. */
template <int D_> struct shape {
    static constexpr int D = D_, UNITS = D / 8; /* of eight columns */
    static constexpr bool HAS_TAIL = D > WIDE;
    static constexpr bool ODD = D % 16 != 0; /* a tail of eight dimensions */
    static constexpr int PADDED = HAS_TAIL ? WIDE + TAIL : WIDE;
    static constexpr int FEATURES = 2 * D;
    static constexpr int FRAGMENTS =
        (FEATURES - 2 * WIDE) / 16; /* sixteens of features of the tail */
    static constexpr int TILE_BYTES = TILE * PADDED * 2;
    /* A tail of sixteen dimensions has a second half of features, behind the tiles; the first takes the keys' place. */
    static constexpr int SECOND_BYTES = FRAGMENTS == 2 ? TILE * TAIL * 2 : 0;
    static constexpr int STAGE_BYTES = 2 * TILE_BYTES + SECOND_BYTES;
    static constexpr int STATE_WIDE_BYTES = FEATURES * WIDE * 2;
    static constexpr int STATE_BYTES = FEATURES * PADDED * 2;
    static constexpr int Z_BYTES = FEATURES * 2, SCALES_BYTES = 2 * TILE * 2;
    static constexpr int SHARED_BYTES =
        1024 + STAGES * STAGE_BYTES + STATE_BYTES + Z_BYTES + SCALES_BYTES + 64;
    /* Blocks a multiprocessor; with rope one less, for the registers of angles. */
    static constexpr int RESIDENT = HAS_TAIL ? 3 : 4;

    /* Rows of features in device memory, where a half and the tail of a half begin: of what is saved for the backward
     * pass, [2, D, D], and of partial sums and states, which have a tail of eight behind both halves (nl_nala::shape). */
    template <bool SAVED> __host__ __device__ static constexpr int half_row(int half)
    {
        return half * (ODD && !SAVED ? WIDE : D);
    }
    template <bool SAVED> __host__ __device__ static constexpr int tail_row(int half)
    {
        return ODD && !SAVED ? 2 * WIDE + half * 8 : half * D + WIDE;
    }
};
/* Of partial sums and states in device memory; chunks are of this kernel's tiles. */
template <int D> struct device_shape : nl_nala::shape<D, 2> {
    static constexpr int TILE = ::TILE;
};

/* [batch, heads, tokens, D]: boxes of the first 64 columns, and of the others. */
template <bool HAS_TAIL> struct head_maps {
    CUtensorMap wide;
};
template <> struct head_maps<true> {
    CUtensorMap wide, tail;
};

template <int D> struct nala_params {
    head_maps<shape<D>::HAS_TAIL> q, k, v, out;
    float *saved_state; /* [B h, FEATURES, D], or NULL */
    float *saved_total; /* [B h, FEATURES], or NULL */
    float *partial;     /* as in nl_nala_problem */
    const __nv_bfloat16 *state;
    int tokens, chunk;
    float lambda, tau, norm_scale;
    nl_nala_rope rope;
};

struct shared_memory {
    uint32_t stages, state;   /* addresses; tiles and state are wide rows, then those of the tail */
    __nv_bfloat16 *z;         /* [FEATURES] */
    __nv_bfloat16 *scales;    /* [2][TILE] */
    uint64_t *keys, *queries; /* barriers [STAGES], [2 STAGES] */
};

/* A tile of the block's head. */
template <bool HAS_TAIL>
__device__ __forceinline__ void load_tile(uint32_t to, const head_maps<HAS_TAIL> &maps, int token,
                                          uint64_t *barrier)
{
    tma_load(to, &maps.wide, 0, token, blockIdx.x, blockIdx.y, shared_address(barrier));
    if constexpr (HAS_TAIL)
        tma_load(to + WIDE_BYTES, &maps.tail, WIDE, token, blockIdx.x, blockIdx.y,
                 shared_address(barrier));
}
/* Rows of one warp, to tokens from `token` on; tokens beyond the last and columns beyond the head are left out. */
template <bool HAS_TAIL>
__device__ __forceinline__ void store_rows(const head_maps<HAS_TAIL> &maps, int token,
                                           uint32_t from, uint32_t tail)
{
    tma_store(&maps.wide, 0, token, blockIdx.x, blockIdx.y, from);
    if constexpr (HAS_TAIL)
        tma_store(&maps.tail, WIDE, token, blockIdx.x, blockIdx.y, tail);
    tma_store_commit_group();
}

/* Sixteen columns of a warp's sums as bf16; low, high: factors of rows lane / 4 and lane / 4 + 8. */
__device__ __forceinline__ void store_sixteen(const float *x, float low, float high,
                                              uint32_t address)
{
    const uint32_t words[4] = {
        pack_bf16x2(x[0] * low, x[1] * low), pack_bf16x2(x[2] * high, x[3] * high),
        pack_bf16x2(x[4] * low, x[5] * low), pack_bf16x2(x[6] * high, x[7] * high)};
    stmatrix_x4(address, words);
}
/* sums [64, 64] of a warp group, those of this warp to its sixteen rows at `rows`. */
__device__ __forceinline__ void store_sums(const float (&d)[32], float low, float high,
                                           uint32_t rows)
{
#pragma unroll
    for (int j = 0; j < 4; j++)
        store_sixteen(d + 8 * j, low, high, wide_address(rows, j));
}

/* What a block goes through: tiles of keys, then of queries, from a token on. */
struct token_range {
    int first, keys, queries;
};

/* Stage `number` of the block's: a tile of k and v each, then pairs of queries. By one thread. */
template <int D>
__device__ __forceinline__ void load_stage(const nala_params<D> &p, const shared_memory &m,
                                           const token_range &r, int number)
{
    using S = shape<D>;
    const uint32_t to = m.stages + number % STAGES * S::STAGE_BYTES;
    if (number < r.keys) {
        uint64_t *barrier = m.keys + number % STAGES;
        mbarrier_arrive_expect_tx(barrier, 2 * S::TILE_BYTES);
        load_tile(to, p.k, r.first + number * TILE, barrier);
        load_tile(to + S::TILE_BYTES, p.v, r.first + number * TILE, barrier);
    } else {
        for (int i = 0; i < 2; i++) {
            const int tile = 2 * (number - r.keys) + i;
            if (tile >= r.queries)
                return;
            uint64_t *barrier = m.queries + tile % (2 * STAGES);
            mbarrier_arrive_expect_tx(barrier, S::TILE_BYTES);
            load_tile(to + i * S::TILE_BYTES, p.q, r.first + tile * TILE, barrier);
        }
    }
}

/* Scales of this warp's sixteen keys of a tile, and features of the keys' tail, [16, 16] in its place: of both halves
 * where it has eight dimensions, otherwise of the first half, those of the second at `second`. */
template <int D>
__device__ __forceinline__ void prepare_keys(uint32_t tile, uint32_t second, float lambda,
                                             __nv_bfloat16 *scales)
{
    using S = shape<D>;
    typedef nl_map<NL_FEATURES_COSINE, false, true> map;
    const int warp = threadIdx.x / 32, lane = threadIdx.x % 32;
    float sums[4] = {};
#pragma unroll
    for (int j = 0; j < 4; j++) {
        uint32_t raw[4];
        ldmatrix_x4(raw, wide_address(tile + warp * WIDE_ROWS, j));
        add_squares(sums, raw);
    }
    if constexpr (S::HAS_TAIL) {
        const uint32_t rows = tail_address(tile + WIDE_BYTES + warp * TAIL_ROWS);
        uint32_t raw[4], features[2][4];
        ldmatrix_x4(raw, rows);
        add_squares(sums, raw);
        __nv_bfloat162 scale[2];
#pragma unroll
        for (int i = 0; i < 2; i++)
            scale[i] = nl_pair_of(map::key_scalars(make_float2(sums[2 * i], 0.f), lambda).scale);
        if (lane % 4 == 0)
            scales[lane / 4] = scale[0].x, scales[lane / 4 + 8] = scale[1].x;
#pragma unroll
        for (int i = 0; i < (S::ODD ? 2 : 4); i++)
            nl_key_pair<true>(raw[i], nl_bits(scale[i % 2]), lambda, &features[0][i],
                              S::ODD ? &features[0][i + 2] : &features[1][i]);
        __syncwarp();
        stmatrix_x4(rows, features[0]);
        if constexpr (!S::ODD)
            stmatrix_x4(tail_address(second + warp * TAIL_ROWS), features[1]);
        fence_proxy_async(); /* TMA writes there next */
    } else if (lane % 4 < 2) {
        const float2 sum = make_float2(lane % 4 == 0 ? sums[0] : sums[2], 0.f);
        scales[lane / 4 + lane % 4 * 8] = __float2bfloat16(map::key_scalars(sum, lambda).scale);
    }
}

/* Sums over tokens of a warp group: S of both halves of the features as its products leave them, and z, of which all
 * columns hold the same. Row lane / 4 of the warp's sixteen is in elements 4 n and 4 n + 1, row lane / 4 + 8 in the
 * next. */
template <int D> struct state_sums {
    using S = shape<D>;
    float s[2][32], z[2][4];
    float tail_columns[2][8]; /* of S */
    /* Of the tail's features, sixteen rows a fragment, a warp has the columns of units warp, warp + 4 and warp + 8; warps
     * without a third have z in its place. */
    float tail[S::HAS_TAIL ? S::FRAGMENTS : 1][3][4];
};

/* What sixteen tokens, from `token` on, add to the sums of the tail's features, which prepare_keys has left at `first`
 * and `second`. vt, vt_tail: their rows of v. */
template <int D, bool ROPE>
__device__ __forceinline__ void accumulate_tail(const nl_nala::turning &turn, uint32_t first,
                                                uint32_t second, uint32_t vt, uint32_t vt_tail,
                                                int token, state_sums<D> &sums)
{
    using S = shape<D>;
    const int warp = threadIdx.x / 32, lane = threadIdx.x % 32;
    /* Row and columns of the fragment of features^T: tokens lane % 8 + lane / 16 * 8, features lane / 8 % 2 * 8. */
    const uint32_t features_at =
        (lane % 8 + lane / 16 * 8) * 32 + ((lane / 8 % 2 ^ lane / 4 % 2) << 4);
    uint32_t b[4], last[2];
    ldmatrix_x4_trans(b, vt + lane % 16 * 128 + ((warp + lane / 16 * 4 ^ lane % 8) << 4));
    ldmatrix_x2_trans(last[0], last[1],
                      vt_tail + lane % 16 * 32 + ((warp % 2 ^ lane / 4 % 2) << 4));
    /* Warps that have no third unit make z, which does not turn. One is enough, but a branch costs more. */
    const bool total = warp + 8 >= S::UNITS;
#pragma unroll
    for (int i = 0; i < 2; i++)
        last[i] = total ? 0x3f803f80 : last[i];
#pragma unroll
    for (int t = 0; t < S::FRAGMENTS; t++) {
        uint32_t features[4], turned[4];
        ldmatrix_x4_trans(features, (t == 0 ? first : second) + features_at);
#pragma unroll
        for (int i = 0; i < 4; i++)
            turned[i] =
                ROPE ? nl_nala::rotate_keys(turn, features[i], token + i / 2 * 8 + 2 * (lane % 4),
                                            WIDE + (S::ODD ? 0 : i % 2 * 8) + lane / 4)
                     : features[i];
        mma_m16n8k16(sums.tail[t][0], turned, b[0], b[1]);
        mma_m16n8k16(sums.tail[t][1], turned, b[2], b[3]);
#pragma unroll
        for (int i = 0; i < 4; i++)
            turned[i] = ROPE && !total ? turned[i] : features[i];
        mma_m16n8k16(sums.tail[t][2], turned, last[0], last[1]);
    }
}

template <int D, bool ROPE>
__device__ __forceinline__ void accumulate(const nala_params<D> &p, const shared_memory &m,
                                           const token_range &r, state_sums<D> &sums)
{
    using S = shape<D>;
    constexpr uint32_t ONES = 0x3f803f80;
    const int warp = threadIdx.x / 32, lane = threadIdx.x % 32;
    const nl_nala::turning turn = {p.rope, p.tokens, D};
    /* Row and columns of the fragment of k^T: tokens lane % 8 + lane / 16 * 8, dimensions 16 warp + lane / 8 % 2 * 8. */
    const uint32_t keys_at =
        (lane % 8 + lane / 16 * 8) * 128 + (((uint32_t)warp * 2 + lane / 8 % 2 ^ lane % 8) << 4);
#pragma unroll
    for (int i = 0; i < 4; i++)
        sums.z[0][i] = sums.z[1][i] = 0.f;
#pragma unroll
    for (int t = 0; t < S::FRAGMENTS; t++)
#pragma unroll
        for (int share = 0; share < 3; share++)
#pragma unroll
            for (int i = 0; i < 4; i++)
                sums.tail[t][share][i] = 0.f;

    for (int tile = 0; tile < r.keys; tile++) {
        const uint32_t kt = m.stages + tile % STAGES * S::STAGE_BYTES, values = kt + S::TILE_BYTES,
                       second = values + S::TILE_BYTES;
        const uint64_t vt = wide_descriptor(values), vt_tail = tail_descriptor(values + WIDE_BYTES);
        __nv_bfloat16 *scales = m.scales + tile % 2 * TILE;
        mbarrier_wait_parity(m.keys + tile % STAGES, tile / STAGES % 2);
        prepare_keys<D>(kt, second, p.lambda, scales + warp * 16);
        wgmma_wait_group<0>();
        __syncthreads(); /* scales are there for all; nobody needs the tile before */
        if (tile > 0 && threadIdx.x == 0)
            load_stage(p, m, r, tile + 1);
#pragma unroll
        for (int step = 0; step < TILE / 16; step++) {
            uint32_t raw[4], features[2][4];
            ldmatrix_x4_trans(raw, kt + keys_at + step * WIDE_ROWS);
#pragma unroll
            for (int i = 0; i < 4; i++)
                nl_key_pair<true>(
                    raw[i], *(const uint32_t *)(scales + step * 16 + i / 2 * 8 + 2 * (lane % 4)),
                    p.lambda, &features[0][i], &features[1][i]);
#pragma unroll
            for (int half = 0; half < 2; half++)
                mma_m16n8k16(sums.z[half], features[half], ONES, ONES);
            if (ROPE) /* the numerator alone */
#pragma unroll
                for (int i = 0; i < 4; i++)
#pragma unroll
                    for (int half = 0; half < 2; half++)
                        features[half][i] = nl_nala::rotate_keys(turn, features[half][i],
                                                                 r.first + tile * TILE + step * 16 +
                                                                     i / 2 * 8 + 2 * (lane % 4),
                                                                 warp * 16 + i % 2 * 8 + lane / 4);
            if (step > 1)
                wgmma_wait_group<1>();
            wgmma_fence();
#pragma unroll
            for (int half = 0; half < 2; half++) {
                wgmma_rs(sums.s[half], features[half], vt + step * WIDE_ROWS_16, tile + step > 0);
                if constexpr (S::HAS_TAIL)
                    wgmma_rs(sums.tail_columns[half], features[half], vt_tail + step * TAIL_ROWS_16,
                             tile + step > 0);
            }
            wgmma_commit_group();
            if constexpr (S::HAS_TAIL)
                accumulate_tail<D, ROPE>(turn, kt + WIDE_BYTES + step * TAIL_ROWS,
                                         second + step * TAIL_ROWS, values + step * WIDE_ROWS,
                                         values + WIDE_BYTES + step * TAIL_ROWS,
                                         r.first + tile * TILE + step * 16, sums);
        }
    }
    wgmma_wait_group<0>();
    warpgroup_fence_operand(sums.s[0]);
    warpgroup_fence_operand(sums.s[1]);
    if constexpr (S::HAS_TAIL) {
        warpgroup_fence_operand(sums.tail_columns[0]);
        warpgroup_fence_operand(sums.tail_columns[1]);
    }
}

/* Calls put(half, row of the tail, unit, two sums of neighbouring columns) for the tail's features, and
 * put_z(half, row, sum) once for each. */
template <int D, typename Put, typename PutZ>
__device__ __forceinline__ void for_tail(const state_sums<D> &sums, Put put, PutZ put_z)
{
    using S = shape<D>;
    const int lane = threadIdx.x % 32;
#pragma unroll
    for (int t = 0; t < S::FRAGMENTS; t++)
#pragma unroll
        for (int share = 0; share < 3; share++) {
            const float *x = sums.tail[t][share];
            const int unit = threadIdx.x / 32 + 4 * share;
            const int half = S::ODD ? 1 : t, row = lane / 4 + (S::ODD ? 0 : 8); /* of x[2], x[3] */
            if (share < 2 || unit < S::UNITS) {
                put(S::ODD ? 0 : t, lane / 4, unit, x[0], x[1]);
                put(half, row, unit, x[2], x[3]);
            } else if (unit == S::UNITS && lane % 4 == 0) {
                put_z(S::ODD ? 0 : t, lane / 4, x[0]);
                put_z(half, row, x[2]);
            }
        }
}

/* sums times scale to [FEATURES, D] and [FEATURES] in device memory, either NULL if it is not wanted; SAVED: for the
 * backward pass. */
template <int D, bool SAVED>
__device__ __forceinline__ void write_sums(const state_sums<D> &sums, float scale, float *state,
                                           float *total)
{
    using S = shape<D>;
    const int warp = threadIdx.x / 32, lane = threadIdx.x % 32;
#pragma unroll
    for (int half = 0; half < 2; half++) {
        const int f = S::template half_row<SAVED>(half) + warp * 16 + lane / 4;
        if (state) {
            float *to = state + f * D + lane % 4 * 2;
#pragma unroll
            for (int n = 0; n < S::UNITS; n++) {
                const float *x =
                    n < 8 ? sums.s[half] + 4 * n : sums.tail_columns[half] + 4 * (n - 8);
                *(float2 *)(to + 8 * n) = make_float2(x[0] * scale, x[1] * scale);
                *(float2 *)(to + 8 * D + 8 * n) = make_float2(x[2] * scale, x[3] * scale);
            }
        }
        if (total && lane % 4 == 0) {
            total[f] = sums.z[half][0] * scale;
            total[f + 8] = sums.z[half][2] * scale;
        }
    }
    for_tail(
        sums,
        [&](int half, int row, int unit, float a, float b) {
            const int f = S::template tail_row<SAVED>(half) + row;
            if (state)
                *(float2 *)(state + f * D + unit * 8 + lane % 4 * 2) =
                    make_float2(a * scale, b * scale);
        },
        [&](int half, int row, float a) {
            if (total)
                total[S::template tail_row<SAVED>(half) + row] = a * scale;
        });
}

/* The state of the whole sequence to shared memory, and where it is wanted to device memory. In shared memory features
 * of the tail follow both halves, of its own first half, then of its second. Columns beyond the head may hold anything:
 * what o has of them is never stored. */
template <int D>
__device__ __forceinline__ void finish_state(const nala_params<D> &p, const shared_memory &m,
                                             const state_sums<D> &sums)
{
    using S = shape<D>;
    const int warp = threadIdx.x / 32, lane = threadIdx.x % 32;
    const float mean = 1.f / p.tokens;
    const int64_t index = (int64_t)blockIdx.y * gridDim.x + blockIdx.x;
#pragma unroll
    for (int half = 0; half < 2; half++) {
        const int first = half * WIDE + warp * 16;
        store_sums(sums.s[half], mean, mean, m.state + first * 128);
        if constexpr (S::HAS_TAIL)
            store_sixteen(sums.tail_columns[half], mean, mean,
                          tail_address(m.state + S::STATE_WIDE_BYTES + first * 32));
        if (lane % 4 == 0) {
            m.z[first + lane / 4] = __float2bfloat16(sums.z[half][0] * mean);
            m.z[first + lane / 4 + 8] = __float2bfloat16(sums.z[half][2] * mean);
        }
    }
    constexpr int TAIL_SIZE = D - WIDE; /* features of its first half */
    for_tail(
        sums,
        [&](int half, int row, int unit, float a, float b) {
            const int f = 2 * WIDE + half * TAIL_SIZE + row;
            const uint32_t to =
                unit < 8 ? m.state + f * 128 + ((unit ^ f % 8) << 4)
                         : m.state + S::STATE_WIDE_BYTES + f * 32 + ((unit % 2 ^ f / 4 % 2) << 4);
            asm volatile("st.shared.b32 [%0], %1;" ::"r"(to + lane % 4 * 4),
                         "r"(pack_bf16x2(a * mean, b * mean))
                         : "memory");
        },
        [&](int half, int row, float a) {
            m.z[2 * WIDE + half * TAIL_SIZE + row] = __float2bfloat16(a * mean);
        });
    fence_proxy_async();
    write_sums<D, true>(sums, mean, p.saved_state ? p.saved_state + index * S::FEATURES * D : NULL,
                        p.saved_total ? p.saved_total + index * S::FEATURES : NULL);
}

/* Row in device memory of feature f as they lie in shared memory. */
template <int D, typename Int> __device__ __forceinline__ Int row_of(Int f)
{
    using S = shape<D>;
    if constexpr (!S::HAS_TAIL || S::ODD)
        return f;
    else
        return f < 2 * WIDE ? S::template half_row<false>(f / WIDE) + f % WIDE
                            : S::template tail_row<false>(f / TAIL % 2) + f % TAIL;
}

/* The state that reduce_kernel has left. */
template <int D>
__device__ __forceinline__ void load_state(const nala_params<D> &p, const shared_memory &m)
{
    using S = shape<D>;
    using From = device_shape<D>;
    const int64_t index = (int64_t)blockIdx.y * gridDim.x + blockIdx.x;
    const __nv_bfloat16 *from = p.state + index * From::STATE_ELEMENTS;
    for (int i = threadIdx.x; i < S::FEATURES * S::UNITS; i += THREADS) {
        const int f = i / S::UNITS, unit = i % S::UNITS;
        const uint4 x = *(const uint4 *)(from + row_of<D>(f) * From::STRIDE + unit * 8);
        const uint32_t to = !S::HAS_TAIL || unit < 8 ? m.state + f * 128 + ((unit ^ f % 8) << 4)
                                                     : m.state + S::STATE_WIDE_BYTES + f * 32 +
                                                           ((unit % 2 ^ f / 4 % 2) << 4);
        asm volatile("st.shared.v4.b32 [%0], {%1, %2, %3, %4};" ::"r"(to), "r"(x.x), "r"(x.y),
                     "r"(x.z), "r"(x.w)
                     : "memory");
    }
#pragma unroll
    for (int first = 0; first < S::FEATURES; first += THREADS) {
        const uint32_t f = first + threadIdx.x;
        if (first + THREADS <= S::FEATURES || f < S::FEATURES)
            m.z[f] = from[S::FEATURES * From::STRIDE + row_of<D>(f)];
    }
    fence_proxy_async();
}

template <int D, bool ROPE>
__device__ __forceinline__ void apply_state(const nala_params<D> &p, const shared_memory &m,
                                            const token_range &r)
{
    using S = shape<D>;
    const int warp = threadIdx.x / 32, lane = threadIdx.x % 32;
    const uint64_t state = wide_descriptor(m.state),
                   state_tail = tail_descriptor(m.state + S::STATE_WIDE_BYTES);
    const nl_nala::turning turn = {p.rope, p.tokens, D};
    uint32_t z[S::FEATURES / 16][2];
#pragma unroll
    for (int i = 0; i < S::FEATURES / 16; i++) {
        const __nv_bfloat16 *at = m.z + i * 16 + 2 * (lane % 4);
        z[i][0] = *(const uint32_t *)at, z[i][1] = *(const uint32_t *)(at + 8);
    }
    for (int tile = 0; tile < r.queries; tile++) {
        const int slot = (r.keys % STAGES * 2 + tile) % (2 * STAGES);
        const uint32_t at = m.stages + slot * S::TILE_BYTES + slot / 2 * S::SECOND_BYTES,
                       rows = at + warp * WIDE_ROWS, tail_rows = at + WIDE_BYTES + warp * TAIL_ROWS;
        mbarrier_wait_parity(m.queries + tile % (2 * STAGES), tile / (2 * STAGES) % 2);
        uint32_t raw[S::PADDED / 16][4];
        float norms[4] = {};
#pragma unroll
        for (int j = 0; j < S::PADDED / 16; j++) {
            ldmatrix_x4(raw[j], j < 4 ? wide_address(rows, j) : tail_address(tail_rows));
            add_squares(norms, raw[j]);
        }
        __nv_bfloat162 scale[2];
        float power[2], offset[2];
#pragma unroll
        for (int i = 0; i < 2; i++) {
            const nl_row_scalars row = nl_map<NL_FEATURES_COSINE, false, true>::query_scalars(
                make_float2(norms[2 * i], 0.f), p.lambda, p.tau, p.norm_scale);
            scale[i] = nl_pair_of(row.scale), power[i] = row.power;
            offset[i] = row.power * __log2f(row.scale);
        }
        float sums[32], tail_columns[8], denominator[4] = {};
#pragma unroll
        for (int j = 0; j < S::PADDED / 16; j++) {
            /* Sixteens of features: of dimensions 16 j on of both halves; of a tail of eight one with both halves. */
            const bool odd = S::ODD && j == 4;
            const int count = odd ? 1 : 2;
            uint32_t features[2][4];
#pragma unroll
            for (int i = 0; i < (odd ? 2 : 4); i++)
                nl_query_pair<true>(raw[j][i], scale[i % 2], power[i % 2], offset[i % 2],
                                    &features[0][i], odd ? &features[0][i + 2] : &features[1][i]);
            auto number = [&](int half) { return j < 4 ? 4 * half + j : 8 + half; };
#pragma unroll
            for (int half = 0; half < count; half++)
                mma_m16n8k16(denominator, features[half], z[number(half)][0], z[number(half)][1]);
            if (ROPE)
#pragma unroll
                for (int i = 0; i < 4; i++)
#pragma unroll
                    for (int half = 0; half < count; half++)
                        features[half][i] = nl_nala::rotate_query(
                            turn, features[half][i],
                            r.first + tile * TILE + warp * 16 + lane / 4 + i % 2 * 8,
                            j * 16 + (odd ? 0 : i / 2 * 8) + 2 * (lane % 4));
            if (j > 1)
                wgmma_wait_group<1>();
            wgmma_fence();
#pragma unroll
            for (int half = 0; half < count; half++) {
                wgmma_rs(sums, features[half], state + number(half) * WIDE_ROWS_16, j + half > 0);
                if constexpr (S::HAS_TAIL)
                    wgmma_rs(tail_columns, features[half], state_tail + number(half) * TAIL_ROWS_16,
                             j + half > 0);
            }
            wgmma_commit_group();
        }
        const float low = nl_reciprocal<false>(denominator[0] + 1e-6f),
                    high = nl_reciprocal<false>(denominator[2] + 1e-6f);
        wgmma_wait_group<0>();
        warpgroup_fence_operand(sums);
        __syncwarp();
        store_sums(sums, low, high, rows);
        if constexpr (S::HAS_TAIL) {
            warpgroup_fence_operand(tail_columns);
            store_sixteen(tail_columns, low, high, tail_address(tail_rows));
        }
        fence_proxy_async();
        __syncwarp();
        if (lane == 0)
            store_rows(p.out, r.first + tile * TILE + warp * 16, rows, tail_rows);
        /* The pair of queries after the next takes the place of this one. */
        if (tile % 2 == 1 && tile + 3 < r.queries) {
            if (lane == 0)
                tma_store_wait_read();
            __syncthreads();
            if (threadIdx.x == 0)
                load_stage(p, m, r, r.keys + (tile + 3) / 2);
        }
    }
    if (lane == 0)
        tma_store_wait_read();
}

/* Barriers are ready and the first stages on their way. All threads. */
template <int D>
__device__ __forceinline__ shared_memory begin(const nala_params<D> &p, const token_range &r)
{
    using S = shape<D>;
    extern __shared__ unsigned char unaligned[];
    unsigned char *stages = unaligned + bytes_to_aligned<1024>(unaligned);
    shared_memory m;
    m.stages = shared_address(stages), m.state = m.stages + STAGES * S::STAGE_BYTES;
    m.z = (__nv_bfloat16 *)(stages + STAGES * S::STAGE_BYTES + S::STATE_BYTES);
    m.scales = m.z + S::FEATURES;
    m.keys = (uint64_t *)(m.scales + 2 * TILE), m.queries = m.keys + STAGES;
    if (threadIdx.x == 0) {
        for (int i = 0; i < 3 * STAGES; i++)
            mbarrier_init(m.keys + i, 1);
        fence_mbarrier_init();
        for (int i = 0; i < STAGES; i++)
            load_stage(p, m, r, i);
    }
    __syncthreads();
    return m;
}

/* A whole sequence. grid (heads, batch) */
template <int D, bool ROPE>
__global__ void __launch_bounds__(THREADS, shape<D>::RESIDENT - ROPE)
    forward_kernel(const __grid_constant__ nala_params<D> p)
{
    const int count = (p.tokens + TILE - 1) / TILE;
    const token_range r = {0, count, count};
    const shared_memory m = begin(p, r);
    {
        state_sums<D> sums;
        accumulate<D, ROPE>(p, m, r, sums);
        finish_state(p, m, sums);
    }
    __syncthreads();
    if (threadIdx.x == 0)
        load_stage(p, m, r, count + 1);
    apply_state<D, ROPE>(p, m, r);
}

template <int D> __device__ __forceinline__ int chunk_tiles(const nala_params<D> &p)
{
    return (min(p.chunk, p.tokens - (int)blockIdx.z * p.chunk) + TILE - 1) / TILE;
}

/* Partial sums of a chunk. grid (heads, batch, chunks) */
template <int D, bool ROPE>
__global__ void __launch_bounds__(THREADS, shape<D>::RESIDENT - ROPE)
    partial_kernel(const __grid_constant__ nala_params<D> p)
{
    const token_range r = {(int)blockIdx.z * p.chunk, chunk_tiles(p), 0};
    const int64_t pairs = (int64_t)gridDim.x * gridDim.y;
    const int64_t index = blockIdx.z * pairs + (int64_t)blockIdx.y * gridDim.x + blockIdx.x;
    float *to = p.partial + index * device_shape<D>::PARTIAL_ELEMENTS;
    const shared_memory m = begin(p, r);
    state_sums<D> sums;
    accumulate<D, ROPE>(p, m, r, sums);
    write_sums<D, false>(sums, 1.f, to, to + shape<D>::FEATURES * D);
}

/* The queries of a chunk. grid (heads, batch, chunks) */
template <int D, bool ROPE>
__global__ void __launch_bounds__(THREADS, shape<D>::RESIDENT - ROPE)
    apply_kernel(const __grid_constant__ nala_params<D> p)
{
    const token_range r = {(int)blockIdx.z * p.chunk, 0, chunk_tiles(p)};
    const shared_memory m = begin(p, r);
    load_state(p, m);
    __syncthreads();
    apply_state<D, ROPE>(p, m, r);
}

} // namespace

/* A kernel of a warp group a block. */
template <int D>
static cudaError_t launch(void (*kernel)(nala_params<D>), const nala_params<D> &p, dim3 grid,
                          cudaStream_t stream)
{
    cudaError_t error = nl_allow_shared(kernel, shape<D>::SHARED_BYTES);
    if (error == cudaSuccess) {
        kernel<<<grid, THREADS, shape<D>::SHARED_BYTES, stream>>>(p);
        error = cudaGetLastError();
    }
    return error;
}

/* Boxes of `rows` tokens. */
template <bool HAS_TAIL>
static bool make_maps(head_maps<HAS_TAIL> *maps, const void *data, const head_tensor &t, int rows)
{
    if constexpr (HAS_TAIL)
        if (!make_head_tensor_map(&maps->tail, data, t, TAIL, rows))
            return false;
    return make_head_tensor_map(&maps->wide, data, t, WIDE, rows);
}

/* p has all but what lies in the workspace, and tensors. */
template <int D, bool ROPE>
static cudaError_t run(nala_params<D> p, nl_nala_problem a, int64_t batch, void *workspace,
                       cudaStream_t stream)
{
    const dim3 pairs(a.heads, (unsigned)batch);
    const int chunks = nl_nala::divide<device_shape<D>>(a, batch * a.heads, workspace);
    p.partial = a.partial, p.state = a.state, p.chunk = a.chunk;
    const head_tensor in = {D, a.tokens, a.heads, batch, a.stride, a.head_stride, a.image_stride};
    const head_tensor out = {
        D, a.tokens, a.heads, batch, a.out_stride, a.out_head_stride, a.out_image_stride};
    if (!make_maps(&p.q, a.q, in, TILE) || !make_maps(&p.k, a.k, in, TILE) ||
        !make_maps(&p.v, a.v, in, TILE) || !make_maps(&p.out, a.out, out, 16))
        return cudaErrorNotSupported;
    if (chunks == 1)
        return launch(forward_kernel<D, ROPE>, p, pairs, stream);
    const dim3 grid(pairs.x, pairs.y, (unsigned)chunks);
    cudaError_t error = launch(partial_kernel<D, ROPE>, p, grid, stream);
    if (error == cudaSuccess)
        error = nl_nala::reduce<D, NL_FEATURES_COSINE>(a, chunks, batch * a.heads, stream);
    return error == cudaSuccess ? launch(apply_kernel<D, ROPE>, p, grid, stream) : error;
}

template <int D>
static cudaError_t forward(const nl_nala_problem *a, int64_t batch, void *workspace,
                           cudaStream_t stream)
{
    nala_params<D> p = {};
    p.saved_state = a->saved_state, p.saved_total = a->saved_total;
    p.tokens = a->tokens, p.lambda = a->lambda, p.tau = a->tau;
    p.norm_scale = a->norm_scale, p.rope = a->rope;
    return a->rope.table ? run<D, true>(p, *a, batch, workspace, stream)
                         : run<D, false>(p, *a, batch, workspace, stream);
}

typedef cudaError_t (*forward_function)(const nl_nala_problem *a, int64_t batch, void *workspace,
                                        cudaStream_t stream);

/* NULL: no kernel for heads of this size. */
static forward_function forward_of(int head_size)
{
    switch (head_size) {
    case 64:
        return forward<64>;
    case 72:
        return forward<72>;
    case 80:
        return forward<80>;
    }
    return NULL;
}

bool nl_nala_sm90_serves(const nl_nala_problem *p, nl_feature_map map)
{
    int device = 0;
    const int64_t strides = p->stride | p->head_stride | p->image_stride | p->out_stride |
                            p->out_head_stride | p->out_image_stride;
    return forward_of(p->head_size) && map == NL_FEATURES_COSINE && !p->log_lambda &&
           p->lambda == 3.f && p->tau > 0.f && strides % 8 == 0 &&
           ((uintptr_t)p->q | (uintptr_t)p->k | (uintptr_t)p->v | (uintptr_t)p->out) % 16 == 0 &&
           cudaGetDevice(&device) == cudaSuccess && nl_is_hopper(device);
}

cudaError_t nl_nala_sm90_forward(const nl_nala_problem *a, int64_t batch, void *workspace,
                                 cudaStream_t stream)
{
    const forward_function function = forward_of(a->head_size);
    return function ? function(a, batch, workspace, stream) : cudaErrorNotSupported;
}
