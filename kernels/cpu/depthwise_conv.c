/* SPDX-License-Identifier: MIT */
/* Depthwise convolution over the token grid (lepe), a strip of tokens at a time in registers. */
#include "nl_cpu.h"
#include "vector.h"

/* Tokens of a row of the grid whose sums are made at a time, in registers. */
enum { STRIP = 8 };

typedef struct plan {
    const nl_depthwise_conv_args *args;
    int64_t size, kernel, columns; /* columns of the grid that a strip reads */
    const float *weight;           /* [k * k, D] */
    const float *zeros;            /* [D], where the grid has no token */
} plan;

/* The tokens that the strip at (y, x) of an image reads: from [k, columns]; NULL for rows outside of the grid. */
static void find_tokens(const plan *p, int64_t image, int64_t y, int64_t x, const float **from)
{
    int64_t height = p->args->grid_height, width = p->args->grid_width, reach = p->kernel / 2;
    for (int64_t u = 0; u < p->kernel; u++)
        for (int64_t v = 0; v < p->columns; v++) {
            int64_t row = y + u - reach, column = x + v - reach;
            const float *token = p->zeros;
            if (row < 0 || row >= height)
                token = NULL;
            else if (column >= 0 && column < width)
                token = nl_cpu_row(&p->args->x, (image * height + row) * width + column);
            from[u * p->columns + v] = token;
        }
}

NL_INLINE nl_vec load_some(const float *from, int64_t lanes)
{
    nl_vec x = {0};
    memcpy(&x, from, (size_t)lanes * sizeof(float));
    return x;
}

/* out of `tokens` tokens and the channels from `channel` on, `lanes` of them: NL_LANES, or what is left at the end. */
NL_INLINE void convolve(const plan *p, const float *const *from, int64_t channel, int64_t lanes,
                        const float *const *addend, float *const *out, int64_t tokens)
{
    const float *weight = p->weight + channel;
    const float *bias = p->args->bias.data ? p->args->bias.data : p->zeros;
    nl_vec sum[STRIP];
    for (int i = 0; i < STRIP; i++)
        sum[i] = load_some(bias + channel, lanes);
    for (int64_t u = 0; u < p->kernel; u++, from += p->columns, weight += p->kernel * p->size)
        for (int64_t v = 0; from[0] && v < p->kernel; v++) {
            nl_vec w = load_some(weight + v * p->size, lanes);
            for (int i = 0; i < STRIP; i++)
                sum[i] += w * load_some(from[v + i] + channel, lanes);
        }
    for (int i = 0; i < tokens; i++) {
        nl_vec y = load_some(addend[i] + channel, lanes) + sum[i];
        memcpy(out[i] + channel, &y, (size_t)lanes * sizeof(float));
    }
}

static void convolve_strip(const plan *p, int64_t row, int64_t x, const float **from)
{
    int64_t height = p->args->grid_height, width = p->args->grid_width, channel = 0;
    int64_t tokens = NL_MIN(STRIP, width - x);
    const nl_tensor *to = &p->args->out, *base = p->args->addend.data ? &p->args->addend : to;
    const float *addend[STRIP] = {0};
    float *out[STRIP] = {0};
    for (int64_t i = 0; i < tokens; i++) {
        addend[i] = nl_cpu_row(base, row * width + x + i);
        out[i] = nl_cpu_row_out(to, row * width + x + i);
    }
    find_tokens(p, row / height, row % height, x, from);
    for (; channel + NL_LANES <= p->size; channel += NL_LANES)
        convolve(p, from, channel, NL_LANES, addend, out, tokens);
    if (channel < p->size)
        convolve(p, from, channel, p->size - channel, addend, out, tokens);
}

/* weight [k * k, D] of args->weight [D, 1, k, k], by rows from the last to the first when turned. given [D, k * k] is room. */
static void arrange(const nl_depthwise_conv_args *args, bool turned, float *given, float *weight)
{
    int64_t size = args->weight.shape[0], taps = args->weight.shape[3] * args->weight.shape[3];
    nl_convert_to_float(args->weight.data, args->weight.dtype, size * taps, given);
    for (int64_t tap = 0; tap < taps; tap++)
        for (int64_t i = 0; i < size; i++)
            weight[tap * size + i] = given[i * taps + (turned ? taps - 1 - tap : tap)];
}

nl_status NL_CPU(convolve_tokens)(nl_device *device, const nl_depthwise_conv_args *args,
                                  bool turned)
{
    int64_t size = args->weight.shape[0], kernel = args->weight.shape[3], taps = kernel * kernel;
    int64_t width = args->grid_width, rows = args->batch * args->grid_height;
    int64_t columns = STRIP + kernel - 1, tokens = kernel * columns;
    int team = nl_cpu_team(device, rows * width * size * taps);
    void *scratch;
    NL_CHECK(nl_cpu_scratch(device,
                            (2 * taps + 1) * size * (int64_t)sizeof(float) +
                                team * tokens * (int64_t)sizeof(float *),
                            &scratch));
    const float **from = scratch;
    float *weight = (float *)(from + team * tokens), *zeros = weight + taps * size;
    arrange(args, turned, zeros + size, weight);
    memset(zeros, 0, (size_t)size * sizeof(float));
    plan p = {args, size, kernel, columns, weight, zeros};
#pragma omp parallel for num_threads(team) schedule(static)
    for (int64_t row = 0; row < rows; row++)
        for (int64_t x = 0; x < width; x += STRIP)
            convolve_strip(&p, row, x, from + omp_get_thread_num() * tokens);
    return NL_OK;
}

/* x [B * T, D], weight [D, 1, k, k]; addend, out [B * T, D] */
nl_status NL_CPU(depthwise_conv)(nl_device *device, const nl_depthwise_conv_args *args)
{
    return NL_CPU(convolve_tokens)(device, args, false);
}
