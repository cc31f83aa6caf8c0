/* SPDX-License-Identifier: MIT */
/* cuBLASLt is column-major: a row-major y = x W^T is y^T = W x^T there, W read transposed. Descriptors and the chosen
 * algorithm are kept by shape: the first call of a shape asks the heuristic, later ones only launch. One of the
 * heuristic's answers is taken by a rule, not the fastest of a race, so that the same call always runs the same
 * arithmetic. */
#include <cstdlib>
#include <cstring>

#include "product.cuh"

#include "small.cuh"

struct nl_lt_cache {
    nl_product key;
    cublasLtMatmulDesc_t operation;
    cublasLtMatrixLayout_t a, b, d;
    cublasLtMatmulAlgo_t algorithm;
    bool missing; /* the library has no such product */
    nl_lt_cache *next;
};

/* What a product is made of. */
struct nl_factors {
    const void *x, *w, *bias;
    const float *x_scale, *w_scale; /* of the rows of F8, or NULL */
    void *aux, *y;
};

static bool same(const nl_product *a, const nl_product *b)
{
    return a->rows == b->rows && a->columns == b->columns && a->depth == b->depth &&
           a->w_by_depth == b->w_by_depth && a->x_by_depth == b->x_by_depth &&
           a->accumulate == b->accumulate && a->aux == b->aux && a->aux_stride == b->aux_stride &&
           a->x_stride == b->x_stride && a->w_stride == b->w_stride && a->y_stride == b->y_stride &&
           a->x_type == b->x_type && a->w_type == b->w_type && a->y_type == b->y_type &&
           a->scaled == b->scaled && a->bias == b->bias && a->gelu == b->gelu &&
           a->relu == b->relu && a->tf32 == b->tf32 && a->alpha == b->alpha;
}

static cudaDataType_t type_of(nl_dtype dtype)
{
    return dtype == NL_F8     ? CUDA_R_8F_E4M3
           : dtype == NL_BF16 ? CUDA_R_16BF
           : dtype == NL_F16  ? CUDA_R_16F
           : dtype == NL_F64  ? CUDA_R_64F
                              : CUDA_R_32F;
}

static void forget(nl_lt_cache *plan)
{
    if (plan->operation)
        cublasLtMatmulDescDestroy(plan->operation);
    if (plan->a)
        cublasLtMatrixLayoutDestroy(plan->a);
    if (plan->b)
        cublasLtMatrixLayoutDestroy(plan->b);
    if (plan->d)
        cublasLtMatrixLayoutDestroy(plan->d);
    free(plan);
}

void nl_cuda_products_destroy(nl_cuda *cuda)
{
    while (cuda->products) {
        nl_lt_cache *next = cuda->products->next;
        forget(cuda->products);
        cuda->products = next;
    }
}

static cublasLtEpilogue_t epilogue_of(const nl_product *p)
{
    if (p->aux == NL_AUX_GELU_GRADIENT)
        return CUBLASLT_EPILOGUE_DGELU;
    if (p->aux == NL_AUX_PRE)
        return p->bias ? CUBLASLT_EPILOGUE_GELU_AUX_BIAS : CUBLASLT_EPILOGUE_GELU_AUX;
    if (p->gelu)
        return p->bias ? CUBLASLT_EPILOGUE_GELU_BIAS : CUBLASLT_EPILOGUE_GELU;
    if (p->relu)
        return p->bias ? CUBLASLT_EPILOGUE_RELU_BIAS : CUBLASLT_EPILOGUE_RELU;
    return p->bias ? CUBLASLT_EPILOGUE_BIAS : CUBLASLT_EPILOGUE_DEFAULT;
}

/* Which of the heuristic's answers? Large products with an epilogue: the first with tiles of 128 x 128 and clusters of
 * two, whose kernels run the epilogue of one tile beside the multiplications of the next (on an H200 5 to 25 % faster
 * than the first answer at the sizes of S/2 and XL/2: bench/results/forward.md). Otherwise the first. */
