/* y = activation(conv(x) + bias + residual), NHWC. Through cuDNN where this build has it, otherwise gathered patches
 * through cuBLASLt. Weights come as the files have them, OIHW, in fp32 or bf16, and are brought to [O, kh, kw, C] in x's
 * type before each call: a few microseconds against milliseconds of convolution, and no copy to keep in step. */
#include <cstdlib>

#include "product.cuh"
#ifdef NL_CUDNN
#include <cudnn.h>
#endif

template <typename W, typename T>
__global__ void weight_kernel(const W *from, T *to, int64_t count, int channels, int taps)
{
    NL_GRID_LOOP(i, count) /* i walks [O, taps, C] */
    {
        const int c = i % channels, tap = i / channels % taps;
        nl_put(to + i, nl_get(from + (i / channels / taps * channels + c) * taps + tap));
    }
}

/* After the product: bias (fp32), residual, activation. Pixels of x and y may be strided; x may be y. */
template <typename T>
__global__ void epilogue_kernel(const T *x, int64_t x_stride, T *y, int64_t y_stride,
                                const float *bias, const T *residual, int64_t count, int channels,
                                nl_activation activation)
{
    NL_GRID_LOOP(i, count)
    {
        const int c = i % channels;
        float v = nl_get(x + i / channels * x_stride + c);
        if (bias)
            v += bias[c];
        if (residual)
            v += nl_get(residual + i);
        if (activation == NL_ACT_RELU)
            v = v < 0.f ? 0.f : v;
        else if (activation == NL_ACT_SILU)
            v = nl_silu(v);
        nl_put(y + i / channels * y_stride + c, v);
    }
}

struct geometry {
    int batch, height, width, channels, out_height, out_width, outputs, kernel_height, kernel_width;
};

static geometry geometry_of(const nl_conv2d_args *a)
{
    return {(int)a->x.shape[0], (int)a->x.shape[1],      (int)a->x.shape[2],
            (int)a->x.shape[3], (int)a->y.shape[1],      (int)a->y.shape[2],
            (int)a->y.shape[3], (int)a->weight.shape[2], (int)a->weight.shape[3]};
}

static void order_weight(const nl_conv2d_args *a, void *to, cudaStream_t stream)
{
    const int64_t count = nl_tensor_count(&a->weight);
    NL_FOR_TYPE(a->weight, W, NL_FOR_TYPE(a->x, T, {
                    weight_kernel<<<nl_blocks(count, 256), 256, 0, stream>>>(
                        (const W *)a->weight.data, (T *)to, count, (int)a->weight.shape[1],
                        (int)(a->weight.shape[2] * a->weight.shape[3]));
                }));
}

/* from: the convolution, with pixels `stride` elements apart. */
static void finish(const nl_conv2d_args *a, const void *from, int64_t stride, const float *bias,
                   cudaStream_t stream)
{
    const int64_t count = nl_tensor_count(&a->y);
    if (from != a->y.data || bias || a->residual.data || a->activation != NL_ACT_NONE)
        NL_FOR_TYPE(a->y, T, {
            epilogue_kernel<<<nl_blocks(count, 256), 256, 0, stream>>>(
                (const T *)from, stride, (T *)a->y.data, a->y.row_stride, bias,
                (const T *)a->residual.data, count, (int)a->y.shape[3], a->activation);
        });
}

#ifdef NL_CUDNN

/* What is kept for a shape: descriptors and the algorithm, so that a repeated call only launches. */
struct nl_conv_cache {
    nl_conv2d_args key;
    cudnnTensorDescriptor_t x, y;
    cudnnFilterDescriptor_t w;
    cudnnConvolutionDescriptor_t convolution;
    cudnnConvolutionFwdAlgo_t algorithm;
    size_t workspace;
    nl_conv_cache *next;
};

static cudnnHandle_t handle_of(nl_cuda *cuda)
{
    static_assert(sizeof(cudnnHandle_t) == sizeof(void *), "");
    return (cudnnHandle_t)cuda->dnn;
}

