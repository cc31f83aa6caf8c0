/* SPDX-License-Identifier: MIT */
/*
 * Inside the FID network. Its layers stand in one place, forward.c, as calls that walk through them. nl_inception_list
 * walks them once to write down the convolutions (names and shapes) and the sizes of the activations, without computing;
 * the weights are loaded by that list, and nl_inception_forward uses them in its order.
 */
#ifndef NL_INCEPTION_INTERNAL_H
#define NL_INCEPTION_INTERNAL_H

#include "nl_inception.h"

enum { NL_INCEPTION_CONVOLUTIONS = 94, NL_INCEPTION_NAME = 64 };

typedef struct nl_convolution {
    char name[NL_INCEPTION_NAME];  /* TensorFlow's: "mixed_4/tower/conv_1" */
    char torch[NL_INCEPTION_NAME]; /* pytorch-fid's: "Mixed_6b.branch7x7_2" */
    int64_t shape[4];              /* O, C, kh, kw */
    nl_tensor weight, bias;        /* on the device; without data: not in the file */
} nl_convolution;

struct nl_inception {
    nl_device *device;
    int count;
    nl_convolution convolutions[NL_INCEPTION_CONVOLUTIONS];
    int after_mixed_7;    /* convolutions up to there */
    int64_t slot_size[2]; /* elements of one picture in the two activations that take turns */
    nl_tensor classifier; /* [1008, 2048], or without data */
    bool has_pool_3;
    nl_precision precision;
    void *weights; /* all of them, one allocation on the device */
    int64_t weight_bytes;
    nl_problems missing;
};

/* Writes down convolutions, slot_size and after_mixed_7. */
nl_status nl_inception_list(nl_inception *net);

#endif
