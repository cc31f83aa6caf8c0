/* SPDX-License-Identifier: MIT */
/* Checkpoints of a run: which there are, saving the whole state, loading it, removing old ones. */
#include "checkpoint.h"

#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <float.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "nl_json.h"
#include "nl_run.h"

#define POINT_KEY "nalagen.training"

enum { MAX_MODELS = 7 + NL_MAX_EMA, PREFIX_SIZE = 16 };

/* The models of a file and their prefixes; texts live in `prefixes`. */
static int list_models(const nl_train_state *state, const nl_run_point *point,
                       nl_dit_named models[MAX_MODELS], char prefixes[NL_MAX_EMA][PREFIX_SIZE])
{
    int count = 0;
    models[count++] = (nl_dit_named){state->master, ""};
    for (int i = 0; i < state->ema_count; i++) {
        snprintf(prefixes[i], PREFIX_SIZE, i ? "ema%d." : "ema.", i + 1);
        models[count++] = (nl_dit_named){state->ema[i], prefixes[i]};
    }
    if (state->best && point->best_step)
        models[count++] = (nl_dit_named){state->best, "best."};
    models[count++] = (nl_dit_named){state->first, "adam.m."};
    models[count++] = (nl_dit_named){state->second, "adam.v."};
    if (state->fake) {
        models[count++] = (nl_dit_named){state->fake->master, "fake."};
        models[count++] = (nl_dit_named){state->fake->first, "fake.adam.m."};
        models[count++] = (nl_dit_named){state->fake->second, "fake.adam.v."};
    }
    return count;
}

/* ---- Metadata */

/* "ema_decay" and, where there are power functions, "ema_sigma_rel": a number for each average, 0 where it has none. */
static bool add_averages(cJSON *json, const nl_run_point *point)
{
    double decays[NL_MAX_EMA], widths[NL_MAX_EMA], widest = 0;
    for (int i = 0; i < point->ema_count; i++) {
        decays[i] = point->ema[i].decay;
        widths[i] = point->ema[i].sigma_rel;
        widest = fmax(widest, widths[i]);
    }
    return cJSON_AddItemToObject(json, "ema_decay",
                                 cJSON_CreateDoubleArray(decays, point->ema_count)) &&
           (widest == 0 ||
            cJSON_AddItemToObject(json, "ema_sigma_rel",
                                  cJSON_CreateDoubleArray(widths, point->ema_count)));
}

static bool add_matching(cJSON *json, const nl_run_point *point)
{
    return !point->matches ||
           (cJSON_AddBoolToObject(json, "matches", true) &&
            cJSON_AddNumberToObject(json, "fake_applied", (double)point->fake_applied) &&
            cJSON_AddNumberToObject(json, "fake_skipped_now", (double)point->fake_skipped_now) &&
            cJSON_AddNumberToObject(json, "fake_updates", (double)point->fake_updates) &&
            cJSON_AddNumberToObject(json, "fake_sum", point->fake_sum) &&
            cJSON_AddNumberToObject(json, "matched_steps", (double)point->matched_steps) &&
            cJSON_AddNumberToObject(json, "match_sum", point->match_sum) &&
            cJSON_AddNumberToObject(json, "discriminator_sum", point->discriminator_sum));
}

static nl_status print_point(nl_context *context, const nl_run_point *point, char **text)
{
    char seed[24];
    cJSON *json = cJSON_CreateObject();
    snprintf(seed, sizeof(seed), "%llu", (unsigned long long)point->seed);
    bool built = json && cJSON_AddStringToObject(json, "seed", seed) &&
                 cJSON_AddNumberToObject(json, "batch", (double)point->batch) &&
                 cJSON_AddNumberToObject(json, "samples", (double)point->samples) &&
                 cJSON_AddStringToObject(json, "data_sha256", point->data_sha256) &&
                 (!*point->teacher_sha256 ||
                  cJSON_AddStringToObject(json, "teacher_sha256", point->teacher_sha256)) &&
                 cJSON_AddNumberToObject(json, "step", (double)point->step) &&
                 cJSON_AddNumberToObject(json, "applied", (double)point->applied) &&
                 cJSON_AddNumberToObject(json, "skipped", (double)point->skipped) &&
                 cJSON_AddNumberToObject(json, "skipped_now", (double)point->skipped_now) &&
                 cJSON_AddNumberToObject(json, "seconds", point->seconds) &&
                 cJSON_AddNumberToObject(json, "loss_sum", point->loss_sum) &&
                 cJSON_AddNumberToObject(json, "norm_sum", point->norm_sum) &&
                 cJSON_AddNumberToObject(json, "finite_steps", (double)point->finite_steps) &&
                 cJSON_AddNumberToObject(json, "bad_steps", (double)point->bad_steps) &&
                 add_averages(json, point) && add_matching(json, point) &&
                 (!point->best_step ||
                  (cJSON_AddNumberToObject(json, "best_step", (double)point->best_step) &&
                   cJSON_AddNumberToObject(json, "best_loss", point->best_loss))) &&
                 (!point->worse || cJSON_AddNumberToObject(json, "worse", (double)point->worse));
    *text = built ? nl_json_print(json, false) : NULL;
    cJSON_Delete(json);
    return *text ? NL_OK : nl_fail(context, NL_ERROR_MEMORY, "no memory for a checkpoint's header");
}

