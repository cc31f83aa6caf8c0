/* SPDX-License-Identifier: MIT */
/*
 * Operations that only training uses: the backward twins of ops.h, losses, and the optimiser. Same rules as
 * there, and in addition:
 *  - dNAME is the gradient of the loss by NAME and has its shape.
 *  - Gradients of activations have the device's activation type and are overwritten; those of parameters are
 *    F32 and added to (gradient accumulation), whatever type the parameter has. Exceptions are named.
 *  - Every sum has a fixed order: the same input gives the same bits, run after run. No float atomics.
 *  - Numbers that change from step to step are read from device memory, so that a step can be a CUDA graph.
 */
#ifndef NL_OPS_TRAINING_H
#define NL_OPS_TRAINING_H

#include "nl_tensor.h"

/* dx = dy W, times epilogue'(pre) where y's x came out of an epilogue: dx is then the gradient of pre. */
typedef struct nl_linear_backward_data_args {
    nl_tensor dy;         /* [M, N]; rows may be strided */
    nl_tensor weight;     /* [N, K] */
    nl_tensor pre;        /* [M, K], or left out: sum before the epilogue that made x */
    nl_epilogue epilogue; /* with pre */
    nl_tensor dx;         /* [M, K]; rows may be strided */
    nl_tensor x; /* [M, K], with pre, or left out: epilogue(pre) once more; may be pre (in place) */
    nl_tensor dbias; /* [K] F32, or left out: the column sums of dx are added to it */
} nl_linear_backward_data_args;

/* dweight += dy^T x; dbias += column sums of dy. */
typedef struct nl_linear_backward_weight_args {
    nl_tensor dy;      /* [M, N]; rows may be strided */
    nl_tensor x;       /* [M, K]; rows may be strided */
    nl_tensor dweight; /* [N, K] F32; rows may be strided */
    nl_tensor dbias;   /* [N] F32 or left out */
} nl_linear_backward_weight_args;

/* dx = dy activation'(x). In place allowed. */
typedef struct nl_activate_backward_args {
    nl_tensor x, dy, dx; /* same shape */
    nl_activation activation;
} nl_activate_backward_args;

/* Of layernorm_modulate, whose x (after the sum) is given. dx comes with the gradient of x from everything
 * after this operation and leaves with the whole one, which is also that of x before the sum. */
typedef struct nl_layernorm_modulate_backward_args {
    nl_tensor x;              /* [M, D], the sum */
    nl_tensor scale;          /* [M / rows_per_image, D]; rows may be strided */
    nl_tensor shift;          /* the same, with y */
    nl_tensor dy;             /* [M, D] */
    nl_tensor dx;             /* [M, D], in place */
    nl_tensor branch, gate;   /* as forward, or left out */
    nl_tensor dbranch;        /* [M, D] = gate dx, with branch */
    nl_tensor dbias;          /* [D] F32, with branch, or left out: += column sums of dbranch */
    nl_tensor dshift, dscale; /* [M / rows_per_image, D], overwritten; rows may be strided */
    nl_tensor dgate;          /* the same, with branch */
    nl_tensor y; /* [M, D], or left out: forward's y once more, for the weight gradient */
    nl_norm norm;
    nl_tensor weight, dweight; /* [D] F32, with RMS; dweight is added to */
    int64_t rows_per_image;
    float eps;
} nl_layernorm_modulate_backward_args;

typedef struct nl_layernorm_gate_backward_args {
    nl_tensor x;              /* [M, D] */
    nl_tensor weight, bias;   /* [D] */
    nl_tensor g;              /* [M, D], rows may be strided; left out: no gate */
    nl_tensor dy;             /* [M, D] */
    nl_tensor dx;             /* [M, D]; may be dy (in place) */
    nl_tensor dg;             /* as g; rows may be strided */
    nl_tensor dg_sums;        /* [D] F32, with g, or left out: += column sums of dg */
    nl_tensor dweight, dbias; /* [D] F32, added to */
    nl_tensor y;              /* [M, D], or left out: forward's y once more; may be x (in place) */
    float eps;
} nl_layernorm_gate_backward_args;

