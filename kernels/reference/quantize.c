/* SPDX-License-Identifier: MIT */
/* An activation, and its rows in F8. */
#include "reference.h"

/* x [M, K] -> y F8 [M, K] */
nl_status nl_reference_quantize(nl_device *device, const nl_quantize_args *args)
{
    (void)device;
    for (int64_t m = 0; m < args->x.shape[0]; m++)
        NL_PUT_ROW(&args->y, m, i,
                   nl_reference_activation(nl_epilogue_activation(args->activation),
                                           nl_get(&args->x, m, i)));
    return NL_OK;
}
