/* SPDX-License-Identifier: MIT */
/* Elements of feature maps: F32, BF16 and F16. */
#ifndef NL_CUDA_IMAGE_TYPES_CUH
#define NL_CUDA_IMAGE_TYPES_CUH

#include <cuda_fp16.h>

#include "cuda_common.cuh"

__device__ __forceinline__ float nl_get(const __half *p)
{
    return __half2float(*p);
}
__device__ __forceinline__ void nl_put(__half *p, float x)
{
    *p = __float2half_rn(x);
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

/* NL_FOR_TYPE with F16 as well. */
#define NL_FOR_IMAGE_TYPE(tensor, T, ...)                                                          \
    do {                                                                                           \
        if ((tensor).dtype == NL_F16) {                                                            \
            using T = __half;                                                                      \
            __VA_ARGS__;                                                                           \
        } else {                                                                                   \
            NL_FOR_TYPE(tensor, T, __VA_ARGS__);                                                   \
        }                                                                                          \
    } while (0)

#endif
