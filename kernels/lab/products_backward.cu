/* SPDX-License-Identifier: MIT */
/*
 * Laboratory of the backward matrix products: what cuBLASLt's heuristic offers for each shape, in its order
 * (microseconds; tile, split of the depth and reduction of each), as kernels/cuda/product/product.cu sets them up.
 *
 *   nvcc -O3 -std=c++17 kernels/lab/products_backward.cu -lcublasLt -o products_backward && ./products_backward
 */
#include <cublasLt.h>

#include "lab.cuh"

#define LT(call)                                                                                   \
    do {                                                                                           \
        cublasStatus_t lt_status = (call);                                                         \
        if (lt_status != CUBLAS_STATUS_SUCCESS) {                                                  \
            printf("  %s:%d: %s\n", __FILE__, __LINE__, cublasLtGetStatusString(lt_status));       \
            return;                                                                                \
        }                                                                                          \
    } while (0)

static cublasLtHandle_t handle;
static void *a, *b, *d, *aux, *workspace;
static const size_t WORKSPACE = (size_t)64 << 20;

template <typename T>
static T config(const cublasLtMatmulAlgo_t &algorithm, cublasLtMatmulAlgoConfigAttributes_t which)
{
    T value = 0;
    size_t written;
    cublasLtMatmulAlgoConfigGetAttribute(&algorithm, which, &value, sizeof(value), &written);
    return value;
}

/* Column-major D [m, n] = A^ta B^tb, depth k. */
static void measure(const char *name, bool ta, bool tb, int64_t m, int64_t n, int64_t k,
                    cudaDataType_t type, float beta, cublasLtEpilogue_t epilogue,
                    uint32_t reductions)
{
    cublasLtMatmulDesc_t operation;
    cublasLtMatrixLayout_t la, lb, ld;
    cublasLtMatmulPreference_t preference;
    cublasLtMatmulHeuristicResult_t results[8];
    const cublasOperation_t oa = ta ? CUBLAS_OP_T : CUBLAS_OP_N,
                            ob = tb ? CUBLAS_OP_T : CUBLAS_OP_N;
    const float alpha = 1;
    int found = 0;
    LT(cublasLtMatmulDescCreate(&operation, CUBLAS_COMPUTE_32F, CUDA_R_32F));
    LT(cublasLtMatmulDescSetAttribute(operation, CUBLASLT_MATMUL_DESC_TRANSA, &oa, sizeof(oa)));
    LT(cublasLtMatmulDescSetAttribute(operation, CUBLASLT_MATMUL_DESC_TRANSB, &ob, sizeof(ob)));
    LT(cublasLtMatmulDescSetAttribute(operation, CUBLASLT_MATMUL_DESC_EPILOGUE, &epilogue,
                                      sizeof(epilogue)));
    if (epilogue == CUBLASLT_EPILOGUE_DGELU) {
        LT(cublasLtMatmulDescSetAttribute(operation, CUBLASLT_MATMUL_DESC_EPILOGUE_AUX_POINTER,
                                          &aux, sizeof(aux)));
        LT(cublasLtMatmulDescSetAttribute(operation, CUBLASLT_MATMUL_DESC_EPILOGUE_AUX_LD, &m,
                                          sizeof(m)));
        LT(cublasLtMatmulDescSetAttribute(operation, CUBLASLT_MATMUL_DESC_EPILOGUE_AUX_DATA_TYPE,
                                          &type, sizeof(type)));
    }
    if (epilogue == CUBLASLT_EPILOGUE_BGRADA || epilogue == CUBLASLT_EPILOGUE_BGRADB)
        LT(cublasLtMatmulDescSetAttribute(operation, CUBLASLT_MATMUL_DESC_BIAS_POINTER, &aux,
                                          sizeof(aux)));
    LT(cublasLtMatrixLayoutCreate(&la, CUDA_R_16BF, ta ? k : m, ta ? m : k, ta ? k : m));
    LT(cublasLtMatrixLayoutCreate(&lb, CUDA_R_16BF, tb ? n : k, tb ? k : n, tb ? n : k));
    LT(cublasLtMatrixLayoutCreate(&ld, type, m, n, m));
    LT(cublasLtMatmulPreferenceCreate(&preference));
    LT(cublasLtMatmulPreferenceSetAttribute(preference, CUBLASLT_MATMUL_PREF_MAX_WORKSPACE_BYTES,
                                            &WORKSPACE, sizeof(WORKSPACE)));
    LT(cublasLtMatmulPreferenceSetAttribute(preference, CUBLASLT_MATMUL_PREF_REDUCTION_SCHEME_MASK,
                                            &reductions, sizeof(reductions)));
    printf("%s, %lld x %lld x %lld deep\n", name, (long long)m, (long long)n, (long long)k);
    LT(cublasLtMatmulAlgoGetHeuristic(handle, operation, la, lb, ld, ld, preference, 8, results,
                                      &found));
    for (int i = 0; i < found; i++) {
        const cublasLtMatmulAlgo_t &algorithm = results[i].algo;
        bool good = true;
        const float ms = median_ms(
            [&](int) {
                good = good &&
                       cublasLtMatmul(handle, operation, &alpha, a, la, b, lb, &beta, d, ld, d, ld,
                                      &algorithm, workspace, WORKSPACE, 0) == CUBLAS_STATUS_SUCCESS;
            },
            15);
        printf("  %7.1f us%s  id %u tile %u split %d reduction %u workspace %.1f MiB\n", 1000 * ms,
               good ? "" : " (failed)", config<uint32_t>(algorithm, CUBLASLT_ALGO_CONFIG_ID),
               config<uint32_t>(algorithm, CUBLASLT_ALGO_CONFIG_TILE_ID),
               config<int32_t>(algorithm, CUBLASLT_ALGO_CONFIG_SPLITK_NUM),
               config<uint32_t>(algorithm, CUBLASLT_ALGO_CONFIG_REDUCTION_SCHEME),
               results[i].workspaceSize / 1048576.);
    }
}

