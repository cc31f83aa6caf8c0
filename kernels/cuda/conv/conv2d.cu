/* SPDX-License-Identifier: MIT */
/* y = activation(conv(x) + bias + residual), NHWC, by the first of these that serves. Shapes, types, the card and the build
 * decide, never what has run before, so that a picture always has the same bits.
 *
 * - implicit_sm90.cu, on Hopper: 3 x 3 in bf16 of one picture, in a build without cuDNN of any number.
 * - A product over pixels: 1 x 1 of x and y as they lie.
 * - Strict fp32 of several pictures: direct.cu, where sums are long gather.cu.
 * - gather.cu, patches through cuBLASLt or our own product: 1 x 1 of pixels that are not whole 16 bytes, and one picture of
 *   little work (nl_conv_is_alone), which is there before cuDNN is loaded.
 * - cuDNN (cudnn.cu), in a build without it gather.cu: the rest, large single pictures on cards before Hopper among it.
 *
 * A 3 x 3 convolution of a picture that is doubled first reads the picture as it is in implicit_sm90.cu and through cuDNN: 4 / 9
 * of the multiplications and no doubled picture. */
#include "direct.cuh"
#include "implicit_sm90.cuh"
#include "product/product.cuh"

/* A thread for V outputs of a pixel; pixels of x and y are x_pixel and y_pixel elements apart. x may be y. */
template <int V, typename T>
__global__ void finish_kernel(const T *x, int64_t x_pixel, T *y, int64_t y_pixel, const float *bias,
                              const T *residual, int64_t count, int outputs,
                              nl_activation activation)
{
    const int parts = outputs / V;
    NL_GRID_LOOP(i, count)
    {
        const int64_t pixel = i / parts;
        const int c = (int)(i - pixel * parts) * V;
        float v[V], r[V];
        nl_load(x + pixel * x_pixel + c, v);
        if (residual)
            nl_load(residual + pixel * outputs + c, r);
#pragma unroll
        for (int j = 0; j < V; j++) {
            if (bias)
                v[j] += bias[c + j];
            if (residual)
                v[j] += r[j];
            v[j] = nl_conv_activate(v[j], activation);
        }
        nl_store(y + pixel * y_pixel + c, v);
    }
}

static bool unaligned(const void *pointer)
{
    return (uintptr_t)pointer % 16 != 0;
}

void nl_conv_finish(const nl_conv_problem *p, const nl_conv_problem *done, const void *from,
                    const nl_conv_operands *o, cudaStream_t stream)
{
    const int64_t from_pixel = from == o->y ? p->y_pixel : done->outputs;
    const bool eights = p->outputs % 8 == 0 && p->y_pixel % 8 == 0 && from_pixel % 8 == 0 &&
                        !unaligned(o->y) && !unaligned(o->residual);
    const int64_t count = p->batch * p->out_height * p->out_width * p->outputs / (eights ? 8 : 1);
    const bool bias = p->bias && !done->bias, residual = p->residual && !done->residual;
    const nl_activation activation =
        done->activation == p->activation ? NL_ACT_NONE : p->activation;
    nl_tensor typed = {};
    typed.dtype = p->type;
    if (from == o->y && !bias && !residual && activation == NL_ACT_NONE)
        return;
    NL_FOR_IMAGE_TYPE(typed, T, {
        auto kernel = eights ? finish_kernel<8, T> : finish_kernel<1, T>;
        kernel<<<nl_blocks(count, 256), 256, 0, stream>>>(
            (const T *)from, from_pixel, (T *)o->y, p->y_pixel,
            bias ? (const float *)o->bias : NULL, residual ? (const T *)o->residual : NULL, count,
            p->outputs, activation);
    });
}

/* 16 bytes that are written at once, or one element. */
template <int V, typename T> struct alignas(V * sizeof(T)) pad_part {
    T v[V];
};

