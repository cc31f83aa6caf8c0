/* SPDX-License-Identifier: MIT */
/* Convolutions by oneDNN, also of doubled pictures and into strided pixels. */
#include "nl_cpu.h"
#include "vector_math.h"

#include <string.h>

/* Rows of `width` floats from `from` to rows that are y's pixels. */
static void spread(nl_device *device, const float *from, const nl_tensor *y)
{
    int64_t width = y->shape[3], pixels = nl_tensor_count(y) / width;
#pragma omp parallel for num_threads(nl_cpu_team(device, pixels *width)) schedule(static)
    for (int64_t pixel = 0; pixel < pixels; pixel++)
        memcpy(nl_cpu_row_out(y, pixel), from + pixel * width, (size_t)width * sizeof(float));
}

static void halve(nl_device *device, const float *from, int64_t count, uint16_t *to)
{
    enum { PIECE = 4096 };
#pragma omp parallel for num_threads(nl_cpu_team(device, count)) schedule(static)
    for (int64_t first = 0; first < count; first += PIECE)
        nl_to_bf16(from + first, NL_MIN(PIECE, count - first), to + first);
}

/* x [B, H, W, C], weight [O, C, kh, kw] -> y [B, H', W', O]. oneDNN has no fast convolution into
 * strided pixels: they are copied there. With weights of bf16, on a device that computes in that, x becomes bf16 too. */
nl_status NL_CPU(conv2d)(nl_device *device, const nl_conv2d_args *args)
{
    nl_dnnl *dnnl = ((nl_cpu_state *)device->state)->dnnl;
    nl_conv2d_args apart = *args;
    if (args->doubled.data) {
        NL_CHECK(NL_CPU(upsample2x)(device, &(nl_upsample2x_args){args->x, args->doubled}));
        apart.x = args->doubled;
        apart.doubled.data = NULL;
        return NL_CPU(conv2d)(device, &apart);
    }
    bool half = args->weight.dtype == NL_BF16 && device->dtype == NL_BF16 && nl_dnnl_has_bf16();
    bool spreads = !nl_tensor_contiguous(&args->y);
    int64_t count = nl_tensor_count(&args->x), x_bytes = half ? nl_cpu_pad(count * 2, 64) : 0;
    void *scratch;
    NL_CHECK(nl_cpu_scratch(device, x_bytes + (spreads ? nl_tensor_bytes(&args->y) : 0), &scratch));
    if (half) {
        halve(device, args->x.data, count, scratch);
        apart.x = nl_tensor_of(scratch, NL_BF16, 4, args->x.shape);
    }
    if (spreads)
        apart.y = nl_tensor_of((char *)scratch + x_bytes, NL_F32, 4, args->y.shape);
    NL_CHECK(nl_dnnl_conv2d(dnnl, &apart));
    if (spreads)
        spread(device, apart.y.data, &args->y);
    return NL_OK;
}
