/* y = activation(conv(x) + bias + residual), NHWC: through cuDNN where this build has it (conv_cudnn.cu), otherwise gathered
 * patches through cuBLASLt (conv_gather.cu). A 3 x 3 convolution of a picture that is doubled first is a transposed one of
 * the picture as it is: 4 / 9 of the multiplications and no doubled picture. */
#include "conv2d.cuh"
#include "image_types.cuh"
#include "product.cuh"

struct passage {
    int64_t y_image, y_row, y_pixel, from_pixel;
    int out_height, out_width, outputs;
};

template <typename T>
__global__ void finish_kernel(const T *from, T *y, const float *bias, const T *residual, passage p,
                              int64_t count, nl_activation activation)
{
    NL_GRID_LOOP(i, count) /* i walks [B, H', W', O] */
    {
        const int c = i % p.outputs;
        const int64_t pixel = i / p.outputs, row = pixel / p.out_width;
        const int64_t at = row / p.out_height * p.y_image + row % p.out_height * p.y_row +
                           pixel % p.out_width * p.y_pixel + c;
        float v = nl_get(from == y ? from + at : from + pixel * p.from_pixel + c);
        if (bias)
            v += bias[c];
        if (residual)
            v += nl_get(residual + i);
        if (activation == NL_ACT_RELU)
            v = v < 0.f ? 0.f : v;
        else if (activation == NL_ACT_SILU)
            v = nl_silu(v);
        nl_put(y + at, v);
    }
}

void nl_conv_finish(const nl_conv_problem *p, const nl_conv_problem *done, const void *from,
                    const nl_conv_operands *o, cudaStream_t stream)
{
    const passage way = {p->y_image,    p->y_row,     p->y_pixel, done->outputs,
                         p->out_height, p->out_width, p->outputs};
    const int64_t count = (int64_t)p->batch * p->out_height * p->out_width * p->outputs;
    const bool bias = p->bias && !done->bias, residual = p->residual && !done->residual;
    const nl_activation activation =
        done->activation == p->activation ? NL_ACT_NONE : p->activation;
    nl_tensor typed = {};
    typed.dtype = p->type;
    if (from == o->y && !bias && !residual && activation == NL_ACT_NONE)
        return;
    NL_FOR_IMAGE_TYPE(typed, T, {
        finish_kernel<T><<<nl_blocks(count, 256), 256, 0, stream>>>(
            (const T *)from, (T *)o->y, bias ? (const float *)o->bias : NULL,
            residual ? (const T *)o->residual : NULL, way, count, activation);
    });
}

template <typename T>
__global__ void pad_kernel(const T *x, T *y, int64_t count, int channels, int height, int width,
                           int to_channels, int to_height, int to_width, int top, int left)
{
    NL_GRID_LOOP(i, count) /* i walks the output */
    {
        const int c = i % to_channels;
        const int64_t pixel = i / to_channels, image = pixel / ((int64_t)to_height * to_width);
        const int row = pixel / to_width % to_height - top, column = pixel % to_width - left;
        const bool inside =
            row >= 0 && row < height && column >= 0 && column < width && c < channels;
        nl_put(y + i,
               inside ? nl_get(x + ((image * height + row) * width + column) * channels + c) : 0.f);
    }
}

void nl_conv_pad(const nl_conv_problem *p, const nl_conv_problem *padded, const void *x, void *to,
                 cudaStream_t stream)
{
    const int64_t count =
        (int64_t)padded->batch * padded->height * padded->width * padded->channels;
    nl_tensor typed = {};
    typed.dtype = p->type;
    NL_FOR_IMAGE_TYPE(typed, T, {
        pad_kernel<T><<<nl_blocks(count, 256), 256, 0, stream>>>(
            (const T *)x, (T *)to, count, p->channels, p->height, p->width, padded->channels,
            padded->height, padded->width, p->pad_top - padded->pad_top,
            p->pad_left - padded->pad_left);
    });
}

void nl_conv_pack(nl_conv_problem *p)
{
    p->y_pixel = p->outputs;
    p->y_row = p->y_pixel * p->out_width;
    p->y_image = p->y_row * p->out_height;
}

