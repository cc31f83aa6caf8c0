/* SPDX-License-Identifier: MIT */
/*
 * Softmax attention backward on Hopper, bf16 in and out, fp32 sums; never a T x T matrix, the same bits every time. With
 * backward_kernel.cuh's P, dS and delta:
 *
 *   dv = P^T do,  dS = P (do v^T - delta),  dq = scale dS k,  dk = scale dS^T q
 *
 * A block owns KEYS keys of one (image, head) and walks over tiles of QUERIES queries; all five products of a pair of
 * tiles are made once. Four warp groups:
 *
 *   0     one thread sends for tiles by TMA, K and V of the next keys among them; two keep the order of sums (below)
 *   1, 2  64 keys each: s^T = k q^T and dp^T = v do^T [64, QUERIES], whose exponentials and differences are, element by
 *         element, the A operands of dv += P^T do and dk += dS^T q. k and v of the group stay in registers as A operands
 *         (heads of 64: reading both operands from shared memory, 128 bytes a cycle, is what products of 64 columns wait
 *         for). dS goes through shared memory to
 *   3     dq [QUERIES, d] = dS k over all KEYS, added to sums in fp32 that stay in the second-level cache
 *
 * so that no group waits for the other's dS, and nobody but group 3 for memory. Registers of a thread: 24, 208, 208, 72
 * (heads beyond 64: 24, 200, 200, 88); shared memory 208 KB, with tails 230 KB.
 *
 * The order of sums. A thread of group 3 holds the same elements of dq whoever works on a tile, so sums lie in memory as
 * its fragments do: the first to come stores them, those between add (a reduction in the cache, which returns nothing),
 * the last takes them as what its products begin with, and stores dq in bf16. Short sequences are a block's own, all keys
 * one tile after the other: a thread's own order. Of long ones the tiles of keys are dealt to a team of blocks, in
 * passes. Its members stand in a circle over the queries, each begins with its own part and goes round, and adds to
 * a tile after the one ahead has: that was there team-th of a round ago, so there is hardly anything to wait for. Which
 * order that is follows from the numbers of tiles and blocks alone. Blocks that wait for each other are launched together
 * (cooperatively).
 *
 * Of 6 x 65,536 x 64 the five products are 16.5 TFLOP: 21 ms at 790 TFLOP/s; here it is 32 (tensor pipe active 62 %,
 * shared memory 70 % at 16,384 tokens). Two kernels with seven products would have to run at 720 TFLOP/s to do as much.
 *
 * (Tried on an H200, ms backward at 24 x 16,384 x 64: before blocks went in a circle 8.30, and then k and v from shared
 * memory 8.97; sums loaded and stored instead of reduced 9.26; three tiles of dS instead of two 8.40; scores of the next
 * queries before dk of these 8.61, with weights rounded to bf16 for it in dS, too, 9.36; two sets of registers for dq 8.76.
 * In a circle 7.3 to 8.1; products started after the exponentials of sixteen or 32 queries at a time: the same. What is
 * left: half of a group's waiting is for its products and for what it wrote to shared memory to be seen.)
 */
#ifndef NL_CUDA_SOFTMAX_BACKWARD_KERNEL_CUH
#define NL_CUDA_SOFTMAX_BACKWARD_KERNEL_CUH

#include "backward_sm90.cuh"
#include "forward_sm90_kernel.cuh"

#include "prim/convert.cuh"
#include "prim/mma.cuh"
#include "prim/shared_limit.cuh"
#include "prim/tma.cuh"
#include "prim/wgmma.cuh"

