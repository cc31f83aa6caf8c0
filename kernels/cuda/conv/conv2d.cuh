/* SPDX-License-Identifier: MIT */
/* What the ways of a convolution share (conv2d.cu chooses): its shape, and the passes before and
 * after it. */
#ifndef NL_CUDA_CONV2D_CUH
#define NL_CUDA_CONV2D_CUH

#include "weight.cuh"

/* Everything that the way of a convolution depends on; compared byte by byte. x [batch, height, width, channels], weight
 * [outputs, kernel_height, kernel_width, channels], y [batch, out_height, out_width, outputs] and residual (as y) are of one
 * type, the bias is F32. */
struct nl_conv_problem {
    int64_t y_pixel; /* elements between pixels of y */
    int64_t batch;
    nl_dtype type;
    nl_activation activation;
    int doubled; /* of x twice as high and wide; for cuDNN a transposed one of 4 x 4, stride 2 (weight.cuh) */
    int tf32; /* F32 only: factors may be rounded to TF32 */
    int bias, residual;
    int apart; /* y, bias or residual does not start at 16 bytes */
    int height, width, channels, out_height, out_width, outputs;
    int kernel_height, kernel_width, stride;
    int pad_top, pad_left, pad_bottom, pad_right;
};

struct nl_conv_operands {
    const void *x, *weight, *bias, *residual; /* what the problem has not is NULL */
    void *y;
};

/* The next multiple of `unit`: tensor cores and cuBLASLt want pixels of whole 16 bytes. */
inline int nl_conv_round_up(int count, int unit)
{
    return (count + unit - 1) / unit * unit;
}

/* Whether a picture by itself is not to wait for cuDNN and cuBLASLt, which take 0.3 s to load: unless it is so large that the
 * work without them takes longer than that soon, in AutoencoderKL from 1,024 px on. In strict fp32 cuDNN gains nothing. */
inline bool nl_conv_is_alone(const nl_conv_problem *p)
{
    const int64_t taps = p->doubled ? 9 : p->kernel_height * p->kernel_width;
    const int64_t pixels = p->out_height * (int64_t)p->out_width, most = INT64_C(1) << 38;
    return p->batch == 1 &&
           ((p->type == NL_F32 && !p->tf32) || pixels * p->outputs < most / (taps * p->channels));
}

__device__ __forceinline__ float nl_conv_activate(float v, nl_activation activation)
{
    if (activation == NL_ACT_RELU)
        v = v < 0.f ? 0.f : v;
    else if (activation == NL_ACT_SILU)
        v = nl_silu(v);
    return v;
}

/* x with its padding in `to`, as `padded` has it: maybe with more channels, which are 0. */
void nl_conv_pad(const nl_conv_problem *problem, const nl_conv_problem *padded, const void *x,
                 void *to, cudaStream_t stream);
/* y = activation(from + bias + residual) of what `problem` has and `done` has not. from: [pixels,
 * done->outputs], or y itself. */
void nl_conv_finish(const nl_conv_problem *problem, const nl_conv_problem *done, const void *from,
                    const nl_conv_operands *operands, cudaStream_t stream);

/* cuDNN (cudnn.cu), or products over gathered patches (gather.cu). The weight comes as the files have it. */
nl_status nl_conv_run(nl_device *device, const nl_conv_problem *problem, const nl_tensor *weight,
                      const nl_conv_operands *operands);
/* The latter whatever the build. In F32 bias and ReLU are part of the product. */
nl_status nl_conv_gather(nl_device *device, const nl_conv_problem *problem, const nl_tensor *weight,
                         const nl_conv_operands *operands);
/* Whether a problem that is doubled can be run. */
bool nl_conv_doubles(nl_device *device, const nl_conv_problem *problem);

#endif
