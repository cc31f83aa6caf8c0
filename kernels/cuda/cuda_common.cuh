/* SPDX-License-Identifier: MIT */
/* What the CUDA operations share: the state of the device, error returns, launches by type, and of the primitives those that
 * every operation may want: elements and their conversion, activations, sums. */
#ifndef NL_CUDA_COMMON_CUH
#define NL_CUDA_COMMON_CUH

#include <cublasLt.h>

#include "ops.h"
#include "prim/activation.cuh"
#include "prim/convert.cuh"
#include "prim/e4m3.cuh"
#include "prim/reduce.cuh"

struct nl_lt_cache;
struct nl_conv_cache;
struct nl_conv_weights;
struct nl_cuda_record;

struct nl_cuda {
    int index, multiprocessors;
    cudaStream_t stream;
    cudaStream_t uploads; /* beside it, made by the first of them */
    cudaEvent_t uploaded; /* the last of them */
    cublasLtHandle_t lt;  /* made by the first large product: loading cuBLASLt takes a while */
    void *lt_workspace;
    size_t lt_workspace_bytes;
    nl_lt_cache *products; /* algorithms by shape */
    nl_conv_cache *convolutions;
    nl_conv_weights *weights; /* of convolutions, reordered */
    void *dnn; /* cudnnHandle_t, made by the first convolution: loading cuDNN takes a while */
    void *
        scratch; /* of operations that want workspace: grown outside of sampling steps, never inside */
    int64_t scratch_bytes;
    nl_cuda_record *records; /* of nl_replay, the last used first */
    bool recording;
    struct {
        cudaEvent_t event; /* NULL: nothing was started yet */
        void *to;          /* where what lies in `small` is to go; NULL: nowhere */
        int64_t bytes;
    } downloads[NL_DOWNLOAD_SLOTS];
    char (*small)[NL_DOWNLOAD_SMALL]; /* pinned, [NL_DOWNLOAD_SLOTS] */
};

static inline nl_cuda *nl_cuda_of(nl_device *device)
{
    return (nl_cuda *)device->state;
}

extern "C" {
nl_status nl_cuda_check(nl_device *device, cudaError_t error, const char *what);
/* At least `bytes` of scratch memory, valid until the next call; allocates only when it must grow. */
nl_status nl_cuda_scratch(nl_device *device, const char *what, int64_t bytes, void **scratch);
nl_status nl_cuda_replay(nl_device *device, const void *key, size_t size,
                         nl_status (*run)(void *user), void *user);
void nl_cuda_forget_records(nl_cuda *cuda);

#define NL_OPERATION(operation)                                                                    \
    nl_status nl_cuda_##operation(nl_device *, const nl_##operation##_args *);
NL_ALL_OPERATIONS(NL_OPERATION)
#undef NL_OPERATION
}

#define NL_CUDA_LAUNCHED(device, name) nl_cuda_check(device, cudaGetLastError(), name)

/* Calls BODY with T the element type of the tensor: float or bf16. */
#define NL_FOR_TYPE(tensor, T, ...)                                                                \
    do {                                                                                           \
        if ((tensor).dtype == NL_BF16) {                                                           \
            using T = __nv_bfloat16;                                                               \
            __VA_ARGS__;                                                                           \
        } else {                                                                                   \
            using T = float;                                                                       \
            __VA_ARGS__;                                                                           \
        }                                                                                          \
    } while (0)

/* NL_FOR_TYPE with F16 as well. */
#define NL_FOR_IMAGE_TYPE(tensor, T, ...)                                                          \
    do {                                                                                           \
        if ((tensor).dtype == NL_F16) {                                                            \
            using T = __half;                                                                      \
            __VA_ARGS__;                                                                           \
        } else {                                                                                   \
            NL_FOR_TYPE(tensor, T, __VA_ARGS__);                                                   \
        }                                                                                          \
    } while (0)

static inline unsigned nl_blocks(int64_t count, int64_t threads)
{
    const int64_t blocks = (count + threads - 1) / threads;
    return (unsigned)(blocks < 1 ? 1 : blocks > 0x7fffffff ? 0x7fffffff : blocks);
}

/* for (i = this thread's first; i < count; i += all threads) */
#define NL_GRID_LOOP(i, count)                                                                     \
    for (int64_t i = blockIdx.x * (int64_t)blockDim.x + threadIdx.x; i < (count);                  \
         i += (int64_t)gridDim.x * blockDim.x)

#endif
