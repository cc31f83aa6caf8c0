/* SPDX-License-Identifier: MIT */
/* What the benchmarks of devices share: medians of timed calls, and lines of figures. */
#ifndef NL_BENCH_MEASURE_H
#define NL_BENCH_MEASURE_H

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include "ops.h"

enum { MEASURE_WARM_UP = 3, MEASURE_LEAST = 5, MEASURE_REPEATS = 15 };

/* How long a measurement goes on at least, so that clocks and power can be read meanwhile (bench/power.sh). */
static double measure_seconds;

static inline double measure_now_ms(void)
{
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return 1e3 * (double)t.tv_sec + 1e-6 * (double)t.tv_nsec;
}

static inline int measure_by_value(const void *a, const void *b)
{
    double x = *(const double *)a, y = *(const double *)b;
    return (x > y) - (x < y);
}

/* Median milliseconds of one run(user), which queues work on the device: the device is awaited after `calls` of
 * them in a row, so that what a call costs the host hides behind the work of the one before. A long run needs neither
 * that nor many repeats. With measure_seconds the median of the last ones. */
static inline nl_status measure(nl_device *device, int calls, nl_status (*run)(void *user),
                                void *user, double *ms)
{
    nl_status status = NL_OK;
    double times[MEASURE_REPEATS], begin = 0;
    int count = 0;
    for (int i = -MEASURE_WARM_UP;; i++) {
        if (i == 0)
            begin = measure_now_ms();
        const double passed = measure_now_ms() - begin;
        if (i >= MEASURE_LEAST && (i >= MEASURE_REPEATS || passed > 500) &&
            passed >= 1e3 * measure_seconds)
            break;
        NL_TRY(device->ops->sync(device));
        double start = measure_now_ms(), took;
        for (int call = 0; call < calls; call++)
            NL_TRY(run(user));
        NL_TRY(device->ops->sync(device));
        took = (measure_now_ms() - start) / calls;
        if (i >= 0)
            times[i % MEASURE_REPEATS] = took, count = NL_MIN(i + 1, MEASURE_REPEATS);
        else if (took > 5)
            calls = 1;
    }
    qsort(times, (size_t)count, sizeof(times[0]), measure_by_value);
    *ms = times[count / 2];
cleanup:
    return status;
}

/* --device NAME, --dtype NAME and --seconds NUMBER at the beginning of the command line; the place of what follows, 0 after another option. */
static inline int measure_options(int argc, char **argv, nl_context_options *options)
{
    int first = 1;
    for (; first + 1 < argc && !strncmp(argv[first], "--", 2); first += 2) {
        if (!strcmp(argv[first], "--device"))
            options->device = argv[first + 1];
        else if (!strcmp(argv[first], "--dtype"))
            options->dtype = argv[first + 1];
        else if (!strcmp(argv[first], "--seconds"))
            measure_seconds = atof(argv[first + 1]);
        else
            return 0;
    }
    return first;
}

/* A line that bench/figures.awk reads: name, value and unit between tabs, padded with blanks. */
static inline void measure_note(const char *name, double value, const char *unit)
{
    printf("%-60s\t%12.6g\t%s\n", name, value, unit);
    fflush(stdout);
}

#endif
