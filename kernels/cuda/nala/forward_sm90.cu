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
    D = 64,    /* of a head */
    TILE = 64, /* tokens */
    FEATURES = 2 * D,
    THREADS = 128,
    STAGES = 2,
    RESIDENT = 4, /* blocks a multiprocessor; with rope one less, for the registers of angles */
    TILE_BYTES = TILE * D * 2,
    STAGE_BYTES = 2 * TILE_BYTES,
    STATE_BYTES = FEATURES * D * 2,
    ROWS_BYTES = 16 * D * 2, /* of a warp */
    Z_BYTES = FEATURES * 2,
    SCALES_BYTES = 2 * TILE * 2,
    SHARED_BYTES = 1024 + STAGES * STAGE_BYTES + STATE_BYTES + Z_BYTES + SCALES_BYTES + 64
};
typedef nl_nala::shape<D, 2> shape; /* of partial sums and states in device memory */

struct nala_params {
    CUtensorMap q, k, v, out; /* [batch, heads, tokens, D] */
    float *saved_state;       /* [B h, FEATURES, D], or NULL */
    float *saved_total;       /* [B h, FEATURES], or NULL */
    float *partial;           /* as in nl_nala_problem */
    const __nv_bfloat16 *state;
    int tokens, chunk;
    float lambda, tau, norm_scale;
    nl_nala_rope rope;
};

struct shared_memory {
    uint32_t stages, state;   /* addresses */
    __nv_bfloat16 *z;         /* [FEATURES] */
    __nv_bfloat16 *scales;    /* [2][TILE] */
    uint64_t *keys, *queries; /* barriers [STAGES], [2 STAGES] */
};

/* A tile of the block's head. */
__device__ __forceinline__ void load_tile(uint32_t to, const CUtensorMap *map, int token,
                                          uint64_t *barrier)
{
    tma_load(to, map, 0, token, blockIdx.x, blockIdx.y, shared_address(barrier));
}
/* Rows of one warp, to tokens from `token` on; those beyond the last are left out. */
__device__ __forceinline__ void store_rows(const CUtensorMap *map, int token, uint32_t from)
{
    tma_store(map, 0, token, blockIdx.x, blockIdx.y, from);
    tma_store_commit_group();
}

/* sums [64, 64] of a warp group as bf16, those of this warp to its sixteen rows at `rows`. */
__device__ __forceinline__ void store_sums(const float (&d)[32], float low, float high,
                                           uint32_t rows)
{
#pragma unroll
    for (int j = 0; j < 4; j++) {
        const float *x = d + 8 * j;
        const uint32_t words[4] = {
            pack_bf16x2(x[0] * low, x[1] * low), pack_bf16x2(x[2] * high, x[3] * high),
            pack_bf16x2(x[4] * low, x[5] * low), pack_bf16x2(x[6] * high, x[7] * high)};
        stmatrix_x4(wide_address(rows, j), words);
    }
}

/* What a block goes through: tiles of keys, then of queries, from a token on. */
struct token_range {
    int first, keys, queries;
};

/* Stage `number` of the block's: a tile of k and v each, then pairs of queries. By one thread. */
__device__ __forceinline__ void load_stage(const nala_params &p, const shared_memory &m,
                                           const token_range &r, int number)
{
    const uint32_t to = m.stages + number % STAGES * STAGE_BYTES;
    if (number < r.keys) {
        uint64_t *barrier = m.keys + number % STAGES;
        mbarrier_arrive_expect_tx(barrier, STAGE_BYTES);
        load_tile(to, &p.k, r.first + number * TILE, barrier);
        load_tile(to + TILE_BYTES, &p.v, r.first + number * TILE, barrier);
    } else {
        for (int i = 0; i < 2; i++) {
            const int tile = 2 * (number - r.keys) + i;
            if (tile >= r.queries)
                return;
            uint64_t *barrier = m.queries + tile % (2 * STAGES);
            mbarrier_arrive_expect_tx(barrier, TILE_BYTES);
            load_tile(to + i * TILE_BYTES, &p.q, r.first + tile * TILE, barrier);
        }
    }
}

