/* SPDX-License-Identifier: MIT */
/* Classifier-free guidance and autoguidance around networks that take labels. */
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

static bool autoguided_at(const nl_guidance *guidance, float t)
{
    return guidance->guide && guidance->guide_scale != 1 &&
           nl_guided_between(guidance->guide_low, guidance->guide_high, t);
}

typedef bool (*acts_at)(const nl_guidance *guidance, float t);

/* Whether it acts on one of the images at least; on a measuring device, whether it might at some time. */
static bool acts(const nl_guidance *guidance, acts_at at, const float *t, int64_t batch)
{
    bool any = false;
    if (guidance->device->measuring)
        return at == guided_at ? guidance->scale != 1
                               : guidance->guide && guidance->guide_scale != 1;
    for (int64_t image = 0; image < batch; image++)
        any |= at(guidance, t[image]);
    return any;
}

/* Through one of the networks, with the labels. */
static nl_status evaluate_alone(nl_guidance *guidance, nl_network_function network,
                                const nl_tensor *x, const float *t, const float *s,
                                const nl_tensor *prediction)
{
    int64_t batch = x->shape[0];
    nl_tensor labels = nl_tensor_rows(&guidance->labels, 0, batch);
    return network(guidance->user, x, t, time_count(t, batch), s, &labels, prediction);
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

/* The images on which it acts, or the others. */
static nl_status copy_where(nl_guidance *guidance, acts_at at, bool wanted, const float *t,
                            const nl_tensor *from, const nl_tensor *to)
{
    nl_device *device = guidance->device;
    int64_t batch = to->shape[0];
    for (int64_t first = 0, count; first < batch; first += count + 1) {
        for (count = 0; first + count < batch; count++)
            if (at(guidance, t[first + count]) != wanted)
                break;
        if (!count)
            continue;
        nl_tensor source = nl_tensor_rows(from, first, count);
        nl_tensor target = nl_tensor_rows(to, first, count);
        NL_CHECK(device->ops->copy(device, target.data, source.data, nl_tensor_bytes(&target)));
    }
    return NL_OK;
}

/* prediction: with classifier-free guidance; both [2B, ...] from the arena: its first half the prediction for the
 * classes. */
static nl_status guide_by_class(nl_guidance *guidance, const nl_tensor *x, const float *t,
                                const float *s, const nl_tensor *both, const nl_tensor *prediction)
{
    int64_t channels = x->shape[1];
    if (guidance->channels > 0)
        channels = NL_MIN(channels, guidance->channels);
    NL_CHECK(evaluate_both(guidance, x, t, s, both));
    NL_CHECK(NL_OP(guidance->device, guide, .prediction = *both, .y = *prediction,
                   .scale = (float)guidance->scale, .channels = channels));
    NL_CHECK(copy_where(guidance, guided_at, false, t, both, prediction)); /* of the first half */
    return NL_OK;
}

/* Adds the other network's term. both: its first half is the prediction for the classes, the second is free. */
static nl_status guide_by_network(nl_guidance *guidance, const nl_tensor *x, const float *t,
                                  const float *s, bool by_class, const nl_tensor *both,
                                  const nl_tensor *prediction)
{
    nl_device *device = guidance->device;
    int64_t batch = x->shape[0];
    nl_tensor own = nl_tensor_rows(both, 0, batch), other = nl_tensor_rows(both, batch, batch);
    nl_tensor guided;
    NL_CHECK(evaluate_alone(guidance, guidance->guide, x, t, s, &other));
    NL_CHECK(nl_arena_tensor(device, NL_F32, prediction->ndim, prediction->shape, &guided));
    NL_CHECK(NL_OP(device, guide, .prediction = *both, .y = guided,
                   .scale = (float)guidance->guide_scale, .channels = x->shape[1]));
    if (by_class)
        NL_CHECK(NL_OP(device, combine, .terms = 3, .x = {guided, *prediction, own},
                       .coefficients = (const double[]){1, 1, -1}, .y = guided));
    return copy_where(guidance, autoguided_at, true, t, &guided, prediction);
}

static nl_status guide(void *user, const nl_tensor *x, const float *t, const float *s,
                       const nl_tensor *prediction)
{
    nl_status status = NL_OK;
    nl_guidance *guidance = user;
    nl_device *device = guidance->device;
    int64_t batch = x->shape[0], mark = nl_arena_mark(device);
    bool by_class = acts(guidance, guided_at, t, batch);
    bool by_network = acts(guidance, autoguided_at, t, batch);
    nl_tensor both = twice(prediction);
    if (guidance->labels.shape[0] < (by_class ? 2 * batch : batch))
        return nl_fail(device->context, NL_ERROR_INTERNAL, "guidance: %lld labels for %lld images",
                       (long long)guidance->labels.shape[0], (long long)batch);
    if (by_class || by_network)
        NL_TRY(nl_arena_tensor(device, NL_F32, both.ndim, both.shape, &both));
    if (by_class)
        NL_TRY(guide_by_class(guidance, x, t, s, &both, prediction));
    else
        NL_TRY(evaluate_alone(guidance, guidance->network, x, t, s, prediction));
    if (by_network && !by_class)
        NL_TRY(device->ops->copy(device, both.data, prediction->data, nl_tensor_bytes(prediction)));
    if (by_network)
        NL_TRY(guide_by_network(guidance, x, t, s, by_class, &both, prediction));
cleanup:
    nl_arena_release(device, mark);
    return status;
}

nl_model_function nl_guidance_model(nl_guidance *guidance)
{
    return (nl_model_function){guide, guidance};
}
