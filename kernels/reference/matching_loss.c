/* SPDX-License-Identifier: MIT */
/* Where distribution matching moves a sample, by two velocities, and how far. */
#include "reference.h"

/* data, noise, teacher, fake [B, ...], coefficients [B, NL_LOSS_COLUMNS] -> loss [B], doutput [B, ...] */
nl_status nl_reference_matching_loss(nl_device *device, const nl_matching_loss_args *args)
{
    int64_t images = args->data.shape[0], size = nl_tensor_count(&args->data) / images;
    (void)device;
    for (int64_t image = 0; image < images; image++) {
        double error = 0, sum = 0;
        for (int64_t i = image * size; i < (image + 1) * size; i++) {
            double teacher = nl_at(&args->teacher, i), g = nl_at(&args->fake, i) - teacher;
            error += fabs(nl_at(&args->data, i) - nl_at(&args->noise, i) - teacher);
            sum += g * g;
        }
        double scale = 1 / (error / size + NL_MATCHING_EPS);
        double factor = args->gradient_scale * scale / size *
                        nl_get(&args->coefficients, image, NL_LOSS_WEIGHT);
        nl_put(&args->loss, 0, image, scale * scale * sum / size / 2);
        for (int64_t i = image * size; args->doutput.data && i < (image + 1) * size; i++)
            nl_put(&args->doutput, 0, i,
                   factor * (nl_at(&args->fake, i) - nl_at(&args->teacher, i)));
    }
    return NL_OK;
}
