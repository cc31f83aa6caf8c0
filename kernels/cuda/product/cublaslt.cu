/* SPDX-License-Identifier: MIT */
/* The functions of cuBLASLt under their own names; the first call of one loads the library, which takes a twentieth of a
 * second and is not needed for a single picture. What is not there answers CUBLAS_STATUS_NOT_INITIALIZED. */
#include <cublasLt.h>
#include <dlfcn.h>

#define TEXT_OF(x) #x
#define TEXT(x)    TEXT_OF(x)

static void *open_library()
{
    void *library = dlopen("libcublasLt.so." TEXT(CUBLAS_VER_MAJOR), RTLD_NOW | RTLD_LOCAL);
    return library ? library : dlopen(NL_CUBLASLT, RTLD_NOW | RTLD_LOCAL);
}

static void *find(const char *name)
{
    static void *library = open_library();
    return library ? dlsym(library, name) : NULL;
}

#define FORWARD(type, missing, name, parameters, arguments)                                        \
    extern "C" type name parameters                                                                \
    {                                                                                              \
        static const auto function = (decltype(&name))find(#name);                                 \
        return function ? function arguments : missing;                                            \
    }
#define FORWARD_STATUS(name, parameters, arguments)                                                \
    FORWARD(cublasStatus_t, CUBLAS_STATUS_NOT_INITIALIZED, name, parameters, arguments)

FORWARD(size_t, 0, cublasLtGetVersion, (), ())
FORWARD(const char *, "the library is not there", cublasLtGetStatusString, (cublasStatus_t status),
        (status))
FORWARD_STATUS(cublasLtCreate, (cublasLtHandle_t * handle), (handle))
FORWARD_STATUS(cublasLtDestroy, (cublasLtHandle_t handle), (handle))
FORWARD_STATUS(cublasLtMatrixLayoutCreate,
               (cublasLtMatrixLayout_t * layout, cudaDataType type, uint64_t rows, uint64_t columns,
                int64_t stride),
               (layout, type, rows, columns, stride))
FORWARD_STATUS(cublasLtMatrixLayoutDestroy, (cublasLtMatrixLayout_t layout), (layout))
FORWARD_STATUS(cublasLtMatmulDescCreate,
               (cublasLtMatmulDesc_t * operation, cublasComputeType_t compute,
                cudaDataType_t scale),
               (operation, compute, scale))
FORWARD_STATUS(cublasLtMatmulDescDestroy, (cublasLtMatmulDesc_t operation), (operation))
FORWARD_STATUS(cublasLtMatmulDescSetAttribute,
               (cublasLtMatmulDesc_t operation, cublasLtMatmulDescAttributes_t attribute,
                const void *value, size_t size),
               (operation, attribute, value, size))
FORWARD_STATUS(cublasLtMatmulPreferenceCreate, (cublasLtMatmulPreference_t * preference),
               (preference))
FORWARD_STATUS(cublasLtMatmulPreferenceDestroy, (cublasLtMatmulPreference_t preference),
               (preference))
FORWARD_STATUS(cublasLtMatmulPreferenceSetAttribute,
               (cublasLtMatmulPreference_t preference,
                cublasLtMatmulPreferenceAttributes_t attribute, const void *value, size_t size),
               (preference, attribute, value, size))
FORWARD_STATUS(cublasLtMatmulAlgoGetHeuristic,
               (cublasLtHandle_t handle, cublasLtMatmulDesc_t operation, cublasLtMatrixLayout_t a,
                cublasLtMatrixLayout_t b, cublasLtMatrixLayout_t c, cublasLtMatrixLayout_t d,
                cublasLtMatmulPreference_t preference, int wanted,
                cublasLtMatmulHeuristicResult_t results[], int *found),
               (handle, operation, a, b, c, d, preference, wanted, results, found))
FORWARD_STATUS(cublasLtMatmulAlgoConfigGetAttribute,
               (const cublasLtMatmulAlgo_t *algorithm,
                cublasLtMatmulAlgoConfigAttributes_t attribute, void *value, size_t size,
                size_t *written),
               (algorithm, attribute, value, size, written))
FORWARD_STATUS(cublasLtMatmul,
               (cublasLtHandle_t handle, cublasLtMatmulDesc_t operation, const void *alpha,
                const void *a, cublasLtMatrixLayout_t a_layout, const void *b,
                cublasLtMatrixLayout_t b_layout, const void *beta, const void *c,
                cublasLtMatrixLayout_t c_layout, void *d, cublasLtMatrixLayout_t d_layout,
                const cublasLtMatmulAlgo_t *algorithm, void *workspace, size_t workspace_size,
                cudaStream_t stream),
               (handle, operation, alpha, a, a_layout, b, b_layout, beta, c, c_layout, d, d_layout,
                algorithm, workspace, workspace_size, stream))
