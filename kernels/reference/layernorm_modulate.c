/* SPDX-License-Identifier: MIT */
/* The residual sum, then the adaptive LayerNorm. */
#include "layernorm.h"

/* x, branch [M, D]; gate, shift, scale [M / rows_per_image, D] -> x or sum, y [M, D] */
nl_status nl_reference_layernorm_modulate(nl_device *device, const nl_layernorm_modulate_args *args)
{
    const nl_tensor *sum = args->sum.data ? &args->sum : &args->x;
    (void)device;
    for (int64_t m = 0; m < args->x.shape[0]; m++) {
        int64_t image = m / args->rows_per_image;
        double mean, inverse_deviation;
        if (args->branch.data)
            for (int64_t i = 0; i < args->x.shape[1]; i++)
                nl_put(sum, m, i,
                       nl_get(&args->x, m, i) +
                           nl_get(&args->gate, image, i) * nl_get(&args->branch, m, i));
        nl_row_moments(sum, m, args->norm, args->eps, &mean, &inverse_deviation);
        NL_PUT_ROW(&args->y, m, i,
                   (nl_get(sum, m, i) - mean) * inverse_deviation *
                           (args->norm == NL_NORM_RMS ? nl_at(&args->weight, i) : 1) *
                           (1 + nl_get(&args->scale, image, i)) +
                       nl_get(&args->shift, image, i));
    }
    return NL_OK;
}
