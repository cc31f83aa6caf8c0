/* SPDX-License-Identifier: MIT */
/*
 * Convolutions of 3 x 3, stride 1 and padding 1, NHWC, bf16 with fp32 sums, as products whose first factor is read from the
 * picture where it lies. That of a doubled picture is four of 2 x 2 on the picture as it is, one for each parity of line and
 * column of y (phases), with the weights that fall on one pixel summed.
 *
 * A block makes tiles of LINES x WIDTH pixels and COLUMNS outputs, one after the other; two warp groups have eight lines each
 * and the sums in registers. The tile's pixels and one more all around, STEP channels of them, lie in shared memory once for
 * all taps: [STEP / 8][pixels] units of eight channels, 16 bytes. Eight neighbouring pixels of a line are a core matrix of
 * wgmma without swizzle wherever they start, so that a tap is an offset of the descriptor. A warp fills two such patches by
 * turns, with zeros outside of the picture; a thread of another has TMA load the weights, [COLUMNS, STEP] for each tap, into a
 * ring. Two blocks share a multiprocessor, so that one can multiply while the other writes: tiles of twice the width, which
 * leave room for one, are slower (bench/results/images.md).
 *
 * A small picture has too few tiles for the card: then STEPs of the channels are parted, the parts' sums go to memory in
 * fp32, and a second kernel adds them in their order.
 */
#include "implicit_sm90.cuh"

#include "prim/cp_async.cuh"
#include "prim/is_hopper.cuh"
#include "prim/tma.cuh"
#include "prim/wgmma.cuh"

using namespace nl_prim;

