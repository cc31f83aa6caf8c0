/* SPDX-License-Identifier: MIT */
/*
 * Training runs in the folders of --runs, as they are now: what they have logged, their grids and evaluations.
 *
 * A client names a run by a name of the list, which is looked for anew each time; its numbers alone go out, never a text
 * that may be the name of a file.
 */
#include "http.h"

#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <time.h>
#include <unistd.h>

#include "nl_image.h"
#include "nl_io.h"
#include "nl_run.h"

enum {
    MOST_RUNS = 200,
    MOST_LINES = 1500,    /* of a log, that go out */
    MOST_BYTES = 64 << 20 /* of a file */
};

typedef struct nl_shown_run {
    char *folder;
    char name[96];
} nl_shown_run;

typedef struct nl_shown_runs {
    nl_context *context;
    nl_shown_run items[MOST_RUNS];
    int count;
} nl_shown_runs;

/* ---- Files. Others write them: what is mapped could become shorter, which would end the server, so they are read. */

typedef struct nl_bytes {
    char *data; /* allocated */
    int64_t size;
} nl_bytes;

/* A regular file of at most MOST_BYTES; false: there is none that can be read. */
static bool read_file(nl_context *context, const char *folder, const char *name, nl_bytes *bytes)
{
    struct stat info;
    char *path = NULL;
    int fd = -1;
    *bytes = (nl_bytes){0};
    if (nl_path_join(context, folder, name, &path) != NL_OK ||
        (fd = open(path, O_RDONLY | O_CLOEXEC | O_NONBLOCK)) < 0 || fstat(fd, &info) != 0 ||
        !S_ISREG(info.st_mode) || info.st_size > MOST_BYTES ||
        NL_NEW_ARRAY(context, "a file of a run", info.st_size, &bytes->data) != NL_OK)
        goto cleanup;
    ssize_t got = 1;
    while (bytes->size < info.st_size && got > 0) {
        got = read(fd, bytes->data + bytes->size, (size_t)(info.st_size - bytes->size));
        bytes->size += NL_MAX(got, 0);
    }
cleanup:
    if (fd >= 0)
        close(fd);
    nl_free(context, path);
    return bytes->data != NULL;
}

static bool has(nl_context *context, const char *folder, const char *name)
{
    struct stat info;
    char *path = NULL;
    bool there = nl_path_join(context, folder, name, &path) == NL_OK && stat(path, &info) == 0 &&
                 S_ISREG(info.st_mode);
    nl_free(context, path);
    return there;
}

/* ---- Which there are */

/* Takes the folder over. Names are those of folders; a second one of a name gets a number. */
static void add_run(nl_shown_runs *runs, char *folder)
{
    nl_shown_run *run = &runs->items[runs->count];
    size_t length = strlen(folder);
    while (length > 1 && folder[length - 1] == '/')
        folder[--length] = '\0';
    const char *name = nl_base_name(folder);
    snprintf(run->name, sizeof(run->name), "%.80s", name);
    for (int i = 0, number = 2; i < runs->count; i++)
        if (!strcmp(runs->items[i].name, run->name)) {
            snprintf(run->name, sizeof(run->name), "%.80s-%d", name, number++);
            i = -1;
        }
    run->folder = folder;
    runs->count++;
}

static nl_status find_below(nl_shown_runs *runs, const char *root)
{
    nl_context *context = runs->context;
    nl_listing listing = {0};
    nl_status status = NL_OK;
    char *path = NULL;
    NL_TRY(nl_list_folder(context, root, 'd', &listing));
    for (int64_t i = 0; i < listing.count && runs->count < MOST_RUNS; i++) {
        NL_TRY(nl_path_join(context, root, listing.names[i], &path));
        if (has(context, path, NL_RUN_LOG)) {
            add_run(runs, path);
            path = NULL;
        }
        nl_free(context, path);
        path = NULL;
    }
cleanup:
    nl_listing_free(context, &listing);
    return status;
}

static void free_runs(nl_shown_runs *runs)
{
    for (int i = 0; i < runs->count; i++)
        nl_free(runs->context, runs->items[i].folder);
}

static void find_runs(nl_exchange *exchange, nl_shown_runs *runs)
{
    nl_context *context = exchange->context;
    const char *const *root = exchange->server->options->runs;
    *runs = (nl_shown_runs){.context = context};
    for (; root && *root && runs->count < MOST_RUNS; root++) {
        char *folder = NULL;
        if (!has(context, *root, NL_RUN_LOG))
            find_below(runs, *root); /* one that is not there any more shows nothing */
        else if (nl_strdup(context, *root, &folder) == NL_OK)
            add_run(runs, folder);
    }
}

static const nl_shown_run *find_run(const nl_shown_runs *runs, const char *name)
{
    for (int i = 0; i < runs->count; i++)
        if (!strcmp(runs->items[i].name, name))
            return &runs->items[i];
    return NULL;
}

/* ---- Numbers */

