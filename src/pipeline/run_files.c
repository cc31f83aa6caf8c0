/* SPDX-License-Identifier: MIT */
/* The folder of a run: names of the files of a step, its checkpoints, which of them is the model. */
#include <dirent.h>
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

/* A longer number is a larger one. */
static int newest_first(const void *a, const void *b)
{
    const char *first = *(char *const *)a, *second = *(char *const *)b;
    size_t length = strlen(first), other = strlen(second);
    return length != other ? (length < other ? 1 : -1) : strcmp(second, first);
}

nl_status nl_list_points(nl_context *context, const char *folder, char ***paths, int *count)
{
    nl_status status = NL_OK;
    int room = 0;
    int64_t step;
    struct dirent *entry;
    *paths = NULL;
    *count = 0;
    DIR *directory = opendir(folder);
    if (!directory)
        return NL_OK;
    while ((entry = readdir(directory)) && *count < 1 << 20) {
        if (!nl_run_checkpoint_step(entry->d_name, &step))
            continue;
        if (*count == room) {
            char **more;
            room = 2 * room + 16;
            NL_TRY(NL_NEW_ARRAY(context, "names of checkpoints", room, &more));
            if (*count)
                memcpy(more, *paths, (size_t)*count * sizeof(*more));
            nl_free(context, *paths);
            *paths = more;
        }
        NL_TRY(nl_path_join(context, folder, entry->d_name, &(*paths)[*count]));
        ++*count;
    }
    if (*count)
        qsort(*paths, (size_t)*count, sizeof(**paths), newest_first);
cleanup:
    closedir(directory);
    if (status != NL_OK) {
        nl_free_points(context, *paths, *count);
        *paths = NULL;
        *count = 0;
    }
    return status;
}

void nl_free_points(nl_context *context, char **paths, int count)
{
    for (int i = 0; i < count; i++)
        nl_free(context, paths[i]);
    nl_free(context, paths);
}

int64_t nl_point_step(const char *path)
{
    const char *slash = strrchr(path, '/');
    int64_t step = 0;
    nl_run_checkpoint_step(slash ? slash + 1 : path, &step);
    return step;
}

bool nl_is_run(nl_context *context, const char *path)
{
    char *log = NULL;
    bool found = nl_path_join(context, path, NL_RUN_LOG, &log) == NL_OK && nl_path_exists(log);
    nl_free(context, log);
    return found;
}

nl_status nl_run_find_model(nl_context *context, const char *path, char **model)
{
    nl_status status = NL_OK;
    char *folder = NULL, *done = NULL, **points = NULL;
    int count = 0;
    *model = NULL;
    NL_TRY(nl_path_join(context, path, NL_RUN_DONE, &done));
    NL_TRY(nl_path_join(context, path, NL_RUN_MODEL, model));
    if (nl_path_exists(done) && nl_path_exists(*model))
        goto cleanup;
    nl_free(context, *model);
    *model = NULL;
    NL_TRY(nl_path_join(context, path, NL_RUN_CHECKPOINTS, &folder));
    NL_TRY(nl_list_points(context, folder, &points, &count));
    if (!count)
        NL_TRY(nl_fail(context, NL_ERROR_INPUT,
                       "%s: this run has neither a model nor a checkpoint yet", path));
    NL_TRY(nl_strdup(context, points[0], model));
cleanup:
    nl_free_points(context, points, count);
    nl_free(context, folder);
    nl_free(context, done);
    return status;
}
