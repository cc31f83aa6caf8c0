/* SPDX-License-Identifier: MIT */
/* Convolutions in strict fp32 by a kernel of our own. */
#ifndef NL_CUDA_CONV_DIRECT_CUH
#define NL_CUDA_CONV_DIRECT_CUH

#include "conv2d.cuh"

bool nl_conv_direct_serves(const nl_conv_problem *problem, const void *x);
/* The weight comes as the files have it. */
nl_status nl_conv_direct(nl_device *device, const nl_conv_problem *problem, const nl_tensor *weight,
                         const nl_conv_operands *operands);

#endif
