/* SPDX-License-Identifier: MIT */
/* An activation, and its rows in F8: THREADS neighbouring threads have a row in registers, so that it is read once. Rows that
 * are too long or not made of sixteens are read twice, a block a row. */
#include "cuda_common.cuh"

using namespace nl_prim;

namespace
{

enum { BLOCK = 128, VEC = 8 };

template <nl_epilogue ACTIVATION> __device__ __forceinline__ float activated(float x)
{
    return ACTIVATION == NL_EPILOGUE_GELU_TANH ? nl_gelu<__nv_bfloat16>(x)
           : ACTIVATION == NL_EPILOGUE_SILU    ? nl_silu(x)
                                               : x;
}

template <typename T, nl_epilogue ACTIVATION, int THREADS, int CHUNKS>
__global__ void __launch_bounds__(BLOCK)
    row_kernel(const T *x, int64_t stride, uint8_t *y, float *scale, int64_t rows, int width)
{
    const int64_t row = blockIdx.x * (int64_t)(BLOCK / THREADS) + threadIdx.x / THREADS;
    const bool valid = row < rows; /* a warp's rows go through the exchange together */
    float v[CHUNKS][VEC] = {}, inverse;
    uint32_t largest = 0;
#pragma unroll
    for (int c = 0; c < CHUNKS; c++) {
        const int at = (c * THREADS + threadIdx.x % THREADS) * VEC;
        if (valid && at < width)
            nl_load8(x + row * stride + at, v[c]);
    }
#pragma unroll
    for (int c = 0; c < CHUNKS; c++)
#pragma unroll
        for (int i = 0; i < VEC; i++) {
            v[c][i] = activated<ACTIVATION>(v[c][i]);
            largest = max(largest, magnitude_of(v[c][i]));
        }
    largest = THREADS > 32 ? block_max(largest) : lanes_max<32>(largest);
    const float factor = e4m3_scale(largest, &inverse);
    if (valid && threadIdx.x % THREADS == 0)
        scale[row] = factor;
#pragma unroll
    for (int c = 0; c < CHUNKS; c++) {
        const int at = (c * THREADS + threadIdx.x % THREADS) * VEC;
        if (valid && at < width)
            store_e4m3(y + row * width + at, v[c], inverse);
    }
}

template <typename T, nl_epilogue ACTIVATION>
__global__ void any_kernel(const T *x, int64_t stride, uint8_t *y, float *scale, int width)
{
    const int64_t row = blockIdx.x;
    float inverse;
    uint32_t largest = 0;
    for (int i = threadIdx.x; i < width; i += blockDim.x)
        largest = max(largest, magnitude_of(activated<ACTIVATION>(nl_get(x + row * stride + i))));
    const float factor = e4m3_scale(block_max(largest), &inverse);
    if (threadIdx.x == 0)
        scale[row] = factor;
    for (int i = threadIdx.x; i < width; i += blockDim.x)
        nl_put((__nv_fp8_e4m3 *)y + row * width + i,
               inverse * activated<ACTIVATION>(nl_get(x + row * stride + i)));
}

template <typename T, nl_epilogue ACTIVATION>
void launch(const nl_quantize_args *a, cudaStream_t stream)
{
    const T *x = (const T *)a->x.data;
    uint8_t *y = (uint8_t *)a->y.data;
    float *scale = a->y.scale;
    const int64_t rows = a->x.shape[0], stride = a->x.row_stride;
    const int width = (int)a->x.shape[1];
    const bool vectors =
        width % VEC == 0 && stride % VEC == 0 && (uintptr_t)x % 16 == 0 && (uintptr_t)y % 8 == 0;
#define RUN(threads, chunks)                                                                       \
    row_kernel<T, ACTIVATION, threads, chunks>                                                     \
        <<<nl_blocks(rows, BLOCK / threads), BLOCK, 0, stream>>>(x, stride, y, scale, rows, width)
    if (vectors && width <= 2 * 32 * VEC)
        RUN(32, 2);
    else if (vectors && width <= 6 * 32 * VEC)
        RUN(32, 6);
    else if (vectors && width <= 3 * BLOCK * VEC)
        RUN(BLOCK, 3);
    else if (vectors && width <= 6 * BLOCK * VEC)
        RUN(BLOCK, 6);
    else
        any_kernel<T, ACTIVATION><<<(unsigned)rows, 256, 0, stream>>>(x, stride, y, scale, width);
#undef RUN
}

} // namespace

extern "C" nl_status nl_cuda_quantize(nl_device *device, const nl_quantize_args *a)
{
    cudaStream_t stream = nl_cuda_of(device)->stream;
    NL_FOR_TYPE(a->x, T, {
        if (a->activation == NL_EPILOGUE_GELU_TANH)
            launch<T, NL_EPILOGUE_GELU_TANH>(a, stream);
        else if (a->activation == NL_EPILOGUE_SILU)
            launch<T, NL_EPILOGUE_SILU>(a, stream);
        else
            launch<T, NL_EPILOGUE_NONE>(a, stream);
    });
    return NL_CUDA_LAUNCHED(device, "quantize");
}
