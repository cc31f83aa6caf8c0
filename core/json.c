/* SPDX-License-Identifier: MIT */
/* JSON of foreign files on top of cJSON: strict grammar, no key twice, members by name with type and range. */
#include "nl_json.h"

#include <errno.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "json_scan.h"
#include "nl_utf8.h"

/* ---- Reading */

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
        NL_CHECK(NL_NEW_ARRAY(context, "the keys of a JSON object", count, &many));
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

/* A place in a scanned text. */
typedef struct reader {
    const char *text;
    size_t size, at;
} reader;

/* The next number of the text. */
static const char *next_number(reader *r, size_t *length)
{
    for (; r->at < r->size && !strchr("-0123456789", r->text[r->at]); r->at++)
        if (r->text[r->at] == '"') /* over the string */
            for (r->at++; r->text[r->at] != '"'; r->at++)
                r->at += r->text[r->at] == '\\';
    size_t start = r->at;
    while (r->at < r->size && strchr("+-.0123456789eE", r->text[r->at]))
        r->at++;
    *length = r->at - start;
    return r->text + start;
}

/* Large integers of the tree, whose numbers come in the order of the text, become their digits. False: no memory. */
static bool keep_digits(cJSON *value, reader *r)
{
    if (cJSON_IsNumber(value)) {
        size_t length;
        const char *number = next_number(r, &length);
        if (!nl_json_is_large(number, length))
            return true;
        if (!(value->valuestring = cJSON_malloc(length + 1)))
            return false;
        memcpy(value->valuestring, number, length);
        value->valuestring[length] = '\0';
        value->type = (value->type & ~0xFF) | cJSON_Raw;
    }
    for (cJSON *item = value->child; item; item = item->next)
        if (!keep_digits(item, r))
            return false;
    return true;
}

/* The text with bytes in place of their escapes, into `to`, which has room for all of it; its length. */
static size_t put_bytes(const char *text, size_t size, char *to)
{
    const char *start = to;
    for (size_t at = 0, n; at < size; at += n) {
        int byte;
        n = nl_json_escape(text + at, size - at, &byte);
        if (n && byte > 0) {
            *to++ = (char)byte;
            continue;
        }
        n = n ? n : text[at] == '\\' ? 2 : 1;
        memcpy(to, text + at, n);
        to += n;
    }
    return (size_t)(to - start);
}

nl_status nl_json_parse(nl_context *context, const char *where, const char *text, size_t size,
                        cJSON **value)
{
    nl_status status;
    nl_json_counts counts;
    cJSON *parsed = NULL;
    char *copy = NULL;
    *value = NULL;
    NL_TRY(nl_json_scan(context, where, text, size, &counts));
    /* cJSON allocates outside the budget: hold its tree against what is left before building it. */
    int64_t need = counts.values * (int64_t)sizeof(cJSON) + (int64_t)size;
    if (need > nl_memory_left(context))
        NL_TRY(nl_fail(context, NL_ERROR_MEMORY,
                       "%s: memory for JSON of %lld values: need %.1f MiB, have %.1f MiB", where,
                       (long long)counts.values, (double)need / (1 << 20),
                       (double)nl_memory_left(context) / (1 << 20)));
    if (counts.bytes) {
        NL_TRY(NL_NEW_ARRAY(context, "JSON", (int64_t)size, &copy));
        size = put_bytes(text, size, copy);
        text = copy;
    }
    const char *end = text;
    parsed = cJSON_ParseWithLengthOpts(text, size, &end, false);
    if (!parsed || (counts.large && !keep_digits(parsed, &(reader){text, size, 0})))
        NL_TRY(nl_fail(context, NL_ERROR_INPUT, "%s: not JSON at byte %zu (or no memory for it)",
                       where, (size_t)(end - text)));
    NL_TRY(check_values(context, where, parsed));
    *value = parsed;
    parsed = NULL;
cleanup:
    cJSON_Delete(parsed);
    nl_free(context, copy);
    return status;
}

/* ---- Writing */

/* Bytes of a printed text that are not UTF-8 become their escapes; to: NULL to count alone. */
static size_t escape(const char *text, char *to)
{
    size_t count = 0;
    for (size_t left = strlen(text), n; left > 0; text += n, left -= n) {
        uint32_t code;
        char escaped[8];
        const char *from = text;
        size_t bytes = n = (size_t)nl_utf8_decode(text, left, &code);
        if (n == 0) {
            n = 1;
            bytes = 6;
            snprintf(escaped, sizeof(escaped), "\\udc%02x", (unsigned char)*text);
            from = escaped;
        }
        if (to)
            memcpy(to + count, from, bytes);
        count += bytes;
    }
    return count;
}

char *nl_json_print(const cJSON *value, bool lines)
{
    char *text = value ? (lines ? cJSON_Print : cJSON_PrintUnformatted)(value) : NULL;
    if (!text || nl_utf8_valid(text))
        return text;
    size_t size = escape(text, NULL);
    char *escaped = cJSON_malloc(size + 1);
    if (escaped) {
        escape(text, escaped);
        escaped[size] = '\0';
    }
    cJSON_free(text);
    return escaped;
}

/* ---- Members by name */

static const char *describe(const cJSON *item, char *text, size_t size)
{
    if (cJSON_IsNumber(item))
        snprintf(text, size, "%.15g", item->valuedouble);
    else if (cJSON_IsRaw(item))
        snprintf(text, size, "%s", item->valuestring);
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

bool nl_json_number(const cJSON *item, double *value)
{
    if (!cJSON_IsNumber(item) && !cJSON_IsRaw(item))
        return false;
    *value = item->valuedouble;
    return true;
}

bool nl_json_whole(const cJSON *item, int64_t *value)
{
    char *end;
    double x;
    errno = 0;
    if (cJSON_IsRaw(item)) {
        *value = strtoll(item->valuestring, &end, 10);
        return !*end && !errno;
    }
    if (!nl_json_number(item, &x) || !(fabs(x) < 0x1p53 && x == floor(x)))
        return false;
    *value = (int64_t)x;
    return true;
}

nl_status nl_json_int(const nl_json *json, const char *key, int64_t low, int64_t high,
                      int64_t *value)
{
    const cJSON *item = find(json, key);
    int64_t x;
    if (!item)
        return NL_OK;
    if (!nl_json_whole(item, &x) || x < low || x > high) {
        char expected[80];
        snprintf(expected, sizeof(expected), "an integer from %lld to %lld", (long long)low,
                 (long long)high);
        return unexpected(json, key, item, expected);
    }
    *value = x;
    return NL_OK;
}

nl_status nl_json_double(const nl_json *json, const char *key, double low, double high,
                         double *value)
{
    const cJSON *item = find(json, key);
    if (!item)
        return NL_OK;
    double x;
    if (!nl_json_number(item, &x) || !(x >= low && x <= high)) {
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