/* A list of at most NL_MAX_EMA numbers. */
static nl_status read_numbers(const nl_json *json, const char *key, double *numbers, int *count)
{
    const cJSON *list = cJSON_GetObjectItemCaseSensitive(json->object, key), *item;
    *count = 0;
    cJSON_ArrayForEach(item, list)
    {
        if (!cJSON_IsNumber(item) || *count == NL_MAX_EMA)
            return nl_fail(json->context, NL_ERROR_INPUT, "%s: \"%s\": expected at most %d numbers",
                           json->where, key, NL_MAX_EMA);
        numbers[(*count)++] = item->valuedouble;
    }
    return NL_OK;
}

static nl_status read_averages(const nl_json *json, nl_run_point *point)
{
    double decays[NL_MAX_EMA] = {0}, widths[NL_MAX_EMA] = {0};
    int count;
    NL_CHECK(read_numbers(json, "ema_decay", decays, &point->ema_count));
    NL_CHECK(read_numbers(json, "ema_sigma_rel", widths, &count));
    for (int i = 0; i < point->ema_count; i++)
        point->ema[i] = (nl_average){decays[i], widths[i]};
    return NL_OK;
}

static nl_status read_matching(const nl_json *json, nl_run_point *point)
{
    const int64_t most = INT64_C(1) << 53;
    point->matches = cJSON_IsTrue(cJSON_GetObjectItemCaseSensitive(json->object, "matches"));
    NL_CHECK(nl_json_int(json, "fake_applied", 0, INT32_MAX, &point->fake_applied));
    NL_CHECK(nl_json_int(json, "fake_skipped_now", 0, INT32_MAX, &point->fake_skipped_now));
    NL_CHECK(nl_json_int(json, "fake_updates", 0, most, &point->fake_updates));
    NL_CHECK(nl_json_double(json, "fake_sum", -DBL_MAX, DBL_MAX, &point->fake_sum));
    NL_CHECK(nl_json_int(json, "matched_steps", 0, most, &point->matched_steps));
    NL_CHECK(nl_json_double(json, "match_sum", -DBL_MAX, DBL_MAX, &point->match_sum));
    return nl_json_double(json, "discriminator_sum", -DBL_MAX, DBL_MAX, &point->discriminator_sum);
}

nl_status nl_parse_point(nl_context *context, const char *path, const char *text,
                         nl_run_point *point)
{
    nl_status status = NL_OK;
    const int64_t most = INT64_C(1) << 53;
    const char *seed = "0", *sha256 = "", *teacher = "";
    cJSON *object = NULL;
    *point = (nl_run_point){0};
    if (!text)
        return nl_fail(context, NL_ERROR_INPUT,
                       "%s: no checkpoint of a training run: it has no metadata \"" POINT_KEY
                       "\"; weights alone are taken with --init",
                       path);
    NL_TRY(nl_json_parse(context, path, text, strlen(text), &object));
    nl_json json = {context, path, object};
    NL_TRY(nl_json_string(&json, "seed", &seed));
    NL_TRY(nl_json_string(&json, "data_sha256", &sha256));
    NL_TRY(nl_json_string(&json, "teacher_sha256", &teacher));
    NL_TRY(nl_json_int(&json, "batch", 1, INT32_MAX, &point->batch));
    NL_TRY(nl_json_int(&json, "samples", 1, most, &point->samples));
    NL_TRY(nl_json_int(&json, "step", 0, most, &point->step));
    NL_TRY(nl_json_int(&json, "applied", 0, INT32_MAX, &point->applied));
    NL_TRY(nl_json_int(&json, "skipped", 0, most, &point->skipped));
    NL_TRY(nl_json_int(&json, "skipped_now", 0, INT32_MAX, &point->skipped_now));
    NL_TRY(nl_json_double(&json, "seconds", 0, 1e12, &point->seconds));
    NL_TRY(nl_json_double(&json, "loss_sum", -DBL_MAX, DBL_MAX, &point->loss_sum));
    NL_TRY(nl_json_double(&json, "norm_sum", 0, DBL_MAX, &point->norm_sum));
    NL_TRY(nl_json_int(&json, "finite_steps", 0, most, &point->finite_steps));
    NL_TRY(nl_json_int(&json, "bad_steps", 0, most, &point->bad_steps));
    NL_TRY(nl_json_int(&json, "best_step", 0, most, &point->best_step));
    NL_TRY(nl_json_double(&json, "best_loss", -DBL_MAX, DBL_MAX, &point->best_loss));
    NL_TRY(nl_json_int(&json, "worse", 0, most, &point->worse));
    int64_t seen;
    if (!point->batch || !point->samples || !nl_mul_size(point->step, point->batch, &seen))
        NL_TRY(nl_fail(context, NL_ERROR_INPUT,
                       "%s: its metadata \"" POINT_KEY
                       "\" is none of a run: expected the numbers batch, samples and step, found "
                       "%lld, %lld and %lld",
                       path, (long long)point->batch, (long long)point->samples,
                       (long long)point->step));
    NL_TRY(read_averages(&json, point));
    NL_TRY(read_matching(&json, point));
    point->seed = strtoull(seed, NULL, 10);
    snprintf(point->data_sha256, sizeof(point->data_sha256), "%s", sha256);
    snprintf(point->teacher_sha256, sizeof(point->teacher_sha256), "%s", teacher);
cleanup:
    cJSON_Delete(object);
    return status;
}

