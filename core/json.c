/* SPDX-License-Identifier: MIT */
/* JSON of foreign files on top of cJSON: strict grammar, no key twice, members by name with type and range. */
#include "nl_json.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "json_scan.h"

static int compare_names(const void *a, const void *b)
{
    return strcmp(*(const char *const *)a, *(const char *const *)b);
}

/* Refuses duplicate keys in one object. Sorted, since a file may hold a million of them. */
static nl_status check_keys(nl_context *context, const char *where, const cJSON *object)
{
    int64_t count = 0;
    for (const cJSON *item = object->child; item; item = item->next)
        count++;
    const char *few[32], **keys = few, **many = NULL;
    if (count > NL_COUNT(few)) {
        nl_status status = NL_NEW_ARRAY(context, "the keys of a JSON object", count, &many);
        if (status != NL_OK)
            return status;
        keys = many;
    }
    int64_t n = 0;
    for (const cJSON *item = object->child; item; item = item->next)
        keys[n++] = item->string;
    qsort(keys, (size_t)count, sizeof(*keys), compare_names);
    nl_status status = NL_OK;
    for (int64_t i = 1; i < count && status == NL_OK; i++)
        if (strcmp(keys[i - 1], keys[i]) == 0)
            status = nl_fail(context, NL_ERROR_INPUT,
                             "%s: the key \"%.80s\" stands twice in one object", where, keys[i]);
    nl_free(context, many);
    return status;
}

/* What the grammar does not see. Recursion ends at the 64 levels that the scanner allowed. */
static nl_status check_values(nl_context *context, const char *where, const cJSON *value)
{
    nl_status status = NL_OK;
    if (cJSON_IsNumber(value) && !isfinite(value->valuedouble))
        return nl_fail(context, NL_ERROR_INPUT, "%s: a number%s%.80s is too large for a double",
                       where, value->string ? " at the key " : "",
                       value->string ? value->string : "");
    if (cJSON_IsObject(value))
        status = check_keys(context, where, value);
    for (const cJSON *item = value->child; item && status == NL_OK; item = item->next)
        status = check_values(context, where, item);
    return status;
}

nl_status nl_json_parse(nl_context *context, const char *where, const char *text, size_t size,
                        cJSON **value)
{
    *value = NULL;
    int64_t values;
    nl_status status = nl_json_scan(context, where, text, size, &values);
    if (status != NL_OK)
        return status;
    /* cJSON allocates outside the budget: hold its tree against what is left before building it. */
    int64_t need = values * (int64_t)sizeof(cJSON) + (int64_t)size;
    if (need > nl_memory_left(context))
        return nl_fail(context, NL_ERROR_MEMORY,
                       "%s: memory for JSON of %lld values: need %.1f MiB, have %.1f MiB", where,
                       (long long)values, (double)need / (1 << 20),
                       (double)nl_memory_left(context) / (1 << 20));
    const char *end = text;
    cJSON *parsed = cJSON_ParseWithLengthOpts(text, size, &end, false);
    if (!parsed)
        return nl_fail(context, NL_ERROR_INPUT, "%s: not JSON at byte %zu (or no memory for it)",
                       where, (size_t)(end - text));
    status = check_values(context, where, parsed);
    if (status != NL_OK)
        cJSON_Delete(parsed);
    else
        *value = parsed;
    return status;
}

static const char *describe(const cJSON *item, char *text, size_t size)
{
    if (cJSON_IsNumber(item))
        snprintf(text, size, "%.15g", item->valuedouble);
    else if (cJSON_IsString(item))
        snprintf(text, size, "\"%.60s\"", item->valuestring);
    else
        snprintf(text, size, "%s",
                 cJSON_IsBool(item)    ? cJSON_IsTrue(item) ? "true" : "false"
                 : cJSON_IsArray(item) ? "an array"
                 : cJSON_IsNull(item)  ? "null"
                                       : "an object");
    return text;
}

static nl_status unexpected(const nl_json *json, const char *key, const cJSON *item,
                            const char *expected)
{
    char found[80];
    return nl_fail(json->context, NL_ERROR_INPUT, "%s: \"%s\": expected %s, found %s", json->where,
                   key, expected, describe(item, found, sizeof(found)));
}

static const cJSON *find(const nl_json *json, const char *key)
{
    return cJSON_GetObjectItemCaseSensitive(json->object, key);
}

nl_status nl_json_bool(const nl_json *json, const char *key, bool *value)
{
    const cJSON *item = find(json, key);
    if (!item)
        return NL_OK;
    if (!cJSON_IsBool(item))
        return unexpected(json, key, item, "true or false");
    *value = cJSON_IsTrue(item);
    return NL_OK;
}

nl_status nl_json_int(const nl_json *json, const char *key, int64_t low, int64_t high,
                      int64_t *value)
{
    const cJSON *item = find(json, key);
    if (!item)
        return NL_OK;
    /* A JSON number is a double here: 2^53 may have been written as 2^53 + 1. */
    const int64_t exact = ((int64_t)1 << 53) - 1;
    low = NL_MAX(low, -exact);
    high = NL_MIN(high, exact);
    double x = cJSON_IsNumber(item) ? item->valuedouble : NAN;
    if (!(x >= (double)low && x <= (double)high && x == floor(x))) {
        char expected[80];
        snprintf(expected, sizeof(expected), "an integer from %lld to %lld", (long long)low,
                 (long long)high);
        return unexpected(json, key, item, expected);
    }
    *value = (int64_t)x;
    return NL_OK;
}

nl_status nl_json_double(const nl_json *json, const char *key, double low, double high,
                         double *value)
{
    const cJSON *item = find(json, key);
    if (!item)
        return NL_OK;
    double x = cJSON_IsNumber(item) ? item->valuedouble : NAN;
    if (!(x >= low && x <= high)) {
        char expected[80];
        snprintf(expected, sizeof(expected), "a number from %g to %g", low, high);
        return unexpected(json, key, item, expected);
    }
    *value = x;
    return NL_OK;
}

nl_status nl_json_string(const nl_json *json, const char *key, const char **value)
{
    const cJSON *item = find(json, key);
    if (!item)
        return NL_OK;
    if (!cJSON_IsString(item))
        return unexpected(json, key, item, "a string");
    *value = item->valuestring;
    return NL_OK;
}

nl_status nl_json_choice(const nl_json *json, const char *key, const char *const *names, int *value)
{
    const cJSON *item = find(json, key);
    if (!item)
        return NL_OK;
    for (int i = 0; cJSON_IsString(item) && names[i]; i++)
        if (strcmp(item->valuestring, names[i]) == 0) {
            *value = i;
            return NL_OK;
        }
    char expected[512] = "one of";
    for (int i = 0; names[i]; i++) {
        size_t used = strlen(expected);
        snprintf(expected + used, sizeof(expected) - used, "%s \"%s\"", i ? "," : "", names[i]);
    }
    return unexpected(json, key, item, expected);
}

nl_status nl_json_known_keys(const nl_json *json, const char *const *known)
{
    for (const cJSON *item = json->object->child; item; item = item->next) {
        int i = 0;
        while (known[i] && strcmp(known[i], item->string) != 0)
            i++;
        if (known[i])
            continue;
        const char *nearest = nl_nearest(item->string, known);
        return nl_fail(json->context, NL_ERROR_INPUT, "%s: unknown key \"%.80s\"%s%s%s",
                       json->where, item->string, nearest ? "; did you mean \"" : "",
                       nearest ? nearest : "", nearest ? "\"?" : "");
    }
    return NL_OK;
}
