/* SPDX-License-Identifier: MIT */
/* What the CUDA operations share: the state of the device, error returns, vectors of eight elements, reductions. */
#ifndef NL_CUDA_COMMON_CUH
#define NL_CUDA_COMMON_CUH

#include <cublasLt.h>
#include <cuda_bf16.h>
#include <cuda_runtime.h>

#include "ops.h"

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

/* ---- Elements: arithmetic is always fp32. */

__device__ __forceinline__ float nl_get(const float *p)
{
    return *p;
}
__device__ __forceinline__ float nl_get(const __nv_bfloat16 *p)
{
    return __bfloat162float(*p);
}
__device__ __forceinline__ void nl_put(float *p, float x)
{
    *p = x;
}
__device__ __forceinline__ void nl_put(__nv_bfloat16 *p, float x)
{
    *p = __float2bfloat16(x);
}

/* Eight neighbouring elements, 16-byte aligned. */
__device__ __forceinline__ void nl_load8(const float *p, float (&x)[8])
{
    const float4 a = ((const float4 *)p)[0], b = ((const float4 *)p)[1];
    x[0] = a.x, x[1] = a.y, x[2] = a.z, x[3] = a.w, x[4] = b.x, x[5] = b.y, x[6] = b.z, x[7] = b.w;
}
__device__ __forceinline__ void nl_load8(const __nv_bfloat16 *p, float (&x)[8])
{
    const uint4 a = *(const uint4 *)p;
    const uint32_t words[4] = {a.x, a.y, a.z, a.w};
#pragma unroll
    for (int i = 0; i < 4; i++)
        x[2 * i] = __uint_as_float(words[i] << 16),
              x[2 * i + 1] = __uint_as_float(words[i] & 0xffff0000u);
}
__device__ __forceinline__ void nl_store8(float *p, const float (&x)[8])
{
    ((float4 *)p)[0] = make_float4(x[0], x[1], x[2], x[3]);
    ((float4 *)p)[1] = make_float4(x[4], x[5], x[6], x[7]);
}
__device__ __forceinline__ void nl_store8(__nv_bfloat16 *p, const float (&x)[8])
{
    uint32_t words[4];
#pragma unroll
    for (int i = 0; i < 4; i++) {
        const __nv_bfloat162 pair = __floats2bfloat162_rn(x[2 * i], x[2 * i + 1]);
        words[i] = *(const uint32_t *)&pair;
    }
    *(uint4 *)p = make_uint4(words[0], words[1], words[2], words[3]);
}

/* x / (1 + e^-x): 2 ulp, and no branch; e^-x = infinity gives -0, as it should. */
__device__ __forceinline__ float nl_silu(float x)
{
    return __fdividef(x, 1.f + __expf(fminf(-x, 80.f)));
}

__device__ __forceinline__ float nl_warp_sum(float x)
{
#pragma unroll
    for (int offset = 16; offset > 0; offset /= 2)
        x += __shfl_xor_sync(~0u, x, offset);
    return x;
}

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
