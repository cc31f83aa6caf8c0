/* SPDX-License-Identifier: MIT */
/* Gradients of linear: dx = dy W through panel products or cuBLASLt, with GELU's derivative in the epilogue where that
 * is bf16; and dW += dy^T x, db += column sums of dy. */
#include "column_sums.cuh"
#include "product/panel_sm90.cuh"
#include "product/product.cuh"

template <typename T>
__global__ void derivative_kernel(const T *pre, T *dx, int64_t rows, int64_t width, int64_t stride,
                                  nl_epilogue epilogue)
{
    NL_GRID_LOOP(i, rows * width)
    {
        T *at = dx + i / width * stride + i % width;
        const float x = nl_get(pre + i);
        nl_put(at, nl_get(at) * (epilogue == NL_EPILOGUE_GELU_TANH ? nl_gelu_derivative<T>(x)
                                                                   : nl_silu_derivative(x)));
    }
}

template <typename A, typename B> __global__ void convert_kernel(const A *x, B *y, int64_t count)
{
    NL_GRID_LOOP(i, count)
    nl_put(y + i, nl_get(x + i));
}

/* Shapes that tensor cores do not take: a thread for each element, in fp32. */
template <typename T, typename W>
__global__ void plain_data_kernel(const T *dy, int64_t dy_stride, const W *weight, T *dx,
                                  int64_t dx_stride, int64_t rows, int64_t width, int64_t depth)
{
    NL_GRID_LOOP(i, rows * width)
    {
        const int64_t row = i / width, k = i % width;
        float sum = 0.f;
        for (int64_t n = 0; n < depth; n++)
            sum = fmaf(nl_get(dy + row * dy_stride + n), nl_get(weight + n * width + k), sum);
        nl_put(dx + row * dx_stride + k, sum);
    }
}

template <typename T, typename X>
__global__ void plain_weight_kernel(const T *dy, int64_t dy_stride, const X *x, int64_t x_stride,
                                    float *dweight, int64_t stride, int64_t outputs, int64_t width,
                                    int64_t rows)
{
    NL_GRID_LOOP(i, outputs * width)
    {
        const int64_t n = i / width, k = i % width;
        float sum = 0.f;
        for (int64_t row = 0; row < rows; row++)
            sum = fmaf(nl_get(dy + row * dy_stride + n), nl_get(x + row * x_stride + k), sum);
        dweight[n * stride + k] += sum;
    }
}

static bool aligned(const nl_tensor *tensor)
{
    return (uintptr_t)tensor->data % 16 == 0 &&
           tensor->row_stride * nl_dtype_size(tensor->dtype) % 16 == 0;
}

template <typename T>
__global__ void align_kernel(const T *x, int64_t stride, T *y, int64_t y_stride, int64_t rows,
                             int64_t width)
{
    NL_GRID_LOOP(i, rows * width)
    y[i / width * y_stride + i % width] = x[i / width * stride + i % width];
}

/* Few outputs (a head of 12 channels) make rows that tensor cores do not take: x with rows 16 bytes apart, in scratch. */
static nl_status align_rows(nl_device *device, nl_tensor *x)
{
    const int64_t rows = x->shape[0], width = x->shape[1], stride = (width + 7) / 8 * 8;
    void *scratch;
    if (aligned(x))
        return NL_OK;
    nl_status status =
        nl_cuda_scratch(device, "aligned rows", rows * stride * nl_dtype_size(x->dtype), &scratch);
    if (status != NL_OK)
        return status;
    NL_FOR_TYPE(*x, T, {
        align_kernel<<<nl_blocks(rows * width, 256), 256, 0, nl_cuda_of(device)->stream>>>(
            (const T *)x->data, x->row_stride, (T *)scratch, stride, rows, width);
    });
    x->data = scratch;
    x->row_stride = stride;
    return NL_OK;
}

