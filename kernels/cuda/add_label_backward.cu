/* SPDX-License-Identifier: MIT */
/* Through y = SiLU(c), c = time + table[label]. A block for a row of the table adds its images in order. */
#include "cuda_common.cuh"

enum { THREADS = 128 };

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

extern "C" nl_status nl_cuda_add_label_backward(nl_device *device,
                                                const nl_add_label_backward_args *a)
{
    cudaStream_t stream = nl_cuda_of(device)->stream;
    const int64_t count = nl_tensor_count(&a->c);
    if (count > 0)
        NL_FOR_TYPE(a->c, T, {
            time_gradient_kernel<T><<<nl_blocks(count, 256), 256, 0, stream>>>(
                (const T *)a->c.data, (const T *)a->dy.data, (T *)a->dtime.data, count);
            table_gradient_kernel<T><<<(unsigned)a->dtable.shape[0], THREADS, 0, stream>>>(
                (const T *)a->c.data, (const T *)a->dy.data, (const int *)a->labels.data,
                (int)a->c.shape[0], (int)a->c.shape[1], (float *)a->dtable.data);
        });
    return NL_CUDA_LAUNCHED(device, "add_label_backward");
}