namespace nl_softmax_backward_sm90
{

using namespace nl_prim;
using nl_softmax_sm90::consumer_release;

enum {
    QUERIES = 64,
    KEYS = 128,
    THREADS = 512,
    ORDERED = 8 /* steps that may be between being let add and having been told of */
};

struct gradient_params {
    CUtensorMap q, k, v, dout, dq, dk, dv; /* [batch, heads, tokens, head size] */
    CUtensorMap q_tail, k_tail, v_tail, dout_tail, dq_tail, dk_tail, dv_tail; /* boxes of TAIL */
    CUtensorMap rows;   /* [B h query tiles, QUERIES / 2, 4]: of two queries -log2 of their sums of
                         exponentials, then their deltas; -infinity and 0 for queries that are not there */
    float4 *sums;       /* dq so far: [B h or blocks, query tiles, VECTORS, 128] */
    unsigned *progress; /* [blocks]: steps whose share of dq is in `sums` */
    int pairs, heads, tokens; /* pairs of image and head */
    int query_tiles, key_tiles;
    int team, teams; /* blocks of a team, which shares a pair; teams */
    bool turns;      /* each block of a team begins with another tile of queries */
    float scale, scale_log2;
};

template <bool HAS_TAIL_> struct shape {
    static constexpr bool HAS_TAIL = HAS_TAIL_;
    static constexpr bool FRAGMENTS = !HAS_TAIL; /* k and v in registers */
    static constexpr int STAGES = HAS_TAIL ? 3 : 4, DS_STAGES = 2;
    /* Registers of a thread: of the warps that load_tiles, of those for keys, of those for dq; 512 in all. */
    static constexpr int FEW = 24, MANY = HAS_TAIL ? 200 : 208, SOME = 512 - 2 * MANY - FEW;
    static constexpr int TAIL_BYTES = HAS_TAIL ? 32 : 0, ROW_BYTES = 128 + TAIL_BYTES;
    static constexpr int KEY_BYTES = 2 * KEYS * ROW_BYTES;      /* k and v */
    static constexpr int STAGE_BYTES = 2 * QUERIES * ROW_BYTES; /* q and do */
    static constexpr int ROWS_BYTES = QUERIES * 8;
    static constexpr int DS_BYTES = KEYS * QUERIES * 2;
    static constexpr int VECTORS = HAS_TAIL ? 10 : 8; /* float4 of a thread's dq */
    static constexpr int BARRIERS = 2 * STAGES + 4 + 2 * DS_STAGES + 3 * ORDERED;
    static constexpr int SHARED_BYTES = 1024 + 2 * KEY_BYTES + STAGES * (STAGE_BYTES + ROWS_BYTES) +
                                        DS_STAGES * DS_BYTES + 20 * 16 * ROW_BYTES + BARRIERS * 8;
    static_assert(SHARED_BYTES <= 232448, "shared memory of a block");
};

/* Addresses. What is swizzled over 128 bytes comes first, aligned to 1,024. */
template <typename S> struct shared_memory {
    uint32_t start;

    __device__ __forceinline__ uint32_t keys(int i) const
    {
        return start + i * (2 * KEYS * 128);
    }
    __device__ __forceinline__ uint32_t values(int i) const
    {
        return keys(i) + KEYS * 128;
    }
    __device__ __forceinline__ uint32_t queries(int stage) const
    {
        return keys(2) + stage * (2 * QUERIES * 128);
    }
    __device__ __forceinline__ uint32_t douts(int stage) const
    {
        return queries(stage) + QUERIES * 128;
    }
    __device__ __forceinline__ uint32_t ds(int i) const /* [KEYS, QUERIES] */
    {
        return queries(S::STAGES) + i * S::DS_BYTES;
    }
    /* Sixteen rows on their way out: 0 to 15 of the warps' dk and dv, 16 to 19 of dq. */
    __device__ __forceinline__ uint32_t out(int i) const
    {
        return ds(S::DS_STAGES) + i * (16 * 128);
    }
    __device__ __forceinline__ uint32_t tail_keys(int i) const
    {
        return out(20) + i * (2 * KEYS * S::TAIL_BYTES);
    }
    __device__ __forceinline__ uint32_t tail_values(int i) const
    {
        return tail_keys(i) + KEYS * S::TAIL_BYTES;
    }
    __device__ __forceinline__ uint32_t tail_queries(int stage) const
    {
        return tail_keys(2) + stage * (2 * QUERIES * S::TAIL_BYTES);
    }
    __device__ __forceinline__ uint32_t tail_douts(int stage) const
    {
        return tail_queries(stage) + QUERIES * S::TAIL_BYTES;
    }
    __device__ __forceinline__ uint32_t tail_out(int i) const
    {
        return tail_queries(S::STAGES) + i * (16 * S::TAIL_BYTES);
    }
    __device__ __forceinline__ uint32_t rows(int stage) const
    {
        return tail_out(20) + stage * S::ROWS_BYTES;
    }
    /* Barriers: what was sent for is there, all who use it have left. */
    __device__ __forceinline__ uint32_t full(int stage) const
    {
        return rows(S::STAGES) + stage * 8;
    }
    __device__ __forceinline__ uint32_t empty(int stage) const
    {
        return full(S::STAGES + stage);
    }
    __device__ __forceinline__ uint32_t keys_full(int i) const
    {
        return full(2 * S::STAGES + i);
    }
    __device__ __forceinline__ uint32_t keys_empty(int i) const
    {
        return full(2 * S::STAGES + 2 + i);
    }
    __device__ __forceinline__ uint32_t ds_full(int i) const
    {
        return full(2 * S::STAGES + 4 + i);
    }
    __device__ __forceinline__ uint32_t ds_empty(int i) const
    {
        return full(2 * S::STAGES + 4 + S::DS_STAGES + i);
    }
    /* Of a step: its sums may be added to, have been, and the next block knows. */
    __device__ __forceinline__ uint32_t may(int i) const
    {
        return ds_empty(S::DS_STAGES + i);
    }
    __device__ __forceinline__ uint32_t added(int i) const
    {
        return may(ORDERED + i);
    }
    __device__ __forceinline__ uint32_t told(int i) const
    {
        return added(ORDERED + i);
    }
};

/* A place in a ring of N, and the parity of its barrier. */
template <int N> struct ring {
    int at = 0, parity = 0;
    __device__ __forceinline__ void advance()
    {
        if (++at == N)
            at = 0, parity ^= 1;
    }
};

/* Calls f(pair, pass, key tile) for what this block does, in order. */
template <typename F> __device__ __forceinline__ void each_key_tile(const gradient_params &p, F f)
{
    const int team = blockIdx.x / p.team, member = blockIdx.x - team * p.team;
    for (int pair = team; pair < p.pairs; pair += p.teams)
        for (int pass = 0, tile = p.team - 1 - member; tile < p.key_tiles; pass++, tile += p.team)
            f(pair, pass, tile);
}
/* The tile of queries that a member of a team begins with; that of its end for one behind the last. */
__device__ __forceinline__ int first_query_tile(const gradient_params &p, int member)
{
    return member == p.team ? p.query_tiles
           : p.turns        ? (int)((int64_t)member * p.query_tiles / p.team)
                            : 0;
}

/* ---- The thread that sends for tiles */

template <typename S>
__device__ __forceinline__ void load_tiles(const gradient_params &p, const shared_memory<S> &m)
{
    ring<2> key;
    ring<S::STAGES> stage;
    const int first = first_query_tile(p, blockIdx.x % p.team);
    each_key_tile(p, [&](int pair, int, int tile) {
        const int image = pair / p.heads, head = pair - image * p.heads;
        const uint32_t there = m.keys_full(key.at);
        mbarrier_wait_parity(m.keys_empty(key.at), key.parity ^ 1);
        mbarrier_arrive_expect_tx(there, S::KEY_BYTES);
        tma_load(m.keys(key.at), &p.k, 0, tile * KEYS, head, image, there);
        tma_load(m.values(key.at), &p.v, 0, tile * KEYS, head, image, there);
        if (S::HAS_TAIL) {
            tma_load(m.tail_keys(key.at), &p.k_tail, WIDE, tile * KEYS, head, image, there);
            tma_load(m.tail_values(key.at), &p.v_tail, WIDE, tile * KEYS, head, image, there);
        }
        key.advance();
        for (int n = 0, i = first; n < p.query_tiles; n++, i = i + 1 < p.query_tiles ? i + 1 : 0) {
            const uint32_t full = m.full(stage.at);
            mbarrier_wait_parity(m.empty(stage.at), stage.parity ^ 1);
            mbarrier_arrive_expect_tx(full, S::STAGE_BYTES + S::ROWS_BYTES);
            tma_load(m.queries(stage.at), &p.q, 0, i * QUERIES, head, image, full);
            tma_load(m.rows(stage.at), &p.rows, 0, pair * p.query_tiles + i, full);
            tma_load(m.douts(stage.at), &p.dout, 0, i * QUERIES, head, image, full);
            if (S::HAS_TAIL) {
                tma_load(m.tail_queries(stage.at), &p.q_tail, WIDE, i * QUERIES, head, image, full);
                tma_load(m.tail_douts(stage.at), &p.dout_tail, WIDE, i * QUERIES, head, image,
                         full);
            }
            stage.advance();
        }
    });
}

/* ---- Order among the blocks of a team. To the sums of a tile of queries the block behind a member, in a circle, adds
 * before it does: in the same pass, but in the pass before where this member is the first to come. */

/* The thread that lets sums be added to. */
template <typename S>
__device__ __forceinline__ void let(const gradient_params &p, const shared_memory<S> &m)
{
    const int member = blockIdx.x % p.team, behind = member + 1 == p.team ? 0 : member + 1;
    const int first = first_query_tile(p, member), own = first_query_tile(p, member + 1) - first;
    const int lead = (first - first_query_tile(p, behind) + p.query_tiles) % p.query_tiles;
    const unsigned *progress = p.progress + blockIdx.x - member + behind;
    const int passes = (p.key_tiles + behind) / p.team; /* of that block through a pair */
    ring<ORDERED> slot;
    unsigned known = 0, before = 0; /* what it has done; had done when it came to the pair */
    int last_pair = blockIdx.x / p.team;
    each_key_tile(p, [&](int pair, int pass, int) {
        if (pair != last_pair)
            before += (unsigned)passes * p.query_tiles, last_pair = pair;
        for (int i = 0; i < p.query_tiles; i++) {
            mbarrier_wait_parity(m.told(slot.at), slot.parity ^ 1);
            if (pass > 0 || i >= own) {
                const int step = (i + lead) % p.query_tiles;
                const unsigned need =
                    before + (unsigned)(i < own ? pass - 1 : pass) * p.query_tiles + step + 1;
                while ((int)(known - need) < 0)
                    asm volatile("ld.acquire.gpu.global.u32 %0, [%1];"
                                 : "=r"(known)
                                 : "l"(progress)
                                 : "memory");
            }
            mbarrier_arrive(m.may(slot.at));
            slot.advance();
        }
    });
}
/* The thread that tells how far this block is. */
template <typename S>
__device__ __forceinline__ void tell(const gradient_params &p, const shared_memory<S> &m)
{
    unsigned all = 0;
    each_key_tile(p, [&](int, int, int) { all += p.query_tiles; });
    ring<ORDERED> slot;
    for (unsigned done = 0; done < all;) {
        int count = 0;
        const int since = slot.at;
        mbarrier_wait_parity(m.added(slot.at), slot.parity);
        do
            count++, slot.advance();
        while (count < ORDERED && mbarrier_test_parity(m.added(slot.at), slot.parity));
        done += count;
        __threadfence();
        asm volatile("st.relaxed.gpu.global.u32 [%0], %1;" ::"l"(p.progress + blockIdx.x), "r"(done)
                     : "memory");
        for (int i = 0; i < count; i++)
            mbarrier_arrive(m.told((since + i) % ORDERED));
    }
}

/* ---- Sixteen rows of a warp, times scale, through shared memory to a map */

template <typename S>
__device__ __forceinline__ void stage_rows(uint32_t to, uint32_t tail_to,
                                           const float (&x)[WIDE / 2],
                                           const float (&tail)[TAIL / 2], float scale)
{
    auto store = [&](const float *x, uint32_t at) {
        const uint32_t w[4] = {
            pack_bf16x2(x[0] * scale, x[1] * scale), pack_bf16x2(x[2] * scale, x[3] * scale),
            pack_bf16x2(x[4] * scale, x[5] * scale), pack_bf16x2(x[6] * scale, x[7] * scale)};
        stmatrix_x4(at, w);
    };
#pragma unroll
    for (int j = 0; j < 4; j++)
        store(x + 8 * j, wide_address(to, j));
    if (S::HAS_TAIL)
        store(tail, tail_address(tail_to));
}

/* ---- The groups of 64 keys each */

__device__ __forceinline__ float2 load_two(uint32_t address)
{
    float2 x;
    asm volatile("ld.shared.v2.f32 {%0, %1}, [%2];" : "=f"(x.x), "=f"(x.y) : "r"(address));
    return x;
}

/* Starts x = a b^T, a [64, d] from shared memory or in registers, b [QUERIES, d]. */
template <typename S>
__device__ __forceinline__ void start_across(float (&x)[QUERIES / 2],
                                             const uint32_t (&fragments)[WIDE / 16][4], uint32_t a,
                                             uint32_t tail_a, uint32_t b, uint32_t tail_b)
{
    wgmma_fence();
#pragma unroll
    for (int j = 0; j < WIDE / 16; j++)
        if (S::FRAGMENTS)
            wgmma_rs_bt(x, fragments[j], wide_descriptor(b) + j * WIDE_COLUMNS_16, j > 0);
        else
            wgmma_ss(x, wide_descriptor(a) + j * WIDE_COLUMNS_16,
                     wide_descriptor(b) + j * WIDE_COLUMNS_16, j > 0);
    if (S::HAS_TAIL)
        wgmma_ss(x, tail_descriptor(tail_a), tail_descriptor(tail_b), 1);
    wgmma_commit_group();
}
/* Starts sum [64, d] (+)= a b, a [64, QUERIES] in registers, b [QUERIES, d]. */
template <typename S>
__device__ __forceinline__ void start_along(float (&sum)[WIDE / 2], float (&tail_sum)[TAIL / 2],
                                            const uint32_t (&a)[QUERIES / 16][4], uint32_t b,
                                            uint32_t tail_b, bool add)
{
    wgmma_fence();
#pragma unroll
    for (int c = 0; c < QUERIES / 16; c++) {
        wgmma_rs(sum, a[c], wide_descriptor(b) + c * WIDE_ROWS_16, add || c > 0);
        if (S::HAS_TAIL)
            wgmma_rs(tail_sum, a[c], tail_descriptor(tail_b) + c * TAIL_ROWS_16, add || c > 0);
    }
    wgmma_commit_group();
}

template <typename S>
__device__ __forceinline__ void walk_keys(const gradient_params &p, const shared_memory<S> &m)
{
    const int group = threadIdx.x / 128 - 1, warp = threadIdx.x / 32 % 4, lane = threadIdx.x % 32;
    ring<2> key;
    ring<S::STAGES> stage;
    ring<S::DS_STAGES> ds_stage;
    float dk[WIDE / 2], dv[WIDE / 2], dk_tail[TAIL / 2], dv_tail[TAIL / 2];
    uint32_t kf[WIDE / 16][4], vf[WIDE / 16][4]; /* this warp's k and v, where S::FRAGMENTS */

    each_key_tile(p, [&](int pair, int, int tile) {
        const int image = pair / p.heads, head = pair - image * p.heads;
        const uint32_t rows = group * 64 * 128, tail_rows = group * 64 * 32;
        uint32_t key_at = key.at; /* nothing is kept from step to step that follows from it */
        const int first = tile * KEYS + group * 64 + warp * 16 + lane / 4; /* key of this thread */
        const bool some = (tile + 1) * KEYS > p.tokens;
        mbarrier_wait_parity(m.keys_full(key.at), key.parity);
        if (S::FRAGMENTS) {
#pragma unroll
            for (int j = 0; j < WIDE / 16; j++) {
                ldmatrix_x4(kf[j], wide_address(m.keys(key.at) + rows + warp * 16 * 128, j));
                ldmatrix_x4(vf[j], wide_address(m.values(key.at) + rows + warp * 16 * 128, j));
            }
        }
        uint32_t ds[QUERIES / 16][4];
        auto publish =
            [&] { /* ds, for the group for dq */
                  mbarrier_wait_parity(m.ds_empty(ds_stage.at), ds_stage.parity ^ 1);
#pragma unroll
                  for (int c = 0; c < QUERIES / 16; c++)
                      stmatrix_x4(wide_address(m.ds(ds_stage.at) + rows + warp * 16 * 128, c),
                                  ds[c]);
                  fence_proxy_async();
                  consumer_release(m.ds_full(ds_stage.at));
                  ds_stage.advance();
            };
        for (int i = 0; i < p.query_tiles; i++) {
            float s[QUERIES / 2], dp[QUERIES / 2];
            uint32_t weights[QUERIES / 16][4];
            asm volatile("" : "+r"(key_at));
            mbarrier_wait_parity(m.full(stage.at), stage.parity);
            start_across<S>(s, kf, m.keys(key_at) + rows, m.tail_keys(key_at) + tail_rows,
                            m.queries(stage.at), m.tail_queries(stage.at));
            start_across<S>(dp, vf, m.values(key_at) + rows, m.tail_values(key_at) + tail_rows,
                            m.douts(stage.at), m.tail_douts(stage.at));
            if (i)
                publish();         /* of the step before, while s is made */
            wgmma_wait_group<1>(); /* s, and all of the step before */
            warpgroup_fence_operand(s);
            if (i)
                consumer_release(m.empty(stage.at ? stage.at - 1 : S::STAGES - 1));
            const uint32_t at = m.rows(stage.at) + lane % 4 * 16;
#pragma unroll
            for (int n = 0; n < QUERIES / 8; n++) {
                const float2 shift = load_two(at + n * 64);
                s[4 * n] = exp2_approx(fmaf(s[4 * n], p.scale_log2, shift.x));
                s[4 * n + 1] = exp2_approx(fmaf(s[4 * n + 1], p.scale_log2, shift.y));
                s[4 * n + 2] = exp2_approx(fmaf(s[4 * n + 2], p.scale_log2, shift.x));
                s[4 * n + 3] = exp2_approx(fmaf(s[4 * n + 3], p.scale_log2, shift.y));
            }
            if (some) /* keys that are not there have no weight */
#pragma unroll
                for (int j = 0; j < QUERIES / 2; j++)
                    if (first + j / 2 % 2 * 8 >= p.tokens)
                        s[j] = 0.f;
#pragma unroll
            for (int j = 0; j < QUERIES / 4; j++)
                weights[j / 4][j % 4] = pack_bf16x2(s[2 * j], s[2 * j + 1]);
            start_along<S>(dv, dv_tail, weights, m.douts(stage.at), m.tail_douts(stage.at), i > 0);
            wgmma_wait_group<1>(); /* dp */
            warpgroup_fence_operand(dp);
#pragma unroll
            for (int n = 0; n < QUERIES / 8; n++) {
                const float2 delta = load_two(at + n * 64 + 8);
                s[4 * n] *= dp[4 * n] - delta.x;
                s[4 * n + 1] *= dp[4 * n + 1] - delta.y;
                s[4 * n + 2] *= dp[4 * n + 2] - delta.x;
                s[4 * n + 3] *= dp[4 * n + 3] - delta.y;
            }
#pragma unroll
            for (int j = 0; j < QUERIES / 4; j++)
                ds[j / 4][j % 4] = pack_bf16x2(s[2 * j], s[2 * j + 1]);
            start_along<S>(dk, dk_tail, ds, m.queries(stage.at), m.tail_queries(stage.at), i > 0);
            wgmma_wait_group<1>(); /* dv */
            stage.advance();
        }
        publish();
        wgmma_wait_group<0>();
        warpgroup_fence_operand(dk), warpgroup_fence_operand(dv);
        if (S::HAS_TAIL)
            warpgroup_fence_operand(dk_tail), warpgroup_fence_operand(dv_tail);
        consumer_release(m.empty(stage.at ? stage.at - 1 : S::STAGES - 1));
        consumer_release(m.keys_empty(key.at));
        key.advance();
        const int slot = (threadIdx.x / 32 - 4) * 2, token = tile * KEYS + group * 64 + warp * 16;
        if (lane == 0)
            tma_store_wait_read(); /* of the tile before */
        __syncwarp();
        stage_rows<S>(m.out(slot), m.tail_out(slot), dk, dk_tail, p.scale);
        stage_rows<S>(m.out(slot + 1), m.tail_out(slot + 1), dv, dv_tail, 1.f);
        fence_proxy_async();
        __syncwarp();
        if (lane == 0) {
            tma_store(&p.dk, 0, token, head, image, m.out(slot));
            tma_store(&p.dv, 0, token, head, image, m.out(slot + 1));
            if (S::HAS_TAIL) {
                tma_store(&p.dk_tail, WIDE, token, head, image, m.tail_out(slot));
                tma_store(&p.dv_tail, WIDE, token, head, image, m.tail_out(slot + 1));
            }
            tma_store_commit_group();
        }
    });
    if (lane == 0)
        tma_store_wait_read();
}

/* ---- The group that adds up dq */

template <typename S>
__device__ __forceinline__ void add_queries(const gradient_params &p, const shared_memory<S> &m)
{
    const int warp = threadIdx.x / 32 % 4, lane = threadIdx.x % 32, member = blockIdx.x % p.team;
    const bool alone = p.team == 1;
    const int first_tile = first_query_tile(p, member);
    /* The first own tiles of a pass nobody has come to before in it, the last ones all others have. */
    const int own = first_query_tile(p, member + 1) - first_tile,
              others = member ? p.query_tiles - first_tile + first_query_tile(p, member - 1)
                              : first_query_tile(p, p.team - 1);
    ring<2> key;
    ring<S::DS_STAGES> ds_stage;
    ring<ORDERED> slot;
    float dq[WIDE / 2], dq_tail[TAIL / 2];

    each_key_tile(p, [&](int pair, int pass, int tile) {
        const int image = pair / p.heads, head = pair - image * p.heads;
        uint64_t k = wide_descriptor(m.keys(key.at)), k_tail = tail_descriptor(m.tail_keys(key.at));
        mbarrier_wait_parity(m.keys_full(key.at), key.parity);
        for (int n = 0, i = first_tile; n < p.query_tiles;
             n++, i = i + 1 < p.query_tiles ? i + 1 : 0) {
            const bool first = pass == 0 && n < own;
            const bool last =
                p.turns ? tile + p.team >= p.key_tiles && n >= others : tile == p.key_tiles - 1;
            const bool load = last && !first;
            float4 *sums =
                p.sums +
                ((alone ? blockIdx.x : (int64_t)pair) * p.query_tiles + i) * (S::VECTORS * 128) +
                threadIdx.x % 128;
            auto await = [&] {
                if (!alone)
                    mbarrier_wait_parity(m.may(slot.at), slot.parity);
            };
            if (load) {
                await();
#pragma unroll
                for (int j = 0; j < S::VECTORS; j++) {
                    const float4 x = __ldcg(sums + j * 128);
                    float *to = j < 8 ? dq + 4 * j : dq_tail + 4 * (j - 8);
                    to[0] = x.x, to[1] = x.y, to[2] = x.z, to[3] = x.w;
                }
            }
            mbarrier_wait_parity(m.ds_full(ds_stage.at), ds_stage.parity);
            const uint64_t ds = wide_descriptor(m.ds(ds_stage.at));
            asm volatile(""
                         : "+l"(k), "+l"(k_tail)); /* nothing of them is kept from step to step */
            wgmma_fence();
#pragma unroll
            for (int c = 0; c < KEYS / 16; c++) {
                wgmma_ss_at(dq, ds + c * WIDE_ROWS_16, k + c * WIDE_ROWS_16, load || c > 0);
                if (S::HAS_TAIL)
                    wgmma_ss_at(dq_tail, ds + c * WIDE_ROWS_16, k_tail + c * TAIL_ROWS_16,
                                load || c > 0);
            }
            wgmma_commit_group();
            wgmma_wait_group<0>();
            warpgroup_fence_operand(dq);
            if (S::HAS_TAIL)
                warpgroup_fence_operand(dq_tail);
            consumer_release(m.ds_empty(ds_stage.at));
            ds_stage.advance();
            if (!load)
                await();
            if (last) {
                const int out = 16 + warp;
                if (lane == 0)
                    tma_store_wait_read();
                __syncwarp();
                stage_rows<S>(m.out(out), m.tail_out(out), dq, dq_tail, p.scale);
                fence_proxy_async();
                __syncwarp();
                if (lane == 0) {
                    tma_store(&p.dq, 0, i * QUERIES + warp * 16, head, image, m.out(out));
                    if (S::HAS_TAIL)
                        tma_store(&p.dq_tail, WIDE, i * QUERIES + warp * 16, head, image,
                                  m.tail_out(out));
                    tma_store_commit_group();
                }
            } else {
#pragma unroll
                for (int j = 0; j < S::VECTORS; j++) {
                    const float *from = j < 8 ? dq + 4 * j : dq_tail + 4 * (j - 8);
                    if (first)
                        __stcg(sums + j * 128, make_float4(from[0], from[1], from[2], from[3]));
                    else
                        asm volatile(
                            "red.relaxed.gpu.global.add.v4.f32 [%0], {%1, %2, %3, %4};" ::"l"(
                                sums + j * 128),
                            "f"(from[0]), "f"(from[1]), "f"(from[2]), "f"(from[3])
                            : "memory");
                }
            }
            if (!alone) {
                consumer_release(m.added(slot.at));
                slot.advance();
            }
        }
        consumer_release(m.keys_empty(key.at));
        key.advance();
    });
    if (lane == 0)
        tma_store_wait_read();
}

template <typename S>
__global__ void __launch_bounds__(THREADS, 1)
    backward_kernel(const __grid_constant__ gradient_params p)
{
    extern __shared__ unsigned char unaligned[];
    unsigned char *start = unaligned + (1024 - shared_address(unaligned) % 1024) % 1024;
    const shared_memory<S> m = {shared_address(start)};
    const int group = __shfl_sync(~0u, threadIdx.x / 128, 0);
    if (threadIdx.x == 0) {
        uint64_t *barriers = (uint64_t *)(start + (m.full(0) - m.start));
        for (int i = 0; i < S::BARRIERS; i++) {
            const int j = i - 2 * S::STAGES - 4,
                      k = j - 2 * S::DS_STAGES; /* after those of stages and
                                                                               keys, of ds */
            const int arrivals = i < S::STAGES                     ? 1
                                 : i < 2 * S::STAGES               ? 8
                                 : i < 2 * S::STAGES + 2           ? 1
                                 : j < 0                           ? 12
                                 : j < S::DS_STAGES                ? 8
                                 : k < 0                           ? 4
                                 : k >= ORDERED && k < 2 * ORDERED ? 4
                                                                   : 1;
            mbarrier_init(barriers + i, arrivals);
        }
        fence_mbarrier_init();
    }
    __syncthreads();
    if (group == 0) {
        warpgroup_reg_dealloc<S::FEW>();
        if (threadIdx.x == 0)
            load_tiles(p, m);
        else if (threadIdx.x == 32 && p.team > 1)
            tell(p, m);
        else if (threadIdx.x == 64 && p.team > 1)
            let(p, m);
    } else if (group == 3) {
        warpgroup_reg_dealloc<S::SOME>();
        add_queries(p, m);
    } else {
        warpgroup_reg_alloc<S::MANY>();
        walk_keys(p, m);
    }
}

/* ---- Before it: rows of queries. A block has 64 queries of a pair, eight threads a query. */

static __global__ void __launch_bounds__(256)
    rows_kernel(const nl_flash_gradient p, float *rows, unsigned *progress, int tiles, int blocks)
{
    if (blockIdx.x == 0)
        for (int i = threadIdx.x; i < blocks; i += 256)
            progress[i] = 0;
    const int pair = blockIdx.x / tiles, tile = blockIdx.x - pair * tiles;
    const int image = pair / p.heads, head = pair - image * p.heads, lane = threadIdx.x % 8;
    rows += (int64_t)blockIdx.x * (QUERIES * 2);
#pragma unroll
    for (int half = 0; half < 2; half++) {
        const int row = half * 32 + threadIdx.x / 8, token = tile * QUERIES + row;
        float sum = 0.f, lse = INFINITY;
        if (token < p.tokens) {
            const int64_t at =
                ((int64_t)image * p.tokens + token) * p.out_stride + head * p.head_size;
            for (int c = lane; c < p.head_size / 8; c += 8) {
                float x[8], y[8];
                nl_load8(p.out + at + c * 8, x);
                nl_load8(p.dout + at + c * 8, y);
#pragma unroll
                for (int i = 0; i < 8; i++)
                    sum = fmaf(x[i], y[i], sum);
            }
            lse = p.lse[(int64_t)pair * p.tokens + token];
        }
#pragma unroll
        for (int i = 1; i < 8; i *= 2)
            sum += __shfl_xor_sync(~0u, sum, i);
        if (lane == 0) {
            float *to = rows + row / 2 * 4 + row % 2;
            to[0] = -1.4426950408889634f * lse, to[2] = sum;
        }
    }
}

/* ---- Launch */

/* How blocks share the pairs: teams of `team`, each with every teams-th pair, of which each block has every team-th tile
 * of keys. What takes the fewest tiles one after the other; then teams whose sums, queries and gradients stay in the
 * second-level cache together, and whose blocks are far enough behind each other; then small ones. */
inline void share(int64_t pairs, int key_tiles, int query_tiles, int64_t tile_bytes,
                  int multiprocessors, int *team, int *teams)
{
    int64_t fewest = INT64_MAX;
    bool best_is_good = false;
    for (int size = 1; size <= multiprocessors && size <= key_tiles; size++) {
        const int64_t count = multiprocessors / size < pairs ? multiprocessors / size : pairs;
        const int64_t rounds = (pairs + count - 1) / count * ((key_tiles + size - 1) / size);
        const bool good = count * query_tiles * 2 * tile_bytes <= 44 << 20 &&
                          (size == 1 || (key_tiles % size == 0 && query_tiles / size >= 8));
        if (rounds < fewest || (rounds == fewest && good && !best_is_good))
            fewest = rounds, *team = size, *teams = (int)count, best_is_good = good;
    }
}

struct workspace {
    int64_t sums, progress, bytes; /* offsets behind the rows of queries; all */
    int team, teams;
};

template <typename S>
inline workspace plan(const nl_flash_gradient &a, int64_t batch, int multiprocessors, int team = 0)
{
    workspace w = {};
    const int64_t pairs = batch * a.heads, query_tiles = (a.tokens + QUERIES - 1) / QUERIES;
    const int64_t tile_bytes = S::VECTORS * 128 * 16;
    w.team = 1, w.teams = 1;
    if (team)
        w.team = team,
        w.teams = (int)(multiprocessors / team < pairs ? multiprocessors / team : pairs);
    else
        share(pairs, (a.tokens + KEYS - 1) / KEYS, (int)query_tiles, tile_bytes, multiprocessors,
              &w.team, &w.teams);
    w.sums = pairs * query_tiles * S::ROWS_BYTES;
    w.progress = w.sums + (w.team == 1 ? w.teams : pairs) * query_tiles * tile_bytes;
    w.bytes = w.progress + w.team * w.teams * 4;
    return w;
}

template <typename S>
inline cudaError_t launch(const nl_flash_gradient &a, int64_t batch, void *memory,
                          const workspace &w, cudaStream_t stream)
{
    gradient_params p = {};
    const int64_t size = a.head_size, tokens = a.tokens;
    const head_tensor in = {size, tokens, a.heads, batch, a.stride, size, a.stride * tokens};
    const head_tensor dout = {
        size, tokens, a.heads, batch, a.out_stride, size, a.out_stride * tokens};
    const head_tensor out = {
        size, tokens, a.heads, batch, a.gradient_stride, size, a.gradient_stride * tokens};
    for (int tail = 0; tail < (S::HAS_TAIL ? 2 : 1); tail++) {
        const int columns = tail ? TAIL : WIDE;
        if (!make_head_tensor_map(tail ? &p.q_tail : &p.q, a.q, in, columns, QUERIES) ||
            !make_head_tensor_map(tail ? &p.k_tail : &p.k, a.k, in, columns, KEYS) ||
            !make_head_tensor_map(tail ? &p.v_tail : &p.v, a.v, in, columns, KEYS) ||
            !make_head_tensor_map(tail ? &p.dout_tail : &p.dout, a.dout, dout, columns, QUERIES) ||
            !make_head_tensor_map(tail ? &p.dq_tail : &p.dq, a.dq, out, columns, 16) ||
            !make_head_tensor_map(tail ? &p.dk_tail : &p.dk, a.dk, out, columns, 16) ||
            !make_head_tensor_map(tail ? &p.dv_tail : &p.dv, a.dv, out, columns, 16))
            return cudaErrorNotSupported;
    }
    p.pairs = (int)(batch * a.heads), p.heads = a.heads, p.tokens = a.tokens;
    p.query_tiles = (a.tokens + QUERIES - 1) / QUERIES, p.key_tiles = (a.tokens + KEYS - 1) / KEYS;
    /* Rows of 512 bytes, to TMA 256 elements of two. */
    const cuuint64_t sizes[] = {S::ROWS_BYTES / 2, (cuuint64_t)p.pairs * p.query_tiles};
    const cuuint64_t strides[] = {S::ROWS_BYTES};
    const cuuint32_t box[] = {S::ROWS_BYTES / 2, 1};
    if (!make_tensor_map(&p.rows, memory, 2, sizes, strides, box, CU_TENSOR_MAP_SWIZZLE_NONE,
                         CU_TENSOR_MAP_L2_PROMOTION_L2_128B))
        return cudaErrorNotSupported;
    p.sums = (float4 *)((char *)memory + w.sums);
    p.progress = (unsigned *)((char *)memory + w.progress);
    p.team = w.team, p.teams = w.teams, p.turns = p.key_tiles % w.team == 0;
    p.scale = a.scale;
    p.scale_log2 = a.scale * 1.4426950408889634f;
    const unsigned tiles = (unsigned)p.pairs * p.query_tiles;
    const int blocks = w.team * w.teams;
    float *rows = (float *)memory;
    rows_kernel<<<tiles, 256, 0, stream>>>(a, rows, p.progress, p.query_tiles, blocks);
    cudaError_t error = nl_allow_shared(backward_kernel<S>, S::SHARED_BYTES);
    if (error != cudaSuccess)
        return error;
    cudaLaunchConfig_t config = {};
    cudaLaunchAttribute together = {};
    config.gridDim = dim3(blocks), config.blockDim = dim3(THREADS);
    config.dynamicSmemBytes = S::SHARED_BYTES, config.stream = stream;
    together.id = cudaLaunchAttributeCooperative, together.val.cooperative = 1;
    config.attrs = &together, config.numAttrs = w.team > 1; /* who waits for others is with them */
    error = cudaLaunchKernelEx(&config, backward_kernel<S>, p);
    if (error == cudaErrorCooperativeLaunchTooLarge) /* somebody has a part of the card */
        (void)cudaGetLastError(), error = cudaErrorNotSupported;
    return error;
}

} // namespace nl_softmax_backward_sm90

#endif
