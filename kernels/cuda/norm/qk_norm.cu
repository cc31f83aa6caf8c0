/* SPDX-License-Identifier: MIT */
/*
 * RMS normalisation of the heads of q and k, in place, and its gradients. A warp has a head at a time and reads it twice,
 * the second time from the cache. Gradients by the two weights are summed over the rows of a block in shared memory, a
 * set for each warp; a block leaves one part, and the parts are added in order.
 */
#include "column_sums.cuh"

enum { WARPS = 4, PART_ROWS = 32 /* of a block in the gradient */, MAX_HEAD = 1024 };

/* 1 / sqrt(mean x^2 + eps) of a head */
template <typename T> __device__ __forceinline__ float inverse_rms(const T *x, int size, float eps)
{
    float squares = 0.f;
    for (int i = threadIdx.x % 32; i < size; i += 32)
        squares = fmaf(nl_get(x + i), nl_get(x + i), squares);
    return rsqrtf(nl_warp_sum(squares) / size + eps);
}

/* heads: of q and of k */
template <typename T>
__global__ void qk_norm_kernel(T *x, int64_t stride, T *raw, const float *q_weight,
                               const float *k_weight, int64_t rows, int heads, int size, float eps)
{
    const int64_t i = blockIdx.x * (int64_t)WARPS + threadIdx.x / 32, row = i / (2 * heads);
    const int head = i % (2 * heads);
    if (row >= rows)
        return;
    T *at = x + row * stride + head * size;
    const float *weight = head < heads ? q_weight : k_weight;
    const float scale = inverse_rms(at, size, eps);
    for (int j = threadIdx.x % 32; j < size; j += 32) {
        const T value = at[j];
        if (raw)
            raw[i * size + j] = value;
        nl_put(at + j, nl_get(&value) * scale * weight[j]);
    }
}

/* parts [blocks, 2 size] */
template <typename T>
__global__ void __launch_bounds__(32 * WARPS)
    qk_norm_gradient_kernel(const T *raw, T *dx, int64_t stride, const float *q_weight,
                            const float *k_weight, int64_t rows, int heads, int size, float eps,
                            float *parts)
{
    extern __shared__ float sums[]; /* [WARPS, 2 size] */
    const int lane = threadIdx.x % 32, warp = threadIdx.x / 32;
    float *own = sums + warp * 2 * size;
    for (int i = lane; i < 2 * size; i += 32)
        own[i] = 0.f;
    const int64_t first = blockIdx.x * (int64_t)PART_ROWS;
    const int64_t last = min(first + PART_ROWS, rows);
    for (int64_t i = first * 2 * heads + warp; i < last * 2 * heads; i += WARPS) {
        const int head = i % (2 * heads);
        const T *x = raw + i * size;
        T *d = dx + i / (2 * heads) * stride + head * size;
        const float *weight = head < heads ? q_weight : k_weight;
        float *to = own + (head < heads ? 0 : size);
        const float scale = inverse_rms(x, size, eps);
        float product = 0.f;
        for (int j = lane; j < size; j += 32) { /* a lane always has the same columns */
            const float change = nl_get(d + j) * (nl_get(x + j) * scale);
            to[j] += change;
            product = fmaf(change, weight[j], product);
        }
        product = nl_warp_sum(product) / size;
        for (int j = lane; j < size; j += 32)
            nl_put(d + j, scale * (nl_get(d + j) * weight[j] - nl_get(x + j) * scale * product));
    }
    __syncthreads();
    for (int i = threadIdx.x; i < 2 * size; i += 32 * WARPS) {
        float sum = sums[i];
#pragma unroll
        for (int other = 1; other < WARPS; other++)
            sum += sums[other * 2 * size + i];
        parts[blockIdx.x * (int64_t)(2 * size) + i] = sum;
    }
}

extern "C" nl_status nl_cuda_qk_norm(nl_device *device, const nl_qk_norm_args *a)
{
    const int64_t rows = a->x.shape[0], size = a->q_weight.shape[0];
    const int64_t heads = a->x.shape[1] / (2 * size);
    NL_FOR_TYPE(a->x, T, {
        qk_norm_kernel<T>
            <<<nl_blocks(rows * 2 * heads, WARPS), 32 * WARPS, 0, nl_cuda_of(device)->stream>>>(
                (T *)a->x.data, a->x.row_stride, (T *)a->raw.data, (const float *)a->q_weight.data,
                (const float *)a->k_weight.data, rows, (int)heads, (int)size, a->eps);
    });
    return NL_CUDA_LAUNCHED(device, "qk_norm");
}

extern "C" nl_status nl_cuda_qk_norm_backward(nl_device *device, const nl_qk_norm_backward_args *a)
{
    cudaStream_t stream = nl_cuda_of(device)->stream;
    const int64_t rows = a->raw.shape[0], size = a->q_weight.shape[0];
    const int64_t heads = a->raw.shape[1] / (2 * size), count = nl_blocks(rows, PART_ROWS);
    void *parts;
    if (size > MAX_HEAD)
        return nl_fail(device->context, NL_ERROR_DEVICE,
                       "qk_norm backward: head size %lld, at most %d on the GPU", (long long)size,
                       MAX_HEAD);
    nl_status status =
        nl_cuda_scratch(device, "gradients of q and k weights", count * 2 * size * 4, &parts);
    if (status != NL_OK)
        return status;
    NL_FOR_TYPE(a->raw, T, {
        qk_norm_gradient_kernel<T>
            <<<(unsigned)count, 32 * WARPS, WARPS * 2 * size * sizeof(float), stream>>>(
                (const T *)a->raw.data, (T *)a->dx.data, a->dx.row_stride,
                (const float *)a->q_weight.data, (const float *)a->k_weight.data, rows, (int)heads,
                (int)size, a->eps, (float *)parts);
    });
    nl_cuda_add_parts(stream, (const float *)parts, count,
                      {{(float *)a->dq_weight.data, size}, {(float *)a->dk_weight.data, size}});
    return NL_CUDA_LAUNCHED(device, "qk_norm_backward");
}
