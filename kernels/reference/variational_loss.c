/* SPDX-License-Identifier: MIT */
/* The variational bound that trains a learned variance, and its gradient. */
#include "reference.h"

/* What one element is made of, by docs/public-code.md A4. */
typedef struct vb_element {
    double data, mean, true_mean, log_variance, log_posterior;
} vb_element;

/* KL(N(true_mean, posterior) || N(mean, variance)) in nats, and its derivative by log_variance. */
static double divergence(const vb_element *e, double *slope)
{
    double ratio = exp(e->log_posterior - e->log_variance);
    double square = (e->true_mean - e->mean) * (e->true_mean - e->mean) * exp(-e->log_variance);
    *slope = 0.5 * (1 - ratio - square);
    return 0.5 * (-1 + e->log_variance - e->log_posterior + ratio + square);
}

/* The standard normal distribution function, as the public code approximates it, and its derivative. */
static double normal_cdf(double x, double *slope)
{
    double factor = sqrt(2 / nl_pi), t = tanh(factor * (x + 0.044715 * x * x * x));
    *slope = 0.5 * (1 - t * t) * factor * (1 + 3 * 0.044715 * x * x);
    return 0.5 * (1 + t);
}

/* -log of the probability of the bin of width 2/255 that data lies in, bins at the edges open, probabilities not
 * below 1e-12; and its derivative by log_variance. */
static double likelihood(const vb_element *e, double *slope)
{
    double centered = e->data - e->mean, inverse = exp(-0.5 * e->log_variance);
    double upper = inverse * (centered + 1.0 / 255), lower = inverse * (centered - 1.0 / 255);
    double upper_slope, lower_slope;
    double below = normal_cdf(upper, &upper_slope), above = normal_cdf(lower, &lower_slope);
    double probability = below - above;
    /* d upper / d log_variance = -upper / 2 */
    double gradient = -0.5 * (upper_slope * upper - lower_slope * lower);
    if (e->data < -0.999) {
        probability = below;
        gradient = -0.5 * upper_slope * upper;
    } else if (e->data > 0.999) {
        probability = 1 - above;
        gradient = 0.5 * lower_slope * lower;
    }
    bool least = probability < 1e-12;
    *slope = least ? 0 : -gradient / probability;
    return -log(least ? 1e-12 : probability);
}

/* prediction [B, 2C, ...]; x, data [B, C, ...]; coefficients [B, NL_VB_COLUMNS] -> loss [B] is added to, dprediction */
nl_status nl_reference_variational_loss(nl_device *device, const nl_variational_loss_args *args)
{
    int64_t images = args->data.shape[0], size = nl_tensor_count(&args->data) / images;
    (void)device;
    for (int64_t image = 0; image < images; image++) {
        double c[NL_VB_COLUMNS], sum = 0, slope;
        for (int i = 0; i < NL_VB_COLUMNS; i++)
            c[i] = nl_get(&args->coefficients, image, i);
        double bits = c[NL_VB_WEIGHT] / (size * log(2));
        for (int64_t i = 0; i < size; i++) {
            int64_t at = image * 2 * size + i;
            double x = nl_at(&args->x, image * size + i), eps = nl_at(&args->prediction, at);
            double x_0 = args->predicts_x_start
                             ? eps
                             : c[NL_VB_X_0_FROM_X] * x - c[NL_VB_X_0_FROM_EPS] * eps;
            double fraction = (nl_at(&args->prediction, at + size) + 1) / 2;
            vb_element e = {.data = nl_at(&args->data, image * size + i)};
            e.mean = c[NL_VB_MEAN_FROM_X_0] * x_0 + c[NL_VB_MEAN_FROM_X] * x;
            e.true_mean = c[NL_VB_MEAN_FROM_X_0] * e.data + c[NL_VB_MEAN_FROM_X] * x;
            e.log_posterior = c[NL_VB_LOG_POSTERIOR];
            e.log_variance = fraction * c[NL_VB_LOG_BETA] + (1 - fraction) * e.log_posterior;
            sum += c[NL_VB_FIRST] != 0 ? likelihood(&e, &slope) : divergence(&e, &slope);
            if (args->dprediction.data)
                nl_put(&args->dprediction, 0, at + size,
                       args->gradient_scale * bits * slope * (c[NL_VB_LOG_BETA] - e.log_posterior) /
                           2);
        }
        nl_add(&args->loss, 0, image, bits * sum);
    }
    return NL_OK;
}
