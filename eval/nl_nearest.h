/* SPDX-License-Identifier: MIT */
/*
 * Is a model a copying machine? The pictures of its training data that are nearest to its samples, against those that
 * are nearest to pictures it has never seen.
 */
#ifndef NL_NEAREST_H
#define NL_NEAREST_H

#include "nl_image.h"
#include "nl_measure.h"

enum { NL_NEAREST_K = 5 };

/* What distances are taken of: the features of nl_metric_options, and colours, the picture as 16 x 16 means, in which
 * the root mean square difference of the 768 levels (of 255) is the distance. */
typedef enum nl_space { NL_SPACE_FEATURES, NL_SPACE_PIXELS, NL_SPACES } nl_space;

/* The nearest of the training data to each picture of a set, the nearest first. */
typedef struct nl_neighbours {
    int64_t count;
    int64_t *index;   /* [count, NL_NEAREST_K] */
    double *distance; /* [count, NL_NEAREST_K] */
} nl_neighbours;

/* Of the distances to the nearest picture. */
typedef struct nl_nearest_facts {
    double least, median;                   /* of the samples */
    double held_out_least, held_out_median; /* NaN without held-out pictures, as the two below */
    double
        nearer; /* the chance that a sample is nearer than a held-out picture; 0.5: equally near */
    double
        very_near; /* part of the samples nearer than 99 % of the held-out pictures; 0.01: equally near */
} nl_nearest_facts;

typedef struct nl_nearness {
    nl_context *context;
    int64_t samples, reference, held_out; /* pictures */
    nl_neighbours of[NL_SPACES];          /* of the samples */
    nl_nearest_facts facts[NL_SPACES];
} nl_nearness;

/* Paths of folders or .npz with arr_0; held_out may be NULL. Reference and held-out pictures are different ones. To be
 * freed in every case. */
nl_status nl_nearest_find(nl_inception *net, const nl_metric_options *options, const char *samples,
                          const char *reference, const char *held_out, nl_nearness *nearness);
void nl_nearest_free(nl_nearness *nearness);

/* The `count` samples that are nearest in a space, the nearest first (ties: in their order). */
nl_status nl_nearest_order(const nl_nearness *nearness, nl_space space, int64_t count,
                           int64_t *order);

/* A picture of `rows` samples: the first half of those that are nearest by features, the others of those that are
 * nearest by pixels. Each: the sample, its neighbours by features, its neighbours by pixels. As SVG, PNG or PDF by the
 * path's ending. */
nl_status nl_nearest_sheet(const nl_nearness *nearness, const char *samples, const char *reference,
                           int rows, int edge, const char *path, bool overwrite);

/* The k nearest rows of reference to each of rows, by euclidean distance in fp32 products; distances of what was found
 * are taken once more as they are defined, in double. count >= k. */
nl_status nl_nearest_rows(nl_device *device, int64_t size, const float *reference,
                          int64_t reference_count, const float *rows, int64_t count, int k,
                          int64_t *index, double *distance);

#endif
