/* SPDX-License-Identifier: MIT */
/* NCHW to NHWC and back, scaled and shifted on the way. */
#include "nl_cpu.h"

enum { TILE = 16 }; /* pixels and channels of a transposed tile */

/* A tile of x [rows, columns] -> y [columns, rows] = scale x + shift */
static void transpose_tile(const nl_layout_args *args, const float *x, float *restrict y,
                           int64_t rows, int64_t columns, int64_t row, int64_t column)
{
    int64_t row_end = NL_MIN(row + TILE, rows), column_end = NL_MIN(column + TILE, columns);
    for (int64_t c = column; c < column_end; c++)
        for (int64_t r = row; r < row_end; r++)
            y[c * rows + r] = args->scale * x[r * columns + c] + args->shift;
}

/* x [B, C, H, W] -> y [B, H, W, C], or the other way round */
nl_status NL_CPU(layout)(nl_device *device, const nl_layout_args *args)
{
    const nl_tensor *planar = args->to_nhwc ? &args->x : &args->y;
    int64_t channels = planar->shape[1], pixels = planar->shape[2] * planar->shape[3];
    int64_t rows = args->to_nhwc ? channels : pixels, columns = args->to_nhwc ? pixels : channels;
    int64_t strips = (pixels + TILE - 1) / TILE, size = channels * pixels;
    int64_t images = planar->shape[0];
#pragma omp parallel for num_threads(nl_cpu_team(device, images *size)) schedule(static)
    for (int64_t i = 0; i < images * strips; i++) {
        const float *x = (const float *)args->x.data + i / strips * size;
        float *y = (float *)args->y.data + i / strips * size;
        int64_t pixel = i % strips * TILE;
        for (int64_t c = 0; c < channels; c += TILE)
            transpose_tile(args, x, y, rows, columns, args->to_nhwc ? c : pixel,
                           args->to_nhwc ? pixel : c);
    }
    return NL_OK;
}
