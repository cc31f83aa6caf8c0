/* SPDX-License-Identifier: MIT */
/* Softmax attention on Hopper: which problems its kernel serves, and which of its shapes each of them takes. */
#include "forward_sm90_kernel.cuh"
#include "prim/is_hopper.cuh"

using namespace nl_softmax_sm90;

bool nl_softmax_sm90_serves(const nl_flash_problem *a, int64_t batch, int device)
{
    const uintptr_t data = (uintptr_t)a->q | (uintptr_t)a->k | (uintptr_t)a->v | (uintptr_t)a->out;
    return a->head_size % 8 == 0 && a->head_size >= 56 && a->head_size <= WIDE + TAIL &&
           a->tokens > 64 && (a->stride | a->out_stride) % 8 == 0 && data % 16 == 0 &&
           a->scale_log2 > 0.f && batch <= INT32_MAX && nl_is_hopper(device);
}

template <bool HAS_TAIL>
static cudaError_t forward(const nl_flash_problem &a, int64_t batch, int multiprocessors,
                           cudaStream_t stream)
{
    /* Three groups have registers for tiles of 128 keys, but of a short sequence 192 queries leave a rest, and with a tail only
     * three such tiles fit in shared memory. */
    if (HAS_TAIL || a.tokens <= 1024)
        return launch<shape<HAS_TAIL, 4, 64>>(a, batch, multiprocessors, stream);
    return launch<shape<false, 3, 128>>(a, batch, multiprocessors, stream);
}

cudaError_t nl_softmax_sm90_forward(const nl_flash_problem *a, int64_t batch, int multiprocessors,
                                    cudaStream_t stream)
{
    return a->head_size <= WIDE ? forward<false>(*a, batch, multiprocessors, stream)
                                : forward<true>(*a, batch, multiprocessors, stream);
}
