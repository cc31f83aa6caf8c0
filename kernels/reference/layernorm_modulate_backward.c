/* SPDX-License-Identifier: MIT */
/* Gradients of the adaptive LayerNorm and of the residual sum before it. */
#include "layernorm.h"

/* What a normalised element is multiplied by. */
static double factor(const nl_layernorm_modulate_backward_args *args, int64_t image, int64_t i)
{
    double weight = args->norm == NL_NORM_RMS ? nl_at(&args->weight, i) : 1;
    return weight * (1 + nl_get(&args->scale, image, i));
}

/* One row: dx += (dn - mean(dn) - n mean(dn n)) / deviation, dn = dy weight (1 + scale), n the normalised x; RMS has no
 * mean(dn). */
static void backward_row(const nl_layernorm_modulate_backward_args *args, int64_t m, double mean,
                         double inverse_deviation)
{
    int64_t size = args->x.shape[1], image = m / args->rows_per_image;
    double sum = 0, product = 0;
    for (int64_t i = 0; i < size; i++) {
        double normal = (nl_get(&args->x, m, i) - mean) * inverse_deviation;
        double dnormal = nl_get(&args->dy, m, i) * factor(args, image, i);
        sum += args->norm == NL_NORM_RMS ? 0 : dnormal;
        product += dnormal * normal;
    }
    for (int64_t i = 0; i < size; i++) {
        double normal = (nl_get(&args->x, m, i) - mean) * inverse_deviation;
        double scale = factor(args, image, i);
        double dnormal = nl_get(&args->dy, m, i) * scale;
        nl_add(&args->dx, m, i,
               (dnormal - sum / size - normal * product / size) * inverse_deviation);
        if (args->branch.data)
            nl_put(&args->dbranch, m, i, nl_get(&args->gate, image, i) * nl_get(&args->dx, m, i));
        if (args->y.data)
            nl_put(&args->y, m, i, normal * scale + nl_get(&args->shift, image, i));
    }
}

/* dshift, dscale, dgate and a share of dbias of one channel: sums over the rows of the image. moments [rows, 2] */
static void sum_image(const nl_layernorm_modulate_backward_args *args, int64_t image, int64_t i,
                      const double *moments)
{
    double shift = 0, scale = 0, gate = 0, bias = 0;
    for (int64_t row = 0; row < args->rows_per_image; row++) {
        int64_t m = image * args->rows_per_image + row;
        double normal = (nl_get(&args->x, m, i) - moments[2 * row]) * moments[2 * row + 1];
        shift += nl_get(&args->dy, m, i);
        scale += nl_get(&args->dy, m, i) * normal;
        if (args->branch.data) {
            gate += nl_get(&args->dx, m, i) * nl_get(&args->branch, m, i);
            bias += nl_get(&args->dbranch, m, i);
        }
    }
    nl_put(&args->dshift, image, i, shift);
    if (args->norm == NL_NORM_RMS) {
        nl_add(&args->dweight, 0, i, scale * (1 + nl_get(&args->scale, image, i)));
        scale *= nl_at(&args->weight, i);
    }
    nl_put(&args->dscale, image, i, scale);
    if (args->branch.data)
        nl_put(&args->dgate, image, i, gate);
    if (args->dbias.data)
        nl_add(&args->dbias, 0, i, bias);
}

/* x, dy, dx, branch [M, D]; gate, shift, scale [M / rows_per_image, D] -> dx, dbranch, y [M, D]; dshift, dscale,
 * dgate [M / rows_per_image, D]; dbias [D] is added to */
nl_status nl_reference_layernorm_modulate_backward(nl_device *device,
                                                   const nl_layernorm_modulate_backward_args *args)
{
    nl_status status = NL_OK;
    double *moments = NULL;
    int64_t rows = args->rows_per_image;
    NL_TRY(NL_NEW_ARRAY(device->context, "moments of rows", 2 * rows, &moments));
    for (int64_t image = 0; image < args->scale.shape[0]; image++) {
        for (int64_t row = 0; row < rows; row++) {
            double *of_row = moments + 2 * row;
            nl_row_moments(&args->x, image * rows + row, args->norm, args->eps, &of_row[0],
                           &of_row[1]);
            backward_row(args, image * rows + row, of_row[0], of_row[1]);
        }
        for (int64_t i = 0; i < args->x.shape[1]; i++)
            sum_image(args, image, i, moments);
    }
cleanup:
    nl_free(device->context, moments);
    return status;
}
