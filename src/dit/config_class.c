/* SPDX-License-Identifier: MIT */
/* Classes by index, wnid or name. */
#include <ctype.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <strings.h>

#include "nl_config.h"
#include "nl_json.h"

bool nl_config_learnt_null(const nl_config *config)
{
    return config->num_classes == 0 || config->class_dropout_prob > 0;
}

/* Whether the `length` characters at a are the text b; any case, "_" for " ". */
static bool same_text(const char *a, size_t length, const char *b)
{
    for (size_t i = 0; i < length; i++, b++) {
        int x = a[i] == '_' ? ' ' : tolower((unsigned char)a[i]);
        int y = *b == '_' ? ' ' : tolower((unsigned char)*b);
        if (x != y)
            return false;
    }
    return *b == 0;
}

/* Whether text is one of the names in a list such as "tench, Tinca tinca". */
static bool has_synonym(const char *names, const char *text)
{
    while (*names) {
        size_t length = strcspn(names, ",");
        if (same_text(names, length, text))
            return true;
        names += length;
        names += strspn(names, ", ");
    }
    return false;
}

typedef enum nl_match { MATCH_NONE, MATCH_SYNONYM, MATCH_WHOLE } nl_match;

static nl_match match(const nl_class_name *class, const char *text)
{
    if (class->wnid && strcasecmp(class->wnid, text) == 0)
        return MATCH_WHOLE;
    if (class->name && same_text(class->name, strlen(class->name), text))
        return MATCH_WHOLE;
    return class->name && has_synonym(class->name, text) ? MATCH_SYNONYM : MATCH_NONE;
}

static nl_status ambiguous(nl_context *context, const nl_config *config, const char *text,
                           nl_match best)
{
    char list[512] = "";
    for (int i = 0; i < config->num_classes; i++) {
        const nl_class_name *class = &config->class_names[i];
        size_t used = strlen(list);
        if (match(class, text) == best && used + 1 < sizeof(list))
            snprintf(list + used, sizeof(list) - used, "%s%d (%s)", used ? ", " : "", i,
                     class->wnid ? class->wnid : class->name);
    }
    return nl_fail(context, NL_ERROR_USAGE, "class \"%s\" is several classes: %s", text, list);
}

static nl_status unknown(nl_context *context, const nl_config *config, const char *text)
{
    enum { LISTED = 20 };
    nl_status status;
    const char **names = NULL;
    char list[1024] = "";
    if (config->num_classes == 0)
        return nl_fail(context, NL_ERROR_USAGE,
                       "class \"%s\": the model is unconditional, its only class is \"null\"",
                       text);
    int count = config->class_names ? config->num_classes : 0, n = 0;
    NL_TRY(NL_NEW_ARRAY(context, "class names", 2 * (int64_t)count + 1, &names));
    for (int i = 0; i < count; i++) {
        const nl_class_name *class = &config->class_names[i];
        size_t used = strlen(list);
        if (class->name)
            names[n++] = class->name;
        if (class->wnid)
            names[n++] = class->wnid;
        if (count <= LISTED)
            snprintf(list + used, sizeof(list) - used, "%s%d %s", used ? ", " : "; they are ", i,
                     class->name ? class->name : class->wnid);
    }
    names[n] = NULL;
    const char *nearest = nl_nearest(text, names);
    status = nl_fail(context, NL_ERROR_USAGE,
                     "class \"%s\": the model has classes 0 to %d%s%s%s%s%s", text,
                     config->num_classes - 1, nl_config_learnt_null(config) ? ", and \"null\"" : "",
                     nearest ? "; did you mean \"" : "", nearest ? nearest : "",
                     nearest ? "\"?" : "", nearest ? "" : list);
cleanup:
    nl_free(context, names);
    return status;
}

/* "name:null": a class that is called like something else that -c takes. */
static const char by_name[] = "name:";
/* "number:2": the third class, whatever the classes are called. */
static const char by_number[] = "number:";

/* ---- Exact names in the order of strcmp */

typedef struct class_entry {
    const char *text;
    int label;
} class_entry;

struct nl_class_index {
    int64_t count;
    class_entry *names; /* of the configuration */
};

static int by_text(const void *a, const void *b)
{
    const class_entry *x = a, *y = b;
    int order = strcmp(x->text, y->text);
    return order ? order : (x->label > y->label) - (x->label < y->label);
}

nl_status nl_class_index_create(nl_context *context, const nl_config *config, nl_class_index **out)
{
    nl_class_index *index = NULL;
    nl_status status;
    int64_t count = config->class_names ? config->num_classes : 0;
    *out = NULL;
    NL_TRY(NL_NEW(context, "the names of classes", &index));
    NL_TRY(NL_NEW_ARRAY(context, "the names of classes", 2 * count, &index->names));
    for (int i = 0; i < count; i++) {
        const nl_class_name *class = &config->class_names[i];
        const char *const texts[] = {class->wnid, class->name};
        for (int k = 0; k < 2; k++)
            if (texts[k])
                index->names[index->count++] = (class_entry){texts[k], i};
    }
    if (index->count)
        qsort(index->names, (size_t)index->count, sizeof(class_entry), by_text);
    *out = index;
    index = NULL;
cleanup:
    nl_class_index_free(context, index);
    return status;
}