static void forget(nl_conv_cache *plan)
{
    if (plan->x)
        cudnnDestroyTensorDescriptor(plan->x);
    if (plan->y)
        cudnnDestroyTensorDescriptor(plan->y);
    if (plan->w)
        cudnnDestroyFilterDescriptor(plan->w);
    if (plan->convolution)
        cudnnDestroyConvolutionDescriptor(plan->convolution);
    free(plan);
}

extern "C" void nl_cuda_convolutions_destroy(nl_cuda *cuda)
{
    while (cuda->convolutions) {
        nl_conv_cache *next = cuda->convolutions->next;
        forget(cuda->convolutions);
        cuda->convolutions = next;
    }
    if (cuda->dnn)
        cudnnDestroy(handle_of(cuda));
}

static bool same(const nl_conv2d_args *a, const nl_conv2d_args *b)
{
    return nl_tensor_same_shape(&a->x, &b->x) && nl_tensor_same_shape(&a->weight, &b->weight) &&
           a->x.dtype == b->x.dtype && a->stride == b->stride && a->pad_top == b->pad_top &&
           a->pad_left == b->pad_left && a->pad_bottom == b->pad_bottom &&
           a->pad_right == b->pad_right;
}

/* x_height, x_width: with asymmetric padding already applied (then pads are 0). */
static cudnnStatus_t describe(nl_cuda *cuda, nl_conv_cache *plan, int height, int width, int pad_y,
                              int pad_x)
{
    const nl_conv2d_args *a = &plan->key;
    const geometry g = geometry_of(a);
    const cudnnDataType_t type = a->x.dtype == NL_BF16 ? CUDNN_DATA_BFLOAT16 : CUDNN_DATA_FLOAT;
    cudnnConvolutionFwdAlgoPerf_t perf[8];
    int found = 0;
    cudnnStatus_t status;
#define TRY(call)                                                                                  \
    if ((status = (call)) != CUDNN_STATUS_SUCCESS)                                                 \
    return status
    TRY(cudnnCreateTensorDescriptor(&plan->x));
    TRY(cudnnCreateTensorDescriptor(&plan->y));
    TRY(cudnnCreateFilterDescriptor(&plan->w));
    TRY(cudnnCreateConvolutionDescriptor(&plan->convolution));
    TRY(cudnnSetTensor4dDescriptor(plan->x, CUDNN_TENSOR_NHWC, type, g.batch, g.channels, height,
                                   width));
    TRY(cudnnSetTensor4dDescriptor(plan->y, CUDNN_TENSOR_NHWC, type, g.batch, g.outputs,
                                   g.out_height, g.out_width));
    TRY(cudnnSetFilter4dDescriptor(plan->w, type, CUDNN_TENSOR_NHWC, g.outputs, g.channels,
                                   g.kernel_height, g.kernel_width));
    TRY(cudnnSetConvolution2dDescriptor(plan->convolution, pad_y, pad_x, a->stride, a->stride, 1, 1,
                                        CUDNN_CROSS_CORRELATION, CUDNN_DATA_FLOAT));
    /* fp32 means fp32: no TF32 unless somebody asks. */
    TRY(cudnnSetConvolutionMathType(
        plan->convolution, type == CUDNN_DATA_FLOAT ? CUDNN_FMA_MATH : CUDNN_TENSOR_OP_MATH));
    TRY(cudnnGetConvolutionForwardAlgorithm_v7(handle_of(cuda), plan->x, plan->w, plan->convolution,
                                               plan->y, 8, &found, perf));
#undef TRY
    for (int i = 0; i < found; i++)
        if (perf[i].status == CUDNN_STATUS_SUCCESS && perf[i].memory <= (size_t)1 << 30) {
            plan->algorithm = perf[i].algo;
            plan->workspace = perf[i].memory;
            return CUDNN_STATUS_SUCCESS;
        }
    return CUDNN_STATUS_NOT_SUPPORTED;
}

