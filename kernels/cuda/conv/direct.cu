/* SPDX-License-Identifier: MIT */
/*
 * Convolutions in strict fp32 as products whose first factor is read from x where it is needed, without patches in memory.
 * Each product's sum runs over taps and channels in their order, whatever the batch.
 *
 * A block has a tile of ROWS pixels of y and 32, 64 or 96 outputs, a warp 64 x 32 of it, a thread 8 x 8, whose sums stay in
 * registers: 16 numbers read from shared memory serve 64 multiplications, which is what the FMA units need to be kept busy.
 * In shared memory is a ring of STAGES, each SLAB channels of one tap of the tile's pixels and of its outputs' weights, which
 * cp.async fills; a pixel's tap outside of x is filled with zeros. Rows there are PITCH floats apart, so that 16 bytes each of
 * 8 neighbouring rows lie in different banks.
 */
#include "direct.cuh"

#include "prim/cp_async.cuh"
#include "prim/shared_limit.cuh"

using namespace nl_prim;

enum { ROWS = 128, SLAB = 16, PITCH = 20, STAGES = 3, WARP_COLUMNS = 32 };

template <int COLUMNS> struct tile_of {
    enum { THREADS = COLUMNS * 2, STAGE = (ROWS + COLUMNS) * PITCH };
    static constexpr int bytes = STAGES * STAGE * sizeof(float) + ROWS * sizeof(int4);
    /* of a multiprocessor: 384 threads with 168 registers, or as many as its memory has room for */
    static constexpr int blocks = COLUMNS == 32 ? 5 : COLUMNS == 64 ? 3 : 2;
};

/* Row s of the weight's tile holds output 4 l + j % 4 + 16 (j / 4) of a warp's 32, l = s % 4, j = s / 4: a thread reads
 * rows l + 4 j and so has outputs in fours. */
__device__ __forceinline__ int output_of_row(int s)
{
    const int j = s % WARP_COLUMNS / 4;
    return s / WARP_COLUMNS * WARP_COLUMNS + s % 4 * 4 + j % 4 + j / 4 * 16;
}

/* Where a pixel of y has its first tap: offset in x, row and column. Beyond the last pixel: outside of x. */
__device__ __forceinline__ int4 place_of(const nl_conv_problem &p, int64_t pixel, int64_t pixels)
{
    if (pixel >= pixels)
        return make_int4(0, -p.height - p.kernel_height, 0, 0);
    const int64_t line = pixel / p.out_width, image = line / p.out_height;
    const int row = (int)(line - image * p.out_height) * p.stride - p.pad_top;
    const int column = (int)(pixel - line * p.out_width) * p.stride - p.pad_left;
    return make_int4((int)(((image * p.height + row) * p.width + column) * p.channels), row, column,
                     0);
}

/* sum += the products of a stage's SLAB numbers; a, b: the thread's first rows. */
__device__ __forceinline__ void multiply(const float *a, const float *b, float (&sum)[8][8])
{
#pragma unroll
    for (int k = 0; k < SLAB; k += 4) {
        float4 u[8];
#pragma unroll
        for (int i = 0; i < 8; i++)
            u[i] = *(const float4 *)(a + 8 * i * PITCH + k);
#pragma unroll
        for (int j = 0; j < 8; j++) {
            const float4 v = *(const float4 *)(b + 4 * j * PITCH + k);
#pragma unroll
            for (int i = 0; i < 8; i++) {
                sum[i][j] = fmaf(u[i].x, v.x, sum[i][j]);
                sum[i][j] = fmaf(u[i].y, v.y, sum[i][j]);
                sum[i][j] = fmaf(u[i].z, v.z, sum[i][j]);
                sum[i][j] = fmaf(u[i].w, v.w, sum[i][j]);
            }
        }
    }
}

/* max(x, 0), but NaN for NaN */
__device__ __forceinline__ float relu(float x)
{
    return x < 0.f ? 0.f : x;
}

