/* SPDX-License-Identifier: MIT */
/*
 * The evaluation of a set of pictures: features of samples and reference, the metrics of them, reference
 * files. What cannot be computed is named and the rest is.
 */
#ifndef NL_MEASURE_H
#define NL_MEASURE_H

#include "nl_group.h"
#include "nl_inception.h"
#include "nl_pictures.h"
#include "nl_statistics.h"

/* "fid", "sfid", "is", "precision", "recall", "kid", "fid_infinity" */
extern const char *const nl_metric_names[NL_METRICS + 1];

typedef struct nl_metric_options {
    const nl_preprocessing *preprocessing;
    nl_feature feature; /* of FID, KID, precision and recall */
    bool wanted[NL_METRICS];
    bool allow_small; /* fewer pictures than a feature has numbers */
    int64_t is_split; /* pictures of a split of the Inception Score, in their order; or */
    bool is_shuffled; /* is_splits splits of the pictures in numpy's random order of is_seed */
    int64_t is_splits;
    uint32_t is_seed;
    int neighbours;      /* k of precision and recall */
    bool half_distances; /* their distances in fp16, as the public evaluator */
    int64_t kid_subsets, kid_subset_size;
    int64_t bootstrap; /* repeats for the interval of FID; 0: none */
    /* Processes that share the pictures: each looks at a part of them and has the features of all; the first alone computes
     * metrics. NULL: this one alone. */
    nl_group *group;
    bool (*progress)(void *user, const char *what, int64_t done, int64_t count); /* or NULL */
    void *user;
} nl_metric_options;

#define NL_METRIC_DEFAULT                                                                          \
    ((nl_metric_options){.preprocessing = &nl_preprocessings[0],                                   \
                         .feature = NL_FEATURE_POOL_3,                                             \
                         .is_split = 5000,                                                         \
                         .is_splits = 10,                                                          \
                         .is_seed = 2020,                                                          \
                         .neighbours = 3,                                                          \
                         .kid_subsets = 100,                                                       \
                         .kid_subset_size = 1000})

/* reference: an .npz with arr_0, a folder, or an .npz with mu, sigma, mu_s, sigma_s (pytorch-fid's has the
 * first two; of other features than pool_3 the names are mu_768 and so on). Of several processes those behind the first
 * find no metrics. A failure is to be passed on with nl_group_agree. */
nl_status nl_measure(nl_inception *net, const nl_metric_options *options,
                     const nl_picture_source *samples, const char *reference,
                     nl_evaluation *evaluation);

/* Writes a reference: mu, sigma, mu_s, sigma_s, mu_768, sigma_768, ... as far as the weights give them, `count`, and
 * arr_0 with at most `images` of the pictures, evenly chosen, for precision, recall and KID. */
nl_status nl_make_reference(nl_inception *net, const nl_metric_options *options,
                            const char *pictures, const char *path, bool overwrite, int64_t images);
/* The reference that the pictures of all the references together would have made (arr_0: chosen from theirs). */
nl_status nl_merge_references(nl_context *context, const char *const *references, int count,
                              const char *path, bool overwrite, int64_t images);

/* One of these for each folder in `pictures`: FOLDER/CLASS.npz. */
nl_status nl_make_class_references(nl_inception *net, const nl_metric_options *options,
                                   const char *pictures, const char *folder, bool overwrite,
                                   int64_t images);

#endif
