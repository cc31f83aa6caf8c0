/* SPDX-License-Identifier: MIT */
/*
 * Scaling pictures with the very numbers of PIL (Pillow): columns first, then rows, each to bytes; weights
 * as fixed point numbers of 22 bits behind the point.
 *
 *   centre of output i: (i + 1/2) s, s = in / out; window: support max(s, 1) to either side of it;
 *   weight of input j: filter((j - centre + 1/2) / max(s, 1)), normalised in double, then rounded
 *   to 2^-22 away from zero at ties; output = clamp((2^21 + sum of weight byte) >> 22)
 */
#include <math.h>
#include <string.h>

#include "pixels.h"

enum { PRECISION = 22 };

typedef struct nl_filter_kind {
    double (*weight)(double x);
    double support;
} nl_filter_kind;

static double box(double x)
{
    return x > -0.5 && x <= 0.5;
}

/* Keys' cubic convolution, a = -1/2. */
static double bicubic(double x)
{
    const double a = -0.5;
    x = fabs(x);
    if (x < 1)
        return ((a + 2) * x - (a + 3)) * x * x + 1;
    return x < 2 ? (((x - 5) * x + 8) * x - 4) * a : 0;
}

static const nl_filter_kind kinds[] = {
    [NL_FILTER_BOX] = {box, 0.5}, [NL_FILTER_BICUBIC] = {bicubic, 2}};

/* The windows of one axis. */
typedef struct nl_windows {
    int taps;        /* room for weights of one output */
    int *first;      /* [out] */
    int *count;      /* [out] */
    int32_t *weight; /* [out, taps] */
    void *block;
} nl_windows;

static nl_status make_windows(nl_context *context, const nl_filter_kind *kind, int in, int out,
                              nl_windows *windows)
{
    double scale = (double)in / out, spread = fmax(scale, 1), support = kind->support * spread;
    windows->taps = 2 * (int)ceil(support) + 1;
    int64_t per_output = (int64_t)(windows->taps + 2) * (int64_t)sizeof(int32_t);
    int64_t bytes = out * per_output + windows->taps * (int64_t)sizeof(double);
    NL_CHECK(NL_NEW_SIZED(context, "weights of scaling", bytes, 1, &windows->block));
    double *exact = windows->block;
    windows->first = (int *)(exact + windows->taps);
    windows->count = windows->first + out;
    windows->weight = windows->count + out;
    for (int i = 0; i < out; i++) {
        double centre = (i + 0.5) * scale, sum = 0;
        int first = NL_MAX((int)(centre - support + 0.5), 0);
        int end = NL_MIN((int)(centre + support + 0.5), in);
        for (int j = first; j < end; j++)
            sum += exact[j - first] = kind->weight((j - centre + 0.5) * (1 / spread));
        for (int j = 0; j < end - first; j++) {
            double weight = (sum != 0 ? exact[j] / sum : exact[j]) * (1 << PRECISION);
            windows->weight[(int64_t)i * windows->taps + j] =
                (int32_t)(weight < 0 ? weight - 0.5 : weight + 0.5);
        }
        windows->first[i] = first;
        windows->count[i] = end - first;
    }
    return NL_OK;
}

static uint8_t to_byte(int32_t sum)
{
    sum >>= PRECISION;
    return (uint8_t)(sum < 0 ? 0 : sum > 255 ? 255 : sum);
}

/* from [height, in, 3] -> to [height, out, 3] */
static void scale_columns(const nl_windows *windows, const uint8_t *from, int height, int in,
                          int out, uint8_t *to)
{
    for (int row = 0; row < height; row++, from += 3 * (int64_t)in)
        for (int i = 0; i < out; i++, to += 3) {
            const int32_t *weight = windows->weight + (int64_t)i * windows->taps;
            const uint8_t *at = from + 3 * (int64_t)windows->first[i];
            int32_t sum[3] = {1 << (PRECISION - 1), 1 << (PRECISION - 1), 1 << (PRECISION - 1)};
            for (int j = 0; j < windows->count[i]; j++, at += 3)
                for (int c = 0; c < 3; c++)
                    sum[c] += at[c] * weight[j];
            for (int c = 0; c < 3; c++)
                to[c] = to_byte(sum[c]);
        }
}