static bool unaligned(const void *pointer)
{
    return (uintptr_t)pointer % 16 != 0;
}

static nl_conv_problem problem_of(const nl_conv2d_args *a)
{
    nl_conv_problem p = {};
    p.y_pixel = a->y.row_stride;
    p.y_row = p.y_pixel * a->y.shape[2];
    p.y_image = p.y_row * a->y.shape[1];
    p.type = a->x.dtype;
    p.activation = a->activation;
    p.tf32 = a->tf32 && a->x.dtype == NL_F32;
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

/* Folding rounds sums of weights where the plain way rounds weights, so strict fp32 keeps the plain
 * way's digits too. */
/* A 3 x 3 convolution of a doubled picture as one of the picture as it is. */
static bool fold(const nl_conv2d_args *a, nl_conv_problem *p)
{
    *p = problem_of(a);
    const bool usual = p->kernel_height == 3 && p->kernel_width == 3 && p->stride == 1 &&
                       p->pad_top == 1 && p->pad_left == 1 && p->pad_bottom == 1 &&
                       p->pad_right == 1;
    p->doubled = 1;
    p->kernel_height = p->kernel_width = 4;
    return usual;
}

/* 1 x 1 convolutions are products over pixels where tensor cores can read them. */
static bool is_product(const nl_conv_problem *p, const void *x)
{
    const int unit = 16 / (int)nl_dtype_size(p->type);
    return p->kernel_height == 1 && p->kernel_width == 1 && p->stride == 1 && !p->pad_top &&
           !p->pad_left && !p->pad_bottom && !p->pad_right && !p->residual && !p->apart &&
           !unaligned(x) && p->channels % unit == 0 && p->outputs % unit == 0 &&
           p->y_pixel % unit == 0 && p->activation != NL_ACT_SILU;
}

/* The bias is kept in y's type, as a weight is. */
static nl_status run_product(nl_device *device, const nl_conv_problem *p, const nl_conv2d_args *a)
{
    const nl_conv_order order = {p->type, p->outputs, p->channels, false};
    const nl_conv_order bias_order = {p->type, p->outputs, 1, false};
    const int64_t column_shape[] = {p->outputs, 1, 1, 1};
    const nl_tensor column = nl_tensor_of(a->bias.data, NL_F32, 4, column_shape);
    const void *weight, *bias = NULL;
    nl_status status = nl_cuda_conv_weight(device, &a->weight, &order, &weight);
    if (status == NL_OK && p->bias)
        status = nl_cuda_conv_weight(device, &column, &bias_order, &bias);
    if (status != NL_OK)
        return status;
    nl_product product = {};
    product.rows = (int64_t)p->batch * p->height * p->width;
    product.columns = p->outputs, product.depth = p->channels;
    product.x_stride = product.w_stride = p->channels, product.y_stride = p->y_pixel;
    product.x_type = product.w_type = product.y_type = p->type;
    product.bias = p->bias, product.relu = p->activation == NL_ACT_RELU, product.tf32 = p->tf32;
    product.alpha = 1.f;
    return nl_cuda_product(device, &product, a->x.data, weight, bias, a->y.data);
}

extern "C" nl_status nl_cuda_conv2d(nl_device *device, const nl_conv2d_args *args)
{
    nl_conv2d_args a = *args;
    nl_conv_problem p;
    const nl_conv_operands operands = {a.x.data, NULL, a.bias.data, a.residual.data, a.y.data};
    if (nl_tensor_count(&a.y) == 0)
        return NL_OK;
    if (a.doubled.data && fold(&a, &p) && nl_conv_doubles(device, &p))
        return nl_conv_run(device, &p, &a.weight, &operands);
    if (a.doubled.data) {
        nl_upsample2x_args up = {a.x, a.doubled};
        nl_status status = nl_cuda_upsample2x(device, &up);
        if (status != NL_OK)
            return status;
        a.x = a.doubled;
        a.doubled.data = NULL;
        return nl_cuda_conv2d(device, &a);
    }
    p = problem_of(&a);
    return is_product(&p, a.x.data) ? run_product(device, &p, &a)
                                    : nl_conv_run(device, &p, &a.weight, &operands);
}