/* Scales of the sixteen keys at `rows`. */
__device__ __forceinline__ void key_scales(uint32_t rows, float lambda, __nv_bfloat16 *scales)
{
    const int lane = threadIdx.x % 32;
    float sums[4] = {};
#pragma unroll
    for (int j = 0; j < 4; j++) {
        uint32_t raw[4];
        ldmatrix_x4(raw, wide_address(rows, j));
        add_squares(sums, raw);
    }
    if (lane % 4 < 2) {
        const float2 sum = make_float2(lane % 4 == 0 ? sums[0] : sums[2], 0.f);
        scales[lane / 4 + lane % 4 * 8] = __float2bfloat16(
            nl_map<NL_FEATURES_COSINE, false, true>::key_scalars(sum, lambda).scale);
    }
}

/* Sums over tokens of a warp group: S of both halves of the features as its products leave them, and z, of which all
 * columns hold the same. Row lane / 4 of the warp's sixteen is in elements 4 n and 4 n + 1, row lane / 4 + 8 in the next. */
struct state_sums {
    float s[2][32], z[2][4];
};

template <bool ROPE>
__device__ __forceinline__ void accumulate(const nala_params &p, const shared_memory &m,
                                           const token_range &r, state_sums &sums)
{
    constexpr uint32_t ONES = 0x3f803f80;
    const int warp = threadIdx.x / 32, lane = threadIdx.x % 32;
    const nl_nala::turning turn = {p.rope, p.tokens, D};
    /* Row and columns of the fragment of k^T: tokens lane % 8 + lane / 16 * 8, dimensions 16 warp + lane / 8 % 2 * 8. */
    const uint32_t keys_at =
        (lane % 8 + lane / 16 * 8) * 128 + (((uint32_t)warp * 2 + lane / 8 % 2 ^ lane % 8) << 4);
#pragma unroll
    for (int i = 0; i < 4; i++)
        sums.z[0][i] = sums.z[1][i] = 0.f;

    for (int tile = 0; tile < r.keys; tile++) {
        const uint32_t kt = m.stages + tile % STAGES * STAGE_BYTES;
        const uint64_t vt = wide_descriptor(kt + TILE_BYTES);
        __nv_bfloat16 *scales = m.scales + tile % 2 * TILE;
        mbarrier_wait_parity(m.keys + tile % STAGES, tile / STAGES % 2);
        key_scales(kt + warp * ROWS_BYTES, p.lambda, scales + warp * 16);
        wgmma_wait_group<0>();
        __syncthreads(); /* scales are there for all; nobody needs the tile before */
        if (tile > 0 && threadIdx.x == 0)
            load_stage(p, m, r, tile + 1);
#pragma unroll
        for (int step = 0; step < TILE / 16; step++) {
            uint32_t raw[4], features[2][4];
            ldmatrix_x4_trans(raw, kt + keys_at + step * ROWS_BYTES);
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
            for (int half = 0; half < 2; half++)
                wgmma_rs(sums.s[half], features[half], vt + step * WIDE_ROWS_16, tile + step > 0);
            wgmma_commit_group();
        }
    }
    wgmma_wait_group<0>();
    warpgroup_fence_operand(sums.s[0]);
    warpgroup_fence_operand(sums.s[1]);
}

