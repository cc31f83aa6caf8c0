/* SPDX-License-Identifier: MIT */
/* Products and squared distances of all pairs of rows, in blocks through the device's arena. */
#include "products.h"

#include <math.h>

/* The three matrices in the arena. */
static nl_status take(nl_device *device, int64_t size, int64_t rows, int64_t columns,
                      nl_tensor tensors[3])
{
    NL_CHECK(nl_arena_tensor(device, NL_F32, 2, (int64_t[]){rows, size}, &tensors[0]));
    NL_CHECK(nl_arena_tensor(device, NL_F32, 2, (int64_t[]){columns, size}, &tensors[1]));
    return nl_arena_tensor(device, NL_F32, 2, (int64_t[]){rows, columns}, &tensors[2]);
}

nl_status nl_products_reserve(nl_device *device, int64_t size)
{
    nl_device measuring;
    nl_tensor tensors[3];
    nl_device_measuring(device, &measuring);
    nl_status status = take(&measuring, size, NL_PRODUCT_ROWS, NL_PRODUCT_COLUMNS, tensors);
    return status == NL_OK ? nl_arena_reserve(device, measuring.arena_peak) : status;
}

nl_status nl_products(nl_device *device, int64_t size, const float *a, int64_t rows, const float *b,
                      int64_t columns, float *out)
{
    nl_status status;
    nl_tensor t[3];
    int64_t mark = nl_arena_mark(device);
    NL_TRY(nl_check_cancelled(device->context));
    NL_TRY(take(device, size, rows, columns, t));
    NL_TRY(device->ops->upload(device, t[0].data, a, nl_tensor_bytes(&t[0])));
    NL_TRY(device->ops->upload(device, t[1].data, b, nl_tensor_bytes(&t[1])));
    NL_TRY(NL_OP(device, linear, .x = t[0], .weight = t[1], .y = t[2]));
    NL_TRY(device->ops->download(device, out, t[2].data, nl_tensor_bytes(&t[2])));
cleanup:
    nl_arena_release(device, mark);
    return status;
}

nl_status nl_squared_distances(nl_device *device, int64_t size, const float *a,
                               const float *a_squares, int64_t rows, const float *b,
                               const float *b_squares, int64_t columns, float *out)
{
    nl_status status = nl_products(device, size, a, rows, b, columns, out);
    for (int64_t row = 0; status == NL_OK && row < rows; row++) {
        float *d = out + row * columns;
        for (int64_t column = 0; column < columns; column++)
            d[column] = fmaxf(a_squares[row] - 2 * d[column] + b_squares[column], 0);
    }
    return status;
}
