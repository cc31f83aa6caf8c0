/* One matrix product through cuBLASLt: y = epilogue(x W^T + bias), row-major. */
#ifndef NL_CUDA_PRODUCT_CUH
#define NL_CUDA_PRODUCT_CUH

#include "cuda_common.cuh"

struct nl_product {
    int64_t rows, columns, depth; /* x [rows, depth], w [columns, depth], y [rows, columns] */
    bool w_by_depth;              /* w is [depth, columns]: y = x w */
    int64_t x_stride, w_stride, y_stride; /* elements between rows */
    nl_dtype x_type, w_type, y_type;      /* x and w: both F32 or both BF16 */
    bool bias, gelu;
    float alpha;
};

/* bias has y's type. */
nl_status nl_cuda_product(nl_device *device, const nl_product *product, const void *x,
                          const void *w, const void *bias, void *y);
void nl_cuda_products_destroy(nl_cuda *cuda);

#endif
