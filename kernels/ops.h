/* SPDX-License-Identifier: MIT */
/*
 * The operation table: what a back end can do, and all that model code may ask of it.
 *
 * An operation has the size of a fused CUDA kernel and lives in up to three places under one name:
 * kernels/reference/NAME.c (plain scalar C, double accumulation: the oracle), kernels/cpu/NAME.c
 * (threads, vectors, oneDNN) and kernels/cuda/NAME.cu (or a folder of it). One table of cases tests all three:
 * tests/op_cases.h.
 *
 * Rules, for every operation:
 *  - Arguments are a structure, so that an option can be added without touching callers. A tensor whose
 *    data is NULL is an argument left out. Inputs and outputs are F32 unless the comment says otherwise;
 *    weights may also be BF16, and on the GPU activations may be BF16 (sums are always fp32);
 *    those of conv2d, pool and resize there also F16. Feature maps of conv2d, groupnorm, upsample2x, activate and
 *    layout may be BF16 wherever the device's are.
 *  - F8 (E4M3 with a factor for each row, core/nl_e4m3.h) only where it is said; sums of its products are fp32.
 *  - Tensors are contiguous except where "rows may be strided" is said.
 *  - Outputs do not overlap inputs, except where "in place" is said.
 *  - Work is queued on the device's stream in order; nothing waits for it except `download`, `sync` and
 *    scaled_norm, which answers on the host.
 *  - The result does not depend on the batch size, on the number of threads, or on what else is in the
 *    batch (up to the order of fp32 sums inside a matrix product).
 *  - Shapes are the caller's duty and are checked with NL_ERROR_INTERNAL at the table's front door
 *    (kernels/check.c), not in each back end.
 *
 * Letters in shapes: B images, T tokens of an image, D hidden size, h heads, d = D / h head size,
 * C channels, H x W pixels, M rows.
 */
#ifndef NL_OPS_H
#define NL_OPS_H

#include "nl_tensor.h"

