/* SPDX-License-Identifier: MIT */
/* Distribution matching by two velocities, summed in double; a block for an image. */
#include "cuda_common.cuh"

/* size: elements of an image. doutput may be NULL. */
__global__ void matching_kernel(const float *data, const float *noise, const float *teacher,
                                const float *fake, const float *coefficients, float *loss,
                                float *doutput, int64_t size, float gradient_scale)
{
    const int64_t image = blockIdx.x, first = image * size;
    __shared__ float factor;
    double error = 0., sum = 0.;
    for (int64_t i = first + threadIdx.x; i < first + size; i += blockDim.x) {
        const float g = fake[i] - teacher[i];
        error += fabs((double)data[i] - noise[i] - teacher[i]);
        sum += (double)g * g;
    }
    error = nl_block_sum_double(error);
    __syncthreads(); /* its shared memory is used again */
    sum = nl_block_sum_double(sum);
    if (threadIdx.x == 0) {
        const double scale = 1. / (error / (double)size + NL_MATCHING_EPS);
        loss[image] = (float)(scale * scale * sum / (double)size / 2.);
        factor = (float)(gradient_scale * scale / (double)size *
                         coefficients[image * NL_LOSS_COLUMNS + NL_LOSS_WEIGHT]);
    }
    __syncthreads();
    for (int64_t i = first + threadIdx.x; doutput && i < first + size; i += blockDim.x)
        doutput[i] = factor * (fake[i] - teacher[i]);
}

extern "C" nl_status nl_cuda_matching_loss(nl_device *device, const nl_matching_loss_args *a)
{
    const int64_t images = a->data.shape[0];
    if (images > 0)
        matching_kernel<<<(unsigned)images, 512, 0, nl_cuda_of(device)->stream>>>(
            (const float *)a->data.data, (const float *)a->noise.data,
            (const float *)a->teacher.data, (const float *)a->fake.data,
            (const float *)a->coefficients.data, (float *)a->loss.data, (float *)a->doutput.data,
            nl_tensor_count(&a->data) / images, a->gradient_scale);
    return NL_CUDA_LAUNCHED(device, "matching_loss");
}
