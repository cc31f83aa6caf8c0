/* SPDX-License-Identifier: MIT */
/* NaLa attention forward on the GPU: what the operation and the laboratory call. */
#ifndef NL_CUDA_NALA_ATTENTION_CUH
#define NL_CUDA_NALA_ATTENTION_CUH

#include "forward_kernel.cuh"

/* In bf16: head sizes that are multiples of 8 up to 128; rope with the cosine maps; learnt exponents with the cosine map
 * without rope. */
bool nl_nala_serves(int64_t head_size, nl_feature_map map, bool rope, bool learnt);
/* Bytes of workspace that nl_nala_forward wants (0 for short sequences). */
int64_t nl_nala_workspace(int64_t batch, int64_t heads, int64_t tokens, int64_t head_size,
                          nl_feature_map map);
/* Sets the problem's head_size and what lies in the workspace. */
cudaError_t nl_nala_forward(nl_nala_problem problem, int64_t batch, int64_t head_size,
                            nl_feature_map map, void *workspace, cudaStream_t stream);

#endif
