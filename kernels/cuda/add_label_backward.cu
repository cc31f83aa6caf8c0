/* SPDX-License-Identifier: MIT */
/* Through y = SiLU(c), c = time + table[label] + crop_weight crop. A block for a row of the table adds its images in
 * order; for crop_weight, a group of images a thread, which are added in order. */
#include "cuda_common.cuh"

enum { THREADS = 128, COLUMNS = 32, GROUPS = 16, MOST_NUMBERS = 8 };

template <typename T>
__global__ void time_gradient_kernel(const T *c, const T *dy, T *dtime, int64_t count)
{
    NL_GRID_LOOP(i, count)
    nl_put(dtime + i, nl_get(dy + i) * nl_silu_derivative(nl_get(c + i)));
}

/* Images are looked through in groups of THREADS; those with the label are listed in order. */
template <typename T>
__global__ void __launch_bounds__(THREADS)
    table_gradient_kernel(const T *c, const T *dy, const int *labels, int batch, int width,
                          float *dtable)
{
    __shared__ int list[THREADS], counts[THREADS / 32];
    const int label = blockIdx.x, warp = threadIdx.x / 32;
    for (int first = 0; first < batch; first += THREADS) {
        const int image = first + threadIdx.x;
        const bool mine = image < batch && labels[image] == label;
        const unsigned votes = __ballot_sync(~0u, mine);
        if (threadIdx.x % 32 == 0)
            counts[warp] = __popc(votes);
        if (!__syncthreads_or(mine))
            continue;
        int before = 0, count = 0;
        for (int w = 0; w < THREADS / 32; w++)
            before += w < warp ? counts[w] : 0, count += counts[w];
        if (mine)
            list[before + __popc(votes & ((1u << threadIdx.x % 32) - 1))] = image;
        __syncthreads();
        for (int d = threadIdx.x; d < width; d += THREADS) {
            float sum = 0.f;
#pragma unroll 8
            for (int i = 0; i < count; i++) {
                const int64_t at = (int64_t)list[i] * width + d;
                sum = fmaf(nl_get(dy + at), nl_silu_derivative(nl_get(c + at)), sum);
            }
            dtable[(int64_t)label * width + d] += sum;
        }
        __syncthreads();
    }
}

/* Threads (COLUMNS, GROUPS): column d of the block, images group, group + GROUPS, ... */
template <typename T>
__global__ void __launch_bounds__(COLUMNS *GROUPS)
    crop_gradient_kernel(const T *c, const T *dy, const float *crop, int batch, int width,
                         int numbers, float *dweight)
{
    __shared__ float sums[MOST_NUMBERS][GROUPS][COLUMNS];
    const int d = blockIdx.x * COLUMNS + threadIdx.x, group = threadIdx.y;
    float sum[MOST_NUMBERS] = {};
    for (int image = group; d < width && image < batch; image += GROUPS) {
        const int64_t at = (int64_t)image * width + d;
        const float dtime = nl_get(dy + at) * nl_silu_derivative(nl_get(c + at));
#pragma unroll
        for (int k = 0; k < MOST_NUMBERS; k++)
            if (k < numbers)
                sum[k] = fmaf(dtime, crop[(int64_t)image * numbers + k], sum[k]);
    }
#pragma unroll
    for (int k = 0; k < MOST_NUMBERS; k++)
        sums[k][group][threadIdx.x] = sum[k];
    __syncthreads();
    if (d < width && group < numbers) {
        float total = 0.f;
        for (int i = 0; i < GROUPS; i++)
            total += sums[group][i][threadIdx.x];
        dweight[(int64_t)d * numbers + group] += total;
    }
}

extern "C" nl_status nl_cuda_add_label_backward(nl_device *device,
                                                const nl_add_label_backward_args *a)
{
    cudaStream_t stream = nl_cuda_of(device)->stream;
    const int64_t count = nl_tensor_count(&a->c);
    const int batch = (int)a->c.shape[0], width = (int)a->c.shape[1];
    const int numbers = a->crop.data ? (int)a->crop.shape[1] : 0;
    if (numbers > MOST_NUMBERS)
        return nl_fail(device->context, NL_ERROR_DEVICE,
                       "add_label_backward: crop of %d numbers, at most %d", numbers, MOST_NUMBERS);
    if (count > 0)
        NL_FOR_TYPE(a->c, T, {
            time_gradient_kernel<T><<<nl_blocks(count, 256), 256, 0, stream>>>(
                (const T *)a->c.data, (const T *)a->dy.data, (T *)a->dtime.data, count);
            table_gradient_kernel<T><<<(unsigned)a->dtable.shape[0], THREADS, 0, stream>>>(
                (const T *)a->c.data, (const T *)a->dy.data, (const int *)a->labels.data, batch,
                width, (float *)a->dtable.data);
            if (numbers > 0)
                crop_gradient_kernel<T>
                    <<<(width + COLUMNS - 1) / COLUMNS, dim3(COLUMNS, GROUPS), 0, stream>>>(
                        (const T *)a->c.data, (const T *)a->dy.data, (const float *)a->crop.data,
                        batch, width, numbers, (float *)a->dcrop_weight.data);
        });
    return NL_CUDA_LAUNCHED(device, "add_label_backward");
}
