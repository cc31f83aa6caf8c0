/* SPDX-License-Identifier: MIT */
/* Normal numbers by (seed, image, stream, element). */
#include "nl_random.h"
#include "reference.h"

/* y [B, ...] */
nl_status nl_reference_normal(nl_device *device, const nl_normal_args *args)
{
    int64_t images = args->y.shape[0], count = nl_tensor_count(&args->y);
    (void)device;
    for (int64_t i = 0; i < count; i++) {
        int64_t image = i / (count / images), element = i % (count / images);
        float normals[4];
        nl_philox_normal4(args->seed, (uint64_t)args->images[image], args->stream,
                          (uint64_t)element, normals);
        nl_put(&args->y, 0, i, normals[element % 4]);
    }
    return NL_OK;
}
