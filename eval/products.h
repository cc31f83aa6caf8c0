/* SPDX-License-Identifier: MIT */
/* Products of all pairs of rows in blocks that fit a device. */
#ifndef NL_PRODUCTS_H
#define NL_PRODUCTS_H

#include "ops.h"

enum { NL_PRODUCT_ROWS = 1024, NL_PRODUCT_COLUMNS = 2048 };

/* Reserves the arena that nl_products needs. */
nl_status nl_products_reserve(nl_device *device, int64_t size);
/* out [rows, columns] = a [rows, size] b [columns, size]^T in fp32, all on the host; at most NL_PRODUCT_ROWS
 * and NL_PRODUCT_COLUMNS. */
nl_status nl_products(nl_device *device, int64_t size, const float *a, int64_t rows, const float *b,
                      int64_t columns, float *out);
/* The same of |a - b|^2, never below 0, given |x|^2 of the rows. */
nl_status nl_squared_distances(nl_device *device, int64_t size, const float *a,
                               const float *a_squares, int64_t rows, const float *b,
                               const float *b_squares, int64_t columns, float *out);

#endif
