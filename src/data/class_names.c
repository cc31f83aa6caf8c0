/* SPDX-License-Identifier: MIT */
/* The file of class names that encode is given: a folder and its name a line, with blanks, a tab or a comma between. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "encode.h"

typedef struct part {
    const char *text;
    size_t length;
} part;

/* A folder of the source, in the order of their names. */
typedef struct folder {
    const char *id;
    int label;
} folder;

typedef struct reading {
    const nl_encode_job *job;
    folder *folders; /* sorted */
    char **names;    /* [classes] NULL: not named yet */
} reading;

static bool separates(char c)
{
    return c == ' ' || c == '\t' || c == ',';
}

/* Without blanks at either end. */
static part trim(part p)
{
    while (p.length && separates(*p.text))
        p = (part){p.text + 1, p.length - 1};
    while (p.length && strchr(" \t\r", p.text[p.length - 1]))
        p.length--;
    return p;
}

/* The closing quote of the quoted field that p begins with, in which "" is a quote; NULL: there is none. */
static const char *closing_quote(part p)
{
    const char *end = p.text + p.length;
    for (const char *c = p.text + 1; p.length && *p.text == '"' && c < end; c++) {
        if (*c != '"')
            continue;
        if (c + 1 == end || c[1] != '"')
            return c;
        c++;
    }
    return NULL;
}

static int by_id(const void *a, const void *b)
{
    return strcmp(((const folder *)a)->id, ((const folder *)b)->id);
}

static int id_order(const void *key, const void *member)
{
    const part *p = key;
    const char *id = ((const folder *)member)->id;
    int order = strncmp(p->text, id, p->length);
    return order ? order : -(int)(id[p->length] != '\0');
}

static const folder *find(const reading *r, part id)
{
    return bsearch(&id, r->folders, (size_t)r->job->source->classes, sizeof(folder), id_order);
}

/* "n01440764 tench, Tinca tinca", or two fields of CSV: the longest folder that the line begins with, or NULL.
 * head: that folder, or the line's first word; name: the rest. */
static const folder *split(const reading *r, part line, part *head, part *name)
{
    const folder *found = NULL;
    const char *quote = closing_quote(line), *end = line.text + line.length;
    *head = *name = (part){0};
    for (const char *c = quote ? quote : line.text + 1; c <= end; c++) {
        part word = {line.text, (size_t)(c - line.text)};
        if (quote)
            word = (part){line.text + 1, word.length - 1};
        else if (c < end && !separates(*c))
            continue;
        const folder *one = find(r, word);
        if (one || !head->length) {
            *head = word;
            *name = trim((part){c + (quote != NULL), (size_t)(end - c) - (quote != NULL)});
        }
        found = one ? one : found;
        if (quote)
            break;
    }
    return found;
}

/* Allocated: the name, out of its quotes; NULL: nothing is left of it. */
static nl_status copy_name(nl_context *context, part name, char **copy)
{
    bool quoted = name.length && closing_quote(name) == name.text + name.length - 1;
    if (quoted)
        name = (part){name.text + 1, name.length - 2};
    if (!name.length)
        return NL_OK;
    nl_status status = nl_format(context, copy, "%.*s", (int)name.length, name.text);
    if (status != NL_OK || !quoted)
        return status;
    char *to = *copy;
    for (const char *c = to; *c; c++) {
        *to++ = *c;
        c += c[0] == '"' && c[1] == '"';
    }
    *to = '\0';
    return NL_OK;
}

/* ---- What does not fit is named, as many to a warning as it has room for, a thousand or so in all */

typedef struct list {
    const nl_encode_job *job;
    const char *what;
    char text[NL_MESSAGE_SIZE / 2];
    int warnings;
    int64_t more; /* that are counted alone */
} list;

static void say(list *l)
{
    if (l->text[0])
        nl_log(l->job->context, NL_LOG_WARNING, "%s: %s: %s", l->job->options->class_names, l->what,
               l->text);
    l->warnings += l->text[0] != '\0';
    l->text[0] = '\0';
}

static void say_last(list *l)
{
    say(l);
    if (l->more)
        nl_log(l->job->context, NL_LOG_WARNING, "%s: %s: and %lld more",
               l->job->options->class_names, l->what, (long long)l->more);
}

static void add(list *l, part item)
{
    enum { MOST = 100, WARNINGS = 10 };
    size_t used = strlen(l->text);
    if (used + MOST + 3 > sizeof(l->text)) {
        say(l);
        used = 0;
    }
    if (l->warnings == WARNINGS) {
        l->more++;
        return;
    }
    snprintf(l->text + used, sizeof(l->text) - used, "%s%.*s", used ? ", " : "",
             (int)NL_MIN(item.length, MOST), item.text);
}

static nl_status read_lines(const reading *r, part text)
{
    const nl_encode_job *job = r->job;
    list strangers = {.job = job, .what = "lines without a folder"};
    list again = {.job = job, .what = "folders with a second line, of which the first counts"};
    for (part line, head, name; text.length;) {
        const char *stop = memchr(text.text, '\n', text.length);
        line = (part){text.text, stop ? (size_t)(stop - text.text) : text.length};
        text.text += line.length + (stop != NULL);
        text.length -= line.length + (stop != NULL);
        line = trim(line);
        if (!line.length)
            continue;
        const folder *one = split(r, line, &head, &name);
        if (!one)
            add(&strangers, head);
        else if (r->names[one->label])
            add(&again, head);
        else
            NL_CHECK(copy_name(job->context, name, &r->names[one->label]));
    }
    say_last(&strangers);
    say_last(&again);
    return NL_OK;
}

static nl_status check_text(const nl_encode_job *job, part text)
{
    const char *where = job->options->class_names, *what = NULL;
    part start = trim(text);
    while (start.length && *start.text == '\n')
        start = trim((part){start.text + 1, start.length - 1});
    if (start.length && (*start.text == '{' || *start.text == '['))
        what = "JSON";
    else if (text.length && memchr(text.text, '\0', text.length))
        what = "zero bytes (UTF-16?)";
    return what ? nl_fail(job->context, NL_ERROR_INPUT,
                          "%s: %s: expected text, 'FOLDER NAME' or 'FOLDER,NAME' a line", where,
                          what)
                : NL_OK;
}

nl_status nl_class_names_parse(const nl_encode_job *job, const char *start, size_t size,
                               char **names)
{
    nl_context *context = job->context;
    const nl_source *source = job->source;
    reading r = {.job = job, .names = names};
    list unnamed = {.job = job, .what = "no name for the folders"};
    part text = {start, size};
    nl_status status;
    if (size >= 3 && memcmp(start, "\xef\xbb\xbf", 3) == 0) /* byte-order mark */
        text = (part){start + 3, size - 3};
    NL_TRY(check_text(job, text));
    NL_TRY(NL_NEW_ARRAY(context, "folders", source->classes, &r.folders));
    for (int i = 0; i < source->classes; i++)
        r.folders[i] = (folder){source->class_ids[i], i};
    if (source->classes)
        qsort(r.folders, (size_t)source->classes, sizeof(folder), by_id);
    NL_TRY(read_lines(&r, text));
    for (int i = 0; i < source->classes; i++)
        if (!names[i])
            add(&unnamed, (part){source->class_ids[i], strlen(source->class_ids[i])});
    say_last(&unnamed);
cleanup:
    nl_free(context, r.folders);
    return status;
}
