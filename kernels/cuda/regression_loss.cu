/* SPDX-License-Identifier: MIT */
/* w mean (prediction - target)^2 by image, summed in double, and its gradient; a block for an image. */
#include "cuda_common.cuh"

/* size and outputs: elements of an image of the data and of the prediction, which begins with them. ADAPTIVE: each thread
 * scales the gradients that it wrote once the block knows the image's error. */
template <bool ADAPTIVE>
__global__ void regression_kernel(const float *prediction, const float *data, const float *noise,
                                  const float *coefficients, float *loss, float *dprediction,
                                  int64_t size, int64_t outputs, float gradient_scale,
                                  float adaptive)
{
    const int64_t image = blockIdx.x;
    const float *c = coefficients + image * NL_LOSS_COLUMNS;
    const float by_data = c[NL_LOSS_TARGET_DATA], by_noise = c[NL_LOSS_TARGET_NOISE];
    const float factor = 2.f * gradient_scale * c[NL_LOSS_WEIGHT] / (float)size;
    double sum = 0.;
    for (int64_t i = threadIdx.x; i < outputs; i += blockDim.x) {
        float difference = 0.f;
        if (i < size) {
            const int64_t at = image * size + i;
            difference =
                prediction[image * outputs + i] - fmaf(by_data, data[at], by_noise * noise[at]);
            sum += (double)difference * difference;
        }
        if (dprediction)
            dprediction[image * outputs + i] = factor * difference;
    }
    sum = nl_block_sum_double(sum);
    if (threadIdx.x == 0)
        loss[image] = (float)(c[NL_LOSS_WEIGHT] * sum / (double)size);
    if constexpr (ADAPTIVE) {
        __shared__ float scale;
        if (threadIdx.x == 0)
            scale = (float)(1. / sqrt(sum / (double)size + adaptive));
        __syncthreads();
        for (int64_t i = threadIdx.x; dprediction && i < outputs; i += blockDim.x)
            dprediction[image * outputs + i] *= scale;
    }
}

extern "C" nl_status nl_cuda_regression_loss(nl_device *device, const nl_regression_loss_args *a)
{
    const int64_t images = a->data.shape[0];
    const auto kernel = a->adaptive > 0 ? regression_kernel<true> : regression_kernel<false>;
    if (images > 0)
        kernel<<<(unsigned)images, 512, 0, nl_cuda_of(device)->stream>>>(
            (const float *)a->prediction.data, (const float *)a->data.data,
            (const float *)a->noise.data, (const float *)a->coefficients.data,
            (float *)a->loss.data, (float *)a->dprediction.data, nl_tensor_count(&a->data) / images,
            nl_tensor_count(&a->prediction) / images, a->gradient_scale, a->adaptive);
    return NL_CUDA_LAUNCHED(device, "regression_loss");
}
