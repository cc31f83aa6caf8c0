/* SPDX-License-Identifier: MIT */
/* One pass over a set of pictures. */
#ifndef NL_EXTRACT_H
#define NL_EXTRACT_H

#include "nl_measure.h"

typedef struct nl_extraction {
    /* wanted, set before the pass */
    bool moments[NL_FEATURES];
    bool of_reference; /* all that the weights give: metrics and features cannot be chosen */
    const char *
        rows; /* what the rows of options->feature are kept for, as a message says it; NULL: they are not */
    bool score; /* Inception Score */
    bool hashes;
    nl_picture_taker picture; /* sees every batch; or NULL */
    void *user;
    /* found */
    int64_t count;              /* pictures, of all processes of options->group */
    bool mixed;                 /* they have different sizes (neighbours of one process) */
    double seconds;             /* of the pass */
    double seconds_first_batch; /* of those, until the first batch was with the network */
    nl_moments *of[NL_FEATURES];
    float *kept; /* [count, size] */
    nl_score *is;
    uint64_t *hash; /* [count], in order */
} nl_extraction;

/* Of several processes (options->group) each has all that was found; called by all of them. */
nl_status nl_extract(nl_inception *net, const nl_metric_options *options,
                     const nl_picture_source *source, const char *what, nl_extraction *extraction);
void nl_extraction_free(nl_context *context, nl_extraction *extraction);

#endif
