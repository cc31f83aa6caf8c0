/* SPDX-License-Identifier: MIT */
/*
 * Normalisation of the heads of q and k, in place, and its gradients. A warp has a head at a time and reads it two or three
 * times, all but the first from the cache. Gradients by the weights and biases are summed over the rows of a block in
 * shared memory, a set for each warp; a block leaves one part, and the parts are added in order.
 */
#include "column_sums.cuh"

enum { WARPS = 4, PART_ROWS = 32 /* of a block in the gradient */, MAX_HEAD = 512 };

/* The mean of a head; 0 of RMS. */
template <typename T> __device__ __forceinline__ float mean_of(const T *x, int size, bool layer)
{
    float sum = 0.f;
    if (!layer)
        return 0.f;
    for (int i = threadIdx.x % 32; i < size; i += 32)
        sum += nl_get(x + i);
    return nl_warp_sum(sum) / size;
}

/* 1 / sqrt(mean (x - mean)^2 + eps) of a head */
template <typename T>
__device__ __forceinline__ float inverse_rms(const T *x, float mean, int size, float eps)
{
    float squares = 0.f;
    for (int i = threadIdx.x % 32; i < size; i += 32)
        squares = fmaf(nl_get(x + i) - mean, nl_get(x + i) - mean, squares);
    return rsqrtf(nl_warp_sum(squares) / size + eps);
}

/* heads: of q and of k */
template <typename T>
__global__ void qk_norm_kernel(T *x, int64_t stride, T *raw, const float *q_weight,
                               const float *k_weight, const float *q_bias, const float *k_bias,
                               int64_t rows, int heads, int size, bool layer, float eps)
{
    const int64_t i = blockIdx.x * (int64_t)WARPS + threadIdx.x / 32, row = i / (2 * heads);
    const int head = i % (2 * heads);
    if (row >= rows)
        return;
    T *at = x + row * stride + head * size;
    const float *weight = head < heads ? q_weight : k_weight;
    const float *bias = head < heads ? q_bias : k_bias;
    const float mean = mean_of(at, size, layer), scale = inverse_rms(at, mean, size, eps);
    for (int j = threadIdx.x % 32; j < size; j += 32) {
        const T value = at[j];
        if (raw)
            raw[i * size + j] = value;
        nl_put(at + j, (nl_get(&value) - mean) * scale * weight[j] + (bias ? bias[j] : 0.f));
    }
}

/* parts [blocks, 4 size]: by the weight and the bias of q, then of k */
template <typename T>
__global__ void __launch_bounds__(32 * WARPS)
    qk_norm_gradient_kernel(const T *raw, T *dx, int64_t stride, const float *q_weight,
                            const float *k_weight, int64_t rows, int heads, int size, bool layer,
                            float eps, float *parts)
{
    extern __shared__ float sums[]; /* [WARPS, 4 size] */
    const int lane = threadIdx.x % 32, warp = threadIdx.x / 32;
    float *own = sums + warp * 4 * size;
    for (int i = lane; i < 4 * size; i += 32)
        own[i] = 0.f;
    __syncwarp();
    const int64_t first = blockIdx.x * (int64_t)PART_ROWS;
    const int64_t last = min(first + PART_ROWS, rows);
    for (int64_t i = first * 2 * heads + warp; i < last * 2 * heads; i += WARPS) {
        const int head = i % (2 * heads);
        const T *x = raw + i * size;
        T *d = dx + i / (2 * heads) * stride + head * size;
        const float *weight = head < heads ? q_weight : k_weight;
        float *to = own + (head < heads ? 0 : 2 * size);
        const float mean = mean_of(x, size, layer), scale = inverse_rms(x, mean, size, eps);
        float product = 0.f, plain = 0.f;
        for (int j = lane; j < size; j += 32) { /* a lane always has the same columns */
            const float up = nl_get(d + j), change = up * ((nl_get(x + j) - mean) * scale);
            to[j] += change;
            to[size + j] += up;
            product = fmaf(change, weight[j], product);
            plain = fmaf(up, weight[j], plain);
        }
        product = nl_warp_sum(product) / size;
        plain = layer ? nl_warp_sum(plain) / size : 0.f;
        for (int j = lane; j < size; j += 32)
            nl_put(d + j, scale * (nl_get(d + j) * weight[j] - plain -
                                   (nl_get(x + j) - mean) * scale * product));
    }
    __syncthreads();
    for (int i = threadIdx.x; i < 4 * size; i += 32 * WARPS) {
        float sum = sums[i];
#pragma unroll
        for (int other = 1; other < WARPS; other++)
            sum += sums[other * 4 * size + i];
        parts[blockIdx.x * (int64_t)(4 * size) + i] = sum;
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
                (const float *)a->k_weight.data, (const float *)a->q_bias.data,
                (const float *)a->k_bias.data, rows, (int)heads, (int)size,
                a->norm == NL_NORM_LAYER, a->eps);
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
        nl_cuda_scratch(device, "gradients of q and k weights", count * 4 * size * 4, &parts);
    if (status != NL_OK)
        return status;
    NL_FOR_TYPE(a->raw, T, {
        qk_norm_gradient_kernel<T>
            <<<(unsigned)count, 32 * WARPS, WARPS * 4 * size * sizeof(float), stream>>>(
                (const T *)a->raw.data, (T *)a->dx.data, a->dx.row_stride,
                (const float *)a->q_weight.data, (const float *)a->k_weight.data, rows, (int)heads,
                (int)size, a->norm == NL_NORM_LAYER, a->eps, (float *)parts);
    });
    nl_cuda_add_parts(stream, (const float *)parts, count,
                      {{(float *)a->dq_weight.data, size},
                       {(float *)a->dq_bias.data, size},
                       {(float *)a->dk_weight.data, size},
                       {(float *)a->dk_bias.data, size}});
    return NL_CUDA_LAUNCHED(device, "qk_norm_backward");
}
