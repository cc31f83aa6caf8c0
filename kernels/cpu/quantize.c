/* SPDX-License-Identifier: MIT */
/* An activation, and its rows in F8. */
#include "activation.h"
#include "f8.h"

/* x [M, K] -> y F8 [M, K] */
nl_status NL_CPU(quantize)(nl_device *device, const nl_quantize_args *args)
{
    int64_t rows = args->x.shape[0], size = args->x.shape[1];
    float *room;
    nl_status status = nl_cpu_f8_room(device, &args->y, &room);
    if (status != NL_OK)
        return status;
#pragma omp parallel for num_threads(nl_cpu_team(device, rows *size)) schedule(static)
    for (int64_t row = 0; row < rows; row++) {
        float *values = nl_cpu_row_before_f8(&args->y, row, room);
        nl_apply_activation(nl_epilogue_activation(args->activation), nl_cpu_row(&args->x, row),
                            size, values);
        nl_cpu_put_f8(&args->y, row, values);
    }
    return NL_OK;
}
