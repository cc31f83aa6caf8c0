/* SPDX-License-Identifier: MIT */
/* Softmax attention forward with the tensor cores of Hopper: forward_sm90_kernel.cuh says how. */
#ifndef NL_CUDA_SOFTMAX_FORWARD_SM90_CUH
#define NL_CUDA_SOFTMAX_FORWARD_SM90_CUH

#include "forward_kernel.cuh"

/* Heads of 56 to 80 and enough queries, on this device? */
bool nl_softmax_sm90_serves(const nl_flash_problem *problem, int64_t batch, int device);
/* cudaErrorNotSupported: nothing was done, another kernel is to be taken. */
cudaError_t nl_softmax_sm90_forward(const nl_flash_problem *problem, int64_t batch,
                                    int multiprocessors, cudaStream_t stream);

#endif
