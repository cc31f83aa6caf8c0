/* SPDX-License-Identifier: MIT */
/* Kernel Inception Distance: unbiased MMD with a cubic kernel over random subsets of features. */
#include "draw.h"
#include "nl_statistics.h"
#include "products.h"

#include <math.h>
#include <string.h>

/* Sum of the kernel over pairs of rows, those of one row with itself left out when a is b. */
static nl_status kernel_sum(nl_device *device, int64_t size, const float *a, const float *b,
                            int64_t count, float *block, double *sum)
{
    *sum = 0;
    for (int64_t i = 0; i < count; i += NL_PRODUCT_ROWS)
        for (int64_t j = 0; j < count; j += NL_PRODUCT_COLUMNS) {
            int64_t rows = NL_MIN(count - i, NL_PRODUCT_ROWS);
            int64_t columns = NL_MIN(count - j, NL_PRODUCT_COLUMNS);
            NL_CHECK(nl_products(device, size, a + i * size, rows, b + j * size, columns, block));
            for (int64_t k = 0; k < rows * columns; k++) {
                double x = block[k] / (double)size + 1;
                if (a != b || i + k / columns != j + k % columns)
                    *sum += x * x * x;
            }
        }
    return NL_OK;
}

static void gather(const float *rows, int64_t size, const int64_t *order, int64_t count, float *to)
{
    for (int64_t i = 0; i < count; i++)
        memcpy(to + i * size, rows + order[i] * size, (size_t)size * sizeof(float));
}

nl_status nl_kid(nl_device *device, int64_t size, const float *a, int64_t count_a, const float *b,
                 int64_t count_b, int64_t subsets, int64_t subset_size, double *mean,
                 double *deviation)
{
    nl_context *context = device->context;
    const float *sets[2] = {a, b};
    const int64_t counts[2] = {count_a, count_b};
    int64_t *orders[2] = {NULL, NULL};
    float *rows[2] = {NULL, NULL}, *block = NULL;
    double total = 0, squares = 0, m = (double)subset_size;
    nl_status status;
    if (subset_size < 2 || subset_size > count_a || subset_size > count_b)
        return nl_fail(context, NL_ERROR_INPUT,
                       "KID: subsets of %lld of %lld and %lld pictures are not possible",
                       (long long)subset_size, (long long)count_a, (long long)count_b);
    for (int side = 0; side < 2; side++) {
        NL_TRY(NL_NEW_ARRAY(context, "KID", counts[side], &orders[side]));
        NL_TRY(NL_NEW_ARRAY(context, "KID", subset_size * size, &rows[side]));
        for (int64_t i = 0; i < counts[side]; i++)
            orders[side][i] = i;
    }
    NL_TRY(NL_NEW_ARRAY(context, "KID", NL_PRODUCT_ROWS * NL_PRODUCT_COLUMNS, &block));
    NL_TRY(nl_products_reserve(device, size));
    for (int64_t subset = 0; subset < subsets; subset++) {
        double aa, bb, ab;
        for (int side = 0; side < 2; side++) {
            nl_draw_subset(0, 2 * (uint64_t)subset + (uint64_t)side, counts[side], subset_size,
                           orders[side]);
            gather(sets[side], size, orders[side], subset_size, rows[side]);
        }
        NL_TRY(kernel_sum(device, size, rows[0], rows[0], subset_size, block, &aa));
        NL_TRY(kernel_sum(device, size, rows[1], rows[1], subset_size, block, &bb));
        NL_TRY(kernel_sum(device, size, rows[0], rows[1], subset_size, block, &ab));
        double value = (aa + bb) / (m * (m - 1)) - 2 * ab / (m * m);
        total += value;
        squares += value * value;
    }
    *mean = total / (double)subsets;
    *deviation = sqrt(fmax(squares / (double)subsets - *mean * *mean, 0));
cleanup:
    for (int side = 0; side < 2; side++) {
        nl_free(context, orders[side]);
        nl_free(context, rows[side]);
    }
    nl_free(context, block);
    return status;
}
