/* SPDX-License-Identifier: MIT */
/* Convolutions by winograd.c or oneDNN, also of doubled pictures and into strided pixels. */
#include "feature_maps.h"

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

/* ---- Of a doubled picture: a pixel of y looks at 2 x 2 pixels of x alone, with the taps of the 3 x 3 that fall on one
 * pixel summed. Which they are depends on whether its row and its column are even or odd: four convolutions of 2 x 2, 16
 * products where the doubled picture takes 36. */

static bool folds(const nl_conv2d_args *args)
{
    return args->doubled.data && nl_every_3x3(args) && !args->residual.data &&
           nl_tensor_contiguous(&args->y);
}

/* weight [O, C, 3, 3] -> folded [2, 2, O, C, 2, 2], of one of O C planes. The first two: even or odd row and column of y. An
 * even row has its first tap on the row of x before its own and two on its own, an odd one two on its own and one after. */
NL_INLINE void fold_plane(bool half, const nl_tensor *weight, int64_t plane, int64_t planes,
                          const nl_tensor *folded)
{
    float rows[2][2][3], sums[2][2][2][2];
    for (int i = 0; i < 3; i++) {
        float first = nl_get_element(half, weight->data, plane * 9 + i);
        float middle = nl_get_element(half, weight->data, plane * 9 + 3 + i);
        float last = nl_get_element(half, weight->data, plane * 9 + 6 + i);
        rows[0][0][i] = first, rows[0][1][i] = middle + last;
        rows[1][0][i] = first + middle, rows[1][1][i] = last;
    }
    for (int odd = 0; odd < 2; odd++)
        for (int i = 0; i < 2; i++) {
            const float *row = rows[odd][i];
            sums[odd][0][i][0] = row[0], sums[odd][0][i][1] = row[1] + row[2];
            sums[odd][1][i][0] = row[0] + row[1], sums[odd][1][i][1] = row[2];
        }
    const float *from = sums[0][0][0];
    uint16_t values[16];
    nl_to_bf16(from, 16, values);
    for (int i = 0; i < 4; i++) {
        int64_t to = (i * planes + plane) * 4;
        if (folded->dtype == NL_BF16)
            memcpy((uint16_t *)folded->data + to, values + 4 * i, 4 * sizeof(uint16_t));
        else
            memcpy((float *)folded->data + to, from + 4 * i, 4 * sizeof(float));
    }
}

static void fold_weight(nl_device *device, const nl_tensor *weight, const nl_tensor *folded)
{
    int64_t planes = weight->shape[0] * weight->shape[1];
#pragma omp parallel for num_threads(nl_cpu_team(device, 16 * planes)) schedule(static)
    for (int64_t plane = 0; plane < planes; plane++)
        NL_FOR_HALF(weight->dtype == NL_BF16, fold_plane, weight, plane, planes, folded);
}

/* quarter [B, H, W, O] -> the pixels of y [B, 2H, 2W, O] whose rows and columns are even or odd. */
static void place(nl_device *device, const nl_tensor *quarter, int odd_row, int odd_column,
                  const nl_tensor *y)
{
    int64_t width = quarter->shape[2], rows = quarter->shape[0] * quarter->shape[1];
    int64_t bytes = y->shape[3] * nl_dtype_size(y->dtype);
#pragma omp parallel for num_threads(nl_cpu_team(device, nl_tensor_count(quarter))) schedule(static)
    for (int64_t row = 0; row < rows; row++) {
        const char *from = (const char *)quarter->data + row * width * bytes;
        char *to = (char *)y->data + ((2 * row + odd_row) * 2 * width + odd_column) * bytes;
        for (int64_t column = 0; column < width; column++)
            memcpy(to + 2 * column * bytes, from + column * bytes, (size_t)bytes);
    }
}

static nl_status conv2d_folded(nl_device *device, const nl_conv2d_args *args)
{
    const int64_t *x = args->x.shape, *w = args->weight.shape;
    nl_tensor folded = nl_tensor_of(NULL, args->x.dtype, 4, (int64_t[]){4 * w[0], w[1], 2, 2});
    nl_tensor quarter = nl_tensor_of(NULL, args->y.dtype, 4, (int64_t[]){x[0], x[1], x[2], w[0]});
    int64_t folded_bytes = nl_cpu_pad(nl_tensor_bytes(&folded), 64);
    void *scratch;
    NL_CHECK(nl_cpu_scratch(device, folded_bytes + nl_tensor_bytes(&quarter), &scratch));
    folded.data = scratch;
    quarter.data = (char *)scratch + folded_bytes;
    fold_weight(device, &args->weight, &folded);
    for (int i = 0; i < 4; i++) {
        int odd_row = i / 2, odd_column = i % 2;
        NL_CHECK(nl_dnnl_conv2d(((nl_cpu_state *)device->state)->dnnl,
                                &(nl_conv2d_args){.x = args->x,
                                                  .weight = nl_tensor_rows(&folded, i * w[0], w[0]),
                                                  .bias = args->bias,
                                                  .y = quarter,
                                                  .stride = 1,
                                                  .pad_top = 1 - odd_row,
                                                  .pad_left = 1 - odd_column,
                                                  .pad_bottom = odd_row,
                                                  .pad_right = odd_column,
                                                  .activation = args->activation}));
        place(device, &quarter, odd_row, odd_column, &args->y);
    }
    return NL_OK;
}

/* x [B, H, W, C], weight [O, C, kh, kw] -> y [B, H', W', O]. oneDNN has no fast convolution into strided pixels: they are
 * copied there. */
nl_status NL_CPU(conv2d)(nl_device *device, const nl_conv2d_args *args)
{
    nl_conv2d_args apart = *args;
    if (NL_CPU(winograd_takes)(args))
        return NL_CPU(winograd)(device, args);
    if (folds(args))
        return conv2d_folded(device, args);
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
