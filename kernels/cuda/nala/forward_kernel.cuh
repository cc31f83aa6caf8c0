/* SPDX-License-Identifier: MIT */
/*
 * NaLa attention forward on tensor cores, bf16 in and out, fp32 sums. q, k, v are read once, o is written once, and
 * features exist in registers only.
 *
 *   state   S[f, j] = 1/N sum_i phi_k(k_i)[f] v_i[j], z[f] = 1/N sum_i phi_k(k_i)[f]
 *   apply   o_t = phi_q(q_t) S / (phi_q(q_t) . z + 1e-6)
 *
 * Layout. A block has a warp for every 16 dimensions. A tile of k lies in shared memory as it lies in device memory,
 * [token][dimension]; ldmatrix.trans hands a warp the fragment of k^T [16 dimensions x 16 tokens] that mma.m16n8k16 wants
 * as A, and the map is applied to the fragment in place: one fragment of k becomes one of each half of the features. So
 * warp w owns dimensions 16 w .. 16 w + 15 in both halves, over all tokens, and S needs no reduction between warps. For
 * the queries the A fragment is [16 tokens x 16 dimensions], straight ldmatrix, and S in bf16 is the B operand. z is a
 * product with ones.
 *
 * Eight dimensions that are left over (heads of 72) make one fragment of both halves: its rows 0-7 are the first half,
 * 8-15 the second. All warps compute it and share out its columns.
 *
 * A warp copies the 16 tokens of a tile itself whose norms it needs, so that a tile costs one barrier in `state` and none
 * in `apply`.
 *
 * Short sequences (one chunk): one kernel, one block for each (image, head), state then apply. Long ones: a block for
 * each chunk of tokens leaves its partial S, z in fp32; a small kernel adds the chunks in order; a third applies.
 */
#ifndef NL_NALA_TENSOR_CORE_CUH
#define NL_NALA_TENSOR_CORE_CUH

#include "features.cuh"
#include "prim/cp_async.cuh"
#include "prim/mma.cuh"
#include "rope.cuh"

struct nl_nala_problem {
    const __nv_bfloat16 *q, *k,
        *v; /* of image 0, head 0; rows of tokens `stride` apart, heads head_size apart */
    __nv_bfloat16 *out;                                    /* rows `out_stride` apart */
    int64_t image_stride, head_stride, stride;             /* elements, of q, k, v */
    int64_t out_image_stride, out_head_stride, out_stride; /* elements, of out */
    int tokens, heads, chunk;                              /* tokens of one block */
    int head_size; /* a multiple of 8, at most the kernel's D; what lies between counts as zeros */
    float lambda, tau, norm_scale;
    float *partial;                    /* [chunks, B h, (F D + F)] fp32: S, z; or NULL */
    __nv_bfloat16 *state;              /* [B h, (F STRIDE + F)] for the apply kernel: S, z */
    nl_nala_rope rope;                 /* public-code.md E */
    float *saved_state;                /* [B h, F, d], or NULL: for the backward pass */
    float *saved_total;                /* [B h, F] */
    const float *log_lambda, *log_tau; /* [h], of each head in place of lambda and tau; or NULL */
};