template <typename T>
__global__ void pad_kernel(const T *x, T *y, int64_t count, int channels, int height, int width,
                           int out_height, int out_width, int top, int left)
{
    NL_GRID_LOOP(i, count)
    {
        const int c = i % channels;
        const int64_t pixel = i / channels, image = pixel / ((int64_t)out_height * out_width);
        const int row = pixel / out_width % out_height - top, column = pixel % out_width - left;
        const bool inside = row >= 0 && row < height && column >= 0 && column < width;
        nl_put(y + i,
               inside ? nl_get(x + ((image * height + row) * width + column) * channels + c) : 0.f);
    }
}

extern "C" nl_status nl_cuda_conv2d(nl_device *device, const nl_conv2d_args *a)
{
    nl_cuda *cuda = nl_cuda_of(device);
    cudaStream_t stream = cuda->stream;
    const geometry g = geometry_of(a);
    const bool padded = a->pad_top != a->pad_bottom || a->pad_left != a->pad_right;
    const int height = g.height + (padded ? a->pad_top + a->pad_bottom : 0);
    const int width = g.width + (padded ? a->pad_left + a->pad_right : 0);
    void *y = a->y.data;
    if (nl_tensor_count(&a->y) == 0)
        return NL_OK;
    cudnnStatus_t error = CUDNN_STATUS_SUCCESS;
    if (!cuda->dnn) {
        cudnnHandle_t handle = NULL;
        if ((error = cudnnCreate(&handle)) == CUDNN_STATUS_SUCCESS)
            error = cudnnSetStream(handle, stream);
        cuda->dnn = handle;
    }
    nl_conv_cache *plan = cuda->convolutions;
    while (plan && !same(&plan->key, a))
        plan = plan->next;
    if (!plan && error == CUDNN_STATUS_SUCCESS) {
        plan = (nl_conv_cache *)calloc(1, sizeof(*plan));
        if (!plan)
            return nl_fail(device->context, NL_ERROR_MEMORY,
                           "a convolution's plan: out of host memory");
        plan->key = *a;
        error =
            describe(cuda, plan, height, width, padded ? 0 : a->pad_top, padded ? 0 : a->pad_left);
        if (error != CUDNN_STATUS_SUCCESS) {
            forget(plan);
        } else {
            plan->next = cuda->convolutions;
            cuda->convolutions = plan;
        }
    }
    if (error == CUDNN_STATUS_SUCCESS) {
        const int64_t size = nl_dtype_size(a->x.dtype);
        const int64_t weight_bytes = (nl_tensor_count(&a->weight) * size + 255) / 256 * 256;
        const int64_t padded_count = (int64_t)g.batch * height * width * g.channels;
        const int64_t padded_bytes = padded ? (padded_count * size + 255) / 256 * 256 : 0;
        const int64_t workspace = ((int64_t)plan->workspace + 255) / 256 * 256;
        const bool apart = a->y.row_stride != g.outputs; /* then y is written by the epilogue */
        const int64_t y_bytes = apart ? nl_tensor_count(&a->y) * size : 0;
        void *scratch;
        nl_status status =
            nl_cuda_scratch(device, "a convolution",
                            weight_bytes + padded_bytes + workspace + y_bytes, &scratch);
        if (status != NL_OK)
            return status;
        order_weight(a, scratch, stream);
        const void *x = a->x.data;
        if (padded) {
            void *to = (char *)scratch + weight_bytes;
            NL_FOR_TYPE(a->x, T, {
                pad_kernel<<<nl_blocks(padded_count, 256), 256, 0, stream>>>(
                    (const T *)x, (T *)to, padded_count, g.channels, g.height, g.width, height,
                    width, a->pad_top, a->pad_left);
            });
            x = to;
        }
        if (apart)
            y = (char *)scratch + weight_bytes + padded_bytes + workspace;
        const float one = 1.f, zero = 0.f;
        error = cudnnConvolutionForward(handle_of(cuda), &one, plan->x, x, plan->w, scratch,
                                        plan->convolution, plan->algorithm,
                                        (char *)scratch + weight_bytes + padded_bytes,
                                        plan->workspace, &zero, plan->y, y);
    }
    if (error != CUDNN_STATUS_SUCCESS)
        return nl_fail(device->context, NL_ERROR_DEVICE,
                       "convolution %d x %d, %d to %d channels: cuDNN: %s", g.kernel_height,
                       g.kernel_width, g.channels, g.outputs, cudnnGetErrorString(error));
    finish(a, y, y == a->y.data ? a->y.row_stride : g.outputs, (const float *)a->bias.data, stream);
    return NL_CUDA_LAUNCHED(device, "conv2d");
}

