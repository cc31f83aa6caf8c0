/* SPDX-License-Identifier: MIT */
/* Precision and recall: three passes over all pairs in blocks (within the reference, within the samples,
 * between them). */
#include "nl_statistics.h"
#include "products.h"

#include <math.h>
#include <string.h>

enum { MAX_K = 15 };

typedef struct point_set {
    const float *rows;
    int64_t count;
    float *squares;      /* [count] |x|^2 */
    float *half_squares; /* the same in fp16 */
    float *radii;        /* [count] squared distance of the k-th neighbour */
    bool *covered;       /* [count] within the radius of a point of the other set */
} point_set;

typedef struct pairs {
    nl_device *device;
    int64_t size;
    int k;
    bool half;
    float *block;   /* [NL_PRODUCT_ROWS, NL_PRODUCT_COLUMNS] */
    float *rounded; /* [NL_PRODUCT_ROWS + NL_PRODUCT_COLUMNS, size], of half */
} pairs;

/* The nearest fp16 number, ties to even. */
static inline float to_half(float x)
{
    uint32_t bits;
    float magnitude = fabsf(x), rounded;
    memcpy(&bits, &magnitude, sizeof(bits));
    bits = (bits + 0xfff + (bits >> 13 & 1)) & ~0x1fffu; /* 10 bits of the fraction stay */
    memcpy(&rounded, &bits, sizeof(rounded));
    if (magnitude < 0x1p-14f)
        rounded = (magnitude + 0.5f) - 0.5f; /* subnormal: multiples of 2^-24 */
    else if (rounded > 65504)
        rounded = INFINITY;
    return copysignf(rounded, x);
}

static void to_halves(const float *x, int64_t count, float *y)
{
    for (int64_t i = 0; i < count; i++)
        y[i] = to_half(x[i]);
}

static float square_of(const float *x, int64_t size, bool half)
{
    double sum = 0;
    for (int64_t i = 0; i < size; i++) {
        float h = half ? to_half(x[i]) : 0;
        sum += half ? to_half(h * h) : (double)x[i] * x[i];
    }
    return half ? to_half((float)sum) : (float)sum;
}

/* A block in fp16. *finite: false when a number overflowed. */
static nl_status half_distances(const pairs *p, const point_set *a, int64_t i, int64_t rows,
                                const point_set *b, int64_t j, int64_t columns, bool *finite)
{
    float *x = p->rounded, *y = p->rounded + rows * p->size;
    to_halves(a->rows + i * p->size, rows * p->size, x);
    to_halves(b->rows + j * p->size, columns * p->size, y);
    nl_status status = nl_products(p->device, p->size, x, rows, y, columns, p->block);
    *finite = true;
    for (int64_t row = 0; status == NL_OK && row < rows; row++) {
        float *d = p->block + row * columns, square = a->half_squares[i + row];
        for (int64_t column = 0; column < columns; column++) {
            float difference = to_half(square - to_half(2 * to_half(d[column])));
            d[column] = to_half(difference + b->half_squares[j + column]);
            *finite = *finite && isfinite(d[column]);
            d[column] = fmaxf(d[column], 0);
        }
    }
    return status;
}

/* block [rows, columns]: squared distances between points i... of a and j... of b */
static nl_status distances(const pairs *p, const point_set *a, int64_t i, int64_t rows,
                           const point_set *b, int64_t j, int64_t columns)
{
    bool finite = false;
    nl_status status = NL_OK;
    if (p->half)
        status = half_distances(p, a, i, rows, b, j, columns, &finite);
    if (finite || status != NL_OK)
        return status;
    return nl_squared_distances(p->device, p->size, a->rows + i * p->size, a->squares + i, rows,
                                b->rows + j * p->size, b->squares + j, columns, p->block);
}

/* Keeps least [k + 1] ascending. */
static void insert(float *least, int k, float value)
{
    int i = k;
    if (!(value < least[k]))
        return;
    for (; i > 0 && least[i - 1] > value; i--)
        least[i] = least[i - 1];
    least[i] = value;
}

