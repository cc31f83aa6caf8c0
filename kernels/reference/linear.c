/* SPDX-License-Identifier: MIT */
/* A linear layer with its epilogue, one sum of products an element. */
#include "reference.h"

/* x [M, K], weight [N, K] -> y [M, N] */
nl_status nl_reference_linear(nl_device *device, const nl_linear_args *args)
{
    int64_t m_count = args->x.shape[0], k_count = args->x.shape[1], n_count = args->weight.shape[0];
    (void)device;
    for (int64_t m = 0; m < m_count; m++)
        for (int64_t n = 0; n < n_count; n++) {
            double sum = nl_at_or_zero(&args->bias, n);
            for (int64_t k = 0; k < k_count; k++)
                sum += nl_get(&args->x, m, k) * nl_get(&args->weight, n, k);
            if (args->pre.data)
                nl_put(&args->pre, m, n, sum);
            sum = nl_reference_activation(nl_epilogue_activation(args->epilogue), sum);
            nl_put(&args->y, m, n, sum);
        }
    return NL_OK;
}
