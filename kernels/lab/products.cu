/* SPDX-License-Identifier: MIT */
/*
 * Laboratory of the backbone's matrix products: what cuBLASLt's heuristic offers for each shape, in its order, with and
 * without epilogue and workspace (microseconds; tile and cluster of the fastest), and the panel products beside it, whose
 * values are compared with a plain kernel's.
 *
 *   nvcc -O3 -std=c++17 -gencode arch=compute_90a,code=sm_90a -Ikernels/cuda kernels/lab/products.cu \
 *        kernels/cuda/product/panel_sm90.cu -lcublasLt -o products && ./products
 */
#include <cublasLt.h>

#include <cmath>

#include "lab.cuh"
#include "product/panel_sm90.cuh"

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

/* y [rows, columns] = x [rows, depth] w [columns, depth]^T, as kernels/cuda/product/product.cu sets it up. */
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
    float best = INFINITY;
    int best_at = 0;
    for (int i = 0; i < found; i++) {
        const float one = 1.f, zero = 0.f;
        const float ms = median_ms(
            [&](int) {
                LT(cublasLtMatmul(handle, operation, &one, w, a, x, b, &zero, y, d, y, d,
                                  &results[i].algo, workspace, workspace_bytes, 0));
            },
            10);
        printf(" %.1f", 1e3 * ms);
        if (ms < best)
            best = ms, best_at = i;
    }
    int32_t tile = 0, stages = 0;
    uint16_t cluster = 0, inner = 0;
    size_t size;
    const cublasLtMatmulAlgo_t *algo = &results[best_at].algo;
    cublasLtMatmulAlgoConfigGetAttribute(algo, CUBLASLT_ALGO_CONFIG_TILE_ID, &tile, sizeof(tile),
                                         &size);
    cublasLtMatmulAlgoConfigGetAttribute(algo, CUBLASLT_ALGO_CONFIG_STAGES_ID, &stages,
                                         sizeof(stages), &size);
    cublasLtMatmulAlgoConfigGetAttribute(algo, CUBLASLT_ALGO_CONFIG_CLUSTER_SHAPE_ID, &cluster,
                                         sizeof(cluster), &size);
    cublasLtMatmulAlgoConfigGetAttribute(algo, CUBLASLT_ALGO_CONFIG_INNER_SHAPE_ID, &inner,
                                         sizeof(inner), &size);
    printf(" us; the fastest: tile %d, stages %d, cluster %u, inner %u\n", tile, stages, cluster,
           inner);
    cublasLtMatmulPreferenceDestroy(preference);
    cublasLtMatrixLayoutDestroy(a);
    cublasLtMatrixLayoutDestroy(b);
    cublasLtMatrixLayoutDestroy(d);
    cublasLtMatmulDescDestroy(operation);
}

__global__ void plain_product(const __nv_bfloat16 *x, const __nv_bfloat16 *w,
                              const __nv_bfloat16 *bias, float *y, int64_t rows, int columns,
                              int depth, bool gelu)
{
    for (int64_t i = blockIdx.x * (int64_t)blockDim.x + threadIdx.x; i < rows * columns;
         i += (int64_t)gridDim.x * blockDim.x) {
        float sum = __bfloat162float(bias[i % columns]);
        for (int k = 0; k < depth; k++)
            sum = fmaf(__bfloat162float(x[i / columns * depth + k]),
                       __bfloat162float(w[i % columns * depth + k]), sum);
        y[i] = gelu ? 0.5f * sum * (1 + tanhf(0.7978845608f * (sum + 0.044715f * sum * sum * sum)))
                    : sum;
    }
}

/* Against the plain kernel, then time. */
static int panels(int64_t rows, int columns, int depth, bool gelu)
{
    const int64_t count = rows * columns;
    float *expected;
    CHECK(cudaMalloc(&expected, count * 4));
    CHECK(cudaMemset(y, 0xff, count * 2));
    plain_product<<<4096, 256>>>((const __nv_bfloat16 *)x, (const __nv_bfloat16 *)w,
                                 (const __nv_bfloat16 *)bias, expected, rows, columns, depth, gelu);
    nl_panel_product p = {};
    p.x = (const __nv_bfloat16 *)x, p.w = (const __nv_bfloat16 *)w;
    p.bias = bias, p.y = (__nv_bfloat16 *)y;
    p.rows = rows, p.columns = columns, p.depth = depth;
    p.x_stride = p.w_stride = depth, p.y_stride = columns;
    p.epilogue = gelu ? NL_PANEL_GELU : NL_PANEL_PLAIN;
    if (!nl_panel_product_serves(&p, 0)) {
        printf("panels do not serve %lld x %d x %d\n", (long long)rows, columns, depth);
        CHECK(cudaFree(expected));
        return 0;
    }
    cudaDeviceProp card;
    CHECK(cudaGetDeviceProperties(&card, 0));
    CHECK(nl_panel_product_run(&p, card.multiProcessorCount, 0));
    CHECK(cudaDeviceSynchronize());
    std::vector<float> a(count);
    std::vector<__nv_bfloat16> b(count);
    CHECK(cudaMemcpy(a.data(), expected, count * 4, cudaMemcpyDeviceToHost));
    CHECK(cudaMemcpy(b.data(), y, count * 2, cudaMemcpyDeviceToHost));
    CHECK(cudaFree(expected));
    double difference = 0, norm = 0;
    int64_t worst = 0;
    for (int64_t i = 0; i < count; i++) {
        const double e = std::fabs(a[i] - __bfloat162float(b[i]));
        if (!(e <= std::fabs(a[worst] - __bfloat162float(b[worst]))))
            worst = i;
        difference += e * e, norm += (double)a[i] * a[i];
    }
    const double error = std::sqrt(difference / norm);
    const float ms =
        median_ms([&](int) { CHECK(nl_panel_product_run(&p, card.multiProcessorCount, 0)); });
    printf("panels %5lld x %4d x %4d %s: %.1f us, %.0f TFLOP/s, relative error %.2e %s",
           (long long)rows, columns, depth, gelu ? "gelu" : "", 1e3 * ms,
           2e-9 * rows * columns * depth / ms, error, error <= 4e-3 ? "ok\n" : "WRONG");
    if (!(error <= 4e-3))
        printf(": row %lld, column %lld is %g, not %g\n", (long long)(worst / columns),
               (long long)(worst % columns), __bfloat162float(b[worst]), a[worst]);
    return !(error <= 4e-3);
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
    int failures = 0;
    failures += panels(4097, 192, 72, false);
    failures += panels(5000, 384, 384, true);
    failures += panels(65536, 1536, 384, false);
    failures += panels(65536, 1536, 384, true);
    failures += panels(65536, 1152, 384, false);
    failures += panels(65536, 384, 384, false);
    return failures;
}
