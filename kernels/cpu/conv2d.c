/* SPDX-License-Identifier: MIT */
/* Convolutions by oneDNN, also of doubled pictures and into strided pixels. */
#include "nl_cpu.h"

#include <string.h>

/* Rows of `width` elements from `from` to rows that are y's pixels. */
static void spread(nl_device *device, const char *from, const nl_tensor *y)
{
    int64_t width = y->shape[3], pixels = nl_tensor_count(y) / width;
    int64_t size = nl_dtype_size(y->dtype);
#pragma omp parallel for num_threads(nl_cpu_team(device, pixels *width)) schedule(static)
    for (int64_t pixel = 0; pixel < pixels; pixel++)
        memcpy((char *)y->data + pixel * y->row_stride * size, from + pixel * width * size,
               (size_t)(width * size));
}

/* x [B, H, W, C], weight [O, C, kh, kw] -> y [B, H', W', O]. oneDNN has no fast convolution into strided pixels: they are
 * copied there. */
nl_status NL_CPU(conv2d)(nl_device *device, const nl_conv2d_args *args)
{
    nl_conv2d_args apart = *args;
    if (args->doubled.data) {
        NL_CHECK(NL_CPU(upsample2x)(device, &(nl_upsample2x_args){args->x, args->doubled}));
        apart.x = args->doubled;
        apart.doubled.data = NULL;
    }
    bool spreads = !nl_tensor_contiguous(&args->y);
    if (spreads) {
        void *scratch;
        NL_CHECK(nl_cpu_scratch(device, nl_tensor_bytes(&args->y), &scratch));
        apart.y = nl_tensor_of(scratch, args->y.dtype, 4, args->y.shape);
    }
    NL_CHECK(nl_dnnl_conv2d(((nl_cpu_state *)device->state)->dnnl, &apart));
    if (spreads)
        spread(device, apart.y.data, &args->y);
    return NL_OK;
}