/* Pseudo-random numbers: zeros would draw less power, and run faster. */
__global__ void fill_kernel(__nv_bfloat16 *x, size_t count)
{
    for (size_t i = blockIdx.x * 256 + threadIdx.x; i < count; i += gridDim.x * 256) {
        uint32_t h = (uint32_t)i * 2654435761u;
        h ^= h >> 15, h *= 2246822519u, h ^= h >> 13;
        x[i] = __float2bfloat16((float)(int)(h % 20001 - 10000) / 5774.f);
    }
}

int main()
{
    const int64_t M = 65536;
    const size_t bytes = (size_t)M * 1536 * 2;
    copy_rate();
    if (cublasLtCreate(&handle) != CUBLAS_STATUS_SUCCESS)
        return 1;
    for (void **p : {&a, &b, &d, &aux}) {
        CHECK(cudaMalloc(p, bytes));
        fill_kernel<<<1024, 256>>>((__nv_bfloat16 *)*p, bytes / 2);
    }
    CHECK(cudaMalloc(&workspace, WORKSPACE));
    const struct {
        int64_t n, k;
    } layers[] = {{1536, 384}, {384, 384}, {384, 1536}};
    for (const auto &l : layers) {
        /* dW^T [k, n] = x^T dy: A = x [k, M], B = dy^T */
        measure("weight", false, true, l.k, l.n, M, CUDA_R_32F, 1, CUBLASLT_EPILOGUE_DEFAULT, 2);
        measure("weight, any reduction", false, true, l.k, l.n, M, CUDA_R_32F, 1,
                CUBLASLT_EPILOGUE_DEFAULT, 7);
        measure("weight and bias", false, true, l.k, l.n, M, CUDA_R_32F, 1,
                CUBLASLT_EPILOGUE_BGRADB, 2);
        measure("weight in bf16 and bias", false, true, l.k, l.n, M, CUDA_R_16BF, 0,
                CUBLASLT_EPILOGUE_BGRADB, 2);
        /* dx^T [k, M] = W^T dy^T: A = W [k, n], B = dy [n, M] */
        measure("data", false, false, l.k, M, l.n, CUDA_R_16BF, 0, CUBLASLT_EPILOGUE_DEFAULT, 2);
        if (l.k == 1536)
            measure("data, GELU", false, false, l.k, M, l.n, CUDA_R_16BF, 0,
                    CUBLASLT_EPILOGUE_DGELU, 2);
    }
    return 0;
}
