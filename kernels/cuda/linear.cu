/* SPDX-License-Identifier: MIT */
/* y = epilogue(x W^T + bias): bias and GELU inside cuBLASLt, SiLU (small products only) in a pass of its own. */
#include "product/panel_sm90.cuh"
#include "product/product.cuh"

template <typename A, typename B>
__global__ void convert_kernel(const A *x, B *y, int64_t rows, int64_t width, int64_t stride)
{
    NL_GRID_LOOP(i, rows * width)
    nl_put(y + i, nl_get(x + i / width * stride + i % width));
}

/* y = epilogue(x); in place allowed */
template <typename T>
__global__ void epilogue_kernel(const T *x, int64_t x_stride, T *y, int64_t y_stride, int64_t rows,
                                int64_t width, nl_epilogue epilogue)
{
    NL_GRID_LOOP(i, rows * width)
    {
        float v = nl_get(x + i / width * x_stride + i % width);
        if (epilogue == NL_EPILOGUE_GELU_TANH)
            v = nl_gelu<T>(v);
        else if (epilogue == NL_EPILOGUE_SILU)
            v = nl_silu(v);
        nl_put(y + i / width * y_stride + i % width, v);
    }
}

/* For shapes that tensor cores do not take (rows that do not start at 16 bytes): a warp for each element of y. */
template <typename X, typename W, typename B, typename Y>
__global__ void plain_kernel(const X *x, const float *x_scale, int64_t x_stride, const W *w,
                             const float *w_scale, const B *bias, Y *y, int64_t y_stride,
                             int64_t rows, int64_t columns, int64_t depth, bool gelu)
{
    const int64_t i = (blockIdx.x * (int64_t)blockDim.x + threadIdx.x) / 32;
    if (i >= rows * columns)
        return;
    const int64_t row = i / columns, column = i % columns;
    float sum = 0.f;
    for (int64_t k = threadIdx.x % 32; k < depth; k += 32)
        sum = fmaf(nl_get(x + row * x_stride + k), nl_get(w + column * depth + k), sum);
    sum = nl_warp_sum(sum) * (x_scale ? x_scale[row] * w_scale[column] : 1.f) +
          (bias ? nl_get(bias + column) : 0.f);
    if (gelu)
        sum = nl_gelu<Y>(sum);
    if (threadIdx.x % 32 == 0)
        nl_put(y + row * y_stride + column, sum);
}

static bool aligned(const nl_tensor *tensor)
{
    return (uintptr_t)tensor->data % 16 == 0 &&
           tensor->row_stride * nl_dtype_size(tensor->dtype) % 16 == 0;
}

static void run_plain(const nl_linear_args *a, const nl_tensor *y, bool gelu, cudaStream_t stream)
{
    const int64_t rows = a->x.shape[0], columns = y->shape[1], depth = a->x.shape[1];
    nl_tensor bias = a->bias;
    if (!bias.data)
        bias.dtype = NL_F32;
    NL_FOR_TYPE(
        a->x, X,
        NL_FOR_TYPE(a->weight, W,
                    NL_FOR_TYPE(bias, B, NL_FOR_TYPE(*y, Y, {
                                    plain_kernel<<<nl_blocks(rows * columns, 8), 256, 0, stream>>>(
                                        (const X *)a->x.data, NULL, a->x.row_stride,
                                        (const W *)a->weight.data, NULL, (const B *)bias.data,
                                        (Y *)y->data, y->row_stride, rows, columns, depth, gelu);
                                }))));
}

