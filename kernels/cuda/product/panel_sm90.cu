/* SPDX-License-Identifier: MIT */
/*
 * Products with few columns of x, y [M, N] = epilogue(x [M, K] W [N, K]^T + bias), bf16 in and out, fp32 sums: those of a
 * narrow backbone, where K is a few hundred, M is in the ten thousands and a general product spends as long on its
 * epilogue as on multiplying. The same of E4M3, of which a row of K has the bytes of K / 2 bf16; lengths along K are
 * counted in two bytes here.
 *
 * A block owns a panel of PANEL columns, whose weights [PANEL, K] stay in shared memory beside a ring of STAGES for steps of
 * x, and walks over tiles of 64 rows, whose sums [64, PANEL] stay in the registers of a warp group, 96 a thread.
 * Two warp groups take tiles in turn, so that one multiplies while the other runs its epilogue on the ordinary units. A
 * third queues the copies of x: one of its threads would do, but it has registers to give up to the two, and what a
 * thread has changes for a warp group at a time.
 */
#include "panel_sm90.cuh"

#include "prim/activation.cuh"
#include "prim/convert.cuh"
#include "prim/e4m3.cuh"
#include "prim/is_hopper.cuh"
#include "prim/reduce.cuh"
#include "prim/shared_limit.cuh"
#include "prim/tma.cuh"
#include "prim/wgmma.cuh"

using namespace nl_prim;

