/* SPDX-License-Identifier: MIT */
/* Weights of convolutions in the order of their readers: weight.cuh. A thread for each element of the result. */
#include "weight.cuh"

#include <cstdlib>

struct nl_conv_weights {
    nl_tensor source;
    nl_conv_order order;
    void *data;
    int64_t bytes;
    bool valid; /* data holds source's values */
    nl_conv_weights *next;
};

struct weight_shape {
    int outputs, channels, height, width;
};

/* Output of a row of NL_CONV_TILED. */
__device__ __forceinline__ int64_t output_of_row(int64_t row)
{
    const int r = row % NL_CONV_TILED_RUN;
    return row - r + r % 8 / 2 * 8 + r / 8 * 2 + r % 2;
}

/* i walks [outputs, kh, kw, channels] of the order. */
template <bool TILED, typename W, typename T>
__global__ void order_kernel(const W *from, T *to, weight_shape shape, int outputs, int channels)
{
    const int taps = shape.height * shape.width;
    NL_GRID_LOOP(i, (int64_t)outputs * taps * channels)
    {
        const int c = i % channels, tap = i / channels % taps;
        const int64_t row = i / channels / taps, o = TILED ? output_of_row(row) : row;
        const bool inside = c < shape.channels && o < shape.outputs;
        nl_put(to + i, inside ? nl_get(from + (o * shape.channels + c) * taps + tap) : 0.f);
    }
}

/* i walks [channels, 4, 4, outputs]. Row r of the kernel sums the rows of 3 from max(2 - r, 0) to min(3 - r, 2). */
template <typename W, typename T>
__global__ void fold_kernel(const W *from, T *to, weight_shape shape, int outputs, int channels)
{
    NL_GRID_LOOP(i, (int64_t)16 * outputs * channels)
    {
        const int64_t o = i % outputs, c = i / outputs / 16;
        const int r = i / outputs / 4 % 4, s = i / outputs % 4;
        float sum = 0.f;
        if (c < shape.channels && o < shape.outputs)
            for (int row = max(2 - r, 0); row <= min(3 - r, 2); row++)
                for (int column = max(2 - s, 0); column <= min(3 - s, 2); column++)
                    sum += nl_get(from + ((o * shape.channels + c) * 3 + row) * 3 + column);
        nl_put(to + i, sum);
    }
}

/* Which of three taps on the doubled picture fall on tap 0 or 1 of a phase. */
__device__ __forceinline__ int first_tap(int phase, int tap)
{
    return tap ? 1 + phase : 0;
}
__device__ __forceinline__ int last_tap(int phase, int tap)
{
    return tap ? 2 : phase;
}

/* i walks [2, 2, outputs, 2, 2, channels]. */
template <typename W, typename T>
__global__ void tile_phases_kernel(const W *from, T *to, weight_shape shape, int outputs,
                                   int channels)
{
    NL_GRID_LOOP(i, (int64_t)16 * outputs * channels)
    {
        const int c = i % channels, tap_x = i / channels % 2, tap_y = i / channels / 2 % 2;
        const int64_t row = i / channels / 4, o = output_of_row(row % outputs);
        const int phase_x = row / outputs % 2, phase_y = row / outputs / 2;
        float sum = 0.f;
        if (c < shape.channels && o < shape.outputs)
            for (int y = first_tap(phase_y, tap_y); y <= last_tap(phase_y, tap_y); y++)
                for (int x = first_tap(phase_x, tap_x); x <= last_tap(phase_x, tap_x); x++)
                    sum += nl_get(from + ((o * shape.channels + c) * 3 + y) * 3 + x);
        nl_put(to + i, sum);
    }
}

