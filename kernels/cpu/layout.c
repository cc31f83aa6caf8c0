/* SPDX-License-Identifier: MIT */
/* NCHW to NHWC and back, scaled and shifted on the way. */
#include "feature_maps.h"

enum { TILE = 16 }; /* pixels and channels of a transposed tile */

/* A tile of x [rows, columns] -> y [columns, rows] = scale x + shift, from element `start` of both on. */
NL_INLINE void transpose_tile(bool half_x, bool half_y, const nl_layout_args *args, int64_t start,
                              int64_t rows, int64_t columns, int64_t row, int64_t column)
{
    int64_t row_end = NL_MIN(row + TILE, rows), column_end = NL_MIN(column + TILE, columns);
    const void *x = args->x.data;
    void *restrict y = args->y.data;
    for (int64_t c = column; c < column_end; c++)
        for (int64_t r = row; r < row_end; r++)
            nl_put_element(half_y, y, start + c * rows + r,
                           args->scale * nl_get_element(half_x, x, start + r * columns + c) +
                               args->shift);
}

NL_INLINE void tile_from(bool half_x, const nl_layout_args *args, int64_t start, int64_t rows,
                         int64_t columns, int64_t row, int64_t column)
{
    if (args->y.dtype == NL_BF16)
        transpose_tile(half_x, true, args, start, rows, columns, row, column);
    else
        transpose_tile(half_x, false, args, start, rows, columns, row, column);
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
        int64_t pixel = i % strips * TILE;
        for (int64_t c = 0; c < channels; c += TILE)
            NL_FOR_HALF(args->x.dtype == NL_BF16, tile_from, args, i / strips * size, rows, columns,
                        args->to_nhwc ? c : pixel, args->to_nhwc ? pixel : c);
    }
    return NL_OK;
}