void nl_class_index_free(nl_context *context, nl_class_index *index)
{
    if (index)
        nl_free(context, index->names);
    nl_free(context, index);
}

/* The one class with exactly this wnid or name; -1: none, or several. */
static int exact_class(const nl_class_index *index, const char *text)
{
    int64_t low = 0, high = index->count;
    while (low < high) {
        int64_t middle = low + (high - low) / 2;
        if (strcmp(index->names[middle].text, text) < 0)
            low = middle + 1;
        else
            high = middle;
    }
    const class_entry *first = index->names + low, *end = index->names + index->count;
    for (const class_entry *other = first; other < end && !strcmp(other->text, text); other++)
        if (other->label != first->label)
            return -1;
    return first < end && !strcmp(first->text, text) ? first->label : -1;
}

/* ---- A class by what people call it */

bool nl_class_name_equal(const nl_class_name *a, const nl_class_name *b)
{
    const char *const of_a[] = {a->wnid, a->name}, *const of_b[] = {b->wnid, b->name};
    for (int i = 0; i < 4; i++)
        if (of_a[i / 2] && of_b[i % 2] && strcmp(of_a[i / 2], of_b[i % 2]) == 0)
            return true;
    return false;
}

int nl_config_other_class(const nl_config *a, const nl_config *b)
{
    int both = NL_MIN(a->num_classes, b->num_classes);
    if (!a->class_names || !b->class_names)
        return -1;
    for (int i = 0; i < both; i++)
        if (!nl_class_name_equal(&a->class_names[i], &b->class_names[i]))
            return i;
    return a->num_classes == b->num_classes ? -1 : both;
}

static nl_status null_class(nl_context *context, const nl_config *config, int *index)
{
    if (!nl_config_learnt_null(config))
        return nl_fail(context, NL_ERROR_USAGE,
                       "class \"null\": the model was trained without one (class_dropout_prob "
                       "0): it has classes 0 to %d",
                       config->num_classes - 1);
    *index = config->num_classes;
    return NL_OK;
}

/* As pictures have it, where the null class is the last one. */
static nl_status numbered_class(nl_context *context, const nl_config *config, const char *text,
                                int *index)
{
    const char *digits = text + strlen(by_number);
    char *end;
    long number = strtol(digits, &end, 10);
    if (!isdigit((unsigned char)digits[0]) || *end || number > config->num_classes)
        return nl_fail(context, NL_ERROR_USAGE,
                       "class number %s: expected a number from 0 to %d, which is \"null\"", digits,
                       config->num_classes);
    *index = (int)number;
    return number == config->num_classes ? null_class(context, config, index) : NL_OK;
}

/* How many classes a name fits best, and the first of them. */
static int search_name(const nl_config *config, const char *text, nl_match *best, int *index)
{
    int matches = 0;
    *best = MATCH_NONE;
    for (int i = 0; config->class_names && i < config->num_classes; i++) {
        nl_match quality = match(&config->class_names[i], text);
        if (quality > *best)
            matches = 0;
        if (quality == MATCH_NONE || quality < *best)
            continue;
        *best = quality;
        if (!matches++)
            *index = i;
    }
    return matches;
}

bool nl_config_names_class(const nl_config *config, const nl_class_index *names, const char *text)
{
    nl_match best;
    int index;
    if (strncmp(text, by_name, strlen(by_name)) == 0)
        text += strlen(by_name);
    return exact_class(names, text) >= 0 || search_name(config, text, &best, &index) == 1;
}

nl_status nl_config_class(nl_context *context, const nl_config *config, const nl_class_index *names,
                          const char *text, int *index)
{
    bool named = strncmp(text, by_name, strlen(by_name)) == 0;
    if (strncmp(text, by_number, strlen(by_number)) == 0)
        return numbered_class(context, config, text, index);
    if (named)
        text += strlen(by_name);
    if (named || strcasecmp(text, "null") != 0) {
        int exact = exact_class(names, text);
        if (exact >= 0) {
            if (!named && isdigit((unsigned char)text[0]) && strtol(text, NULL, 10) != exact)
                nl_log(context, NL_LOG_WARNING,
                       "class \"%s\": taken is the class of that name, which has the number %d",
                       text, exact);
            *index = exact;
            return NL_OK;
        }
    }
    if (!named && strcasecmp(text, "null") == 0)
        return null_class(context, config, index);
    if (config->num_classes == 0)
        return unknown(context, config, text);
    char *end = NULL;
    if (!named && isdigit((unsigned char)text[0])) {
        long number = strtol(text, &end, 10);
        if (*end == 0 && number < config->num_classes) {
            *index = (int)number;
            return NL_OK;
        }
    }
    nl_match best;
    int found = 0, matches = search_name(config, text, &best, &found);
    if (matches == 0)
        return unknown(context, config, text);
    if (matches > 1)
        return ambiguous(context, config, text, best);
    *index = found;
    return NL_OK;
}
