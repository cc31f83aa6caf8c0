/* SPDX-License-Identifier: MIT */
/* qk_norm and its gradients. */
#include "reference.h"

/* 1 / sqrt(mean of x^2 + eps) over columns [first, first + size) of a row. */
static double inverse_rms(const nl_tensor *x, int64_t row, int64_t first, int64_t size, double eps)
{
    double squares = 0;
    for (int64_t i = first; i < first + size; i++)
        squares += nl_get(x, row, i) * nl_get(x, row, i);
    return 1 / sqrt(squares / (double)size + eps);
}

/* x [M, 2 h d], q | k, in place; raw the same */
nl_status nl_reference_qk_norm(nl_device *device, const nl_qk_norm_args *args)
{
    int64_t columns = args->x.shape[1], size = args->q_weight.shape[0];
    (void)device;
    for (int64_t m = 0; m < args->x.shape[0]; m++)
        for (int64_t first = 0; first < columns; first += size) {
            const nl_tensor *weight = first < columns / 2 ? &args->q_weight : &args->k_weight;
            double scale = inverse_rms(&args->x, m, first, size, args->eps);
            for (int64_t i = 0; i < size; i++) {
                double x = nl_get(&args->x, m, first + i);
                if (args->raw.data)
                    nl_put(&args->raw, m, first + i, x);
                nl_put(&args->x, m, first + i, x * scale * nl_at(weight, i));
            }
        }
    return NL_OK;
}

/* One head: dx = scale (d - n mean(d n)), d = w dx, n = scale x; dweight [d] += dx n. */
static void head_backward(const nl_qk_norm_backward_args *args, int64_t m, int64_t first,
                          const nl_tensor *weight, double *dweight)
{
    int64_t size = weight->shape[0];
    double scale = inverse_rms(&args->raw, m, first, size, args->eps), product = 0;
    for (int64_t i = 0; i < size; i++) {
        double normal = scale * nl_get(&args->raw, m, first + i);
        double d = nl_get(&args->dx, m, first + i);
        dweight[i] += d * normal;
        product += d * nl_at(weight, i) * normal;
    }
    for (int64_t i = 0; i < size; i++) {
        double normal = scale * nl_get(&args->raw, m, first + i);
        double d = nl_get(&args->dx, m, first + i) * nl_at(weight, i);
        nl_put(&args->dx, m, first + i, scale * (d - normal * product / (double)size));
    }
}

/* raw, dx [M, 2 h d]; dq_weight and dk_weight [d] are added to */
nl_status nl_reference_qk_norm_backward(nl_device *device, const nl_qk_norm_backward_args *args)
{
    nl_status status = NL_OK;
    int64_t columns = args->raw.shape[1], size = args->q_weight.shape[0];
    double *sums = NULL;
    NL_TRY(NL_NEW_ZEROS(device->context, "gradients of weights", 2 * size, &sums));
    for (int64_t m = 0; m < args->raw.shape[0]; m++)
        for (int64_t first = 0; first < columns; first += size) {
            bool query = first < columns / 2;
            head_backward(args, m, first, query ? &args->q_weight : &args->k_weight,
                          query ? sums : sums + size);
        }
    for (int64_t i = 0; i < size; i++) {
        nl_add(&args->dq_weight, 0, i, sums[i]);
        nl_add(&args->dk_weight, 0, i, sums[size + i]);
    }
cleanup:
    nl_free(device->context, sums);
    return status;
}
