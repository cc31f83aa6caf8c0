/* SPDX-License-Identifier: MIT */
/* The nearest rows of a set to each row of another. */
#include "nl_nearest.h"
#include "products.h"

#include <math.h>

typedef struct nl_search {
    nl_device *device;
    int64_t size;
    const float *reference, *rows;
    const float *reference_squares, *squares;
    int64_t reference_count, count;
    int k;
    int64_t *index;
    double *distance; /* squared */
    float *block;
} nl_search;

static void insert(double *distance, int64_t *index, int k, double value, int64_t at)
{
    int i = k - 1;
    if (!(value < distance[i]))
        return;
    for (; i > 0 && distance[i - 1] > value; i--) {
        distance[i] = distance[i - 1];
        index[i] = index[i - 1];
    }
    distance[i] = value;
    index[i] = at;
}

static nl_status search_block(const nl_search *s, int64_t i, int64_t rows)
{
    for (int64_t n = i * s->k; n < (i + rows) * s->k; n++) {
        s->distance[n] = INFINITY;
        s->index[n] = n % s->k; /* should all distances overflow */
    }
    for (int64_t j = 0; j < s->reference_count; j += NL_PRODUCT_COLUMNS) {
        int64_t columns = NL_MIN(s->reference_count - j, NL_PRODUCT_COLUMNS);
        NL_CHECK(nl_squared_distances(s->device, s->size, s->rows + i * s->size, s->squares + i,
                                      rows, s->reference + j * s->size, s->reference_squares + j,
                                      columns, s->block));
        for (int64_t row = 0; row < rows; row++)
            for (int64_t column = 0; column < columns; column++)
                insert(s->distance + (i + row) * s->k, s->index + (i + row) * s->k, s->k,
                       s->block[row * columns + column], j + column);
    }
    return NL_OK;
}

/* |a - b|^2 from products loses the digits of a small difference. */
static void take_again(const nl_search *s, int64_t row)
{
    int64_t *index = s->index + row * s->k, found[NL_NEAREST_K];
    double *distance = s->distance + row * s->k;
    for (int n = 0; n < s->k; n++) {
        found[n] = index[n];
        distance[n] = INFINITY;
    }
    for (int n = 0; n < s->k; n++) {
        const float *a = s->rows + row * s->size, *b = s->reference + found[n] * s->size;
        double sum = 0;
        for (int64_t c = 0; c < s->size; c++)
            sum += ((double)a[c] - b[c]) * ((double)a[c] - b[c]);
        insert(distance, index, s->k, sqrt(sum), found[n]);
    }
}

static nl_status squares_of(nl_context *context, const float *rows, int64_t count, int64_t size,
                            float **squares)
{
    NL_CHECK(NL_NEW_ARRAY(context, "distances", count, squares));
    for (int64_t i = 0; i < count; i++) {
        double sum = 0;
        for (int64_t c = 0; c < size; c++)
            sum += (double)rows[i * size + c] * rows[i * size + c];
        (*squares)[i] = (float)sum;
        if (!isfinite((*squares)[i]))
            return nl_fail(context, NL_ERROR_NOT_FINITE, "features are not finite");
    }
    return NL_OK;
}

nl_status nl_nearest_rows(nl_device *device, int64_t size, const float *reference,
                          int64_t reference_count, const float *rows, int64_t count, int k,
                          int64_t *index, double *distance)
{
    nl_context *context = device->context;
    nl_search s = {.device = device,
                   .size = size,
                   .reference = reference,
                   .rows = rows,
                   .reference_count = reference_count,
                   .count = count,
                   .k = k,
                   .index = index,
                   .distance = distance};
    float *squares[2] = {NULL}, *block = NULL;
    nl_status status;
    if (k < 1 || k > NL_NEAREST_K || reference_count < k)
        return nl_fail(context, NL_ERROR_INPUT,
                       "%d nearest pictures of %lld: expected at least as many pictures", k,
                       (long long)reference_count);
    NL_TRY(squares_of(context, rows, count, size, &squares[0]));
    NL_TRY(squares_of(context, reference, reference_count, size, &squares[1]));
    NL_TRY(NL_NEW_ARRAY(context, "distances", NL_PRODUCT_ROWS * NL_PRODUCT_COLUMNS, &block));
    s.squares = squares[0];
    s.reference_squares = squares[1];
    s.block = block;
    NL_TRY(nl_products_reserve(device, size));
    for (int64_t i = 0; i < count; i += NL_PRODUCT_ROWS)
        NL_TRY(search_block(&s, i, NL_MIN(count - i, NL_PRODUCT_ROWS)));
    for (int64_t row = 0; row < count; row++)
        take_again(&s, row);
cleanup:
    nl_free(context, squares[0]);
    nl_free(context, squares[1]);
    nl_free(context, block);
    return status;
}
