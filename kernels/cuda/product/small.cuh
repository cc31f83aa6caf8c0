/* SPDX-License-Identifier: MIT */
/* Products of bf16 factors by a kernel of our own: small.cu says when. */
#ifndef NL_CUDA_SMALL_PRODUCT_CUH
#define NL_CUDA_SMALL_PRODUCT_CUH

#include "product.cuh"

bool nl_small_product_serves(const nl_product *product, const void *x, const void *w,
                             const void *y);
cudaError_t nl_small_product_run(const nl_product *product, const void *x, const void *w,
                                 const void *bias, void *y, cudaStream_t stream);

#endif
