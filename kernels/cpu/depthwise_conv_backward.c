/* SPDX-License-Identifier: MIT */
/* Gradients of the depthwise convolution: by data with the kernel turned, by weight as correlations. */
#include "nl_cpu.h"
#include "vector.h"

/* Tokens of a row whose products are summed at a time, from registers. */
enum { STRIP = 8 };

/* A task has NL_LANES channels and goes through the images one by one: sums over tokens are in their order. It copies
 * an image's channels to planes of vectors, so that no window leaves them: dout [height, padded width], x with a margin
 * of k / 2 rows and columns more on each side, both 0 where there is no token. */
typedef struct plan {
    const nl_depthwise_conv_backward_args *args;
    int64_t kernel, reach, height, width; /* width: of the plane of dout, whole strips */
    int64_t wide;                         /* of the plane of x */
    int64_t room;                         /* vectors of a task: both planes, dweight [k, k] */
} plan;

static plan make_plan(const nl_depthwise_conv_backward_args *args)
{
    plan p = {.args = args, .kernel = args->weight.shape[3], .height = args->grid_height};
    p.reach = p.kernel / 2;
    p.width = nl_cpu_pad(args->grid_width, STRIP);
    p.wide = p.width + 2 * p.reach;
    p.room = p.height * p.width + (p.height + 2 * p.reach) * p.wide + p.kernel * p.kernel;
    return p;
}

/* An image's tokens to a plane whose first one lies at `plane`, its rows `wide` apart. */
static void copy_plane(const plan *p, const nl_tensor *from, int64_t image, int64_t channel,
                       nl_vec *plane, int64_t wide)
{
    int64_t lanes = NL_MIN(NL_LANES, from->shape[1] - channel), width = p->args->grid_width;
    for (int64_t y = 0; y < p->height; y++)
        for (int64_t x = 0; x < width; x++) {
            const float *token = nl_cpu_row(from, (image * p->height + y) * width + x);
            memcpy(plane + y * wide + x, token + channel, (size_t)lanes * sizeof(float));
        }
}

/* sum[v] += sum over a row's tokens of dout(x) x(x + v), for `taps` (a constant) of the kernel's columns. */
NL_INLINE void correlate_row(const nl_vec *dout, const nl_vec *x, int64_t width, int taps,
                             nl_vec *sums)
{
    nl_vec sum[5] = {{0}};
    for (int64_t first = 0; first < width; first += STRIP)
        for (int i = 0; i < STRIP; i++)
            for (int v = 0; v < taps; v++)
                sum[v] += dout[first + i] * x[first + i + v];
    for (int v = 0; v < taps; v++)
        sums[v] += sum[v];
}

/* dweight [k, k] of an image */
static void correlate(const plan *p, const nl_vec *dout, const nl_vec *x, nl_vec *dweight)
{
    for (int64_t y = 0; y < p->height; y++)
        for (int64_t u = 0; u < p->kernel; u++) {
            const nl_vec *from = dout + y * p->width, *window = x + (y + u) * p->wide;
            nl_vec *sums = dweight + u * p->kernel;
            int64_t v = 0;
            for (; v + 5 <= p->kernel; v += 5)
                correlate_row(from, window + v, p->width, 5, sums + v);
            for (; v < p->kernel; v++)
                correlate_row(from, window + v, p->width, 1, sums + v);
        }
}

/* Channels [channel, channel + NL_LANES) of dweight and dbias. */
static void channels_backward(const plan *p, int64_t channel, nl_vec *room)
{
    int64_t taps = p->kernel * p->kernel, size = p->args->weight.shape[0];
    int64_t lanes = NL_MIN(NL_LANES, size - channel);
    nl_vec *dout = room, *x = dout + p->height * p->width;
    nl_vec *dweight = x + (p->height + 2 * p->reach) * p->wide,
           *token = x + p->reach * (p->wide + 1);
    float *to = (float *)p->args->dweight.data + channel * taps;
    float *dbias = (float *)p->args->dbias.data + channel;
    memset(room, 0, (size_t)p->room * sizeof(nl_vec));
    for (int64_t image = 0; image < p->args->batch; image++) { /* sums of one at a time are short */
        nl_vec bias = {0};
        copy_plane(p, &p->args->dout, image, channel, dout, p->width);
        copy_plane(p, &p->args->x, image, channel, token, p->wide);
        memset(dweight, 0, (size_t)taps * sizeof(nl_vec));
        correlate(p, dout, x, dweight);
        for (int64_t i = 0; i < p->height * p->width; i++)
            bias += dout[i];
        for (int64_t i = 0; i < lanes; i++) {
            dbias[i] += bias[i];
            for (int64_t tap = 0; tap < taps; tap++)
                to[i * taps + tap] += dweight[tap][i];
        }
    }
}

/* x, dout [B * T, D], weight [D, 1, k, k]; dx [B * T, D], dweight and dbias are added to */
nl_status NL_CPU(depthwise_conv_backward)(nl_device *device,
                                          const nl_depthwise_conv_backward_args *args)
{
    int64_t size = args->weight.shape[0], tasks = (size + NL_LANES - 1) / NL_LANES;
    plan p = make_plan(args);
    int team = nl_cpu_team(device, nl_tensor_count(&args->dout) * p.kernel * p.kernel);
    void *scratch;
    NL_CHECK(NL_CPU(convolve_tokens)(device,
                                     &(nl_depthwise_conv_args){.x = args->dout,
                                                               .weight = args->weight,
                                                               .out = args->dx,
                                                               .batch = args->batch,
                                                               .grid_height = args->grid_height,
                                                               .grid_width = args->grid_width},
                                     true));
    NL_CHECK(nl_cpu_scratch(device, team * p.room * (int64_t)sizeof(nl_vec), &scratch));
#pragma omp parallel for num_threads(team) schedule(dynamic)
    for (int64_t task = 0; task < tasks; task++)
        channels_backward(&p, task * NL_LANES, (nl_vec *)scratch + omp_get_thread_num() * p.room);
    return NL_OK;
}