/* A thread for V channels of an output pixel; lines: of all pictures. */
template <int V, typename T>
__global__ void pad_kernel(const T *x, T *y, int lines, int channels, int height, int width,
                           int to_channels, int to_height, int to_width, int top, int left)
{
    const int parts = to_channels / V, i = blockIdx.x * blockDim.x + threadIdx.x;
    const int pixel = i / parts, first = (i - pixel * parts) * V, column = pixel - left;
    if (pixel >= to_width)
        return;
    for (int line = blockIdx.y; line < lines; line += gridDim.y) {
        const int image = line / to_height, row = line - image * to_height - top;
        const bool inside = row >= 0 && row < height && column >= 0 && column < width;
        const T *from = x + (((int64_t)image * height + row) * width + column) * channels + first;
        pad_part<V, T> part;
#pragma unroll
        for (int j = 0; j < V; j++)
            nl_put(part.v + j, inside && first + j < channels ? nl_get(from + j) : 0.f);
        *(pad_part<V, T> *)(y + ((int64_t)line * to_width + pixel) * to_channels + first) = part;
    }
}

void nl_conv_pad(const nl_conv_problem *p, const nl_conv_problem *padded, const void *x, void *to,
                 cudaStream_t stream)
{
    enum { THREADS = 128 };
    const int lines = (int)(padded->batch * padded->height);
    nl_tensor typed = {};
    typed.dtype = p->type;
    NL_FOR_IMAGE_TYPE(typed, T, {
        const int unit = 16 / (int)sizeof(T), v = padded->channels % unit == 0 ? unit : 1;
        const int parts = padded->width * (padded->channels / v);
        const dim3 grid((unsigned)(parts + THREADS - 1) / THREADS, (unsigned)NL_MIN(lines, 65535));
        auto kernel = v > 1 ? pad_kernel<16 / sizeof(T), T> : pad_kernel<1, T>;
        kernel<<<grid, THREADS, 0, stream>>>((const T *)x, (T *)to, lines, p->channels, p->height,
                                             p->width, padded->channels, padded->height,
                                             padded->width, p->pad_top - padded->pad_top,
                                             p->pad_left - padded->pad_left);
    });
}

static nl_conv_problem problem_of(const nl_conv2d_args *a)
{
    nl_conv_problem p = {};
    p.y_pixel = a->y.row_stride;
    p.type = a->x.dtype;
    p.activation = a->activation;
    p.tf32 = a->tf32 && a->x.dtype == NL_F32;
    p.doubled = a->doubled.data != NULL;
    p.bias = a->bias.data != NULL, p.residual = a->residual.data != NULL;
    p.apart = unaligned(a->y.data) || unaligned(a->bias.data) || unaligned(a->residual.data);
    p.batch = a->x.shape[0], p.height = (int)a->x.shape[1], p.width = (int)a->x.shape[2];
    p.channels = (int)a->x.shape[3], p.out_height = (int)a->y.shape[1];
    p.out_width = (int)a->y.shape[2], p.outputs = (int)a->y.shape[3];
    p.kernel_height = (int)a->weight.shape[2], p.kernel_width = (int)a->weight.shape[3];
    p.stride = a->stride, p.pad_top = a->pad_top, p.pad_left = a->pad_left;
    p.pad_bottom = a->pad_bottom, p.pad_right = a->pad_right;
    return p;
}

/* A 3 x 3 convolution of a doubled picture as cuDNN's transposed one of the picture as it is; false: it is not such a one.
 * Weights that meet the same pixel are summed before they are rounded to the type, where the plain way rounds each. */
static bool fold(nl_conv_problem *p)
{
    const bool usual = p->kernel_height == 3 && p->kernel_width == 3 && p->stride == 1 &&
                       p->pad_top == 1 && p->pad_left == 1 && p->pad_bottom == 1 &&
                       p->pad_right == 1;
    p->kernel_height = p->kernel_width = 4;
    return usual;
}

/* 1 x 1: a product over pixels. */
static bool is_pointwise(const nl_conv_problem *p)
{
    return p->kernel_height == 1 && p->kernel_width == 1 && p->stride == 1 && !p->pad_top &&
           !p->pad_left && !p->pad_bottom && !p->pad_right;
}

