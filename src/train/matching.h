/* SPDX-License-Identifier: MIT */
/*
 * Distribution matching (DMD and DMD2, Yin et al. 2024) for a flow map, beside the target of distill.h. A generated sample
 * is one jump from noise to data, or the last of two equal ones behind a first that has no gradient:
 *
 *     start = noise + t0 u(noise, 0, t0), x = start + (1 - t0) u(start, t0, 1), t0 = 0 or 1/2
 *
 * or, alone, one jump and nothing else, without the target.
 *
 * A second network of the teacher's kind, the fake, which begins as the teacher, learns the velocity of such samples by
 * ordinary flow matching, several updates for each of the student's. At t x + (1 - t) noise' the fake says where the
 * student's samples are, the guided teacher where they should be: x moves by the difference (operation matching_loss).
 *
 * The adversarial term (adversarial.c): the fake's middle head, which has nothing else to do, is a discriminator. Its
 * scores of noisy samples of the data set are to be 1, those of generated ones -1 (least squares, Mao et al. 2017), and x
 * moves along the gradient of the mean of (score - 1)^2, whose mean absolute value is made 1 in each image: by as much as
 * the first term moves it, whatever the discriminator's slope. So a student can come nearer to the data than its teacher.
 *
 * docs/training.md says how it was chosen.
 */
#ifndef NL_MATCHING_H
#define NL_MATCHING_H

#include "distill.h"
#include "nl_group.h"
#include "state.h"

typedef struct nl_matching_options {
    double weight;                        /* of the term beside the target's; 0: no matching */
    double from;                          /* part of the run that lies before it */
    double guidance, low, high, internal; /* of the teacher, as nl_distill_options */
    double adversarial;   /* weight of that term; 0: none. The fake has a middle head */
    int updates;          /* of the fake, for each of the student's */
    int64_t size;         /* samples of a part */
    int channels;         /* of samples as encoded: C, or 2 C with moments */
    uint64_t seed;        /* of all draws */
    float gradient_scale; /* 1 / global batch */
    bool alone;           /* one jump from noise to data, and no target beside the term */
    bool checkpointing;
} nl_matching_options;

/* What a step does of it: nothing; the fake alone learns, for the first tenth of what is left of the run; both. */
typedef enum nl_matching_stage {
    NL_MATCHING_NONE,
    NL_MATCHING_FAKE,
    NL_MATCHING_BOTH
} nl_matching_stage;
nl_matching_stage nl_matching_stage_at(const nl_matching_options *options, double done);

/* Of the way to t0; one that leads nowhere, from a time to itself, leaves its sample as it is. */
enum { NL_MATCHING_JUMPS = 2 };

/* Numbers of a draw of n samples, on the host. Rows have NL_LOSS_COLUMNS. */
typedef struct nl_matching_rows {
    float *jump[NL_MATCHING_JUMPS], *last; /* [2, n]: times from and to; t0 and 1 */
    float *t;                              /* [2 n]: t twice */
    int32_t *labels;                       /* [2 n]: the labels, then the null class */
    float *move[NL_MATCHING_JUMPS];        /* y = x + (to - from) u */
    float *end;   /* x = start + (1 - t0) u, weight of the term times 1 - t0 */
    float *mix;   /* t x + (1 - t) noise', target x - noise' */
    float *guide; /* as nl_distill_rows */
    /* With the adversarial term: targets of scores, 1 and -1 times a tensor of ones; its weight times (1 - t0) t. */
    float *real, *generated, *fool;
} nl_matching_rows;

/* Numbers of draw `draw` of a step (0: the student's; 1, ...: the fake's), by (seed, sample number, draw): t0 = 0 for
 * half of the samples (alone: for all), 1/2 and 3/4 for a quarter each, t uniform in [0.02, 0.98]. samples, labels [count]. */
void nl_matching_fill(const nl_matching_options *options, const int64_t *samples,
                      const int32_t *labels, int32_t null_class, int64_t count, int draw,
                      const nl_matching_rows *rows);

