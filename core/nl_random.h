/* SPDX-License-Identifier: MIT */
/*
 * Random numbers without state: Philox4x32-10 exactly as cuRAND's device API has it, so that noise is
 * a function of (seed, image index, stream, element) on every device.
 *
 *   curand_init(seed, subsequence = image index, offset = stream * 2^34 + element)
 *
 * that is: key = (seed low, seed high), counter = (offset / 4) in words 0 and 1, subsequence in words
 * 2 and 3; element e takes word e % 4 of the block. Normals by Box-Muller on words (0, 1) and (2, 3)
 * as curand_normal4: u = x 2^-32 + 2^-33, v = 2 pi (y 2^-32 + 2^-33), sqrt(-2 ln u) (sin v, cos v).
 */
#ifndef NL_RANDOM_H
#define NL_RANDOM_H

#include <stdint.h>

enum {
    NL_STREAM_NOISE = 0, /* initial noise */
    NL_STREAM_LABEL = 1,
    NL_STREAM_DROPOUT = 2,
    NL_STREAM_TIME = 3,
    NL_STREAM_FLIP = 4,
    NL_STREAM_POSTERIOR = 5,
    NL_STREAM_TRAIN_NOISE = 6,
    NL_STREAM_INIT = 7,   /* initial weights; the image index is the parameter's row in the table */
    NL_STREAM_SUBSET = 8, /* of pictures, in an evaluation */
    NL_STREAM_ORDER = 9,  /* of training samples; the image index is the epoch */
    NL_STREAM_CROP = 10,  /* of a training picture when it is encoded */
    NL_STREAM_MLP_DROPOUT =
        11, /* in training; the image index is the number of the sample; elements: docs/formats.md */
    NL_STREAM_STEP = 16, /* + k: the noise of sampling step k */
    NL_STREAM_MATCHING =
        1 << 20 /* + 3 k, + 1, + 2: numbers and noises of draw k in distribution matching */
};

/* The block cipher alone: counter becomes its random words. */
void nl_philox4x32_10(uint32_t key0, uint32_t key1, uint32_t counter[4]);
/* The block of four words that holds element `element` & ~3 of the stream. */
void nl_philox(uint64_t seed, uint64_t image, uint64_t stream, uint64_t element, uint32_t words[4]);
/* Its four normals. */
void nl_philox_normal4(uint64_t seed, uint64_t image, uint64_t stream, uint64_t element,
                       float normals[4]);
/* One uniform number in (0, 1], as curand_uniform: x 2^-32 + 2^-33. */
float nl_philox_uniform(uint64_t seed, uint64_t image, uint64_t stream, uint64_t element);

#endif