namespace
{

enum {
    GROUPS = 2, /* warp groups that multiply */
    LINES = 8 * GROUPS,
    WIDTH = 8,
    PATCH_WIDTH = WIDTH + 2,
    PATCH = PATCH_WIDTH * (LINES + 2),
    STEP = 64, /* channels */
    UNITS = STEP / 8,
    /* Bytes of a plane of units: 16 beyond a multiple of 128, so that the units of a pixel lie in different banks. */
    PLANE = (PATCH * 16 - 16 + 127) / 128 * 128 + 16,
    X_BYTES = UNITS * PLANE,
    X_STAGES = 2,
    W_STAGES = 4,
    CONSUMERS = GROUPS * 128,
    THREADS = CONSUMERS + 64,
    LOADERS = 32, /* threads for pixels */
    BLOCKS = 2,   /* of a multiprocessor */
    RUN = NL_CONV_TILED_RUN,
    /* Blocks that keep a card busy: a constant, so that the order of sums does not depend on the card. */
    BUSY = 128,
};

struct implicit_params {
    CUtensorMap w; /* [phases outputs, taps channels], padded */
    const __nv_bfloat16 *x, *residual;
    const float *bias;
    __nv_bfloat16 *y;
    float *parts; /* [parts, pixels, padded_outputs], or NULL: y is written */
    int64_t y_pixel, pixels /* of all pictures of y */;
    int height, width, channels, outputs; /* of x */
    int padded_channels, padded_outputs;
    int scale; /* 2 where x is doubled: pixels of y for one of x */
    int taps;  /* 3, or 2 for a phase, in each direction */
    int tiles_across, tiles_down, columns /* tiles of outputs */, part_count;
    int steps, part_steps; /* of channels: in all, of a part */
    int items;             /* tiles times parts, phases and pictures */
    nl_activation activation;
    bool eights; /* y and residual are written and read by 16 bytes */
};

/* One tile of y: neighbours share pixels. */
struct item_place {
    int column, phase_x, phase_y, part, left, top, image, first_step, last_step;
    __device__ __forceinline__ item_place(const implicit_params &p, int item)
    {
        auto next = [&](int count) {
            const int quotient = item / count, rest = item - quotient * count;
            item = quotient;
            return rest;
        };
        column = next(p.columns);
        phase_x = next(p.scale), phase_y = next(p.scale);
        part = next(p.part_count);
        left = next(p.tiles_across) * WIDTH, top = next(p.tiles_down) * LINES;
        image = item;
        first_step = part * p.part_steps, last_step = min(first_step + p.part_steps, p.steps);
    }
};

/* A ring's stage and the parity of its phase. */
template <int STAGES> struct ring {
    int stage, parity;
    __device__ __forceinline__ void advance()
    {
        if (++stage == STAGES)
            stage = 0, parity ^= 1;
    }
};

/* Addresses in shared memory: weights, patches of pixels and the barriers of both. */
template <int COLUMNS> struct memory {
    enum {
        W_BYTES = COLUMNS * STEP * 2, /* of a stage */
        BARRIERS = 2 * (W_STAGES + X_STAGES),
        ALIGNMENT = 1024,
        BYTES = ALIGNMENT + W_STAGES * W_BYTES + X_STAGES * X_BYTES + BARRIERS * 8
    };
    uint32_t w, x, w_full, w_empty, x_full, x_empty;
    __device__ __forceinline__ explicit memory(const unsigned char *unaligned)
    {
        w = shared_address(unaligned) + bytes_to_aligned<ALIGNMENT>(unaligned);
        x = w + W_STAGES * W_BYTES;
        w_full = x + X_STAGES * X_BYTES;
        w_empty = w_full + W_STAGES * 8;
        x_full = w_empty + W_STAGES * 8;
        x_empty = x_full + X_STAGES * 8;
    }
};

/* No swizzle: core matrices, eight rows of 16 bytes one after the other, are `rows` bytes from those of the next eight rows
 * and `columns` from those of the next eight columns. */
__device__ __forceinline__ uint64_t plain_descriptor(uint32_t tile, int rows, int columns)
{
    return (uint64_t)((tile & 0x3ffff) >> 4) | (uint64_t)(columns >> 4) << 16 |
           (uint64_t)(rows >> 4) << 32;
}

/* Queues the weights of all tiles of the block; one thread. */
template <int COLUMNS>
__device__ __forceinline__ void load_weights(const implicit_params &p, const memory<COLUMNS> &m)
{
    ring<W_STAGES> w = {0, 1};
    const int taps = p.taps * p.taps;
    for (int item = blockIdx.x; item < p.items; item += gridDim.x) {
        const item_place place(p, item);
        const int phase = place.phase_y * p.scale + place.phase_x;
        const int row = phase * p.padded_outputs + place.column * COLUMNS;
        for (int step = place.first_step; step < place.last_step; step++)
            for (int tap = 0; tap < taps; tap++) {
                mbarrier_wait_parity(m.w_empty + w.stage * 8, w.parity);
                mbarrier_arrive_expect_tx(m.w_full + w.stage * 8, m.W_BYTES);
                tma_load(m.w + w.stage * m.W_BYTES, &p.w, tap * p.padded_channels + step * STEP,
                         row, m.w_full + w.stage * 8);
                w.advance();
            }
    }
}

/* Loads the pixels of all tiles of the block; thread: of LOADERS. A thread keeps to its eight channels and its columns. */
template <int COLUMNS>
__device__ __forceinline__ void load_pixels(const implicit_params &p, const memory<COLUMNS> &m,
                                            int thread)
{
    constexpr int AT_ONCE = LOADERS / UNITS, ROUNDS = (PATCH_WIDTH + AT_ONCE - 1) / AT_ONCE;
    ring<X_STAGES> x = {0, 1};
    const int unit = thread % UNITS, column = thread / UNITS;
    const int64_t line_size = (int64_t)p.width * p.channels;
    for (int item = blockIdx.x; item < p.items; item += gridDim.x) {
        const item_place place(p, item);
        const int top = place.top - 1, left = place.left - 1 + column;
        const __nv_bfloat16 *first = p.x + ((int64_t)place.image * p.height + top) * line_size +
                                     (int64_t)left * p.channels + unit * 8;
        bool there[ROUNDS];
#pragma unroll
        for (int i = 0; i < ROUNDS; i++)
            there[i] = (unsigned)(left + i * AT_ONCE) < (unsigned)p.width;
        for (int step = place.first_step; step < place.last_step; step++) {
            mbarrier_wait_parity(m.x_empty + x.stage * 8, x.parity);
            uint32_t to = m.x + x.stage * X_BYTES + unit * PLANE + column * 16;
            const __nv_bfloat16 *from = first + step * STEP;
            const bool channel_there = step * STEP + unit * 8 < p.channels;
#pragma unroll 2
            for (int line = top; line < top + LINES + 2; line++) {
                const bool line_there = channel_there && (unsigned)line < (unsigned)p.height;
#pragma unroll
                for (int i = 0; i < ROUNDS; i++) {
                    const bool inside = line_there && there[i];
                    if ((i + 1) * AT_ONCE <= PATCH_WIDTH || column + i * AT_ONCE < PATCH_WIDTH)
                        cp_async(to + i * AT_ONCE * 16,
                                 inside ? from + i * AT_ONCE * p.channels : p.x, inside);
                }
                to += PATCH_WIDTH * 16, from += line_size;
            }
            cp_async_commit_group();
            cp_async_wait_group<0>();
            fence_proxy_async();
            mbarrier_arrive(m.x_full + x.stage * 8);
            x.advance();
        }
    }
}

/* The next one of a warp's stages was read. */
template <int STAGES> __device__ __forceinline__ void release(uint32_t empty, ring<STAGES> &read)
{
    if (threadIdx.x % 32 == 0)
        mbarrier_arrive(empty + read.stage * 8);
    read.advance();
}

/* Sum i of eight neighbouring outputs of a run, of a thread's first or second row (weight.cuh has the order of weights). */
template <int N> __device__ __forceinline__ float sum_at(const float (&d)[N], int run, int r, int i)
{
    return d[(run * 4 + i / 2) * 4 + 2 * r + i % 2];
}

/* y = activation(v + bias + residual) of eight outputs from `output` on, as many as there are. pixel: of y. */
__device__ __forceinline__ void finish(const implicit_params &p, int64_t pixel, int output,
                                       float (&v)[8])
{
    __nv_bfloat16 *y = p.y + pixel * p.y_pixel + output;
    const __nv_bfloat16 *residual = p.residual + pixel * p.outputs + output;
    if (p.eights) {
        float other[8];
        if (p.bias) {
            nl_load8(p.bias + output, other);
#pragma unroll
            for (int i = 0; i < 8; i++)
                v[i] += other[i];
        }
        if (p.residual) {
            nl_load8(residual, other);
#pragma unroll
            for (int i = 0; i < 8; i++)
                v[i] += other[i];
        }
#pragma unroll
        for (int i = 0; i < 8; i++)
            v[i] = nl_conv_activate(v[i], p.activation);
        nl_store8(y, v);
        return;
    }
#pragma unroll
    for (int i = 0; i < 8; i++)
        if (output + i < p.outputs) {
            const float sum = v[i] + (p.bias ? p.bias[output + i] : 0.f) +
                              (p.residual ? nl_get(residual + i) : 0.f);
            nl_put(y + i, nl_conv_activate(sum, p.activation));
        }
}

/* d: sums of a warp group's lines of a tile. */
template <int COLUMNS>
__device__ __forceinline__ void write_tile(const implicit_params &p, const item_place &place,
                                           const float (&d)[COLUMNS / 2])
{
    const int lane = threadIdx.x % 32;
#pragma unroll
    for (int r = 0; r < 2; r++) {
        const int line = place.top + threadIdx.x / 32 * 2 + r, column = place.left + lane / 4;
        if (line >= p.height || column >= p.width)
            continue;
        const int64_t lines = (int64_t)p.scale * p.height;
        const int64_t pixel =
            (place.image * lines + p.scale * line + place.phase_y) * p.scale * p.width +
            p.scale * column + place.phase_x;
#pragma unroll
        for (int run = 0; run < COLUMNS / RUN; run++) {
            const int output = place.column * COLUMNS + run * RUN + lane % 4 * 8;
            float v[8];
#pragma unroll
            for (int i = 0; i < 8; i++)
                v[i] = sum_at(d, run, r, i);
            if (output >= p.outputs)
                continue;
            if (p.parts)
                nl_store8(p.parts + (place.part * p.pixels + pixel) * p.padded_outputs + output, v);
            else
                finish(p, pixel, output, v);
        }
    }
}

template <int COLUMNS>
__device__ __forceinline__ void consume(const implicit_params &p, const memory<COLUMNS> &m)
{
    const int group = threadIdx.x / 128;
    ring<W_STAGES> w = {}, w_read = {};
    ring<X_STAGES> x = {}, x_read = {};
    for (int item = blockIdx.x; item < p.items; item += gridDim.x) {
        const item_place place(p, item);
        float d[COLUMNS / 2];
        bool first = true;
        for (int step = place.first_step; step < place.last_step; step++) {
            mbarrier_wait_parity(m.x_full + x.stage * 8, x.parity);
            const uint32_t patch = m.x + x.stage * X_BYTES + group * 8 * PATCH_WIDTH * 16;
            for (int tap_y = place.phase_y; tap_y < place.phase_y + p.taps; tap_y++)
                for (int tap_x = place.phase_x; tap_x < place.phase_x + p.taps; tap_x++) {
                    const uint64_t a = plain_descriptor(patch + (tap_y * PATCH_WIDTH + tap_x) * 16,
                                                        PATCH_WIDTH * 16, PLANE);
                    const uint64_t b = wide_descriptor(m.w + w.stage * m.W_BYTES);
                    mbarrier_wait_parity(m.w_full + w.stage * 8, w.parity);
                    wgmma_fence();
#pragma unroll
                    for (int k = 0; k < STEP / 16; k++)
                        wgmma_ss(d, a + k * (2 * PLANE >> 4), b + k * WIDE_COLUMNS_16,
                                 k > 0 || !first);
                    wgmma_commit_group();
                    if (!first) { /* the products of the tap before have read their factors */
                        wgmma_wait_group<1>();
                        release(m.w_empty, w_read);
                        if (tap_y == place.phase_y && tap_x == place.phase_x)
                            release(m.x_empty, x_read);
                    }
                    first = false;
                    w.advance();
                }
            x.advance();
        }
        wgmma_wait_group<0>();
        warpgroup_fence_operand(d);
        release(m.w_empty, w_read);
        release(m.x_empty, x_read);
        /* Where the tile lies is found again: no registers meanwhile. */
        asm volatile("" : "+r"(item));
        write_tile<COLUMNS>(p, item_place(p, item), d);
    }
}

template <int COLUMNS>
__global__ void __launch_bounds__(THREADS, BLOCKS)
    implicit_kernel(const __grid_constant__ implicit_params p)
{
    extern __shared__ unsigned char unaligned[];
    const memory<COLUMNS> m(unaligned);
    if (threadIdx.x == 0) {
        uint64_t *barrier = (uint64_t *)(unaligned + (m.w_full - shared_address(unaligned)));
        for (int i = 0; i < W_STAGES; i++)
            mbarrier_init(barrier + i, 1), mbarrier_init(barrier + W_STAGES + i, CONSUMERS / 32);
        barrier += 2 * W_STAGES;
        for (int i = 0; i < X_STAGES; i++)
            mbarrier_init(barrier + i, LOADERS),
                mbarrier_init(barrier + X_STAGES + i, CONSUMERS / 32);
        fence_mbarrier_init();
    }
    __syncthreads();
    if (threadIdx.x < CONSUMERS)
        consume(p, m);
    else if (threadIdx.x >= THREADS - LOADERS)
        load_pixels(p, m, threadIdx.x - (THREADS - LOADERS));
    else if (threadIdx.x == CONSUMERS)
        load_weights(p, m);
}

/* A thread for eight outputs of a pixel. */
__global__ void add_parts(const implicit_params p)
{
    const int eights = (p.outputs + 7) / 8;
    NL_GRID_LOOP(i, p.pixels * eights)
    {
        const int64_t pixel = i / eights;
        const int output = (int)(i - pixel * eights) * 8;
        float v[8] = {};
        for (int part = 0; part < p.part_count; part++) {
            float other[8];
            nl_load8(p.parts + (part * p.pixels + pixel) * p.padded_outputs + output, other);
#pragma unroll
            for (int j = 0; j < 8; j++)
                v[j] = part ? v[j] + other[j] : other[j];
        }
        finish(p, pixel, output, v);
    }
}

int ceil_div(int64_t count, int unit)
{
    return (int)((count + unit - 1) / unit);
}

template <int COLUMNS>
cudaError_t launch(const nl_cuda *cuda, implicit_params &p, const void *weight)
{
    const cuuint64_t depth = (cuuint64_t)p.taps * p.taps * p.padded_channels;
    const cuuint64_t sizes[] = {depth, (cuuint64_t)p.scale * p.scale * p.padded_outputs};
    const cuuint64_t strides[] = {depth * 2};
    const cuuint32_t box[] = {STEP, COLUMNS};
    if (!make_tensor_map(&p.w, weight, 2, sizes, strides, box, CU_TENSOR_MAP_SWIZZLE_128B,
                         CU_TENSOR_MAP_L2_PROMOTION_L2_128B))
        return cudaErrorNotSupported;
    const int shared = memory<COLUMNS>::BYTES;
    const cudaError_t error = nl_allow_shared(implicit_kernel<COLUMNS>, shared);
    const int blocks = NL_MIN(p.items, cuda->multiprocessors * BLOCKS);
    if (error == cudaSuccess)
        implicit_kernel<COLUMNS><<<(unsigned)blocks, THREADS, shared, cuda->stream>>>(p);
    return error;
}

} // namespace

