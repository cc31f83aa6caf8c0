#include "softmax_kernel.cuh"

using namespace nl_softmax_sm90;

bool nl_softmax_sm90_serves(const nl_flash_problem *a, int64_t batch, int device)
{
    int major = 0;
    const uintptr_t data = (uintptr_t)a->q | (uintptr_t)a->k | (uintptr_t)a->v | (uintptr_t)a->out;
    return a->head_size % 8 == 0 && a->head_size >= 56 && a->head_size <= WIDE + TAIL &&
           a->tokens > 64 && (a->stride | a->out_stride) % 8 == 0 && data % 16 == 0 &&
           a->scale_log2 > 0.f && batch <= INT32_MAX / a->heads / ((a->tokens + 63) / 64) &&
           cudaDeviceGetAttribute(&major, cudaDevAttrComputeCapabilityMajor, device) ==
               cudaSuccess &&
           major == 9;
}

cudaError_t nl_softmax_sm90_forward(const nl_flash_problem *a, int64_t batch, int multiprocessors,
                                    cudaStream_t stream)
{
    if (a->head_size > WIDE)
        return launch<shape<true, 4, 64>>(*a, batch, multiprocessors, stream);
    /* Three groups have registers for tiles of 128 keys, but of a short sequence 192 queries leave a rest. */
    return a->tokens <= 1024 ? launch<shape<false, 4, 64>>(*a, batch, multiprocessors, stream)
                             : launch<shape<false, 3, 128>>(*a, batch, multiprocessors, stream);
}
