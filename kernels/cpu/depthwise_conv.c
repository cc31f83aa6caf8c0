#include "nl_cpu.h"

#include <string.h>

/* One token: sum [D] = bias + its window of x. weight [k * k, D]. */
static void window(const nl_depthwise_conv_args *args, const float *weight, int64_t image,
                   int64_t y, int64_t x, float *sum)
{
    int64_t height = args->grid_height, width = args->grid_width;
    int64_t size = args->weight.shape[0], kernel = args->weight.shape[3], reach = kernel / 2;
    memcpy(sum, args->bias.data, (size_t)size * sizeof(float));
    for (int64_t u = 0; u < kernel; u++)
        for (int64_t v = 0; v < kernel; v++) {
            int64_t from_y = y + u - reach, from_x = x + v - reach;
            if (from_y < 0 || from_y >= height || from_x < 0 || from_x >= width)
                continue;
            const float *from = nl_cpu_row(&args->x, (image * height + from_y) * width + from_x);
            const float *w = weight + (u * kernel + v) * size;
#pragma omp simd
            for (int64_t i = 0; i < size; i++)
                sum[i] += from[i] * w[i];
        }
}

/* x [B * T, D], weight [D, 1, k, k]; out [B * T, D] is added to */
nl_status NL_CPU(depthwise_conv)(nl_device *device, const nl_depthwise_conv_args *args)
{
    int64_t size = args->weight.shape[0], taps = args->weight.shape[2] * args->weight.shape[3];
    int64_t width = args->grid_width, rows = args->batch * args->grid_height;
    int team = nl_cpu_team(device, rows * width * size * taps);
    void *scratch;
    nl_status status =
        nl_cpu_scratch(device, (taps * 2 + team) * size * (int64_t)sizeof(float), &scratch);
    if (status != NL_OK)
        return status;
    float *weight = scratch, *transposed = weight + taps * size, *sums = transposed + taps * size;
    nl_convert_to_float(args->weight.data, args->weight.dtype, size * taps, weight);
    for (int64_t tap = 0; tap < taps; tap++)
        for (int64_t i = 0; i < size; i++)
            transposed[tap * size + i] = weight[i * taps + tap];
#pragma omp parallel for num_threads(team) schedule(static)
    for (int64_t row = 0; row < rows; row++) {
        float *sum = sums + omp_get_thread_num() * size;
        for (int64_t x = 0; x < width; x++) {
            float *out = nl_cpu_row_out(&args->out, row * width + x);
            window(args, transposed, row / args->grid_height, row % args->grid_height, x, sum);
#pragma omp simd
            for (int64_t i = 0; i < size; i++)
                out[i] += sum[i];
        }
    }
    return NL_OK;
}