/* The narrow backbone's wide products on Hopper. *done is false where they are not for it. */
static nl_status run_panels(nl_device *device, const nl_linear_args *a, bool *done)
{
    nl_cuda *cuda = nl_cuda_of(device);
    *done = false;
    const bool gelu = a->epilogue == NL_EPILOGUE_GELU_TANH;
    if (a->x.dtype != NL_BF16 || a->weight.dtype != NL_BF16 || a->y.dtype != NL_BF16 ||
        (a->pre.data && !gelu) || a->epilogue == NL_EPILOGUE_SILU)
        return NL_OK;
    nl_panel_product p = {};
    p.x = (const __nv_bfloat16 *)a->x.data, p.w = (const __nv_bfloat16 *)a->weight.data;
    p.bias = a->bias.data, p.bias_f32 = a->bias.dtype == NL_F32;
    p.y = (__nv_bfloat16 *)a->y.data, p.pre = (__nv_bfloat16 *)a->pre.data;
    p.rows = a->x.shape[0], p.columns = a->y.shape[1], p.depth = a->x.shape[1];
    p.x_stride = a->x.row_stride, p.w_stride = p.depth, p.y_stride = a->y.row_stride;
    p.epilogue = !gelu ? NL_PANEL_PLAIN : p.pre ? NL_PANEL_GELU_PRE : NL_PANEL_GELU;
    if (!nl_panel_product_serves(&p, cuda->index))
        return NL_OK;
    const cudaError_t error = nl_panel_product_run(&p, cuda->multiprocessors, cuda->stream);
    *done = error == cudaSuccess;
    return error == cudaErrorNotSupported ? NL_OK : nl_cuda_check(device, error, "linear");
}

/* ---- F8 */

/* y = y x_scale w_scale^T + bias, of a product without factors. */
template <typename B, typename Y>
__global__ void scale_kernel(Y *y, int64_t y_stride, const float *x_scale, const float *w_scale,
                             const B *bias, int64_t rows, int64_t columns)
{
    NL_GRID_LOOP(i, rows * columns)
    {
        const int64_t row = i / columns, column = i % columns;
        Y *at = y + row * y_stride + column;
        nl_put(at, fmaf(nl_get(at), x_scale[row] * w_scale[column],
                        bias ? nl_get(bias + column) : 0.f));
    }
}

/* y = x W^T + bias through cuBLASLt, where it has such a product: of bf16 on Hopper with factors and bias; otherwise they
 * follow in a pass of their own. */
static nl_status run_f8_library(nl_device *device, const nl_linear_args *a, const nl_tensor *y,
                                bool *done)
{
    nl_status status = NL_OK;
    nl_product p = {};
    p.rows = a->x.shape[0], p.columns = y->shape[1], p.depth = a->x.shape[1];
    p.x_stride = a->x.row_stride, p.w_stride = p.depth, p.y_stride = y->row_stride;
    p.x_type = p.w_type = NL_F8, p.y_type = y->dtype;
    p.scaled = true, p.bias = a->bias.data != NULL, p.alpha = 1.f;
    *done = false;
    if (!aligned(&a->x) || !aligned(&a->weight) || !aligned(y) || p.depth % 16 || p.columns % 16)
        return NL_OK;
    if (y->dtype == NL_BF16 && (!p.bias || a->bias.dtype == NL_BF16))
        status = nl_cuda_product_f8(device, &p, &a->x, &a->weight, a->bias.data, y->data, done);
    if (status != NL_OK || *done)
        return status;
    p.scaled = p.bias = false;
    status = nl_cuda_product_f8(device, &p, &a->x, &a->weight, NULL, y->data, done);
    if (status != NL_OK || !*done)
        return status;
    nl_tensor bias = a->bias;
    if (!bias.data)
        bias.dtype = NL_F32;
    NL_FOR_TYPE(*y, Y, NL_FOR_TYPE(bias, B, {
        scale_kernel<<<nl_blocks(p.rows * p.columns, 256), 256, 0, nl_cuda_of(device)->stream>>>(
            (Y *)y->data, y->row_stride, a->x.scale, a->weight.scale, (const B *)bias.data, p.rows,
            p.columns);
    }));
    return NL_CUDA_LAUNCHED(device, "linear");
}

/* The panels, whose columns of K are two of E4M3. A row's factor of y has to be known before the row: at most 448 x's factor
 * is an element of x, and |x| |w| + |b| is no less than what comes before the GELU. */
