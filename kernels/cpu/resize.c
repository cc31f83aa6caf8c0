/* SPDX-License-Identifier: MIT */
/* Scales pictures, columns first and then rows, by tables of weights. */
#include "nl_cpu.h"

#include <math.h>

/* How the pixels of one axis come about: y[i] = sum over k < taps of weight[i taps + k] x[first[i] + k]. */
typedef struct axis {
    int64_t in, out, taps;
    int64_t *first;
    float *weight;
} axis;

static double cubic(double x)
{
    x = fabs(x);
    return x < 1 ? (1.5 * x - 2.5) * x * x + 1 : x < 2 ? ((-0.5 * x + 2.5) * x - 4) * x + 2 : 0;
}

static axis axis_of(nl_resize kind, int64_t in, int64_t out)
{
    double reach = 2 * fmax((double)in / (double)out, 1);
    int64_t taps = kind == NL_RESIZE_BICUBIC ? 2 * (int64_t)ceil(reach) + 1 : 2;
    return (axis){.in = in, .out = out, .taps = NL_MIN(taps, in)};
}

static int64_t axis_bytes(const axis *a)
{
    return nl_cpu_pad(a->out * (int64_t)sizeof(int64_t), 64) +
           nl_cpu_pad(a->out * a->taps * (int64_t)sizeof(float), 64);
}

/* Puts the tables at `memory`; returns where they end. */
static char *fill_axis(nl_resize kind, axis *a, char *memory)
{
    double ratio = (double)a->in / (double)a->out, width = fmax(ratio, 1);
    a->first = (int64_t *)memory;
    a->weight = (float *)(memory + nl_cpu_pad(a->out * (int64_t)sizeof(int64_t), 64));
    for (int64_t i = 0; i < a->out; i++) {
        bool bicubic = kind == NL_RESIZE_BICUBIC;
        double centre =
            kind == NL_RESIZE_LEGACY ? (double)i * ratio : ((double)i + 0.5) * ratio - 0.5;
        double low = bicubic ? ceil(centre - 2 * width) : floor(fmax(centre, 0));
        int64_t first = NL_MIN(NL_MAX((int64_t)low, 0), a->in - a->taps);
        double total = 0, weights = 0;
        if (!bicubic)
            centre = fmin(fmax(centre, 0), (double)(a->in - 1));
        for (int pass = 0; pass < 2; pass++, total = weights)
            for (int64_t k = 0; k < a->taps; k++) {
                double distance = (double)(first + k) - centre;
                double w = bicubic ? cubic(distance / width) : fmax(1 - fabs(distance), 0);
                if (pass == 0)
                    weights += w;
                else
                    a->weight[i * a->taps + k] = (float)(w / total);
            }
        a->first[i] = first;
    }
    return memory + axis_bytes(a);
}

/* One row x [in, C] -> y [out, C] */
static void resize_row(const axis *a, const uint8_t *x, int64_t channels, float *restrict y)
{
    for (int64_t i = 0; i < a->out; i++)
        for (int64_t c = 0; c < channels; c++) {
            const uint8_t *from = x + a->first[i] * channels + c;
            float sum = 0;
            for (int64_t k = 0; k < a->taps; k++)
                sum += a->weight[i * a->taps + k] * (float)from[k * channels];
            y[i * channels + c] = sum;
        }
}

/* Row i of y [size] from the rows of x [in, size], whose values are pixels. */
static void resize_column(const nl_resize_args *args, const axis *a, int64_t i, const float *x,
                          int64_t size, float *restrict y)
{
    const float *weight = a->weight + i * a->taps;
    x += a->first[i] * size;
#pragma omp simd
    for (int64_t j = 0; j < size; j++)
        y[j] = weight[0] * x[j];
    for (int64_t k = 1; k < a->taps; k++) {
#pragma omp simd
        for (int64_t j = 0; j < size; j++)
            y[j] += weight[k] * x[k * size + j];
    }
    bool bounded = args->kind == NL_RESIZE_BICUBIC;
#pragma omp simd
    for (int64_t j = 0; j < size; j++) {
        float value = bounded ? fminf(fmaxf(y[j], 0), 255) : y[j];
        y[j] = args->scale * value + args->shift;
    }
}

/* x [B, H, W, C] -> y [B, H', W', C], one picture after the other through [H, W', C]. */
nl_status NL_CPU(resize)(nl_device *device, const nl_resize_args *args)
{
    const int64_t *from = args->x.shape, *to = args->y.shape;
    axis rows = axis_of(args->kind, from[1], to[1]), columns = axis_of(args->kind, from[2], to[2]);
    int64_t size = to[2] * from[3];
    int team = nl_cpu_team(device, to[1] * size * columns.taps);
    void *scratch;
    NL_CHECK(nl_cpu_scratch(
        device, axis_bytes(&rows) + axis_bytes(&columns) + from[1] * size * (int64_t)sizeof(float),
        &scratch));
    char *next = fill_axis(args->kind, &rows, scratch);
    float *middle = (float *)fill_axis(args->kind, &columns, next);
    for (int64_t image = 0; image < to[0]; image++) {
        const uint8_t *x = (const uint8_t *)args->x.data + image * from[1] * from[2] * from[3];
        float *y = (float *)args->y.data + image * to[1] * size;
#pragma omp parallel num_threads(team)
        {
#pragma omp for schedule(static)
            for (int64_t row = 0; row < from[1]; row++)
                resize_row(&columns, x + row * from[2] * from[3], from[3], middle + row * size);
#pragma omp for schedule(static)
            for (int64_t row = 0; row < to[1]; row++)
                resize_column(args, &rows, row, middle, size, y + row * size);
        }
    }
    return NL_OK;
}