template <int COLUMNS>
__global__ void __launch_bounds__(tile_of<COLUMNS>::THREADS, tile_of<COLUMNS>::blocks)
    convolve(nl_conv_operands o, nl_conv_problem p)
{
    enum { THREADS = tile_of<COLUMNS>::THREADS, STAGE = tile_of<COLUMNS>::STAGE };
    extern __shared__ float4 memory[];
    int4 *places = (int4 *)memory;
    float *stages = (float *)(places + ROWS);
    const float *x = (const float *)o.x, *weight = (const float *)o.weight;
    /* neighbouring blocks read the same pixels */
    const int64_t first = (int64_t)blockIdx.y * ROWS, pixels = p.batch * p.out_height * p.out_width;
    const int first_output = blockIdx.x * COLUMNS;
    const int depth = p.kernel_height * p.kernel_width * p.channels, slabs = depth / SLAB;
    for (int r = threadIdx.x; r < ROWS; r += THREADS)
        places[r] = place_of(p, first + r, pixels);
    __syncthreads();

    int tap_row = 0, tap_column = 0, channel = 0; /* of the slab that is loaded next */
    auto load = [&](int slab) {
        float *a = stages + slab % STAGES * STAGE, *b = a + ROWS * PITCH;
        const int part = threadIdx.x % 4 * 4;
        const int offset = (tap_row * p.width + tap_column) * p.channels + channel + part;
#pragma unroll
        for (int r = threadIdx.x / 4; r < ROWS; r += THREADS / 4) {
            const int4 place = places[r];
            const int row = place.y + tap_row, column = place.z + tap_column;
            const bool there = row >= 0 && row < p.height && column >= 0 && column < p.width;
            cp_async(shared_address(a + r * PITCH + part), there ? x + place.x + offset : x, there);
        }
#pragma unroll
        for (int s = threadIdx.x / 4; s < COLUMNS; s += THREADS / 4)
            cp_async(shared_address(b + s * PITCH + part),
                     weight + (int64_t)(first_output + output_of_row(s)) * depth + slab * SLAB +
                         part,
                     true);
        channel += SLAB;
        if (channel == p.channels) {
            channel = 0;
            if (++tap_column == p.kernel_width)
                tap_column = 0, tap_row++;
        }
    };

    const int warp = threadIdx.x / 32, lane = threadIdx.x % 32;
    const int m = warp % 2 * 64 + lane / 4, n = warp / 2 * WARP_COLUMNS + lane % 4;
    float sum[8][8] = {};
    for (int i = 0; i < STAGES - 1; i++) {
        if (i < slabs)
            load(i);
        cp_async_commit_group();
    }
    for (int slab = 0; slab < slabs; slab++) {
        cp_async_wait_group<STAGES - 2>();
        __syncthreads();
        if (slab + STAGES - 1 < slabs)
            load(slab + STAGES - 1);
        cp_async_commit_group();
        const float *stage = stages + slab % STAGES * STAGE;
        multiply(stage + m * PITCH, stage + (ROWS + n) * PITCH, sum);
    }

    const int output = first_output + warp / 2 * WARP_COLUMNS + lane % 4 * 4;
#pragma unroll
    for (int h = 0; h < 2; h++) {
        const float *bias = (const float *)o.bias + output + 16 * h;
        const float4 c = o.bias ? *(const float4 *)bias : make_float4(0.f, 0.f, 0.f, 0.f);
#pragma unroll
        for (int i = 0; i < 8; i++) {
            const float *s = sum[i] + 4 * h;
            const int64_t pixel = first + m + 8 * i;
            float4 v = make_float4(s[0] + c.x, s[1] + c.y, s[2] + c.z, s[3] + c.w);
            if (p.activation == NL_ACT_RELU)
                v = make_float4(relu(v.x), relu(v.y), relu(v.z), relu(v.w));
            if (pixel < pixels)
                *(float4 *)((float *)o.y + pixel * p.y_pixel + output + 16 * h) = v;
        }
    }
}

bool nl_conv_direct_serves(const nl_conv_problem *p, const void *x)
{
    const int64_t blocks = (p->batch * p->out_height * p->out_width + ROWS - 1) / ROWS;
    const int64_t taps = (int64_t)p->kernel_height * p->kernel_width;
    return p->type == NL_F32 && !p->tf32 && !p->doubled && !p->residual && !p->apart &&
           p->activation != NL_ACT_SILU && p->channels % SLAB == 0 &&
           p->outputs % WARP_COLUMNS == 0 && p->y_pixel % 4 == 0 && (uintptr_t)x % 16 == 0 &&
           p->batch * p->height * p->width * p->channels <= INT32_MAX && blocks <= 65535 &&
           taps * p->channels <= INT32_MAX;
}

template <int COLUMNS>
static cudaError_t launch(const nl_conv_problem *p, const nl_conv_operands *o, cudaStream_t stream)
{
    const int64_t pixels = p->batch * p->out_height * p->out_width;
    const dim3 grid((unsigned)(p->outputs / COLUMNS), (unsigned)((pixels + ROWS - 1) / ROWS));
    const cudaError_t error = nl_allow_shared(convolve<COLUMNS>, tile_of<COLUMNS>::bytes);
    if (error == cudaSuccess)
        convolve<COLUMNS>
            <<<grid, tile_of<COLUMNS>::THREADS, tile_of<COLUMNS>::bytes, stream>>>(*o, *p);
    return error;
}

nl_status nl_conv_direct(nl_device *device, const nl_conv_problem *p, const nl_tensor *weight,
                         const nl_conv_operands *operands)
{
    const nl_conv_order order = {NL_F32, p->outputs, p->channels, NL_CONV_PLAIN};
    nl_conv_operands o = *operands;
    nl_status status = nl_cuda_conv_weight(device, weight, &order, &o.weight);
    if (status != NL_OK)
        return status;
    auto run = p->outputs % 64 == 0 ? launch<64> : p->outputs % 96 == 0 ? launch<96> : launch<32>;
    status = nl_cuda_check(device, run(p, &o, nl_cuda_of(device)->stream), "conv2d");
    return status == NL_OK ? NL_CUDA_LAUNCHED(device, "conv2d") : status;
}
