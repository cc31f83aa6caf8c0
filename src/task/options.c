/* SPDX-License-Identifier: MIT */
/* Reads a command line by the command's table: values, ranges, choices, suggestions for a misspelled name. */
#include "nl_options.h"

#include <errno.h>
#include <getopt.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

enum { MAX_OPTIONS = NL_MOST_OPTIONS };

static void add_rows(const nl_option *table, size_t offset, unsigned where, nl_option *rows,
                     int *count)
{
    for (const nl_option *o = table; o->name || o->include; o++) {
        if (o->include) {
            add_rows(o->include, offset + o->offset, where | o->where, rows, count);
            continue;
        }
        int at = 0;
        while (at < *count && strcmp(rows[at].name, o->name) != 0)
            at++;
        if (at == NL_MOST_OPTIONS - 1)
            return; /* --help, the last of every table, would not be there */
        rows[at] = *o;
        rows[at].offset += offset;
        rows[at].where |= where;
        *count = NL_MAX(*count, at + 1);
    }
}

const nl_option *nl_options_of(const nl_command *command, nl_option rows[NL_MOST_OPTIONS])
{
    int count = 0;
    add_rows(command->options, 0, 0, rows, &count);
    rows[count] = (nl_option){0};
    return rows;
}

static void *place_of(const nl_option *option, const void *values)
{
    return (char *)(uintptr_t)values + option->offset;
}

static nl_status expected(nl_context *context, const nl_option *option, const char *text,
                          const char *what)
{
    return nl_fail(context, NL_ERROR_USAGE, "--%s %s: expected %s", option->name, text, what);
}

static nl_status out_of_range(nl_context *context, const nl_option *option, const char *text)
{
    const char *what =
        option->kind == NL_OPTION_REAL || option->kind == NL_OPTION_INT ? "" : option->argument;
    return nl_fail(context, NL_ERROR_USAGE, "--%s %s: expected %s%s%.15g to %.15g", option->name,
                   text, what, *what ? ", " : "", option->low, option->high);
}

static bool parse_int(const char *text, char **end, int64_t *value)
{
    errno = 0;
    *value = strtoll(text, end, 10);
    return *end != text && errno == 0;
}

static bool parse_real(const char *text, char **end, double *value)
{
    *value = strtod(text, end);
    return *end != text && isfinite(*value);
}

static nl_status set_numbers(nl_context *context, const nl_option *option, const char *text,
                             void *place)
{
    char *end;
    if (option->kind == NL_OPTION_INT) {
        int64_t value;
        if (!parse_int(text, &end, &value) || *end || value < option->low || value > option->high)
            return out_of_range(context, option, text);
        *(int64_t *)place = value;
    } else if (option->kind == NL_OPTION_REAL) {
        double value;
        if (!parse_real(text, &end, &value) || *end || value < option->low || value > option->high)
            return out_of_range(context, option, text);
        *(double *)place = value;
    } else if (option->kind == NL_OPTION_INTERVAL) {
        double low, high;
        if (!parse_real(text, &end, &low) || *end != ',' || !parse_real(end + 1, &end, &high) ||
            *end || low < option->low || high > option->high || low > high)
            return nl_fail(context, NL_ERROR_USAGE,
                           "--%s %s: expected %s with %.15g <= A <= B <= %.15g", option->name, text,
                           option->argument, option->low, option->high);
        ((double *)place)[0] = low;
        ((double *)place)[1] = high;
    } else if (option->kind == NL_OPTION_PLACE) {
        const char *whole = text;
        double values[3];
        for (int i = 0; i < 3; i++) {
            if (!parse_real(text, &end, &values[i]) || *end != (i < 2 ? ',' : 0) ||
                values[i] < option->low || values[i] > option->high || values[0] <= 0)
                return expected(context, option, whole,
                                "three numbers with commas between them: a side above 0 and at "
                                "most 1, and its centre from -0.5 to 0.5");
            text = end + 1;
        }
        memcpy(place, values, sizeof(values));
    } else {
        int64_t rows, columns;
        bool good = parse_int(text, &end, &rows);
        columns = rows;
        if (good && (*end == 'x' || *end == 'X'))
            good = parse_int(end + 1, &end, &columns);
        if (!good || *end || rows < option->low || columns < option->low || rows > option->high ||
            columns > option->high)
            return out_of_range(context, option, text);
        ((int64_t *)place)[0] = rows;
        ((int64_t *)place)[1] = columns;
    }
    return NL_OK;
}

static nl_status set_bytes(nl_context *context, const nl_option *option, const char *text,
                           void *place)
{
    char *end;
    double value;
    bool good = parse_real(text, &end, &value) && value > 0;
    if (good && *end) {
        const char *units = "KMGT", *unit = strchr(units, *end & ~0x20);
        good = unit && *unit && (!end[1] || !strcmp(end + 1, "B") || !strcmp(end + 1, "iB"));
        if (good)
            value = ldexp(value, 10 * (int)(unit - units + 1));
    }
    if (!good || value >= 0x1p62)
        return expected(context, option, text, "bytes, such as 512M or 4G");
    *(int64_t *)place = (int64_t)value;
    return NL_OK;
}

