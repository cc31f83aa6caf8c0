/* SPDX-License-Identifier: MIT */
/* Convolutions by oneDNN, also of doubled pictures and into strided pixels. */
#include "nl_cpu.h"

#include <string.h>

/* Rows of `width` floats from `from` to rows that are y's pixels. */
static void spread(nl_device *device, const float *from, const nl_tensor *y)
{
    int64_t width = y->shape[3], pixels = nl_tensor_count(y) / width;
#pragma omp parallel for num_threads(nl_cpu_team(device, pixels *width)) schedule(static)
    for (int64_t pixel = 0; pixel < pixels; pixel++)
        memcpy(nl_cpu_row_out(y, pixel), from + pixel * width, (size_t)width * sizeof(float));
}

/* x [B, H, W, C], weight [O, C, kh, kw] -> y [B, H', W', O]. oneDNN has no fast convolution into
 * strided pixels: they are copied there. */
nl_status NL_CPU(conv2d)(nl_device *device, const nl_conv2d_args *args)
{
    nl_dnnl *dnnl = ((nl_cpu_state *)device->state)->dnnl;
    nl_conv2d_args apart = *args;
    void *scratch;
    nl_status status;
    if (args->doubled.data) {
        NL_TRY(NL_CPU(upsample2x)(device, &(nl_upsample2x_args){args->x, args->doubled}));
        apart.x = args->doubled;
        apart.doubled.data = NULL;
        return NL_CPU(conv2d)(device, &apart);
    }
    if (nl_tensor_contiguous(&args->y))
        return nl_dnnl_conv2d(dnnl, args);
    NL_TRY(nl_cpu_scratch(device, nl_tensor_bytes(&args->y), &scratch));
    apart.y = nl_tensor_of(scratch, NL_F32, 4, args->y.shape);
    NL_TRY(nl_dnnl_conv2d(dnnl, &apart));
    spread(device, scratch, &args->y);
cleanup:
    return status;
}
