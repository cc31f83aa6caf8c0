/* SPDX-License-Identifier: MIT */
/* A model from the snapshots of a run: which there are, whether they belong together, their combination. */
#include <dirent.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "checkpoint.h"
#include "nl_average.h"
#include "nl_pipeline.h"
#include "nl_run.h"

typedef struct nl_snapshot {
    nl_checkpoint *file;
    nl_profile profile;
    double coefficient;
} nl_snapshot;

enum { MOST_SNAPSHOTS = 4096 };

typedef struct nl_averaging {
    nl_context *context;
    const nl_average_options *options;
    nl_snapshot *snapshots;
    int count;
    nl_config config; /* of the first */
    double *sum;      /* of one tensor */
    int64_t tensor_count, tensors_read;
} nl_averaging;

/* ---- Which there are */

static nl_status add_snapshot(nl_averaging *averaging, const char *path)
{
    nl_context *context = averaging->context;
    nl_snapshot *snapshot = &averaging->snapshots[averaging->count];
    nl_config config;
    nl_status status;
    int64_t parameters;
    nl_config_init(&config);
    NL_TRY(nl_checkpoint_open(context, path, &snapshot->file));
    averaging->count++;
    NL_TRY(nl_config_from_checkpoint(snapshot->file, NULL, &config));
    NL_TRY(nl_dit_fits(snapshot->file, &config, &parameters));
    if (!(config.ema_sigma_rel > 0 && config.ema_sigma_rel <= NL_MOST_SIGMA_REL))
        NL_TRY(nl_fail(context, NL_ERROR_INPUT,
                       "%s: no snapshot of train --snapshot-every: its configuration has no "
                       "\"ema_sigma_rel\"",
                       path));
    snapshot->profile =
        (nl_profile){(double)nl_point_step(path), nl_power_exponent(config.ema_sigma_rel)};
    if (averaging->count == 1) {
        averaging->config = config;
        nl_config_init(&config);
        goto cleanup;
    }
    const char *key = nl_config_difference(&config, &averaging->config);
    if (key)
        NL_TRY(nl_fail(context, NL_ERROR_INPUT, "%s: of another model than %s (\"%s\" differs)",
                       path, averaging->snapshots[0].file->path, key));
    averaging->config.images_seen = NL_MAX(averaging->config.images_seen, config.images_seen);
cleanup:
    nl_config_free(context, &config);
    return status;
}

static nl_status add_folder(nl_averaging *averaging, const char *folder)
{
    nl_context *context = averaging->context;
    char **paths;
    int count;
    nl_status status = nl_list_points(context, folder, &paths, &count);
    if (status != NL_OK)
        return status;
    if (count > MOST_SNAPSHOTS - averaging->count)
        NL_TRY(
            nl_fail(context, NL_ERROR_INPUT, "%s: more than %d snapshots", folder, MOST_SNAPSHOTS));
    for (int i = count - 1; i >= 0; i--) /* the oldest first */
        if (nl_point_step(paths[i]) > 0)
            NL_TRY(add_snapshot(averaging, paths[i]));
cleanup:
    nl_free_points(context, paths, count);
    return status;
}

static int is_width(const struct dirent *entry)
{
    return !strncmp(entry->d_name, NL_RUN_SIGMA, sizeof(NL_RUN_SIGMA) - 1);
}

static nl_status find_snapshots(nl_averaging *averaging)
{
    nl_context *context = averaging->context;
    nl_status status = NL_OK;
    struct dirent **entries = NULL;
    char *folder = NULL, *path = NULL;
    int widths = 0;
    NL_TRY(NL_NEW_ZEROS(context, "snapshots", MOST_SNAPSHOTS, &averaging->snapshots));
    NL_TRY(nl_path_join(context, averaging->options->run, NL_RUN_SNAPSHOTS, &folder));
    if (!nl_path_is_folder(averaging->options->run))
        NL_TRY(nl_fail(context, NL_ERROR_INPUT, "%s: expected the folder of a training run",
                       averaging->options->run));
    widths = scandir(folder, &entries, is_width, alphasort);
    for (int i = 0; i < widths; i++) {
        nl_free(context, path);
        path = NULL;
        NL_TRY(nl_path_join(context, folder, entries[i]->d_name, &path));
        NL_TRY(add_folder(averaging, path));
    }
    if (!averaging->count)
        NL_TRY(nl_fail(context, NL_ERROR_INPUT,
                       "%s: no snapshots of averages in it: nalagen train writes them with "
                       "--snapshot-every N",
                       folder));
cleanup:
    for (int i = 0; i < widths; i++)
        free(entries[i]);
    free(entries);
    nl_free(context, folder);
    nl_free(context, path);
    return status;
}

/* ---- Their combination */