/* The weight in dy's type. */
static nl_status converted_weight(nl_device *device, const nl_linear_backward_data_args *a,
                                  const void **weight)
{
    const int64_t count = nl_tensor_count(&a->weight);
    void *scratch;
    nl_status status =
        nl_cuda_scratch(device, "a converted weight", count * nl_dtype_size(a->dy.dtype), &scratch);
    if (status != NL_OK)
        return status;
    NL_FOR_TYPE(a->weight, A, NL_FOR_TYPE(a->dy, B, {
                    convert_kernel<<<nl_blocks(count, 256), 256, 0, nl_cuda_of(device)->stream>>>(
                        (const A *)a->weight.data, (B *)scratch, count);
                }));
    *weight = scratch;
    return NL_OK;
}

/* Products whose epilogue costs more than multiplying, on Hopper: the gradient of GELU, with x and dbias. *done is
 * false where they are not for it. */
static nl_status run_panels(nl_device *device, const nl_linear_backward_data_args *a, bool *done)
{
    nl_cuda *cuda = nl_cuda_of(device);
    *done = false;
    if (a->dy.dtype != NL_BF16 || a->weight.dtype != NL_BF16 || a->dx.dtype != NL_BF16 ||
        !a->x.data || !a->dbias.data || a->epilogue != NL_EPILOGUE_GELU_TANH)
        return NL_OK;
    nl_panel_product p = {};
    p.x = (const __nv_bfloat16 *)a->dy.data, p.w = (const __nv_bfloat16 *)a->weight.data;
    p.w_by_depth = true;
    p.y = (__nv_bfloat16 *)a->dx.data;
    p.rows = a->dy.shape[0], p.columns = a->dx.shape[1], p.depth = a->dy.shape[1];
    p.x_stride = a->dy.row_stride, p.w_stride = p.columns, p.y_stride = a->dx.row_stride;
    p.epilogue = NL_PANEL_GELU_GRADIENT;
    p.pre = (__nv_bfloat16 *)a->pre.data, p.gelu = (__nv_bfloat16 *)a->x.data;
    if (!nl_panel_product_serves(&p, cuda->index))
        return NL_OK;
    const int64_t parts = nl_panel_parts(p.columns, cuda->multiprocessors);
    void *scratch;
    nl_status status = nl_cuda_scratch(device, "sums of columns", parts * p.columns * 4, &scratch);
    if (status != NL_OK)
        return status;
    p.parts = (float *)scratch;
    const cudaError_t error = nl_panel_product_run(&p, cuda->multiprocessors, cuda->stream);
    *done = error == cudaSuccess;
    if (*done)
        nl_cuda_add_parts(cuda->stream, p.parts, parts, {{(float *)a->dbias.data, p.columns}});
    return error == cudaErrorNotSupported ? NL_OK
                                          : nl_cuda_check(device, error, "linear_backward_data");
}

/* x and dbias, in passes of their own. */
static nl_status finish_data(nl_device *device, const nl_linear_backward_data_args *a)
{
    nl_status status = NL_OK;
    if (a->x.data) {
        nl_activate_args activate = {};
        activate.x = a->pre, activate.y = a->x;
        activate.activation = nl_epilogue_activation(a->epilogue);
        status = nl_cuda_activate(device, &activate);
    }
    if (status == NL_OK && a->dbias.data)
        status = nl_cuda_column_sums(device, &a->dx, (float *)a->dbias.data);
    return status;
}