/* ---- Files */

static void remove_old(nl_context *context, const char *folder, int64_t keep)
{
    char **paths;
    int count;
    if (keep < 1 || nl_list_points(context, folder, &paths, &count) != NL_OK)
        return;
    for (int i = (int)NL_MIN(keep, count); i < count; i++)
        if (unlink(paths[i]) != 0)
            nl_log(context, NL_LOG_WARNING, "%s: cannot be removed: %s", paths[i], strerror(errno));
    nl_free_points(context, paths, count);
}

nl_status nl_set_aside_points(nl_context *context, const char *folder, int64_t step)
{
    nl_status status = NL_OK;
    char **paths, *aside = NULL;
    int count;
    NL_TRY(nl_list_points(context, folder, &paths, &count));
    for (int i = 0; i < count && nl_point_step(paths[i]) > step; i++) {
        nl_free(context, aside);
        aside = NULL;
        NL_TRY(nl_format(context, &aside, "%s.old", paths[i]));
        if (rename(paths[i], aside) != 0)
            NL_TRY(nl_fail(context, NL_ERROR_WRITE, "%s: cannot be renamed to %s: %s", paths[i],
                           aside, strerror(errno)));
        nl_log(context, NL_LOG_WARNING, "%s: behind step %lld: now %s", paths[i], (long long)step,
               aside);
    }
cleanup:
    nl_free(context, aside);
    nl_free_points(context, paths, count);
    return status;
}

/* Where a run stands before its first checkpoint: a file of that name, which takes and gives back the room that a
 * checkpoint needs. It stays until there is one. */
static nl_status unsaved_path(nl_context *context, const char *folder, char **path)
{
    return nl_path_join(context, folder, NL_RUN_UNSAVED, path);
}

bool nl_never_saved(nl_context *context, const char *folder)
{
    char *path;
    bool never = unsaved_path(context, folder, &path) == NL_OK && nl_path_exists(path);
    nl_free(context, path);
    return never;
}

/* Where the file system can tell at once, whatever the file holds. */
static nl_status try_room(nl_context *context, const char *path, int64_t bytes)
{
    nl_status status = NL_OK;
    int fd = open(path, O_WRONLY | O_CLOEXEC);
    if (fd < 0)
        return nl_fail(context, NL_ERROR_WRITE, "%s: cannot be opened: %s", path, strerror(errno));
    if (fallocate(fd, 0, 0, bytes) != 0 &&
        (errno == ENOSPC || errno == EDQUOT || errno == EFBIG || errno == EROFS || errno == EIO))
        status = nl_fail(context, NL_ERROR_WRITE,
                         "%s: no room for a checkpoint of %.0f MiB: %s; choose another --out", path,
                         (double)bytes / (1 << 20), strerror(errno));
    if (ftruncate(fd, 0) != 0 && status == NL_OK)
        status = nl_fail(context, NL_ERROR_WRITE, "%s: %s", path, strerror(errno));
    close(fd);
    return status;
}

nl_status nl_try_saving(const nl_train_state *state, const char *folder)
{
    nl_context *context = state->device->context;
    nl_status status = NL_OK;
    char *path = NULL, **points = NULL;
    int count = 0;
    int twins = 3 + state->ema_count + (state->best != NULL) + (state->fake ? 3 : 0);
    int64_t bytes = twins * state->master->storage_bytes;
    NL_TRY(nl_make_folder(context, folder));
    NL_TRY(nl_list_points(context, folder, &points, &count));
    NL_TRY(unsaved_path(context, folder, &path));
    NL_TRY(nl_write_file(context, path, true, "", 0));
    NL_TRY(try_room(context, path, bytes));
cleanup:
    if (path && count)
        unlink(path);
    nl_free_points(context, points, count);
    nl_free(context, path);
    return status;
}

