/* SPDX-License-Identifier: MIT */
/* `nalagen info --device`: what a device is, and how fast it copies and multiplies here and now. */
#include "nl_info.h"

#include <stdio.h>
#include <string.h>

#include "nl_console.h"
#include "ops.h"

enum { SECONDS_PER_RATE = 4 /* measured for a quarter of a second */, LONGEST = 10000 };

static void add_fact(void *user, const char *name, const char *text)
{
    cJSON_AddStringToObject(user, name, text);
}

typedef struct nl_trial {
    nl_device *device;
    nl_tensor x, weight, y;
} nl_trial;

static nl_status copy_once(const nl_trial *trial)
{
    return trial->device->ops->copy(trial->device, trial->y.data, trial->x.data,
                                    nl_tensor_bytes(&trial->x));
}

static nl_status multiply_once(const nl_trial *trial)
{
    return NL_OP(trial->device, linear, .x = trial->x, .weight = trial->weight, .y = trial->y);
}

/* Seconds of one call: as many in a row as last some time. */
static nl_status time_of(const nl_trial *trial, nl_status (*once)(const nl_trial *trial),
                         double *seconds)
{
    const nl_ops *ops = trial->device->ops;
    double start = 0;
    for (int count = 1; count < LONGEST; count *= 2) {
        NL_CHECK(ops->sync(trial->device));
        start = nl_seconds();
        for (int i = 0; i < count; i++)
            NL_CHECK(once(trial));
        NL_CHECK(ops->sync(trial->device));
        double lasted = nl_seconds() - start;
        *seconds = lasted / count;
        if (count > 1 && lasted * SECONDS_PER_RATE >= 1)
            break;
    }
    return NL_OK;
}

/* A rate to three digits under `name`. */
static void add_rate(cJSON *object, const char *name, double rate)
{
    char text[32];
    double rounded;
    snprintf(text, sizeof(text), "%.3g", rate);
    if (sscanf(text, "%lf", &rounded) == 1)
        cJSON_AddNumberToObject(object, name, rounded);
}

static nl_status zeros(nl_device *device, nl_tensor *tensor)
{
    static const char none[1 << 16];
    for (int64_t at = 0, bytes = nl_tensor_bytes(tensor); at < bytes; at += (int64_t)sizeof(none))
        NL_CHECK(device->ops->upload(device, (char *)tensor->data + at, none,
                                     NL_MIN((int64_t)sizeof(none), bytes - at)));
    return NL_OK;
}

static nl_status measure_copy(nl_device *device, int64_t bytes, cJSON *object)
{
    nl_status status = NL_OK;
    nl_trial trial = {.device = device};
    double seconds = 1;
    int64_t mark = nl_arena_mark(device);
    NL_TRY(nl_arena_tensor(device, NL_U8, 1, &bytes, &trial.x));
    NL_TRY(nl_arena_tensor(device, NL_U8, 1, &bytes, &trial.y));
    NL_TRY(zeros(device, &trial.x));
    NL_TRY(time_of(&trial, copy_once, &seconds));
    add_rate(object, "copy_gb_per_second", 2e-9 * (double)bytes / seconds);
cleanup:
    nl_arena_release(device, mark);
    return status;
}

static nl_status measure_product(nl_device *device, nl_dtype dtype, int64_t size, cJSON *object)
{
    nl_status status = NL_OK;
    nl_trial trial = {.device = device};
    double seconds = 1;
    int64_t mark = nl_arena_mark(device), shape[] = {size, size};
    NL_TRY(nl_arena_tensor(device, dtype, 2, shape, &trial.x));
    NL_TRY(nl_arena_tensor(device, dtype, 2, shape, &trial.weight));
    NL_TRY(nl_arena_tensor(device, dtype, 2, shape, &trial.y));
    NL_TRY(zeros(device, &trial.x));
    NL_TRY(zeros(device, &trial.weight));
    NL_TRY(time_of(&trial, multiply_once, &seconds));
    add_rate(object, dtype == NL_BF16 ? "bf16_tflops" : "f32_tflops",
             2e-12 * (double)size * (double)size * (double)size / seconds);
cleanup:
    nl_arena_release(device, mark);
    return status;
}

nl_status nl_device_info(nl_context *context, const char *name, cJSON *object)
{
    nl_status status = NL_OK;
    nl_device *device = NULL;
    char processor[256];
    NL_TRY(nl_device_create(context, name, NULL, 0, &device));
    bool gpu = nl_device_queues(device);
    int64_t size = gpu ? 8192 : 1536, bytes = gpu ? INT64_C(1) << 30 : INT64_C(1) << 27;
    cJSON_AddStringToObject(object, "device", device->name);
    if (device->ops->describe)
        device->ops->describe(device, add_fact, object);
    nl_processor_name(processor, sizeof(processor));
    cJSON_AddStringToObject(object, "processor", processor);
    cJSON_AddNumberToObject(object, "threads", device->threads);
    cJSON_AddNumberToObject(object, "gpus", nl_cuda_device_count());
    NL_TRY(nl_arena_reserve(device, 2 * bytes + 1024));
    NL_TRY(measure_copy(device, bytes, object));
    if (gpu)
        NL_TRY(measure_product(device, NL_BF16, size, object));
    NL_TRY(measure_product(device, NL_F32, size, object));
cleanup:
    nl_device_destroy(device);
    return status;
}