/* docs/nala-attention.md, Backward: features are recomputed; S and z come from the forward pass. */
typedef struct nl_nala_attention_backward_args {
    nl_tensor qkvg;  /* as forward */
    nl_tensor out;   /* [B * T, D], forward's output */
    nl_tensor dout;  /* [B * T, D] */
    nl_tensor state; /* [B * h, F, d] F32 */
    nl_tensor total; /* [B * h, F] F32 */
    nl_tensor
        dqkv; /* [B * T, >= 3D]: columns dq | dk | dv overwritten, others left alone; rows may be strided */
    nl_tensor sums; /* [3D] F32, or left out: += column sums of dq | dk | dv */
    int64_t batch, tokens, heads, head_size;
    nl_feature_map feature_map;
    float lambda, tau, norm_scale;
    nl_tensor log_lambda, log_tau;   /* as forward */
    nl_tensor dlog_lambda, dlog_tau; /* [h] F32, with them */
    bool rope;
    int64_t grid_height, grid_width;
} nl_nala_attention_backward_args;

/* What the forward pass was called with, but for what it wrote. */
nl_nala_attention_args nl_nala_forward_of(const nl_nala_attention_backward_args *args);

typedef struct nl_softmax_attention_backward_args {
    nl_tensor qkv;  /* as forward */
    nl_tensor out;  /* [B * T, D] */
    nl_tensor dout; /* [B * T, D] */
    nl_tensor lse;  /* [B * h, T] F32 */
    nl_tensor dqkv; /* [B * T, >= 3D] as above */
    int64_t batch, tokens, heads, head_size;
    float scale;
} nl_softmax_attention_backward_args;

typedef struct nl_mediator_attention_backward_args {
    nl_tensor qkv;                    /* as forward */
    nl_tensor mediators, values, lse; /* forward's */
    nl_tensor dout;                   /* [B * T, D] */
    nl_tensor dqkv; /* [B * T, >= 3D]: columns dq | dk | dv overwritten; rows may be strided */
    nl_mediators sizes;
    float scale;
} nl_mediator_attention_backward_args;

/* The states are computed again. With w = q dq - k dk the gradient of log a at a token is the sum of w over it and all
 * tokens after it in the scan. */
typedef struct nl_gated_linear_attention_backward_args {
    nl_tensor qkv, gate; /* as forward */
    nl_tensor dout;      /* [B * T, D] */
    nl_tensor
        dqkv; /* [B * T, >= 2 h e + D]: columns dq | dk | dv overwritten; rows may be strided */
    nl_tensor dgate; /* [B * T, h e] */
    int64_t batch, heads, key_size, head_size;
    nl_scan scan;
    float scale, normalizer;
} nl_gated_linear_attention_backward_args;

typedef struct nl_head_norm_gate_backward_args {
    nl_tensor x;       /* [M, h d] */
    nl_tensor weight;  /* [d] F32 */
    nl_tensor g;       /* [M, h d]; rows may be strided */
    nl_tensor dy;      /* [M, h d] */
    nl_tensor dx;      /* [M, h d]; may be dy (in place) */
    nl_tensor dg;      /* [M, h d]; rows may be strided */
    nl_tensor dweight; /* [d] F32, added to */
    nl_tensor y;       /* [M, h d], or left out: forward's y once more */
    float eps;
} nl_head_norm_gate_backward_args;

typedef struct nl_swiglu_backward_args {
    nl_tensor x;  /* [M, 2K]: x1 | x2 */
    nl_tensor dy; /* [M, K] */
    nl_tensor dx; /* [M, 2K] */
    nl_tensor y;  /* [M, K], or left out: forward's y once more; may be dy (in place) */
} nl_swiglu_backward_args;