extern "C" nl_status nl_cuda_linear_backward_data(nl_device *device,
                                                  const nl_linear_backward_data_args *a)
{
    cudaStream_t stream = nl_cuda_of(device)->stream;
    const int64_t rows = a->dy.shape[0], depth = a->dy.shape[1], width = a->dx.shape[1];
    if (rows == 0 || width == 0)
        return NL_OK;
    const bool derivative = a->pre.data && a->epilogue != NL_EPILOGUE_NONE;
    /* Scratch is either a converted weight or aligned rows. */
    const bool same = a->weight.dtype == a->dy.dtype;
    const bool products =
        (same || aligned(&a->dy)) && aligned(&a->weight) && aligned(&a->dx) && depth > 0;
    const bool fused = derivative && products && a->epilogue == NL_EPILOGUE_GELU_TANH &&
                       a->dx.dtype == NL_BF16 && aligned(&a->pre);
    const void *weight = a->weight.data;
    nl_tensor dy = a->dy;
    bool done;
    nl_status status = run_panels(device, a, &done);
    if (status != NL_OK || done)
        return status;
    if (products && (status = align_rows(device, &dy)) == NL_OK) {
        nl_product product = {};
        product.rows = rows, product.columns = width, product.depth = depth;
        product.w_by_depth = true;
        product.x_stride = dy.row_stride, product.w_stride = width;
        product.y_stride = a->dx.row_stride;
        product.x_type = product.w_type = a->dy.dtype, product.y_type = a->dx.dtype;
        product.alpha = 1.f;
        if (fused)
            product.aux = NL_AUX_GELU_GRADIENT, product.aux_stride = width;
        if (!same)
            status = converted_weight(device, a, &weight);
        if (status == NL_OK)
            status = nl_cuda_product_aux(device, &product, dy.data, weight, NULL, a->pre.data,
                                         a->dx.data);
    } else if (!products) {
        NL_FOR_TYPE(a->dy, T, NL_FOR_TYPE(a->weight, W, {
                        plain_data_kernel<<<nl_blocks(rows * width, 256), 256, 0, stream>>>(
                            (const T *)a->dy.data, a->dy.row_stride, (const W *)weight,
                            (T *)a->dx.data, a->dx.row_stride, rows, width, depth);
                    }));
    }
    if (status == NL_OK && derivative && !fused)
        NL_FOR_TYPE(a->dx, T, {
            derivative_kernel<<<nl_blocks(rows * width, 256), 256, 0, stream>>>(
                (const T *)a->pre.data, (T *)a->dx.data, rows, width, a->dx.row_stride,
                a->epilogue);
        });
    if (status == NL_OK)
        status = finish_data(device, a);
    return status == NL_OK ? NL_CUDA_LAUNCHED(device, "linear_backward_data") : status;
}

extern "C" nl_status nl_cuda_linear_backward_weight(nl_device *device,
                                                    const nl_linear_backward_weight_args *a)
{
    cudaStream_t stream = nl_cuda_of(device)->stream;
    const int64_t rows = a->dy.shape[0], outputs = a->dy.shape[1], width = a->x.shape[1];
    if (rows == 0 || outputs == 0)
        return NL_OK;
    nl_tensor dy = a->dy;
    nl_status status = NL_OK;
    const bool products =
        width > 0 && dy.dtype == a->x.dtype && aligned(&a->x) && aligned(&a->dweight);
    if (products && (status = align_rows(device, &dy)) == NL_OK) {
        nl_product product = {};
        product.rows = outputs, product.columns = width, product.depth = rows;
        product.x_by_depth = product.w_by_depth = product.accumulate = true;
        product.x_stride = dy.row_stride, product.w_stride = a->x.row_stride;
        product.y_stride = a->dweight.row_stride;
        product.x_type = product.w_type = a->x.dtype, product.y_type = NL_F32;
        product.alpha = 1.f;
        status = nl_cuda_product(device, &product, dy.data, a->x.data, NULL, a->dweight.data);
    } else if (!products) {
        NL_FOR_TYPE(a->dy, T, NL_FOR_TYPE(a->x, X, {
                        plain_weight_kernel<<<nl_blocks(outputs * width, 256), 256, 0, stream>>>(
                            (const T *)a->dy.data, a->dy.row_stride, (const X *)a->x.data,
                            a->x.row_stride, (float *)a->dweight.data, a->dweight.row_stride,
                            outputs, width, rows);
                    }));
    }
    if (status == NL_OK && a->dbias.data)
        status = nl_cuda_column_sums(device, &a->dy, (float *)a->dbias.data);
    return status == NL_OK ? NL_CUDA_LAUNCHED(device, "linear_backward_weight") : status;
}