namespace nl_nala
{

using namespace nl_prim;

/* Tokens that one block takes. Up to here a block has a whole head; longer sequences are cut into chunks of this many.
 * By the length alone, so that a result does not depend on the batch: at 65,536 tokens and six heads it makes 384
 * blocks, three for each multiprocessor of the largest cards. */
enum { CHUNK = 1024 };

static inline int chunk_count(int64_t tokens)
{
    return (int)((tokens + CHUNK - 1) / CHUNK);
}

template <int D, int HALVES> struct shape {
    static constexpr int WARPS = D / 16;   /* each owns 16 dimensions, and 16 tokens of a tile */
    static constexpr int ODD = D % 16 / 8; /* eight more dimensions? */
    static constexpr int THREADS = 32 * WARPS;
    static constexpr int TILE = 16 * WARPS; /* tokens */
    static constexpr int RESIDENT =
        D <= 72 ? 4 : 1; /* blocks a multiprocessor, for the register budget */
    static constexpr int EVEN =
        HALVES * 16 * WARPS; /* features, but for those of the odd fragment */
    static constexpr int F = EVEN + 16 * ODD;
    static constexpr int NT = D / 8; /* tiles of eight columns of v */
    static constexpr int SHARE =
        (NT + WARPS) / WARPS; /* of the odd fragment's columns and its z, for a warp */
    /* Row stride: an odd number of 16-byte units, so that eight rows fall into eight bank groups. */
    static constexpr int STRIDE = ODD ? D : D + 8;
    static constexpr int TILE_ELEMENTS = TILE * STRIDE;
    static constexpr int STATE_ELEMENTS = F * STRIDE + F;
    static constexpr int PARTIAL_ELEMENTS = F * D + F;
    /* Stages of two tiles, (k, v) or queries; the state takes the place of the last k and v, in the last stage. (Three
     * stages, which leave room for four blocks at 64 too, were 3 % slower on an H200.) */
    static constexpr int STAGES = 2;
    static constexpr int QUERY_TILES = 2 * (STAGES - 1);
    static constexpr int STAGE_ELEMENTS = 2 * TILE_ELEMENTS;
    static constexpr int STATE_AT = (STAGES - 1) * STAGE_ELEMENTS;
    static constexpr int LAST_ELEMENTS =
        STAGE_ELEMENTS > STATE_ELEMENTS ? STAGE_ELEMENTS : STATE_ELEMENTS;
    static constexpr int SHARED_BYTES = 2 * (STATE_AT + LAST_ELEMENTS) + 4 * 2 * TILE;

    /* Half and dimension of feature f. */
    __device__ __forceinline__ static int half_of(int f)
    {
        return f < EVEN ? f / (16 * WARPS) : (f - EVEN) / 8;
    }
    __device__ __forceinline__ static int dimension_of(int f)
    {
        return f < EVEN ? f % (16 * WARPS) : 16 * WARPS + (f - EVEN) % 8;
    }
};

/* Bytes of the partial sums of a long sequence, behind which its states lie. */
template <typename S> static inline int64_t partial_bytes(int64_t pairs, int chunks)
{
    return 4 * chunks * pairs * S::PARTIAL_ELEMENTS;
}
template <typename S> static inline int64_t workspace_bytes(int64_t pairs, int chunks)
{
    return chunks == 1 ? 0 : partial_bytes<S>(pairs, chunks) + 2 * pairs * S::STATE_ELEMENTS;
}
/* Sets chunk, partial and state; returns how many chunks of whole tiles there are. */
template <typename S> static inline int divide(nl_nala_problem &p, int64_t pairs, void *workspace)
{
    const int chunks = chunk_count(p.tokens), tiles = (p.tokens + S::TILE - 1) / S::TILE;
    p.chunk = (tiles + chunks - 1) / chunks * S::TILE;
    p.partial = (float *)workspace;
    p.state = (__nv_bfloat16 *)((char *)workspace + partial_bytes<S>(pairs, chunks));
    return (p.tokens + p.chunk - 1) / p.chunk;
}

/* Up to 3 groups may still be under way. */
__device__ __forceinline__ void cp_async_wait_groups(int n)
{
    if (n == 0)
        cp_async_wait_group<0>();
    else if (n == 1)
        cp_async_wait_group<1>();
    else if (n == 2)
        cp_async_wait_group<2>();
    else
        cp_async_wait_group<3>();
}

/* Queues the copy of this warp's 16 of a tile's tokens, which begins at `first`: zeros beyond `last` and the head. */
template <int D, typename S>
__device__ __forceinline__ void load_tile(__nv_bfloat16 *tile, const __nv_bfloat16 *from,
                                          const nl_nala_problem &p, int first, int last)
{
    constexpr int CHUNKS = D / 8, COUNT = 16 * CHUNKS;
    const int warp = threadIdx.x / 32, lane = threadIdx.x % 32;
#pragma unroll
    for (int round = 0; round < (COUNT + 31) / 32; round++) {
        const int i = lane + round * 32, row = warp * 16 + i / CHUNKS, chunk = i % CHUNKS;
        if (COUNT % 32 == 0 || i < COUNT)
            cp_async(shared_address(tile + row * S::STRIDE + chunk * 8),
                     from + min(first + row, last - 1) * p.stride + min(chunk * 8, p.head_size - 8),
                     first + row < last && chunk * 8 < p.head_size);
    }
}

/* Norms through the tensor cores: adds the squares of a fragment [16 rows x 16] to the sums of its rows. Every column of
 * `sums` gets the same: rows lane / 4 in sums[0], lane / 4 + 8 in sums[2]. */
__device__ __forceinline__ void add_squares(float (&sums)[4], const uint32_t (&raw)[4])
{
    const uint32_t ones = 0x3f803f80;
    uint32_t squares[4];
#pragma unroll
    for (int i = 0; i < 4; i++)
        squares[i] = nl_bits(__hmul2(nl_pair(raw[i]), nl_pair(raw[i])));
    mma_m16n8k16(sums, squares, ones, ones);
}

/* A fragment [16 tokens x 16 dimensions] of this warp's tokens, dimensions 16 m on: matrices of rows 0-7, 8-15 of the
 * first eight dimensions, then of the others, which are zeros for the eight that are left over. */
template <typename S>
__device__ __forceinline__ void load_tokens(uint32_t (&raw)[4], const __nv_bfloat16 *rows, int m)
{
    const int lane = threadIdx.x % 32;
    if (m < S::WARPS) {
        ldmatrix_x4(raw, shared_address(rows + lane % 16 * S::STRIDE + m * 16 + lane / 16 * 8));
    } else {
        ldmatrix_x2(raw[0], raw[1], shared_address(rows + lane % 16 * S::STRIDE + m * 16));
        raw[2] = raw[3] = 0;
    }
}

/* The scalars of this warp's keys of a tile, as the map's elements want them: bf16 for the packed maps, fp32 for the
 * others. */
template <int D, int MAP, bool CUBE, typename S>
__device__ __forceinline__ void key_scales(const nl_nala_problem &p, const __nv_bfloat16 *kt,
                                           float *scale)
{
    const int warp = threadIdx.x / 32, lane = threadIdx.x % 32;
    if constexpr (nl_packed<MAP>) {
        float sums[4] = {};
#pragma unroll
        for (int m = 0; m < S::WARPS + S::ODD; m++) {
            uint32_t raw[4];
            load_tokens<S>(raw, kt + warp * 16 * S::STRIDE, m);
            add_squares(sums, raw);
        }
        if (lane % 4 < 2) {
            const float sum = lane % 4 == 0 ? sums[0] : sums[2];
            ((__nv_bfloat16 *)scale)[warp * 16 + lane / 4 + lane % 4 * 8] = __float2bfloat16(
                nl_map<MAP, false, CUBE>::key_scalars(make_float2(sum, 0.f), p.lambda).scale);
        }
    } else { /* two threads a token */
        const int row = threadIdx.x / 2, side = threadIdx.x % 2;
        float2 sums = make_float2(0.f, 0.f);
        for (int column = side * 8; column < D; column += 16)
#pragma unroll
            for (int i = 0; i < 8; i++) {
                const float2 a = nl_map<MAP, false, CUBE>::row_terms(
                    __bfloat162float(kt[row * S::STRIDE + column + i]), p.lambda);
                sums.x += a.x, sums.y += a.y;
            }
        sums.x += __shfl_xor_sync(~0u, sums.x, 1), sums.y += __shfl_xor_sync(~0u, sums.y, 1);
        if (side == 0)
            scale[row] = nl_map<MAP, false, CUBE>::key_scalars(sums, p.lambda).scale;
    }
}

/* The scalars of the two queries (rows lane / 4 and lane / 4 + 8) that a thread's fragments hold. */
template <int D, int MAP, bool CUBE, typename S>
__device__ __forceinline__ void query_scalars(const nl_nala_problem &p,
                                              const uint32_t (&raw)[S::WARPS + S::ODD][4],
                                              nl_row_scalars (&row)[2])
{
    if constexpr (nl_packed<MAP>) {
        float sums[4] = {};
#pragma unroll
        for (int m = 0; m < S::WARPS + S::ODD; m++)
            add_squares(sums, raw[m]);
        row[0] = nl_map<MAP, false, CUBE>::query_scalars(make_float2(sums[0], 0.f), p.lambda, p.tau,
                                                         p.norm_scale);
        row[1] = nl_map<MAP, false, CUBE>::query_scalars(make_float2(sums[2], 0.f), p.lambda, p.tau,
                                                         p.norm_scale);
    } else {
#pragma unroll
        for (int r = 0; r < 2; r++) {
            float2 sums = make_float2(0.f, 0.f);
#pragma unroll
            for (int m = 0; m < S::WARPS + S::ODD; m++)
#pragma unroll
                for (int i = r; i < 4; i += 2) {
                    const float2 pair = unpack_bf16x2(raw[m][i]);
                    const float2 a = nl_map<MAP, false, CUBE>::row_terms(pair.x, p.lambda);
                    const float2 b = nl_map<MAP, false, CUBE>::row_terms(pair.y, p.lambda);
                    sums.x += a.x + b.x, sums.y += a.y + b.y;
                }
#pragma unroll
            for (int offset = 1; offset < 4; offset *= 2) {
                sums.x += __shfl_xor_sync(~0u, sums.x, offset);
                sums.y += __shfl_xor_sync(~0u, sums.y, offset);
            }
            row[r] = nl_map<MAP, false, CUBE>::query_scalars(sums, p.lambda, p.tau, p.norm_scale);
        }
    }
}

/* Both halves of the features of two neighbouring tokens' keys in one dimension; scale: of the tile's tokens from `at` on,
 * of which `left` are there. */
template <int MAP, bool CUBE>
__device__ __forceinline__ void key_features(uint32_t raw, const float *scale, int at, int left,
                                             float lambda, uint32_t &first, uint32_t &second)
{
    if constexpr (nl_packed<MAP>) {
        nl_key_pair<CUBE>(raw, *(const uint32_t *)((const __nv_bfloat16 *)scale + at), lambda,
                          &first, &second);
    } else {
        const float2 pair = unpack_bf16x2(raw), s = *(const float2 *)(scale + at);
        float2 a = nl_map<MAP, false, CUBE>::key_feature(pair.x, nl_row_scalars{s.x, lambda});
        float2 b = nl_map<MAP, false, CUBE>::key_feature(pair.y, nl_row_scalars{s.y, lambda});
        if (nl_map<MAP, false, CUBE>::OF_ZERO) { /* keys that are not there count for nothing */
            a.x = at < left ? a.x : 0.f;
            b.x = at + 1 < left ? b.x : 0.f;
        }
        second = pack_bf16x2(a.y, b.y);
        first = pack_bf16x2(a.x, b.x); /* last: with one half they are the same */
    }
}

/* (cos, sin) of the angle by which dimension `dim` of a token turns. What is not there turns by anything. */
struct turning {
    const nl_nala_rope &rope;
    int tokens, head_size;