typedef struct nl_qk_norm_backward_args {
    nl_tensor raw;                  /* [M, 2 h d] from the forward pass */
    nl_tensor q_weight, k_weight;   /* [d] F32 */
    nl_tensor dx;                   /* [M, 2 h d], in place: by the normalised q | k, then by raw;
                                       rows may be strided */
    nl_tensor dq_weight, dk_weight; /* [d] F32, added to */
    nl_tensor dq_bias, dk_bias;     /* [d] F32, added to; or both left out */
    nl_norm norm;
    float eps;
} nl_qk_norm_backward_args;

/* x = 0 with this probability, otherwise x / (1 - probability): its own gradient too. Element i of an image's part of x
 * takes word i of the stream at `first`, a multiple of 4 (nl_random.h), and is dropped where that is less than
 * probability 2^32, on every device. */
typedef struct nl_dropout_args {
    nl_tensor x;       /* [M, N], in place */
    nl_tensor samples; /* [M / rows_per_image] I64 on the device: numbers of the samples */
    int64_t rows_per_image;
    uint64_t seed, stream, first;
    float probability; /* 0 <= p < 1 */
} nl_dropout_args;

/* Words below this are dropped. */
static inline uint32_t nl_dropout_limit(float probability)
{
    const double limit = (double)probability * 4294967296.0;
    const uint32_t whole = (uint32_t)limit;
    return whole + (whole < limit);
}

typedef struct nl_depthwise_conv_backward_args {
    nl_tensor x;              /* [B * T, D], rows may be strided */
    nl_tensor weight;         /* [D, 1, k, k] */
    nl_tensor dout;           /* [B * T, D] */
    nl_tensor dx;             /* [B * T, D], added to; rows may be strided */
    nl_tensor dweight, dbias; /* F32, added to */
    int64_t batch, grid_height, grid_width;
} nl_depthwise_conv_backward_args;

typedef struct nl_patch_embed_backward_args {
    nl_tensor x;       /* [B, C, H, W] F32 */
    nl_tensor weight;  /* [D, C, p, p], with dx */
    nl_tensor dtokens; /* [B * T, D] */
    nl_tensor dweight; /* [D, C, p, p] F32, added to */
    nl_tensor dbias;   /* [D] F32, added to */
    nl_tensor dx;      /* [B, C, H, W] F32, overwritten, or left out */
} nl_patch_embed_backward_args;

/* Channels that the forward dropped get 0. */
typedef struct nl_unpatchify_backward_args {
    nl_tensor dx;      /* [B, C, H, W] F32 */
    nl_tensor dtokens; /* [B * T, p * p * C_head] */
    int64_t patch;
    int64_t head_channels;
} nl_unpatchify_backward_args;

/* c = time + table[label] + crop_weight crop, y = SiLU(c). */
typedef struct nl_add_label_backward_args {
    nl_tensor c;            /* [B, D] */
    nl_tensor labels;       /* [B] I32 */
    nl_tensor dy;           /* [B, D] */
    nl_tensor dtime;        /* [B, D] */
    nl_tensor dtable;       /* [classes + 1, D] F32, added to; images in order */
    nl_tensor crop;         /* F32 [B, K], or left out */
    nl_tensor dcrop_weight; /* [D, K] F32, with crop; added to */
} nl_add_label_backward_args;

/* ---- Data and losses. "data" is the clean latent, "noise" standard normal (x1 and x0 of public-code.md B; x_0 and
 * epsilon of A4). Coefficients of image b stand in row b of a [B, n] F32 tensor on the device. */

/* What the data set holds -> latents. x [B, C, H, W]: y = scale x + shift. x [B, 2C, H, W], mean | log variance:
 * y = scale (mean + exp(log variance / 2) noise) + shift. */
typedef struct nl_latents_args {
    nl_tensor x;     /* F32, F16, BF16 or U8 */
    nl_tensor noise; /* [B, C, H, W], with moments */
    nl_tensor y;     /* [B, C, H, W] F32 */
    float scale, shift;
} nl_latents_args;

