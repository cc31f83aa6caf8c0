/* SPDX-License-Identifier: MIT */
/* The normalisation and the gate behind gated linear attention, and their gradients. */
#include "reference.h"

/* 1 / sqrt(mean x^2 + eps) of `size` elements from column `first` on */
static double inverse_rms(const nl_tensor *x, int64_t row, int64_t first, int64_t size, float eps)
{
    double squares = 0;
    for (int64_t i = 0; i < size; i++)
        squares += nl_get(x, row, first + i) * nl_get(x, row, first + i);
    return 1 / sqrt(squares / (double)size + eps);
}

/* x, g [M, h d], weight [d] -> y [M, h d] */
nl_status nl_reference_head_norm_gate(nl_device *device, const nl_head_norm_gate_args *args)
{
    int64_t size = args->weight.shape[0];
    (void)device;
    for (int64_t row = 0; row < args->x.shape[0]; row++)
        for (int64_t first = 0; first < args->x.shape[1]; first += size) {
            double scale = inverse_rms(&args->x, row, first, size, args->eps);
            for (int64_t i = 0; i < size; i++)
                nl_put(&args->y, row, first + i,
                       nl_at(&args->weight, i) * scale * nl_get(&args->x, row, first + i) *
                           nl_silu(nl_get(&args->g, row, first + i)));
        }
    return NL_OK;
}

/* One head of one row; dx may be dy. */
static void head_backward(const nl_head_norm_gate_backward_args *args, int64_t row, int64_t first)
{
    int64_t size = args->weight.shape[0];
    double scale = inverse_rms(&args->x, row, first, size, args->eps), product = 0;
    for (int64_t i = 0; i < size; i++) {
        double g = nl_get(&args->g, row, first + i), n = scale * nl_get(&args->x, row, first + i);
        double dy = nl_get(&args->dy, row, first + i), weight = nl_at(&args->weight, i);
        product += dy * nl_silu(g) * weight * n;
        nl_add(&args->dweight, 0, i, dy * nl_silu(g) * n);
        nl_put(&args->dg, row, first + i,
               dy * weight * n * nl_reference_activation_slope(NL_ACT_SILU, g));
        if (args->y.data)
            nl_put(&args->y, row, first + i, weight * n * nl_silu(g));
    }
    product /= (double)size;
    for (int64_t i = 0; i < size; i++) {
        double g = nl_get(&args->g, row, first + i), n = scale * nl_get(&args->x, row, first + i);
        double dy = nl_get(&args->dy, row, first + i);
        nl_put(&args->dx, row, first + i,
               scale * (dy * nl_silu(g) * nl_at(&args->weight, i) - n * product));
    }
}

/* x, g, dy [M, h d], weight [d] -> dx, dg, y [M, h d]; dweight [d] is added to */
nl_status nl_reference_head_norm_gate_backward(nl_device *device,
                                               const nl_head_norm_gate_backward_args *args)
{
    (void)device;
    for (int64_t row = 0; row < args->x.shape[0]; row++)
        for (int64_t first = 0; first < args->x.shape[1]; first += args->weight.shape[0])
            head_backward(args, row, first);
    return NL_OK;
}
