/* SPDX-License-Identifier: MIT */
/* Each checkpoint of a training run, evaluated once: what has been done stands in RUN/metrics.jsonl. */
#include "nl_network.h"
#include "nl_run.h"

#include <dirent.h>
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

enum { POLL_SECONDS = 5 };

typedef struct watch {
    nl_context *context;
    const nl_fid_network *network;
    const nl_watch_options *options;
    char *folder;    /* RUN/checkpoints */
    char *metrics;   /* RUN/metrics.jsonl */
    cJSON *known;    /* array of lines of metrics.jsonl that are evaluations */
    nl_group *group; /* of several processes, all of which evaluate; or NULL */
} watch;

/* The one that looks for checkpoints and writes down what was found. */
static bool is_first(const watch *w)
{
    return !w->group || w->group->rank == 0;
}

/* ---- What is there */

static nl_status read_known(watch *w)
{
    nl_context *context = w->context;
    nl_mapping file = {0};
    nl_status status = NL_OK;
    if (!nl_path_exists(w->metrics))
        return NL_OK;
    NL_TRY(nl_map_file(context, w->metrics, &file));
    const char *text = (const char *)file.data;
    for (int64_t at = 0, end; at < file.size; at = end + 1) {
        const char *line_end = memchr(text + at, '\n', (size_t)(file.size - at));
        end = line_end ? line_end - text : file.size;
        cJSON *line = NULL; /* one that was cut off says nothing */
        (void)nl_json_parse(context, w->metrics, text + at, (size_t)(end - at), &line);
        if (cJSON_IsString(cJSON_GetObjectItemCaseSensitive(line, "checkpoint")))
            cJSON_AddItemToArray(w->known, line);
        else
            cJSON_Delete(line);
    }
cleanup:
    nl_unmap(context, &file);
    return status;
}

static bool same_text(const cJSON *object, const char *key, const char *text)
{
    const cJSON *item = cJSON_GetObjectItemCaseSensitive(object, key);
    return cJSON_IsString(item) && !strcmp(item->valuestring, text);
}

/* A line that does not say is taken to have the same. */
static bool same_options(const watch *w, const cJSON *line)
{
    const cJSON *options = cJSON_GetObjectItemCaseSensitive(line, "options");
    return !options || cJSON_Compare(options, w->options->asked, true);
}

/* Whether samples of the checkpoint, made like this, have been held against this reference like this. */
static bool is_known(const watch *w, const char *name)
{
    for (const cJSON *line = w->known->child; line; line = line->next) {
        const cJSON *report = cJSON_GetObjectItemCaseSensitive(line, "evaluation");
        const nl_metric_options *options = &w->network->options;
        if (same_text(line, "checkpoint", name) &&
            same_text(report, "reference", w->options->reference) &&
            same_text(report, "features", nl_feature_name(options->feature)) &&
            same_text(report, "preset", options->preprocessing->name) && same_options(w, line))
            return true;
    }
    return false;
}

/* *name: the checkpoint of the earliest step that has not been evaluated yet, allocated; NULL: there is none. */
static nl_status next_checkpoint(const watch *w, char **name, int64_t *step)
{
    nl_context *context = w->context;
    nl_status status = NL_OK;
    DIR *folder = opendir(w->folder);
    *name = NULL;
    if (!folder && errno == ENOENT) /* the run has not saved yet */
        return NL_OK;
    if (!folder)
        return nl_fail(context, NL_ERROR_INPUT, "%s: cannot be listed: %s", w->folder,
                       strerror(errno));
    for (struct dirent *entry; (entry = readdir(folder));) {
        int64_t found;
        if (!nl_run_checkpoint_step(entry->d_name, &found) || (*name && found >= *step) ||
            is_known(w, entry->d_name))
            continue;
        nl_free(context, *name);
        *step = found;
        NL_TRY(nl_strdup(context, entry->d_name, name));
    }
cleanup:
    closedir(folder);
    return status;
}

/* ---- One checkpoint */

/* Before the first samples are made. */
static nl_status check_append(nl_context *context, const char *path)
{
    if (!nl_path_exists(path))
        return nl_writer_check(context, path);
    if (access(path, W_OK) != 0)
        return nl_fail(context, NL_ERROR_WRITE, "%s: cannot be written: %s", path, strerror(errno));
    return NL_OK;
}

static nl_status append_line(nl_context *context, const char *path, const char *line)
{
    nl_append file;
    nl_status status;
    NL_TRY(nl_append_open(context, path, &file));
    NL_TRY(nl_append_line(&file, line));
    NL_TRY(nl_append_sync(&file));
cleanup:
    nl_append_close(&file);
    return status;
}

/* Step, checkpoint and metrics come first, where `nalagen plot` looks for them. */
static cJSON *line_of(const watch *w, const char *name, int64_t step, const cJSON *report)
{
    cJSON *line = cJSON_CreateObject();
    const cJSON *metrics = cJSON_GetObjectItemCaseSensitive(report, "metrics");
    cJSON_AddNumberToObject(line, "step", (double)step);
    cJSON_AddStringToObject(line, "checkpoint", name);
    for (const cJSON *metric = metrics ? metrics->child : NULL; metric; metric = metric->next)
        cJSON_AddItemToObject(line, metric->string, cJSON_Duplicate(metric, true));
    cJSON_AddItemToObject(line, "options", cJSON_Duplicate(w->options->asked, true));
    cJSON_AddItemToObject(line, "evaluation", cJSON_Duplicate(report, true));
    return line;
}