/* Columns of `coefficients` of diffuse and regression_loss. */
enum {
    NL_LOSS_DATA, /* x_t = c[DATA] data + c[NOISE] noise */
    NL_LOSS_NOISE,
    NL_LOSS_TARGET_DATA, /* target = c[TARGET_DATA] data + c[TARGET_NOISE] noise */
    NL_LOSS_TARGET_NOISE,
    NL_LOSS_WEIGHT, /* w */
    NL_LOSS_COLUMNS
};

typedef struct nl_diffuse_args {
    nl_tensor data, noise;  /* [B, ...] F32 */
    nl_tensor coefficients; /* [B, NL_LOSS_COLUMNS] */
    nl_tensor y;            /* x_t */
} nl_diffuse_args;

/* loss[b] = w mean over the image of (prediction - target)^2, over the first C channels of the prediction.
 * dprediction = gradient_scale dloss[b] (gradient_scale: 1 / global batch); channels beyond C get 0. adaptive c > 0: the
 * gradient alone is divided by sqrt(e + c), where e is the image's mean squared error without w, taken as a constant. */
typedef struct nl_regression_loss_args {
    nl_tensor prediction;   /* [B, C or more, ...] F32 */
    nl_tensor data, noise;  /* [B, C, ...] */
    nl_tensor coefficients; /* [B, NL_LOSS_COLUMNS] */
    nl_tensor loss;         /* [B] F32, overwritten */
    nl_tensor dprediction;  /* as prediction, or left out */
    float gradient_scale;
    float adaptive;
} nl_regression_loss_args;

/* Distribution matching (DMD, Yin et al. 2024) between the velocities of two networks at t data + (1 - t) noise: the
 * teacher's, and `fake`, of one that follows the distribution which data [b] are drawn from. By their predictions of data,
 *
 *     g = (fake - teacher) / mean over the image of |data - noise - teacher|
 *
 * (both are 1 - t times that); data that loses g comes nearer to what the teacher would draw. loss[b] = mean g^2 / 2;
 * doutput = gradient_scale w g / n, n the numbers of an image: the gradient by what made data, w = d data / d output. */
#define NL_MATCHING_EPS 1e-6 /* beside the mean */
typedef struct nl_matching_loss_args {
    nl_tensor data, noise;   /* [B, ...] F32 */
    nl_tensor teacher, fake; /* as data */
    nl_tensor coefficients;  /* [B, NL_LOSS_COLUMNS]; of them w = c[WEIGHT] */
    nl_tensor loss;          /* [B] F32, overwritten */
    nl_tensor doutput;       /* as data, or left out */
    float gradient_scale;
} nl_matching_loss_args;

/* Columns of the variational term's coefficients (docs/public-code.md A4). */
enum {
    NL_VB_X_0_FROM_X, /* x_0 = c x_t - c' eps, not clipped */
    NL_VB_X_0_FROM_EPS,
    NL_VB_MEAN_FROM_X_0, /* posterior mean = c x_0 + c' x_t */
    NL_VB_MEAN_FROM_X,
    NL_VB_LOG_BETA,
    NL_VB_LOG_POSTERIOR, /* clipped */
    NL_VB_FIRST,         /* 1 at t = 0: discretised Gaussian likelihood instead of the KL term */
    NL_VB_WEIGHT,
    NL_VB_COLUMNS
};

/* loss[b] += w vb, in bits a dimension; gradient only by the variance channels, which are overwritten in
 * dprediction: run after regression_loss. */
typedef struct nl_variational_loss_args {
    nl_tensor prediction;   /* [B, 2C, ...] F32: eps (or x_0) | v */
    nl_tensor x;            /* [B, C, ...] x_t */
    nl_tensor data;         /* [B, C, ...] */
    nl_tensor coefficients; /* [B, NL_VB_COLUMNS] */
    bool predicts_x_start;
    nl_tensor loss;        /* [B] F32 */
    nl_tensor dprediction; /* as prediction, or left out */
    float gradient_scale;
} nl_variational_loss_args;

