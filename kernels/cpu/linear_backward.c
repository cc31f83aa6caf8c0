/* SPDX-License-Identifier: MIT */
/*
 * Both products are cut into tiles, each the work of one thread over the whole length of its sums, so that their
 * order does not depend on the number of threads.
 */
#include "activation.h"
#include "nl_cpu.h"

enum {
    DATA_ROWS = 128,   /* of a tile of dx */
    DATA_COLUMNS = 64, /* the same when there are no more rows than that; otherwise all columns */
    WEIGHT_ROWS = 64,  /* of a tile of dweight */
    WEIGHT_COLUMNS = 384,
    BIAS_COLUMNS = 64,
    BIAS_ROWS = 64 /* summed one after the other */
};

static nl_status failed(nl_device *device)
{
    return nl_fail(device->context, NL_ERROR_MEMORY, "oneDNN is out of memory in a matrix product");
}

/* Rows [row, row + rows) and columns [column, column + columns) of dx. */
static bool data_tile(const nl_linear_backward_data_args *args, const float *weight, int64_t row,
                      int64_t rows, int64_t column, int64_t columns)
{
    bool done = nl_dnnl_multiply(&(nl_dnnl_gemm){
        .m = rows,
        .n = columns,
        .k = args->dy.shape[1],
        .a = nl_cpu_row(&args->dy, row),
        .a_stride = args->dy.row_stride,
        .b = weight + column,
        .b_stride = args->weight.shape[1],
        .c = nl_cpu_row_out(&args->dx, row) + column,
        .c_stride = args->dx.row_stride,
    });
    nl_activation activation = nl_epilogue_activation(args->epilogue);
    for (int64_t i = row; args->pre.data && i < row + rows; i++) {
        const float *pre = nl_cpu_row(&args->pre, i) + column;
        float *dx = nl_cpu_row_out(&args->dx, i) + column;
        nl_apply_activation_slope(activation, pre, dx, columns, dx);
        if (args->x.data)
            nl_apply_activation(activation, pre, columns, nl_cpu_row_out(&args->x, i) + column);
    }
    return done;
}

/* The weight as F32: itself, or in working memory. */
static nl_status plain_weight(nl_device *device, const nl_tensor *weight, const float **plain)
{
    int64_t count = nl_tensor_count(weight);
    void *scratch;
    *plain = weight->data;
    if (weight->dtype == NL_F32)
        return NL_OK;
    NL_CHECK(nl_cpu_scratch(device, count * (int64_t)sizeof(float), &scratch));
    const uint16_t *from = weight->data;
    float *to = scratch;
#pragma omp parallel for simd num_threads(nl_cpu_team(device, count)) schedule(static)
    for (int64_t i = 0; i < count; i++)
        to[i] = nlv_from_bits((uint32_t)from[i] << 16);
    *plain = to;
    return NL_OK;
}

/* sums [column, column + columns) += sums over all rows of x, by runs of BIAS_ROWS. */
static void bias_tile(const nl_tensor *x, int64_t column, int64_t columns, float *sums)
{
    float total[BIAS_COLUMNS] = {0};
    int64_t rows = x->shape[0];
    for (int64_t first = 0; first < rows; first += BIAS_ROWS) {
        float sum[BIAS_COLUMNS] = {0};
        for (int64_t row = first; row < NL_MIN(first + BIAS_ROWS, rows); row++) {
            const float *values = nl_cpu_row(x, row) + column;
#pragma omp simd
            for (int64_t i = 0; i < columns; i++)
                sum[i] += values[i];
        }
        for (int64_t i = 0; i < columns; i++)
            total[i] += sum[i];
    }
    for (int64_t i = 0; i < columns; i++)
        sums[column + i] += total[i];
}

void NL_CPU(column_sums)(nl_device *device, const nl_tensor *x, int64_t columns, float *sums)
{
#pragma omp parallel for num_threads(nl_cpu_team(device, x->shape[0] * columns)) schedule(dynamic)
    for (int64_t column = 0; column < columns; column += BIAS_COLUMNS)
        bias_tile(x, column, NL_MIN(BIAS_COLUMNS, columns - column), sums);
}

/* dy [M, N], weight [N, K], pre [M, K] -> dx, x [M, K]; dbias [K] is added to */
nl_status NL_CPU(linear_backward_data)(nl_device *device, const nl_linear_backward_data_args *args)
{
    int64_t rows = args->dy.shape[0], columns = args->weight.shape[1];
    int64_t width = rows > DATA_ROWS ? columns : DATA_COLUMNS;
    int64_t across = (columns + width - 1) / width;
    int64_t tiles = (rows + DATA_ROWS - 1) / DATA_ROWS * across;
    const float *weight;
    bool done = true;
    NL_CHECK(plain_weight(device, &args->weight, &weight));
    int threads = omp_get_max_threads();
    omp_set_num_threads(1); /* oneDNN's, within a tile */
#pragma omp parallel for num_threads(device->threads) schedule(dynamic) reduction(&& : done)
    for (int64_t tile = 0; tile < tiles; tile++) {
        int64_t row = tile / across * DATA_ROWS, column = tile % across * width;
        bool good = data_tile(args, weight, row, NL_MIN(DATA_ROWS, rows - row), column,
                              NL_MIN(width, columns - column));
        done = done && good;
    }
    omp_set_num_threads(threads);
    if (args->dbias.data)
        NL_CPU(column_sums)(device, &args->dx, columns, args->dbias.data);
    return done ? NL_OK : failed(device);
}

/* ---- Weights */

static bool weight_tile(const nl_linear_backward_weight_args *args, int64_t row, int64_t column)
{
    return nl_dnnl_multiply(&(nl_dnnl_gemm){
        .add = true,
        .a_transposed = true,
        .m = NL_MIN(WEIGHT_ROWS, args->dweight.shape[0] - row),
        .n = NL_MIN(WEIGHT_COLUMNS, args->dweight.shape[1] - column),
        .k = args->dy.shape[0],
        .a = (const float *)args->dy.data + row,
        .a_stride = args->dy.row_stride,
        .b = (const float *)args->x.data + column,
        .b_stride = args->x.row_stride,
        .c = nl_cpu_row_out(&args->dweight, row) + column,
        .c_stride = args->dweight.row_stride,
    });
}

/* dy [M, N], x [M, K]; dweight [N, K] and dbias [N] are added to */
nl_status NL_CPU(linear_backward_weight)(nl_device *device,
                                         const nl_linear_backward_weight_args *args)
{
    int64_t outputs = args->dweight.shape[0], inputs = args->dweight.shape[1];
    int64_t across = (inputs + WEIGHT_COLUMNS - 1) / WEIGHT_COLUMNS;
    int64_t tiles = (outputs + WEIGHT_ROWS - 1) / WEIGHT_ROWS * across;
    bool done = true;
    int threads = omp_get_max_threads();
    omp_set_num_threads(1); /* oneDNN's, within a tile */
#pragma omp parallel num_threads(device->threads)
    {
#pragma omp for schedule(dynamic) reduction(&& : done) nowait
        for (int64_t tile = 0; tile < tiles; tile++) {
            bool good =
                weight_tile(args, tile / across * WEIGHT_ROWS, tile % across * WEIGHT_COLUMNS);
            done = done && good;
        }
        if (args->dbias.data) {
#pragma omp for schedule(dynamic)
            for (int64_t column = 0; column < outputs; column += BIAS_COLUMNS)
                bias_tile(&args->dy, column, NL_MIN(BIAS_COLUMNS, outputs - column),
                          args->dbias.data);
        }
    }
    omp_set_num_threads(threads);
    return done ? NL_OK : failed(device);
}