void nl_describe_average(const nl_run_point *point, const nl_average *average, nl_config *config)
{
    config->images_seen = point->step * point->batch;
    config->ema_decay = average ? average->decay : 0;
    config->ema_sigma_rel = average ? average->sigma_rel : 0;
}

nl_status nl_save_point(const nl_train_state *state, const nl_run_point *point, const char *folder,
                        int64_t keep)
{
    nl_context *context = state->device->context;
    nl_status status = NL_OK;
    nl_dit_named models[MAX_MODELS];
    char prefixes[NL_MAX_EMA][PREFIX_SIZE], name[NL_RUN_NAME];
    char *path = NULL, *text = NULL, *unsaved = NULL;
    int count = list_models(state, point, models, prefixes);
    /* for a model that is made of this checkpoint: what is said of it is the first one's */
    nl_describe_average(point, point->ema_count ? &point->ema[0] : NULL, &state->master->config);
    NL_TRY(nl_make_folder(context, folder));
    NL_TRY(nl_path_join(context, folder, nl_run_checkpoint_name(point->step, name), &path));
    NL_TRY(print_point(context, point, &text));
    NL_TRY(
        nl_dit_save_named(models, count, path, true, (const char *const[]){POINT_KEY, text, NULL}));
    remove_old(context, folder, keep);
    if (unsaved_path(context, folder, &unsaved) == NL_OK)
        unlink(unsaved);
cleanup:
    nl_free(context, unsaved);
    cJSON_free(text);
    nl_free(context, path);
    return status;
}

/* What the file is of against what the run is of. */
static nl_status check_kind(const nl_train_state *state, const nl_checkpoint *file,
                            const nl_run_point *point)
{
    nl_context *context = state->device->context;
    nl_config config;
    if (point->ema_count != state->ema_count)
        return nl_fail(context, NL_ERROR_USAGE,
                       "%s: has %d moving %s, and --ema asks for %d (--snapshot-every for two "
                       "more): a run resumes with the same number of them",
                       file->path, point->ema_count,
                       nl_plural(point->ema_count, "average", "averages"), state->ema_count);
    if (point->matches != (state->fake != NULL))
        return nl_fail(context, NL_ERROR_USAGE,
                       "%s: made %s distribution matching (--match), which a run has from its "
                       "first step or never; to start from its weights, give it as --init with "
                       "another --out",
                       file->path, point->matches ? "with" : "without");
    NL_CHECK(nl_config_from_checkpoint(file, NULL, &config));
    const char *key = nl_config_difference(&config, &state->master->config);
    nl_config_free(context, &config);
    if (key)
        return nl_fail(context, NL_ERROR_USAGE,
                       "%s: of another model than --model and --config ask for (\"%s\" differs): "
                       "such a run cannot be resumed; choose another --out",
                       file->path, key);
    return NL_OK;
}

nl_status nl_load_point(nl_train_state *state, const char *path, nl_run_point *point)
{
    nl_context *context = state->device->context;
    nl_device *device = state->device;
    nl_status status = NL_OK;
    nl_checkpoint *file = NULL;
    nl_dit_named models[MAX_MODELS];
    char prefixes[NL_MAX_EMA][PREFIX_SIZE];
    NL_TRY(nl_checkpoint_open_shard(context, path, NULL, &file)); /* all prefixes */
    NL_TRY(nl_checkpoint_sort(file));
    NL_TRY(nl_parse_point(context, path, nl_checkpoint_metadata(file, POINT_KEY), point));
    NL_TRY(check_kind(state, file, point));
    if (!state->best) /* nobody asks any more */
        point->best_step = point->worse = 0;
    int count = list_models(state, point, models, prefixes);
    for (int i = 0; i < count; i++)
        NL_TRY(nl_dit_load_named((nl_dit *)models[i].dit, file, models[i].prefix));
    int32_t counter[2] = {(int32_t)point->applied, (int32_t)point->skipped_now};
    NL_TRY(device->ops->upload(device, state->counter.data, counter, sizeof(counter)));
    NL_TRY(nl_state_show_weights(state)); /* waits */
    if (state->fake) {
        int32_t of_fake[2] = {(int32_t)point->fake_applied, (int32_t)point->fake_skipped_now};
        NL_TRY(device->ops->upload(device, state->fake->counter.data, of_fake, sizeof(of_fake)));
        NL_TRY(nl_state_show_weights(state->fake));
    }
cleanup:
    nl_checkpoint_close(file);
    return status;
}
