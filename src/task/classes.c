/* SPDX-License-Identifier: MIT */
/* What -c says, from "church, 3-7, random" to a list of class numbers, and which class picture i gets. */
#include "nl_task.h"

#include <stdlib.h>
#include <string.h>

enum { MAX_CLASSES = 1 << 20 };

static nl_status add_class(nl_context *context, nl_classes *classes, int *room, int label)
{
    if (classes->count == *room) {
        int *longer = NULL;
        if (*room >= MAX_CLASSES)
            return nl_fail(context, NL_ERROR_USAGE, "--class: more than %d entries", MAX_CLASSES);
        int more = *room ? 2 * *room : 16;
        NL_CHECK(NL_NEW_ARRAY(context, "classes", more, &longer));
        if (classes->count)
            memcpy(longer, classes->list, (size_t)classes->count * sizeof(*longer));
        nl_free(context, classes->list);
        classes->list = longer;
        *room = more;
    }
    classes->list[classes->count++] = label;
    return NL_OK;
}

/* "3-7" with plain numbers; names may hold hyphens. */
static bool is_range(const char *item, long *first, long *last)
{
    char *end;
    if (*item < '0' || *item > '9')
        return false;
    *first = strtol(item, &end, 10);
    if (*end != '-' || end[1] < '0' || end[1] > '9')
        return false;
    *last = strtol(end + 1, &end, 10);
    return !*end;
}

static nl_status add_item(nl_context *context, const nl_config *config, const nl_class_index *names,
                          const char *item, nl_classes *classes, int *room)
{
    long first, last;
    int label = 0;
    if (!is_range(item, &first, &last)) {
        NL_CHECK(nl_config_class(context, config, names, item, &label));
        return add_class(context, classes, room, label);
    }
    if (first > last || last >= classes->classes)
        return nl_fail(context, NL_ERROR_USAGE,
                       "--class %s: expected a rising range within 0 to %d", item,
                       classes->classes - 1);
    for (long i = first; i <= last; i++)
        NL_CHECK(add_class(context, classes, room, (int)i));
    return NL_OK;
}

/* A name may hold commas: the whole text is tried as one class first. */
static nl_status add_list(nl_context *context, const nl_config *config, const nl_class_index *names,
                          const char *text, nl_classes *classes, int *room)
{
    nl_status status = NL_OK;
    char *copy = NULL;
    if (!strchr(text, ',') || nl_config_names_class(config, names, text))
        return add_item(context, config, names, text, classes, room);
    NL_TRY(nl_strdup(context, text, &copy));
    for (char *item = copy, *next; item; item = next) {
        if ((next = strchr(item, ',')))
            *next++ = '\0';
        item += strspn(item, " ");
        for (size_t n = strlen(item); n && item[n - 1] == ' '; n--)
            item[n - 1] = '\0';
        NL_TRY(add_item(context, config, names, item, classes, room));
    }
cleanup:
    nl_free(context, copy);
    return status;
}

nl_status nl_classes_parse(nl_context *context, const nl_config *config, const char *text,
                           nl_classes *classes)
{
    int room = 0, count = config->num_classes;
    nl_class_index *names = NULL;
    *classes = (nl_classes){.classes = count};
    if (!text)
        text = count ? "random" : "null";
    nl_status status = NL_OK;
    bool random = !strcmp(text, "random"), balanced = !strcmp(text, "balanced");
    if ((random || balanced) && !count)
        NL_TRY(nl_fail(context, NL_ERROR_USAGE, "--class %s: the model has no classes", text));
    if (random) {
        classes->random = true;
        return NL_OK;
    }
    for (int i = 0; balanced && i < count; i++)
        NL_TRY(add_class(context, classes, &room, i));
    if (!balanced) {
        NL_TRY(nl_class_index_create(context, config, &names));
        NL_TRY(add_list(context, config, names, text, classes, &room));
    }
cleanup:
    nl_class_index_free(context, names);
    if (status != NL_OK)
        nl_classes_free(context, classes);
    return status;
}

void nl_classes_free(nl_context *context, nl_classes *classes)
{
    nl_free(context, classes->list);
    *classes = (nl_classes){0};
}

int nl_classes_at(const nl_classes *classes, uint64_t seed, int64_t index)
{
    if (classes->random)
        return nl_draw_class(seed, index, classes->classes);
    return classes->list[index % classes->count];
}

const char *nl_class_text(const nl_config *config, int label, char *text, size_t size)
{
    const nl_class_name *name = config->class_names && label >= 0 && label < config->num_classes
                                    ? &config->class_names[label]
                                    : NULL;
    if (label == config->num_classes)
        return "null";
    if (name && (name->name || name->wnid))
        return name->name ? name->name : name->wnid;
    snprintf(text, size, "%d", label);
    return text;
}
