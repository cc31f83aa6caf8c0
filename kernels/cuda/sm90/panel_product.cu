/*
 * Products with few columns of x, y [M, N] = epilogue(x [M, K] W [N, K]^T + bias), bf16 in and out, fp32 sums: those of a
 * narrow backbone, where K is a few hundred, M is in the ten thousands and a general product spends as long on its
 * epilogue as on multiplying.
 *
 * A block owns a panel of PANEL columns, whose weights [PANEL, K] stay in shared memory, and walks over tiles of 64 rows.
 * One warp queues the copies of x; two warp groups take tiles in turn, so that one multiplies while the other runs its
 * epilogue on the ordinary units: the GELU costs no time of its own.
 */
#include "panel_product.cuh"

#include "hopper.cuh"

using namespace nl_hopper;

namespace
{

enum {
    PANEL = 192,
    ROWS = 64, /* of a tile */
    STEP = 64, /* of K, in one copy */
    STAGES = 6,
    MAX_STEPS = 7,
    CONSUMERS = 256,
    THREADS = CONSUMERS + 32,
    X_BYTES = ROWS * STEP * 2,
    W_BYTES = PANEL * STEP * 2
};

struct problem {
    CUtensorMap x, w;
    const void *bias; /* [N] of type bias_type, or NULL */
    __nv_bfloat16 *y;
    int64_t rows, y_stride;
    int steps, panels;
    bool bias_f32;
};

int shared_bytes(int steps)
{
    /* 1,024 for the alignment, then bias and barriers at the end. */
    return 1024 + steps * W_BYTES + STAGES * X_BYTES + PANEL * 4 + (2 * STAGES + 1) * 8;
}

#define NL_EIGHT(d, i)                                                                             \
    "+f"(d[i]), "+f"(d[i + 1]), "+f"(d[i + 2]), "+f"(d[i + 3]), "+f"(d[i + 4]), "+f"(d[i + 5]),    \
        "+f"(d[i + 6]), "+f"(d[i + 7])

/* d [64, 192] (+)= x [64, 16] w [192, 16]^T */
__device__ __forceinline__ void multiply(float (&d)[PANEL / 2], uint64_t x, uint64_t w, int add)
{
    asm volatile("{\n"
                 ".reg .pred p;\n"
                 "setp.ne.b32 p, %98, 0;\n"
                 "wgmma.mma_async.sync.aligned.m64n192k16.f32.bf16.bf16 {"
                 "%0, %1, %2, %3, %4, %5, %6, %7, %8, %9, %10, %11, %12, %13, %14, %15, "
                 "%16, %17, %18, %19, %20, %21, %22, %23, %24, %25, %26, %27, %28, %29, %30, %31, "
                 "%32, %33, %34, %35, %36, %37, %38, %39, %40, %41, %42, %43, %44, %45, %46, %47, "
                 "%48, %49, %50, %51, %52, %53, %54, %55, %56, %57, %58, %59, %60, %61, %62, %63, "
                 "%64, %65, %66, %67, %68, %69, %70, %71, %72, %73, %74, %75, %76, %77, %78, %79, "
                 "%80, %81, %82, %83, %84, %85, %86, %87, %88, %89, %90, %91, %92, %93, %94, %95}, "
                 "%96, %97, p, 1, 1, 0, 0;\n"
                 "}"
                 : NL_EIGHT(d, 0), NL_EIGHT(d, 8), NL_EIGHT(d, 16), NL_EIGHT(d, 24),
                   NL_EIGHT(d, 32), NL_EIGHT(d, 40), NL_EIGHT(d, 48), NL_EIGHT(d, 56),
                   NL_EIGHT(d, 64), NL_EIGHT(d, 72), NL_EIGHT(d, 80), NL_EIGHT(d, 88)
                 : "l"(x), "l"(w), "r"(add));
}

#undef NL_EIGHT

/* The products write d behind the compiler's back: its uses stay on their side of this. */
__device__ __forceinline__ void pin(float (&d)[PANEL / 2])
{
#pragma unroll
    for (int i = 0; i < PANEL / 2; i++)
        asm volatile("" : "+f"(d[i])::"memory");
}

template <bool GELU> __device__ __forceinline__ float finish(float x)
{
    if (!GELU)
        return x;
    /* x / 2 (1 + tanh u), u = sqrt(2 / pi) (x + 0.044715 x^3); the tanh is off by 2^-11, an eighth of bf16's step */
    float t = x * fmaf(x * x, 0.03567740814f, 0.7978845608f);
    asm("tanh.approx.f32 %0, %0;" : "+f"(t));
    return fmaf(0.5f * x, t, 0.5f * x);
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

/* Rows of one tile from a warp group's sums: a thread has rows lane / 4 and 8 more of its warp's 16, and in each eight
 * columns the two at 2 (lane % 4). Four threads exchange theirs so that each writes 16 bytes. */
template <bool GELU>
__device__ __forceinline__ void write_tile(const problem &p, const float (&d)[PANEL / 2],
                                           const float *bias, int64_t first_row, int first_column)
{
    const int lane = threadIdx.x % 32, warp = threadIdx.x / 32 % 4, quad = lane % 4;
    const int64_t row = first_row + warp * 16 + lane / 4;
    __nv_bfloat16 *to = p.y + row * p.y_stride + first_column + quad * 8;
#pragma unroll
    for (int group = 0; group < PANEL / 32; group++)
#pragma unroll
        for (int r = 0; r < 2; r++) {
            uint32_t words[4];
#pragma unroll
            for (int i = 0; i < 4; i++) {
                const int n = group * 4 + i;
                const float2 b = *(const float2 *)(bias + n * 8 + quad * 2);
                const __nv_bfloat162 pair = __floats2bfloat162_rn(
                    finish<GELU>(d[n * 4 + 2 * r] + b.x), finish<GELU>(d[n * 4 + 2 * r + 1] + b.y));
                words[i] = *(const uint32_t *)&pair;
            }
            transpose_quad(words);
            if (row + 8 * r < p.rows)
                *(uint4 *)(to + 8 * r * p.y_stride + group * 32) =
                    make_uint4(words[0], words[1], words[2], words[3]);
        }
}

template <bool GELU>
__global__ void __launch_bounds__(THREADS, 1) panel_kernel(const __grid_constant__ problem p)
{
    extern __shared__ unsigned char unaligned[];
    unsigned char *w_tiles =
        unaligned + (1024 - shared_address(unaligned) % 1024) % 1024; /* [steps][PANEL, STEP] */
    unsigned char *x_tiles = w_tiles + p.steps * W_BYTES;             /* [STAGES][ROWS, STEP] */
    float *bias = (float *)(x_tiles + STAGES * X_BYTES);
    uint64_t *full = (uint64_t *)(bias + PANEL), *empty = full + STAGES, *weights = empty + STAGES;

    const int panel = blockIdx.x % p.panels, first = blockIdx.x / p.panels;
    const int stride = gridDim.x / p.panels;
    const int tiles = (int)((p.rows + ROWS - 1) / ROWS);
    const int count = first < tiles ? (tiles - first + stride - 1) / stride : 0;
    for (int i = threadIdx.x; i < PANEL; i += THREADS)
        bias[i] = !p.bias ? 0.f
                  : p.bias_f32
                      ? ((const float *)p.bias)[panel * PANEL + i]
                      : __bfloat162float(((const __nv_bfloat16 *)p.bias)[panel * PANEL + i]);
    if (threadIdx.x == 0) {
        for (int i = 0; i < STAGES; i++)
            barrier_init(full + i, 1), barrier_init(empty + i, 4 /* warps */);
        barrier_init(weights, 1);
        barrier_publish();
    }
    __syncthreads();

    if (threadIdx.x >= CONSUMERS) { /* the producer */
        if (threadIdx.x == CONSUMERS && count > 0) {
            barrier_expect(weights, p.steps * W_BYTES);
            for (int step = 0; step < p.steps; step++)
                copy_box(w_tiles + step * W_BYTES, &p.w, step * STEP, panel * PANEL, weights);
            for (int i = 0; i < count * p.steps; i++) {
                const int stage = i % STAGES;
                barrier_wait(empty + stage, (i / STAGES + 1) % 2);
                barrier_expect(full + stage, X_BYTES);
                copy_box(x_tiles + stage * X_BYTES, &p.x, i % p.steps * STEP,
                         (first + i / p.steps * stride) * ROWS, full + stage);
            }
        }
        return;
    }

    /* Warp group g takes tiles g, g + 2, ... of the block's; named barrier 1 + g lets it multiply. */
    const int group = threadIdx.x / 128;
    const bool leader = threadIdx.x % 32 == 0;
    if (count > group)
        barrier_wait(weights, 0);
    for (int tile = group; tile < count; tile += 2) {
        float d[PANEL / 2];
        if (tile > 0)
            named_wait(1 + group, CONSUMERS);
        for (int step = 0; step < p.steps; step++) {
            const int i = tile * p.steps + step, stage = i % STAGES;
            barrier_wait(full + stage, i / STAGES % 2);
            const uint64_t x = tile_descriptor(x_tiles + stage * X_BYTES);
            const uint64_t w = tile_descriptor(w_tiles + step * W_BYTES);
            product_fence();
#pragma unroll
            for (int k = 0; k < STEP / 16; k++) /* 16 elements are 32 bytes */
                multiply(d, x + 2 * k, w + 2 * k, step + k > 0);
            product_commit();
            if (step > 0) {
                product_wait<1>(); /* the products of the step before have read their tile */
                if (leader)
                    barrier_arrive(empty + (i - 1) % STAGES);
            }
        }
        if (tile + 1 < count)
            named_arrive(2 - group, CONSUMERS);
        product_wait<0>();
        pin(d);
        if (leader)
            barrier_arrive(empty + (tile * p.steps + p.steps - 1) % STAGES);
        write_tile<GELU>(p, d, bias, (int64_t)(first + tile * stride) * ROWS, panel * PANEL);
    }
}

typedef decltype(&cuTensorMapEncodeTiled) encoder;

/* The driver's function, which cannot be linked: a build with CUDA runs without a driver. */
encoder find_encoder()
{
    void *function = NULL;
    cudaDriverEntryPointQueryResult result;
#if CUDART_VERSION >= 12050
    const cudaError_t error = cudaGetDriverEntryPointByVersion("cuTensorMapEncodeTiled", &function,
                                                               12000, cudaEnableDefault, &result);
#else
    const cudaError_t error =
        cudaGetDriverEntryPoint("cuTensorMapEncodeTiled", &function, cudaEnableDefault, &result);
#endif
    (void)cudaGetLastError();
    return error == cudaSuccess && result == cudaDriverEntryPointSuccess ? (encoder)function : NULL;
}

/* Boxes [box_rows, STEP] of a row-major matrix [rows, columns]; zeros beyond it. */
bool describe(encoder encode, CUtensorMap *map, const void *data, int64_t rows, int64_t columns,
              int64_t stride, int box_rows)
{
    const cuuint64_t sizes[] = {(cuuint64_t)columns, (cuuint64_t)rows};
    const cuuint64_t strides[] = {(cuuint64_t)stride * 2};
    const cuuint32_t box[] = {STEP, (cuuint32_t)box_rows}, steps[] = {1, 1};
    return encode(map, CU_TENSOR_MAP_DATA_TYPE_BFLOAT16, 2, (void *)data, sizes, strides, box,
                  steps, CU_TENSOR_MAP_INTERLEAVE_NONE, CU_TENSOR_MAP_SWIZZLE_128B,
                  CU_TENSOR_MAP_L2_PROMOTION_L2_256B,
                  CU_TENSOR_MAP_FLOAT_OOB_FILL_NONE) == CUDA_SUCCESS;
}

} // namespace

bool nl_panel_product_serves(const nl_panel_product *a, int device)
{
    int major = 0;
    return cudaDeviceGetAttribute(&major, cudaDevAttrComputeCapabilityMajor, device) ==
               cudaSuccess &&
           major == 9 && a->depth <= MAX_STEPS * STEP && a->depth % 8 == 0 &&
           a->columns % PANEL == 0 && a->rows >= 4096 && a->rows <= INT32_MAX / 2 &&
           a->x_stride % 8 == 0 && a->w_stride % 8 == 0 && a->y_stride % 8 == 0 &&
           ((uintptr_t)a->x | (uintptr_t)a->w | (uintptr_t)a->y) % 16 == 0;
}

cudaError_t nl_panel_product_run(const nl_panel_product *a, int multiprocessors,
                                 cudaStream_t stream)
{
    static const encoder encode = find_encoder();
    problem p = {};
    p.bias = a->bias, p.bias_f32 = a->bias_f32, p.y = a->y, p.rows = a->rows;
    p.y_stride = a->y_stride;
    p.steps = (int)((a->depth + STEP - 1) / STEP), p.panels = (int)(a->columns / PANEL);
    if (!encode || !describe(encode, &p.x, a->x, a->rows, a->depth, a->x_stride, ROWS) ||
        !describe(encode, &p.w, a->w, a->columns, a->depth, a->w_stride, PANEL))
        return cudaErrorNotSupported;
    const int bytes = shared_bytes(p.steps);
    const int of_panel = multiprocessors / p.panels > 0 ? multiprocessors / p.panels : 1;
    auto kernel = a->gelu ? panel_kernel<true> : panel_kernel<false>;
    cudaError_t error =
        cudaFuncSetAttribute(kernel, cudaFuncAttributeMaxDynamicSharedMemorySize, bytes);
    if (error == cudaSuccess) {
        kernel<<<(unsigned)(of_panel * p.panels), THREADS, (size_t)bytes, stream>>>(p);
        error = cudaGetLastError();
    }
    return error;
}
