/* Convolutions without cuDNN: products of the weight with gathered patches, through cuBLASLt. For single pictures in
 * every build, for all in one without cuDNN. */
#include "conv2d.cuh"
#include "image_types.cuh"
#include "product.cuh"

enum { MOST_PATCHES = 256 << 20 /* bytes at once */ };

/* Patches of `count` output pixels from pixel `first` on: [count, taps, channels], beyond x's channels 0. */
template <typename T>
__global__ void gather_kernel(const T *x, T *patches, int64_t first, int64_t count, int channels,
                              nl_conv_problem p)
{
    const int taps = p.kernel_height * p.kernel_width;
    NL_GRID_LOOP(i, count * taps * channels)
    {
        const int c = i % channels, tap = i / channels % taps;
        const int64_t pixel = first + i / channels / taps,
                      image = pixel / ((int64_t)p.out_height * p.out_width);
        const int row =
            pixel / p.out_width % p.out_height * p.stride - p.pad_top + tap / p.kernel_width;
        const int column = pixel % p.out_width * p.stride - p.pad_left + tap % p.kernel_width;
        const bool inside =
            row >= 0 && row < p.height && column >= 0 && column < p.width && c < p.channels;
        nl_put(patches + i,
               inside ? nl_get(x + ((image * p.height + row) * p.width + column) * p.channels + c)
                      : 0.f);
    }
}

static int round_up(int x)
{
    return (x + 7) / 8 * 8;
}

/* Channels and outputs in eights, since cuBLASLt wants rows of whole 16 bytes. */
nl_status nl_conv_gather(nl_device *device, const nl_conv_problem *p, const nl_tensor *weight,
                         const nl_conv_operands *operands)
{
    cudaStream_t stream = nl_cuda_of(device)->stream;
    const int64_t pixels = (int64_t)p->batch * p->out_height * p->out_width;
    const int64_t size = nl_dtype_size(p->type);
    nl_conv_problem bare = *p;
    bare.bias = bare.residual = 0;
    bare.activation = NL_ACT_NONE;
    bare.channels = round_up(p->channels);
    bare.outputs = round_up(p->outputs);
    const int64_t depth = (int64_t)p->kernel_height * p->kernel_width * bare.channels;
    const nl_conv_order order = {p->type, bare.outputs, bare.channels, false};
    const int64_t part = NL_MAX(1, NL_MIN(pixels, MOST_PATCHES / (depth * size)));
    const int64_t patch_bytes = (part * depth * size + 255) / 256 * 256;
    const void *w;
    void *scratch;
    nl_tensor typed = {};
    typed.dtype = p->type;
    nl_status status = nl_cuda_conv_weight(device, weight, &order, &w);
    if (status == NL_OK)
        status = nl_cuda_scratch(device, "patches of a convolution",
                                 patch_bytes + pixels * bare.outputs * size, &scratch);
    if (status != NL_OK)
        return status;
    char *y = (char *)scratch + patch_bytes;
    for (int64_t first = 0; first < pixels && status == NL_OK; first += part) {
        const int64_t count = NL_MIN(part, pixels - first);
        NL_FOR_IMAGE_TYPE(typed, T, {
            gather_kernel<T><<<nl_blocks(count * depth, 256), 256, 0, stream>>>(
                (const T *)operands->x, (T *)scratch, first, count, bare.channels, *p);
        });
        nl_product product = {};
        product.rows = count, product.columns = bare.outputs, product.depth = depth;
        product.x_stride = product.w_stride = depth, product.y_stride = bare.outputs;
        product.x_type = product.w_type = product.y_type = p->type, product.alpha = 1.f;
        product.alone = p->batch == 1;
        status =
            nl_cuda_product(device, &product, scratch, w, NULL, y + first * bare.outputs * size);
    }
    if (status == NL_OK)
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