enum { ANSWERS = 8 };
static int choose_answer(const nl_product *p, const cublasLtMatmulHeuristicResult_t *results,
                         int found)
{
    if (p->x_type != NL_BF16 || p->rows < 4096 || p->columns < 256)
        return 0;
    if (p->aux ==
        NL_AUX_GELU_GRADIENT) /* the first that does not split (products_backward.cu: 10 % faster) */
        for (int i = 0; i < found; i++) {
            int32_t split = 0;
            size_t size;
            if (cublasLtMatmulAlgoConfigGetAttribute(
                    &results[i].algo, CUBLASLT_ALGO_CONFIG_SPLITK_NUM, &split, sizeof(split),
                    &size) == CUBLAS_STATUS_SUCCESS &&
                split == 1)
                return i;
        }
    if (!p->bias)
        return 0;
    for (int i = 0; i < found; i++) {
        uint32_t tile = 0;
        uint16_t cluster = 0;
        size_t size;
        if (cublasLtMatmulAlgoConfigGetAttribute(&results[i].algo, CUBLASLT_ALGO_CONFIG_TILE_ID,
                                                 &tile, sizeof(tile),
                                                 &size) == CUBLAS_STATUS_SUCCESS &&
            cublasLtMatmulAlgoConfigGetAttribute(&results[i].algo,
                                                 CUBLASLT_ALGO_CONFIG_CLUSTER_SHAPE_ID, &cluster,
                                                 sizeof(cluster), &size) == CUBLAS_STATUS_SUCCESS &&
            tile == CUBLASLT_MATMUL_TILE_128x128 &&
            (cluster == CUBLASLT_CLUSTER_SHAPE_2x1x1 || cluster == CUBLASLT_CLUSTER_SHAPE_1x2x1))
            return i;
    }
    return 0;
}

/* The pointers that lie in a description of F8 with factors. */
static cublasStatus_t describe_factors(cublasLtMatmulDesc_t operation, const nl_factors *f)
{
    cublasStatus_t status = cublasLtMatmulDescSetAttribute(
        operation, CUBLASLT_MATMUL_DESC_A_SCALE_POINTER, &f->w_scale, sizeof(f->w_scale));
    return status != CUBLAS_STATUS_SUCCESS
               ? status
               : cublasLtMatmulDescSetAttribute(operation, CUBLASLT_MATMUL_DESC_B_SCALE_POINTER,
                                                &f->x_scale, sizeof(f->x_scale));
}

/* Sums of F8 in the registers of the tensor cores, which keep some 14 bits of them, where others are taken out of there every
 * few steps; the rounding of F8 is 16 times as coarse. */
static cublasStatus_t describe_f8(cublasLtMatmulDesc_t operation, const nl_product *p,
                                  const nl_factors *f)
{
    const int8_t fast = 1;
    cublasStatus_t status = cublasLtMatmulDescSetAttribute(
        operation, CUBLASLT_MATMUL_DESC_FAST_ACCUM, &fast, sizeof(fast));
#if CUBLAS_VERSION >= 120900
    const int32_t rows = CUBLASLT_MATMUL_MATRIX_SCALE_OUTER_VEC_32F;
    if (status == CUBLAS_STATUS_SUCCESS && p->scaled)
        status = cublasLtMatmulDescSetAttribute(operation, CUBLASLT_MATMUL_DESC_A_SCALE_MODE, &rows,
                                                sizeof(rows));
    if (status == CUBLAS_STATUS_SUCCESS && p->scaled)
        status = cublasLtMatmulDescSetAttribute(operation, CUBLASLT_MATMUL_DESC_B_SCALE_MODE, &rows,
                                                sizeof(rows));
    return status == CUBLAS_STATUS_SUCCESS && p->scaled ? describe_factors(operation, f) : status;
#else
    return p->scaled ? CUBLAS_STATUS_NOT_SUPPORTED : status;
#endif
}

