/* SPDX-License-Identifier: MIT */
/* Names of the files of a step, written and read. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "nl_run.h"

static const char prefix[] = "step-", checkpoint[] = ".safetensors";

enum { DIGITS = 7 /* at least */ };

static const char *name_of(int64_t step, const char *suffix, char name[NL_RUN_NAME])
{
    snprintf(name, NL_RUN_NAME, "%s%0*lld%s", prefix, DIGITS, (long long)step, suffix);
    return name;
}

const char *nl_run_checkpoint_name(int64_t step, char name[NL_RUN_NAME])
{
    return name_of(step, checkpoint, name);
}

const char *nl_run_grid_name(int64_t step, char name[NL_RUN_NAME])
{
    return name_of(step, ".png", name);
}

bool nl_run_checkpoint_step(const char *name, int64_t *step)
{
    const size_t start = sizeof(prefix) - 1;
    if (strncmp(name, prefix, start) != 0)
        return false;
    size_t digits = strspn(name + start, "0123456789");
    *step = strtoll(name + start, NULL, 10);
    return digits >= DIGITS && !strcmp(name + start + digits, checkpoint);
}
