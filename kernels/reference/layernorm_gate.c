/* SPDX-License-Identifier: MIT */
/* LayerNorm with weight and bias, times SiLU(g). */
#include "layernorm.h"

/* x, g [M, D]; weight, bias [D] -> y [M, D] */
nl_status nl_reference_layernorm_gate(nl_device *device, const nl_layernorm_gate_args *args)
{
    (void)device;
    for (int64_t m = 0; m < args->x.shape[0]; m++) {
        double mean, inverse_deviation;
        nl_row_moments(&args->x, m, NL_NORM_LAYER, args->eps, &mean, &inverse_deviation);
        NL_PUT_ROW(&args->y, m, i,
                   ((nl_get(&args->x, m, i) - mean) * inverse_deviation * nl_at(&args->weight, i) +
                    nl_at(&args->bias, i)) *
                       (args->g.data ? nl_silu(nl_get(&args->g, m, i)) : 1));
    }
    return NL_OK;
}
