/* SPDX-License-Identifier: MIT */
/* Sums and outer products of feature rows, which covariances are made of. */
#include "reference.h"

nl_status nl_reference_scatter_matrix(nl_device *device, const nl_scatter_matrix_args *args)
{
    int64_t rows = args->x.shape[0], size = args->x.shape[1];
    double *scatter = args->scatter.data, *sums = args->sums.data;
    (void)device;
    for (int64_t row = 0; row < rows; row++)
        for (int64_t i = 0; i < size; i++) {
            double from_shift = nl_get(&args->x, row, i) - nl_at(&args->shift, i);
            sums[i] += from_shift;
            for (int64_t j = i; j < size; j++)
                scatter[i * size + j] +=
                    from_shift * (nl_get(&args->x, row, j) - nl_at(&args->shift, j));
        }
    return NL_OK;
}