    __device__ __forceinline__ float2 operator()(int token, int dim) const
    {
        return nl_turn_of(rope, nl_place_of(rope, min(token, tokens - 1)), min(dim, head_size - 1),
                          head_size);
    }
};

/* Features of keys, two neighbouring tokens in one dimension, whose partner is the next lane's but three. */
__device__ __forceinline__ uint32_t rotate_keys(const turning &turn, uint32_t x, int token, int dim)
{
    const float2 own = unpack_bf16x2(x), other = unpack_bf16x2(__shfl_xor_sync(~0u, x, 4));
    const float2 a = turn(token, dim), b = turn(token + 1, dim);
    const float sign = dim % 2 ? 1.f : -1.f;
    return pack_bf16x2(fmaf(own.x, a.x, sign * other.x * a.y),
                       fmaf(own.y, b.x, sign * other.y * b.y));
}

/* Features of a query in two neighbouring dimensions. */
__device__ __forceinline__ uint32_t rotate_query(const turning &turn, uint32_t x, int token,
                                                 int dim)
{
    const float2 f = unpack_bf16x2(x), a = turn(token, dim);
    return pack_bf16x2(fmaf(f.x, a.x, -f.y * a.y), fmaf(f.y, a.x, f.x * a.y));
}

/* Sums over tokens in a warp's registers: rows are features, columns those of v. */
template <typename S, int HALVES> struct partial_state {
    float s[HALVES][S::NT][4]; /* of 16 dimensions */
    float z[HALVES][4];        /* all columns hold the same */
    float odd[S::ODD ? S::SHARE : 1]
             [4]; /* of the odd fragment, columns n = warp, warp + WARPS, ...; NT is z */
};

/* Calls put(feature, column, value of it, value of its right neighbour) for all of S that this warp has, and
 * put_z(feature, value). */
template <typename S, int HALVES, typename Put, typename PutZ>
__device__ __forceinline__ void for_state(const partial_state<S, HALVES> &sums, Put put, PutZ put_z)
{
    const int warp = threadIdx.x / 32, lane = threadIdx.x % 32;
#pragma unroll
    for (int half = 0; half < HALVES; half++)
#pragma unroll
        for (int i = 0; i < 2; i++) {
            const int f = (half * S::WARPS + warp) * 16 + lane / 4 + i * 8;
#pragma unroll
            for (int n = 0; n < S::NT; n++)
                put(f, n * 8 + lane % 4 * 2, sums.s[half][n][2 * i], sums.s[half][n][2 * i + 1]);
            if (lane % 4 == 0)
                put_z(f, sums.z[half][2 * i]);
        }
    if (S::ODD)
#pragma unroll
        for (int at = 0; at < S::SHARE; at++) {
            const int n = at * S::WARPS + warp;
#pragma unroll
            for (int i = 0; i < 2; i++) {
                const int f = S::EVEN + lane / 4 + i * 8;
                if (n < S::NT)
                    put(f, n * 8 + lane % 4 * 2, sums.odd[at][2 * i], sums.odd[at][2 * i + 1]);
                else if (n == S::NT && lane % 4 == 0)
                    put_z(f, sums.odd[at][2 * i]);
            }
        }
}

/* Pair `pair` of query tiles to its stage, one group of copies. */
template <int D, typename S>
__device__ __forceinline__ void fetch_queries(const nl_nala_problem &p, const __nv_bfloat16 *q,
                                              int first, int last, int pair, __nv_bfloat16 *stages)
{
    for (int tile = 2 * pair; tile < 2 * pair + 2; tile++)
        if (first + tile * S::TILE < last)
            load_tile<D, S>(stages + tile % S::QUERY_TILES * S::TILE_ELEMENTS, q, p,
                            first + tile * S::TILE, last);
    cp_async_commit_group();
}

/* The state of tokens [first, last), unscaled. The stages go round so that the last tile lies in the last one, and
 * then(i) may fill the others: it is called for each of them as it becomes free, and queues one group of copies. */
template <int D, int MAP, bool CUBE, bool ROPE, typename S, typename Then>
__device__ __forceinline__ void accumulate_state(const nl_nala_problem &p, const __nv_bfloat16 *k,
                                                 const __nv_bfloat16 *v, int first, int last,
                                                 __nv_bfloat16 *stages, float *scales,
                                                 partial_state<S, nl_halves<MAP>> &sums, Then then)
{
    constexpr int HALVES = nl_halves<MAP>;
    constexpr uint32_t ONES = 0x3f803f80;
    const int warp = threadIdx.x / 32, lane = threadIdx.x % 32;
    const int count = (last - first + S::TILE - 1) / S::TILE;
    const turning turn = {p.rope, p.tokens, p.head_size};

    auto stage_of = [&](int tile) {
        return stages + (tile + S::STAGES - count % S::STAGES) % S::STAGES * S::STAGE_ELEMENTS;
    };
    auto fetch = [&](int tile) {
        if (tile >= count) {
            then(tile - count);
            return;
        }
        __nv_bfloat16 *stage = stage_of(tile);
        load_tile<D, S>(stage, k, p, first + tile * S::TILE, last);
        load_tile<D, S>(stage + S::TILE_ELEMENTS, v, p, first + tile * S::TILE, last);
        cp_async_commit_group();
    };
    for (int tile = 0; tile < S::STAGES - 1; tile++)
        fetch(tile);
    for (int tile = 0; tile < count; tile++) {
        const __nv_bfloat16 *kt = stage_of(tile), *vt = kt + S::TILE_ELEMENTS;
        float *scale = scales + tile % 2 * S::TILE;
        cp_async_wait_group<S::STAGES - 2>();
        __syncwarp();
        key_scales<D, MAP, CUBE, S>(p, kt, scale);
        __syncthreads(); /* the tile and its scales are there for all; nobody needs the one before */
        fetch(tile + S::STAGES - 1);

#pragma unroll
        for (int step = 0; step < S::TILE / 16; step++) {
            const int token = step * 16;
            const int left = last - first - tile * S::TILE;
            uint32_t features[HALVES][4], odd[4] = {};
            {
                /* Matrices: (dimensions 0-7, 8-15) x (tokens 0-7), then the same for tokens 8-15. A thread's columns
                 * of A: tokens 2 (lane % 4) + {0, 1} and 8 more. */
                uint32_t raw[4];
                ldmatrix_x4_trans(
                    raw, shared_address(kt + (token + lane % 8 + lane / 16 * 8) * S::STRIDE +
                                        warp * 16 + lane / 8 % 2 * 8));
#pragma unroll
                for (int i = 0; i < 4; i++)
                    key_features<MAP, CUBE>(raw[i], scale, token + i / 2 * 8 + 2 * (lane % 4), left,
                                            p.lambda, features[0][i], features[HALVES - 1][i]);
            }
            if (S::ODD) {
                uint32_t raw[2], unused;
                ldmatrix_x2_trans(
                    raw[0], raw[1],
                    shared_address(kt + (token + lane % 16) * S::STRIDE + 16 * S::WARPS));
#pragma unroll
                for (int i = 0; i < 2; i++)
                    key_features<MAP, CUBE>(raw[i], scale, token + i * 8 + 2 * (lane % 4), left,
                                            p.lambda, odd[2 * i],
                                            HALVES == 2 ? odd[2 * i + 1] : unused);
            }
#pragma unroll
            for (int half = 0; half < HALVES; half++)
                mma_m16n8k16(sums.z[half], features[half], ONES, ONES);
            if (S::ODD && S::NT % S::WARPS == warp)
                mma_m16n8k16(sums.odd[S::ODD ? S::NT / S::WARPS : 0], odd, ONES, ONES);
            if (ROPE) /* the numerator alone */
#pragma unroll
                for (int i = 0; i < 4; i++) {
                    const int at = first + tile * S::TILE + token + i / 2 * 8 + 2 * (lane % 4);
#pragma unroll
                    for (int half = 0; half < HALVES; half++)
                        features[half][i] = rotate_keys(turn, features[half][i], at,
                                                        warp * 16 + i % 2 * 8 + lane / 4);
                    if (S::ODD)
                        odd[i] = rotate_keys(turn, odd[i], at, 16 * S::WARPS + lane / 4);
                }
#pragma unroll
            for (int n = 0; n < S::NT; n += 2) {
                uint32_t b[4];
                load_b_fragments<S::NT, S::STRIDE>(b, vt + token * S::STRIDE, n);
#pragma unroll
                for (int j = 0; j < 2 && n + j < S::NT; j++) {
#pragma unroll
                    for (int half = 0; half < HALVES; half++)
                        mma_m16n8k16(sums.s[half][n + j], features[half], b[2 * j], b[2 * j + 1]);
                    if (S::ODD && (n + j) % S::WARPS == warp)
                        mma_m16n8k16(sums.odd[S::ODD ? (n + j) / S::WARPS : 0], odd, b[2 * j],
                                     b[2 * j + 1]);
                }
            }
        }
    }
}

/* o for tokens [first, last) from the state in shared memory; the first pairs of queries are on
 * their way. A warp works alone. */
template <int D, int MAP, bool CUBE, bool ROPE, typename S>
__device__ __forceinline__ void apply_state(const nl_nala_problem &p, const __nv_bfloat16 *q,
                                            __nv_bfloat16 *out, int first, int last,
                                            const __nv_bfloat16 *state, __nv_bfloat16 *tiles)
{
    constexpr int HALVES = nl_halves<MAP>;
    const int warp = threadIdx.x / 32, lane = threadIdx.x % 32;
    const int count = (last - first + S::TILE - 1) / S::TILE;
    const __nv_bfloat16 *z = state + S::F * S::STRIDE;
    const turning turn = {p.rope, p.tokens, p.head_size};

    for (int tile = 0; tile < count; tile++) {
        __nv_bfloat16 *whole = tiles + tile % S::QUERY_TILES * S::TILE_ELEMENTS,
                      *rows = whole + warp * 16 * S::STRIDE;
        /* Groups after this tile's: of the pairs that were queued first, then one for each tile that has passed. */
        cp_async_wait_groups(min(S::STAGES - 2 + (tile + 1) / 2, S::QUERY_TILES - 1));
        __syncwarp();
        uint32_t raw[S::WARPS + S::ODD][4];
#pragma unroll
        for (int m = 0; m < S::WARPS + S::ODD; m++)
            load_tokens<S>(raw[m], rows, m);
        nl_row_scalars row[2];
        query_scalars<D, MAP, CUBE, S>(p, raw, row);
        const float offset[2] = {row[0].power * __log2f(row[0].scale),
                                 row[1].power * __log2f(row[1].scale)};
        const __nv_bfloat162 scale[2] = {nl_pair_of(row[0].scale), nl_pair_of(row[1].scale)};
        auto query_features = [&](uint32_t x, int r, int column, uint32_t &one, uint32_t &two) {
            if constexpr (nl_packed<MAP>) {
                nl_query_pair<CUBE>(x, scale[r], row[r].power, offset[r], &one, &two);
            } else {
                const float2 pair = unpack_bf16x2(x);
                const float2 a = nl_map<MAP, false, CUBE>::query_feature(pair.x, row[r]);
                const float2 b = nl_map<MAP, false, CUBE>::query_feature(pair.y, row[r]);
                const bool there = !nl_map<MAP, false, CUBE>::OF_ZERO || column < p.head_size;
                two = pack_bf16x2(a.y, b.y);
                one = there ? pack_bf16x2(a.x, b.x) : 0; /* last: with one half they are the same */
            }
        };

        float acc[S::NT][4] = {}, denominator[4] = {};
        /* Features from f on, which belong to the dimensions from dim0 and, the last eight, from dim1 on. */
        auto multiply_state = [&](uint32_t(&features)[4], int f, int dim0, int dim1) {
            const __nv_bfloat16 *z_at = z + f + 2 * (lane % 4);
            mma_m16n8k16(denominator, features, *(const uint32_t *)z_at,
                         *(const uint32_t *)(z_at + 8));
            if (ROPE)
#pragma unroll
                for (int i = 0; i < 4; i++)
                    features[i] =
                        rotate_query(turn, features[i],
                                     first + tile * S::TILE + warp * 16 + lane / 4 + i % 2 * 8,
                                     (i < 2 ? dim0 : dim1) + 2 * (lane % 4));
#pragma unroll
            for (int n = 0; n < S::NT; n += 2) {
                uint32_t b[4];
                load_b_fragments<S::NT, S::STRIDE>(b, state + f * S::STRIDE, n);
                mma_m16n8k16(acc[n], features, b[0], b[1]);
                if (n + 1 < S::NT)
                    mma_m16n8k16(acc[n + 1 < S::NT ? n + 1 : n], features, b[2], b[3]);
            }
        };
#pragma unroll
        for (int m = 0; m < S::WARPS; m++) {
            uint32_t features[HALVES][4];
#pragma unroll
            for (int i = 0; i < 4; i++)
                query_features(raw[m][i], i % 2, m * 16 + i / 2 * 8, features[0][i],
                               features[HALVES - 1][i]);
#pragma unroll
            for (int half = 0; half < HALVES; half++)
                multiply_state(features[half], (half * S::WARPS + m) * 16, m * 16, m * 16 + 8);
        }
        if (S::ODD) { /* features 0-7: the first half, 8-15: the second */
            uint32_t features[4] = {}, unused;
#pragma unroll
            for (int r = 0; r < 2; r++)
                query_features(raw[S::WARPS + S::ODD - 1][r], r, 16 * S::WARPS, features[r],
                               HALVES == 2 ? features[r + 2] : unused);
            multiply_state(features, S::EVEN, 16 * S::WARPS, 16 * S::WARPS);
        }

        const float low = 1.f / (denominator[0] + 1e-6f), high = 1.f / (denominator[2] + 1e-6f);
        __syncwarp();
#pragma unroll
        for (int n = 0; n < S::NT;
             n++) { /* through the warp's own rows of the tile to whole lines */
            *(uint32_t *)(rows + lane / 4 * S::STRIDE + n * 8 + lane % 4 * 2) =
                pack_bf16x2(acc[n][0] * low, acc[n][1] * low);
            *(uint32_t *)(rows + (lane / 4 + 8) * S::STRIDE + n * 8 + lane % 4 * 2) =
                pack_bf16x2(acc[n][2] * high, acc[n][3] * high);
        }
        __syncwarp();
        constexpr int CHUNKS = D / 8;
        const int token = first + tile * S::TILE + warp * 16;
#pragma unroll
        for (int i = lane; i < 16 * CHUNKS; i += 32) {
            const int r = i / CHUNKS, chunk = i % CHUNKS;
            if (token + r < last && chunk * 8 < p.head_size)
                *(uint4 *)(out + (token + r) * p.out_stride + chunk * 8) =
                    *(const uint4 *)(rows + r * S::STRIDE + chunk * 8);
        }
        __syncwarp();
        if (tile + S::QUERY_TILES < count)
            load_tile<D, S>(whole, q, p, first + (tile + S::QUERY_TILES) * S::TILE, last);
        cp_async_commit_group();
    }
    cp_async_wait_group<0>();
}

/* One block for each (image, head): grid (heads, batch). */
template <int D, int MAP, bool CUBE, bool ROPE, bool LEARNT>
__global__ void __launch_bounds__(shape<D, nl_halves<MAP>>::THREADS,
                                  shape<D, nl_halves<MAP>>::RESIDENT)
    fused_kernel(const nl_nala_problem given)
{
    nl_nala_problem own;
    const nl_nala_problem &p = nl_of_head<LEARNT>(given, &own);
    constexpr int HALVES = nl_halves<MAP>;
    using S = shape<D, HALVES>;
    extern __shared__ __align__(16) unsigned char shared[];
    __nv_bfloat16 *stages = (__nv_bfloat16 *)shared, *state = stages + S::STATE_AT;
    float *scales = (float *)(state + S::LAST_ELEMENTS);
    const int64_t offset = blockIdx.y * p.image_stride + blockIdx.x * p.head_stride;
    const int64_t index = (int64_t)blockIdx.y * gridDim.x + blockIdx.x;

    {
        partial_state<S, HALVES> sums = {};
        accumulate_state<D, MAP, CUBE, ROPE, S>(
            p, p.k + offset, p.v + offset, 0, p.tokens, stages, scales, sums,
            [&](int pair) { fetch_queries<D, S>(p, p.q + offset, 0, p.tokens, pair, stages); });
        __syncthreads();
        const float mean = 1.f / p.tokens;
        const int d = p.head_size;
        for_state(
            sums,
            [&](int f, int column, float a, float b) {
                a *= mean, b *= mean;
                *(uint32_t *)(state + f * S::STRIDE + column) = pack_bf16x2(a, b);
                const int half = S::half_of(f), dim = S::dimension_of(f);
                if (p.saved_state && half < HALVES && dim < d && column < d)
                    *(float2 *)(p.saved_state + ((index * HALVES + half) * d + dim) * d + column) =
                        make_float2(a, b);
            },
            [&](int f, float a) {
                a *= mean;
                state[S::F * S::STRIDE + f] = __float2bfloat16(a);
                const int half = S::half_of(f), dim = S::dimension_of(f);
                if (p.saved_total && half < HALVES && dim < d)
                    p.saved_total[(index * HALVES + half) * d + dim] = a;
            });
    }
    __syncthreads();
    apply_state<D, MAP, CUBE, ROPE, S>(
        p, p.q + offset, p.out + blockIdx.y * p.out_image_stride + blockIdx.x * p.out_head_stride,
        0, p.tokens, state, stages);
}

/* grid (heads, batch, chunks): partial sums of one chunk. */
template <int D, int MAP, bool CUBE, bool ROPE, bool LEARNT>
__global__ void __launch_bounds__(shape<D, nl_halves<MAP>>::THREADS,
                                  shape<D, nl_halves<MAP>>::RESIDENT)
    partial_kernel(const nl_nala_problem given)
{
    nl_nala_problem own;
    const nl_nala_problem &p = nl_of_head<LEARNT>(given, &own);
    constexpr int HALVES = nl_halves<MAP>;
    using S = shape<D, HALVES>;
    extern __shared__ __align__(16) unsigned char shared[];
    __nv_bfloat16 *stages = (__nv_bfloat16 *)shared;
    float *scales = (float *)(stages + S::STATE_AT + S::LAST_ELEMENTS);
    const int64_t offset = blockIdx.y * p.image_stride + blockIdx.x * p.head_stride;
    const int64_t pairs = (int64_t)gridDim.x * gridDim.y;
    const int64_t index = (int64_t)blockIdx.y * gridDim.x + blockIdx.x;
    const int first = blockIdx.z * p.chunk, last = min(first + p.chunk, p.tokens);

    partial_state<S, HALVES> sums = {};
    accumulate_state<D, MAP, CUBE, ROPE, S>(p, p.k + offset, p.v + offset, first, last, stages,
                                            scales, sums, [](int) { cp_async_commit_group(); });
    float *to = p.partial + (blockIdx.z * pairs + index) * S::PARTIAL_ELEMENTS;
    for_state(
        sums,
        [&](int f, int column, float a, float b) {
            *(float2 *)(to + f * D + column) = make_float2(a, b);
        },
        [&](int f, float a) { to[S::F * D + f] = a; });
}

/* Adds the chunks in order; one thread for two neighbours. grid (PARTIAL_ELEMENTS / 512, B h). */
template <int D, int MAP>
static __global__ void reduce_kernel(const nl_nala_problem p, int chunks, int64_t pairs)
{
    constexpr int HALVES = nl_halves<MAP>;
    using S = shape<D, HALVES>;
    const int i = (blockIdx.x * blockDim.x + threadIdx.x) * 2, d = p.head_size;
    if (i >= S::PARTIAL_ELEMENTS)
        return;
    const int64_t index = blockIdx.y, step = pairs * S::PARTIAL_ELEMENTS;
    const float *from = p.partial + index * S::PARTIAL_ELEMENTS + i;
    float2 sum = make_float2(0.f, 0.f);
#pragma unroll 8
    for (int c = 0; c < chunks; c++) {
        const float2 x = *(const float2 *)(from + c * step);
        sum.x += x.x, sum.y += x.y;
    }
    const float mean = 1.f / p.tokens;
    sum.x *= mean, sum.y *= mean;
    const bool total = i >= S::F * D;
    const int f = total ? i - S::F * D : i / D, column = i % D;
    __nv_bfloat16 *state = p.state + index * S::STATE_ELEMENTS;
    *(uint32_t *)(state + (total ? S::F * S::STRIDE + f : f * S::STRIDE + column)) =
        pack_bf16x2(sum.x, sum.y);
    const int half = S::half_of(f), dim = S::dimension_of(f);
    const int64_t row = (index * HALVES + half) * d + dim;
    if (half >= HALVES || dim >= d)
        return;
    if (!total && p.saved_state && column < d)
        *(float2 *)(p.saved_state + row * d + column) = sum;
    if (total && p.saved_total) /* neighbours in f: dimensions come in eights, so both are there */
        p.saved_total[row] = sum.x, p.saved_total[row + 1] = sum.y;
}

template <int D, int MAP>
static cudaError_t reduce(const nl_nala_problem &p, int chunks, int64_t pairs, cudaStream_t stream)
{
    using S = shape<D, nl_halves<MAP>>;
    reduce_kernel<D, MAP>
        <<<dim3((S::PARTIAL_ELEMENTS + 511) / 512, (unsigned)pairs), 256, 0, stream>>>(p, chunks,
                                                                                       pairs);
    return cudaGetLastError();
}

/* grid (heads, batch, chunks) */
template <int D, int MAP, bool CUBE, bool ROPE, bool LEARNT>
__global__ void __launch_bounds__(shape<D, nl_halves<MAP>>::THREADS,
                                  shape<D, nl_halves<MAP>>::RESIDENT)
    apply_kernel(const nl_nala_problem given)
{
    nl_nala_problem own;
    const nl_nala_problem &p = nl_of_head<LEARNT>(given, &own);
    using S = shape<D, nl_halves<MAP>>;
    extern __shared__ __align__(16) unsigned char shared[];
    __nv_bfloat16 *stages = (__nv_bfloat16 *)shared, *state = stages + S::STATE_AT;
    const int64_t index = (int64_t)blockIdx.y * gridDim.x + blockIdx.x;
    const int first = blockIdx.z * p.chunk, last = min(first + p.chunk, p.tokens);
    const __nv_bfloat16 *q = p.q + blockIdx.y * p.image_stride + blockIdx.x * p.head_stride;
    for (int pair = 0; pair < S::STAGES - 1; pair++)
        fetch_queries<D, S>(p, q, first, last, pair, stages);
    const __nv_bfloat16 *from = p.state + index * S::STATE_ELEMENTS;
    for (int i = threadIdx.x; i < S::F * S::NT + S::F / 8; i += S::THREADS) {
        const int at = i < S::F * S::NT ? i / S::NT * S::STRIDE + i % S::NT * 8
                                        : S::F * S::STRIDE + (i - S::F * S::NT) * 8; /* z */
        *(uint4 *)(state + at) = *(const uint4 *)(from + at);
    }
    __syncthreads();
    apply_state<D, MAP, CUBE, ROPE, S>(
        p, q, p.out + blockIdx.y * p.out_image_stride + blockIdx.x * p.out_head_stride, first, last,
        state, stages);
}

} // namespace nl_nala

#endif