static nl_status solve(nl_averaging *averaging, nl_average_result *result)
{
    const nl_average_options *options = averaging->options;
    nl_context *context = averaging->context;
    nl_status status = NL_OK;
    nl_profile *given = NULL;
    double *coefficients = NULL, last = 0;
    NL_TRY(NL_NEW_ARRAY(context, "snapshots", averaging->count, &given));
    NL_TRY(NL_NEW_ARRAY(context, "coefficients", averaging->count, &coefficients));
    for (int i = 0; i < averaging->count; i++) {
        given[i] = averaging->snapshots[i].profile;
        last = fmax(last, given[i].step);
    }
    nl_profile wanted = {options->step ? (double)options->step : last,
                         nl_power_exponent(options->sigma_rel)};
    if (wanted.step > last)
        NL_TRY(nl_fail(context, NL_ERROR_USAGE, "--step %lld: the last snapshot is of step %.0f",
                       (long long)options->step, last));
    NL_TRY(
        nl_average_solve(context, given, averaging->count, &wanted, coefficients, &result->error));
    if (!(result->error <= NL_MOST_AVERAGE_ERROR))
        NL_TRY(nl_fail(context, NL_ERROR_USAGE,
                       "--sigma %g of step %.0f is not among what %d snapshots give: the nearest "
                       "combination is %.0f %% away, %.0f %% are allowed; choose a step of which "
                       "there is a snapshot, or a width nearer to theirs",
                       options->sigma_rel, wanted.step, averaging->count, 100 * result->error,
                       100 * NL_MOST_AVERAGE_ERROR));
    result->step = (int64_t)wanted.step;
    /* every step has the same number of samples */
    result->images = (int64_t)((double)averaging->config.images_seen / last * wanted.step + 0.5);
    for (int i = 0; i < averaging->count; i++) {
        averaging->snapshots[i].coefficient = coefficients[i];
        result->snapshots += coefficients[i] != 0;
        result->largest = fmax(result->largest, fabs(coefficients[i]));
    }
cleanup:
    nl_free(context, given);
    nl_free(context, coefficients);
    return status;
}

static nl_status read_combination(void *user, int64_t source, float *values)
{
    nl_averaging *averaging = user;
    const nl_entry *first = &averaging->snapshots[0].file->entries[source];
    int64_t count = nl_entry_count(first);
    memset(averaging->sum, 0, (size_t)count * sizeof(double));
    for (int i = 0; i < averaging->count; i++) {
        const nl_snapshot *snapshot = &averaging->snapshots[i];
        NL_CHECK(nl_check_cancelled(averaging->context));
        NL_CHECK(
            nl_entry_read(snapshot->file, nl_checkpoint_find(snapshot->file, first->name), values));
        for (int64_t j = 0; j < count; j++)
            averaging->sum[j] += snapshot->coefficient * values[j];
    }
    for (int64_t j = 0; j < count; j++)
        values[j] = (float)averaging->sum[j];
    nl_progress progress = {
        .stage = "averaging", .step = ++averaging->tensors_read, .steps = averaging->tensor_count};
    return nl_report_progress(averaging->context, &progress);
}

static nl_status write_model(nl_averaging *averaging)
{
    nl_context *context = averaging->context;
    const nl_average_options *options = averaging->options;
    const nl_checkpoint *first = averaging->snapshots[0].file;
    nl_status status = NL_OK;
    nl_saved *saved = NULL;
    nl_save_source source = {read_combination, averaging, 1};
    char *json = NULL;
    averaging->tensor_count = first->count;
    NL_TRY(NL_NEW_ZEROS(context, "names of tensors", (size_t)first->count, &saved));
    for (int64_t i = 0; i < first->count; i++) {
        const nl_entry *entry = &first->entries[i];
        saved[i] = (nl_saved){.name = entry->name,
                              .dtype = entry->ndim > 1 ? options->dtype : NL_F32,
                              .ndim = entry->ndim,
                              .source = i};
        memcpy(saved[i].shape, entry->shape, sizeof(entry->shape));
        source.largest = NL_MAX(source.largest, nl_entry_count(entry));
    }
    NL_TRY(NL_NEW_ARRAY(context, "a tensor's sum", source.largest, &averaging->sum));
    NL_TRY(nl_config_print(context, &averaging->config, &json));
    NL_TRY(nl_save_tensors(context, options->out, options->overwrite,
                           (const char *const[]){"nalagen", json, NULL}, saved, first->count,
                           &source));
cleanup:
    nl_free(context, json);
    nl_free(context, saved);
    nl_free(context, averaging->sum);
    return status;
}

nl_status nl_average_run(nl_context *context, const nl_average_options *options,
                         nl_average_result *result)
{
    nl_averaging averaging = {.context = context, .options = options};
    nl_status status = NL_OK;
    *result = (nl_average_result){0};
    nl_config_init(&averaging.config);
    if (!(options->sigma_rel > 0 && options->sigma_rel <= NL_MOST_SIGMA_REL))
        NL_TRY(nl_fail(context, NL_ERROR_USAGE, "--sigma %g: expected more than 0 and at most %.4f",
                       options->sigma_rel, NL_MOST_SIGMA_REL));
    NL_TRY(find_snapshots(&averaging));
    NL_TRY(solve(&averaging, result));
    averaging.config.images_seen = result->images;
    averaging.config.ema_decay = 0;
    averaging.config.ema_sigma_rel = options->sigma_rel;
    NL_TRY(write_model(&averaging));
cleanup:
    for (int i = 0; i < averaging.count; i++)
        nl_checkpoint_close(averaging.snapshots[i].file);
    nl_free(context, averaging.snapshots);
    nl_config_free(context, &averaging.config);
    return status;
}