static nl_status run_f8_panels(nl_device *device, const nl_linear_args *a, bool *done)
{
    nl_cuda *cuda = nl_cuda_of(device);
    const bool gelu = a->epilogue == NL_EPILOGUE_GELU_TANH, f8 = a->y.dtype == NL_F8;
    *done = false;
    if (a->x.shape[1] % 16 || a->x.row_stride % 16 || a->pre.data ||
        a->epilogue == NL_EPILOGUE_SILU || (f8 ? !gelu : a->y.dtype != NL_BF16))
        return NL_OK;
    nl_panel_product p = {};
    p.x = (const __nv_bfloat16 *)a->x.data, p.w = (const __nv_bfloat16 *)a->weight.data;
    p.x_scale = a->x.scale, p.w_scale = a->weight.scale;
    p.bias = a->bias.data, p.bias_f32 = a->bias.dtype == NL_F32;
    p.rows = a->x.shape[0], p.columns = a->y.shape[1], p.depth = a->x.shape[1] / 2;
    p.x_stride = a->x.row_stride / 2, p.w_stride = p.depth, p.y_stride = a->y.row_stride;
    p.epilogue = gelu ? NL_PANEL_GELU : NL_PANEL_PLAIN;
    if (f8) {
        p.y_f8 = (uint8_t *)a->y.data, p.y_scale = a->y.scale;
        p.reach = 448.f * sqrtf((float)a->x.shape[1]) * a->weight_norm, p.bias_reach = a->bias_norm;
    } else {
        p.y = (__nv_bfloat16 *)a->y.data;
    }
    if (!nl_panel_product_serves(&p, cuda->index))
        return NL_OK;
    const cudaError_t error = nl_panel_product_run(&p, cuda->multiprocessors, cuda->stream);
    *done = error == cudaSuccess;
    return error == cudaErrorNotSupported ? NL_OK : nl_cuda_check(device, error, "linear");
}

static nl_status run_f8(nl_device *device, const nl_linear_args *a)
{
    cudaStream_t stream = nl_cuda_of(device)->stream;
    const nl_tensor *y = a->pre.data ? &a->pre : &a->y;
    const int64_t rows = a->x.shape[0], columns = y->shape[1], depth = a->x.shape[1];
    nl_tensor bias = a->bias;
    bool done;
    nl_status status = run_f8_panels(device, a, &done);
    if (status != NL_OK || done)
        return status;
    status = run_f8_library(device, a, y, &done);
    if (status != NL_OK)
        return status;
    if (!bias.data)
        bias.dtype = NL_F32;
    if (!done)
        NL_FOR_TYPE(bias, B, NL_FOR_TYPE(*y, Y, {
                        plain_kernel<<<nl_blocks(rows * columns, 8), 256, 0, stream>>>(
                            (const __nv_fp8_e4m3 *)a->x.data, a->x.scale, a->x.row_stride,
                            (const __nv_fp8_e4m3 *)a->weight.data, a->weight.scale,
                            (const B *)bias.data, (Y *)y->data, y->row_stride, rows, columns, depth,
                            false);
                    }));
    if (a->epilogue != NL_EPILOGUE_NONE || a->pre.data)
        NL_FOR_TYPE(a->y, T, {
            epilogue_kernel<<<nl_blocks(rows * columns, 256), 256, 0, stream>>>(
                (const T *)y->data, y->row_stride, (T *)a->y.data, a->y.row_stride, rows, columns,
                a->epilogue);
        });
    return NL_CUDA_LAUNCHED(device, "linear");
}

/* y in F8, when all of it lies in the room. */
static nl_status run_through_room(nl_device *device, const nl_linear_args *a)
{
    bool done = false;
    nl_status status = a->weight.dtype == NL_F8 ? run_f8_panels(device, a, &done) : NL_OK;
    if (status != NL_OK || done)
        return status;
    nl_linear_args wide = *a;
    wide.y = a->room, wide.epilogue = NL_EPILOGUE_NONE;
    status = nl_cuda_linear(device, &wide);
    const nl_quantize_args last = {a->room, a->y, a->epilogue};
    return status == NL_OK ? nl_cuda_quantize(device, &last) : status;
}

