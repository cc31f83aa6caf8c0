/* SPDX-License-Identifier: MIT */
/* Convolutions of 3 x 3 in bf16 without patches in memory, on Hopper. */
#ifndef NL_CUDA_CONV_IMPLICIT_SM90_CUH
#define NL_CUDA_CONV_IMPLICIT_SM90_CUH

#include "conv2d.cuh"

/* doubled: of x twice as high and wide, the kernel still 3 x 3. */
bool nl_conv_implicit_serves(nl_device *device, const nl_conv_problem *problem, const void *x);
/* The weight comes as the files have it. The order of sums depends on the shape of one picture alone. */
nl_status nl_conv_implicit(nl_device *device, const nl_conv_problem *problem,
                           const nl_tensor *weight, const nl_conv_operands *operands);

#endif
