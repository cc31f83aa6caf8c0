/* SPDX-License-Identifier: MIT */
/* Operations over all parameters at once. */
#include "nl_cpu.h"
#include "vector_math.h"

#include <math.h>
#include <string.h>

enum { BLOCK = 16384 /* elements of a task, and of a partial sum */ };

nl_status NL_CPU(zero)(nl_device *device, const nl_zero_args *args)
{
    int64_t bytes = nl_tensor_bytes(&args->x);
#pragma omp parallel for num_threads(nl_cpu_team(device, bytes / 4)) schedule(static)
    for (int64_t i = 0; i < bytes; i += 4 * BLOCK)
        memset((char *)args->x.data + i, 0, (size_t)NL_MIN(4 * BLOCK, bytes - i));
    return NL_OK;
}

/* x [n] -> norm [1]; blocks are summed in order */
nl_status NL_CPU(gradient_norm)(nl_device *device, const nl_gradient_norm_args *args)
{
    int64_t count = args->x.shape[0], blocks = (count + BLOCK - 1) / BLOCK;
    const float *x = args->x.data;
    void *scratch;
    double sum = 0;
    NL_CHECK(nl_cpu_scratch(device, blocks * (int64_t)sizeof(double), &scratch));
    double *partial = scratch;
#pragma omp parallel for num_threads(nl_cpu_team(device, count)) schedule(static)
    for (int64_t block = 0; block < blocks; block++) {
        double squares = 0;
#pragma omp simd reduction(+ : squares)
        for (int64_t i = block * BLOCK; i < NL_MIN((block + 1) * BLOCK, count); i++)
            squares += (double)x[i] * x[i];
        partial[block] = squares;
    }
    for (int64_t block = 0; block < blocks; block++)
        sum += partial[block];
    *(float *)args->norm.data = (float)sqrt(sum);
    return NL_OK;
}

/* The numbers of one step. */
typedef struct step {
    float beta1, beta2, eps, clip;
    float rate;    /* over 1 - beta1^step */
    float inverse; /* 1 / sqrt(1 - beta2^step) */
    float keep;    /* 1 - rate decay, of what decays */
} step;

static step make_step(const nl_adamw_args *args, int32_t number)
{
    const float *hyper = args->hyper.data;
    double norm = *(const float *)args->norm.data, clip = hyper[NL_HYPER_CLIP];
    return (step){
        .beta1 = hyper[NL_HYPER_BETA1],
        .beta2 = hyper[NL_HYPER_BETA2],
        .eps = hyper[NL_HYPER_EPS],
        .clip = clip > 0 ? (float)fmin(1, clip / (norm + 1e-6)) : 1.0f,
        .rate = (float)(hyper[NL_HYPER_RATE] / (1 - pow(hyper[NL_HYPER_BETA1], number))),
        .inverse = (float)(1 / sqrt(1 - pow(hyper[NL_HYPER_BETA2], number))),
        .keep = (float)(1 - (double)hyper[NL_HYPER_RATE] * hyper[NL_HYPER_DECAY]),
    };
}

/* Elements [first, first + count) of the flat arrays. */
static void update(const nl_adamw_args *args, const step *s, const nl_segment *segment,
                   int64_t first, int64_t count)
{
    float *restrict master = (float *)args->master.data + first;
    float *restrict m = (float *)args->first.data + first;
    float *restrict v = (float *)args->second.data + first;
    const float *restrict gradient = (const float *)args->gradient.data + first;
    float keep = segment->decay ? s->keep : 1.0f, rate = s->rate * segment->rate;
#pragma omp simd
    for (int64_t i = 0; i < count; i++) {
        float g = gradient[i] * s->clip;
        m[i] = s->beta1 * m[i] + (1.0f - s->beta1) * g;
        v[i] = s->beta2 * v[i] + (1.0f - s->beta2) * (g * g);
        master[i] = keep * master[i] - rate * m[i] / (sqrtf(v[i]) * s->inverse + s->eps);
    }
    for (int k = 0; k < args->ema_count; k++) {
        float *restrict ema = (float *)args->ema[k].data + first;
        float decay = ((const float *)args->hyper.data)[NL_HYPER_EMA + k];
#pragma omp simd
        for (int64_t i = 0; i < count; i++)
            ema[i] = decay * ema[i] + (1.0f - decay) * master[i];
    }
}

/* Elements [from, from + count) of the segment: the model's copy. */
static void store(const nl_adamw_args *args, const nl_segment *segment, int64_t from, int64_t count)
{
    const float *master = (const float *)args->master.data + segment->first + from;
    if (segment->dtype == NL_F32) {
        memcpy((float *)segment->weights + from, master, (size_t)count * sizeof(float));
        return;
    }
    uint16_t *weights = (uint16_t *)segment->weights + from;
    for (int64_t i = 0; i < count; i++)
        weights[i] = nl_float_to_bf16(master[i]);
}

nl_status NL_CPU(adamw)(nl_device *device, const nl_adamw_args *args)
{
    int32_t *counter = args->counter.data;
    int64_t count = args->master.shape[0];
    if (!isfinite(*(const float *)args->norm.data)) {
        counter[1]++;
        return NL_OK;
    }
    counter[0]++;
    counter[1] = 0;
    step s = make_step(args, counter[0]);
#pragma omp parallel num_threads(nl_cpu_team(device, count))
    for (int k = 0; k < args->segment_count; k++) {
        const nl_segment *segment = &args->segments[k];
#pragma omp for schedule(static) nowait
        for (int64_t from = 0; from < segment->count; from += BLOCK) {
            int64_t size = NL_MIN(BLOCK, segment->count - from);
            update(args, &s, segment, segment->first + from, size);
            store(args, segment, from, size);
        }
    }
    return NL_OK;
}
