/* SPDX-License-Identifier: MIT */
/* Matrix products with a small inner dimension on Hopper's tensor cores: panel_sm90.cu says how. */
#ifndef NL_CUDA_PANEL_PRODUCT_CUH
#define NL_CUDA_PANEL_PRODUCT_CUH

#include <cstdint>
#include <cuda_bf16.h>
#include <cuda_runtime.h>

enum nl_panel_epilogue {
    NL_PANEL_PLAIN,
    NL_PANEL_GELU,
    NL_PANEL_GELU_PRE,     /* GELU; what comes before it goes to pre */
    NL_PANEL_GELU_GRADIENT /* times the derivative of GELU (tanh) at pre */
};

/* y [rows, columns] = epilogue(x [rows, depth] w [columns, depth]^T + bias). Strides in elements. */
struct nl_panel_product {
    const __nv_bfloat16 *x, *w;
    bool w_by_depth;  /* w is [depth, columns] */
    const void *bias; /* [columns] bf16 or fp32, or NULL */
    bool bias_f32;
    nl_panel_epilogue epilogue;
    __nv_bfloat16 *pre; /* [rows, columns], contiguous */
    __nv_bfloat16 *y;
    int64_t rows, columns, depth, x_stride, w_stride, y_stride;
    /* Of NL_PANEL_GELU_GRADIENT, either may be NULL. */
    __nv_bfloat16 *gelu; /* [rows, columns] GELU of pre, contiguous; may be pre */
    float *parts;        /* [nl_panel_parts, columns]: sums over rows of y, still to be added up */
    /* Of E4M3 factors with these factors of their rows, or NULL. x and w are then what they would be as bf16 of half the
     * depth, w is not by depth, and there is no gradient. */
    const float *x_scale, *w_scale;
    /* Of NL_PANEL_GELU: y in E4M3 at this address in place of y, contiguous, and where the factors of its rows go; |y| <=
     * x_scale[row] reach + bias_reach. */
    uint8_t *y_f8;
    float *y_scale, reach, bias_reach;
};

/* Is this a product for it, on card number `device`? */
bool nl_panel_product_serves(const nl_panel_product *product, int device);
int64_t nl_panel_parts(int64_t columns, int multiprocessors);
cudaError_t nl_panel_product_run(const nl_panel_product *product, int multiprocessors,
                                 cudaStream_t stream);

#endif
