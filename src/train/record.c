/* SPDX-License-Identifier: MIT */
/* What a run writes about itself, cut back to the step that it resumes from. */
#include "record.h"

#include <math.h>
#include <stdio.h>
#include <string.h>
#include <sys/stat.h>

#include "nl_json.h"
#include "nl_run.h"

enum { LINE_SIZE = 2048 };

/* Whether the line says a step up to `step`. */
static bool is_before(nl_context *context, const char *line, size_t size, int64_t step)
{
    cJSON *object = NULL;
    if (nl_json_parse(context, "line", line, size, &object) != NL_OK)
        return false; /* torn */
    const cJSON *of_line = cJSON_GetObjectItemCaseSensitive(object, "step");
    int64_t said;
    bool before = nl_json_whole(of_line, &said) && said <= step;
    cJSON_Delete(object);
    return before;
}

static nl_status drop_later(nl_context *context, const char *path, int64_t step)
{
    nl_status status = NL_OK;
    nl_mapping file = {0};
    nl_writer *writer = NULL;
    bool complete = true;
    struct stat info;
    if (stat(path, &info) != 0 || !S_ISREG(info.st_mode)) /* nothing there, or a pipe */
        return NL_OK;
    NL_TRY(nl_map_file(context, path, &file));
    const char *text = (const char *)file.data, *end = text + file.size, *stop;
    NL_TRY(nl_writer_open(context, path, true, &writer));
    for (; text < end; text = stop + 1) {
        stop = memchr(text, '\n', (size_t)(end - text));
        if (!stop || !is_before(context, text, (size_t)(stop - text), step)) {
            complete = false;
            stop = stop ? stop : end;
            continue;
        }
        NL_TRY(nl_writer_write(writer, text, (size_t)(stop + 1 - text)));
    }
    if (!complete)
        NL_TRY(nl_writer_commit(&writer));
cleanup:
    nl_writer_abort(&writer);
    nl_unmap(context, &file);
    return status;
}

static nl_status open_lines(nl_context *context, const char *folder, const char *name, int64_t step,
                            nl_append *file)
{
    nl_status status = NL_OK;
    char *path = NULL;
    NL_TRY(nl_path_join(context, folder, name, &path));
    NL_TRY(drop_later(context, path, step));
    NL_TRY(nl_append_open(context, path, file));
cleanup:
    nl_free(context, path);
    return status;
}

nl_status nl_record_open(nl_context *context, const char *folder, int64_t step, nl_record *record)
{
    nl_status status = NL_OK;
    *record = (nl_record){.context = context};
    NL_TRY(open_lines(context, folder, NL_RUN_LOG, step, &record->log));
    NL_TRY(open_lines(context, folder, NL_RUN_METRICS, step, &record->metrics));
    NL_TRY(nl_events_open(context, folder, step, &record->events));
cleanup:
    if (status != NL_OK)
        nl_record_close(record);
    return status;
}

void nl_record_close(nl_record *record)
{
    nl_append_close(&record->log);
    nl_append_close(&record->metrics);
    nl_append_close(&record->events);
}

/* Loud once, and once more when it works again. */
static void note(nl_record *record, nl_status status)
{
    if (status != NL_OK && !record->failing)
        nl_log(record->context, NL_LOG_ERROR, "%s; training continues, the record has a gap",
               nl_last_error(record->context));
    else if (status == NL_OK && record->failing)
        nl_log(record->context, NL_LOG_INFO, "the record can be written again");
    record->failing = status != NL_OK;
}

static void write_line(nl_record *record, nl_append *file, const char *prefix, int64_t step,
                       const nl_number *numbers, int count)
{
    char line[LINE_SIZE], tag[64];
    nl_status status = NL_OK;
    size_t used = (size_t)snprintf(line, sizeof(line), "{\"step\": %lld", (long long)step);
    for (int i = 0; i < count && used < sizeof(line) - 64; i++)
        used +=
            (size_t)snprintf(line + used, sizeof(line) - used,
                             isfinite(numbers[i].value) ? ", \"%.30s\": %.9g" : ", \"%.30s\": null",
                             numbers[i].name, numbers[i].value);
    snprintf(line + used, sizeof(line) - used, "}");
    status = nl_append_line(file, line);
    for (int i = 0; i < count && status == NL_OK; i++) {
        snprintf(tag, sizeof(tag), "%s/%.30s", prefix, numbers[i].name);
        if (isfinite(numbers[i].value))
            status = nl_events_scalar(&record->events, step, tag, numbers[i].value);
    }
    note(record, status);
}

void nl_record_log(nl_record *record, int64_t step, const nl_number *numbers, int count)
{
    write_line(record, &record->log, "train", step, numbers, count);
}

void nl_record_metrics(nl_record *record, int64_t step, const nl_number *numbers, int count)
{
    write_line(record, &record->metrics, "val", step, numbers, count);
}

void nl_record_image(nl_record *record, int64_t step, int height, int width, const uint8_t *png,
                     size_t size)
{
    note(record, nl_events_image(&record->events, step, "samples", height, width, png, size));
}