namespace
{

enum {
    PANEL = 192,
    ROWS = 64, /* of a tile */
    STEP = 64, /* of K, in one copy */
    STAGES = 6,
    MAX_STEPS = 7,
    GROUPS = 2, /* warp groups that multiply */
    CONSUMERS = GROUPS * 128,
    WARPS = CONSUMERS / 32,
    THREADS = CONSUMERS + 128,
    PRODUCER_REGISTERS = 24, /* a thread; with those of the consumers no more than at the start */
    REGISTERS = 240,
    X_BYTES = ROWS * STEP * 2,
    W_BYTES = PANEL * STEP * 2
};

struct panel_params {
    CUtensorMap x, w;
    const __nv_bfloat16 *w_by_depth; /* [K, N], or NULL: what w describes */
    const void *bias;                /* [N] of type bias_type, or NULL */
    __nv_bfloat16 *y, *pre, *gelu;
    float *parts;
    const float *x_scale, *w_scale; /* of E4M3 */
    uint8_t *y_f8;
    float *y_scale, reach, bias_reach;
    int64_t rows, columns, depth, w_stride, y_stride;
    int steps, panels;
    bool bias_f32;
};

int shared_bytes(int steps)
{
    /* 1,024 for the alignment, then bias, parts and barriers at the end. */
    return 1024 + steps * W_BYTES + STAGES * X_BYTES + (1 + WARPS) * PANEL * 4 +
           (2 * STAGES + 1) * 8;
}

/* ---- A thread's part of a tile: rows `row` and row + 8, in each run of 32 columns eight neighbouring ones. The
 * products leave a thread the columns 8 n + 2 q, 8 n + 2 q + 1 of a tile (q = lane % 4), so the weights of column
 * 8 q + 2 i + e lie in row 8 i + 2 q + e of their run. */

enum { RUNS = PANEL / 32 };

__device__ __forceinline__ float sum_at(const float (&d)[PANEL / 2], int run, int r, int i)
{
    return d[(run * 4 + i / 2) * 4 + 2 * r + i % 2];
}

/* Where run 0 of a thread's two rows starts in one of the large matrices; NULL beyond the last row. */
template <typename T> struct two_rows {
    T *at[2];
    __device__ __forceinline__ two_rows(T *base, int64_t stride, const panel_params &p, int64_t row,
                                        int64_t column)
    {
#pragma unroll
        for (int r = 0; r < 2; r++)
            at[r] = row + 8 * r < p.rows ? base + (row + 8 * r) * stride + column : NULL;
    }
};

__device__ __forceinline__ void load_tile(const two_rows<__nv_bfloat16> &from, uint4 (&to)[RUNS][2])
{
#pragma unroll
    for (int run = 0; run < RUNS; run++)
#pragma unroll
        for (int r = 0; r < 2; r++)
            to[run][r] =
                from.at[r] ? *(const uint4 *)(from.at[r] + run * 32) : make_uint4(0, 0, 0, 0);
}

/* Of E4M3: the factors of a thread's two rows of x, and the inverse ones of y. */
struct row_factors {
    float x[2], y_inverse[2];
    /* first_panel: y's go to memory. */
    template <bool F8_OUT>
    __device__ __forceinline__ void load(const panel_params &p, int64_t row, bool first_panel)
    {
#pragma unroll
        for (int r = 0; r < 2; r++) {
            const bool there = row + 8 * r < p.rows;
            x[r] = there ? p.x_scale[row + 8 * r] : 0.f;
            if (F8_OUT) {
                const float y =
                    e4m3_scale(magnitude_of(fmaf(x[r], p.reach, p.bias_reach)), &y_inverse[r]);
                if (there && first_panel && threadIdx.x % 4 == 0)
                    p.y_scale[row + 8 * r] = y;
            }
        }
    }
};

/* One tile from a warp group's sums: rows of y, and of pre or GELU(pre); adds the sums over its rows to `columns`.
 * Under GELU alone the bias is halved, and with E4M3 the factors of the columns, w. */
template <nl_panel_epilogue EPILOGUE, bool F8, typename Y>
__device__ __forceinline__ void
write_tile(const float (&d)[PANEL / 2], const uint4 (&pre)[RUNS][2], const float *bias,
           const float *w_factors, const row_factors &factors, const two_rows<Y> &y_rows,
           const two_rows<__nv_bfloat16> &other_rows, float (&columns)[RUNS])
{
#pragma unroll
    for (int run = 0; run < RUNS; run++) {
        float b[8], w[8], sums[8];
        if (EPILOGUE != NL_PANEL_GELU_GRADIENT) {
            *(float4 *)b = *(const float4 *)(bias + run * 32);
            *(float4 *)(b + 4) = *(const float4 *)(bias + run * 32 + 4);
        }
        if (F8) {
            *(float4 *)w = *(const float4 *)(w_factors + run * 32);
            *(float4 *)(w + 4) = *(const float4 *)(w_factors + run * 32 + 4);
        }
#pragma unroll
        for (int r = 0; r < 2; r++) {
            float y[8], other[8]; /* pre, or GELU of it; under GELU alone half of pre */
            if (EPILOGUE == NL_PANEL_GELU_GRADIENT)
                unpack_bf16x8(pre[run][r], other);
#pragma unroll
            for (int i = 0; i < 8; i++) {
                const float sum = F8 ? sum_at(d, run, r, i) * factors.x[r] : sum_at(d, run, r, i);
                if (EPILOGUE == NL_PANEL_GELU_GRADIENT) {
                    float derivative;
                    other[i] = nl_gelu_and_derivative(other[i], &derivative);
                    y[i] = sum * derivative;
                    sums[i] = r ? sums[i] + y[i] : y[i];
                } else {
                    other[i] = F8                          ? fmaf(w[i], sum, b[i])
                               : EPILOGUE == NL_PANEL_GELU ? fmaf(0.5f, sum, b[i])
                                                           : sum + b[i];
                    y[i] = EPILOGUE == NL_PANEL_PLAIN  ? other[i]
                           : EPILOGUE == NL_PANEL_GELU ? nl_gelu_of_twice(other[i])
                                                       : nl_gelu<__nv_bfloat16>(other[i]);
                }
            }
            if (sizeof(Y) == 1) {
                if (y_rows.at[r])
                    store_e4m3(y_rows.at[r] + run * 32, y, factors.y_inverse[r]);
                continue;
            }
            const uint4 packed = pack_bf16x8(y), other_packed = pack_bf16x8(other);
            if (y_rows.at[r])
                *(uint4 *)(y_rows.at[r] + run * 32) = packed;
            if (EPILOGUE >= NL_PANEL_GELU_PRE && y_rows.at[r])
                *(uint4 *)(other_rows.at[r] + run * 32) = other_packed;
        }
        if (EPILOGUE == NL_PANEL_GELU_GRADIENT)
            columns[run] += nl_column_sum(sums);
    }
}

/* ---- The weights of a panel in shared memory: [steps][PANEL, STEP] as TMA leaves them, rows in the order above. */

/* From [N, K]: eight rows of a run at a time, which lie two and two in memory. One warp. */
__device__ __forceinline__ void copy_weights(const panel_params &p, unsigned char *tiles, int panel,
                                             uint64_t *barrier)
{
    const int lane = threadIdx.x % 32;
    if (lane == 0)
        mbarrier_arrive_expect_tx(barrier, p.steps * W_BYTES);
    __syncwarp();
    for (int i = lane; i < p.steps * PANEL / 8; i += 32) {
        const int step = i / (PANEL / 8), eight = i % (PANEL / 8);
        tma_load(tiles + step * W_BYTES + eight * 8 * STEP * 2, &p.w, step * STEP, eight % 4 * 2,
                 (panel * RUNS + eight / 4) * 4, barrier);
    }
}

/* From [K, N]: pairs of columns of eight rows become 16 bytes of two rows of a tile. All consumers. */
__device__ __forceinline__ void transpose_weights(const panel_params &p, unsigned char *tiles,
                                                  int panel)
{
    constexpr int BATCH = 6; /* on their way at a time */
    const int count = p.steps * (STEP / 8) * (PANEL / 2);
    for (int first = threadIdx.x; first < count; first += BATCH * CONSUMERS) {
        uint32_t pairs[BATCH][8] = {};
#pragma unroll
        for (int b = 0; b < BATCH; b++) {
            const int i = first + b * CONSUMERS, row = i % (PANEL / 2) * 2, eight = i / (PANEL / 2);
            const int column = row / 32 * 32 + row / 2 % 4 * 8 + row / 8 % 4 * 2;
            const __nv_bfloat16 *from =
                p.w_by_depth + eight * 8 * p.w_stride + panel * PANEL + column;
            if (eight * 8 < p.depth)
#pragma unroll
                for (int k = 0; k < 8; k++)
                    pairs[b][k] = *(const uint32_t *)(from + k * p.w_stride);
        }
#pragma unroll
        for (int b = 0; b < BATCH; b++) {
            const int i = first + b * CONSUMERS, row = i % (PANEL / 2) * 2, eight = i / (PANEL / 2);
            uint32_t low[4], high[4];
#pragma unroll
            for (int k = 0; k < 4; k++)
                low[k] = __byte_perm(pairs[b][2 * k], pairs[b][2 * k + 1], 0x5410),
                high[k] = __byte_perm(pairs[b][2 * k], pairs[b][2 * k + 1], 0x7632);
            unsigned char *to = tiles + eight / 8 * W_BYTES + row * STEP * 2;
            if (i < count) {
                *(uint4 *)(to + (eight ^ row) % 8 * 16) =
                    make_uint4(low[0], low[1], low[2], low[3]);
                *(uint4 *)(to + STEP * 2 + (eight ^ (row + 1)) % 8 * 16) =
                    make_uint4(high[0], high[1], high[2], high[3]);
            }
        }
    }
    fence_proxy_async();
    named_barrier_sync(1 + GROUPS, CONSUMERS);
}

/* ---- The tiles of x that a block walks through, step by step, in a ring. */

struct pipeline {
    unsigned char *tiles; /* [STAGES][ROWS, STEP] */
    uint64_t *full, *empty;
    int first, stride, count; /* tiles */

