/* SPDX-License-Identifier: MIT */
/* Time embedding plus the label's row of the table and a small product for the crop, and the SiLU that every reader of it begins with. */
#include "nl_cpu.h"
#include "vector_math.h"

/* y [D] += weight [D, K] crop [K] */
static void add_crop(const nl_tensor *weight, const float *crop, float *y)
{
    for (int64_t i = 0; i < weight->shape[0]; i++) {
        const float *row = nl_cpu_row(weight, i);
        for (int64_t k = 0; k < weight->shape[1]; k++)
            y[i] += crop[k] * row[k];
    }
}

/* time [B or 1, D], table [classes + 1, D], labels [B], crop [B or 1, K], crop_weight [D, K] -> c, y [B, D] */
nl_status NL_CPU(add_label)(nl_device *device, const nl_add_label_args *args)
{
    const int32_t *labels = args->labels.data;
    int64_t size = args->y.shape[1];
    (void)device;
    for (int64_t image = 0; image < args->y.shape[0]; image++) {
        const float *time = nl_cpu_row(&args->time, args->time.shape[0] == 1 ? 0 : image);
        const char *label = (const char *)args->table.data + labels[image] *
                                                                 args->table.row_stride *
                                                                 nl_dtype_size(args->table.dtype);
        float *y = nl_cpu_row_out(&args->y, image);
        nl_convert_to_float(label, args->table.dtype, size, y);
#pragma omp simd
        for (int64_t i = 0; i < size; i++)
            y[i] += time[i];
        if (args->crop.data)
            add_crop(&args->crop_weight,
                     nl_cpu_row(&args->crop, args->crop.shape[0] == 1 ? 0 : image), y);
        if (args->c.data) {
            float *c = nl_cpu_row_out(&args->c, image);
            for (int64_t i = 0; i < size; i++)
                c[i] = y[i];
        }
#pragma omp simd
        for (int64_t i = 0; i < size; i++)
            y[i] = nlv_silu(y[i]);
    }
    return NL_OK;
}