/* ---- The optimiser, over all parameters at once: flat F32 arrays of n elements, laid out alike. */

typedef struct nl_zero_args {
    nl_tensor x;
} nl_zero_args;

/* y = mean of x, in double. */
typedef struct nl_mean_args {
    nl_tensor x; /* [B] F32 */
    nl_tensor y; /* [1] F32 */
} nl_mean_args;

/* norm = sqrt(sum x^2), summed in double; NaN or infinite when an element is. */
typedef struct nl_gradient_norm_args {
    nl_tensor x;    /* [n] F32 */
    nl_tensor norm; /* [1] F32 */
} nl_gradient_norm_args;

/* A run of parameters in the flat arrays, and where the model keeps it. */
typedef struct nl_segment {
    int64_t first, count; /* in the flat arrays */
    void *weights;        /* on the device: the model's copy */
    nl_dtype dtype;       /* F32 or BF16 (rounded to nearest even) */
    bool decay;           /* takes weight decay */
    float rate;           /* its learning rate in those of the step */
} nl_segment;

enum { NL_MAX_EMA = 4 };

/* Columns of `hyper`. */
enum {
    NL_HYPER_RATE, /* learning rate of this step */
    NL_HYPER_BETA1,
    NL_HYPER_BETA2,
    NL_HYPER_EPS,
    NL_HYPER_DECAY, /* decoupled weight decay */
    NL_HYPER_CLIP,  /* largest norm of the gradient; 0: no clipping */
    NL_HYPER_EMA,   /* first of NL_MAX_EMA decays */
    NL_HYPER_COLUMNS = NL_HYPER_EMA + NL_MAX_EMA
};

/* AdamW as torch.optim.AdamW (decoupled decay, bias correction by applied steps), then the moving averages
 * ema = decay ema + (1 - decay) parameter, then the model's copy. The gradient is clipped as by clip_grad_norm_: times
 * min(1, clip / (norm + 1e-6)). One whose norm is not finite changes
 * nothing but counter[1]. */
typedef struct nl_adamw_args {
    nl_tensor master, first, second, gradient; /* [n] F32; m and v of Adam are first and second */
    int ema_count;
    nl_tensor ema[NL_MAX_EMA]; /* [n] F32 */
    nl_tensor hyper;           /* [NL_HYPER_COLUMNS] F32, on the device */
    nl_tensor norm;            /* [1] F32 of gradient_norm */
    nl_tensor counter;         /* [2] I32: steps applied so far, steps skipped in a row */
    int segment_count;
    const nl_segment *
        segments; /* on the host, in order, covering what is a parameter; the gaps are left alone */
    nl_tensor
        segment_table; /* on the device: the same as U8 [segment_count * sizeof(nl_segment)] */
} nl_adamw_args;

#define NL_TRAINING_OPERATIONS(X)                                                                  \
    X(linear_backward_data)                                                                        \
    X(linear_backward_weight)                                                                      \
    X(activate_backward)                                                                           \
    X(layernorm_modulate_backward)                                                                 \
    X(layernorm_gate_backward)                                                                     \
    X(nala_attention_backward)                                                                     \
    X(softmax_attention_backward)                                                                  \
    X(mediator_attention_backward)                                                                 \
    X(gated_linear_attention_backward)                                                             \
    X(head_norm_gate_backward)                                                                     \
    X(swiglu_backward)                                                                             \
    X(qk_norm_backward)                                                                            \
    X(dropout)                                                                                     \
    X(depthwise_conv_backward)                                                                     \
    X(patch_embed_backward)                                                                        \
    X(unpatchify_backward)                                                                         \
    X(add_label_backward)                                                                          \
    X(latents)                                                                                     \
    X(diffuse)                                                                                     \
    X(regression_loss)                                                                             \
    X(matching_loss)                                                                               \
    X(variational_loss)                                                                            \
    X(zero)                                                                                        \
    X(mean)                                                                                        \
    X(gradient_norm)                                                                               \
    X(adamw)

#endif
