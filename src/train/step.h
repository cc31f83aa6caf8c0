/* SPDX-License-Identifier: MIT */
/* One step of training. Nothing in it waits for the device: what it says about itself is collected later. */
#ifndef NL_STEP_H
#define NL_STEP_H

#include "feed.h"
#include "matching.h"

/* Numbers of a step of the student, and of an update of the fake (matching.h). */
typedef struct nl_step_numbers {
    float student[NL_HYPER_COLUMNS], fake[NL_HYPER_COLUMNS];
    nl_matching_stage stage;
} nl_step_numbers;

/* What a step says, collected. */
typedef struct nl_step_result {
    nl_step_report student;
    nl_step_report fake; /* of the last update, from NL_MATCHING_FAKE on */
    float match; /* loss of the term, in NL_MATCHING_BOTH: as the others the mean of all ranks */
    float discriminator; /* its loss in the last update of the fake, with the adversarial term */
    int32_t stage;       /* nl_matching_stage */
} nl_step_result;

typedef struct nl_stepper {
    nl_device *device;
    nl_group *group;
    nl_train_state *state;
    nl_feed *feed;
    nl_matcher *matcher; /* NULL: no matching */
    uint64_t seed;
    bool checkpointing;
    float dropout;
    float gradient_scale;          /* 1 / global batch */
    nl_tensor part_loss;           /* [part] */
    nl_tensor losses;              /* [rank's batch] */
    nl_tensor match_losses, match; /* [rank's batch], [1] */
    nl_tensor part_discriminator, discriminator_losses,
        discriminator;        /* [part], [rank's batch], [1] */
    nl_step_result *results;  /* on the device, [slots] */
    nl_step_numbers *numbers; /* on the host, [slots] */
    int slots, used;
    int records;  /* nl_stepper_record_anew: so many times */
    void *memory; /* on the device */
    int64_t bytes;
} nl_stepper;

/* slots: steps between two collections at most. matcher: NULL for none. */
nl_status nl_stepper_open(nl_group *group, nl_train_state *state, nl_feed *feed,
                          nl_matcher *matcher, uint64_t seed, bool checkpointing, float dropout,
                          int slots, nl_stepper *stepper);
void nl_stepper_close(nl_stepper *stepper); /* {0} is allowed */
/* Of the arena. */
nl_status nl_stepper_measure(nl_stepper *stepper, int64_t *bytes);

/* Queues the next step: the feed's next batch, the gradient, the update, each with its numbers. */
nl_status nl_stepper_run(nl_stepper *stepper, const nl_step_numbers *numbers);
/* When a rank has done work that the others have not (and that may have cost it its records): sums over the ranks are
 * recorded by all of them or by none, so all begin anew. */
void nl_stepper_record_anew(nl_stepper *stepper);
/* Waits for the steps since the last call; results [slots] takes theirs. Losses are means of all ranks. */
nl_status nl_stepper_collect(nl_stepper *stepper, nl_step_result *results, int *count);

/* ---- What a step consists of, for validation and for finding what is not finite. */

/* Clean latents, their noise and the noisy ones of the part that the feed has on the device; from the arena. In a
 * distillation also what the teacher and the student make of the noisy ones. */
typedef struct nl_noised {
    nl_tensor posterior;      /* noise [b, C, H, W], with moments */
    nl_tensor data, noise, x; /* [b, C, H, W] */
    nl_tensor prediction;     /* [b, C or 2C, H, W] */
    nl_tensor middle;         /* the same by the middle head, where there is one */
    nl_guided guided;
    nl_tensor velocity;      /* [b, C, H, W], the teacher's prediction */
    nl_tensor moved, onward; /* x_m, and the student's u'(x_m, m, s) */
} nl_noised;
nl_status nl_noised_take(const nl_feed *feed, const nl_config *config, nl_device *device,
                         nl_noised *noised);
/* Draws both noises, by sample numbers. */
nl_status nl_noised_draw(const nl_feed *feed, nl_device *device, uint64_t seed,
                         const nl_noised *noised);
/* data and x; in a distillation the target too, for which the student runs. */
nl_status nl_noised_mix(const nl_feed *feed, const nl_dit *student, nl_device *device,
                        const nl_noised *noised);
/* The times at which the network predicts: t, or t and s. */
const nl_tensor *nl_noised_times(const nl_feed *feed);
/* loss [b]; dprediction left out: no gradient. */
nl_status nl_noised_loss(const nl_feed *feed, const nl_config *config, nl_device *device,
                         const nl_noised *noised, const nl_tensor *loss,
                         const nl_tensor *dprediction, float gradient_scale);

#endif