/* from [in, width, 3] -> to [out, width, 3]; sums: one row */
static void scale_rows(const nl_windows *windows, const uint8_t *from, int width, int out,
                       int32_t *sums, uint8_t *to)
{
    int64_t row = 3 * (int64_t)width;
    for (int i = 0; i < out; i++, to += row) {
        const int32_t *weight = windows->weight + (int64_t)i * windows->taps;
        const uint8_t *at = from + row * windows->first[i];
        for (int64_t x = 0; x < row; x++)
            sums[x] = 1 << (PRECISION - 1);
        for (int j = 0; j < windows->count[i]; j++, at += row)
            for (int64_t x = 0; x < row; x++)
                sums[x] += at[x] * weight[j];
        for (int64_t x = 0; x < row; x++)
            to[x] = to_byte(sums[x]);
    }
}

static nl_status columns_of(nl_context *context, const nl_filter_kind *kind, nl_image *image,
                            int width)
{
    nl_windows windows = {0};
    nl_status status;
    void *to;
    NL_TRY(make_windows(context, kind, image->width, width, &windows));
    NL_TRY(NL_NEW_SIZED(context, "a scaled picture", (int64_t)image->height * width, 3, &to));
    scale_columns(&windows, image->rgb, image->height, image->width, width, to);
    nl_free(context, image->rgb);
    image->rgb = to;
    image->width = width;
cleanup:
    nl_free(context, windows.block);
    return status;
}

static nl_status rows_of(nl_context *context, const nl_filter_kind *kind, nl_image *image,
                         int height)
{
    nl_windows windows = {0};
    nl_status status;
    void *to;
    int32_t *sums = NULL;
    NL_TRY(make_windows(context, kind, image->height, height, &windows));
    NL_TRY(NL_NEW_ARRAY(context, "a row of sums", 3 * image->width, &sums));
    NL_TRY(NL_NEW_SIZED(context, "a scaled picture", (int64_t)image->width * height, 3, &to));
    scale_rows(&windows, image->rgb, image->width, height, sums, to);
    nl_free(context, image->rgb);
    image->rgb = to;
    image->height = height;
cleanup:
    nl_free(context, sums);
    nl_free(context, windows.block);
    return status;
}

nl_status nl_image_scale(nl_context *context, nl_filter filter, int height, int width,
                         nl_image *image)
{
    nl_status status =
        nl_image_check_size(context, NL_ERROR_INPUT, "a scaled picture", height, image->width);
    if (status == NL_OK)
        status = nl_image_check_size(context, NL_ERROR_INPUT, "a scaled picture", height, width);
    if (status == NL_OK && width != image->width)
        status = columns_of(context, &kinds[filter], image, width);
    if (status == NL_OK && height != image->height)
        status = rows_of(context, &kinds[filter], image, height);
    return status;
}

static void crop(int64_t top, int64_t left, int height, int width, nl_image *image)
{
    for (int64_t row = 0; row < height; row++)
        memmove(image->rgb + row * width * 3, image->rgb + ((top + row) * image->width + left) * 3,
                3 * (size_t)width);
    image->height = height;
    image->width = width;
}

nl_status nl_image_fit(nl_context *context, int height, int width, nl_image *image)
{
    while (image->height / 2 >= height && image->width / 2 >= width)
        NL_CHECK(
            nl_image_scale(context, NL_FILTER_BOX, image->height / 2, image->width / 2, image));
    double scale = fmax((double)height / image->height, (double)width / image->width);
    double rows = nearbyint(image->height * scale), columns = nearbyint(image->width * scale);
    if (!(rows * columns <= 1 << 28))
        return nl_fail(
            context, NL_ERROR_INPUT,
            "a picture of %d x %d pixels, with the short side as the size asked for, has "
            "more than 2^28: leave it out",
            image->width, image->height);
    NL_CHECK(nl_image_scale(context, NL_FILTER_BICUBIC, (int)rows, (int)columns, image));
    crop((image->height - height) / 2, (image->width - width) / 2, height, width, image);
    return NL_OK;
}

nl_status nl_image_fit_part(nl_context *context, int height, int width, double zoom, double down,
                            double right, nl_image *image, nl_image_part *part)
{
    int rows = (int)lround(height * zoom), columns = (int)lround(width * zoom);
    NL_CHECK(nl_image_fit(context, rows, columns, image));
    long top = lround(down * (rows - height)), left = lround(right * (columns - width));
    *part = (nl_image_part){.side = sqrt((double)height / rows * width / columns),
                            .down = ((double)top + 0.5 * height) / rows - 0.5,
                            .right = ((double)left + 0.5 * width) / columns - 0.5};
    crop(top, left, height, width, image);
    return NL_OK;
}