static void fill(nl_cuda *cuda, const nl_conv_weights *w)
{
    const weight_shape shape = {(int)w->source.shape[0], (int)w->source.shape[1],
                                (int)w->source.shape[2], (int)w->source.shape[3]};
    nl_tensor to = {};
    to.dtype = w->order.type;
    const unsigned blocks = nl_blocks(w->bytes / nl_dtype_size(to.dtype), 256);
    NL_FOR_TYPE(w->source, W, NL_FOR_IMAGE_TYPE(to, T, {
                    auto run = [&](auto kernel) {
                        kernel<<<blocks, 256, 0, cuda->stream>>>(
                            (const W *)w->source.data, (T *)w->data, shape, w->order.outputs,
                            w->order.channels);
                    };
                    switch (w->order.layout) {
                    case NL_CONV_FOLDED:
                        run(fold_kernel<W, T>);
                        break;
                    case NL_CONV_TILED:
                        run(order_kernel<true, W, T>);
                        break;
                    case NL_CONV_TILED_PHASES:
                        run(tile_phases_kernel<W, T>);
                        break;
                    default:
                        run(order_kernel<false, W, T>);
                    }
                }));
}

static bool same(const nl_conv_weights *w, const nl_tensor *source, const nl_conv_order *order)
{
    return w->source.data == source->data && w->source.dtype == source->dtype &&
           nl_tensor_same_shape(&w->source, source) && w->order.type == order->type &&
           w->order.outputs == order->outputs && w->order.channels == order->channels &&
           w->order.layout == order->layout;
}

nl_status nl_cuda_conv_weight(nl_device *device, const nl_tensor *weight,
                              const nl_conv_order *order, const void **ordered)
{
    nl_cuda *cuda = nl_cuda_of(device);
    nl_conv_weights *w = cuda->weights;
    while (w && !same(w, weight, order))
        w = w->next;
    if (!w) {
        w = (nl_conv_weights *)calloc(1, sizeof(*w));
        if (!w)
            return nl_fail(device->context, NL_ERROR_MEMORY,
                           "a convolution's weight: out of host memory");
        const bool doubled =
            order->layout == NL_CONV_FOLDED || order->layout == NL_CONV_TILED_PHASES;
        const int64_t taps = doubled ? 16 : weight->shape[2] * weight->shape[3];
        w->source = *weight;
        w->order = *order;
        w->bytes = taps * order->outputs * order->channels * nl_dtype_size(order->type);
        nl_status status =
            device->ops->alloc(device, "a convolution's weight, reordered", w->bytes, &w->data);
        if (status != NL_OK) {
            free(w);
            return status;
        }
        w->next = cuda->weights;
        cuda->weights = w;
    }
    if (!w->valid)
        fill(cuda, w);
    w->valid = true;
    *ordered = w->data;
    return NL_CUDA_LAUNCHED(device, "a convolution's weight");
}

nl_status nl_cuda_conv_bias(nl_device *device, const void *bias, nl_dtype type, int outputs,
                            const void **typed)
{
    const nl_conv_order order = {type, outputs, 1, NL_CONV_PLAIN};
    const int64_t shape[] = {outputs, 1, 1, 1};
    const nl_tensor column = nl_tensor_of((void *)bias, NL_F32, 4, shape);
    return nl_cuda_conv_weight(device, &column, &order, typed);
}

void nl_cuda_weights_changed(nl_device *device, const void *memory, int64_t bytes, bool freed)
{
    nl_conv_weights **link = &nl_cuda_of(device)->weights;
    const uintptr_t start = (uintptr_t)memory, end = start + bytes;
    while (*link) {
        nl_conv_weights *w = *link;
        const uintptr_t first = (uintptr_t)w->source.data;
        const bool hit = first < end && start < first + nl_tensor_bytes(&w->source);
        w->valid = w->valid && !hit;
        if (hit && freed) {
            *link = w->next;
            device->ops->free(device, w->data, w->bytes);
            free(w);
        } else {
            link = &w->next;
        }
    }
}

void nl_cuda_weights_destroy(nl_device *device)
{
    nl_cuda *cuda = nl_cuda_of(device);
    while (cuda->weights) {
        nl_conv_weights *w = cuda->weights;
        cuda->weights = w->next;
        device->ops->free(device, w->data, w->bytes);
        free(w);
    }
}
