/* SPDX-License-Identifier: MIT */
/* Networks for sampler tests: functions of one element and its time, and noise from an array. */
#ifndef STAND_IN_H
#define STAND_IN_H

#include "nl_sampler.h"
#include "nl_test.h"

typedef struct stand_in {
    nl_device *device;
    float (*output)(float x, float t);
    float (*variance)(float x); /* of the second half of the channels, where there is one */
    const float *noise;         /* [steps, count], or NULL: drawn by (7, image, step) */
    int nan_at_call;            /* the prediction of this call (from 1) is NaN; 0: none */
    /* seen */
    int calls, draws, last_draw;
    float largest_t;
    float last_s; /* NaN: none */
} stand_in;

/* The network of the golden trajectories of DiTs, and options of their samplers. */
static inline float golden_eps(float x, float t)
{
    return tanhf(0.8f * x + 0.1f * cosf(0.01f * t));
}

static inline float golden_variance(float x)
{
    return 0.5f * sinf(3 * x);
}

static inline nl_sampler_options diffusion_options(nl_method method, int steps)
{
    nl_sampler_options options;
    nl_sampler_options_init(&options);
    options.method = method;
    options.steps = steps;
    return options;
}

static inline nl_status stand_in_predict(void *user, const nl_tensor *x, const float *t,
                                         const float *s, const nl_tensor *prediction)
{
    stand_in *network = user;
    nl_status status = NL_OK;
    int64_t batch = x->shape[0], count = nl_tensor_count(x), size = count / batch;
    int64_t outputs = nl_tensor_count(prediction), output_size = outputs / batch;
    float *input = malloc((size_t)count * sizeof(float));
    float *output = calloc((size_t)outputs, sizeof(float));
    network->calls++;
    network->last_s = s ? *s : NAN;
    NL_TRY(network->device->ops->download(network->device, input, x->data, nl_tensor_bytes(x)));
    for (int64_t image = 0; image < batch; image++) {
        network->largest_t = fmaxf(network->largest_t, t[image]);
        for (int64_t i = 0; i < size; i++) {
            float value = input[image * size + i];
            output[image * output_size + i] = network->output(value, t[image]);
            if (output_size == 2 * size)
                output[image * output_size + size + i] = network->variance(value);
        }
    }
    if (network->calls == network->nan_at_call)
        output[outputs - 1 - (output_size - size)] = NAN;
    NL_TRY(network->device->ops->upload(network->device, prediction->data, output,
                                        nl_tensor_bytes(prediction)));
cleanup:
    free(input);
    free(output);
    return status;
}

static inline nl_status stand_in_draw(void *user, int k, const nl_tensor *noise)
{
    stand_in *network = user;
    nl_device *device = network->device;
    network->draws++;
    network->last_draw = k;
    if (network->noise)
        return device->ops->upload(device, noise->data, network->noise + k * nl_tensor_count(noise),
                                   nl_tensor_bytes(noise));
    int64_t images[16];
    for (int i = 0; i < NL_COUNT(images); i++)
        images[i] = i;
    if (noise->shape[0] > NL_COUNT(images))
        return NL_ERROR_INTERNAL;
    return NL_OP(device, normal, .y = *noise, .seed = 7, .stream = (uint64_t)k, .images = images);
}

/* Runs a sampler from `initial` [shape] to `result`. evaluations may be NULL. */
static inline nl_status stand_in_sample(nl_context *context, const nl_sampler_options *options,
                                        stand_in *network, int ndim, const int64_t *shape,
                                        const float *initial, int64_t *evaluations, float *result)
{
    nl_status status = NL_OK;
    nl_sampler *sampler = NULL;
    nl_tensor x;
    nl_device *device = context->device;
    int64_t mark = nl_arena_mark(device);
    network->device = device;
    network->calls = network->draws = 0;
    network->largest_t = -1;
    NL_TRY(nl_sampler_create(context, options, &sampler));
    if (mark == 0)
        NL_TRY(nl_arena_reserve(device, 1 << 20));
    NL_TRY(nl_arena_tensor(device, NL_F32, ndim, shape, &x));
    NL_TRY(device->ops->upload(device, x.data, initial, nl_tensor_bytes(&x)));
    nl_sample_job job = {.device = device,
                         .model = {stand_in_predict, network},
                         .noise = {stand_in_draw, network},
                         .evaluations = evaluations};
    NL_TRY(nl_sampler_run(sampler, &job, &x));
    NL_TRY(device->ops->download(device, result, x.data, nl_tensor_bytes(&x)));
cleanup:
    nl_arena_release(device, mark);
    nl_sampler_destroy(sampler);
    return status;
}

/* Creating a sampler with these options fails as wrong usage, with `reason` in the message. */
static inline void assert_refused(nl_context *context, const nl_sampler_options *options,
                                  const char *reason)
{
    nl_sampler *sampler = (nl_sampler *)1;
    assert_int_equal(nl_sampler_create(context, options, &sampler), NL_ERROR_USAGE);
    assert_null(sampler);
    if (!strstr(nl_last_error(context), reason))
        fail_msg("'%s' does not say '%s'", nl_last_error(context), reason);
}

#endif
