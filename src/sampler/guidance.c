/* SPDX-License-Identifier: MIT */
/* Classifier-free guidance around a network that takes labels. */
#include <float.h>
#include <math.h>

#include "nl_sampler.h"

/* Whether two times are one: t went through single precision, and 0.7f is below 0.7. Four roundings are allowed, a
 * twentieth of the smallest step of a transport and less than half a timestep of a million. */
static bool same_time(double t, double end)
{
    return fabs(t - end) <= 4 * (double)(FLT_EPSILON / 2) * fabs(end);
}

bool nl_guided_between(double low, double high, float t)
{
    bool everywhere = low == 0 && high == 0;
    return everywhere || ((t >= low || same_time(t, low)) && (t <= high || same_time(t, high)));
}

static bool guided_at(const nl_guidance *guidance, float t)
{
    return guidance->scale != 1 && nl_guided_between(guidance->low, guidance->high, t);
}

/* The network takes one time for all images where they agree. */
static int64_t time_count(const float *t, int64_t count)
{
    for (int64_t i = 1; i < count; i++)
        if (t[i] != t[0])
            return count;
    return 1;
}

static nl_tensor twice(const nl_tensor *tensor)
{
    nl_tensor doubled = *tensor;
    doubled.shape[0] *= 2;
    return doubled;
}

static nl_status evaluate_alone(nl_guidance *guidance, const nl_tensor *x, const float *t,
                                const float *s, const nl_tensor *prediction)
{
    int64_t batch = x->shape[0];
    nl_tensor labels = nl_tensor_rows(&guidance->labels, 0, batch);
    return guidance->network(guidance->user, x, t, time_count(t, batch), s, &labels, prediction);
}

/* x and t twice, with the labels and with the null class, through the network as one batch. */
static nl_status evaluate_both(nl_guidance *guidance, const nl_tensor *x, const float *t,
                               const float *s, const nl_tensor *both)
{
    nl_status status = NL_OK;
    nl_device *device = guidance->device;
    int64_t batch = x->shape[0], count = time_count(t, batch);
    float *times = NULL;
    nl_tensor input = twice(x);
    NL_TRY(nl_arena_tensor(device, NL_F32, input.ndim, input.shape, &input));
    for (int half = 0; half < 2; half++) {
        nl_tensor rows = nl_tensor_rows(&input, half * batch, batch);
        NL_TRY(device->ops->copy(device, rows.data, x->data, nl_tensor_bytes(x)));
    }
    if (count > 1) {
        NL_TRY(NL_NEW_ARRAY(device->context, "times", 2 * batch, &times));
        for (int64_t image = 0; image < batch; image++)
            times[image] = times[batch + image] = t[image];
    }
    NL_TRY(guidance->network(guidance->user, &input, times ? times : t, count > 1 ? 2 * batch : 1,
                             s, &guidance->labels, both));
cleanup:
    nl_free(device->context, times);
    return status;
}

/* Images outside the interval take their conditional half. */
static nl_status restore_unguided(nl_guidance *guidance, const float *t, const nl_tensor *both,
                                  const nl_tensor *prediction)
{
    nl_status status = NL_OK;
    nl_device *device = guidance->device;
    for (int64_t image = 0; image < prediction->shape[0]; image++) {
        if (guided_at(guidance, t[image]))
            continue;
        nl_tensor from = nl_tensor_rows(both, image, 1);
        nl_tensor to = nl_tensor_rows(prediction, image, 1);
        NL_TRY(device->ops->copy(device, to.data, from.data, nl_tensor_bytes(&to)));
    }
cleanup:
    return status;
}

static nl_status guide(void *user, const nl_tensor *x, const float *t, const float *s,
                       const nl_tensor *prediction)
{
    nl_status status = NL_OK;
    nl_guidance *guidance = user;
    nl_device *device = guidance->device;
    int64_t batch = x->shape[0], channels = x->shape[1];
    int64_t mark = nl_arena_mark(device);
    bool any = device->measuring && guidance->scale != 1; /* some step may be guided */
    nl_tensor both = twice(prediction);
    for (int64_t image = 0; image < batch; image++)
        any |= guided_at(guidance, t[image]);
    if (guidance->labels.shape[0] < (any ? 2 * batch : batch))
        return nl_fail(device->context, NL_ERROR_INTERNAL, "guidance: %lld labels for %lld images",
                       (long long)guidance->labels.shape[0], (long long)batch);
    if (!any)
        return evaluate_alone(guidance, x, t, s, prediction);
    if (guidance->channels > 0)
        channels = NL_MIN(channels, guidance->channels);
    NL_TRY(nl_arena_tensor(device, NL_F32, both.ndim, both.shape, &both));
    NL_TRY(evaluate_both(guidance, x, t, s, &both));
    NL_TRY(NL_OP(device, guide, .prediction = both, .y = *prediction,
                 .scale = (float)guidance->scale, .channels = channels));
    NL_TRY(restore_unguided(guidance, t, &both, prediction));
cleanup:
    nl_arena_release(device, mark);
    return status;
}

nl_model_function nl_guidance_model(nl_guidance *guidance)
{
    return (nl_model_function){guide, guidance};
}
