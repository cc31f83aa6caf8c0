/* SPDX-License-Identifier: MIT */
/* Activations and their derivatives, one element at a time, by one approximation for each type T of the result: to 2 ulp in
 * fp32, by the hardware's tanh for results in bf16. (GELU inside of cuBLASLt is the library's.) */
#ifndef NL_CUDA_PRIM_ACTIVATION_CUH
#define NL_CUDA_PRIM_ACTIVATION_CUH

#include <type_traits>

#include "convert.cuh"

/* x / (1 + e^-x), and no branch; e^-x = infinity gives -0, as it should. */
__device__ __forceinline__ float nl_silu(float x)
{
    return __fdividef(x, 1.f + __expf(fminf(-x, 80.f)));
}
__device__ __forceinline__ float nl_silu_derivative(float x)
{
    const float gate = __fdividef(1.f, 1.f + __expf(fminf(-x, 80.f)));
    return gate * fmaf(x, 1.f - gate, 1.f);
}

/* GELU, x / 2 (1 + tanh(sqrt(2/pi) (x + 0.044715 x^3))) = x sigmoid(2 sqrt(2/pi) (x + 0.044715 x^3)): the gate is (1 + tanh) / 2,
 * the derivative gate + 2 x gate (1 - gate) sqrt(2 / pi) (1 + 0.134145 x^2). */
__device__ __forceinline__ float nl_gelu_gate(float x)
{
    return __fdividef(
        1.f, 1.f + __expf(fminf(-1.5957691216057308f * (x + 0.044715f * x * x * x), 80.f)));
}

/* GELU of 2 h. The hardware's tanh is off by 2^-11: an eighth of bf16's step. */
__device__ __forceinline__ float nl_gelu_of_twice(float h)
{
    return fmaf(h, nl_prim::tanh_approx(h * fmaf(h * h, 0.28541926512f, 1.5957691216f)), h);
}
__device__ __forceinline__ float nl_gelu_and_derivative(float x, float *derivative)
{
    const float g = fmaf(0.5f, nl_prim::tanh_approx(x * fmaf(x * x, 0.03567740814f, 0.7978845608f)),
                         0.5f),
                y = x * g;
    *derivative = fmaf(fmaf(-y, g, y), fmaf(x * x, 0.2140644488f, 1.595769122f), g);
    return y;
}

template <typename T> __device__ __forceinline__ float nl_gelu(float x)
{
    if constexpr (std::is_same<T, __nv_bfloat16>::value)
        return nl_gelu_of_twice(0.5f * x);
    return x * nl_gelu_gate(x);
}

template <typename T> __device__ __forceinline__ float nl_gelu_derivative(float x)
{
    if constexpr (std::is_same<T, __nv_bfloat16>::value) {
        float derivative;
        nl_gelu_and_derivative(x, &derivative);
        return derivative;
    }
    const float gate = nl_gelu_gate(x);
    return fmaf(x * gate * (1.f - gate), 1.5957691216057308f * (1.f + 0.134145f * x * x), gate);
}

#endif