/* sums times scale to [FEATURES, D] and [FEATURES] in device memory, either NULL if it is not wanted. */
__device__ __forceinline__ void write_sums(const state_sums &sums, float scale, float *state,
                                           float *total)
{
    const int warp = threadIdx.x / 32, lane = threadIdx.x % 32;
#pragma unroll
    for (int half = 0; half < 2; half++) {
        const int f = half * D + warp * 16 + lane / 4;
        if (state) {
            float *to = state + f * D + lane % 4 * 2;
#pragma unroll
            for (int n = 0; n < 8; n++) {
                const float *x = sums.s[half] + 4 * n;
                *(float2 *)(to + 8 * n) = make_float2(x[0] * scale, x[1] * scale);
                *(float2 *)(to + 8 * D + 8 * n) = make_float2(x[2] * scale, x[3] * scale);
            }
        }
        if (total && lane % 4 == 0) {
            total[f] = sums.z[half][0] * scale;
            total[f + 8] = sums.z[half][2] * scale;
        }
    }
}

/* The state of the whole sequence to shared memory, and where it is wanted to device memory. */
__device__ __forceinline__ void finish_state(const nala_params &p, const shared_memory &m,
                                             const state_sums &sums)
{
    const int warp = threadIdx.x / 32, lane = threadIdx.x % 32;
    const float mean = 1.f / p.tokens;
    const int64_t index = (int64_t)blockIdx.y * gridDim.x + blockIdx.x;
#pragma unroll
    for (int half = 0; half < 2; half++) {
        const int first = half * D + warp * 16;
        store_sums(sums.s[half], mean, mean, m.state + first * 128);
        if (lane % 4 == 0) {
            m.z[first + lane / 4] = __float2bfloat16(sums.z[half][0] * mean);
            m.z[first + lane / 4 + 8] = __float2bfloat16(sums.z[half][2] * mean);
        }
    }
    fence_proxy_async();
    write_sums(sums, mean, p.saved_state ? p.saved_state + index * FEATURES * D : NULL,
               p.saved_total ? p.saved_total + index * FEATURES : NULL);
}

/* The state that reduce_kernel has left. */
__device__ __forceinline__ void load_state(const nala_params &p, const shared_memory &m)
{
    const int64_t index = (int64_t)blockIdx.y * gridDim.x + blockIdx.x;
    const __nv_bfloat16 *from = p.state + index * shape::STATE_ELEMENTS;
    for (int i = threadIdx.x; i < FEATURES * D / 8; i += THREADS) {
        const int f = i / (D / 8), unit = i % (D / 8);
        const uint4 x = *(const uint4 *)(from + f * shape::STRIDE + unit * 8);
        asm volatile("st.shared.v4.b32 [%0], {%1, %2, %3, %4};" ::"r"(m.state + f * 128 +
                                                                      ((unit ^ f % 8) << 4)),
                     "r"(x.x), "r"(x.y), "r"(x.z), "r"(x.w)
                     : "memory");
    }
    m.z[threadIdx.x] = from[FEATURES * shape::STRIDE + threadIdx.x];
    fence_proxy_async();
}

