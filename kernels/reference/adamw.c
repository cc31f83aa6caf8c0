/* SPDX-License-Identifier: MIT */
/* AdamW with clipping and moving averages over flat arrays; a step that is not finite changes nothing. */
#include "reference.h"

/* The numbers of this step: hyper, bias corrections, and the factor that clips the gradient. */
typedef struct step {
    double hyper[NL_HYPER_COLUMNS];
    double correction1, correction2; /* 1 - beta^step */
    double clip;
} step;

static void store(const nl_segment *segment, int64_t i, double value)
{
    if (segment->dtype == NL_BF16)
        ((uint16_t *)segment->weights)[i] = nl_float_to_bf16((float)value);
    else
        ((float *)segment->weights)[i] = (float)value;
}

/* Element i of the flat arrays. */
static double update(const nl_adamw_args *args, const step *s, const nl_segment *segment, int64_t i)
{
    const double *h = s->hyper;
    double gradient = s->clip * nl_at(&args->gradient, i), parameter = nl_at(&args->master, i);
    double first = h[NL_HYPER_BETA1] * nl_at(&args->first, i) + (1 - h[NL_HYPER_BETA1]) * gradient;
    double second =
        h[NL_HYPER_BETA2] * nl_at(&args->second, i) + (1 - h[NL_HYPER_BETA2]) * gradient * gradient;
    if (segment->decay)
        parameter *= 1 - h[NL_HYPER_RATE] * h[NL_HYPER_DECAY];
    parameter -= segment->rate * h[NL_HYPER_RATE] * (first / s->correction1) /
                 (sqrt(second / s->correction2) + h[NL_HYPER_EPS]);
    nl_put(&args->first, 0, i, first);
    nl_put(&args->second, 0, i, second);
    nl_put(&args->master, 0, i, parameter);
    for (int k = 0; k < args->ema_count; k++) {
        double decay = h[NL_HYPER_EMA + k];
        nl_put(&args->ema[k], 0, i, decay * nl_at(&args->ema[k], i) + (1 - decay) * parameter);
    }
    return parameter;
}

nl_status nl_reference_adamw(nl_device *device, const nl_adamw_args *args)
{
    int32_t *counter = args->counter.data;
    double norm = nl_at(&args->norm, 0);
    step s;
    (void)device;
    if (!isfinite(norm)) {
        counter[1]++;
        return NL_OK;
    }
    counter[0]++;
    counter[1] = 0;
    for (int i = 0; i < NL_HYPER_COLUMNS; i++)
        s.hyper[i] = nl_at(&args->hyper, i);
    s.correction1 = 1 - pow(s.hyper[NL_HYPER_BETA1], counter[0]);
    s.correction2 = 1 - pow(s.hyper[NL_HYPER_BETA2], counter[0]);
    s.clip = s.hyper[NL_HYPER_CLIP] > 0 ? fmin(1, s.hyper[NL_HYPER_CLIP] / (norm + 1e-6)) : 1;
    for (int k = 0; k < args->segment_count; k++) {
        const nl_segment *segment = &args->segments[k];
        for (int64_t i = 0; i < segment->count; i++)
            store(segment, i, update(args, &s, segment, segment->first + i));
    }
    return NL_OK;
}
