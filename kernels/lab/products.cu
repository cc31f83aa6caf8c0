/*
 * Laboratory of the backbone's matrix products: what cuBLASLt's heuristic offers for each shape, in its order, with and
 * without epilogue and workspace.
 *
 *   nvcc -O3 -std=c++17 -gencode arch=compute_90a,code=sm_90a kernels/lab/products.cu -lcublasLt -o products && ./products
 */
#include <cublasLt.h>

#include "lab.cuh"

#define LT(call)                                                                                   \
    do {                                                                                           \
        cublasStatus_t lt_status = (call);                                                         \
        if (lt_status != CUBLAS_STATUS_SUCCESS) {                                                  \
            fprintf(stderr, "%s:%d: %s\n", __FILE__, __LINE__,                                     \
                    cublasLtGetStatusString(lt_status));                                           \
            exit(1);                                                                               \
        }                                                                                          \
    } while (0)

static cublasLtHandle_t handle;
static void *x, *w, *bias, *y, *workspace;

/* y [rows, columns] = x [rows, depth] w [columns, depth]^T, as kernels/cuda/product.cu sets it up. */
static void measure(int64_t rows, int64_t columns, int64_t depth, cublasLtEpilogue_t epilogue,
                    const char *text, size_t workspace_bytes)
{
    cublasLtMatmulDesc_t operation;
    cublasLtMatrixLayout_t a, b, d;
    cublasLtMatmulPreference_t preference;
    const cublasOperation_t transposed = CUBLAS_OP_T;
    const cudaDataType_t type = CUDA_R_16BF;
    LT(cublasLtMatmulDescCreate(&operation, CUBLAS_COMPUTE_32F, CUDA_R_32F));
    LT(cublasLtMatmulDescSetAttribute(operation, CUBLASLT_MATMUL_DESC_TRANSA, &transposed,
                                      sizeof(transposed)));
    LT(cublasLtMatmulDescSetAttribute(operation, CUBLASLT_MATMUL_DESC_EPILOGUE, &epilogue,
                                      sizeof(epilogue)));
    if (epilogue != CUBLASLT_EPILOGUE_DEFAULT && epilogue != CUBLASLT_EPILOGUE_GELU) {
        LT(cublasLtMatmulDescSetAttribute(operation, CUBLASLT_MATMUL_DESC_BIAS_DATA_TYPE, &type,
                                          sizeof(type)));
        LT(cublasLtMatmulDescSetAttribute(operation, CUBLASLT_MATMUL_DESC_BIAS_POINTER, &bias,
                                          sizeof(bias)));
    }
    LT(cublasLtMatrixLayoutCreate(&a, type, depth, columns, depth));
    LT(cublasLtMatrixLayoutCreate(&b, type, depth, rows, depth));
    LT(cublasLtMatrixLayoutCreate(&d, type, columns, rows, columns));
    LT(cublasLtMatmulPreferenceCreate(&preference));
    LT(cublasLtMatmulPreferenceSetAttribute(preference, CUBLASLT_MATMUL_PREF_MAX_WORKSPACE_BYTES,
                                            &workspace_bytes, sizeof(workspace_bytes)));
    cublasLtMatmulHeuristicResult_t results[8];
    int found = 0;
    LT(cublasLtMatmulAlgoGetHeuristic(handle, operation, a, b, d, d, preference, 8, results,
                                      &found));
    printf("%5lld x %4lld x %4lld %-9s %2zu MiB:", (long long)rows, (long long)columns,
           (long long)depth, text, workspace_bytes >> 20);
    for (int i = 0; i < found; i++) {
        const float one = 1.f, zero = 0.f;
        const float ms = median_ms(
            [&](int) {
                LT(cublasLtMatmul(handle, operation, &one, w, a, x, b, &zero, y, d, y, d,
                                  &results[i].algo, workspace, workspace_bytes, 0));
            },
            10);
        printf(" %.1f", 1e3 * ms);
    }
    printf(" us\n");
    cublasLtMatmulPreferenceDestroy(preference);
    cublasLtMatrixLayoutDestroy(a);
    cublasLtMatrixLayoutDestroy(b);
    cublasLtMatrixLayoutDestroy(d);
    cublasLtMatmulDescDestroy(operation);
}

int main()
{
    const size_t elements = 65536ll * 1536;
    copy_rate();
    LT(cublasLtCreate(&handle));
    CHECK(cudaMalloc(&workspace, 64 << 20));
    for (void **p : {&x, &w, &bias, &y}) {
        CHECK(cudaMalloc(p, elements * 2));
        std::vector<__nv_bfloat16> values(elements);
        uint32_t state = 1;
        for (auto &v : values)
            v = __float2bfloat16(((state = state * 1664525u + 1013904223u) >> 8) / 16777216.f -
                                 0.5f);
        CHECK(cudaMemcpy(*p, values.data(), elements * 2, cudaMemcpyHostToDevice));
    }
    static const struct {
        int64_t rows, columns, depth;
    } shapes[] = {{65536, 1536, 384},  {65536, 384, 384},   {65536, 384, 1536},
                  {16384, 4608, 1152}, {16384, 1152, 1152}, {16384, 1152, 4608}};
    for (const auto &s : shapes) {
        measure(s.rows, s.columns, s.depth, CUBLASLT_EPILOGUE_DEFAULT, "", 32 << 20);
        measure(s.rows, s.columns, s.depth, CUBLASLT_EPILOGUE_BIAS, "bias", 32 << 20);
        measure(s.rows, s.columns, s.depth, CUBLASLT_EPILOGUE_BIAS, "bias", 0);
        if (s.columns == 4 * s.depth) {
            measure(s.rows, s.columns, s.depth, CUBLASLT_EPILOGUE_GELU_BIAS, "bias+gelu", 32 << 20);
            measure(s.rows, s.columns, s.depth, CUBLASLT_EPILOGUE_RELU_BIAS, "bias+relu", 32 << 20);
        }
    }
    return 0;
}
