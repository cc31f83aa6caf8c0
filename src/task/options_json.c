/* SPDX-License-Identifier: MIT */
/* Options from JSON and into it, by the same table: --requests, --options, parameters stored in pictures. */
#include "nl_options.h"

#include <stdlib.h>
#include <string.h>

nl_status nl_texts_add(nl_texts *texts, char *text)
{
    char **items;
    nl_status status = NL_NEW_ARRAY(texts->context, "texts", texts->count + 1, &items);
    if (status != NL_OK) {
        nl_free(texts->context, text);
        return status;
    }
    if (texts->count)
        memcpy(items, texts->items, (size_t)texts->count * sizeof(*items));
    nl_free(texts->context, texts->items);
    texts->items = items;
    items[texts->count++] = text;
    return NL_OK;
}

void nl_texts_free(nl_texts *texts)
{
    for (int i = 0; i < texts->count; i++)
        nl_free(texts->context, texts->items[i]);
    nl_free(texts->context, texts->items);
    *texts = (nl_texts){.context = texts->context};
}

/* cfg_scale and cfg-scale are one name. */
static bool same_name(const char *key, const char *name)
{
    for (; *key && *name; key++, name++)
        if (*key != *name && !(*key == '_' && *name == '-'))
            return false;
    return !*key && !*name;
}

/* where 0: whatever may stand there or not */
static const nl_option *find_option(const nl_option *rows, const char *key, unsigned where)
{
    for (const nl_option *o = rows; o->name; o++)
        if ((!where || o->where & where) &&
            (same_name(key, o->name) || (key[0] == o->letter && key[0] && !key[1])))
            return o;
    return NULL;
}

static bool listed(const char *key, const char *const *names)
{
    for (; names && *names; names++)
        if (!strcmp(key, *names))
            return true;
    return false;
}

static nl_status unknown_key(nl_context *context, const nl_option *rows, const char *key,
                             unsigned where)
{
    const char *names[NL_MOST_OPTIONS];
    char text[64];
    int count = 0;
    if (find_option(rows, key, 0))
        return nl_fail(context, NL_ERROR_USAGE, "key \"%s\": it cannot be given here", key);
    for (const nl_option *o = rows; o->name; o++)
        if (o->where & where)
            names[count++] = o->name;
    names[count] = NULL;
    snprintf(text, sizeof(text), "%s", key);
    for (char *c = text; *c; c++)
        *c = *c == '_' ? '-' : *c;
    const char *near = nl_nearest(text, names);
    if (!near)
        return nl_fail(context, NL_ERROR_USAGE, "unknown key \"%s\"", key);
    snprintf(text, sizeof(text), "%s", near);
    for (char *c = text; *c; c++)
        *c = *c == '-' ? '_' : *c;
    return nl_fail(context, NL_ERROR_USAGE, "unknown key \"%s\"; did you mean \"%s\"?", key, text);
}

typedef struct nl_number_text {
    char text[32];
} nl_number_text;

static const char by_number[] = "number:";

/* A short text that reads back as the number. */
static nl_number_text number_text(double number)
{
    nl_number_text t;
    snprintf(t.text, sizeof(t.text), "%.15g", number);
    if (strtod(t.text, NULL) != number)
        snprintf(t.text, sizeof(t.text), "%.17g", number);
    return t;
}

/* The text of a number or a string, into `number` where it has none; NULL: it is something else. */
static const char *scalar_text(const nl_option *option, const cJSON *value, nl_number_text *number)
{
    if (cJSON_IsString(value) || cJSON_IsRaw(value))
        return value->valuestring;
    if (!cJSON_IsNumber(value))
        return NULL;
    nl_number_text plain = number_text(value->valuedouble);
    snprintf(number->text, sizeof(number->text), "%s%.24s",
             option->kind == NL_OPTION_CLASS ? by_number : "", plain.text);
    return number->text;
}

/* The items with commas between. */
static nl_status list_text(nl_context *context, const nl_option *option, const char *key,
                           const cJSON *list, char **text)
{
    nl_number_text number;
    int64_t size = 0;
    for (const cJSON *item = list->child; item; item = item->next) {
        const char *one = scalar_text(option, item, &number);
        if (!one)
            return nl_fail(context, NL_ERROR_USAGE,
                           "key \"%s\": expected numbers and strings in the list", key);
        size += (int64_t)strlen(one) + 1;
    }
    nl_status status = NL_NEW_ARRAY(context, "a list", size, text);
    char *to = status == NL_OK ? *text : NULL;
    for (const cJSON *item = list->child; item && to; item = item->next) {
        const char *one = scalar_text(option, item, &number);
        size_t length = strlen(one);
        memcpy(to, one, length);
        to[length] = item->next ? ',' : '\0';
        to += length + 1;
    }
    return status;
}

/* A number, a string or a list of them as the text that the command line would take. */
static nl_status value_text(nl_context *context, const nl_option *option, const char *key,
                            const cJSON *value, char **text)
{
    nl_number_text number;
    const char *one = scalar_text(option, value, &number);
    if (one)
        return nl_strdup(context, one, text);
    if (!cJSON_IsArray(value) || !value->child)
        return nl_fail(context, NL_ERROR_USAGE,
                       "key \"%s\": expected a number, a string or a list of them", key);
    return list_text(context, option, key, value, text);
}