static nl_status evaluate(watch *w, const char *name, int64_t step)
{
    nl_context *context = w->context;
    const nl_watch_options *options = w->options;
    char *path = NULL, *text = NULL;
    cJSON *report = NULL, *line = NULL;
    nl_status status;
    NL_TRY(nl_path_join(context, w->folder, name, &path));
    status = options->evaluate(options->user, path, &report);
    if (status == NL_ERROR_INPUT && !nl_path_exists(path) && !w->group) {
        nl_log(context, NL_LOG_WARNING, "%s: it was removed before it could be evaluated", path);
        status = NL_OK;
        goto cleanup;
    }
    NL_TRY(status);
    if (!is_first(w))
        goto cleanup;
    line = line_of(w, name, step, report);
    text = nl_json_print(line, false);
    if (!text)
        NL_TRY(nl_fail(context, NL_ERROR_MEMORY, "no memory for a line of JSON"));
    NL_TRY(append_line(context, w->metrics, text));
    if (options->done)
        NL_TRY(options->done(options->user, name, text, report));
    cJSON_AddItemToArray(w->known, line);
    line = NULL;
cleanup:
    nl_free(context, path);
    cJSON_free(text);
    cJSON_Delete(report);
    cJSON_Delete(line);
    return status;
}

/* As next_checkpoint; of several processes the first one looks, and tells the others. */
static nl_status agree_on_next(watch *w, char **name, int64_t *step)
{
    struct {
        int64_t step;
        char name[256]; /* no file's is longer; "": there is none */
    } next = {0};
    nl_status status = nl_check_cancelled(w->context);
    *name = NULL;
    if (status == NL_OK && is_first(w))
        status = next_checkpoint(w, name, step);
    if (!w->group)
        return status;
    NL_TRY(nl_group_agree(w->group, status));
    if (*name) {
        next.step = *step;
        snprintf(next.name, sizeof(next.name), "%s", *name);
    }
    NL_TRY(nl_group_broadcast(w->group, 0, &next, sizeof(next)));
    if (!is_first(w) && next.name[0]) {
        *step = next.step;
        NL_TRY(nl_strdup(w->context, next.name, name));
    }
cleanup:
    return status;
}

static nl_status evaluate_new(watch *w)
{
    nl_context *context = w->context;
    nl_status status = NL_OK;
    char *name = NULL;
    int64_t step = 0;
    for (;;) {
        NL_TRY(agree_on_next(w, &name, &step));
        if (!name)
            break;
        NL_TRY(evaluate(w, name, step));
        nl_free(context, name);
        name = NULL;
    }
cleanup:
    nl_free(context, name);
    return status;
}

static nl_status look_for_end(watch *w, const char *done, bool *over)
{
    uint8_t there = w->options->once || nl_path_exists(done);
    if (w->group) {
        NL_CHECK(nl_group_agree(w->group, NL_OK));
        NL_CHECK(nl_group_broadcast(w->group, 0, &there, 1));
    }
    *over = there;
    return NL_OK;
}

/* Training writes the configuration first. Whoever watches may have begun before it. */
static nl_status check_run(watch *w)
{
    nl_context *context = w->context;
    const char *run = w->options->run;
    char *config = NULL;
    nl_status status;
    if (!nl_path_is_folder(run))
        return nl_fail(context, NL_ERROR_INPUT, "--watch %s: expected the folder of a training run",
                       run);
    NL_TRY(nl_path_join(context, run, NL_RUN_CONFIG, &config));
    bool begun = nl_path_exists(config) || nl_path_exists(w->folder);
    if (!begun && w->options->once)
        NL_TRY(nl_fail(
            context, NL_ERROR_INPUT,
            "--watch %s: expected the folder of a training run, found neither " NL_RUN_CONFIG
            " nor " NL_RUN_CHECKPOINTS " in it",
            run));
    if (!begun && is_first(w))
        nl_log(context, NL_LOG_WARNING, "--watch %s: no training run is in it yet: waiting", run);
cleanup:
    nl_free(context, config);
    return status;
}

nl_status nl_watch_run(const nl_fid_network *network, const nl_watch_options *options)
{
    nl_context *context = network->context;
    watch w = {.context = context, .network = network, .options = options};
    char *done = NULL;
    nl_status status = NL_OK;
    nl_group *group = network->options.group;
    w.group = group && group->size > 1 ? group : NULL;
    w.known = cJSON_CreateArray();
    NL_TRY(nl_path_join(context, options->run, NL_RUN_CHECKPOINTS, &w.folder));
    NL_TRY(check_run(&w));
    NL_TRY(nl_path_join(context, options->run, NL_RUN_METRICS, &w.metrics));
    NL_TRY(nl_path_join(context, options->run, NL_RUN_DONE, &done));
    NL_TRY(check_append(context, w.metrics));
    NL_TRY(read_known(&w));
    for (bool over = false; !over;) {
        NL_TRY(look_for_end(&w, done,
                            &over)); /* before looking for checkpoints: the last one counts */
        NL_TRY(evaluate_new(&w));
        if (!over)
            nanosleep(&(struct timespec){.tv_sec = POLL_SECONDS}, NULL); /* or until a signal */
    }
cleanup:
    cJSON_Delete(w.known);
    nl_free(context, w.folder);
    nl_free(context, w.metrics);
    nl_free(context, done);
    return status;
}
