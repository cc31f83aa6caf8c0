/* SPDX-License-Identifier: MIT */
/* What `nalagen info --device` says of a card, its driver and the libraries. */
#include <cstdio>

#include "cuda_common.cuh"
#include "nl_nccl.h"
#ifdef NL_CUDNN
#include <cudnn.h>
#endif

extern "C" void nl_cuda_describe(nl_device *device,
                                 void (*fact)(void *user, const char *name, const char *text),
                                 void *user)
{
    cudaDeviceProp card;
    char text[64];
    int version = 0;
    size_t left = 0, total = 0;
    if (cudaGetDeviceProperties(&card, nl_cuda_of(device)->index) == cudaSuccess) {
        fact(user, "card", card.name);
        snprintf(text, sizeof(text), "%d.%d", card.major, card.minor);
        fact(user, "compute_capability", text);
        snprintf(text, sizeof(text), "%d", card.multiProcessorCount);
        fact(user, "multiprocessors", text);
    }
    if (cudaMemGetInfo(&left, &total) == cudaSuccess) {
        snprintf(text, sizeof(text), "%.1f GiB, %.1f free", total / 1073741824.,
                 left / 1073741824.);
        fact(user, "memory", text);
    }
    if (cudaDriverGetVersion(&version) == cudaSuccess) {
        snprintf(text, sizeof(text), "CUDA %d.%d", version / 1000, version % 1000 / 10);
        fact(user, "driver", text);
    }
    if (cudaRuntimeGetVersion(&version) == cudaSuccess) {
        snprintf(text, sizeof(text), "CUDA %d.%d", version / 1000, version % 1000 / 10);
        fact(user, "runtime", text);
    }
    const size_t lt = cublasLtGetVersion();
    snprintf(text, sizeof(text), "%zu.%zu.%zu", lt / 10000, lt % 10000 / 100, lt % 100);
    fact(user, "cublaslt", text);
#ifdef NL_CUDNN
    const size_t dnn = cudnnGetVersion();
    snprintf(text, sizeof(text), "%zu.%zu.%zu", dnn / 10000, dnn % 10000 / 100, dnn % 100);
    fact(user, "cudnn", text);
#else
    fact(user, "cudnn", "not in this build");
#endif
    version = nl_nccl_version();
    snprintf(text, sizeof(text), "%d.%d.%d", version / 10000, version % 10000 / 100, version % 100);
    fact(user, "nccl", version ? text : "not there");
    (void)cudaGetLastError();
}
