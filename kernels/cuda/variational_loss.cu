/* SPDX-License-Identifier: MIT */
/* The variational term of learned variances (public-code.md A4), in double: differences of nearly equal logarithms and of
 * cumulative probabilities. A block for an image. */
#include "cuda_common.cuh"

/* The normal distribution's cumulative probability as the public code approximates it, and its slope. */
__device__ static double cumulative(double x, double *slope)
{
    const double root = 0.7978845608028654; /* sqrt(2 / pi) */
    const double t = tanh(root * (x + 0.044715 * x * x * x));
    *slope = 0.5 * (1. - t * t) * root * (1. + 3. * 0.044715 * x * x);
    return 0.5 * (1. + t);
}

/* -log of the probability that N(mean, exp(log_variance)) gives to the bin of x, 2 / 255 wide; *slope: by log_variance */
__device__ static double discretised(double x, double mean, double log_variance, double *slope)
{
    const double inverse = exp(-0.5 * log_variance), least = 1e-12;
    const double high = inverse * (x - mean + 1. / 255.), low = inverse * (x - mean - 1. / 255.);
    double high_slope, low_slope;
    const double above = cumulative(high, &high_slope), below = cumulative(low, &low_slope);
    high_slope *= -0.5 * high, low_slope *= -0.5 * low; /* by log_variance */
    double probability = above - below;
    *slope = high_slope - low_slope;
    if (x < -0.999)
        probability = above, *slope = high_slope;
    else if (x > 0.999)
        probability = 1. - below, *slope = -low_slope;
    *slope = probability < least ? 0. : -*slope / probability;
    return -log(fmax(probability, least));
}

/* size: elements of an image of x; the prediction has 2 size. */
__global__ void variational_kernel(const float *prediction, const float *x, const float *data,
                                   const float *coefficients, bool predicts_x_start, float *loss,
                                   float *dprediction, int64_t size, float gradient_scale)
{
    const int64_t image = blockIdx.x;
    const float *c = coefficients + image * NL_VB_COLUMNS;
    const double log_posterior = c[NL_VB_LOG_POSTERIOR], span = c[NL_VB_LOG_BETA] - log_posterior;
    const double bits = c[NL_VB_WEIGHT] / (0.6931471805599453 * (double)size);
    double sum = 0.;
    for (int64_t i = threadIdx.x; i < size; i += blockDim.x) {
        const int64_t at = image * size + i, out = image * 2 * size + i;
        const double x_t = x[at], first = prediction[out], v = prediction[out + size];
        const double x_0 =
            predicts_x_start ? first : c[NL_VB_X_0_FROM_X] * x_t - c[NL_VB_X_0_FROM_EPS] * first;
        const double log_variance = log_posterior + 0.5 * (v + 1.) * span;
        const double mean = c[NL_VB_MEAN_FROM_X_0] * x_0 + c[NL_VB_MEAN_FROM_X] * x_t;
        double slope, term;
        if (c[NL_VB_FIRST] != 0.f) {
            term = discretised(data[at], mean, log_variance, &slope);
        } else {
            const double difference = c[NL_VB_MEAN_FROM_X_0] * ((double)data[at] - x_0);
            const double ratio = exp(log_posterior - log_variance),
                         distance = difference * difference * exp(-log_variance);
            term = 0.5 * (-1. + log_variance - log_posterior + ratio + distance);
            slope = 0.5 * (1. - ratio - distance);
        }
        sum += term;
        if (dprediction)
            dprediction[out + size] = (float)(gradient_scale * bits * slope * 0.5 * span);
    }
    sum = nl_block_sum_double(sum);
    if (threadIdx.x == 0)
        loss[image] = (float)(loss[image] + bits * sum);
}

extern "C" nl_status nl_cuda_variational_loss(nl_device *device, const nl_variational_loss_args *a)
{
    const int64_t images = a->x.shape[0];
    if (images > 0)
        variational_kernel<<<(unsigned)images, 256, 0, nl_cuda_of(device)->stream>>>(
            (const float *)a->prediction.data, (const float *)a->x.data,
            (const float *)a->data.data, (const float *)a->coefficients.data, a->predicts_x_start,
            (float *)a->loss.data, (float *)a->dprediction.data, nl_tensor_count(&a->x) / images,
            a->gradient_scale);
    return NL_CUDA_LAUNCHED(device, "variational_loss");
}
