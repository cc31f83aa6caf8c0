/* SPDX-License-Identifier: MIT */
/*
 * Threads that write pictures while the next ones are made: written in any order, reported in theirs,
 * with a bounded number on their way.
 */
#ifndef NL_WRITERS_H
#define NL_WRITERS_H

#include <cjson/cJSON.h>

#include "nl_core.h"

typedef struct nl_writing {
    int64_t number, evaluations;
    int label, height, width;
    const uint8_t *rgb; /* [height, width, 3] */
    char *path;         /* owned; NULL in an archive */
    cJSON *facts;       /* owned; or NULL */
} nl_writing;

typedef struct nl_writers nl_writers;

/* threads 0: nl_writers_put does everything at once. `write` runs on any thread, `report` on the one that calls
 * the functions below, in the order of nl_writers_put, until something fails. */
nl_status nl_writers_create(nl_context *context, int threads,
                            nl_status (*write)(void *user, const nl_writing *writing),
                            nl_status (*report)(void *user, const nl_writing *writing), void *user,
                            nl_writers **writers);
/* Copies the pixels, takes what is owned in every case, and waits while too many are on their way. A failure of
 * an earlier picture is returned by the first call after it. */
nl_status nl_writers_put(nl_writers *writers, const nl_writing *writing);
/* Reports what is written by now. */
nl_status nl_writers_report(nl_writers *writers);
/* Waits for all, reports them and frees the writers: after a failure those that were not begun are dropped. */
nl_status nl_writers_end(nl_writers **writers);

#endif
