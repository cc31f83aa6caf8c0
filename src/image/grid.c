/* SPDX-License-Identifier: MIT */
/* Several pictures of one size in one. */
#include <string.h>

#include "pixels.h"

nl_status nl_image_grid(nl_context *context, const uint8_t *const *pictures, int count, int height,
                        int width, int rows, int columns, int gap, nl_image *grid)
{
    *grid = (nl_image){0};
    const int limit = 1 << 20;
    if (count < 0 || rows < 1 || rows > limit || columns < 1 || columns > limit || gap < 0 ||
        gap > limit || height < 1 || height > limit || width < 1 || width > limit ||
        (int64_t)rows * columns < count)
        return nl_fail(context, NL_ERROR_USAGE,
                       "a grid of %d x %d with a gap of %d for %d pictures of %d x %d pixels", rows,
                       columns, gap, count, width, height);
    int64_t grid_height = (int64_t)rows * height + (int64_t)(rows - 1) * gap;
    int64_t grid_width = (int64_t)columns * width + (int64_t)(columns - 1) * gap;
    nl_status status =
        nl_image_check_size(context, NL_ERROR_USAGE, "the grid", grid_height, grid_width);
    if (status == NL_OK)
        status =
            NL_NEW_SIZED(context, "a grid of pictures", grid_height * grid_width, 3, &grid->rgb);
    if (status != NL_OK)
        return status;
    grid->height = (int)grid_height;
    grid->width = (int)grid_width;
    memset(grid->rgb, 255, (size_t)(grid_height * grid_width * 3));
    for (int i = 0; i < count; i++) {
        if (!pictures[i])
            continue;
        int64_t top = (int64_t)(i / columns) * (height + gap);
        int64_t left = (int64_t)(i % columns) * (width + gap);
        for (int64_t y = 0; y < height; y++)
            memcpy(grid->rgb + ((top + y) * grid_width + left) * 3,
                   pictures[i] + y * (int64_t)width * 3, (size_t)width * 3);
    }
    return NL_OK;
}
