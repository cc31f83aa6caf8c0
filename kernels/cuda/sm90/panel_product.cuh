/* Matrix products with a small inner dimension on Hopper's tensor cores: panel_product.cu says how. */
#ifndef NL_CUDA_PANEL_PRODUCT_CUH
#define NL_CUDA_PANEL_PRODUCT_CUH

#include <cstdint>
#include <cuda_bf16.h>
#include <cuda_runtime.h>

/* y [rows, columns] = x [rows, depth] w [columns, depth]^T + bias, through GELU (tanh) where asked. Strides in elements. */
struct nl_panel_product {
    const __nv_bfloat16 *x, *w;
    const void *bias; /* [columns] bf16 or fp32, or NULL */
    __nv_bfloat16 *y;
    int64_t rows, columns, depth, x_stride, w_stride, y_stride;
    bool bias_f32, gelu;
};

/* Is this a product for it, on card number `device`? */
bool nl_panel_product_serves(const nl_panel_product *product, int device);
cudaError_t nl_panel_product_run(const nl_panel_product *product, int multiprocessors,
                                 cudaStream_t stream);

#endif
