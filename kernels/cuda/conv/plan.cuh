/* SPDX-License-Identifier: MIT */
/* Convolutions as plans of cuDNN's graph interface: y = activation(conv(x) + bias + residual) in
 * one kernel. */
#ifndef NL_CUDA_CONV_PLAN_CUH
#define NL_CUDA_CONV_PLAN_CUH

#include <cudnn.h>

#include "conv2d.cuh"

struct nl_conv_plan;

/* The type of the bias: cuDNN has its kernels of fp16 with a bias of fp16 only. */
nl_dtype nl_conv_plan_bias_type(const nl_conv_problem *problem);
/* All operands start at 16 bytes.
 * The first engine of cuDNN's heuristics that the rules allow; if there are some with this TILE_SIZE (-1: any) and without
 * WORKSPACE = 0, the first of those. So the same card with the same cuDNN always runs the same arithmetic.
 * CUDNN_STATUS_NOT_SUPPORTED when there is none. */
cudnnStatus_t nl_conv_plan_create(cudnnHandle_t handle, const nl_conv_problem *problem, int tile,
                                  int64_t most_workspace, nl_conv_plan **plan);
void nl_conv_plan_destroy(nl_conv_plan *plan); /* NULL is allowed */
int64_t nl_conv_plan_workspace(const nl_conv_plan *plan);
cudnnStatus_t nl_conv_plan_run(cudnnHandle_t handle, const nl_conv_plan *plan,
                               const nl_conv_operands *operands, void *workspace);

#endif
