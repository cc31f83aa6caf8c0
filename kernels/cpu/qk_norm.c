/* SPDX-License-Identifier: MIT */
/* qk_norm and its gradients. */
#include <math.h>
#include <string.h>

#include "nl_cpu.h"
#include "rows.h"

/* Rows whose gradients by the weights are summed one after the other. */
enum { CHUNK = 64 };

NL_ONE_COPY float inverse_rms(const float *x, float mean, int64_t size, float eps)
{
    float squares = 0;
#pragma omp simd reduction(+ : squares)
    for (int64_t i = 0; i < size; i++)
        squares += (x[i] - mean) * (x[i] - mean);
    return 1.0f / sqrtf(squares / (float)size + eps);
}

/* 0 of RMS. */
NL_ONE_COPY float mean_of(const float *x, int64_t size, nl_norm norm)
{
    float sum = 0;
    if (norm == NL_NORM_RMS)
        return 0;
#pragma omp simd reduction(+ : sum)
    for (int64_t i = 0; i < size; i++)
        sum += x[i];
    return sum / (float)size;
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
            bool query = first < columns / 2;
            const float *weight = query ? args->q_weight.data : args->k_weight.data;
            const float *bias = query ? args->q_bias.data : args->k_bias.data;
            float mean = mean_of(x + first, size, args->norm);
            float scale = inverse_rms(x + first, mean, size, args->eps);
#pragma omp simd
            for (int64_t i = 0; i < size; i++)
                x[first + i] = (x[first + i] - mean) * scale * weight[i];
#pragma omp simd
            for (int64_t i = 0; i < (bias ? size : 0); i++)
                x[first + i] += bias[i];
        }
    }
    return NL_OK;
}

/* One head: dx = scale (d - mean(d) - n mean(d n)), d = w dx, n = scale (x - mean), without mean(d) of RMS;
 * sums [2, d] += dx n, dx. */
NL_ONE_COPY void head_backward(const float *x, const float *weight, int64_t size, nl_norm norm,
                               float eps, float *restrict dx, float *restrict sums)
{
    float mean = mean_of(x, size, norm), scale = inverse_rms(x, mean, size, eps);
    float product = 0, plain = 0;
#pragma omp simd reduction(+ : product, plain)
    for (int64_t i = 0; i < size; i++) {
        float change = dx[i] * ((x[i] - mean) * scale);
        sums[i] += change;
        sums[size + i] += dx[i];
        product += change * weight[i];
        plain += dx[i] * weight[i];
    }
    product /= (float)size;
    plain = norm == NL_NORM_RMS ? 0 : plain / (float)size;
#pragma omp simd
    for (int64_t i = 0; i < size; i++)
        dx[i] = scale * (dx[i] * weight[i] - plain - (x[i] - mean) * scale * product);
}

/* raw, dx [M, 2 h d]; the gradients of weights and biases [d] are added to */
nl_status NL_CPU(qk_norm_backward)(nl_device *device, const nl_qk_norm_backward_args *args)
{
    int64_t rows = args->raw.shape[0], columns = args->raw.shape[1];
    int64_t size = args->q_weight.shape[0], chunks = (rows + CHUNK - 1) / CHUNK;
    float *to[] = {args->dq_weight.data, args->dq_bias.data, args->dk_weight.data,
                   args->dk_bias.data};
    void *scratch;
    nl_status status = nl_cpu_scratch(device, chunks * 4 * size * (int64_t)sizeof(float), &scratch);
    if (status != NL_OK)
        return status;
    float *sums = scratch; /* [chunks, 4, d], as `to` */
    memset(sums, 0, (size_t)(chunks * 4 * size) * sizeof(float));
#pragma omp parallel for num_threads(nl_cpu_team(device, rows *columns)) schedule(static)
    for (int64_t chunk = 0; chunk < chunks; chunk++)
        for (int64_t row = chunk * CHUNK; row < NL_MIN((chunk + 1) * CHUNK, rows); row++)
            for (int64_t first = 0; first < columns; first += size) {
                bool query = first < columns / 2;
                head_backward(nl_cpu_row(&args->raw, row) + first,
                              query ? args->q_weight.data : args->k_weight.data, size, args->norm,
                              args->eps, nl_cpu_row_out(&args->dx, row) + first,
                              sums + (4 * chunk + (query ? 0 : 2)) * size);
            }
    for (int64_t chunk = 0; chunk < chunks; chunk++)
        for (int part = 0; part < NL_COUNT(to); part++)
            for (int64_t i = 0; to[part] && i < size; i++)
                to[part][i] += sums[(4 * chunk + part) * size + i];
    return status;
}
