/* SPDX-License-Identifier: MIT */
/*
 * oneDNN behind plain functions: matrix products and convolutions. The only file that includes
 * dnnl.h is dnnl.c, which speaks both the 2.x and the 3.x C interface. Primitives are kept by
 * shape; their working memory is shared and counted against the context's budget.
 */
#ifndef NL_DNNL_H
#define NL_DNNL_H

#include "ops.h"

typedef struct nl_dnnl nl_dnnl;

nl_status nl_dnnl_create(nl_device *device, nl_dnnl **dnnl);
void nl_dnnl_destroy(nl_dnnl *dnnl); /* NULL is allowed */

/* Whether bf16 products are faster than fp32 ones on this processor (AVX512-BF16, AMX). */
bool nl_dnnl_has_bf16(void);

/* Whether F32 products are made of blocks, whose sums have one order for any number of threads. That takes AVX-512, or a newer oneDNN
 * than 2.6. Without it those of nl_dnnl_multiply have one order where one thread makes at most 144 rows in whole groups of
 * NL_DNNL_GROUP. */
enum { NL_DNNL_GROUP = 6 };
bool nl_dnnl_has_blocks(nl_dnnl *dnnl);

/* y [m, n] = x [m, k] weight [n, k]^T + bias, fp32 sums, added to what is there if `add`; x and weight of one dtype, F32 or
 * BF16. In BF16 the order of the sums is the same for all m, n and numbers of threads up to k = NL_DNNL_K, and not beyond. */
enum { NL_DNNL_K = 768 };
typedef struct nl_dnnl_product {
    int64_t m, n, k;
    nl_dtype dtype;
    bool add;
    const void *x;
    int64_t x_stride; /* elements between rows */
    const void *weight;
    int64_t weight_stride;
    const void *
        arranged; /* what nl_dnnl_arrange made of the weight, or NULL; read in place of it wherever that is faster */
    const float *bias; /* [n] or NULL */
    float *y;
    int64_t y_stride;
} nl_dnnl_product;

nl_status nl_dnnl_matmul(nl_dnnl *dnnl, const nl_dnnl_product *product);

/* A BF16 weight [n, k] in the order in which products of many rows read it, where those that are given another write it down in that
 * order in every call: the bits of a product are the same. Runs of NL_DNNL_OUTPUTS rows of the weight follow each other there, of
 * nl_dnnl_run_bytes each. 0 bytes: this processor's products read it as it lies, or in an order that is not known here. */
enum { NL_DNNL_OUTPUTS = 64 };
int64_t nl_dnnl_arranged_bytes(nl_dnnl *dnnl, int64_t n, int64_t k);
int64_t nl_dnnl_run_bytes(int64_t k);
void nl_dnnl_arrange(int64_t n, int64_t k, const uint16_t *weight, int64_t weight_stride,
                     void *arranged);

/* nl_dnnl_matmul by each thread of a team alone. *prepared, valid until the next call of another function here, is for products of
 * this one's shape, strides, types and `add`, run by up to `threads` threads at once; `thread` counts them from 0. Each must have set
 * omp_set_num_threads(1). false: oneDNN refuses. */
nl_status nl_dnnl_prepare(nl_dnnl *dnnl, const nl_dnnl_product *product, int threads,
                          void **prepared);
bool nl_dnnl_matmul_alone(nl_dnnl *dnnl, void *prepared, const nl_dnnl_product *product,
                          int thread);

/* c [m, n] = a b, added to what is there if `add`; all F32 with elements between rows. a is [m, k], or [k, m] when
 * a_transposed; b is [k, n], or [n, k] when b_transposed. Runs on omp_get_max_threads() threads: 1 in a
 * team whose members each call it. */
typedef struct nl_dnnl_gemm {
    bool add, a_transposed, b_transposed;
    int64_t m, n, k;
    const float *a;
    int64_t a_stride;
    const float *b;
    int64_t b_stride;
    float *c;
    int64_t c_stride;
} nl_dnnl_gemm;

/* false: oneDNN refuses. */
bool nl_dnnl_multiply(const nl_dnnl_gemm *gemm);

/* The operation conv2d of a picture as it is, y contiguous: products of x's type, which is y's, too, fp32 sums. */
nl_status nl_dnnl_conv2d(nl_dnnl *dnnl, const nl_conv2d_args *args);

#endif
