/* SPDX-License-Identifier: MIT */
/* A linear layer with its epilogue, one sum of products an element. */
#include "reference.h"

static double product(const nl_linear_args *args, int64_t m, int64_t n)
{
    double sum = nl_at_or_zero(&args->bias, n);
    for (int64_t k = 0; k < args->x.shape[1]; k++)
        sum += nl_get(&args->x, m, k) * nl_get(&args->weight, n, k);
    if (args->pre.data)
        nl_put(&args->pre, m, n, sum);
    return nl_reference_activation(nl_epilogue_activation(args->epilogue), sum);
}

/* x [M, K], weight [N, K] -> y [M, N] */
nl_status nl_reference_linear(nl_device *device, const nl_linear_args *args)
{
    (void)device;
    for (int64_t m = 0; m < args->x.shape[0]; m++)
        NL_PUT_ROW(&args->y, m, n, product(args, m, n));
    return NL_OK;
}