static nl_status find_radii(const pairs *p, point_set *set)
{
    int width = p->k + 1;
    float least[NL_PRODUCT_ROWS * (MAX_K + 1)];
    for (int64_t i = 0; i < set->count; i += NL_PRODUCT_ROWS) {
        int64_t rows = NL_MIN(set->count - i, NL_PRODUCT_ROWS);
        for (int64_t n = 0; n < rows * width; n++)
            least[n] = INFINITY;
        for (int64_t j = 0; j < set->count; j += NL_PRODUCT_COLUMNS) {
            int64_t columns = NL_MIN(set->count - j, NL_PRODUCT_COLUMNS);
            NL_CHECK(distances(p, set, i, rows, set, j, columns));
            for (int64_t row = 0; row < rows; row++)
                for (int64_t column = 0; column < columns; column++)
                    insert(least + row * width, p->k, p->block[row * columns + column]);
        }
        for (int64_t row = 0; row < rows; row++)
            set->radii[i + row] = least[row * width + p->k];
    }
    return NL_OK;
}

static nl_status find_covered(const pairs *p, point_set *a, point_set *b)
{
    for (int64_t i = 0; i < a->count; i += NL_PRODUCT_ROWS)
        for (int64_t j = 0; j < b->count; j += NL_PRODUCT_COLUMNS) {
            int64_t rows = NL_MIN(a->count - i, NL_PRODUCT_ROWS);
            int64_t columns = NL_MIN(b->count - j, NL_PRODUCT_COLUMNS);
            NL_CHECK(distances(p, a, i, rows, b, j, columns));
            for (int64_t row = i; row < i + rows; row++)
                for (int64_t column = j; column < j + columns; column++) {
                    float distance = p->block[(row - i) * columns + column - j];
                    a->covered[row] |= distance <= b->radii[column];
                    b->covered[column] |= distance <= a->radii[row];
                }
        }
    return NL_OK;
}

static void free_set(nl_context *context, point_set *set)
{
    nl_free(context, set->squares);
    nl_free(context, set->half_squares);
    nl_free(context, set->radii);
    nl_free(context, set->covered);
}

static nl_status prepare(nl_context *context, int64_t size, bool half, point_set *set)
{
    NL_CHECK(NL_NEW_ARRAY(context, "distances", set->count, &set->squares));
    NL_CHECK(NL_NEW_ARRAY(context, "distances", set->count, &set->radii));
    NL_CHECK(NL_NEW_ZEROS(context, "distances", set->count, &set->covered));
    NL_CHECK(NL_NEW_ARRAY(context, "distances", half ? set->count : 0, &set->half_squares));
    for (int64_t i = 0; i < set->count; i++) {
        const float *row = set->rows + i * size;
        set->squares[i] = square_of(row, size, false);
        if (half)
            set->half_squares[i] = square_of(row, size, true);
        if (!isfinite(set->squares[i]))
            return nl_fail(context, NL_ERROR_NOT_FINITE, "features are not finite");
    }
    return NL_OK;
}

static double share(const point_set *set)
{
    int64_t covered = 0;
    for (int64_t i = 0; i < set->count; i++)
        covered += set->covered[i];
    return (double)covered / (double)set->count;
}

nl_status nl_precision_recall(nl_device *device, int64_t size, const float *reference,
                              int64_t reference_count, const float *samples, int64_t sample_count,
                              int k, bool half, double *precision, double *recall)
{
    nl_context *context = device->context;
    point_set a = {.rows = reference, .count = reference_count};
    point_set b = {.rows = samples, .count = sample_count};
    pairs p = {.device = device, .size = size, .k = k, .half = half};
    nl_status status;
    if (k < 1 || k > MAX_K || reference_count <= k || sample_count <= k)
        return nl_fail(context, NL_ERROR_INPUT,
                       "precision and recall: neighbour %d among %lld and %lld pictures is "
                       "not possible",
                       k, (long long)reference_count, (long long)sample_count);
    NL_TRY(prepare(context, size, half, &a));
    NL_TRY(prepare(context, size, half, &b));
    NL_TRY(NL_NEW_ARRAY(context, "distances", NL_PRODUCT_ROWS * NL_PRODUCT_COLUMNS, &p.block));
    if (half)
        NL_TRY(NL_NEW_ARRAY(context, "distances", (NL_PRODUCT_ROWS + NL_PRODUCT_COLUMNS) * size,
                            &p.rounded));
    NL_TRY(nl_products_reserve(device, size));
    NL_TRY(find_radii(&p, &a));
    NL_TRY(find_radii(&p, &b));
    NL_TRY(find_covered(&p, &a, &b));
    *precision = share(&b);
    *recall = share(&a);
cleanup:
    free_set(context, &a);
    free_set(context, &b);
    nl_free(context, p.block);
    nl_free(context, p.rounded);
    return status;
}
