/* SPDX-License-Identifier: MIT */
/*
 * Softmax attention forward on Hopper, bf16 in and out, fp32 sums; never a T x T matrix.
 *
 * A work tile is 64 GROUPS queries of one (image, head); a block takes every gridDim.x-th. Each of its GROUPS warp
 * groups has 64 of the queries and walks over all tiles of KEYS keys:
 *
 *   scores  s [64, KEYS] = q [64, d] k [KEYS, d]^T
 *   values  o [64, d] += exp(s scale - row_max) [64, KEYS] v [KEYS, d]: what comes out of the one product, made exponentials,
 *           is element by element the A operand of the other
 *
 * The scores of the next tile and the values of this one start together; while the tensor cores add up the values, the
 * exponentials of the next are taken, and other groups are at other points. Exponentials are base 2, the scale folded in;
 * o and the sum move to a new maximum only where it is RESCALE_THRESHOLD larger, for 2 to that power is far
 * from overflow in fp32 and bf16.
 *
 * Tiles pass through a ring of stages, which runs on into the next work tile, as do queries through two buffers. The warps,
 * all of them consumers, take turns as producer of what comes into a stage, LEAD tiles ahead: a producer warp of its own would
 * take the registers of four, and if the last to leave a stage refilled it, it would fall behind the more. Heads beyond 64 have a tail of
 * 16 dimensions, zeros behind the last.
 *
 * (Tried on an H200 and slower: scores behind the values or a whole tile ahead of the exponentials, an order of turns
 * among the groups, two blocks a multiprocessor. Queries in registers as A operands of all tiles: nvcc 13.0 gives
 * registers of loop-invariant A operands to others.)
 */
#ifndef NL_CUDA_SOFTMAX_KERNEL_CUH
#define NL_CUDA_SOFTMAX_KERNEL_CUH

#include "forward_sm90.cuh"

#include "prim/mma.cuh"
#include "prim/shared_limit.cuh"
#include "prim/tma.cuh"
#include "prim/wgmma.cuh"

