/* SPDX-License-Identifier: MIT */
/* The numbers of one sample. */
#include <string.h>

#include "data.h"

/* rgb [H, W, 3] -> x [3, H, W] in [-1, 1] */
static void read_pixels(const uint8_t *rgb, int height, int width, bool flipped, float *x)
{
    int64_t plane = (int64_t)height * width;
    for (int row = 0; row < height; row++, rgb += 3 * (int64_t)width, x += width)
        for (int c = 0; c < 3; c++) {
            float *to = x + c * plane;
            if (flipped)
                for (int i = 0; i < width; i++)
                    to[i] = (float)rgb[3 * (width - 1 - i) + c] / 127.5f - 1;
            else
                for (int i = 0; i < width; i++)
                    to[i] = (float)rgb[3 * i + c] / 127.5f - 1;
        }
}

static bool all_finite(const float *x, int64_t count)
{
    uint32_t bad = 0;
    for (int64_t i = 0; i < count; i++) {
        uint32_t bits;
        memcpy(&bits, x + i, sizeof(bits));
        bad |= (bits & 0x7F800000) == 0x7F800000;
    }
    return !bad;
}

nl_status nl_dataset_read(const nl_dataset *dataset, int64_t index, bool flipped, float *x)
{
    const nl_dataset_info *info = &dataset->info;
    nl_context *context = dataset->context;
    int64_t size;
    if (index < 0 || index >= info->count)
        return nl_fail(context, NL_ERROR_USAGE, "%s: sample %lld of %lld", dataset->path,
                       (long long)index, (long long)info->count);
    if (flipped && !info->flips)
        return nl_fail(context, NL_ERROR_USAGE,
                       "%s: was encoded without mirrored pictures: encode again without --no-flips",
                       dataset->path);
    const uint8_t *bytes = nl_dataset_bytes(dataset, index, flipped, &size);
    if (info->kind == NL_DATA_PIXELS) {
        read_pixels(bytes, info->height, info->width, flipped, x);
        return NL_OK;
    }
    nl_convert_to_float(bytes, NL_F16, dataset->elements, x);
    if (all_finite(x, dataset->elements))
        return NL_OK;
    return nl_fail(context, NL_ERROR_INPUT,
                   "%s: sample %lld is not finite: the file is damaged, encode again",
                   dataset->path, (long long)index);
}