/* Whether pixels of x and y are whole 16 bytes, as tensor cores read them. */
static bool is_whole(const nl_conv_problem *p)
{
    const int unit = 16 / (int)nl_dtype_size(p->type);
    return p->channels % unit == 0 && p->outputs % unit == 0;
}

/* Whether the product can read x and write y where they are. */
static bool is_product(const nl_conv_problem *p, const void *x)
{
    const int unit = 16 / (int)nl_dtype_size(p->type);
    return is_pointwise(p) && is_whole(p) && !p->residual && !p->apart && !unaligned(x) &&
           p->y_pixel % unit == 0 && p->activation != NL_ACT_SILU;
}

/* With cuDNN several pictures are its. */
static bool is_implicit(nl_device *device, const nl_conv_problem *p, const void *x)
{
#ifdef NL_CUDNN
    if (p->batch > 1)
        return false;
#endif
    return nl_conv_implicit_serves(device, p, x);
}

/* Where cuBLASLt gains more on the direct kernel than writing and reading patches takes (bench/results/evaluation.md). */
static bool is_deep(const nl_conv_problem *p)
{
    return p->kernel_height * p->kernel_width * p->channels >= 1536;
}

/* The bias is kept in y's type, as a weight is. */
static nl_status run_product(nl_device *device, const nl_conv_problem *p, const nl_conv2d_args *a)
{
    const nl_conv_order order = {p->type, p->outputs, p->channels, NL_CONV_PLAIN};
    const void *weight, *bias = NULL;
    nl_status status = nl_cuda_conv_weight(device, &a->weight, &order, &weight);
    if (status == NL_OK && p->bias)
        status = nl_cuda_conv_bias(device, a->bias.data, p->type, p->outputs, &bias);
    if (status != NL_OK)
        return status;
    nl_product product = {};
    product.rows = (int64_t)p->batch * p->height * p->width;
    product.columns = p->outputs, product.depth = p->channels;
    product.x_stride = product.w_stride = p->channels, product.y_stride = p->y_pixel;
    product.x_type = product.w_type = product.y_type = p->type;
    product.bias = p->bias, product.relu = p->activation == NL_ACT_RELU, product.tf32 = p->tf32;
    product.alpha = 1.f, product.alone = nl_conv_is_alone(p);
    return nl_cuda_product(device, &product, a->x.data, weight, bias, a->y.data);
}

extern "C" nl_status nl_cuda_conv2d(nl_device *device, const nl_conv2d_args *args)
{
    nl_conv2d_args a = *args;
    nl_conv_problem p = problem_of(&a);
    const nl_conv_operands operands = {a.x.data, NULL, a.bias.data, a.residual.data, a.y.data};
    if (nl_tensor_count(&a.y) == 0)
        return NL_OK;
    if (is_implicit(device, &p, a.x.data))
        return nl_conv_implicit(device, &p, &a.weight, &operands);
    if (p.doubled) {
        if (fold(&p) && nl_conv_doubles(device, &p))
            return nl_conv_run(device, &p, &a.weight, &operands);
        nl_upsample2x_args up = {a.x, a.doubled};
        nl_status status = nl_cuda_upsample2x(device, &up);
        if (status != NL_OK)
            return status;
        a.x = a.doubled;
        a.doubled.data = NULL;
        return nl_cuda_conv2d(device, &a);
    }
    if (is_product(&p, a.x.data))
        return run_product(device, &p, &a);
    if (p.batch > 1 && nl_conv_direct_serves(&p, a.x.data))
        return is_deep(&p) ? nl_conv_gather(device, &p, &a.weight, &operands)
                           : nl_conv_direct(device, &p, &a.weight, &operands);
    /* Copied either way; the product needs no plan of cuDNN's. */
    if (is_pointwise(&p) && !is_whole(&p))
        return nl_conv_gather(device, &p, &a.weight, &operands);
    return nl_conv_run(device, &p, &a.weight, &operands);
}
