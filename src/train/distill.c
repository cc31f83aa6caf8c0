/* SPDX-License-Identifier: MIT */
/* Distillation of a flow map: the times of a sample, and the numbers that make its target. */
#include "distill.h"

#include <math.h>

#include "nl_random.h"
#include "nl_sampler.h"
#include "ops_training.h"

/* Of the normal numbers before the logistic function: t and s of a step, and t where s = t. */
static const double t_mean = -0.4, s_mean = 1.2, same_mean = 0;
/* Shares of the samples; the rest are steps between two drawn times. */
static const double same = 0.4, to_the_end = 0.075, on_a_grid = 0.225;
enum { GRIDS = 3 }; /* of 1, 2 and 4 steps */

double nl_distill_alpha(const nl_distill_options *options, double done)
{
    const double first = 0.05, last = 0.6, sharpness = 25;
    double place = (done - first) / (last - first);
    if (options->settled)
        return options->floor;
    return fmax(options->floor, 1 - 1 / (1 + exp(-sharpness * (place - 0.5))));
}

static double logistic(double x)
{
    return 1 / (1 + exp(-x));
}

void nl_distill_times(uint64_t seed, const int64_t *samples, int64_t count, double *t, double *s)
{
    for (int64_t i = 0; i < count; i++) {
        float normals[4];
        uint32_t words[4];
        nl_philox_normal4(seed, (uint64_t)samples[i], NL_STREAM_TIME, 0, normals);
        nl_philox(seed, (uint64_t)samples[i], NL_STREAM_TIME, 4, words);
        double kind = words[0] * 0x1p-32;
        double a = logistic(t_mean + normals[0]), b = logistic(s_mean + normals[1]);
        t[i] = fmin(a, b);
        s[i] = fmax(a, b);
        if (kind < same) {
            t[i] = s[i] = logistic(same_mean + normals[2]);
        } else if (kind < same + to_the_end) {
            s[i] = 1;
        } else if (kind < same + to_the_end + on_a_grid) {
            int steps = 1 << (words[1] % GRIDS);
            int place = (int)(((uint64_t)words[2] * (uint64_t)steps) >> 32);
            t[i] = (double)place / steps;
            s[i] = (double)(place + 1) / steps;
        }
    }
}

static void set_row(float *row, double data, double noise)
{
    row[NL_LOSS_DATA] = row[NL_LOSS_TARGET_DATA] = (float)data;
    row[NL_LOSS_NOISE] = row[NL_LOSS_TARGET_NOISE] = (float)noise;
    row[NL_LOSS_WEIGHT] = 1;
}

void nl_guided_row(double guidance, double low, double high, double t, float *row)
{
    double w = nl_guided_between(low, high, (float)t) ? guidance : 1;
    set_row(row, w, 1 - w);
}

void nl_distill_fill(const nl_distill_options *options, double alpha, const double *t,
                     const double *s, const int32_t *labels, int32_t null_class, int64_t count,
                     const nl_distill_rows *rows)
{
    for (int64_t i = 0; i < count; i++) {
        bool at_rest = s[i] == t[i];
        double a = at_rest ? 1 : alpha, m = t[i] + a * (s[i] - t[i]);
        rows->times[i] = rows->teacher_times[i] = rows->teacher_times[count + i] = (float)t[i];
        rows->times[count + i] = rows->later[count + i] = (float)s[i];
        rows->later[i] = (float)m;
        rows->teacher_labels[i] = labels[i];
        rows->teacher_labels[count + i] = null_class;
        nl_guided_row(options->guidance, options->low, options->high, t[i],
                      rows->guide + i * NL_LOSS_COLUMNS);
        set_row(rows->move + i * NL_LOSS_COLUMNS, 1, m - t[i]);
        set_row(rows->target + i * NL_LOSS_COLUMNS, a, 1 - a);
    }
}

nl_status nl_guided_take(double guidance, nl_device *device, const nl_tensor *x, nl_guided *guided)
{
    int64_t shape[4] = {2 * x->shape[0], x->shape[1], x->shape[2], x->shape[3]};
    if (guidance == 1)
        return NL_OK;
    NL_CHECK(nl_arena_tensor(device, NL_F32, 4, shape, &guided->both));
    return nl_arena_tensor(device, NL_F32, 4, shape, &guided->of_both);
}

nl_status nl_guided_velocity(const nl_guided *g, nl_device *device, const nl_tensor *x,
                             const nl_tensor *velocity)
{
    int64_t n = x->shape[0];
    nl_tensor times = nl_tensor_rows(&g->times, 0, n), labels = nl_tensor_rows(&g->labels, 0, n);
    if (!g->both.data)
        return nl_dit_forward_guided(g->teacher, device, x, &times, &labels, NULL, g->internal,
                                     velocity);
    for (int half = 0; half < 2; half++) {
        nl_tensor to = nl_tensor_rows(&g->both, half * n, n);
        NL_CHECK(device->ops->copy(device, to.data, x->data, nl_tensor_bytes(x)));
    }
    NL_CHECK(nl_dit_forward_guided(g->teacher, device, &g->both, &g->times, &g->labels, NULL,
                                   g->internal, &g->of_both));
    return NL_OP(device, diffuse, .data = nl_tensor_rows(&g->of_both, 0, n),
                 .noise = nl_tensor_rows(&g->of_both, n, n), .coefficients = g->guide,
                 .y = *velocity);
}