#ifdef __cplusplus
extern "C" {
#endif

typedef struct nl_device nl_device;

/* ---- Backbone */

typedef enum nl_epilogue { NL_EPILOGUE_NONE, NL_EPILOGUE_GELU_TANH, NL_EPILOGUE_SILU } nl_epilogue;

/* y = epilogue(x W^T + bias) */
typedef struct nl_linear_args {
    nl_tensor x;      /* [M, K]; rows may be strided; F8 when the weight is */
    nl_tensor weight; /* [N, K], F32, BF16 or F8 */
    nl_tensor bias;   /* [N] or left out */
    nl_tensor
        y; /* [M, N]; rows may be strided; or F8, contiguous, then with room and without pre */
    nl_epilogue epilogue;
    nl_tensor pre; /* [M, N] or left out: x W^T + bias before the epilogue, for the backward pass */
    nl_tensor room; /* [M, N], with y F8: what is left there does not matter */
    /* With y F8: the largest 2-norm of a row of the weight, and of an element of the bias. A row's factor may be taken from
     * |x| |w| + |b|, before the row is there, where others take the least with which the row fits. */
    float weight_norm, bias_norm;
} nl_linear_args;

/* y = activation(x) in F8: each row's factor is the least power of two with which the row fits. */
typedef struct nl_quantize_args {
    nl_tensor x; /* [M, K]; rows may be strided */
    nl_tensor y; /* F8 [M, K] */
    nl_epilogue activation;
} nl_quantize_args;

typedef enum nl_norm {
    NL_NORM_LAYER, /* (x - mean) / sqrt(variance + eps), biased, without affine (docs/public-code.md A3) */
    NL_NORM_RMS /* weight x / sqrt(mean x^2 + eps) */
} nl_norm;

/* x += gate[image] * branch, where there is a branch; then y = norm(x) (1 + scale[image]) + shift[image], the norm over
 * D. One pass over the residual stream. */
typedef struct nl_layernorm_modulate_args {
    nl_tensor x;            /* [M, D]; updated in place when there is a branch */
    nl_tensor branch;       /* [M, D], or left out: what the attention or the MLP adds */
    nl_tensor gate;         /* [M / rows_per_image, D], with branch; rows may be strided */
    nl_tensor shift, scale; /* [M / rows_per_image, D]; rows may be strided */
    nl_tensor y;            /* [M, D], or F8 */
    nl_tensor sum;          /* [M, D], or left out: where the sum goes, x being left alone */
    nl_norm norm;
    nl_tensor weight; /* [D] F32, with RMS */
    int64_t rows_per_image;
    float eps; /* 1e-6 in DiT */
} nl_layernorm_modulate_args;

/* Feature maps of NaLa (docs/formats.md): constant, name in the configuration, widths of a head that the features have,
 * whether the exponent of a query grows with its norm. */
#define NL_FEATURE_MAPS(X)                                                                         \
    X(NL_FEATURES_COSINE, "cosine", 2, true)                                                       \
    X(NL_FEATURES_SPLIT, "split", 2, true)                                                         \
    X(NL_FEATURES_RELU, "relu", 1, false)                                                          \
    X(NL_FEATURES_ELU1, "elu1", 1, false)                                                          \
    X(NL_FEATURES_POWER, "power", 1, false)                                                        \
    X(NL_FEATURES_COSINE_CONSTANT, "cosine_constant", 2, false)

typedef enum nl_feature_map { NL_FEATURE_MAPS(NL_LIST_CONSTANT) } nl_feature_map;
enum { NL_FEATURE_MAP_COUNT = 0 NL_FEATURE_MAPS(NL_LIST_COUNT) };
extern const char *const nl_feature_map_names[]; /* ended by NULL */

bool nl_feature_map_norm_aware(nl_feature_map map);
/* Width of the features of one head: head_size or twice that. */
int64_t nl_feature_width(nl_feature_map map, int64_t head_size);

/* Norm-aware linear attention (docs/nala-attention.md), q, k, v read in place from the qkvg product. */
typedef struct nl_nala_attention_args {
    nl_tensor
        qkvg; /* [B * T, >= 3D]: columns q | k | v (| g), each head-major; rows may be strided */
    nl_tensor out; /* [B * T, D] */
    nl_tensor
        state; /* left out, or [B * h, F, d] F32: S (of the rotated keys), for the backward pass */
    nl_tensor total; /* left out, or [B * h, F] F32: z */
    int64_t batch, tokens, heads, head_size;
    nl_feature_map feature_map;
    float lambda, tau, norm_scale; /* a query's exponent: lambda (tau + tanh(norm_scale norm)) */
    nl_tensor log_lambda,
        log_tau; /* both left out, or [h] F32: ln lambda and ln tau of each head, in their place; with a
                    map whose exponents grow with the norm */
    bool rope; /* rotate the features in the numerator (docs/public-code.md E) */
    int64_t grid_height, grid_width; /* of the tokens; needed with rope */
} nl_nala_attention_args;

/* The arguments as head `head` has them: with its own lambda and tau. log_lambda and log_tau are the host's. */
nl_nala_attention_args nl_nala_of_head(const nl_nala_attention_args *args, int64_t head);

/* y = (LN(x) weight + bias) SiLU(g), LN over D (eps 1e-5). */
typedef struct nl_layernorm_gate_args {
    nl_tensor x;            /* [M, D] */
    nl_tensor weight, bias; /* [D] */
    nl_tensor g;            /* [M, D], rows may be strided; left out: no gate */
    nl_tensor y;            /* [M, D]; may be x (in place) */
    float eps;
} nl_layernorm_gate_args;

/* softmax(q k^T scale) v, q, k, v read in place from the qkv product. Any head size (the mid block of
 * the VAE has one head of 512). Never holds a T x T matrix. */
typedef struct nl_softmax_attention_args {
    nl_tensor qkv; /* [B * T, >= 3D]: columns q | k | v, each head-major; rows may be strided */
    nl_tensor out; /* [B * T, D] */
    nl_tensor
        lse; /* left out, or [B * h, T] F32: log of the sum of exponentials, for the backward pass */
    int64_t batch, tokens, heads, head_size;
    float scale; /* head_size^-1/2 */
} nl_softmax_attention_args;

/* The order in which a scan goes through the tokens of an image: row by row, or column by column, and backwards. */
typedef struct nl_scan {
    int64_t grid_height, grid_width;
    bool transposed, reversed;
} nl_scan;

/* The token at place i of the scan. */
static inline int64_t nl_scan_token(const nl_scan *scan, int64_t i)
{
    if (scan->reversed)
        i = scan->grid_height * scan->grid_width - 1 - i;
    return scan->transposed ? i % scan->grid_height * scan->grid_width + i / scan->grid_height : i;
}

/* Gated linear attention (Yang et al. 2024). In the order of the scan each head carries a state S [e, d], at first 0:
 *   S = diag(a) S + k^T v,   out = scale q S,   a = sigmoid(gate)^(1 / normalizer) */
typedef struct nl_gated_linear_attention_args {
    nl_tensor
        qkv; /* [B * T, >= 2 h e + D]: columns q | k | v, each head-major; rows may be strided */
    nl_tensor gate;                            /* [B * T, h e] */
    nl_tensor out;                             /* [B * T, D] */
    int64_t batch, heads, key_size, head_size; /* B, h, e, d */
    nl_scan scan;                              /* T: its grid */
    float scale;                               /* key_size^-1/2 */
    float normalizer;                          /* 16 */
} nl_gated_linear_attention_args;

/* Of each head: y = weight x / sqrt(mean x^2 + eps) SiLU(g). */
typedef struct nl_head_norm_gate_args {
    nl_tensor x;      /* [M, h d] */
    nl_tensor weight; /* [d] F32 */
    nl_tensor g;      /* [M, h d]; rows may be strided */
    nl_tensor y;      /* [M, h d]; may be x (in place) */
    float eps;        /* 1e-6 in DiG */
} nl_head_norm_gate_args;

/* Mediators of an attention: side x side of them in each head, M in all, each of a cell of the grid of tokens. */
typedef struct nl_mediators {
    int64_t batch, heads, head_size; /* B, h, d */
    int64_t grid_height, grid_width; /* of the T tokens */
    int64_t side;
} nl_mediators;

/* Rows top to bottom and columns left to right, the last ones not among them; cells share a row where they do not divide
 * the grid (PyTorch's AdaptiveAvgPool2d). */
typedef struct nl_cell {
    int64_t top, bottom, left, right;
} nl_cell;

static inline nl_cell nl_mediator_cell(const nl_mediators *sizes, int64_t index)
{
    int64_t y = index / sizes->side, x = index % sizes->side, n = sizes->side;
    return (nl_cell){y * sizes->grid_height / n, ((y + 1) * sizes->grid_height + n - 1) / n,
                     x * sizes->grid_width / n, ((x + 1) * sizes->grid_width + n - 1) / n};
}

/* Attention through mediators (Pu et al. 2024): with A the means of q over the cells,
 *   values = softmax(A k^T scale) v,   out = softmax(q A^T scale) values */
typedef struct nl_mediator_attention_args {
    nl_tensor qkv; /* [B * T, >= 3D]: columns q | k | v, each head-major; rows may be strided */
    nl_tensor out; /* [B * T, D] */
    nl_tensor mediators, values; /* [B * h, M, d] F32: A, and what they gather */
    nl_tensor lse;               /* [B * h, M] F32: log of the sum of their exponentials */
    nl_mediators sizes;
    float scale; /* head_size^-1/2 */
} nl_mediator_attention_args;

/* y = silu(x1) x2 */
typedef struct nl_swiglu_args {
    nl_tensor x; /* [M, 2K]: columns x1 | x2 */
    nl_tensor y; /* [M, K] */
} nl_swiglu_args;

/* Normalisation of each head of q and k: x = weight norm(x) + bias, the norm over the head. */
typedef struct nl_qk_norm_args {
    nl_tensor x;                  /* [M, 2 h d]: columns q | k, in place; rows may be strided */
    nl_tensor raw;                /* [M, 2 h d], or left out: x as it was, for the backward pass */
    nl_tensor q_weight, k_weight; /* [d] F32 */
    nl_tensor q_bias, k_bias;     /* [d] F32, or both left out */
    nl_norm norm;
    float eps; /* RMS: 1e-6 in LightningDiT; layer: 1e-5 in timm */
} nl_qk_norm_args;

/* Rotary positions: of each head of x the pair of elements 2 i and 2 i + 1 is turned by the token's angle i. Its own
 * gradient, the other way round. */
typedef struct nl_rope_args {
    nl_tensor x;     /* [B T, n d]: n heads, in place; rows may be strided */
    nl_tensor table; /* [T, d] F32, d even: d / 2 cosines of a token's angles, then their sines */
    bool back;       /* by the negative angles */
} nl_rope_args;

/* out = addend + depthwise convolution of x over the token grid, odd kernel, zero padding (lepe). */
typedef struct nl_depthwise_conv_args {
    nl_tensor x;      /* [B * T, D], rows may be strided */
    nl_tensor weight; /* [D, 1, k, k] */
    nl_tensor bias;   /* [D] */
    nl_tensor addend; /* [B * T, D]; left out: what out holds */
    nl_tensor out;    /* [B * T, D] */
    int64_t batch, grid_height, grid_width;
} nl_depthwise_conv_args;

/* Patches of x through the embedding convolution, plus the position table. Tokens row-major. */
typedef struct nl_patch_embed_args {
    nl_tensor x;        /* [B, C, H, W] */
    nl_tensor weight;   /* [D, C, p, p] */
    nl_tensor bias;     /* [D] */
    nl_tensor position; /* [T, D], T = (H / p)(W / p) */
    nl_tensor tokens;   /* [B * T, D] */
} nl_patch_embed_args;

/* Token columns (row, column, channel) of a patch back to the picture; only the first C of the head's
 * C_head channels are written (a SiT drops the others). */
typedef struct nl_unpatchify_args {
    nl_tensor tokens; /* [B * T, p * p * C_head] */
    nl_tensor x;      /* [B, C, H, W] */
    int64_t patch;
    int64_t head_channels; /* C_head >= C */
} nl_unpatchify_args;

/* features = [cos(t f_i) | sin(t f_i)], f_i = exp(-ln(10000) i / divisor), fp32 as the public code. */
typedef struct nl_time_features_args {
    nl_tensor t;        /* [B] */
    nl_tensor features; /* [B, 2 half]; half = 128 */
    float divisor;      /* 0: half; 127 in diffusers */
} nl_time_features_args;

/* What part of its picture a sample is, as a network is told: zeros stand for the whole. */
enum {
    NL_CROP_SCALE,  /* log2 of its side over the whole picture's, 0 or less */
    NL_CROP_DOWN,   /* of its centre from the picture's, in sides of the picture: -1/2 to 1/2 */
    NL_CROP_RIGHT,  /* the same to the right; in a mirrored picture as that is seen */
    NL_CROP_STORED, /* a data set holds those before; a loader knows the rest */
    NL_CROP_MIRRORED = NL_CROP_STORED, /* 0 or 1 */
    NL_CROP_NUMBERS
};

/* c = time + table[label] + crop_weight crop; y = SiLU(c) (every reader of c in DiT starts with SiLU). */
typedef struct nl_add_label_args {
    nl_tensor time;        /* [B, D], or [1, D] when all images share a time */
    nl_tensor table;       /* [classes + 1, D], F32 or BF16 */
    nl_tensor labels;      /* [B] I32, 0 <= label < rows of table */
    nl_tensor crop;        /* F32 [B, K], or [1, K] when all images share it, or left out */
    nl_tensor crop_weight; /* F32 [D, K], with crop */
    nl_tensor c;           /* [B, D], or left out */
    nl_tensor y;           /* [B, D] */
} nl_add_label_args;

/* ---- Autoencoders and Inception; pictures and features NHWC */

typedef enum nl_activation {
    NL_ACT_NONE,
    NL_ACT_RELU,
    NL_ACT_SILU,
    NL_ACT_SOFT_CLAMP,
    NL_ACT_GELU_TANH /* of activate and its backward only */
} nl_activation;

static inline nl_activation nl_epilogue_activation(nl_epilogue epilogue)
{
    return epilogue == NL_EPILOGUE_GELU_TANH ? NL_ACT_GELU_TANH
           : epilogue == NL_EPILOGUE_SILU    ? NL_ACT_SILU
                                             : NL_ACT_NONE;
}

/* y = activation(conv(x) + bias + residual), or of x twice as high and wide (nearest neighbour). A device may keep
 * the weight in an order of its own: it changes by upload, copy and free alone, no operation writes it. */
typedef struct nl_conv2d_args {
    nl_tensor x; /* [B, H, W, C] */
    nl_tensor
        doubled; /* [B, 2H, 2W, C], room in which x may be doubled; left out: x is convolved as it is */
    nl_tensor weight;   /* [O, C, kh, kw], F32 or BF16 */
    nl_tensor bias;     /* [O] or left out */
    nl_tensor residual; /* as y, or left out */
    nl_tensor
        y; /* [B, H', W', O]; without a residual its pixels may be strided: a part of wider ones */
    int stride;
    int pad_top, pad_left, pad_bottom, pad_right;
    nl_activation activation; /* NONE, RELU or SILU */
    bool tf32;                /* factors in F32 may be rounded to TF32 (10 bits of mantissa) */
} nl_conv2d_args;

/* GroupNorm (affine, biased variance) of x + branch + addend, then SiLU if asked. With `sum` the residual sum that a
 * convolution left open is part of the normalisation that follows it. */
typedef struct nl_groupnorm_args {
    nl_tensor x;      /* [B, H, W, C] */
    nl_tensor branch; /* as x, or left out */
    nl_tensor addend; /* [C], or left out: the bias of the convolution before */
    nl_tensor
        sum; /* as x, where x + branch + addend is kept; may be x (in place). Not without a branch
                               or an addend; not left out with a branch */
    nl_tensor weight, bias; /* [C] */
    nl_tensor y;            /* as x; may be x or branch (in place) */
    int64_t groups;
    float eps; /* 1e-6 in the Stable Diffusion VAE */
    bool silu;
} nl_groupnorm_args;

/* Nearest neighbour, twice as high and wide. */
typedef struct nl_upsample2x_args {
    nl_tensor x; /* [B, H, W, C] */
    nl_tensor y; /* [B, 2H, 2W, C] */
} nl_upsample2x_args;

typedef enum nl_pool { NL_POOL_MAX, NL_POOL_AVERAGE /* padding not counted */ } nl_pool;

typedef struct nl_pool_args {
    nl_tensor x; /* [B, H, W, C] */
    nl_tensor y; /* [B, H', W', C]; its pixels may be strided */
    nl_pool kind;
    int kernel, stride, pad;
    bool relu; /* y = max(y, 0) */
} nl_pool_args;

typedef enum nl_resize {
    NL_RESIZE_LEGACY,   /* bilinear as TensorFlow 1: source = i in / out, no antialiasing */
    NL_RESIZE_BILINEAR, /* source = (i + 1/2) in / out - 1/2, no antialiasing (PyTorch) */
    NL_RESIZE_BICUBIC /* a = -1/2, kernel as wide as the reduction, result kept in 0 to 255 (PIL) */
} nl_resize;

/* y = scale resized(x) + shift; columns first, then rows. */
typedef struct nl_resize_args {
    nl_tensor x; /* U8 [B, H, W, C] */
    nl_tensor y; /* [B, H', W', C] */
    nl_resize kind;
    float scale, shift;
} nl_resize_args;

/* y = act(x); SOFT_CLAMP is 3 tanh(x / 3), TAESD's first layer. In place allowed. */
typedef struct nl_activate_args {
    nl_tensor x, y; /* same shape, any */
    nl_activation activation;
} nl_activate_args;

/* y = scale x + shift, changing layout. */
typedef struct nl_layout_args {
    nl_tensor x;
    nl_tensor y;
    bool to_nhwc; /* x [B, C, H, W] -> y [B, H, W, C]; otherwise the other way round */
    float scale, shift;
} nl_layout_args;

/* y = clamp(trunc(scale x + shift), 0, 255): 127.5, 128 as DiT and SiT; 127.5, 127.5 as ADM and REPA.
 * NaN gives 0. */
typedef struct nl_to_uint8_args {
    nl_tensor x; /* any shape */
    nl_tensor y; /* U8, same shape */
    float scale, shift;
} nl_to_uint8_args;

/* ---- Sampling; [B, ...] tensors are images of E = count / B elements */

/* Classifier-free guidance. In the first `channels` channels y = u + scale (c - u), in the others y = c. */
typedef struct nl_guide_args {
    nl_tensor prediction; /* [2B, C, H, W]: conditional images first, then unconditional ones */
    nl_tensor y;          /* [B, C, H, W] */
    float scale;
    int64_t channels; /* of C */
} nl_guide_args;

enum { NL_MAX_TERMS = 9 };

/* y = sum over terms of coefficient[term][image] * x[term], summed in term order in fp32 (fused
 * multiply-adds allowed). y may be one of the x (in place). */
typedef struct nl_combine_args {
    int terms;
    nl_tensor x[NL_MAX_TERMS];  /* [B, ...] each */
    const double *coefficients; /* host, [terms, B], or [terms, 1] when per_image is false */
    bool per_image;
    nl_tensor y; /* [B, ...] */
} nl_combine_args;

/* One DDPM or DDIM step (docs/public-code.md A4):
 *   eps      = the first C channels of prediction (or from x_0 when predicts_x_start)
 *   x_0      = x_0_from_x * x - x_0_from_eps * eps, clamped to [-1, 1] if clip
 *   mean     = mean_from_x_0 * x_0 + mean_from_x * x
 *   log var  = with learned_range: f log_beta + (1 - f) log_posterior, f = (v + 1) / 2, v the last C
 *              channels; otherwise log_variance
 *   y        = mean + noise_scale * exp(log var / 2) * noise      (noise left out: no last term)
 * and DDIM, where ddim is true:
 *   y = ddim_x_0 * x_0 + ddim_eps * eps' + ddim_noise * noise, eps' re-derived from the x_0 (clamped). */
typedef struct nl_diffusion_step_args {
    nl_tensor x;          /* [B, C, ...] */
    nl_tensor prediction; /* [B, C or 2C, ...] */
    nl_tensor noise;      /* [B, C, ...] or left out */
    nl_tensor y;          /* [B, C, ...]; may be x (in place) */
    bool predicts_x_start, learned_range, clip, ddim;
    float x_0_from_x, x_0_from_eps;
    float mean_from_x_0, mean_from_x;
    float log_beta, log_posterior, log_variance, noise_scale;
    float ddim_x_0, ddim_eps, ddim_noise;
} nl_diffusion_step_args;

/* rms[image] = sqrt(mean over the image of (x / (atol + rtol max(|a|, |b|)))^2), in double, on the host.
 * Waits for the device. b may be left out (then |a| alone). */
typedef struct nl_scaled_norm_args {
    nl_tensor x, a, b; /* [B, ...] */
    double atol, rtol;
    double *rms; /* host, [B] */
} nl_scaled_norm_args;

/* Standard normal numbers by (seed, image, stream, element): nl_random.h. */
typedef struct nl_normal_args {
    nl_tensor y; /* [B, ...] */
    uint64_t seed, stream;
    const int64_t *images; /* host, [B] image indices */
} nl_normal_args;

/* found becomes `mark` where it is 0 and an element of x is NaN or infinite. */
typedef struct nl_finite_args {
    nl_tensor x;
    nl_tensor found; /* I32 [1], in place */
    int32_t mark;    /* not 0 */
} nl_finite_args;

/* What a covariance is made of, in double, row by row in their order, so that portions make no difference:
 * scatter += (x - shift)(x - shift)^T, of which only columns from the row on are touched; sums += x - shift. */
typedef struct nl_scatter_matrix_args {
    nl_tensor x;       /* [M, D] F32 */
    nl_tensor shift;   /* [D] F32: near the mean, so that nothing cancels */
    nl_tensor scatter; /* [D, D] F64, in place */
    nl_tensor sums;    /* [D] F64, in place */
} nl_scatter_matrix_args;

/* ---- Training */

#include "ops_training.h"

/* ---- The table */

typedef struct nl_ops {
    const char *name;

    /* Sets up device number `index` (of cuda:index) and may set name, dtype and state. NL_ERROR_DEVICE
     * when there is none. NULL: nothing to set up. */
    nl_status (*create)(nl_device *device, int index);

    /* Memory of the device. alloc counts against the context's budget. */
    nl_status (*alloc)(nl_device *device, const char *what, int64_t bytes, void **pointer);
    void (*free)(nl_device *device, void *pointer, int64_t bytes);
    nl_status (*upload)(nl_device *device, void *to, const void *from, int64_t bytes);
    nl_status (*download)(nl_device *device, void *to, const void *from, int64_t bytes); /* waits */
    nl_status (*copy)(nl_device *device, void *to, const void *from, int64_t bytes);
    nl_status (*sync)(nl_device *device);
    void (*destroy)(nl_device *device); /* frees device->state */

    /* Bytes that alloc could still give; NULL: the host's. */
    int64_t (*memory_left)(nl_device *device);
    /* For nl_download_start, nl_download_wait and nl_replay; NULL: everything is done at once. */
    nl_status (*download_start)(nl_device *device, int slot, void *to, const void *from,
                                int64_t bytes);
    nl_status (*download_wait)(nl_device *device, int slot);
    nl_status (*replay)(nl_device *device, const void *key, size_t size,
                        nl_status (*run)(void *user), void *user);

    /* For nl_upload_beside; NULL: like any other. */
    nl_status (*upload_beside)(nl_device *device, void *to, const void *from, int64_t bytes);

    /* For nl_nuclear_norm; NULL: not there. */
    nl_status (*nuclear_norm)(nl_device *device, int64_t size, const double *a, int64_t m,
                              const double *b, int64_t n, double *sum);

    /* For nl_host_memory_alloc; NULL: memory like any other. */
    nl_status (*host_alloc)(nl_device *device, const char *what, int64_t bytes, void **pointer);
    void (*host_free)(nl_device *device, void *pointer, int64_t bytes);

    /* Tells facts about the hardware and its libraries; or NULL. */
    void (*describe)(nl_device *device,
                     void (*fact)(void *user, const char *name, const char *text), void *user);

#define NL_OPERATIONS(X)                                                                           \
    X(linear)                                                                                      \
    X(quantize)                                                                                    \
    X(layernorm_modulate)                                                                          \
    X(nala_attention)                                                                              \
    X(layernorm_gate)                                                                              \
    X(softmax_attention)                                                                           \
    X(mediator_attention)                                                                          \
    X(gated_linear_attention)                                                                      \
    X(head_norm_gate)                                                                              \
    X(swiglu)                                                                                      \
    X(qk_norm)                                                                                     \
    X(rope)                                                                                        \
    X(depthwise_conv)                                                                              \
    X(patch_embed)                                                                                 \
    X(unpatchify)                                                                                  \
    X(time_features)                                                                               \
    X(add_label)                                                                                   \
    X(conv2d)                                                                                      \
    X(groupnorm)                                                                                   \
    X(upsample2x)                                                                                  \
    X(pool)                                                                                        \
    X(resize)                                                                                      \
    X(activate)                                                                                    \
    X(layout)                                                                                      \
    X(to_uint8)                                                                                    \
    X(guide)                                                                                       \
    X(combine)                                                                                     \
    X(diffusion_step)                                                                              \
    X(scaled_norm)                                                                                 \
    X(normal)                                                                                      \
    X(finite)                                                                                      \
    X(scatter_matrix)

#define NL_ALL_OPERATIONS(X) NL_OPERATIONS(X) NL_TRAINING_OPERATIONS(X)

#define NL_OPERATION(operation) nl_status (*operation)(nl_device *, const nl_##operation##_args *);
    NL_ALL_OPERATIONS(NL_OPERATION)
#undef NL_OPERATION
} nl_ops;

/* A device: its operations, and one arena from which activations come.
 *
 * The arena is a stack: take a mark, take tensors, go back to the mark. Model code is written once and
 * run twice: on a measuring device (every operation a no-op, nothing is backed by memory) its arena's
 * peak is exactly the memory that the same calls need on a real one. */
struct nl_device {
    const nl_ops *ops;
    nl_context *context;
    char name[64];  /* "cpu", "cuda:0 (NVIDIA H200)" */
    int threads;    /* CPU threads that operations may use */
    nl_dtype dtype; /* of matrix weights: NL_F32 or NL_BF16 */
    bool
        fp8; /* those of a network's blocks are F8 (src/dit/params.c says which), the others BF16 */
    nl_dtype
        activation; /* of tokens and the biases of products: NL_F32, or NL_BF16 on a GPU whose dtype that is;
                            states, noise and pictures stay F32 */
    nl_dtype
        feature_maps; /* of autoencoders, NHWC: as activation, or NL_BF16 on a CPU that has products of those */
    bool measuring;
    int64_t allocated; /* of a measuring device: bytes asked of it beside its arena, in all */
    bool
        cancellable; /* operations look for nl_cancel before they begin: where the host does the work, and no other
                          process waits for the end of it */
    uint8_t *arena;    /* arena_size bytes, 256-byte aligned */
    void *arena_block; /* what alloc gave for it */
    int64_t arena_size, arena_used, arena_peak;
    void *state; /* of the back end */
};

/* The dtype that was asked for, or what became of "auto": "F32", "BF16", "F8_E4M3". */
const char *nl_device_dtype_name(const nl_device *device);

/* name: "auto", "cpu", "reference", "cuda[:i]"; dtype: "auto", "f32", "bf16", "fp8" (NULL: auto). */
nl_status nl_device_create(nl_context *context, const char *name, const char *dtype, int threads,
                           nl_device **device);
void nl_device_destroy(nl_device *device); /* NULL is allowed */

/* GPUs that CUDA can use; 0 without a driver and in builds without CUDA. */
int nl_cuda_device_count(void);
/* Whether there may be some, without starting the driver, which takes a while. */
bool nl_cuda_is_likely(void);
/* CPU threads of a device that is given no number of them. */
int nl_default_threads(void);

/* A device like `like` whose operations do nothing and whose arena and memory are only counted. */
void nl_device_measuring(const nl_device *like, nl_device *measuring);

/* Bytes that could still be allocated on the device, the limit of the context included. */
int64_t nl_device_memory_left(nl_device *device);

/* A download that is queued, and the wait for it: `to` is filled when the wait for the same slot, from 0 to
 * NL_DOWNLOAD_SLOTS - 1, has returned, and the work queued before it is done then, also with 0 bytes. More than
 * NL_DOWNLOAD_SMALL bytes may wait at once. */
enum { NL_DOWNLOAD_SLOTS = 4, NL_DOWNLOAD_SMALL = 64 };
nl_status nl_download_start(nl_device *device, int slot, void *to, const void *from, int64_t bytes);
nl_status nl_download_wait(nl_device *device, int slot);
/* An upload that does not wait for the work queued before it, which must not use `to`; the work queued after it waits for
 * the upload. */
nl_status nl_upload_beside(nl_device *device, void *to, const void *from, int64_t bytes);
/* The sum of the singular values of A B^T, in double; A [m, size] and B [n, size] lie on the host. Waits. False where the
 * device has no way of its own (also without a device) or that fails: the host is to do it. */
bool nl_nuclear_norm(nl_device *device, int64_t size, const double *a, int64_t m, const double *b,
                     int64_t n, double *sum) NL_MUST_CHECK;
/* Whether the host may run ahead of the device. */
bool nl_device_queues(const nl_device *device);

/* Memory of the host from which uploads are fast and do not wait (pinned, on a GPU). Like every upload's, its contents
 * must stay until the device has come to it. */
nl_status nl_host_memory_alloc(nl_device *device, const char *what, int64_t bytes,
                               void **pointer) NL_MUST_CHECK;
void nl_host_memory_free(nl_device *device, void *pointer, int64_t bytes); /* NULL is allowed */

/* Runs run(user), which queues operations and does nothing else: no transfer, no waiting, no memory but the
 * arena's. It must queue the same ones for the same `size` bytes at `key`, which name every address and number that
 * it depends on, and at the same arena_used. A GPU runs the first call of a key as it is, records the second, and
 * launches the record from then on (a CUDA graph). Memory of the device that is given back takes all records with
 * it. Inside of another one it just runs. */
nl_status nl_replay(nl_device *device, const void *key, size_t size, nl_status (*run)(void *user),
                    void *user);

/* Makes the arena at least `bytes` large. Only while nothing is taken from it. */
nl_status nl_arena_reserve(nl_device *device, int64_t bytes);
int64_t nl_arena_mark(const nl_device *device);
void nl_arena_release(nl_device *device, int64_t mark);
/* A contiguous tensor from the arena, 256-byte aligned, not cleared. */
nl_status nl_arena_tensor(nl_device *device, nl_dtype dtype, int ndim, const int64_t *shape,
                          nl_tensor *tensor) NL_MUST_CHECK;

/* Checks the arguments (kernels/check.c) and calls the operation: NL_OP(device, linear, .x = a, ...). */
#define NL_OP(device, operation, ...)                                                              \
    nl_op_##operation(device, &(nl_##operation##_args){__VA_ARGS__})

#define NL_OPERATION(operation)                                                                    \
    nl_status nl_op_##operation(nl_device *device, const nl_##operation##_args *args) NL_MUST_CHECK;
NL_ALL_OPERATIONS(NL_OPERATION)
#undef NL_OPERATION

/* A back end's entry for an operation. Without the operation it has, before its table, one line such as
 * #define NL_CUDA_LACKS_swiglu NL_LACKING; then the entry is NULL, and whoever asks is told that the operation is not
 * on this device (NL_ERROR_DEVICE). */
#define NL_LACKING                    ~, NULL
#define NL_ENTRY(lacks, function)     NL_ENTRY_OF(lacks, function, ~)
#define NL_ENTRY_OF(...)              NL_SECOND(__VA_ARGS__)
#define NL_SECOND(first, second, ...) second

/* The back ends. nl_cuda_ops is there in builds with CUDA only; see kernels/device.c. */
extern const nl_ops nl_reference_ops, nl_cpu_ops;

#ifdef __cplusplus
}
#endif

#endif