    /* Queues all copies; one thread. */
    __device__ __forceinline__ void produce(const panel_params &p) const
    {
        int stage = 0, parity = 1, column = 0, row = first * ROWS;
        for (int i = 0; i < count * p.steps; i++) {
            mbarrier_wait_parity(empty + stage, parity);
            mbarrier_arrive_expect_tx(full + stage, X_BYTES);
            tma_load(tiles + stage * X_BYTES, &p.x, column, row, full + stage);
            if (++stage == STAGES)
                stage = 0, parity ^= 1;
            if ((column += STEP) == p.steps * STEP)
                column = 0, row += stride * ROWS;
        }
    }
    /* This warp's products have read step i. */
    __device__ __forceinline__ void release(int i) const
    {
        if (threadIdx.x % 32 == 0)
            mbarrier_arrive(empty + i % STAGES);
    }
};

/* d = the products of tile number `tile` of the block, and leave to multiply for the next group. */
template <bool F8>
__device__ __forceinline__ void mma_tile(const panel_params &p, const pipeline &x, int tile,
                                         const unsigned char *w_tiles, float (&d)[PANEL / 2])
{
    const int first = tile * p.steps;
    for (int step = 0; step < p.steps; step++) {
        const int i = first + step;
        mbarrier_wait_parity(x.full + i % STAGES, i / STAGES % 2);
        const uint64_t a = wide_descriptor(x.tiles + i % STAGES * X_BYTES);
        const uint64_t b = wide_descriptor(w_tiles + step * W_BYTES);
        wgmma_fence();
#pragma unroll
        for (int k = 0; k < STEP / 16; k++) /* 16 elements are 32 bytes */
            if constexpr (F8)
                wgmma_ss_e4m3(d, a + 2 * k, b + 2 * k, step + k > 0);
            else
                wgmma_ss(d, a + 2 * k, b + 2 * k, step + k > 0);
        wgmma_commit_group();
        if (step > 0) {
            wgmma_wait_group<1>(); /* the products of the step before have read their tile */
            x.release(i - 1);
        }
    }
    if (tile + 1 < x.count)
        named_barrier_arrive(1 + (tile + 1) % GROUPS, 256);
    wgmma_wait_group<0>();
    warpgroup_fence_operand(d);
    x.release(first + p.steps - 1);
}

/* Warp group g takes tiles g, g + GROUPS, ... of the block's; named barrier 1 + g lets it multiply. */
template <nl_panel_epilogue EPILOGUE, bool F8, typename Y>
__device__ __forceinline__ void consume(const panel_params &p, const pipeline &x, int panel,
                                        const unsigned char *w_tiles, const float *bias,
                                        const float *w_factors, float (&columns)[RUNS])
{
    const int group = threadIdx.x / 128, lane = threadIdx.x % 32;
    const int column = lane % 4 * 8; /* in the panel */
    __nv_bfloat16 *other = EPILOGUE == NL_PANEL_GELU_GRADIENT ? p.gelu : p.pre;
    for (int tile = group; tile < x.count; tile += GROUPS) {
        const int64_t row =
            (int64_t)(x.first + tile * x.stride) * ROWS + threadIdx.x / 32 % 4 * 16 + lane / 4;
        const two_rows<Y> y(sizeof(Y) == 1 ? (Y *)p.y_f8 : (Y *)p.y, p.y_stride, p, row,
                            panel * PANEL + column);
        const two_rows<__nv_bfloat16> other_rows(other, p.columns, p, row, panel * PANEL + column);
        float d[PANEL / 2];
        uint4 pre[RUNS][2];
        row_factors factors;
        if (F8)
            factors.load<sizeof(Y) == 1>(p, row, panel == 0);
        if (EPILOGUE == NL_PANEL_GELU_GRADIENT) /* on its way while the products run */
            load_tile(two_rows<__nv_bfloat16>(p.pre, p.columns, p, row, panel * PANEL + column),
                      pre);
        if (tile > 0)
            named_barrier_sync(1 + group, 256);
        mma_tile<F8>(p, x, tile, w_tiles, d);
        write_tile<EPILOGUE, F8>(d, pre, bias + column, w_factors + column, factors, y, other_rows,
                                 columns);
    }
}

/* parts [warps, PANEL] of the block, added up to those of the panel. */
__device__ __forceinline__ void write_parts(const panel_params &p, const float (&columns)[RUNS],
                                            float *parts, int first, int panel)
{
#pragma unroll
    for (int i = 0; i < RUNS; i++)
        parts[threadIdx.x / 32 * PANEL + i * 32 + threadIdx.x % 4 * 8 + nl_column_of_sum()] =
            columns[i];
    named_barrier_sync(1 + GROUPS, CONSUMERS);
    for (int i = threadIdx.x; i < PANEL; i += CONSUMERS) {
        float sum = 0.f;
        for (int warp = 0; warp < WARPS; warp++)
            sum += parts[warp * PANEL + i];
        p.parts[first * p.columns + panel * PANEL + i] = sum;
    }
}

/* Y: of y, E4M3 or bf16. */
template <nl_panel_epilogue EPILOGUE, bool F8, typename Y>
__global__ void __launch_bounds__(THREADS, 1) panel_kernel(const __grid_constant__ panel_params p)
{
    extern __shared__ unsigned char unaligned[];
    unsigned char *w_tiles =
        unaligned + bytes_to_aligned<1024>(unaligned); /* [steps][PANEL, STEP] */
    pipeline x;
    x.tiles = w_tiles + p.steps * W_BYTES;
    float *bias = (float *)(x.tiles + STAGES * X_BYTES);
    float *parts = bias + PANEL; /* [warps, PANEL] */
    x.full = (uint64_t *)(parts + WARPS * PANEL), x.empty = x.full + STAGES;
    uint64_t *weights = x.empty + STAGES;

    const int panel = blockIdx.x % p.panels;
    const int tiles = (int)((p.rows + ROWS - 1) / ROWS);
    x.first = blockIdx.x / p.panels, x.stride = gridDim.x / p.panels;
    x.count = x.first < tiles ? (tiles - x.first + x.stride - 1) / x.stride : 0;
    float *w_factors = parts; /* [PANEL], where there are no parts */
    for (int i = threadIdx.x; F8 && i < PANEL; i += THREADS)
        w_factors[i] = (EPILOGUE == NL_PANEL_GELU ? 0.5f : 1.f) * p.w_scale[panel * PANEL + i];
    for (int i = threadIdx.x; i < PANEL; i += THREADS)
        bias[i] =
            (EPILOGUE == NL_PANEL_GELU ? 0.5f : 1.f) *
            (!p.bias      ? 0.f
             : p.bias_f32 ? ((const float *)p.bias)[panel * PANEL + i]
                          : __bfloat162float(((const __nv_bfloat16 *)p.bias)[panel * PANEL + i]));
    if (threadIdx.x == 0) {
        for (int i = 0; i < STAGES; i++)
            mbarrier_init(x.full + i, 1), mbarrier_init(x.empty + i, 4 /* warps */);
        mbarrier_init(weights, 1);
        fence_mbarrier_init();
    }
    __syncthreads();

    if (threadIdx.x >= CONSUMERS) {
        warpgroup_reg_dealloc<PRODUCER_REGISTERS>();
        if (threadIdx.x / 32 == WARPS) {
            if (!p.w_by_depth)
                copy_weights(p, w_tiles, panel, weights);
            if (threadIdx.x == CONSUMERS)
                x.produce(p);
        }
    } else {
        warpgroup_reg_alloc<REGISTERS>();
        if (p.w_by_depth)
            transpose_weights(p, w_tiles, panel);
        else
            mbarrier_wait_parity(weights, 0);
        float columns[RUNS] = {};
        consume<EPILOGUE, F8, Y>(p, x, panel, w_tiles, bias, w_factors, columns);
        if (EPILOGUE == NL_PANEL_GELU_GRADIENT)
            write_parts(p, columns, parts, x.first, panel);
    }
}

/* Boxes [ROWS, STEP] of x; zeros beyond it. */
bool make_x_map(CUtensorMap *map, const nl_panel_product *a)
{
    const cuuint64_t sizes[] = {(cuuint64_t)a->depth, (cuuint64_t)a->rows};
    const cuuint64_t strides[] = {(cuuint64_t)a->x_stride * 2};
    const cuuint32_t box[] = {STEP, ROWS};
    return make_tensor_map(map, a->x, 2, sizes, strides, box, CU_TENSOR_MAP_SWIZZLE_128B,
                           CU_TENSOR_MAP_L2_PROMOTION_L2_256B);
}

/* Boxes of w as [N / 8, 8, K]: of four neighbouring eights of rows the same two, STEP of each. */
bool make_w_map(CUtensorMap *map, const nl_panel_product *a)
{
    const cuuint64_t sizes[] = {(cuuint64_t)a->depth, 8, (cuuint64_t)a->columns / 8};
    const cuuint64_t strides[] = {(cuuint64_t)a->w_stride * 2, (cuuint64_t)a->w_stride * 16};
    const cuuint32_t box[] = {STEP, 2, 4};
    return make_tensor_map(map, a->w, 3, sizes, strides, box, CU_TENSOR_MAP_SWIZZLE_128B,
                           CU_TENSOR_MAP_L2_PROMOTION_L2_256B);
}

} // namespace

