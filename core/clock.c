/* SPDX-License-Identifier: MIT */
/* Seconds of a clock that never goes back. */
#include <time.h>

#include "nl_core.h"

double nl_seconds(void)
{
    struct timespec now;
    clock_gettime(CLOCK_MONOTONIC, &now);
    return (double)now.tv_sec + 1e-9 * (double)now.tv_nsec;
}