/* The numbers of an object, at their keys. */
static cJSON *numbers_of(const cJSON *object)
{
    cJSON *numbers = cJSON_CreateObject();
    double value;
    for (const cJSON *item = object ? object->child : NULL; item; item = item->next)
        if (nl_json_number(item, &value))
            cJSON_AddNumberToObject(numbers, item->string, value);
    return numbers;
}

/* What an evaluation found and by what; files by the last part of their names. */
static cJSON *evaluation_of(const cJSON *report)
{
    static const char *const texts[] = {"preset", "features", "precision", "samples", "reference"};
    cJSON *evaluation = cJSON_CreateObject();
    double value;
    if (nl_json_number(cJSON_GetObjectItemCaseSensitive(report, "n"), &value))
        cJSON_AddNumberToObject(evaluation, "n", value);
    for (int i = 0; i < NL_COUNT(texts); i++) {
        const cJSON *text = cJSON_GetObjectItemCaseSensitive(report, texts[i]);
        if (cJSON_IsString(text))
            cJSON_AddStringToObject(evaluation, texts[i], nl_base_name(text->valuestring));
    }
    cJSON_AddItemToObject(evaluation, "metrics",
                          numbers_of(cJSON_GetObjectItemCaseSensitive(report, "metrics")));
    return evaluation;
}

/* Lines of JSON at even distances, the last one always, those that are not JSON left out: numbers into `lines`. Evaluations,
 * all of them, into `evaluations`, which may be NULL. */
static void read_lines(nl_context *context, const char *folder, const char *name, int64_t most,
                       cJSON *lines, cJSON *evaluations)
{
    nl_bytes file;
    int64_t count = 0, number = 0;
    if (!read_file(context, folder, name, &file))
        return;
    const char *text = file.data, *end = text + file.size, *stop;
    for (int64_t i = 0; i < file.size; i++)
        count += text[i] == '\n';
    int64_t stride = (count + most - 1) / most;
    for (; text < end && (stop = memchr(text, '\n', (size_t)(end - text))); text = stop + 1) {
        cJSON *object = NULL;
        bool shown = ++number == count || stride <= 1 || number % stride == 0;
        if (!shown && !evaluations)
            continue;
        if (nl_json_parse(context, name, text, (size_t)(stop - text), &object) != NL_OK)
            continue;
        const cJSON *report = cJSON_GetObjectItemCaseSensitive(object, "evaluation");
        if (report && evaluations) {
            cJSON *evaluation = evaluation_of(report);
            double step;
            if (nl_json_number(cJSON_GetObjectItemCaseSensitive(object, "step"), &step))
                cJSON_AddNumberToObject(evaluation, "step", step);
            cJSON_AddItemToArray(evaluations, evaluation);
        }
        if (shown)
            cJSON_AddItemToArray(lines, numbers_of(object));
        cJSON_Delete(object);
    }
    nl_free(context, file.data);
}

/* Files of `eval --json` that lie in the folder. */
static void read_reports(nl_context *context, const char *folder, cJSON *evaluations)
{
    nl_listing listing = {0};
    if (nl_list_folder(context, folder, 'f', &listing) != NL_OK)
        listing.count = 0;
    for (int64_t i = 0; i < listing.count; i++) {
        const char *name = listing.names[i], *dot = strrchr(name, '.');
        nl_bytes file;
        cJSON *report = NULL;
        if (!dot || strcmp(dot, ".json") != 0 || !strcmp(name, NL_RUN_CONFIG) ||
            !read_file(context, folder, name, &file))
            continue;
        if (nl_json_parse(context, name, file.data, (size_t)file.size, &report) == NL_OK &&
            cJSON_IsObject(cJSON_GetObjectItemCaseSensitive(report, "metrics"))) {
            cJSON *evaluation = evaluation_of(report);
            cJSON_AddStringToObject(evaluation, "file", name);
            cJSON_AddItemToArray(evaluations, evaluation);
        }
        cJSON_Delete(report);
        nl_free(context, file.data);
    }
    nl_listing_free(context, &listing);
}

static void add_grids(nl_context *context, const char *folder, cJSON *object)
{
    cJSON *grids = cJSON_AddArrayToObject(object, "grids");
    nl_listing listing = {0};
    char *samples = NULL, name[NL_RUN_NAME];
    if (nl_path_join(context, folder, NL_RUN_SAMPLES, &samples) == NL_OK &&
        nl_path_is_folder(samples) && nl_list_folder(context, samples, 'f', &listing) == NL_OK)
        for (int64_t i = 0; i < listing.count; i++) {
            long long step;
            if (sscanf(listing.names[i], "step-%lld.png", &step) == 1 && step >= 0 &&
                !strcmp(listing.names[i], nl_run_grid_name(step, name)))
                cJSON_AddItemToArray(grids, cJSON_CreateNumber((double)step));
        }
    nl_listing_free(context, &listing);
    nl_free(context, samples);
}