namespace nl_softmax_sm90
{

using namespace nl_prim;

/* 64 GROUPS queries, number `block` of those of a head. */
struct work_tile {
    int block, head, image;
};

struct softmax_params {
    CUtensorMap q, k, v, out;                     /* [batch, heads, tokens, head size] */
    CUtensorMap q_tail, k_tail, v_tail, out_tail; /* the same in boxes of TAIL columns */
    float *lse;                                   /* [B h, T] or NULL */
    int batch, heads, tokens;
    int tiles, blocks; /* of keys, of queries in a sequence */
    work_tile step;    /* from a work tile of a block to its next */
    float scale_log2;  /* scale * log2(e) */
};

template <bool HAS_TAIL_, int GROUPS_, int KEYS_> struct shape {
    static constexpr bool HAS_TAIL = HAS_TAIL_;
    static constexpr int GROUPS = GROUPS_, KEYS = KEYS_;
    static constexpr int QUERIES = 64 * GROUPS, THREADS = 128 * GROUPS, WARPS = 4 * GROUPS;
    static constexpr int ROW_BYTES = 2 * (WIDE + (HAS_TAIL ? TAIL : 0));
    static constexpr int QUERY_BYTES = QUERIES * ROW_BYTES, STAGE_BYTES = 2 * KEYS * ROW_BYTES;
    static constexpr int FIXED_BYTES =
        1024 + 3 * QUERY_BYTES + 256; /* alignment, two of queries and one of results, barriers */
    static constexpr int FIT = (232448 - FIXED_BYTES) / STAGE_BYTES;
    static constexpr int STAGES = FIT < 8 ? FIT : 8;
    static constexpr int LEAD = (STAGES + 1) / 2, LAG = STAGES - LEAD;
    static constexpr int SHARED_BYTES = FIXED_BYTES + STAGES * STAGE_BYTES;
};

constexpr float RESCALE_THRESHOLD = 8.f;

/* Addresses, aligned to 1,024 bytes. Each array has its wide rows, then those of its tail. */
template <typename S> struct shared_memory {
    uint32_t start;

    __device__ __forceinline__ uint32_t queries(int buffer) const /* [QUERIES, 64], [QUERIES, 16] */
    {
        return start + buffer * S::QUERY_BYTES;
    }
    __device__ __forceinline__ uint32_t out() const
    {
        return start + 2 * S::QUERY_BYTES;
    }
    __device__ __forceinline__ uint32_t keys(int stage) const
    {
        return start + 3 * S::QUERY_BYTES + stage * S::STAGE_BYTES;
    }
    __device__ __forceinline__ uint32_t values(int stage) const
    {
        return keys(stage) + S::KEYS * 128;
    }
    __device__ __forceinline__ uint32_t tail_keys(int stage) const
    {
        return keys(stage) + S::KEYS * 256;
    }
    __device__ __forceinline__ uint32_t tail_values(int stage) const
    {
        return tail_keys(stage) + S::KEYS * 32;
    }
    /* Barriers: what was sent for is there, all warps have left it. */
    __device__ __forceinline__ uint32_t full(int stage) const
    {
        return keys(S::STAGES) + stage * 8;
    }
    __device__ __forceinline__ uint32_t empty(int stage) const
    {
        return full(S::STAGES + stage);
    }
    __device__ __forceinline__ uint32_t queries_full(int buffer) const
    {
        return full(2 * S::STAGES + buffer);
    }
    __device__ __forceinline__ uint32_t queries_empty(int buffer) const
    {
        return full(2 * S::STAGES + 2 + buffer);
    }
};

/* The next work tile of the block; beyond the last its image is none of the batch. */
__device__ __forceinline__ work_tile after(const softmax_params &p, work_tile at)
{
    at.block += p.step.block, at.head += p.step.head, at.image += p.step.image;
    if (at.block >= p.blocks)
        at.block -= p.blocks, at.head++;
    if (at.head >= p.heads)
        at.head -= p.heads, at.image++;
    return at;
}

/* ---- Copies, each by one thread */

template <typename S>
__device__ __forceinline__ void load_queries(const softmax_params &p, const shared_memory<S> &m,
                                             const work_tile &at, int buffer)
{
    const uint32_t to = m.queries(buffer), full = m.queries_full(buffer);
    const int token = at.block * S::QUERIES;
    mbarrier_arrive_expect_tx(full, S::QUERY_BYTES);
    tma_load(to, &p.q, 0, token, at.head, at.image, full);
    if (S::HAS_TAIL)
        tma_load(to + S::QUERIES * 128, &p.q_tail, WIDE, token, at.head, at.image, full);
}

/* To `stage` what comes `tile` tiles after the first of the work tile, if anything does. */
template <typename S>
__device__ __forceinline__ void load_keys(const softmax_params &p, const shared_memory<S> &m,
                                          work_tile at, int tile, int stage)
{
    for (; tile >= p.tiles; tile -= p.tiles)
        at = after(p, at);
    if (at.image >= p.batch)
        return;
    const int token = tile * S::KEYS;
    const uint32_t full = m.full(stage);
    mbarrier_arrive_expect_tx(full, S::STAGE_BYTES);
    tma_load(m.keys(stage), &p.k, 0, token, at.head, at.image, full);
    if (S::HAS_TAIL)
        tma_load(m.tail_keys(stage), &p.k_tail, WIDE, token, at.head, at.image, full);
    tma_load(m.values(stage), &p.v, 0, token, at.head, at.image, full);
    if (S::HAS_TAIL)
        tma_load(m.tail_values(stage), &p.v_tail, WIDE, token, at.head, at.image, full);
}

/* ---- A warp on its way through the work tiles of the block and the ring of stages. All warps are consumers, and in turn
 * producers. */

template <typename S> struct tile_scheduler {
    work_tile here;             /* the work tile */
    int tile;                   /* of it */
    int stage, parity;          /* in the ring, of its barrier */
    int buffer, queries_parity; /* the same of queries */
    int turn;                   /* how many tiles until this warp produces */

    __device__ __forceinline__ tile_scheduler(const softmax_params &p)
    {
        const int warp = threadIdx.x / 32, pair = blockIdx.x / p.blocks;
        here.block = blockIdx.x - pair * p.blocks;
        here.image = pair / p.heads, here.head = pair - here.image * p.heads;
        tile = stage = parity = buffer = queries_parity = 0;
        turn = warp / 4 + warp % 4 * S::GROUPS; /* groups in turn */
    }
    __device__ __forceinline__ void next_tile(const softmax_params &p)
    {
        here = after(p, here), tile = 0;
        buffer ^= 1, queries_parity ^= !buffer;
    }
    __device__ __forceinline__ void advance()
    {
        tile++;
        if (++stage == S::STAGES)
            stage = 0, parity ^= 1;
    }
    /* If it is this warp's turn: what is LEAD tiles ahead goes to the stage of LAG tiles ago, when all have left that.
     * (Of a stage never used before the other parity is said to be over.) */
    __device__ __forceinline__ void produce(const softmax_params &p, const shared_memory<S> &m)
    {
        if (turn-- > 0)
            return;
        turn = S::WARPS - 1;
        if (threadIdx.x % 32)
            return;
        const bool wraps = stage < S::LAG;
        const int to = wraps ? stage + S::LEAD : stage - S::LAG;
        mbarrier_wait_parity(m.empty(to), parity ^ wraps);
        load_keys(p, m, here, tile + S::LEAD, to);
    }
    /* Queries of the next work tile go to the buffer of the one before. */
    __device__ __forceinline__ void produce_queries(const softmax_params &p,
                                                    const shared_memory<S> &m)
    {
        const work_tile next = after(p, here);
        if (threadIdx.x || next.image >= p.batch)
            return;
        mbarrier_wait_parity(m.queries_empty(buffer ^ 1), queries_parity ^ !buffer);
        load_queries(p, m, next, buffer ^ 1);
    }
};

/* This warp, a consumer, needs what the barrier stands for no more. */
__device__ __forceinline__ void consumer_release(uint32_t barrier)
{
    __syncwarp();
    if (threadIdx.x % 32 == 0)
        mbarrier_arrive(barrier);
}

/* What a warp group knows of its 64 queries; a thread has rows lane / 4 and lane / 4 + 8 of its warp's sixteen. */
template <typename S> struct query_group {
    uint64_t q, q_tail; /* descriptors */
    float o[WIDE / 2], o_tail[TAIL / 2];
    float row_max[2], row_sum[2]; /* the maximum that exponentials refer to, times scale_log2; this
                                thread's part of their sum */

    __device__ __forceinline__ void begin(uint32_t queries)
    {
        const uint32_t rows = threadIdx.x / 128 * 64;
        q = wide_descriptor(queries + rows * 128);
        q_tail = tail_descriptor(queries + S::QUERIES * 128 + rows * 32);
        row_max[0] = row_max[1] = -INFINITY, row_sum[0] = row_sum[1] = 0.f;
    }

    /* Starts s = q k^T. */
    __device__ __forceinline__ void start_scores(float (&s)[S::KEYS / 2], const shared_memory<S> &m,
                                                 int stage) const
    {
        const uint64_t k = wide_descriptor(m.keys(stage));
        wgmma_fence();
#pragma unroll
        for (int j = 0; j < WIDE / 16; j++)
            wgmma_ss(s, q + j * WIDE_COLUMNS_16, k + j * WIDE_COLUMNS_16, j > 0);
        if (S::HAS_TAIL)
            wgmma_ss(s, q_tail, tail_descriptor(m.tail_keys(stage)), 1);
        wgmma_commit_group();
    }

    /* Of tokens from `first` on, those beyond the last get no weight. */
    __device__ __forceinline__ static void mask(float (&s)[S::KEYS / 2], int first, int tokens)
    {
        const int left = tokens - first - threadIdx.x % 4 * 2;
#pragma unroll
        for (int i = 0; i < S::KEYS / 2; i++)
            if (i / 4 * 8 + i % 2 >= left)
                s[i] = -INFINITY;
    }

    /* Takes the maxima of s in. Have they grown, so that o has to be moved by `correction`? */
    __device__ __forceinline__ bool update_row_max(const float (&s)[S::KEYS / 2], float scale,
                                                   float (&correction)[2])
    {
        float high[2];
#pragma unroll
        for (int r = 0; r < 2; r++) {
            float x[4];
#pragma unroll
            for (int i = 0; i < 4; i++) /* four chains */
                x[i] = s[i / 2 * 4 + 2 * r + i % 2];
#pragma unroll
            for (int n = 2; n < S::KEYS / 8; n += 2)
#pragma unroll
                for (int i = 0; i < 4; i++)
                    x[i] = fmaxf(x[i], s[(n + i / 2) * 4 + 2 * r + i % 2]);
            high[r] = scale * nl_quad_max(fmaxf(fmaxf(x[0], x[1]), fmaxf(x[2], x[3])));
        }
        if (!__any_sync(~0u, high[0] > row_max[0] + RESCALE_THRESHOLD ||
                                 high[1] > row_max[1] + RESCALE_THRESHOLD))
            return false;
#pragma unroll
        for (int r = 0; r < 2; r++) {
            const float higher = fmaxf(row_max[r], high[r]);
            correction[r] = exp2_approx(row_max[r] - higher);
            row_max[r] = higher, row_sum[r] *= correction[r];
        }
        return true;
    }
    __device__ __forceinline__ void rescale(const float (&correction)[2])
    {
#pragma unroll
        for (int i = 0; i < WIDE / 2; i++)
            o[i] *= correction[i / 2 % 2];
        if (S::HAS_TAIL)
#pragma unroll
            for (int i = 0; i < TAIL / 2; i++)
                o_tail[i] *= correction[i / 2 % 2];
    }

    /* s to exp(s), and to their sums. */
    __device__ __forceinline__ void exponentiate(float (&s)[S::KEYS / 2], float scale)
    {
        float sums[4] = {};
#pragma unroll
        for (int i = 0; i < S::KEYS / 2; i++) {
            s[i] = exp2_approx(fmaf(s[i], scale, -row_max[i / 2 % 2]));
            sums[i % 4] += s[i];
        }
        row_sum[0] += sums[0] + sums[1], row_sum[1] += sums[2] + sums[3];
    }

    /* Starts o (+)= probabilities v. */
    __device__ __forceinline__ void start_values(const uint32_t (&probabilities)[S::KEYS / 16][4],
                                                 const shared_memory<S> &m, int stage, bool add)
    {
        const uint64_t v = wide_descriptor(m.values(stage)),
                       v_tail = tail_descriptor(m.tail_values(stage));
        wgmma_fence();
#pragma unroll
        for (int c = 0; c < S::KEYS / 16; c++) {
            wgmma_rs(o, probabilities[c], v + c * WIDE_ROWS_16, add || c > 0);
            if (S::HAS_TAIL)
                wgmma_rs(o_tail, probabilities[c], v_tail + c * TAIL_ROWS_16, add || c > 0);
        }
        wgmma_commit_group();
    }

    __device__ __forceinline__ void fence_sums()
    {
        warpgroup_fence_operand(o);
        if (S::HAS_TAIL)
            warpgroup_fence_operand(o_tail);
    }

    /* o / row_sum and the log-sum-exp leave. */
    __device__ __forceinline__ void finish(const softmax_params &p, const shared_memory<S> &m,
                                           const work_tile &at)
    {
        const int warp = threadIdx.x / 32, lane = threadIdx.x % 32;
        const int token = at.block * S::QUERIES + warp * 16;
        float inverse[2];
#pragma unroll
        for (int r = 0; r < 2; r++) {
            const float sum = nl_quad_sum(row_sum[r]);
            const int row = token + lane / 4 + 8 * r;
            inverse[r] = 1.f / sum;
            if (p.lse && lane % 4 == 0 && row < p.tokens)
                p.lse[((int64_t)at.image * p.heads + at.head) * p.tokens + row] =
                    0.6931471805599453f * (row_max[r] + log2f(sum));
        }
        const uint32_t rows = m.out() + warp * 16 * 128,
                       tail_rows = m.out() + S::QUERIES * 128 + warp * 16 * 32;
        auto store = [&](const float *x, uint32_t to) {
            const uint32_t w[4] = {pack_bf16x2(x[0] * inverse[0], x[1] * inverse[0]),
                                   pack_bf16x2(x[2] * inverse[1], x[3] * inverse[1]),
                                   pack_bf16x2(x[4] * inverse[0], x[5] * inverse[0]),
                                   pack_bf16x2(x[6] * inverse[1], x[7] * inverse[1])};
            stmatrix_x4(to, w);
        };
        if (lane == 0)
            tma_store_wait_read(); /* of the work tile before */
        __syncwarp();
#pragma unroll
        for (int j = 0; j < 4; j++)
            store(o + 8 * j, wide_address(rows, j));
        if (S::HAS_TAIL)
            store(o_tail, tail_address(tail_rows));
        fence_proxy_async();
        __syncwarp();
        if (lane == 0) {
            tma_store(&p.out, 0, token, at.head, at.image, rows);
            if (S::HAS_TAIL)
                tma_store(&p.out_tail, WIDE, token, at.head, at.image, tail_rows);
            tma_store_commit_group();
        }
    }
};

/* A work tile of whose queries this group has none. */
template <typename S>
__device__ __forceinline__ void skip_tile(const softmax_params &p, const shared_memory<S> &m,
                                          tile_scheduler<S> &scheduler)
{
    for (; scheduler.tile < p.tiles; scheduler.advance()) {
        mbarrier_wait_parity(m.full(scheduler.stage), scheduler.parity);
        consumer_release(m.empty(scheduler.stage));
        scheduler.produce(p, m);
    }
}

template <typename S>
__device__ __forceinline__ void attend(const softmax_params &p, const shared_memory<S> &m,
                                       tile_scheduler<S> &scheduler, query_group<S> &g)
{
    float s[S::KEYS / 2], correction[2];
    uint32_t probabilities[S::KEYS / 16][4];
    auto to_probabilities = [&] {
#pragma unroll
        for (int i = 0; i < S::KEYS / 4; i++)
            probabilities[i / 4][i % 4] = pack_bf16x2(s[2 * i], s[2 * i + 1]);
    };
    mbarrier_wait_parity(m.full(scheduler.stage), scheduler.parity);
    g.start_scores(s, m, scheduler.stage);
    wgmma_wait_group<0>();
    warpgroup_fence_operand(s);
    if (S::KEYS > p.tokens)
        g.mask(s, 0, p.tokens);
    g.update_row_max(s, p.scale_log2, correction); /* there is no o yet */
    g.exponentiate(s, p.scale_log2);
    to_probabilities();
    while (scheduler.tile + 1 < p.tiles) {
        const int stage = scheduler.stage;
        const bool add = scheduler.tile > 0;
        scheduler.produce(p, m);
        scheduler.advance();
        mbarrier_wait_parity(m.full(scheduler.stage), scheduler.parity);
        g.start_scores(s, m, scheduler.stage);
        g.start_values(probabilities, m, stage, add);
        wgmma_wait_group<1>(); /* the scores */
        warpgroup_fence_operand(s);
        if ((scheduler.tile + 1) * S::KEYS > p.tokens)
            g.mask(s, scheduler.tile * S::KEYS, p.tokens);
        const bool rescales = g.update_row_max(s, p.scale_log2, correction);
        g.exponentiate(s, p.scale_log2);
        wgmma_wait_group<0>();
        g.fence_sums();
        consumer_release(m.empty(stage));
        if (rescales)
            g.rescale(correction);
        to_probabilities();
    }
    g.start_values(probabilities, m, scheduler.stage, scheduler.tile > 0);
    scheduler.produce(p, m);
    wgmma_wait_group<0>();
    g.fence_sums();
    consumer_release(m.empty(scheduler.stage));
    scheduler.advance();
}

template <typename S>
__global__ void __launch_bounds__(S::THREADS, 1)
    forward_kernel(const __grid_constant__ softmax_params p)
{
    extern __shared__ unsigned char unaligned[];
    unsigned char *start = unaligned + bytes_to_aligned<1024>(unaligned);
    const shared_memory<S> m = {shared_address(start)};
    tile_scheduler<S> scheduler(p);
    if (threadIdx.x == 0) {
        uint64_t *barriers = (uint64_t *)(start + 3 * S::QUERY_BYTES + S::STAGES * S::STAGE_BYTES);
        for (int i = 0; i < 2 * S::STAGES + 4; i++) /* full and empty of stages, of queries */
            mbarrier_init(barriers + i, i < S::STAGES || i / 2 == S::STAGES ? 1 : S::WARPS);
        fence_mbarrier_init();
        load_queries(p, m, scheduler.here, 0);
        for (int i = 0; i < S::LEAD; i++)
            load_keys(p, m, scheduler.here, i, i);
    }
    __syncthreads();

    query_group<S> g;
    for (; scheduler.here.image < p.batch; scheduler.next_tile(p)) {
        scheduler.produce_queries(p, m);
        mbarrier_wait_parity(m.queries_full(scheduler.buffer), scheduler.queries_parity);
        g.begin(m.queries(scheduler.buffer));
        const bool any = scheduler.here.block * S::QUERIES + (int)threadIdx.x / 128 * 64 < p.tokens;
        if (any)
            attend(p, m, scheduler, g);
        else
            skip_tile(p, m, scheduler);
        consumer_release(m.queries_empty(scheduler.buffer));
        if (any)
            g.finish(p, m, scheduler.here);
    }
    if (threadIdx.x % 32 == 0)
        tma_store_wait_read();
}

/* ---- Launch */

template <typename S>
inline cudaError_t launch(const nl_flash_problem &a, int64_t batch, int multiprocessors,
                          cudaStream_t stream)
{
    softmax_params p = {};
    const int64_t size = a.head_size;
    const head_tensor in = {size, a.tokens, a.heads, batch, a.stride, size, a.stride * a.tokens};
    const head_tensor out = {
        size, a.tokens, a.heads, batch, a.out_stride, size, a.out_stride * a.tokens};
    for (int tail = 0; tail < (S::HAS_TAIL ? 2 : 1); tail++) {
        const int columns = tail ? TAIL : WIDE;
        if (!make_head_tensor_map(tail ? &p.q_tail : &p.q, a.q, in, columns, S::QUERIES) ||
            !make_head_tensor_map(tail ? &p.k_tail : &p.k, a.k, in, columns, S::KEYS) ||
            !make_head_tensor_map(tail ? &p.v_tail : &p.v, a.v, in, columns, S::KEYS) ||
            !make_head_tensor_map(tail ? &p.out_tail : &p.out, a.out, out, columns, 16))
            return cudaErrorNotSupported;
    }
    p.lse = a.lse, p.batch = (int)batch, p.heads = a.heads, p.tokens = a.tokens;
    p.scale_log2 = a.scale_log2;
    p.tiles = (a.tokens + S::KEYS - 1) / S::KEYS;
    p.blocks = (a.tokens + S::QUERIES - 1) / S::QUERIES;
    const int64_t work_tiles = batch * a.heads * p.blocks;
    const int blocks = work_tiles < multiprocessors ? (int)work_tiles : multiprocessors;
    p.step.block = blocks % p.blocks;
    p.step.head = blocks / p.blocks % a.heads, p.step.image = blocks / p.blocks / a.heads;
    cudaError_t error = nl_allow_shared(forward_kernel<S>, S::SHARED_BYTES);
    if (error != cudaSuccess)
        return error;
    forward_kernel<S><<<blocks, S::THREADS, S::SHARED_BYTES, stream>>>(p);
    return cudaGetLastError();
}

} // namespace nl_softmax_sm90

#endif