/* The teacher, the fake, and a draw on the device at addresses that stay. */
typedef struct nl_matcher {
    nl_device *device;
    nl_matching_options options;
    const nl_dit *teacher;
    nl_train_state *student, *fake;
    uint8_t *staging; /* host, slots of what the device gets in one piece */
    int slot;
    int64_t slot_bytes;
    void *memory; /* on the device: one slot, and constants */
    int64_t bytes;
    nl_tensor jump[NL_MATCHING_JUMPS], last, t, labels; /* as nl_matching_rows */
    nl_tensor move[NL_MATCHING_JUMPS], end, mix, guide; /* [n, NL_LOSS_COLUMNS] */
    nl_tensor real, generated, fool;                    /* the same, with the adversarial term */
    nl_tensor data;        /* [n, K, H, W]: samples of the data set, as encoded */
    nl_tensor ones, zeros; /* [n, C, H, W] */
} nl_matcher;

/* The states outlive it. */
nl_status nl_matcher_open(const nl_dit *teacher, nl_train_state *student, nl_train_state *fake,
                          const nl_matching_options *options, nl_matcher *matcher);
void nl_matcher_close(nl_matcher *matcher); /* {0} is allowed */

/* Queues the upload of a draw for a part of the batch. samples, labels [size], data [size, K, H, W] on the host; data is
 * looked at with the adversarial term alone. */
nl_status nl_matcher_next(nl_matcher *matcher, const int64_t *samples, const int32_t *labels,
                          const float *data, int draw);

/* A draw at work; from the arena. */
typedef struct nl_matched {
    nl_tensor noise, other;       /* [n, C, H, W]: noise, noise' */
    nl_tensor start, u, x, mixed; /* [n, C, H, W] */
    nl_tensor teacher, fake;      /* [n, C, H, W]: velocities at mixed */
    nl_tensor gradient;           /* [n, C, H, W]: by u, or by the fake's velocity */
    nl_guided guided;
    /* With the adversarial term: the data's noise where it has moments, the data with noise, scores of a discriminator and
     * their gradient, that of its input, all [n, C, H, W]; losses [n] */
    nl_tensor posterior, data, scores, dscores, dmixed;
    nl_tensor of_data, of_generated;
} nl_matched;
nl_status nl_matched_take(const nl_matcher *matcher, nl_device *device, nl_matched *matched);
/* Draws both noises. */
nl_status nl_matched_draw(const nl_matcher *matcher, nl_device *device, const int64_t *samples,
                          int draw, const nl_matched *matched);

/* Adds the term's gradient to the student's (with `group` over the ranks: what is there, too). loss [n]. */
nl_status nl_match_student(const nl_matcher *matcher, nl_device *device, const nl_matched *matched,
                           const nl_tensor *loss, nl_group *group);
/* Adds the gradient of flow matching on generated samples to the fake's, and with the adversarial term that of the
 * discriminator, whose loss [n] is the mean of (score - 1)^2 of data and (score + 1)^2 of generated samples: 1 where it
 * tells nothing apart. */
nl_status nl_match_fake(const nl_matcher *matcher, nl_device *device, const nl_matched *matched,
                        const nl_tensor *loss, const nl_tensor *discriminator, nl_group *group);

/* Labels, and times of the noisy samples, without the second half. */
static inline nl_tensor nl_matcher_labels(const nl_matcher *matcher)
{
    return nl_tensor_rows(&matcher->labels, 0, matcher->options.size);
}

static inline nl_tensor nl_matcher_times(const nl_matcher *matcher)
{
    return nl_tensor_rows(&matcher->t, 0, matcher->options.size);
}

/* ---- adversarial.c. Tensors of a draw. */
nl_status nl_adversarial_take(const nl_matcher *matcher, nl_device *device, nl_matched *matched);
/* Adds the gradient of the discriminator's loss on noisy data to the fake's; uses matched->start. */
nl_status nl_discriminate_data(const nl_matcher *matcher, nl_device *device,
                               const nl_matched *matched);
/* From the scores of generated samples their gradient, matched->dscores, and the loss of both kinds. */
nl_status nl_discriminate_generated(const nl_matcher *matcher, nl_device *device,
                                    const nl_matched *matched, const nl_tensor *loss);
/* From the scores of generated samples, saved by the fake's pass: adds the term to matched->gradient. */
nl_status nl_fool_discriminator(const nl_matcher *matcher, nl_device *device,
                                const nl_matched *matched, const nl_dit_saved *saved);

#endif
