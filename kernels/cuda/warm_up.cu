/* The first question to cuBLASLt's heuristic for a kind of product loads its kernels: a tenth of a second, in which the
 * weights can be read. So a thread asks it when the device is made; the answers are thrown away. */
#include "cuda_common.cuh"

static void ask(const nl_cuda *cuda, cudaDataType_t type, cudaDataType_t y_type)
{
    enum { SIZE = 512 };
    const cublasOperation_t transposed = CUBLAS_OP_T;
    cublasLtMatmulDesc_t operation = NULL;
    cublasLtMatrixLayout_t factor = NULL, y = NULL;
    cublasLtMatmulPreference_t preference = NULL;
    cublasLtMatmulHeuristicResult_t result;
    int found;
    if (cublasLtMatmulDescCreate(&operation, CUBLAS_COMPUTE_32F, CUDA_R_32F) ==
            CUBLAS_STATUS_SUCCESS &&
        cublasLtMatmulDescSetAttribute(operation, CUBLASLT_MATMUL_DESC_TRANSA, &transposed,
                                       sizeof(transposed)) == CUBLAS_STATUS_SUCCESS &&
        cublasLtMatrixLayoutCreate(&factor, type, SIZE, SIZE, SIZE) == CUBLAS_STATUS_SUCCESS &&
        cublasLtMatrixLayoutCreate(&y, y_type, SIZE, SIZE, SIZE) == CUBLAS_STATUS_SUCCESS &&
        cublasLtMatmulPreferenceCreate(&preference) == CUBLAS_STATUS_SUCCESS)
        (void)cublasLtMatmulAlgoGetHeuristic(cuda->lt, operation, factor, factor, y, y, preference,
                                             1, &result, &found);
    if (preference)
        cublasLtMatmulPreferenceDestroy(preference);
    if (y)
        cublasLtMatrixLayoutDestroy(y);
    if (factor)
        cublasLtMatrixLayoutDestroy(factor);
    if (operation)
        cublasLtMatmulDescDestroy(operation);
}

static void *warm_up(void *user)
{
    const nl_cuda *cuda = (const nl_cuda *)user;
    const cudaDataType_t type = cuda->warm_bf16 ? CUDA_R_16BF : CUDA_R_32F;
    if (cudaSetDevice(cuda->index) != cudaSuccess)
        return NULL;
    ask(cuda, type, type);
    if (type != CUDA_R_32F)
        ask(cuda, type, CUDA_R_32F);
    return NULL;
}

extern "C" void nl_cuda_warm_up(nl_device *device)
{
    nl_cuda *cuda = nl_cuda_of(device);
    cuda->warm_bf16 = device->dtype == NL_BF16;
    cuda->warming = pthread_create(&cuda->warm_thread, NULL, warm_up, cuda) == 0;
}

extern "C" void nl_cuda_warm_up_end(nl_cuda *cuda)
{
    if (cuda->warming)
        pthread_join(cuda->warm_thread, NULL);
    cuda->warming = false;
}