static cublasStatus_t describe(nl_cuda *cuda, nl_lt_cache *plan, const nl_factors *f)
{
    const nl_product *p = &plan->key;
    const cublasOperation_t w_operation = p->w_by_depth ? CUBLAS_OP_N : CUBLAS_OP_T;
    const cublasOperation_t x_operation = p->x_by_depth ? CUBLAS_OP_T : CUBLAS_OP_N;
    const cublasLtEpilogue_t epilogue = epilogue_of(p);
    const bool wide = p->x_type == NL_F64;
    const cublasComputeType_t compute = wide      ? CUBLAS_COMPUTE_64F
                                        : p->tf32 ? CUBLAS_COMPUTE_32F_FAST_TF32
                                                  : CUBLAS_COMPUTE_32F;
    const cudaDataType_t bias_type = type_of(p->y_type);
    const uint32_t reductions = CUBLASLT_REDUCTION_SCHEME_COMPUTE_TYPE;
    cublasLtMatmulPreference_t preference = NULL;
    cublasLtMatmulHeuristicResult_t results[ANSWERS];
    int found = 0;
    cublasStatus_t status;
#define TRY(call)                                                                                  \
    do {                                                                                           \
        if ((status = (call)) != CUBLAS_STATUS_SUCCESS)                                            \
            goto cleanup;                                                                          \
    } while (0)
    TRY(cublasLtMatmulDescCreate(&plan->operation, compute, wide ? CUDA_R_64F : CUDA_R_32F));
    TRY(cublasLtMatmulDescSetAttribute(plan->operation, CUBLASLT_MATMUL_DESC_TRANSA, &w_operation,
                                       sizeof(w_operation)));
    TRY(cublasLtMatmulDescSetAttribute(plan->operation, CUBLASLT_MATMUL_DESC_TRANSB, &x_operation,
                                       sizeof(x_operation)));
    TRY(cublasLtMatmulDescSetAttribute(plan->operation, CUBLASLT_MATMUL_DESC_EPILOGUE, &epilogue,
                                       sizeof(epilogue)));
    if (p->x_type == NL_F8)
        TRY(describe_f8(plan->operation, p, f));
    if (p->bias)
        TRY(cublasLtMatmulDescSetAttribute(plan->operation, CUBLASLT_MATMUL_DESC_BIAS_DATA_TYPE,
                                           &bias_type, sizeof(bias_type)));
    if (p->aux != NL_AUX_NONE) {
        TRY(cublasLtMatmulDescSetAttribute(plan->operation,
                                           CUBLASLT_MATMUL_DESC_EPILOGUE_AUX_DATA_TYPE, &bias_type,
                                           sizeof(bias_type)));
        TRY(cublasLtMatmulDescSetAttribute(plan->operation, CUBLASLT_MATMUL_DESC_EPILOGUE_AUX_LD,
                                           &p->aux_stride, sizeof(p->aux_stride)));
    }
    TRY(cublasLtMatrixLayoutCreate(&plan->a, type_of(p->w_type),
                                   p->w_by_depth ? p->columns : p->depth,
                                   p->w_by_depth ? p->depth : p->columns, p->w_stride));
    TRY(cublasLtMatrixLayoutCreate(&plan->b, type_of(p->x_type), p->x_by_depth ? p->rows : p->depth,
                                   p->x_by_depth ? p->depth : p->rows, p->x_stride));
    TRY(cublasLtMatrixLayoutCreate(&plan->d, type_of(p->y_type), p->columns, p->rows, p->y_stride));
    TRY(cublasLtMatmulPreferenceCreate(&preference));
    TRY(cublasLtMatmulPreferenceSetAttribute(preference, CUBLASLT_MATMUL_PREF_MAX_WORKSPACE_BYTES,
                                             &cuda->lt_workspace_bytes,
                                             sizeof(cuda->lt_workspace_bytes)));
    if (p->accumulate) /* a deep product is split: add the parts in a fixed order, in fp32 */
        TRY(cublasLtMatmulPreferenceSetAttribute(preference,
                                                 CUBLASLT_MATMUL_PREF_REDUCTION_SCHEME_MASK,
                                                 &reductions, sizeof(reductions)));
    TRY(cublasLtMatmulAlgoGetHeuristic(cuda->lt, plan->operation, plan->a, plan->b, plan->d,
                                       plan->d, preference, ANSWERS, results, &found));
    if (found == 0)
        status = CUBLAS_STATUS_NOT_SUPPORTED;
    else
        plan->algorithm = results[choose_answer(p, results, found)].algo;
#undef TRY
cleanup:
    if (preference)
        cublasLtMatmulPreferenceDestroy(preference);
    return status;
}

/* The library, and the workspace of its kernels, when they are first wanted. */
static nl_status open_library(nl_device *device)
{
    nl_cuda *cuda = nl_cuda_of(device);
    const int64_t bytes = (int64_t)32 << 20;
    if (!cuda->lt_workspace) {
        nl_status status =
            device->ops->alloc(device, "workspace of matrix products", bytes, &cuda->lt_workspace);
        if (status != NL_OK)
            return status;
        cuda->lt_workspace_bytes = (size_t)bytes;
    }
    if (!cuda->lt && cublasLtCreate(&cuda->lt) != CUBLAS_STATUS_SUCCESS)
        return nl_fail(device->context, NL_ERROR_DEVICE,
                       "%s: cuBLASLt does not start; is its library where the CUDA toolkit put it?",
                       device->name);
    return NL_OK;
}

