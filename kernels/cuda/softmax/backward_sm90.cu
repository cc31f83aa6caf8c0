/* SPDX-License-Identifier: MIT */
/* Softmax attention backward on Hopper: where it serves, the memory it wants, the kernel by the size of heads. */
#include "backward_sm90_kernel.cuh"
#include "prim/is_hopper.cuh"

using namespace nl_softmax_backward_sm90;

bool nl_softmax_sm90_serves_backward(const nl_flash_gradient *a, int64_t batch, int device)
{
    const uintptr_t data = (uintptr_t)a->q | (uintptr_t)a->k | (uintptr_t)a->v | (uintptr_t)a->out |
                           (uintptr_t)a->dout | (uintptr_t)a->dq | (uintptr_t)a->dk |
                           (uintptr_t)a->dv;
    return a->head_size % 8 == 0 && a->head_size >= 56 && a->head_size <= WIDE + TAIL &&
           a->tokens > 64 && (a->stride | a->out_stride | a->gradient_stride) % 8 == 0 &&
           data % 16 == 0 && batch <= INT32_MAX / a->heads / (a->tokens / QUERIES + 1) &&
           nl_is_hopper(device);
}

int64_t nl_softmax_sm90_backward_bytes(const nl_flash_gradient *a, int64_t batch,
                                       int multiprocessors)
{
    return a->head_size <= WIDE ? plan<shape<false>>(*a, batch, multiprocessors).bytes
                                : plan<shape<true>>(*a, batch, multiprocessors).bytes;
}

template <typename S>
static cudaError_t backward(const nl_flash_gradient &a, int64_t batch, void *memory,
                            int multiprocessors, cudaStream_t stream)
{
    return launch<S>(a, batch, memory, plan<S>(a, batch, multiprocessors), stream);
}

cudaError_t nl_softmax_sm90_backward(const nl_flash_gradient *a, int64_t batch, void *memory,
                                     int multiprocessors, cudaStream_t stream)
{
    return a->head_size <= WIDE ? backward<shape<false>>(*a, batch, memory, multiprocessors, stream)
                                : backward<shape<true>>(*a, batch, memory, multiprocessors, stream);
}
