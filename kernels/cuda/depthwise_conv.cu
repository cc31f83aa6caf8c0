/* out += depthwise convolution over the token grid; neighbouring tokens come through the cache. */
#include "cuda_common.cuh"

/* A block has 8 OCTETS channels, whose weights it turns to [tap, channel] in shared memory, and TOKENS ROUNDS tokens; a
 * thread takes eight channels of a token at a time. grid (groups of tokens, groups of channels). */
enum { OCTETS = 8, TOKENS = 32, ROUNDS = 4, THREADS = OCTETS * TOKENS };

template <typename T>
__global__ void __launch_bounds__(THREADS)
    depthwise_kernel(const T *x, int64_t x_stride, const float *weight, const float *bias, T *out,
                     int64_t tokens, int channels, int height, int width, int kernel)
{
    extern __shared__ __align__(16) float weights[];
    const int taps = kernel * kernel, radius = kernel / 2, first = blockIdx.y * 8 * OCTETS;
    for (int i = threadIdx.x; i < 8 * OCTETS * taps; i += THREADS) {
        const int c = i / taps, tap = i % taps;
        weights[tap * 8 * OCTETS + c] =
            first + c < channels ? weight[(int64_t)(first + c) * taps + tap] : 0.f;
    }
    __syncthreads();
    const int octet = threadIdx.x % OCTETS, c = first + octet * 8;
    if (c >= channels)
        return;
    float b[8];
    nl_load8(bias + c, b);
    for (int round = 0; round < ROUNDS; round++) {
        const int64_t token =
            (blockIdx.x * (int64_t)ROUNDS + round) * TOKENS + threadIdx.x / OCTETS;
        if (token >= tokens)
            return;
        const int place = (int)(token % (height * width)), row = place / width;
        const int column = place % width;
        float sum[8];
        nl_load8(out + token * channels + c, sum);
#pragma unroll
        for (int i = 0; i < 8; i++)
            sum[i] += b[i];
        for (int tap = 0; tap < taps; tap++) {
            const int dy = tap / kernel - radius, dx = tap % kernel - radius;
            if (row + dy < 0 || row + dy >= height || column + dx < 0 || column + dx >= width)
                continue;
            float v[8], w[8];
            nl_load8(x + (token + dy * width + dx) * x_stride + c, v);
            nl_load8(weights + tap * 8 * OCTETS + octet * 8, w);
#pragma unroll
            for (int i = 0; i < 8; i++)
                sum[i] = fmaf(w[i], v[i], sum[i]);
        }
        nl_store8(out + token * channels + c, sum);
    }
}

/* Any number of channels: a thread an element. */
template <typename T>
__global__ void depthwise_any_kernel(const T *x, int64_t x_stride, const float *weight,
                                     const float *bias, T *out, int64_t count, int channels,
                                     int height, int width, int kernel)
{
    const int radius = kernel / 2;
    NL_GRID_LOOP(i, count)
    {
        const int c = i % channels;
        const int64_t token = i / channels, image = token / (height * width);
        const int row = token / width % height, column = token % width;
        float sum = bias[c];
        for (int dy = -radius; dy <= radius; dy++)
            for (int dx = -radius; dx <= radius; dx++) {
                const int y = row + dy, z = column + dx;
                if (y >= 0 && y < height && z >= 0 && z < width)
                    sum = fmaf(weight[(c * kernel + dy + radius) * kernel + dx + radius],
                               nl_get(x + ((image * height + y) * width + z) * x_stride + c), sum);
            }
        nl_put(out + i, nl_get(out + i) + sum);
    }
}

template <typename T> static void launch(const nl_depthwise_conv_args *a, cudaStream_t stream)
{
    const int64_t tokens = a->out.shape[0];
    const int channels = (int)a->out.shape[1], kernel = (int)a->weight.shape[2];
    const size_t bytes = sizeof(float) * 8 * OCTETS * kernel * kernel;
    const T *x = (const T *)a->x.data;
    const float *weight = (const float *)a->weight.data, *bias = (const float *)a->bias.data;
    if (channels % 8 == 0 && a->x.row_stride % 8 == 0 && (uintptr_t)x % 16 == 0 &&
        bytes <= 48 << 10)
        depthwise_kernel<T>
            <<<dim3(nl_blocks(tokens, TOKENS * ROUNDS), nl_blocks(channels, 8 * OCTETS)), THREADS,
               bytes, stream>>>(x, a->x.row_stride, weight, bias, (T *)a->out.data, tokens,
                                channels, (int)a->grid_height, (int)a->grid_width, kernel);
    else
        depthwise_any_kernel<T><<<nl_blocks(tokens * channels, 256), 256, 0, stream>>>(
            x, a->x.row_stride, weight, bias, (T *)a->out.data, tokens * channels, channels,
            (int)a->grid_height, (int)a->grid_width, kernel);
}

extern "C" nl_status nl_cuda_depthwise_conv(nl_device *device, const nl_depthwise_conv_args *a)
{
    if (a->addend.data) {
        nl_status status =
            device->ops->copy(device, a->out.data, a->addend.data, nl_tensor_bytes(&a->out));
        if (status != NL_OK)
            return status;
    }
    if (nl_tensor_count(&a->out) > 0)
        NL_FOR_TYPE(a->x, T, launch<T>(a, nl_cuda_of(device)->stream));
    return NL_CUDA_LAUNCHED(device, "depthwise_conv");
}
