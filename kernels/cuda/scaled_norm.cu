/* SPDX-License-Identifier: MIT */
/* Root mean square of x / (atol + rtol max(|a|, |b|)) for each image, in double. Waits for the device. */
#include "cuda_common.cuh"

__global__ void norm_kernel(const float *x, const float *a, const float *b, int64_t per_image,
                            double atol, double rtol, double *rms)
{
    const int64_t first = blockIdx.x * per_image;
    double sum = 0;
    for (int64_t i = threadIdx.x; i < per_image; i += blockDim.x) {
        double scale = fabs((double)a[first + i]);
        if (b)
            scale = fmax(scale, fabs((double)b[first + i]));
        const double e = x[first + i] / (atol + rtol * scale);
        sum += e * e;
    }
    sum = nl_block_sum_double(sum);
    if (threadIdx.x == 0)
        rms[blockIdx.x] = sqrt(sum / per_image);
}

extern "C" nl_status nl_cuda_scaled_norm(nl_device *device, const nl_scaled_norm_args *a)
{
    nl_cuda *cuda = nl_cuda_of(device);
    const int64_t batch = a->x.shape[0], per_image = batch ? nl_tensor_count(&a->x) / batch : 0;
    void *rms;
    nl_status status = nl_cuda_scratch(device, "norms", batch * 8, &rms);
    if (status != NL_OK || per_image == 0)
        return status;
    norm_kernel<<<(unsigned)batch, 512, 0, cuda->stream>>>(
        (const float *)a->x.data, (const float *)a->a.data, (const float *)a->b.data, per_image,
        a->atol, a->rtol, (double *)rms);
    if ((status = NL_CUDA_LAUNCHED(device, "scaled_norm")) != NL_OK)
        return status;
    return device->ops->download(device, a->rms, rms, batch * 8);
}
