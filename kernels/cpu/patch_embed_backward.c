/* SPDX-License-Identifier: MIT */
/* Gradients of the patch embedding, as a linear layer over patches. */
#include "nl_cpu.h"

/* Copies the patch of one token between x and patch [C * p * p]. */
static void move_patch(const nl_patch_embed_backward_args *args, int64_t token, bool to_x,
                       float *patches)
{
    const int64_t *x = args->x.shape; /* B, C, H, W */
    int64_t patch = args->dweight.shape[3], columns = x[3] / patch;
    int64_t tokens = x[2] / patch * columns, image = token / tokens;
    int64_t top = token % tokens / columns * patch, left = token % columns * patch;
    for (int64_t c = 0; c < x[1]; c++)
        for (int64_t u = 0; u < patch; u++) {
            int64_t line = (image * x[1] + c) * x[2] + top + u;
            float *at = patches + (c * patch + u) * patch;
            for (int64_t v = 0; v < patch; v++) {
                if (to_x)
                    nl_cpu_row_out(&args->dx, line)[left + v] = at[v];
                else
                    at[v] = nl_cpu_row(&args->x, line)[left + v];
            }
        }
}

/* x [B, C, H, W], weight [D, C, p, p], dtokens [B * T, D] -> dx; dweight and dbias are added to. As a linear layer
 * over patches. */
nl_status NL_CPU(patch_embed_backward)(nl_device *device, const nl_patch_embed_backward_args *args)
{
    int64_t rows = args->dtokens.shape[0], size = args->dtokens.shape[1];
    int64_t taps = nl_tensor_count(&args->dweight) / size;
    const int64_t shape[] = {size, taps};
    float *memory = NULL;
    nl_status status = NL_OK;
    NL_TRY(NL_NEW_ARRAY(device->context, "patches", rows * taps, &memory));
    nl_tensor patches = nl_tensor_of(memory, NL_F32, 2, (int64_t[]){rows, taps});
#pragma omp parallel for num_threads(nl_cpu_team(device, rows *taps)) schedule(static)
    for (int64_t token = 0; token < rows; token++)
        move_patch(args, token, false, nl_cpu_row_out(&patches, token));
    NL_TRY(NL_CPU(linear_backward_weight)(
        device, &(nl_linear_backward_weight_args){
                    .dy = args->dtokens,
                    .x = patches,
                    .dweight = nl_tensor_reshape(&args->dweight, 2, shape),
                    .dbias = args->dbias,
                }));
    if (!args->dx.data)
        goto cleanup;
    NL_TRY(NL_CPU(linear_backward_data)(device,
                                        &(nl_linear_backward_data_args){
                                            .dy = args->dtokens,
                                            .weight = nl_tensor_reshape(&args->weight, 2, shape),
                                            .dx = patches,
                                        }));
#pragma omp parallel for num_threads(nl_cpu_team(device, rows *taps)) schedule(static)
    for (int64_t token = 0; token < rows; token++)
        move_patch(args, token, true, nl_cpu_row_out(&patches, token));
cleanup:
    nl_free(device->context, memory);
    return status;
}
