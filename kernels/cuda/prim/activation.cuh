/* SPDX-License-Identifier: MIT */
/* Activations and their derivatives, one element at a time. */
#ifndef NL_CUDA_PRIM_ACTIVATION_CUH
#define NL_CUDA_PRIM_ACTIVATION_CUH

#include <cuda_runtime.h>

/* x / (1 + e^-x): 2 ulp, and no branch; e^-x = infinity gives -0, as it should. */
__device__ __forceinline__ float nl_silu(float x)
{
    return __fdividef(x, 1.f + __expf(fminf(-x, 80.f)));
}

/* x / 2 (1 + tanh(sqrt(2/pi) (x + 0.044715 x^3))) = x sigmoid(2 sqrt(2/pi) (x + 0.044715 x^3)) */
__device__ __forceinline__ float nl_gelu_gate(float x)
{
    return __fdividef(
        1.f, 1.f + __expf(fminf(-1.5957691216057308f * (x + 0.044715f * x * x * x), 80.f)));
}

__device__ __forceinline__ float nl_gelu(float x)
{
    return x * nl_gelu_gate(x);
}

__device__ __forceinline__ float nl_gelu_derivative(float x)
{
    const float gate = nl_gelu_gate(x);
    return fmaf(x * gate * (1.f - gate), 1.5957691216057308f * (1.f + 0.134145f * x * x), gate);
}

__device__ __forceinline__ float nl_silu_derivative(float x)
{
    const float gate = __fdividef(1.f, 1.f + __expf(fminf(-x, 80.f)));
    return gate * fmaf(x, 1.f - gate, 1.f);
}

#endif