bool nl_panel_product_serves(const nl_panel_product *a, int device)
{
    return nl_is_hopper(device) && a->depth <= MAX_STEPS * STEP && a->depth % 8 == 0 &&
           a->columns % PANEL == 0 && a->rows >= 4096 && a->rows <= INT32_MAX / 2 &&
           a->x_stride % 8 == 0 && a->w_stride % 8 == 0 && a->y_stride % 8 == 0 &&
           (!a->x_scale || a->epilogue <= NL_PANEL_GELU) && (uintptr_t)a->y_f8 % 8 == 0 &&
           ((uintptr_t)a->x | (uintptr_t)a->w | (uintptr_t)a->y | (uintptr_t)a->pre |
            (uintptr_t)a->gelu) %
                   16 ==
               0;
}

int64_t nl_panel_parts(int64_t columns, int multiprocessors)
{
    const int64_t panels = columns / PANEL;
    return multiprocessors > panels ? multiprocessors / panels : 1;
}

cudaError_t nl_panel_product_run(const nl_panel_product *a, int multiprocessors,
                                 cudaStream_t stream)
{
    panel_params p = {};
    p.bias = a->bias, p.bias_f32 = a->bias_f32;
    p.y = a->y, p.pre = a->pre, p.gelu = a->gelu, p.parts = a->parts;
    p.x_scale = a->x_scale, p.w_scale = a->w_scale;
    p.y_f8 = a->y_f8, p.y_scale = a->y_scale, p.reach = a->reach, p.bias_reach = a->bias_reach;
    p.w_by_depth = a->w_by_depth ? a->w : NULL;
    p.rows = a->rows, p.columns = a->columns, p.depth = a->depth;
    p.w_stride = a->w_stride, p.y_stride = a->y_stride;
    p.steps = (int)((a->depth + STEP - 1) / STEP), p.panels = (int)(a->columns / PANEL);
    if (!make_x_map(&p.x, a) || (!a->w_by_depth && !make_w_map(&p.w, a)))
        return cudaErrorNotSupported;
    const int bytes = shared_bytes(p.steps);
    const int64_t of_panel = nl_panel_parts(a->columns, multiprocessors);
    using bf16 = __nv_bfloat16;
    auto kernel = a->epilogue == NL_PANEL_PLAIN  ? panel_kernel<NL_PANEL_PLAIN, false, bf16>
                  : a->epilogue == NL_PANEL_GELU ? panel_kernel<NL_PANEL_GELU, false, bf16>
                  : a->epilogue == NL_PANEL_GELU_PRE
                      ? panel_kernel<NL_PANEL_GELU_PRE, false, bf16>
                      : panel_kernel<NL_PANEL_GELU_GRADIENT, false, bf16>;
    if (a->x_scale)
        kernel = a->y_f8                        ? panel_kernel<NL_PANEL_GELU, true, uint8_t>
                 : a->epilogue == NL_PANEL_GELU ? panel_kernel<NL_PANEL_GELU, true, bf16>
                                                : panel_kernel<NL_PANEL_PLAIN, true, bf16>;
    cudaError_t error = nl_allow_shared(kernel, bytes);
    if (error == cudaSuccess) {
        kernel<<<(unsigned)(of_panel * p.panels), THREADS, (size_t)bytes, stream>>>(p);
        error = cudaGetLastError();
    }
    return error;
}