static nl_status set_choice(nl_context *context, const nl_option *option, const char *text,
                            void *place)
{
    char list[512] = "";
    for (int i = 0; option->choices[i]; i++) {
        if (!strcmp(option->choices[i], text)) {
            *(const char **)place = option->choices[i];
            return NL_OK;
        }
        size_t used = strlen(list);
        snprintf(list + used, sizeof(list) - used, "%s%s", i ? ", " : "", option->choices[i]);
    }
    const char *near = nl_nearest(text, option->choices);
    return nl_fail(context, NL_ERROR_USAGE, "--%s %s: expected %s%s%s%s", option->name, text, list,
                   near ? "; did you mean " : "", near ? near : "", near ? "?" : "");
}

static nl_status add_to_list(nl_context *context, const nl_option *option, const char *text,
                             nl_option_list *list)
{
    int count = 0;
    while (list->items[count])
        count++;
    if (count == NL_MOST_REPEATED)
        return nl_fail(context, NL_ERROR_USAGE, "--%s: may be given %d times", option->name,
                       NL_MOST_REPEATED);
    list->items[count] = text;
    return NL_OK;
}

nl_status nl_option_set(nl_context *context, const nl_option *option, const char *text,
                        void *values)
{
    void *place = place_of(option, values);
    char *end;
    switch (option->kind) {
    case NL_OPTION_FLAG:
        *(bool *)place = true;
        return NL_OK;
    case NL_OPTION_SEED:
        errno = 0;
        *(uint64_t *)place = strtoull(text, &end, 10);
        if (end == text || *end || errno || strchr(text, '-'))
            return expected(context, option, text, "0 to 18446744073709551615");
        return NL_OK;
    case NL_OPTION_BYTES:
        return set_bytes(context, option, text, place);
    case NL_OPTION_CHOICE:
        return set_choice(context, option, text, place);
    case NL_OPTION_TEXT:
    case NL_OPTION_CLASS:
    case NL_OPTION_FILE:
        if (!*text)
            return nl_fail(context, NL_ERROR_USAGE, "--%s: expected %s, found nothing",
                           option->name, option->argument);
        if (option->where & NL_REPEATED)
            return add_to_list(context, option, text, place);
        *(const char **)place = text;
        return NL_OK;
    default:
        return set_numbers(context, option, text, place);
    }
}

/* What getopt_long could not read, as a message. */
static nl_status bad_option(nl_context *context, const nl_command *command, const char *word,
                            int letter)
{
    if (letter)
        return nl_fail(context, NL_ERROR_USAGE,
                       "unknown option -%c; see 'nalagen %s --help' for all options", letter,
                       command->name);
    char name[64];
    snprintf(name, sizeof(name), "%.*s", (int)strcspn(word, "="), word);
    const char *plain = name + strspn(name, "-");
    const char *names[MAX_OPTIONS + 1];
    char list[256] = "";
    int count = 0, same = 0;
    nl_option rows[NL_MOST_OPTIONS];
    for (const nl_option *o = nl_options_of(command, rows); o->name; o++) {
        names[count++] = o->name;
        if (!strncmp(o->name, plain, strlen(plain))) {
            size_t used = strlen(list);
            snprintf(list + used, sizeof(list) - used, "%s--%s", same++ ? ", " : "", o->name);
        }
        if (!strcmp(o->name, plain)) /* --flag=value */
            return nl_fail(context, NL_ERROR_USAGE, "%s: --%s takes no value", word, o->name);
    }
    names[count] = NULL;
    if (same > 1)
        return nl_fail(context, NL_ERROR_USAGE, "%s may be %s", name, list);
    const char *near = nl_nearest(plain, names);
    if (near)
        return nl_fail(context, NL_ERROR_USAGE, "unknown option %s; did you mean --%s?", name,
                       near);
    return nl_fail(context, NL_ERROR_USAGE,
                   "unknown option %s; see 'nalagen %s --help' for all options", name,
                   command->name);
}

nl_status nl_options_parse(nl_context *context, const nl_command *command, int argc, char **argv,
                           void *values, int *operands)
{
    struct option longs[MAX_OPTIONS + 1] = {{0}};
    char shorts[2 * MAX_OPTIONS + 2] = ":";
    int count = 0;
    nl_option rows[NL_MOST_OPTIONS];
    for (const nl_option *o = nl_options_of(command, rows); o->name; o++, count++) {
        int argument = !o->argument                   ? no_argument
                       : o->where & NL_OPTIONAL_VALUE ? optional_argument
                                                      : required_argument;
        longs[count] = (struct option){o->name, argument, NULL, 256 + count};
        if (o->letter)
            snprintf(shorts + strlen(shorts), 3, "%c%s", o->letter, o->argument ? ":" : "");
    }
    opterr = 0;
    optind = 0;
    for (;;) {
        int found = getopt_long(argc, argv, shorts, longs, NULL);
        if (found == -1)
            break;
        if (found == '?')
            return bad_option(context, command, argv[optind - 1], optopt < 256 ? optopt : 0);
        if (found == ':')
            return nl_fail(context, NL_ERROR_USAGE, "%s needs a value: see 'nalagen %s --help'",
                           argv[optind - 1], command->name);
        const nl_option *option = rows;
        if (found >= 256)
            option += found - 256;
        else
            while (option->letter != found)
                option++;
        const char *text = optarg                              ? optarg
                           : option->where & NL_OPTIONAL_VALUE ? option->choices[0]
                                                               : "";
        NL_CHECK(nl_option_set(context, option, text, values));
    }
    *operands = optind;
    return NL_OK;
}
