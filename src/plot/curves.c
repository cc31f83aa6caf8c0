/* SPDX-License-Identifier: MIT */
/* One number of a log by step: read, smoothed, thinned for a plot. */
#include "curves.h"

#include <math.h>
#include <stdio.h>
#include <string.h>

#include "nl_io.h"
#include "nl_json.h"

static nl_status add_line(nl_context *context, const char *where, const char *line, size_t size,
                          const char *over, const char *key, nl_curve *curve)
{
    cJSON *object = NULL;
    nl_status status = nl_json_parse(context, where, line, size, &object);
    if (status == NL_ERROR_MEMORY)
        return status;
    if (status != NL_OK) {
        nl_log(context, NL_LOG_WARNING, "%s: this line is left out", nl_last_error(context));
        return NL_OK;
    }
    const cJSON *x = cJSON_GetObjectItemCaseSensitive(object, over);
    const cJSON *y = cJSON_GetObjectItemCaseSensitive(object, key);
    double *point = curve->points + 2 * curve->count;
    if (nl_json_number(x, &point[0]) && nl_json_number(y, &point[1]) && isfinite(point[0]) &&
        isfinite(point[1]))
        curve->count++;
    cJSON_Delete(object);
    return NL_OK;
}

nl_status nl_curve_read(nl_context *context, const char *path, const char *over, const char *key,
                        nl_curve *curve)
{
    nl_status status = NL_OK;
    nl_mapping file = {0};
    int64_t lines = 1, number = 0;
    char where[512];
    *curve = (nl_curve){0};
    if (!nl_path_exists(path))
        return NL_OK;
    NL_TRY(nl_map_file(context, path, &file));
    const char *text = (const char *)file.data, *end = text + file.size;
    for (int64_t i = 0; i < file.size; i++)
        lines += text[i] == '\n';
    NL_TRY(NL_NEW_ARRAY(context, "a curve", 2 * lines, &curve->points));
    while (text < end) {
        const char *stop = memchr(text, '\n', (size_t)(end - text));
        stop = stop ? stop : end;
        snprintf(where, sizeof(where), "%s:%lld", path, (long long)++number);
        if (stop > text)
            NL_TRY(add_line(context, where, text, (size_t)(stop - text), over, key, curve));
        text = stop + 1;
    }
cleanup:
    if (status != NL_OK)
        nl_curve_free(context, curve);
    nl_unmap(context, &file);
    return status;
}

void nl_curve_free(nl_context *context, nl_curve *curve)
{
    nl_free(context, curve->points);
    *curve = (nl_curve){0};
}

void nl_curve_smooth(nl_curve *curve, double weight)
{
    double sum = 0, total = 0;
    for (int64_t i = 0; i < curve->count; i++) {
        sum = weight * sum + (1 - weight) * curve->points[2 * i + 1];
        total = weight * total + (1 - weight);
        curve->points[2 * i + 1] = sum / total;
    }
}

void nl_curve_thin(nl_curve *curve, int64_t most)
{
    int64_t run = (curve->count + most - 1) / most, kept = 0;
    for (int64_t first = 0; run > 1 && first < curve->count; first += run) {
        int64_t size = NL_MIN(run, curve->count - first);
        double x = 0, y = 0;
        for (int64_t i = first; i < first + size; i++) {
            x += curve->points[2 * i];
            y += curve->points[2 * i + 1];
        }
        curve->points[2 * kept] = x / (double)size;
        curve->points[2 * kept++ + 1] = y / (double)size;
    }
    if (run > 1)
        curve->count = kept;
}
