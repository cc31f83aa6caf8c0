/* SPDX-License-Identifier: MIT */
/* qk_norm and its gradients. */
#include "reference.h"

/* What a head's elements are normalised by: x - mean times scale; the mean is 0 of RMS. */
typedef struct nl_moments {
    double mean, scale;
} nl_moments;

static nl_moments moments_of(const nl_tensor *x, int64_t row, int64_t first, int64_t size,
                             nl_norm norm, double eps)
{
    double sum = 0, squares = 0;
    for (int64_t i = first; i < first + size && norm == NL_NORM_LAYER; i++)
        sum += nl_get(x, row, i);
    double mean = sum / (double)size;
    for (int64_t i = first; i < first + size; i++)
        squares += (nl_get(x, row, i) - mean) * (nl_get(x, row, i) - mean);
    return (nl_moments){mean, 1 / sqrt(squares / (double)size + eps)};
}

/* x [M, 2 h d], q | k, in place; raw the same */
nl_status nl_reference_qk_norm(nl_device *device, const nl_qk_norm_args *args)
{
    int64_t columns = args->x.shape[1], size = args->q_weight.shape[0];
    (void)device;
    for (int64_t m = 0; m < args->x.shape[0]; m++)
        for (int64_t first = 0; first < columns; first += size) {
            bool query = first < columns / 2;
            const nl_tensor *weight = query ? &args->q_weight : &args->k_weight;
            const nl_tensor *bias = query ? &args->q_bias : &args->k_bias;
            nl_moments of = moments_of(&args->x, m, first, size, args->norm, args->eps);
            for (int64_t i = 0; i < size; i++) {
                double x = nl_get(&args->x, m, first + i);
                if (args->raw.data)
                    nl_put(&args->raw, m, first + i, x);
                nl_put(&args->x, m, first + i,
                       (x - of.mean) * of.scale * nl_at(weight, i) +
                           (bias->data ? nl_at(bias, i) : 0));
            }
        }
    return NL_OK;
}

/* One head: dx = scale (d - mean(d) - n mean(d n)), d = w dx, n = scale (x - mean), without mean(d) of RMS;
 * sums [2, d] += dx n, dx. */
static void head_backward(const nl_qk_norm_backward_args *args, int64_t m, int64_t first,
                          const nl_tensor *weight, double *sums)
{
    int64_t size = weight->shape[0];
    nl_moments of = moments_of(&args->raw, m, first, size, args->norm, args->eps);
    double product = 0, plain = 0;
    for (int64_t i = 0; i < size; i++) {
        double normal = of.scale * (nl_get(&args->raw, m, first + i) - of.mean);
        double d = nl_get(&args->dx, m, first + i);
        sums[i] += d * normal;
        sums[size + i] += d;
        product += d * nl_at(weight, i) * normal;
        plain += args->norm == NL_NORM_LAYER ? d * nl_at(weight, i) : 0;
    }
    for (int64_t i = 0; i < size; i++) {
        double normal = of.scale * (nl_get(&args->raw, m, first + i) - of.mean);
        double d = nl_get(&args->dx, m, first + i) * nl_at(weight, i);
        nl_put(&args->dx, m, first + i, of.scale * (d - (plain + normal * product) / (double)size));
    }
}

/* raw, dx [M, 2 h d]; the gradients of weights and biases [d] are added to */
nl_status nl_reference_qk_norm_backward(nl_device *device, const nl_qk_norm_backward_args *args)
{
    nl_status status = NL_OK;
    int64_t columns = args->raw.shape[1], size = args->q_weight.shape[0];
    double *sums = NULL; /* of q, then of k */
    NL_TRY(NL_NEW_ZEROS(device->context, "gradients of weights", 4 * size, &sums));
    for (int64_t m = 0; m < args->raw.shape[0]; m++)
        for (int64_t first = 0; first < columns; first += size) {
            bool query = first < columns / 2;
            head_backward(args, m, first, query ? &args->q_weight : &args->k_weight,
                          query ? sums : sums + 2 * size);
        }
    for (int64_t i = 0; i < size; i++) {
        nl_add(&args->dq_weight, 0, i, sums[i]);
        nl_add(&args->dk_weight, 0, i, sums[2 * size + i]);
        if (!args->dq_bias.data)
            continue;
        nl_add(&args->dq_bias, 0, i, sums[size + i]);
        nl_add(&args->dk_bias, 0, i, sums[3 * size + i]);
    }
cleanup:
    nl_free(device->context, sums);
    return status;
}
