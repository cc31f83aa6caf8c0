/* SPDX-License-Identifier: MIT */
/* qk_norm and its gradients. */
#include <math.h>
#include <string.h>

#include "nl_cpu.h"

/* Rows whose gradients by the weights are summed one after the other. */
enum { CHUNK = 64 };

/* Copies that a compiler makes of a loop may sum in another order: these functions stay the only one. */
#define ONE_COPY __attribute__((noinline)) static

ONE_COPY float inverse_rms(const float *x, int64_t size, float eps)
{
    float squares = 0;
#pragma omp simd reduction(+ : squares)
    for (int64_t i = 0; i < size; i++)
        squares += x[i] * x[i];
    return 1.0f / sqrtf(squares / (float)size + eps);
}

/* x [M, 2 h d], q | k, in place; raw the same */
nl_status NL_CPU(qk_norm)(nl_device *device, const nl_qk_norm_args *args)
{
    int64_t rows = args->x.shape[0], columns = args->x.shape[1], size = args->q_weight.shape[0];
#pragma omp parallel for num_threads(nl_cpu_team(device, rows *columns)) schedule(static)
    for (int64_t row = 0; row < rows; row++) {
        float *x = nl_cpu_row_out(&args->x, row);
        if (args->raw.data)
            memcpy(nl_cpu_row_out(&args->raw, row), x, (size_t)columns * sizeof(float));
        for (int64_t first = 0; first < columns; first += size) {
            const float *weight = first < columns / 2 ? args->q_weight.data : args->k_weight.data;
            float scale = inverse_rms(x + first, size, args->eps);
#pragma omp simd
            for (int64_t i = 0; i < size; i++)
                x[first + i] = x[first + i] * scale * weight[i];
        }
    }
    return NL_OK;
}

/* One head: dx = scale (d - n mean(d n)), d = w dx, n = scale x; dweight += dx n. */
ONE_COPY void head_backward(const float *x, const float *weight, int64_t size, float eps,
                            float *restrict dx, float *restrict dweight)
{
    float scale = inverse_rms(x, size, eps), product = 0;
#pragma omp simd reduction(+ : product)
    for (int64_t i = 0; i < size; i++) {
        float change = dx[i] * (x[i] * scale);
        dweight[i] += change;
        product += change * weight[i];
    }
    product /= (float)size;
#pragma omp simd
    for (int64_t i = 0; i < size; i++)
        dx[i] = scale * (dx[i] * weight[i] - x[i] * scale * product);
}

/* raw, dx [M, 2 h d]; dq_weight and dk_weight [d] are added to */
nl_status NL_CPU(qk_norm_backward)(nl_device *device, const nl_qk_norm_backward_args *args)
{
    int64_t rows = args->raw.shape[0], columns = args->raw.shape[1];
    int64_t size = args->q_weight.shape[0], chunks = (rows + CHUNK - 1) / CHUNK;
    void *scratch;
    nl_status status = nl_cpu_scratch(device, chunks * 2 * size * (int64_t)sizeof(float), &scratch);
    if (status != NL_OK)
        return status;
    float *sums = scratch; /* [chunks, 2, d] */
    memset(sums, 0, (size_t)(chunks * 2 * size) * sizeof(float));
#pragma omp parallel for num_threads(nl_cpu_team(device, rows *columns)) schedule(static)
    for (int64_t chunk = 0; chunk < chunks; chunk++)
        for (int64_t row = chunk * CHUNK; row < NL_MIN((chunk + 1) * CHUNK, rows); row++)
            for (int64_t first = 0; first < columns; first += size) {
                bool query = first < columns / 2;
                head_backward(nl_cpu_row(&args->raw, row) + first,
                              query ? args->q_weight.data : args->k_weight.data, size, args->eps,
                              nl_cpu_row_out(&args->dx, row) + first,
                              sums + (2 * chunk + !query) * size);
            }
    for (int64_t chunk = 0; chunk < chunks; chunk++)
        for (int64_t i = 0; i < size; i++) {
            ((float *)args->dq_weight.data)[i] += sums[2 * chunk * size + i];
            ((float *)args->dk_weight.data)[i] += sums[(2 * chunk + 1) * size + i];
        }
    return status;
}
