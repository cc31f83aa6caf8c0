/* SPDX-License-Identifier: MIT */
/* One matrix product, small ones by small.cu, others through cuBLASLt: y = epilogue(x W^T + bias), row-major. */
#ifndef NL_CUDA_PRODUCT_CUH
#define NL_CUDA_PRODUCT_CUH

#include "cuda_common.cuh"

enum nl_product_aux {
    NL_AUX_NONE,
    NL_AUX_PRE, /* with gelu: what comes before it is written to aux, for the backward pass */
    NL_AUX_GELU_GRADIENT /* y is multiplied by gelu'(aux) */
};

struct nl_product {
    int64_t rows, columns, depth; /* x [rows, depth], w [columns, depth], y [rows, columns] */
    bool w_by_depth;              /* w is [depth, columns]: y = x w */
    bool x_by_depth;              /* x is [depth, rows]: y = x^T w */
    bool accumulate;              /* y += instead of y = */
    nl_product_aux aux;           /* [rows, columns] of y's type */
    int64_t aux_stride;
    int64_t x_stride, w_stride, y_stride; /* elements between rows */
    nl_dtype x_type, w_type, y_type;      /* x and w: both F32, BF16 or F8; or all F64 */
    bool scaled; /* F8 times the factors of its rows; otherwise as they are */
    bool bias, gelu, relu;
    bool tf32;  /* F32 factors may be rounded to TF32 */
    bool alone; /* of a single picture, which is not to wait for cuBLASLt where it can do without */
    float alpha;
};

/* bias has y's type. */
nl_status nl_cuda_product(nl_device *device, const nl_product *product, const void *x,
                          const void *w, const void *bias, void *y);
/* The same with aux. */
nl_status nl_cuda_product_aux(nl_device *device, const nl_product *product, const void *x,
                              const void *w, const void *bias, void *aux, void *y);
/* y = x W^T of F8, whose rows are multiples of 16 bytes, with the factors of their rows (scaled) or without. *served is false
 * where cuBLASLt has no such product for this card: with factors it has one for Hopper alone. */
nl_status nl_cuda_product_f8(nl_device *device, const nl_product *product, const nl_tensor *x,
                             const nl_tensor *w, const void *bias, void *y, bool *served);
void nl_cuda_products_destroy(nl_cuda *cuda);

#endif
