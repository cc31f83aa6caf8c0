#include "nl_cpu.h"

#include <string.h>

/* Channels of a task, which goes through all tokens: sums over tokens are in their order. */
enum { CHANNELS = 32 };

/* One token's dout, for channels of a task: to dx of the tokens it read, and to dweight [taps, CHANNELS]. */
static void backward_token(const nl_depthwise_conv_backward_args *args, const float *weight,
                           int64_t row, int64_t channel, int64_t channels, float *restrict dweight)
{
    int64_t height = args->grid_height, width = args->grid_width;
    int64_t kernel = args->weight.shape[3], reach = kernel / 2;
    int64_t y = row % (height * width) / width, x = row % width;
    const float *dout = nl_cpu_row(&args->dout, row) + channel;
    for (int64_t u = NL_MAX(0, reach - y); u < NL_MIN(kernel, height - y + reach); u++)
        for (int64_t v = NL_MAX(0, reach - x); v < NL_MIN(kernel, width - x + reach); v++) {
            int64_t from = row + (u - reach) * width + v - reach;
            const float *in = nl_cpu_row(&args->x, from) + channel;
            const float *w = weight + (u * kernel + v) * CHANNELS;
            float *dx = nl_cpu_row_out(&args->dx, from) + channel;
            float *dw = dweight + (u * kernel + v) * CHANNELS;
#pragma omp simd
            for (int64_t i = 0; i < channels; i++) {
                dx[i] += dout[i] * w[i];
                dw[i] += dout[i] * in[i];
            }
        }
}

/* Channels [channel, channel + channels). room [2, taps, CHANNELS] */
static void backward_channels(const nl_depthwise_conv_backward_args *args, int64_t channel,
                              int64_t channels, float *room)
{
    int64_t taps = args->weight.shape[2] * args->weight.shape[3];
    int64_t tokens = args->grid_height * args->grid_width;
    float *weight = room, *dweight = room + taps * CHANNELS, bias[CHANNELS] = {0};
    float *out = (float *)args->dweight.data + channel * taps;
    float *dbias = (float *)args->dbias.data + channel;
    const float *from = (const float *)args->weight.data + channel * taps;
    memset(room, 0, (size_t)(2 * taps * CHANNELS) * sizeof(float));
    for (int64_t i = 0; i < channels; i++)
        for (int64_t tap = 0; tap < taps; tap++)
            weight[tap * CHANNELS + i] = from[i * taps + tap];
    for (int64_t image = 0; image < args->batch; image++) {
        float sum[CHANNELS] = {0};
        for (int64_t row = image * tokens; row < (image + 1) * tokens; row++) {
            const float *dout = nl_cpu_row(&args->dout, row) + channel;
            for (int64_t i = 0; i < channels; i++)
                sum[i] += dout[i];
            backward_token(args, weight, row, channel, channels, dweight);
        }
        for (int64_t i = 0; i < channels; i++) { /* an image at a time: short sums */
            bias[i] += sum[i];
            for (int64_t tap = 0; tap < taps; tap++) {
                out[i * taps + tap] += dweight[tap * CHANNELS + i];
                dweight[tap * CHANNELS + i] = 0;
            }
        }
    }
    for (int64_t i = 0; i < channels; i++)
        dbias[i] += bias[i];
}

/* x, dout [B * T, D], weight [D, 1, k, k]; dx [B * T, D], dweight and dbias are added to */
nl_status NL_CPU(depthwise_conv_backward)(nl_device *device,
                                          const nl_depthwise_conv_backward_args *args)
{
    int64_t size = args->weight.shape[0], taps = args->weight.shape[2] * args->weight.shape[3];
    int team = nl_cpu_team(device, nl_tensor_count(&args->dout) * taps);
    int64_t room = 2 * taps * CHANNELS;
    void *scratch;
    nl_status status = nl_cpu_scratch(device, team * room * (int64_t)sizeof(float), &scratch);
    if (status != NL_OK)
        return status;
#pragma omp parallel for num_threads(team) schedule(dynamic)
    for (int64_t channel = 0; channel < size; channel += CHANNELS)
        backward_channels(args, channel, NL_MIN(CHANNELS, size - channel),
                          (float *)scratch + omp_get_thread_num() * room);
    return NL_OK;
}
