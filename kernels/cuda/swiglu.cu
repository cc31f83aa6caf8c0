/* SPDX-License-Identifier: MIT */
/* swiglu and its gradients: eight elements of a row a thread where the addresses allow it. Bound by memory: each
 * element crosses it once. */
#include "cuda_common.cuh"

/* Elements e .. e + COUNT - 1 of a row. */
template <int COUNT, typename T> __device__ __forceinline__ void load(const T *p, float (&v)[COUNT])
{
    if constexpr (COUNT == 8)
        nl_load8(p, v);
    else
        v[0] = nl_get(p);
}
template <int COUNT, typename T>
__device__ __forceinline__ void store(T *p, const float (&v)[COUNT])
{
    if constexpr (COUNT == 8)
        nl_store8(p, v);
    else
        nl_put(p, v[0]);
}

/* x [rows, 2 size] -> y [rows, size] */
template <typename T, int COUNT>
__global__ void swiglu_kernel(const T *x, T *y, int64_t rows, int size)
{
    const int pieces = size / COUNT;
    NL_GRID_LOOP(i, rows * pieces)
    {
        const int64_t row = i / pieces;
        const T *x1 = x + 2 * row * size + i % pieces * COUNT;
        float a[COUNT], b[COUNT];
        load<COUNT>(x1, a), load<COUNT>(x1 + size, b);
#pragma unroll
        for (int e = 0; e < COUNT; e++)
            a[e] = nl_silu(a[e]) * b[e];
        store<COUNT>(y + row * size + i % pieces * COUNT, a);
    }
}

/* x [rows, 2 size], dy [rows, size] -> dx [rows, 2 size], y [rows, size], which may be dy, or NULL */
template <typename T, int COUNT>
__global__ void swiglu_gradient_kernel(const T *x, const T *dy, T *dx, T *y, int64_t rows, int size)
{
    const int pieces = size / COUNT;
    NL_GRID_LOOP(i, rows * pieces)
    {
        const int64_t row = i / pieces, at = row * size + i % pieces * COUNT;
        const int64_t wide = at + row * size;
        float a[COUNT], b[COUNT], d[COUNT], out[COUNT];
        load<COUNT>(x + wide, a), load<COUNT>(x + wide + size, b), load<COUNT>(dy + at, d);
#pragma unroll
        for (int e = 0; e < COUNT; e++) {
            const float active = nl_silu(a[e]), slope = nl_silu_derivative(a[e]);
            out[e] = active * b[e];
            a[e] = d[e] * b[e] * slope;
            b[e] = d[e] * active;
        }
        store<COUNT>(dx + wide, a), store<COUNT>(dx + wide + size, b);
        if (y)
            store<COUNT>(y + at, out);
    }
}

static bool eights(int64_t size, uintptr_t addresses)
{
    return size % 8 == 0 && addresses % 16 == 0;
}

extern "C" nl_status nl_cuda_swiglu(nl_device *device, const nl_swiglu_args *a)
{
    cudaStream_t stream = nl_cuda_of(device)->stream;
    const int64_t rows = a->y.shape[0], size = a->y.shape[1];
    const bool wide = eights(size, (uintptr_t)a->x.data | (uintptr_t)a->y.data);
    NL_FOR_TYPE(a->x, T, {
        const T *x = (const T *)a->x.data;
        T *y = (T *)a->y.data;
        if (wide)
            swiglu_kernel<T, 8>
                <<<nl_blocks(rows * size / 8, 256), 256, 0, stream>>>(x, y, rows, (int)size);
        else
            swiglu_kernel<T, 1>
                <<<nl_blocks(rows * size, 256), 256, 0, stream>>>(x, y, rows, (int)size);
    });
    return NL_CUDA_LAUNCHED(device, "swiglu");
}

extern "C" nl_status nl_cuda_swiglu_backward(nl_device *device, const nl_swiglu_backward_args *a)
{
    cudaStream_t stream = nl_cuda_of(device)->stream;
    const int64_t rows = a->dy.shape[0], size = a->dy.shape[1];
    const bool wide = eights(size, (uintptr_t)a->x.data | (uintptr_t)a->dy.data |
                                       (uintptr_t)a->dx.data | (uintptr_t)a->y.data);
    NL_FOR_TYPE(a->x, T, {
        const T *x = (const T *)a->x.data, *dy = (const T *)a->dy.data;
        T *dx = (T *)a->dx.data, *y = (T *)a->y.data;
        if (wide)
            swiglu_gradient_kernel<T, 8><<<nl_blocks(rows * size / 8, 256), 256, 0, stream>>>(
                x, dy, dx, y, rows, (int)size);
        else
            swiglu_gradient_kernel<T, 1>
                <<<nl_blocks(rows * size, 256), 256, 0, stream>>>(x, dy, dx, y, rows, (int)size);
    });
    return NL_CUDA_LAUNCHED(device, "swiglu_backward");
}