nl_status nl_options_apply(nl_context *context, const nl_command *command, const char *place,
                           const cJSON *object, unsigned where, const char *const *ignored,
                           nl_texts *texts, void *values)
{
    nl_status status = NL_OK;
    nl_option rows[NL_MOST_OPTIONS];
    nl_options_of(command, rows);
    if (!cJSON_IsObject(object))
        return nl_fail(context, NL_ERROR_USAGE, "%s: expected an object {...}", place);
    for (const cJSON *member = object->child; member; member = member->next) {
        if (listed(member->string, ignored))
            continue;
        const nl_option *option = find_option(rows, member->string, where);
        if (!option) {
            NL_TRY(unknown_key(context, rows, member->string, where));
        } else if (option->kind == NL_OPTION_FLAG) {
            if (!cJSON_IsBool(member))
                NL_TRY(nl_fail(context, NL_ERROR_USAGE, "key \"%s\": expected true or false",
                               member->string));
            *(bool *)((char *)values + option->offset) = cJSON_IsTrue(member);
        } else {
            char *text = NULL;
            NL_TRY(value_text(context, option, member->string, member, &text));
            NL_TRY(nl_texts_add(texts, text));
            NL_TRY(nl_option_set(context, option, text, values));
        }
    }
cleanup:
    return status == NL_OK ? NL_OK : nl_fail_in(context, status, "%s", place);
}

/* Seeds beyond 2^53 do not survive as JSON numbers and become strings. */
static cJSON *seed_json(uint64_t seed)
{
    char text[24];
    snprintf(text, sizeof(text), "%llu", (unsigned long long)seed);
    return seed >> 53 ? cJSON_CreateString(text) : cJSON_CreateRaw(text);
}

cJSON *nl_class_json(const char *text)
{
    const char *digits = text + strlen(by_number);
    if (strncmp(text, by_number, strlen(by_number)) != 0 || !*digits ||
        digits[strspn(digits, "0123456789")])
        return cJSON_CreateString(text);
    return cJSON_CreateNumber(strtod(digits, NULL));
}

static cJSON *option_json(const nl_option *option, const void *place)
{
    char text[112];
    const double *real = place;
    const int64_t *integer = place;
    switch (option->kind) {
    case NL_OPTION_FLAG:
        return cJSON_CreateBool(*(const bool *)place);
    case NL_OPTION_INT:
    case NL_OPTION_BYTES:
        return cJSON_CreateNumber((double)*integer);
    case NL_OPTION_SEED:
        return seed_json(*(const uint64_t *)place);
    case NL_OPTION_REAL:
        return cJSON_CreateNumber(*real);
    case NL_OPTION_INTERVAL:
        snprintf(text, sizeof(text), "%s,%s", number_text(real[0]).text, number_text(real[1]).text);
        return cJSON_CreateString(text);
    case NL_OPTION_PLACE:
        snprintf(text, sizeof(text), "%s,%s,%s", number_text(real[0]).text,
                 number_text(real[1]).text, number_text(real[2]).text);
        return cJSON_CreateString(text);
    case NL_OPTION_EXTENT:
        snprintf(text, sizeof(text), "%lldx%lld", (long long)integer[0], (long long)integer[1]);
        return cJSON_CreateString(text);
    case NL_OPTION_CLASS:
        return nl_class_json(*(const char *const *)place);
    default:
        return cJSON_CreateString(*(const char *const *)place);
    }
}

static size_t value_size(nl_option_kind kind)
{
    switch (kind) {
    case NL_OPTION_FLAG:
        return sizeof(bool);
    case NL_OPTION_INTERVAL:
        return 2 * sizeof(double);
    case NL_OPTION_PLACE:
        return 3 * sizeof(double);
    case NL_OPTION_EXTENT:
        return 2 * sizeof(int64_t);
    case NL_OPTION_CHOICE:
    case NL_OPTION_TEXT:
    case NL_OPTION_CLASS:
    case NL_OPTION_FILE:
        return sizeof(char *);
    default:
        return sizeof(int64_t);
    }
}

bool nl_options_to_json(const nl_command *command, const void *values, const void *defaults,
                        unsigned where, cJSON *object)
{
    nl_option rows[NL_MOST_OPTIONS];
    for (const nl_option *o = nl_options_of(command, rows); o->name; o++) {
        const char *value = (const char *)values + o->offset;
        const char *usual = (const char *)defaults + o->offset;
        if (!(o->where & where) || !memcmp(value, usual, value_size(o->kind)))
            continue;
        char key[64];
        snprintf(key, sizeof(key), "%s", o->name);
        for (char *c = key; *c; c++)
            *c = *c == '-' ? '_' : *c;
        cJSON *json = option_json(o, value);
        if (!json || !cJSON_AddItemToObject(object, key, json)) {
            cJSON_Delete(json);
            return false;
        }
    }
    return true;
}
