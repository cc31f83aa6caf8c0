/* SPDX-License-Identifier: MIT */
/* Gradients of a linear layer, by data and by weight. */
#include "reference.h"

/* dy [M, N], weight [N, K], pre [M, K] -> dx, x [M, K]; dbias [K] is added to */
nl_status nl_reference_linear_backward_data(nl_device *device,
                                            const nl_linear_backward_data_args *args)
{
    int64_t m_count = args->dy.shape[0], n_count = args->dy.shape[1];
    (void)device;
    for (int64_t m = 0; m < m_count; m++)
        for (int64_t k = 0; k < args->weight.shape[1]; k++) {
            double sum = 0;
            for (int64_t n = 0; n < n_count; n++)
                sum += nl_get(&args->dy, m, n) * nl_get(&args->weight, n, k);
            if (args->pre.data)
                sum *= nl_reference_activation_slope(nl_epilogue_activation(args->epilogue),
                                                     nl_get(&args->pre, m, k));
            nl_put(&args->dx, m, k, sum);
            if (args->x.data)
                nl_put(&args->x, m, k,
                       nl_reference_activation(nl_epilogue_activation(args->epilogue),
                                               nl_get(&args->pre, m, k)));
        }
    nl_reference_column_sums(&args->dx, &args->dbias);
    return NL_OK;
}

/* dy [M, N], x [M, K]; dweight [N, K] and dbias [N] are added to */
nl_status nl_reference_linear_backward_weight(nl_device *device,
                                              const nl_linear_backward_weight_args *args)
{
    int64_t m_count = args->dy.shape[0];
    (void)device;
    for (int64_t n = 0; n < args->dy.shape[1]; n++) {
        for (int64_t k = 0; k < args->x.shape[1]; k++) {
            double sum = 0;
            for (int64_t m = 0; m < m_count; m++)
                sum += nl_get(&args->dy, m, n) * nl_get(&args->x, m, k);
            nl_add(&args->dweight, n, k, sum);
        }
    }
    nl_reference_column_sums(&args->dy, &args->dbias);
    return NL_OK;
}