/* The plan of a product: *plan is NULL where the library has none, which is the error of products other than F8. */
static nl_status plan_of(nl_device *device, const nl_product *product, const nl_factors *f,
                         nl_lt_cache **plan, cublasStatus_t *answer)
{
    nl_cuda *cuda = nl_cuda_of(device);
    nl_lt_cache *found = cuda->products;
    *plan = NULL;
    while (found && !same(&found->key, product))
        found = found->next;
    if (!found) {
        found = (nl_lt_cache *)calloc(1, sizeof(*found));
        if (!found)
            return nl_fail(device->context, NL_ERROR_MEMORY,
                           "a matrix product's plan: out of host memory");
        found->key = *product;
        *answer = describe(cuda, found, f);
        found->missing = *answer != CUBLAS_STATUS_SUCCESS;
        if (found->missing && product->x_type != NL_F8) {
            forget(found);
            return NL_OK;
        }
        found->next = cuda->products;
        cuda->products = found;
    }
    if (!found->missing)
        *plan = found;
    return NL_OK;
}

static cublasStatus_t multiply(nl_cuda *cuda, nl_lt_cache *plan, const nl_factors *f)
{
    const nl_product *product = &plan->key;
    const float beta = product->accumulate ? 1.f : 0.f;
    const double wide_alpha = product->alpha, wide_beta = beta;
    const bool wide = product->x_type == NL_F64;
    cublasStatus_t status = CUBLAS_STATUS_SUCCESS;
    if (product->bias)
        status = cublasLtMatmulDescSetAttribute(plan->operation, CUBLASLT_MATMUL_DESC_BIAS_POINTER,
                                                &f->bias, sizeof(f->bias));
    if (status == CUBLAS_STATUS_SUCCESS && product->aux != NL_AUX_NONE)
        status = cublasLtMatmulDescSetAttribute(
            plan->operation, CUBLASLT_MATMUL_DESC_EPILOGUE_AUX_POINTER, &f->aux, sizeof(f->aux));
    if (status == CUBLAS_STATUS_SUCCESS && product->scaled)
        status = describe_factors(plan->operation, f);
    return status != CUBLAS_STATUS_SUCCESS
               ? status
               : cublasLtMatmul(cuda->lt, plan->operation,
                                wide ? (const void *)&wide_alpha : (const void *)&product->alpha,
                                f->w, plan->a, f->x, plan->b,
                                wide ? (const void *)&wide_beta : (const void *)&beta, f->y,
                                plan->d, f->y, plan->d, &plan->algorithm, cuda->lt_workspace,
                                cuda->lt_workspace_bytes, cuda->stream);
}

/* served: NULL where a product that the library does not have is an error. */
static nl_status run(nl_device *device, const nl_product *product, const nl_factors *f,
                     bool *served)
{
    nl_cuda *cuda = nl_cuda_of(device);
    nl_lt_cache *plan;
    cublasStatus_t answer = CUBLAS_STATUS_NOT_SUPPORTED;
    nl_status status = open_library(device);
    if (status == NL_OK)
        status = plan_of(device, product, f, &plan, &answer);
    if (status != NL_OK)
        return status;
    if (served)
        *served = plan != NULL;
    if (plan)
        answer = multiply(cuda, plan, f);
    else if (served)
        return NL_OK;
    if (answer != CUBLAS_STATUS_SUCCESS)
        return nl_fail(device->context, NL_ERROR_DEVICE,
                       "matrix product [%lld, %lld] x [%lld, %lld]^T: cuBLASLt: %s",
                       (long long)product->rows, (long long)product->depth,
                       (long long)product->columns, (long long)product->depth,
                       cublasLtGetStatusString(answer));
    return NL_OK;
}

nl_status nl_cuda_product(nl_device *device, const nl_product *product, const void *x,
                          const void *w, const void *bias, void *y)
{
    return nl_cuda_product_aux(device, product, x, w, bias, NULL, y);
}

nl_status nl_cuda_product_aux(nl_device *device, const nl_product *product, const void *x,
                              const void *w, const void *bias, void *aux, void *y)
{
    if (nl_small_product_serves(product, x, w, y))
        return nl_cuda_check(
            device, nl_small_product_run(product, x, w, bias, y, nl_cuda_of(device)->stream),
            "matrix product");
    const nl_factors factors = {x, w, bias, NULL, NULL, aux, y};
    return run(device, product, &factors, NULL);
}

nl_status nl_cuda_product_f8(nl_device *device, const nl_product *product, const nl_tensor *x,
                             const nl_tensor *w, const void *bias, void *y, bool *served)
{
    const nl_factors factors = {x->data, w->data, bias, x->scale, w->scale, NULL, y};
    return run(device, product, &factors, served);
}
