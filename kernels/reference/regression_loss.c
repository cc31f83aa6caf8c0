/* SPDX-License-Identifier: MIT */
/* Weighted squared error against the target that coefficients make of data and noise, and its gradient. */
#include "reference.h"

/* prediction [B, C or more, ...]; data, noise [B, C, ...]; coefficients [B, NL_LOSS_COLUMNS] -> loss [B], dprediction */
nl_status nl_reference_regression_loss(nl_device *device, const nl_regression_loss_args *args)
{
    int64_t images = args->data.shape[0], size = nl_tensor_count(&args->data) / images;
    int64_t predicted = nl_tensor_count(&args->prediction) / images;
    (void)device;
    for (int64_t image = 0; image < images; image++) {
        double from_data = nl_get(&args->coefficients, image, NL_LOSS_TARGET_DATA);
        double from_noise = nl_get(&args->coefficients, image, NL_LOSS_TARGET_NOISE);
        double weight = nl_get(&args->coefficients, image, NL_LOSS_WEIGHT), sum = 0;
        for (int64_t i = 0; i < predicted; i++) {
            int64_t at = image * size + i;
            double difference = i < size ? nl_at(&args->prediction, image * predicted + i) -
                                               from_data * nl_at(&args->data, at) -
                                               from_noise * nl_at(&args->noise, at)
                                         : 0;
            sum += difference * difference;
            if (args->dprediction.data)
                nl_put(&args->dprediction, 0, image * predicted + i,
                       args->gradient_scale * weight * 2 * difference / size);
        }
        nl_put(&args->loss, 0, image, weight * sum / size);
        double scale = args->adaptive > 0 ? 1 / sqrt(sum / size + args->adaptive) : 1;
        for (int64_t i = 0; args->dprediction.data && args->adaptive > 0 && i < size; i++)
            nl_put(&args->dprediction, 0, image * predicted + i,
                   scale * nl_at(&args->dprediction, image * predicted + i));
    }
    return NL_OK;
}