extern "C" nl_status nl_cuda_linear(nl_device *device, const nl_linear_args *a)
{
    if (a->y.dtype == NL_F8)
        return run_through_room(device, a);
    cudaStream_t stream = nl_cuda_of(device)->stream;
    const int64_t rows = a->x.shape[0], depth = a->x.shape[1], columns = a->y.shape[1];
    /* cuBLASLt writes both gelu(pre) and pre in bf16; otherwise the product is pre, and the epilogue a pass. */
    const bool gelu = a->epilogue == NL_EPILOGUE_GELU_TANH;
    const bool both = gelu && a->pre.data && a->y.dtype == NL_BF16 && aligned(&a->x) &&
                      aligned(&a->weight) && aligned(&a->y) && aligned(&a->pre);
    const bool to_pre = a->pre.data && !both;
    const nl_tensor *target = to_pre ? &a->pre : &a->y;
    nl_product product = {};
    product.rows = rows, product.columns = columns, product.depth = depth;
    product.x_stride = a->x.row_stride, product.w_stride = depth,
    product.y_stride = target->row_stride;
    product.x_type = a->x.dtype, product.w_type = a->weight.dtype, product.y_type = a->y.dtype;
    product.bias = a->bias.data != NULL, product.gelu = gelu && !to_pre, product.alpha = 1.f;
    if (both)
        product.aux = NL_AUX_PRE, product.aux_stride = a->pre.row_stride;
    if (rows == 0 || columns == 0)
        return NL_OK;
    if (a->weight.dtype == NL_F8)
        return run_f8(device, a);
    bool done;
    nl_status status = run_panels(device, a, &done);
    if (status != NL_OK || done)
        return status;

    /* cuBLASLt wants x and W of one type, the bias of y's: what differs is converted on the way. */
    const void *x = a->x.data, *w = a->weight.data, *bias = a->bias.data;
    const bool products = aligned(&a->x) && aligned(&a->weight) && aligned(target);
    const bool convert_x = a->x.dtype == NL_F32 && a->weight.dtype == NL_BF16;
    const bool convert_w = a->x.dtype == NL_BF16 && a->weight.dtype == NL_F32;
    const bool convert_bias = bias && a->bias.dtype != a->y.dtype;
    if (products && (convert_x || convert_w || convert_bias)) {
        void *scratch;
        const int64_t x_bytes = convert_x ? (rows * depth * 2 + 255) / 256 * 256 : 0;
        const int64_t w_bytes = convert_w ? (columns * depth * 2 + 255) / 256 * 256 : 0;
        status = nl_cuda_scratch(device, "converted operands", x_bytes + w_bytes + columns * 4,
                                 &scratch);
        if (status != NL_OK)
            return status;
        if (convert_x) {
            convert_kernel<<<nl_blocks(rows * depth, 256), 256, 0, stream>>>(
                (const float *)x, (__nv_bfloat16 *)scratch, rows, depth, a->x.row_stride);
            x = scratch, product.x_type = NL_BF16, product.x_stride = depth;
        }
        if (convert_w) {
            void *to = (char *)scratch + x_bytes;
            convert_kernel<<<nl_blocks(columns * depth, 256), 256, 0, stream>>>(
                (const float *)w, (__nv_bfloat16 *)to, columns, depth, depth);
            w = to, product.w_type = NL_BF16;
        }
        if (convert_bias) {
            void *to = (char *)scratch + x_bytes + w_bytes;
            NL_FOR_TYPE(a->bias, A, NL_FOR_TYPE(a->y, B, {
                            convert_kernel<<<nl_blocks(columns, 256), 256, 0, stream>>>(
                                (const A *)bias, (B *)to, 1, columns, columns);
                        }));
            bias = to;
        }
    }
    if (products)
        status =
            nl_cuda_product_aux(device, &product, x, w, bias, a->pre.data, (void *)target->data);
    else
        run_plain(a, target, product.gelu, stream);
    if (status == NL_OK && (a->epilogue == NL_EPILOGUE_SILU || to_pre))
        NL_FOR_TYPE(a->y, T, {
            epilogue_kernel<<<nl_blocks(rows * columns, 256), 256, 0, stream>>>(
                (const T *)target->data, target->row_stride, (T *)a->y.data, a->y.row_stride, rows,
                columns, a->epilogue);
        });
    return status == NL_OK ? NL_CUDA_LAUNCHED(device, "linear") : status;
}