template <bool ROPE>
__device__ __forceinline__ void apply_state(const nala_params &p, const shared_memory &m,
                                            const token_range &r)
{
    const int warp = threadIdx.x / 32, lane = threadIdx.x % 32;
    const uint64_t state = wide_descriptor(m.state);
    const nl_nala::turning turn = {p.rope, p.tokens, D};
    uint32_t z[8][2];
#pragma unroll
    for (int i = 0; i < 8; i++) {
        const __nv_bfloat16 *at = m.z + i * 16 + 2 * (lane % 4);
        z[i][0] = *(const uint32_t *)at, z[i][1] = *(const uint32_t *)(at + 8);
    }
    for (int tile = 0; tile < r.queries; tile++) {
        const int slot = (r.keys % STAGES * 2 + tile) % (2 * STAGES);
        const uint32_t rows = m.stages + slot * TILE_BYTES + warp * ROWS_BYTES;
        mbarrier_wait_parity(m.queries + tile % (2 * STAGES), tile / (2 * STAGES) % 2);
        uint32_t raw[4][4];
        float norms[4] = {};
#pragma unroll
        for (int j = 0; j < 4; j++) {
            ldmatrix_x4(raw[j], wide_address(rows, j));
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
        float sums[32], denominator[4] = {};
#pragma unroll
        for (int j = 0; j < 4; j++) {
            uint32_t features[2][4];
#pragma unroll
            for (int i = 0; i < 4; i++)
                nl_query_pair<true>(raw[j][i], scale[i % 2], power[i % 2], offset[i % 2],
                                    &features[0][i], &features[1][i]);
#pragma unroll
            for (int half = 0; half < 2; half++)
                mma_m16n8k16(denominator, features[half], z[4 * half + j][0], z[4 * half + j][1]);
            if (ROPE)
#pragma unroll
                for (int i = 0; i < 4; i++)
#pragma unroll
                    for (int half = 0; half < 2; half++)
                        features[half][i] = nl_nala::rotate_query(
                            turn, features[half][i],
                            r.first + tile * TILE + warp * 16 + lane / 4 + i % 2 * 8,
                            j * 16 + i / 2 * 8 + 2 * (lane % 4));
            if (j > 1)
                wgmma_wait_group<1>();
            wgmma_fence();
#pragma unroll
            for (int half = 0; half < 2; half++)
                wgmma_rs(sums, features[half], state + (4 * half + j) * WIDE_ROWS_16, j + half > 0);
            wgmma_commit_group();
        }
        const float low = nl_reciprocal<false>(denominator[0] + 1e-6f),
                    high = nl_reciprocal<false>(denominator[2] + 1e-6f);
        wgmma_wait_group<0>();
        warpgroup_fence_operand(sums);
        __syncwarp();
        store_sums(sums, low, high, rows);
        fence_proxy_async();
        __syncwarp();
        if (lane == 0)
            store_rows(&p.out, r.first + tile * TILE + warp * 16, rows);
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
__device__ __forceinline__ shared_memory begin(const nala_params &p, const token_range &r)
{
    extern __shared__ unsigned char unaligned[];
    unsigned char *stages = unaligned + bytes_to_aligned<1024>(unaligned);
    shared_memory m;
    m.stages = shared_address(stages), m.state = m.stages + STAGES * STAGE_BYTES;
    m.z = (__nv_bfloat16 *)(stages + STAGES * STAGE_BYTES + STATE_BYTES);
    m.scales = m.z + FEATURES;
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
template <bool ROPE>
__global__ void __launch_bounds__(THREADS, RESIDENT - ROPE)
    forward_kernel(const __grid_constant__ nala_params p)
{
    const int count = (p.tokens + TILE - 1) / TILE;
    const token_range r = {0, count, count};
    const shared_memory m = begin(p, r);
    {
        state_sums sums;
        accumulate<ROPE>(p, m, r, sums);
        finish_state(p, m, sums);
    }
    __syncthreads();
    if (threadIdx.x == 0)
        load_stage(p, m, r, count + 1);
    apply_state<ROPE>(p, m, r);
}

__device__ __forceinline__ int chunk_tiles(const nala_params &p)
{
    return (min(p.chunk, p.tokens - (int)blockIdx.z * p.chunk) + TILE - 1) / TILE;
}

/* Partial sums of a chunk. grid (heads, batch, chunks) */
template <bool ROPE>
__global__ void __launch_bounds__(THREADS, RESIDENT - ROPE)
    partial_kernel(const __grid_constant__ nala_params p)
{
    const token_range r = {(int)blockIdx.z * p.chunk, chunk_tiles(p), 0};
    const int64_t pairs = (int64_t)gridDim.x * gridDim.y;
    const int64_t index = blockIdx.z * pairs + (int64_t)blockIdx.y * gridDim.x + blockIdx.x;
    float *to = p.partial + index * shape::PARTIAL_ELEMENTS;
    const shared_memory m = begin(p, r);
    state_sums sums;
    accumulate<ROPE>(p, m, r, sums);
    write_sums(sums, 1.f, to, to + FEATURES * D);
}

/* The queries of a chunk. grid (heads, batch, chunks) */
template <bool ROPE>
__global__ void __launch_bounds__(THREADS, RESIDENT - ROPE)
    apply_kernel(const __grid_constant__ nala_params p)
{
    const token_range r = {(int)blockIdx.z * p.chunk, 0, chunk_tiles(p)};
    const shared_memory m = begin(p, r);
    load_state(p, m);
    __syncthreads();
    apply_state<ROPE>(p, m, r);
}

} // namespace

bool nl_nala_sm90_serves(const nl_nala_problem *p, nl_feature_map map)
{
    int device = 0;
    const int64_t strides = p->stride | p->head_stride | p->image_stride | p->out_stride |
                            p->out_head_stride | p->out_image_stride;
    return p->head_size == D && map == NL_FEATURES_COSINE && !p->log_lambda && p->lambda == 3.f &&
           p->tau > 0.f && strides % 8 == 0 &&
           ((uintptr_t)p->q | (uintptr_t)p->k | (uintptr_t)p->v | (uintptr_t)p->out) % 16 == 0 &&
           cudaGetDevice(&device) == cudaSuccess && nl_is_hopper(device);
}

/* A kernel of a warp group a block. */
static cudaError_t launch(void (*kernel)(nala_params), const nala_params &p, dim3 grid,
                          cudaStream_t stream)
{
    cudaError_t error = nl_allow_shared(kernel, SHARED_BYTES);
    if (error == cudaSuccess) {
        kernel<<<grid, THREADS, SHARED_BYTES, stream>>>(p);
        error = cudaGetLastError();
    }
    return error;
}

/* p has all but what lies in the workspace, and tensors. */
template <bool ROPE>
static cudaError_t run(nala_params p, nl_nala_problem a, int64_t batch, void *workspace,
                       cudaStream_t stream)
{
    const dim3 pairs(a.heads, (unsigned)batch);
    const int chunks = nl_nala::divide<shape>(a, batch * a.heads, workspace);
    p.partial = a.partial, p.state = a.state, p.chunk = a.chunk;
    const head_tensor in = {D, a.tokens, a.heads, batch, a.stride, a.head_stride, a.image_stride};
    const head_tensor out = {
        D, a.tokens, a.heads, batch, a.out_stride, a.out_head_stride, a.out_image_stride};
    if (!make_head_tensor_map(&p.q, a.q, in, WIDE, TILE) ||
        !make_head_tensor_map(&p.k, a.k, in, WIDE, TILE) ||
        !make_head_tensor_map(&p.v, a.v, in, WIDE, TILE) ||
        !make_head_tensor_map(&p.out, a.out, out, WIDE, 16))
        return cudaErrorNotSupported;
    if (chunks == 1)
        return launch(forward_kernel<ROPE>, p, pairs, stream);
    const dim3 grid(pairs.x, pairs.y, (unsigned)chunks);
    cudaError_t error = launch(partial_kernel<ROPE>, p, grid, stream);
    if (error == cudaSuccess)
        error = nl_nala::reduce<D, NL_FEATURES_COSINE>(a, chunks, batch * a.heads, stream);
    return error == cudaSuccess ? launch(apply_kernel<ROPE>, p, grid, stream) : error;
}

cudaError_t nl_nala_sm90_forward(const nl_nala_problem *a, int64_t batch, void *workspace,
                                 cudaStream_t stream)
{
    nala_params p = {};
    p.saved_state = a->saved_state, p.saved_total = a->saved_total;
    p.tokens = a->tokens, p.lambda = a->lambda, p.tau = a->tau;
    p.norm_scale = a->norm_scale, p.rope = a->rope;
    return a->rope.table ? run<true>(p, *a, batch, workspace, stream)
                         : run<false>(p, *a, batch, workspace, stream);
}