#else

extern "C" void nl_cuda_convolutions_destroy(nl_cuda *cuda)
{
    (void)cuda;
}

/* Patches of `count` output pixels from pixel `first` on: [count, taps, C]. */
template <typename T>
__global__ void gather_kernel(const T *x, T *patches, int64_t first, int64_t count, geometry g,
                              int stride, int top, int left)
{
    const int taps = g.kernel_height * g.kernel_width;
    NL_GRID_LOOP(i, count * taps * g.channels)
    {
        const int c = i % g.channels, tap = i / g.channels % taps;
        const int64_t pixel = first + i / g.channels / taps,
                      image = pixel / ((int64_t)g.out_height * g.out_width);
        const int row = pixel / g.out_width % g.out_height * stride - top + tap / g.kernel_width;
        const int column = pixel % g.out_width * stride - left + tap % g.kernel_width;
        const bool inside = row >= 0 && row < g.height && column >= 0 && column < g.width;
        nl_put(patches + i,
               inside ? nl_get(x + ((image * g.height + row) * g.width + column) * g.channels + c)
                      : 0.f);
    }
}

extern "C" nl_status nl_cuda_conv2d(nl_device *device, const nl_conv2d_args *a)
{
    cudaStream_t stream = nl_cuda_of(device)->stream;
    const geometry g = geometry_of(a);
    const int64_t pixels = (int64_t)g.batch * g.out_height * g.out_width,
                  size = nl_dtype_size(a->x.dtype);
    /* cuBLASLt wants rows of whole 16 bytes in bf16: what a patch lacks is zeros in both operands. */
    const int64_t depth = (int64_t)g.kernel_height * g.kernel_width * g.channels;
    const int64_t weight_bytes = (nl_tensor_count(&a->weight) * size + 255) / 256 * 256;
    if (pixels == 0)
        return NL_OK;
    int64_t part = (256 << 20) / (depth * size);
    part = part < 1 ? 1 : part > pixels ? pixels : part;
    void *scratch;
    nl_status status = nl_cuda_scratch(device, "patches of a convolution",
                                       weight_bytes + part * depth * size, &scratch);
    if (status != NL_OK)
        return status;
    void *patches = (char *)scratch + weight_bytes;
    order_weight(a, scratch, stream);
    for (int64_t first = 0; first < pixels && status == NL_OK; first += part) {
        const int64_t count = pixels - first < part ? pixels - first : part;
        NL_FOR_TYPE(a->x, T, {
            gather_kernel<<<nl_blocks(count * depth, 256), 256, 0, stream>>>(
                (const T *)a->x.data, (T *)patches, first, count, g, a->stride, a->pad_top,
                a->pad_left);
        });
        nl_product p = {};
        p.rows = count, p.columns = g.outputs, p.depth = depth;
        p.x_stride = p.w_stride = depth, p.y_stride = a->y.row_stride;
        p.x_type = p.w_type = a->x.dtype, p.y_type = a->y.dtype, p.alpha = 1.f;
        status = nl_cuda_product(device, &p, patches, scratch, NULL,
                                 (char *)a->y.data + first * a->y.row_stride * size);
    }
    if (status != NL_OK)
        return status;
    finish(a, a->y.data, a->y.row_stride, (const float *)a->bias.data, stream);
    return NL_CUDA_LAUNCHED(device, "conv2d");
}

#endif
