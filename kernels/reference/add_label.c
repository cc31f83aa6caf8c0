/* SPDX-License-Identifier: MIT */
/* Time embedding plus the label's row of the table, plus a small product for the crop, then SiLU. */
#include "reference.h"

/* time [B or 1, D], table [classes + 1, D], labels [B], crop [B or 1, K], crop_weight [D, K] -> c, y [B, D] */
nl_status nl_reference_add_label(nl_device *device, const nl_add_label_args *args)
{
    const int32_t *labels = args->labels.data;
    (void)device;
    for (int64_t image = 0; image < args->y.shape[0]; image++)
        for (int64_t i = 0; i < args->y.shape[1]; i++) {
            double c = nl_get(&args->time, args->time.shape[0] == 1 ? 0 : image, i) +
                       nl_get(&args->table, labels[image], i);
            for (int64_t k = 0; args->crop.data && k < args->crop.shape[1]; k++)
                c += nl_get(&args->crop, args->crop.shape[0] == 1 ? 0 : image, k) *
                     nl_get(&args->crop_weight, i, k);
            if (args->c.data)
                nl_put(&args->c, image, i, c);
            nl_put(&args->y, image, i, nl_silu(c));
        }
    return NL_OK;
}
