/* SPDX-License-Identifier: MIT */
/* NaLa attention forward with the tensor cores of Hopper: forward_sm90.cu says how. */
#ifndef NL_CUDA_NALA_FORWARD_SM90_CUH
#define NL_CUDA_NALA_FORWARD_SM90_CUH

#include "forward_kernel.cuh"

/* Heads of 64, 72 or 80 with the cosine map and lambda 3, on this device? */
bool nl_nala_sm90_serves(const nl_nala_problem *problem, nl_feature_map map);
/* The workspace is that of nl_nala_forward. cudaErrorNotSupported: nothing was done, another kernel is to be taken. */
cudaError_t nl_nala_sm90_forward(const nl_nala_problem *problem, int64_t batch, void *workspace,
                                 cudaStream_t stream);

#endif