/* What its configuration says that is no name of a file. */
static void add_configuration(nl_context *context, const char *folder, cJSON *object)
{
    static const char *const parts[] = {"training", "model"};
    nl_bytes file;
    cJSON *config = NULL;
    if (!read_file(context, folder, NL_RUN_CONFIG, &file))
        return;
    if (nl_json_parse(context, NL_RUN_CONFIG, file.data, (size_t)file.size, &config) == NL_OK)
        for (int i = 0; i < NL_COUNT(parts); i++)
            cJSON_AddItemToObject(object, parts[i],
                                  numbers_of(cJSON_GetObjectItemCaseSensitive(config, parts[i])));
    cJSON_Delete(config);
    nl_free(context, file.data);
}

/* The run, with at most so many lines of its log. */
static cJSON *run_json(nl_context *context, const nl_shown_run *run, int64_t most)
{
    struct stat info;
    char *path = NULL;
    cJSON *object = cJSON_CreateObject();
    cJSON_AddStringToObject(object, "name", run->name);
    cJSON_AddBoolToObject(object, "done", has(context, run->folder, NL_RUN_DONE));
    if (nl_path_join(context, run->folder, NL_RUN_LOG, &path) == NL_OK && stat(path, &info) == 0)
        cJSON_AddNumberToObject(object, "age", (double)(time(NULL) - info.st_mtime));
    nl_free(context, path);
    add_configuration(context, run->folder, object);
    add_grids(context, run->folder, object);
    cJSON *evaluations = cJSON_AddArrayToObject(object, "evaluations");
    read_lines(context, run->folder, NL_RUN_LOG, most, cJSON_AddArrayToObject(object, "log"), NULL);
    read_lines(context, run->folder, NL_RUN_METRICS, most,
               cJSON_AddArrayToObject(object, "validation"), evaluations);
    read_reports(context, run->folder, evaluations);
    return object;
}

/* ---- Routes */

static enum MHD_Result get_runs(nl_exchange *exchange)
{
    nl_shown_runs *runs;
    cJSON *object = cJSON_CreateObject(), *list = cJSON_AddArrayToObject(object, "runs");
    if (NL_NEW(exchange->context, "runs", &runs) != NL_OK) {
        cJSON_Delete(object);
        return nl_answer_failure(exchange, exchange->context, NL_ERROR_MEMORY);
    }
    find_runs(exchange, runs);
    for (int i = 0; i < runs->count; i++)
        cJSON_AddItemToArray(list, run_json(exchange->context, &runs->items[i], 1));
    free_runs(runs);
    nl_free(exchange->context, runs);
    return nl_answer_json(exchange, MHD_HTTP_OK, object);
}

static enum MHD_Result with_run(nl_exchange *exchange,
                                enum MHD_Result (*answer)(nl_exchange *exchange,
                                                          const nl_shown_run *run))
{
    nl_shown_runs *runs;
    if (NL_NEW(exchange->context, "runs", &runs) != NL_OK)
        return nl_answer_failure(exchange, exchange->context, NL_ERROR_MEMORY);
    find_runs(exchange, runs);
    const nl_shown_run *run = find_run(runs, exchange->parts[0]);
    enum MHD_Result result =
        run ? answer(exchange, run)
            : nl_answer_error(exchange, MHD_HTTP_NOT_FOUND, "there is no such run");
    free_runs(runs);
    nl_free(exchange->context, runs);
    return result;
}

static enum MHD_Result answer_run(nl_exchange *exchange, const nl_shown_run *run)
{
    return nl_answer_json(exchange, MHD_HTTP_OK, run_json(exchange->context, run, MOST_LINES));
}

static enum MHD_Result answer_grid(nl_exchange *exchange, const nl_shown_run *run)
{
    nl_context *context = exchange->context;
    int64_t step;
    char path[NL_RUN_NAME + sizeof(NL_RUN_SAMPLES)], name[NL_RUN_NAME];
    nl_bytes file = {0};
    bool good = nl_number_read(exchange->parts[1], INT64_MAX, &step);
    if (good) {
        snprintf(path, sizeof(path), "%s/%s", NL_RUN_SAMPLES, nl_run_grid_name(step, name));
        good = read_file(context, run->folder, path, &file) &&
               nl_image_kind_of((const uint8_t *)file.data, file.size) == NL_IMAGE_PNG;
    }
    enum MHD_Result result =
        good ? nl_answer_bytes(exchange, "image/png", file.data, (size_t)file.size, 60)
             : nl_answer_error(exchange, MHD_HTTP_NOT_FOUND, "there is no such grid");
    nl_free(context, file.data);
    return result;
}

static enum MHD_Result get_run(nl_exchange *exchange)
{
    return with_run(exchange, answer_run);
}

static enum MHD_Result get_grid(nl_exchange *exchange)
{
    return with_run(exchange, answer_grid);
}

const nl_route nl_runs_routes[] = {
    {"GET", "/api/runs", get_runs},
    {"GET", "/api/runs/*", get_run},
    {"GET", "/api/runs/*/grids/*", get_grid},
    {0},
};
