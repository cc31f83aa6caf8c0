/* SPDX-License-Identifier: MIT */
/* From the loader to the device: what a part of a batch consists of, at addresses that stay. */
#ifndef NL_FEED_H
#define NL_FEED_H

#include "distill.h"
#include "loss.h"
#include "nl_data.h"

typedef struct nl_feed_options {
    nl_loader_options loader; /* memory and prefetch are the feed's */
    int parts;                /* that a batch of this rank is taken in */
    uint64_t times_seed;
    bool crops;            /* the network is told what part of its picture a sample is */
    const nl_dit *teacher; /* of a distillation; NULL: none */
    bool converts; /* the student is an ordinary model and learns the teacher's predictions */
    nl_distill_options distill;
} nl_feed_options;

/* On the device, as nl_distill_rows; n samples of a part. */
typedef struct nl_distill_feed {
    nl_tensor times, later;                  /* [2, n] */
    nl_tensor teacher_times, teacher_labels; /* [2 n] */
    nl_tensor guide, move, target;           /* [n, NL_LOSS_COLUMNS] */
} nl_distill_feed;

typedef struct nl_feed {
    nl_device *device;
    const nl_loss *loss;
    nl_loader *loader;
    nl_feed_options options;
    nl_batch batch;
    int part;         /* of the batch, the next */
    int64_t size;     /* samples of a part */
    int64_t first;    /* of the part at work, in the rank's batch */
    uint8_t *staging; /* host, slots of what the device gets in one piece */
    int slot;
    int64_t slot_bytes;
    int64_t host_bytes;     /* of batches that are made ahead and on their way */
    void *memory;           /* on the device: one slot */
    nl_tensor x;            /* [size, K, H, W] as encoded */
    nl_tensor t;            /* [size] as the network sees it */
    nl_tensor labels;       /* [size] I32 */
    nl_tensor samples;      /* [size] I64: their numbers */
    nl_tensor crops;        /* [size, NL_CROP_NUMBERS], with options.crops */
    nl_tensor coefficients; /* [size, NL_LOSS_COLUMNS] */
    nl_tensor variational;  /* [size, NL_VB_COLUMNS] */
    nl_distill_feed distill;
    double done; /* of the run, 0 to 1: set by whoever takes the next part; for distillation */
} nl_feed;

/* A flow map is distilled. */
static inline bool nl_feed_distills(const nl_feed *feed)
{
    return feed->options.teacher && !feed->options.converts;
}

/* On a measuring device there is no loader, and no batch comes. */
nl_status nl_feed_open(nl_device *device, const nl_dataset *data, const nl_loss *loss,
                       const nl_feed_options *options, nl_feed *feed);
void nl_feed_close(nl_feed *feed); /* {0} is allowed */

/* The next part of the next batch: queues its upload into feed->x and so on. */
nl_status nl_feed_next(nl_feed *feed);
/* feed->crops, or NULL without. */
const nl_tensor *nl_feed_crop(const nl_feed *feed);
/* [size] numbers of the samples of the part at work. */
const int64_t *nl_feed_samples(const nl_feed *feed);

#endif
