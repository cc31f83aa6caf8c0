/* SPDX-License-Identifier: MIT */
/* Gradients of the patch embedding, patch by patch. */
#include "reference.h"

/* Place of element `tap` (c, u, v) of a token's patch: row and column of x seen as a matrix [B C H, W]. */
static void locate(const nl_patch_embed_backward_args *args, int64_t token, int64_t tap,
                   int64_t *row, int64_t *column)
{
    const int64_t *x = args->x.shape; /* B, C, H, W */
    int64_t patch = args->dweight.shape[3], columns = x[3] / patch;
    int64_t tokens = x[2] / patch * columns, image = token / tokens;
    int64_t c = tap / (patch * patch), u = tap / patch % patch, v = tap % patch;
    *row = (image * x[1] + c) * x[2] + token % tokens / columns * patch + u;
    *column = token % columns * patch + v;
}

/* x [B, C, H, W], weight [D, C, p, p], dtokens [B * T, D] -> dx; dweight and dbias are added to */
nl_status nl_reference_patch_embed_backward(nl_device *device,
                                            const nl_patch_embed_backward_args *args)
{
    int64_t rows = args->dtokens.shape[0], size = args->dtokens.shape[1], row, column;
    int64_t taps = nl_tensor_count(&args->dweight) / size;
    (void)device;
    for (int64_t i = 0; i < size; i++) {
        double bias = 0;
        for (int64_t token = 0; token < rows; token++)
            bias += nl_get(&args->dtokens, token, i);
        nl_add(&args->dbias, 0, i, bias);
        for (int64_t tap = 0; tap < taps; tap++) {
            double sum = 0;
            for (int64_t token = 0; token < rows; token++) {
                locate(args, token, tap, &row, &column);
                sum += nl_get(&args->dtokens, token, i) * nl_get(&args->x, row, column);
            }
            nl_add(&args->dweight, 0, i * taps + tap, sum);
        }
    }
    for (int64_t token = 0; args->dx.data && token < rows; token++)
        for (int64_t tap = 0; tap < taps; tap++) {
            double sum = 0;
            for (int64_t i = 0; i < size; i++)
                sum += nl_get(&args->dtokens, token, i) * nl_at(&args->weight, i * taps + tap);
            locate(args, token, tap, &row, &column);
            nl_put(&args->dx, row, column, sum);
        }
    return NL_OK;
}
