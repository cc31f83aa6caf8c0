/* SPDX-License-Identifier: MIT */
/* Convolutions without cuDNN: products of the weight with gathered patches, through cuBLASLt or, of a single picture, our own
 * product. conv2d.cu says which convolutions. */
#include "conv2d.cuh"
#include "product/product.cuh"

enum { MOST_PATCHES = 256 << 20 /* bytes at once */ };

/* A block writes 32 elements, of up to 16 bytes, of the patch [taps, channels] of every pixel of a line of y. x has
 * x_channels elements a pixel, what is beyond them is 0. Lines are those of all pictures. */
template <typename E>
__global__ void gather_kernel(const E *x, E *patches, int64_t first_line, int x_channels,
                              int channels, nl_conv_problem p)
{
    const int64_t image = (first_line + blockIdx.x) / p.out_height;
    const int line = (int)(first_line + blockIdx.x - image * p.out_height);
    const int size = p.kernel_height * p.kernel_width * channels;
    for (int i = blockIdx.y * 32 + threadIdx.x; i < size; i += gridDim.y * 32) {
        const int tap = i / channels, c = i - tap * channels;
        const int row = line * p.stride - p.pad_top + tap / p.kernel_width;
        const int left = tap % p.kernel_width - p.pad_left;
        const bool inside = row >= 0 && row < p.height && c < x_channels;
        const E *from = x + (image * p.height + (inside ? row : 0)) * p.width * x_channels + c;
        E *to = patches + (int64_t)blockIdx.x * p.out_width * size + i;
#pragma unroll 4
        for (int column = threadIdx.y; column < p.out_width; column += blockDim.y) {
            const int at = column * p.stride + left;
            to[(int64_t)column * size] =
                inside && at >= 0 && at < p.width ? from[(int64_t)at * x_channels] : E{};
        }
    }
}

template <typename E>
static void gather_as(const nl_conv_problem *p, const void *x, void *patches, int64_t first_line,
                      int64_t lines, int channels, cudaStream_t stream)
{
    const int v = (int)sizeof(E) / (int)nl_dtype_size(p->type);
    const int size = p->kernel_height * p->kernel_width * channels / v;
    const dim3 grid((unsigned)lines, (unsigned)NL_MIN((size + 31) / 32, 65535));
    gather_kernel<<<grid, dim3(32, 8), 0, stream>>>((const E *)x, (E *)patches, first_line,
                                                    p->channels / v, channels / v, *p);
}

static void gather(const nl_conv_problem *p, const void *x, void *patches, int64_t first_line,
                   int64_t lines, int channels, cudaStream_t stream)
{
    const bool wide = channels == p->channels && (uintptr_t)x % 16 == 0;
    auto run = wide                ? gather_as<uint4>
               : p->type == NL_F32 ? gather_as<uint32_t>
                                   : gather_as<uint16_t>;
    run(p, x, patches, first_line, lines, channels, stream);
}

/* Whether the product can write y itself, with all that comes after the convolution. */
static bool finishes(const nl_conv_problem *p)
{
    return p->type == NL_F32 && !p->residual && p->activation != NL_ACT_SILU && !p->apart &&
           p->outputs % 4 == 0 && p->y_pixel % 4 == 0;
}

nl_status nl_conv_gather(nl_device *device, const nl_conv_problem *p, const nl_tensor *weight,
                         const nl_conv_operands *operands)
{
    cudaStream_t stream = nl_cuda_of(device)->stream;
    const int64_t size = nl_dtype_size(p->type), lines = p->batch * p->out_height;
    const int unit = 16 / (int)size;
    const bool whole = finishes(p);
    nl_conv_problem bare = *p;
    bare.bias = bare.residual = 0;
    bare.activation = NL_ACT_NONE;
    bare.channels = nl_conv_round_up(p->channels, unit);
    bare.outputs = nl_conv_round_up(p->outputs, unit);
    bare.y_pixel = whole ? p->y_pixel : bare.outputs;
    const int64_t depth = (int64_t)p->kernel_height * p->kernel_width * bare.channels;
    const nl_conv_order order = {p->type, bare.outputs, bare.channels, NL_CONV_PLAIN};
    const int64_t part = NL_MAX(1, NL_MIN(lines, MOST_PATCHES / (p->out_width * depth * size)));
    const int64_t patch_bytes = (part * p->out_width * depth * size + 255) / 256 * 256;
    const int64_t y_bytes = whole ? 0 : lines * p->out_width * bare.outputs * size;
    const void *w, *bias = NULL;
    void *scratch;
    nl_status status = nl_cuda_conv_weight(device, weight, &order, &w);
    if (status == NL_OK && whole && p->bias)
        status = nl_cuda_conv_bias(device, operands->bias, p->type, p->outputs, &bias);
    if (status == NL_OK)
        status =
            nl_cuda_scratch(device, "patches of a convolution", patch_bytes + y_bytes, &scratch);
    if (status != NL_OK)
        return status;
    char *y = whole ? (char *)operands->y : (char *)scratch + patch_bytes;
    nl_product product = {};
    product.columns = bare.outputs, product.depth = depth;
    product.x_stride = product.w_stride = depth, product.y_stride = bare.y_pixel;
    product.x_type = product.w_type = product.y_type = p->type, product.alpha = 1.f;
    product.alone = nl_conv_is_alone(p), product.tf32 = p->tf32;
    product.bias = bias != NULL, product.relu = whole && p->activation == NL_ACT_RELU;
    for (int64_t first = 0; first < lines && status == NL_OK; first += part) {
        const int64_t count = NL_MIN(part, lines - first);
        gather(p, operands->x, scratch, first, count, bare.channels, stream);
        product.rows = count * p->out_width;
        status = nl_cuda_product(device, &product, scratch, w, bias,
                                 y + first * p->out_width * bare.y_pixel * size);
    }
    if (status == NL_OK && !whole)
        nl_conv_finish(p, &bare, y, operands, stream);
    return status == NL_OK ? NL_CUDA_LAUNCHED(device, "conv2d") : status;
}

#ifndef NL_CUDNN
extern "C" void nl_cuda_convolutions_destroy(nl_cuda *cuda)
{
    (void)cuda;
}

bool nl_conv_doubles(nl_device *device, const nl_conv_problem *p)
{
    (void)device, (void)p;
    return false;
}

nl_status nl_conv_run(nl_device *device, const nl_conv_problem *p, const nl_tensor *weight,
                      const nl_conv_operands *operands)
{
    return nl_conv_gather(device, p, weight, operands);
}
#endif
