/* SPDX-License-Identifier: MIT */
/* Reference files, and what making and using them share. */
#ifndef NL_REFERENCE_H
#define NL_REFERENCE_H

#include "extract.h"

/* Mean and covariance of a feature; NULL: not there. */
typedef struct nl_statistics {
    double *mean, *covariance;
} nl_statistics;

/* What `arrays` has of the feature. any_size: also mu and sigma, when they have its size. */
nl_status nl_statistics_read(nl_arrays *arrays, nl_feature feature, bool any_size,
                             nl_statistics *statistics);
nl_status nl_statistics_of(nl_context *context, nl_moments *moments, nl_feature feature,
                           nl_statistics *statistics);
void nl_statistics_free(nl_context *context, nl_statistics *statistics);

/* Before hours of work: are there enough pictures for the covariances? *small becomes true when there are not and
 * that is allowed. */
nl_status nl_check_count(nl_context *context, const nl_metric_options *options,
                         const nl_picture_source *source, const nl_extraction *extraction,
                         bool *small);

/* That may decode pictures. */
static inline int nl_threads_of(const nl_context *context)
{
    return context->device ? context->device->threads : 1;
}

#endif
