/* SPDX-License-Identifier: MIT */
/* Rows in F8, E4M3 with a power of two as their factor: core/nl_e4m3.h on the GPU. Largest magnitudes are taken as bits, which
 * order numbers without a sign; NaN is above all. */
#ifndef NL_CUDA_PRIM_E4M3_CUH
#define NL_CUDA_PRIM_E4M3_CUH

#include <cstdint>
#include <cuda_fp8.h>
#include <cuda_runtime.h>

namespace nl_prim
{

__device__ __forceinline__ uint32_t magnitude_of(float x)
{
    return __float_as_uint(x) & 0x7FFFFFFF;
}

/* The factor of a row and its inverse; NaN for a row that is not finite. */
__device__ __forceinline__ float e4m3_scale(uint32_t largest, float *inverse)
{
    uint32_t exponent = (largest + 0x1FFFFF) >> 23;
    exponent = exponent < 9 ? 1 : exponent - 8;
    const bool finite = largest < 0x7F800000;
    *inverse = __uint_as_float(finite ? (254 - exponent) << 23 : 0x7FC00000);
    return __uint_as_float(finite ? exponent << 23 : 0x7FC00000);
}

/* Four or eight numbers, the first in the lowest byte. */
__device__ __forceinline__ uint32_t pack_e4m3x4(float a, float b, float c, float d)
{
    const uint32_t low = __nv_cvt_float2_to_fp8x2(make_float2(a, b), __NV_SATFINITE, __NV_E4M3);
    const uint32_t high = __nv_cvt_float2_to_fp8x2(make_float2(c, d), __NV_SATFINITE, __NV_E4M3);
    return low | high << 16;
}
__device__ __forceinline__ void store_e4m3(void *to, const float (&x)[4], float inverse)
{
    *(uint32_t *)to = pack_e4m3x4(x[0] * inverse, x[1] * inverse, x[2] * inverse, x[3] * inverse);
}
__device__ __forceinline__ void store_e4m3(void *to, const float (&x)[8], float inverse)
{
    *(uint2 *)to =
        make_uint2(pack_e4m3x4(x[0] * inverse, x[1] * inverse, x[2] * inverse, x[3] * inverse),
                   pack_e4m3x4(x[4] * inverse, x[5] * inverse, x[6] * inverse, x[7] * inverse));
}

/* Over LANES neighbouring lanes, for all of them; other lanes of the warp need not be there. */
template <int LANES> __device__ __forceinline__ uint32_t lanes_max(uint32_t x)
{
    const uint32_t lanes =
        LANES == 32 ? ~0u : ((1u << LANES % 32) - 1) << threadIdx.x % 32 / LANES * LANES;
#pragma unroll
    for (int offset = LANES / 2; offset > 0; offset /= 2)
        x = max(x, __shfl_xor_sync(lanes, x, offset));
    return x;
}

/* Over the block, for all threads, again and again. */
__device__ __forceinline__ uint32_t block_max(uint32_t x)
{
    __shared__ uint32_t partial[32];
    x = lanes_max<32>(x);
    __syncthreads();
    if (threadIdx.x % 32 == 0)
        partial[threadIdx.x / 32] = x;
    __syncthreads();
    x = 0;
    for (int i = 0; i < blockDim.x / 32; i++)
        x = max(x, partial[i]);
    return x;
}

} // namespace nl_prim

__device__ __forceinline__ float nl_get(const __nv_fp8_e4m3 *p)
{
    return float(*p);
}
__device__ __forceinline__ void nl_put(__nv_fp8_e4m3 *p, float x)
{
    p->__x = __nv_cvt_float_to_fp8(x, __NV_SATFINITE, __NV_E4M3);
}

#endif