bool nl_conv_implicit_serves(nl_device *device, const nl_conv_problem *p, const void *x)
{
    /* tiles times phases, outputs and parts are counted in 32 bits */
    const int64_t tiles = p->batch * ceil_div(p->height, LINES) * ceil_div(p->width, WIDTH);
    const int64_t of_tile = (int64_t)4 * ceil_div(p->outputs, 64) * ceil_div(p->channels, STEP);
    return p->type == NL_BF16 && p->kernel_height == 3 && p->kernel_width == 3 && p->stride == 1 &&
           p->pad_top == 1 && p->pad_left == 1 && p->pad_bottom == 1 && p->pad_right == 1 &&
           p->channels % 8 == 0 && p->channels >= 16 && (uintptr_t)x % 16 == 0 &&
           tiles <= INT32_MAX / of_tile && p->channels <= 1 << 20 &&
           nl_is_hopper(nl_cuda_of(device)->index);
}

nl_status nl_conv_implicit(nl_device *device, const nl_conv_problem *problem,
                           const nl_tensor *weight, const nl_conv_operands *o)
{
    nl_cuda *cuda = nl_cuda_of(device);
    implicit_params p = {};
    p.height = problem->height, p.width = problem->width;
    p.channels = problem->channels, p.outputs = problem->outputs;
    p.padded_channels = nl_conv_round_up(p.channels, STEP);
    p.padded_outputs = nl_conv_round_up(p.outputs, RUN);
    p.scale = problem->doubled ? 2 : 1, p.taps = problem->doubled ? 2 : 3;
    p.pixels = problem->batch * problem->out_height * problem->out_width;
    p.y_pixel = problem->y_pixel, p.activation = problem->activation;
    p.x = (const __nv_bfloat16 *)o->x, p.residual = (const __nv_bfloat16 *)o->residual;
    p.bias = (const float *)o->bias, p.y = (__nv_bfloat16 *)o->y;
    p.eights = p.outputs % 8 == 0 && p.y_pixel % 8 == 0 && !problem->apart;

    const bool few = p.outputs <= 64;
    p.columns = ceil_div(p.outputs, few ? 64 : 128);
    p.tiles_down = ceil_div(p.height, LINES), p.tiles_across = ceil_div(p.width, WIDTH);
    p.steps = p.padded_channels / STEP;
    /* of one picture */
    const int64_t tiles = (int64_t)p.columns * p.scale * p.scale * p.tiles_down * p.tiles_across;
    p.part_steps = ceil_div(p.steps, (int)NL_MAX(1, NL_MIN(p.steps, BUSY / tiles)));
    p.part_count = ceil_div(p.steps, p.part_steps);
    p.items = (int)(tiles * p.part_count * problem->batch);

    const nl_conv_order order = {NL_BF16, p.padded_outputs, p.padded_channels,
                                 p.scale == 2 ? NL_CONV_TILED_PHASES : NL_CONV_TILED};
    const void *ordered;
    void *parts = NULL;
    nl_status status = nl_cuda_conv_weight(device, weight, &order, &ordered);
    if (status == NL_OK && p.part_count > 1)
        status = nl_cuda_scratch(device, "parts of a convolution",
                                 p.part_count * p.pixels * p.padded_outputs * 4, &parts);
    if (status != NL_OK)
        return status;
    p.parts = (float *)parts;
    auto run = few ? launch<64> : launch<128>;
    status = nl_cuda_check(device, run(cuda, p, ordered), "conv2d");
    if (status == NL_OK && p.parts)
        add_parts<<<nl_blocks(p.pixels * ((p.outputs + 7) / 8), 256), 256, 0, cuda->stream>>>(p);
    return status == NL_OK ? NL_CUDA_LAUNCHED(device, "conv2d") : status;
}
