/* SPDX-License-Identifier: MIT */
/*
 * Inception-v3 as the FID network: TensorFlow's graph "inception-2015-12-05" (facts: batch norm folded,
 * every convolution followed by ReLU, average pools that leave the padding out, a max pool in the last
 * block, 1008 classes). Weights under TensorFlow's names ("mixed_4/tower/conv_1.weight", OIHW) or those of
 * pytorch-fid's file ("Mixed_6b.branch7x7_2.conv.weight" with its batch norm).
 */
#ifndef NL_INCEPTION_H
#define NL_INCEPTION_H

#include "nl_checkpoint.h"
#include "nl_statistics.h"

typedef enum nl_feature {
    NL_FEATURE_POOL_3, /* 2048: what FID, KID, precision and recall are of */
    NL_FEATURE_SPATIAL, /* 2023: mixed_6/conv, its first 7 channels at 17 x 17, pixels then channels: sFID */
    NL_FEATURE_MIXED_7,  /* 768: mean of mixed_7 */
    NL_FEATURE_POOL_192, /* 192: mean after the second max pool */
    NL_FEATURE_POOL_64,  /* 64: mean after the first max pool */
    NL_FEATURE_LOGITS,   /* 1008: pool_3 times the weights of the classifier, without bias: IS */
    NL_FEATURES
} nl_feature;

/* "pool_3", ... and how many numbers it has. */
const char *nl_feature_name(nl_feature feature);
int64_t nl_feature_size(nl_feature feature);

/* How a picture becomes the network's input [299, 299, 3]: scale resized(x) + shift. */
typedef struct nl_preprocessing {
    const char *name; /* "openai", ... */
    nl_resize resize;
    float scale, shift;
    const char *text; /* in words, for reports */
} nl_preprocessing;

/* openai, pytorch-fid, clean-fid, torch-fidelity; ended by an entry without name. */
extern const nl_preprocessing nl_preprocessings[];

typedef struct nl_inception nl_inception;

/* A file without the tensors that only the later features need is taken; one without those of mixed_7, or
 * with a tensor of another shape, is not. */
nl_status nl_inception_load(nl_device *device, const nl_checkpoint *checkpoint, nl_inception **net);
void nl_inception_destroy(nl_inception *net); /* NULL is allowed */

/* Of the network's products; their sums and the features are always fp32. */
typedef enum nl_precision {
    NL_PRECISION_FP32,
    NL_PRECISION_TF32, /* factors rounded to TF32, for the tensor cores of a GPU */
    NL_PRECISION_FP16, /* weights and activations kept in fp16, on a GPU */
    NL_PRECISIONS
} nl_precision;

/* "fp32", "tf32", "fp16" */
extern const char *const nl_precision_names[NL_PRECISIONS + 1];

/* A CPU computes in fp32 and refuses the others. FP32 from the start. */
nl_status nl_inception_set_precision(nl_inception *net, nl_precision precision);
nl_precision nl_inception_precision(const nl_inception *net);

nl_context *nl_inception_context(const nl_inception *net);
bool nl_inception_has(const nl_inception *net, nl_feature feature);
/* Names of the tensors that are not in the file, "" when it is complete. Owned by the network. */
const char *nl_inception_missing(const nl_inception *net);

/* On the device, activations from its arena; `device` is the network's own or a measuring one.
 * rgb U8 [B, H, W, 3]; features[f] [B, size] F32, or without data: not asked for. */
nl_status nl_inception_forward(const nl_inception *net, nl_device *device,
                               const nl_preprocessing *preprocessing, const nl_tensor *rgb,
                               const nl_tensor features[NL_FEATURES]);

/* ---- Pictures on the host */

/* Batches on their way through the network, at most NL_INCEPTION_WAYS: a GPU works on them while the host does other
 * things; a CPU is done with one when it has begun. */
typedef struct nl_inception_queue nl_inception_queue;
enum { NL_INCEPTION_WAYS = 2 };

nl_status nl_inception_queue_create(nl_inception *net, const nl_preprocessing *preprocessing,
                                    const bool wanted[NL_FEATURES], nl_inception_queue **queue);
/* Before the first batch: this feature of all pictures goes to moments on the network's device, which outlive the queue;
 * it need not be wanted for that. */
void nl_inception_queue_sum(nl_inception_queue *queue, nl_feature feature,
                            nl_device_moments *moments);
/* Waits for what is under way; NULL is allowed. */
void nl_inception_queue_destroy(nl_inception_queue *queue);
/* rgb [count, height, width, 3] may change afterwards. */
nl_status nl_inception_begin(nl_inception_queue *queue, const uint8_t *rgb, int64_t count,
                             int64_t height, int64_t width);
int64_t nl_inception_under_way(const nl_inception_queue *queue);
/* The batch that began first of those under way: features[f] [count, size], or NULL when not wanted, until the next one
 * ends. */
nl_status nl_inception_end(nl_inception_queue *queue, int64_t *count,
                           const float *features[NL_FEATURES]);

/* All of this in one call. features[f] [count, size], or NULL: not wanted. */
nl_status nl_inception_run(nl_inception *net, const nl_preprocessing *preprocessing,
                           const uint8_t *rgb, int64_t count, int64_t height, int64_t width,
                           float *const features[NL_FEATURES]);
/* Pictures of a batch that fits the memory left and is large enough. */
nl_status nl_inception_batch(const nl_inception *net, int64_t height, int64_t width,
                             int64_t *batch);

#endif
