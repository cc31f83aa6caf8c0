/* SPDX-License-Identifier: MIT */
/* Gradients of the gated LayerNorm, row by row. */
#include "layernorm.h"

/* y = (n weight + bias) SiLU(g), n the normalised x. One row; its part of dweight and dbias is added to
 * sums [2, D]. dx may be dy and y may be x, so every element is read before it is written. */
static void backward_row(const nl_layernorm_gate_backward_args *args, int64_t m, double *sums)
{
    int64_t size = args->x.shape[1];
    double mean, inverse_deviation, sum = 0, product = 0;
    nl_row_moments(&args->x, m, NL_NORM_LAYER, args->eps, &mean, &inverse_deviation);
    for (int64_t i = 0; i < size; i++) {
        double normal = (nl_get(&args->x, m, i) - mean) * inverse_deviation;
        double gate = args->g.data ? nl_silu(nl_get(&args->g, m, i)) : 1;
        double daffine = nl_get(&args->dy, m, i) * gate;
        sums[i] += daffine * normal;
        sums[size + i] += daffine;
        sum += daffine * nl_at(&args->weight, i);
        product += daffine * nl_at(&args->weight, i) * normal;
    }
    for (int64_t i = 0; i < size; i++) {
        double normal = (nl_get(&args->x, m, i) - mean) * inverse_deviation;
        double affine = normal * nl_at(&args->weight, i) + nl_at(&args->bias, i);
        double dy = nl_get(&args->dy, m, i), gate = 1;
        if (args->g.data) {
            double g = nl_get(&args->g, m, i);
            gate = nl_silu(g);
            nl_put(&args->dg, m, i, dy * affine * nl_reference_activation_slope(NL_ACT_SILU, g));
        }
        double dnormal = dy * gate * nl_at(&args->weight, i);
        nl_put(&args->dx, m, i,
               (dnormal - sum / size - normal * product / size) * inverse_deviation);
        if (args->y.data)
            nl_put(&args->y, m, i, affine * gate);
    }
}

/* x, g, dy [M, D]; weight, bias [D] -> dx, dg, y [M, D]; dweight, dbias [D] are added to */
nl_status nl_reference_layernorm_gate_backward(nl_device *device,
                                               const nl_layernorm_gate_backward_args *args)
{
    nl_status status = NL_OK;
    double *sums = NULL;
    int64_t size = args->x.shape[1];
    NL_TRY(NL_NEW_ZEROS(device->context, "sums over rows", 2 * (size_t)size, &sums));
    for (int64_t m = 0; m < args->x.shape[0]; m++)
        backward_row(args, m, sums);
    for (int64_t i = 0; i < size; i++) {
        nl_add(&args->dweight, 0, i, sums[i]);
        nl_add(&args->dbias, 0, i, sums[size + i]);
    }
    nl_reference_column_sums(&args->dg, &args->dg_sums);
cleanup:
    nl_free(device->context, sums);
    return status;
}
