/* SPDX-License-Identifier: MIT */
/* Softmax attention backward with the tensor cores of Hopper: backward_sm90_kernel.cuh says how. */
#ifndef NL_CUDA_SOFTMAX_BACKWARD_SM90_CUH
#define NL_CUDA_SOFTMAX_BACKWARD_SM90_CUH

#include "backward_kernel.cuh"

/* Heads of 56 to 80 and enough queries, on this device? */
bool nl_softmax_sm90_serves_backward(const nl_flash_gradient *problem, int64_t batch, int device);
/* Bytes of memory that it works in, 16-byte aligned. */
int64_t nl_softmax_sm90_backward_bytes(const nl_flash_gradient *problem, int64_t batch,
                                       int multiprocessors);
/* cudaErrorNotSupported: no gradient was written, another kernel is to be taken. */
cudaError_t nl_softmax_sm90_backward(const nl_flash_gradient *problem, int64_t batch, void *memory,
                                     int multiprocessors, cudaStream_t stream);

#endif
