/* SPDX-License-Identifier: MIT */
/* Numbers: elements of F32, BF16 and F16 and what registers hold of them, pairs of bf16 in a word, and the functions that the
 * hardware approximates. Arithmetic is always fp32. */
#ifndef NL_CUDA_PRIM_CONVERT_CUH
#define NL_CUDA_PRIM_CONVERT_CUH

#include <cstdint>
#include <cuda_bf16.h>
#include <cuda_fp16.h>
#include <cuda_runtime.h>

/* ---- Pairs of bf16, the first in the low half of the word. */

__device__ __forceinline__ uint32_t nl_bits(__nv_bfloat162 x)
{
    return *(const uint32_t *)&x;
}
__device__ __forceinline__ __nv_bfloat162 nl_pair(uint32_t bits)
{
    return *(const __nv_bfloat162 *)&bits;
}
__device__ __forceinline__ __nv_bfloat162 nl_pair_of(float x)
{
    return __float2bfloat162_rn(x);
}

namespace nl_prim
{

__device__ __forceinline__ uint32_t pack_bf16x2(float low, float high)
{
    uint32_t x;
    asm("cvt.rn.bf16x2.f32 %0, %1, %2;" : "=r"(x) : "f"(high), "f"(low));
    return x;
}
__device__ __forceinline__ float2 unpack_bf16x2(uint32_t x)
{
    return make_float2(__uint_as_float(x << 16), __uint_as_float(x & 0xffff0000u));
}
__device__ __forceinline__ uint4 pack_bf16x8(const float (&x)[8])
{
    return make_uint4(pack_bf16x2(x[0], x[1]), pack_bf16x2(x[2], x[3]), pack_bf16x2(x[4], x[5]),
                      pack_bf16x2(x[6], x[7]));
}
__device__ __forceinline__ void unpack_bf16x8(uint4 from, float (&x)[8])
{
    const uint32_t words[4] = {from.x, from.y, from.z, from.w};
#pragma unroll
    for (int i = 0; i < 4; i++)
        x[2 * i] = __uint_as_float(words[i] << 16),
              x[2 * i + 1] = __uint_as_float(words[i] & 0xffff0000u);
}

/* ---- By the special-function units: relative errors of about 2^-22, of tanh 2^-11; denormal numbers count as 0. */

__device__ __forceinline__ float exp2_approx(float x)
{
    float y;
    asm("ex2.approx.ftz.f32 %0, %1;" : "=f"(y) : "f"(x));
    return y;
}
__device__ __forceinline__ float log2_approx(float x)
{
    float y;
    asm("lg2.approx.ftz.f32 %0, %1;" : "=f"(y) : "f"(x));
    return y;
}
__device__ __forceinline__ float rcp_approx(float x)
{
    float y;
    asm("rcp.approx.ftz.f32 %0, %1;" : "=f"(y) : "f"(x));
    return y;
}
__device__ __forceinline__ float tanh_approx(float x)
{
    asm("tanh.approx.f32 %0, %0;" : "+f"(x));
    return x;
}

} // namespace nl_prim

/* ---- Elements */

__device__ __forceinline__ float nl_get(const float *p)
{
    return *p;
}
__device__ __forceinline__ float nl_get(const __nv_bfloat16 *p)
{
    return __bfloat162float(*p);
}
__device__ __forceinline__ void nl_put(float *p, float x)
{
    *p = x;
}
__device__ __forceinline__ void nl_put(__nv_bfloat16 *p, float x)
{
    *p = __float2bfloat16(x);
}
__device__ __forceinline__ float nl_get(const __half *p)
{
    return __half2float(*p);
}
__device__ __forceinline__ void nl_put(__half *p, float x)
{
    *p = __float2half_rn(x);
}

/* Eight neighbouring elements, 16-byte aligned. */
__device__ __forceinline__ void nl_load8(const float *p, float (&x)[8])
{
    const float4 a = ((const float4 *)p)[0], b = ((const float4 *)p)[1];
    x[0] = a.x, x[1] = a.y, x[2] = a.z, x[3] = a.w, x[4] = b.x, x[5] = b.y, x[6] = b.z, x[7] = b.w;
}
__device__ __forceinline__ void nl_load8(const __nv_bfloat16 *p, float (&x)[8])
{
    nl_prim::unpack_bf16x8(*(const uint4 *)p, x);
}
__device__ __forceinline__ void nl_store8(float *p, const float (&x)[8])
{
    ((float4 *)p)[0] = make_float4(x[0], x[1], x[2], x[3]);
    ((float4 *)p)[1] = make_float4(x[4], x[5], x[6], x[7]);
}
__device__ __forceinline__ void nl_store8(__nv_bfloat16 *p, const float (&x)[8])
{
    *(uint4 *)p = nl_prim::pack_bf16x8(x);
}
__device__ __forceinline__ void nl_load8(const __half *p, float (&x)[8])
{
    const uint4 a = *(const uint4 *)p;
    const uint32_t words[4] = {a.x, a.y, a.z, a.w};
#pragma unroll
    for (int i = 0; i < 4; i++) {
        const float2 pair = __half22float2(*(const __half2 *)&words[i]);
        x[2 * i] = pair.x, x[2 * i + 1] = pair.y;
    }
}
__device__ __forceinline__ void nl_store8(__half *p, const float (&x)[8])
{
    uint32_t words[4];
#pragma unroll
    for (int i = 0; i < 4; i++) {
        const __half2 pair = __floats2half2_rn(x[2 * i], x[2 * i + 1]);
        words[i] = *(const uint32_t *)&pair;
    }
    *(uint4 *)p = make_uint4(words[0], words[1], words[2], words[3]);
}

/* One element, or eight neighbouring ones. */
template <typename T> __device__ __forceinline__ void nl_load(const T *p, float (&v)[1])
{
    v[0] = nl_get(p);
}
template <typename T> __device__ __forceinline__ void nl_load(const T *p, float (&v)[8])
{
    nl_load8(p, v);
}
template <typename T> __device__ __forceinline__ void nl_store(T *p, const float (&v)[1])
{
    nl_put(p, v[0]);
}
template <typename T> __device__ __forceinline__ void nl_store(T *p, const float (&v)[8])
{
    nl_store8(p, v);
}

#endif
