/* SPDX-License-Identifier: MIT */
/* What people read about the options: --help and shell completion. */
#include "nl_help.h"

#include <stdlib.h>
#include <string.h>
#include <time.h>

const char nl_exit_codes[] =
    "  0 ok   1 internal error   2 wrong usage   3 bad input file   4 out of memory\n"
    "  5 device   6 not finite   7 cannot write   130 interrupted\n";

enum {
    HELP_COLUMN = 27,
    SCREEN = 23 /* lines, and one for the prompt */
};

void nl_option_head(const nl_option *option, char *text, size_t size)
{
    const char *before = !option->argument ? "" : option->where & NL_OPTIONAL_VALUE ? "[=" : " ";
    char letter[8] = "    ";
    if (option->letter)
        snprintf(letter, sizeof(letter), "-%c, ", option->letter);
    snprintf(text, size, "%s--%s%s%s%s", letter, option->name, before,
             option->argument ? option->argument : "", *before == '[' ? "]" : "");
}

const char *nl_full_stop(const char *text)
{
    size_t length = strlen(text);
    return length && strchr(".?", text[length - 1]) ? "" : ".";
}

static const char *next_line(const char *text)
{
    const char *end = strchr(text, '\n');
    return end && end[1] ? end + 1 : NULL;
}

static int lines_of(const char *text)
{
    int lines = 0;
    for (; text && *text; text = next_line(text))
        lines++;
    return lines;
}

/* An option with the lines of its help, or with the first of them alone. */
static void print_option(FILE *stream, const nl_option *option, bool whole)
{
    char head[80];
    nl_option_head(option, head, sizeof(head));
    fprintf(stream, "  %-*s", HELP_COLUMN, head);
    for (const char *line = option->help; line; line = whole ? next_line(line) : NULL)
        fprintf(stream, "%*s%.*s\n", line == option->help ? 0 : HELP_COLUMN + 2, "",
                (int)strcspn(line, "\n"), line);
}

/* Lines of the text with all options, but for usage and summary. */
static int lines_of_all(const nl_command *command, const nl_option *rows)
{
    int lines =
        lines_of(command->notes) + lines_of(command->examples) + (command->examples != NULL);
    for (const nl_option *o = rows; o->name; o++)
        lines += lines_of(o->help) + (o->group != NULL);
    return lines;
}

static void print_all(FILE *stream, const nl_command *command, const nl_option *rows)
{
    for (const nl_option *o = rows; o->name; o++) {
        if (o->group)
            fprintf(stream, "%s:\n", o->group);
        print_option(stream, o, true);
    }
    if (command->notes)
        fputs(command->notes, stream);
    if (command->examples)
        fprintf(stream, "Examples:\n%s", command->examples);
}

/* As many examples as there is room for, in `lines` lines altogether. */
static void print_common(FILE *stream, const nl_command *command, const nl_option *rows, int lines)
{
    for (const nl_option *o = rows; o->name; o++)
        if (o->where & NL_COMMON) {
            print_option(stream, o, false);
            lines--;
        }
    lines -= 2; /* the heading, and the last line */
    if (command->examples && lines > 0)
        fputs("Examples:\n", stream);
    for (const char *line = command->examples; line && lines > 0; line = next_line(line), lines--)
        fprintf(stream, "%.*s\n", (int)strcspn(line, "\n"), line);
    fprintf(stream, "Every option: nalagen %s --help all\n", command->name);
}

void nl_print_help(FILE *stream, const nl_command *command, bool all)
{
    nl_option rows[NL_MOST_OPTIONS];
    nl_options_of(command, rows);
    fprintf(stream, "Usage: nalagen %s %s\n%s%s\n", command->name, command->arguments,
            command->summary, nl_full_stop(command->summary));
    if (all || lines_of_all(command, rows) <= SCREEN - 2)
        print_all(stream, command, rows);
    else
        print_common(stream, command, rows, SCREEN - 2);
}
