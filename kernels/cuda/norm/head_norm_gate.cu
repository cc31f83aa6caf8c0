/* SPDX-License-Identifier: MIT */
/* The normalisation and the gate behind gated linear attention, and their gradients. A warp has a head at a time; the
 * gradient by the weights is summed over the rows of a block in shared memory, a set for each warp; a block leaves one part,
 * and the parts are added in order. */
#include "column_sums.cuh"

enum { WARPS = 4, PART_ROWS = 32 /* of a block in the gradient */, MAX_HEAD = 2048 };

/* 1 / sqrt(mean x^2 + eps) of a head */
template <typename T> __device__ __forceinline__ float inverse_rms(const T *x, int size, float eps)
{
    float squares = 0.f;
    for (int i = threadIdx.x % 32; i < size; i += 32)
        squares = fmaf(nl_get(x + i), nl_get(x + i), squares);
    return rsqrtf(nl_warp_sum(squares) / size + eps);
}

template <typename T>
__global__ void head_norm_gate_kernel(const T *x, const float *weight, const T *g, int64_t stride,
                                      T *y, int64_t rows, int heads, int size, float eps)
{
    const int64_t i = blockIdx.x * (int64_t)WARPS + threadIdx.x / 32, row = i / heads;
    if (row >= rows)
        return;
    const T *from = x + i * size, *gates = g + row * stride + i % heads * size;
    const float scale = inverse_rms(from, size, eps);
    for (int j = threadIdx.x % 32; j < size; j += 32)
        nl_put(y + i * size + j, weight[j] * scale * nl_get(from + j) * nl_silu(nl_get(gates + j)));
}

template <typename T> struct head_gradient {
    const T *x, *g, *dy;
    T *dx, *dg, *y;
    const float *weight;
    int64_t rows, stride, gradient_stride; /* of g and dg */
    int heads, size;
    float eps;
    float *parts; /* [blocks, size] */
};

template <typename T>
__global__ void __launch_bounds__(32 * WARPS)
    head_norm_gate_gradient_kernel(const head_gradient<T> p)
{
    extern __shared__ float sums[]; /* [WARPS, size] */
    const int lane = threadIdx.x % 32, warp = threadIdx.x / 32;
    float *own = sums + warp * p.size;
    for (int i = lane; i < p.size; i += 32)
        own[i] = 0.f;
    __syncwarp();
    const int64_t first = blockIdx.x * (int64_t)PART_ROWS, last = min(first + PART_ROWS, p.rows);
    for (int64_t i = first * p.heads + warp; i < last * p.heads; i += WARPS) {
        const int64_t row = i / p.heads, at = i * p.size, head = i % p.heads * p.size;
        const T *g = p.g + row * p.stride + head;
        const float scale = inverse_rms(p.x + at, p.size, p.eps);
        float product = 0.f;
        for (int j = lane; j < p.size; j += 32) { /* a lane always has the same columns */
            const float n = scale * nl_get(p.x + at + j), gate = nl_get(g + j);
            const float silu = nl_silu(gate), dy = nl_get(p.dy + at + j);
            own[j] += silu * dy * n;
            product = fmaf(silu * dy * n, p.weight[j], product);
            nl_put(p.dg + row * p.gradient_stride + head + j,
                   dy * p.weight[j] * n * nl_silu_derivative(gate));
            if (p.y)
                nl_put(p.y + at + j, p.weight[j] * n * silu);
        }
        product = nl_warp_sum(product) / p.size;
        for (int j = lane; j < p.size; j += 32) {
            const float n = scale * nl_get(p.x + at + j);
            const float dn = nl_get(p.dy + at + j) * nl_silu(nl_get(g + j)) * p.weight[j];
            nl_put(p.dx + at + j, scale * (dn - n * product));
        }
    }
    __syncthreads();
    for (int i = threadIdx.x; i < p.size; i += 32 * WARPS) {
        float sum = sums[i];
#pragma unroll
        for (int other = 1; other < WARPS; other++)
            sum += sums[other * p.size + i];
        p.parts[blockIdx.x * (int64_t)p.size + i] = sum;
    }
}

static nl_status check_size(nl_device *device, int64_t size)
{
    if (size <= MAX_HEAD)
        return NL_OK;
    return nl_fail(device->context, NL_ERROR_DEVICE,
                   "head_norm_gate: head size %lld, at most %d on the GPU", (long long)size,
                   MAX_HEAD);
}

extern "C" nl_status nl_cuda_head_norm_gate(nl_device *device, const nl_head_norm_gate_args *a)
{
    const int64_t rows = a->x.shape[0], size = a->weight.shape[0], heads = a->x.shape[1] / size;
    NL_FOR_TYPE(a->x, T, {
        head_norm_gate_kernel<T>
            <<<nl_blocks(rows * heads, WARPS), 32 * WARPS, 0, nl_cuda_of(device)->stream>>>(
                (const T *)a->x.data, (const float *)a->weight.data, (const T *)a->g.data,
                a->g.row_stride, (T *)a->y.data, rows, (int)heads, (int)size, a->eps);
    });
    return NL_CUDA_LAUNCHED(device, "head_norm_gate");
}

template <typename T>
static void launch_gradient(cudaStream_t stream, const nl_head_norm_gate_backward_args *a,
                            float *parts)
{
    head_gradient<T> p;
    p.x = (const T *)a->x.data, p.g = (const T *)a->g.data, p.dy = (const T *)a->dy.data;
    p.dx = (T *)a->dx.data, p.dg = (T *)a->dg.data, p.y = (T *)a->y.data;
    p.weight = (const float *)a->weight.data, p.rows = a->x.shape[0];
    p.stride = a->g.row_stride, p.gradient_stride = a->dg.row_stride;
    p.size = (int)a->weight.shape[0], p.heads = (int)(a->x.shape[1] / p.size), p.eps = a->eps;
    p.parts = parts;
    head_norm_gate_gradient_kernel<T>
        <<<nl_blocks(p.rows, PART_ROWS), 32 * WARPS, WARPS * p.size * sizeof(float), stream>>>(p);
}

extern "C" nl_status nl_cuda_head_norm_gate_backward(nl_device *device,
                                                     const nl_head_norm_gate_backward_args *a)
{
    cudaStream_t stream = nl_cuda_of(device)->stream;
    const int64_t size = a->weight.shape[0], count = nl_blocks(a->x.shape[0], PART_ROWS);
    void *parts;
    nl_status status = check_size(device, size);
    if (status == NL_OK)
        status = nl_cuda_scratch(device, "gradients of a norm's weights", count * size * 4, &parts);
    if (status != NL_OK)
        return status;
    NL_FOR_TYPE(a->x, T, launch_gradient<T>(stream, a, (float *)parts););
    nl_cuda_add_parts(stream, (const float *)parts, count, {{(float *)a->dweight.data, size}});
    return NL_CUDA_LAUNCHED(device, "head_norm_gate_backward");
}
