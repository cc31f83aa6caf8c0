/* SPDX-License-Identifier: MIT */
/* Weights of convolutions in the order in which they are read, made once and kept as long as the
 * tensor does not change. */
#ifndef NL_CUDA_CONV_WEIGHT_CUH
#define NL_CUDA_CONV_WEIGHT_CUH

#include "cuda_common.cuh"

enum nl_conv_layout {
    /* [O, C, kh, kw] becomes [outputs, kh, kw, channels]; what is beyond O and C is 0. */
    NL_CONV_PLAIN,
    /* A 3 x 3 kernel on a doubled picture becomes the 4 x 4 kernel [channels, 4, 4, outputs] of a transposed convolution of
     * stride 2 and padding 1 on the picture as it is: y[p] = sum over i of w[p + 1 - 2 i] x[i], where the taps that fall on one
     * pixel are summed. */
    NL_CONV_FOLDED,
    /* Plain, outputs a multiple of NL_CONV_TILED_RUN and in the order in which wgmma leaves eight neighbouring ones to a
     * thread: output 8 q + 2 i + e of a run is row 8 i + 2 q + e. */
    NL_CONV_TILED,
    /* A 3 x 3 kernel on a doubled picture becomes four of 2 x 2 on the picture as it is, [parity of y's line, of its column]
     * [outputs, 2, 2, channels], outputs as above. Taps that fall on one pixel are summed. */
    NL_CONV_TILED_PHASES
};
enum { NL_CONV_TILED_RUN = 32 };

struct nl_conv_order {
    nl_dtype type; /* F32, BF16 or F16 */
    int outputs, channels;
    nl_conv_layout layout;
};

nl_status nl_cuda_conv_weight(nl_device *device, const nl_tensor *weight,
                              const nl_conv_order *order, const void **ordered);
/* A bias [outputs] of F32 in the type. */
nl_status nl_cuda_conv_bias(nl_device *device, const void *bias, nl_dtype type, int outputs,
                            const void **typed);
/* Memory was written from outside of the operations, or is about to be freed. */
void nl_cuda_weights_changed(nl_device *device, const void *memory, int64_t bytes, bool freed);
void nl_cuda_weights_destroy(nl_device *device);

#endif
