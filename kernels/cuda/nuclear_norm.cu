/* SPDX-License-Identifier: MIT */
/* The sum of the singular values of P by products alone, in which a GPU is 10 times a processor; finding the values is
 * mostly waiting. With the polar decomposition P = U H it is tr H = <U, P>, and X = P / |P|_F becomes U by Newton's and
 * Schulz's iteration on all singular values x at once:
 *   X <- X (3/2 r I - r^3 / 2 X^T X),    x <- 3/2 r x - r^3 / 2 x^3.
 * r = 3/2 makes a small x 9/4 as large and leaves what has arrived within [9/16, 1]; r = 1 takes that to 1, quadratically.
 * A value below 1e-15 |P|_F does not arrive and counts as less than it is. To the others' sum rounding does what it does
 * to any product: where U is turned a little, <U, P> changes with the square of the angle. */
#include <cmath>

#include "product/product.cuh"

enum { LIFTS = 43 /* (9/4)^43 = 1.4e15 */, STEPS = LIFTS + 7, THREADS = 256, PARTS = 264 };

/* parts[block] = a part of <x, y> */
static __global__ void __launch_bounds__(THREADS)
    inner_product_kernel(const double *x, const double *y, int64_t count, double *parts)
{
    double sum = 0;
    for (int64_t i = (int64_t)blockIdx.x * THREADS + threadIdx.x; i < count; i += PARTS * THREADS)
        sum += x[i] * y[i];
    sum = nl_block_sum_double(sum);
    if (threadIdx.x == 0)
        parts[blockIdx.x] = sum;
}

/* G [n, n] <- linear I + cubic G */
static __global__ void polynomial_kernel(double *g, int64_t n, double linear, double cubic)
{
    const int64_t i = (int64_t)blockIdx.x * THREADS + threadIdx.x;
    if (i < n * n)
        g[i] = cubic * g[i] + (i % (n + 1) == 0 ? linear : 0.);
}

static nl_status inner_product(nl_device *device, const double *x, const double *y, int64_t count,
                               double *parts, double *sum)
{
    double found[PARTS];
    inner_product_kernel<<<PARTS, THREADS, 0, nl_cuda_of(device)->stream>>>(x, y, count, parts);
    nl_status status = NL_CUDA_LAUNCHED(device, "inner product");
    if (status == NL_OK)
        status = device->ops->download(device, found, parts, sizeof(found));
    *sum = 0;
    for (int i = 0; status == NL_OK && i < PARTS; i++)
        *sum += found[i];
    return status;
}

/* y [rows, columns] = x w^T, or x^T w of both by depth. */
static nl_status multiply(nl_device *device, int64_t rows, int64_t columns, int64_t depth,
                          bool by_depth, const double *x, const double *w, double *y)
{
    nl_product p = {};
    p.rows = rows, p.columns = columns, p.depth = depth;
    p.x_by_depth = p.w_by_depth = by_depth;
    p.x_stride = by_depth ? rows : depth;
    p.w_stride = by_depth ? columns : depth;
    p.y_stride = columns;
    p.x_type = p.w_type = p.y_type = NL_F64;
    p.alpha = 1;
    return nl_cuda_product(device, &p, x, w, NULL, y);
}

/* P [m, n] -> its polar factor, in one of two places of P's size. G [n, n]: room. */
static nl_status polar_factor(nl_device *device, const double *p, int64_t m, int64_t n, double norm,
                              double *g, double *place, double *other, const double **factor)
{
    const unsigned blocks = nl_blocks(n * n, THREADS);
    const double *x = p;
    nl_status status = NL_OK;
    for (int step = 0; step < STEPS && status == NL_OK; step++) {
        const double r = (step < LIFTS ? 1.5 : 1.) / (step == 0 ? norm : 1.);
        status = multiply(device, n, n, m, true, x, x, g);
        if (status != NL_OK)
            break;
        polynomial_kernel<<<blocks, THREADS, 0, nl_cuda_of(device)->stream>>>(g, n, 1.5 * r,
                                                                              -0.5 * r * r * r);
        if ((status = NL_CUDA_LAUNCHED(device, "polynomial")) != NL_OK)
            break;
        status = multiply(device, m, n, n, false, x, g, place);
        x = place;
        place = other;
        other = (double *)x;
    }
    *factor = x;
    return status;
}

/* Rows on the host, and rows of zeros below them. */
static nl_status upload_rows(nl_device *device, double *to, const double *from, int64_t size,
                             int64_t rows, int64_t padded)
{
    nl_status status = device->ops->upload(device, to, from, size * rows * 8);
    if (status == NL_OK && padded > rows)
        status =
            nl_cuda_check(device,
                          cudaMemsetAsync(to + size * rows, 0, (size_t)(size * (padded - rows)) * 8,
                                          nl_cuda_of(device)->stream),
                          "zeros");
    return status;
}

static nl_status need_fast_double(nl_device *device)
{
    int ratio = 0; /* of single to double precision: 2 on data centre cards, 32 or 64 on others */
    nl_status status =
        nl_cuda_check(device,
                      cudaDeviceGetAttribute(&ratio, cudaDevAttrSingleToDoublePrecisionPerfRatio,
                                             nl_cuda_of(device)->index),
                      "asking the GPU");
    if (status == NL_OK && ratio > 4)
        return nl_fail(device->context, NL_ERROR_DEVICE,
                       "%s: double precision is %d times as slow as single", device->name, ratio);
    return status;
}

extern "C" nl_status nl_cuda_nuclear_norm(nl_device *device, int64_t size, const double *a,
                                          int64_t m, const double *b, int64_t n, double *sum)
{
    if (m < n) /* X^T X is the smaller, the narrower X is */
        return nl_cuda_nuclear_norm(device, size, b, n, a, m, sum);
    /* Rows of zeros add values of 0; products of multiples of 8 are faster. */
    const int64_t tall = (m + 7) / 8 * 8, wide = (n + 7) / 8 * 8, row = NL_MAX(size, tall);
    const int64_t bytes = (row * (tall + wide) + tall * wide + wide * wide + PARTS) * 8;
    void *memory = NULL;
    double square = 0, total = 0;
    nl_status status = need_fast_double(device);
    if (status == NL_OK)
        status = device->ops->alloc(device, "a product of covariances", bytes, &memory);
    if (status != NL_OK)
        return status;
    double *first = (double *)memory, *second = first + row * tall; /* A and B, later X */
    double *product = second + row * wide, *g = product + tall * wide, *parts = g + wide * wide;
    const double *factor = NULL;
    status = upload_rows(device, first, a, size, m, tall);
    if (status == NL_OK)
        status = upload_rows(device, second, b, size, n, wide);
    if (status == NL_OK)
        status = multiply(device, tall, wide, size, false, first, second, product);
    if (status == NL_OK)
        status = inner_product(device, product, product, tall * wide, parts, &square);
    if (status == NL_OK && square > 0)
        status = polar_factor(device, product, tall, wide, sqrt(square), g, first, second, &factor);
    if (status == NL_OK && factor)
        status = inner_product(device, factor, product, tall * wide, parts, &total);
    if (status == NL_OK && !(total - total == 0 && square - square == 0))
        status =
            nl_fail(device->context, NL_ERROR_DEVICE, "%s: a product is not finite", device->name);
    if (status == NL_OK)
        *sum = total;
    device->ops->free(device, memory, bytes);
    return status;
}
