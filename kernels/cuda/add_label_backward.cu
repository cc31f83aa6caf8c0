/* Through y = SiLU(c), c = time + table[label]. A block for a row of the table adds its images in order. */
#include "activation.cuh"

template <typename T>
__global__ void time_gradient_kernel(const T *c, const T *dy, T *dtime, int64_t count)
{
    NL_GRID_LOOP(i, count)
    nl_put(dtime + i, nl_get(dy + i) * nl_silu_derivative(nl_get(c + i)));
}

template <typename T>
__global__ void table_gradient_kernel(const T *c, const T *dy, const int *labels, int batch,
                                      int width, float *dtable)
{
    const int label = blockIdx.x;
    bool any = false;
    for (int image = threadIdx.x; image < batch; image += blockDim.x)
        any |= labels[image] == label;
    if (!__syncthreads_or(any))
        return;
    for (int d = threadIdx.x; d < width; d += blockDim.x) {
        float sum = 0.f;
        for (int image = 0; image < batch; image++)
            if (labels[image] == label) {
                const int64_t at = (int64_t)image * width + d;
                sum = fmaf(nl_get(dy + at), nl_silu_derivative(nl_get(c + at)), sum);
            }
        dtable[(int64_t)label * width + d] += sum;
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
            table_gradient_kernel<T><<<(unsigned)a->dtable.shape[0], 128, 0, stream>>>(
                (const T *)a->c.data, (const T *)a->dy.data, (const int *)a->labels.data,
                (int)a->c.shape[0], (int)a->c.shape[1], (float *)a->dtable.data);
        });
    return NL_CUDA_LAUNCHED(device, "add_label_backward");
}
