/* SPDX-License-Identifier: MIT */
/* Depthwise convolutions of a grid of tokens and their gradients on Hopper: depthwise_sm90.cu says how. */
#ifndef NL_CUDA_DEPTHWISE_SM90_CUH
#define NL_CUDA_DEPTHWISE_SM90_CUH

#include "depthwise_backward_mma.cuh"

namespace nl_depthwise
{

/* The same bits as of run_conv and run_gradients. cudaErrorNotSupported, and nothing done: on another card, or for tensors that TMA
 * does not take. */
cudaError_t conv_sm90(int64_t kernel, const conv_args<nl_tensor> &args, cudaStream_t stream);
cudaError_t gradients_sm90(int64_t kernel, const gradient_args<nl_tensor> &args,
                           cudaStream_t stream);

/* Blocks of the gradients' kernel that a multiprocessor of the current card has at a time, Hopper or not. */
int gradient_blocks();

} // namespace nl_depthwise

#endif
