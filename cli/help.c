/* SPDX-License-Identifier: MIT */
/* Everything that people read about the options: --help, the man page, shell completion. */
#include "nl_help.h"

#include <stdlib.h>
#include <string.h>
#include <time.h>

const char nl_exit_codes[] =
    "  0 ok    1 internal error    2 wrong usage    3 bad input file    4 out of memory\n"
    "  5 device    6 not finite    7 cannot write    130 interrupted\n";

enum { HELP_COLUMN = 27 };

static void option_head(const nl_option *option, char *text, size_t size)
{
    const char *before = !option->argument ? "" : option->where & NL_OPTIONAL_VALUE ? "[=" : " ";
    char letter[8] = "    ";
    if (option->letter)
        snprintf(letter, sizeof(letter), "-%c, ", option->letter);
    snprintf(text, size, "%s--%s%s%s%s", letter, option->name, before,
             option->argument ? option->argument : "", *before == '[' ? "]" : "");
}

/* The full stop that a text lacks. */
static const char *stop(const char *text)
{
    size_t length = strlen(text);
    return length && strchr(".?", text[length - 1]) ? "" : ".";
}

void nl_print_help(FILE *stream, const nl_command *command)
{
    nl_option rows[NL_MOST_OPTIONS];
    fprintf(stream, "Usage: nalagen %s %s\n%s%s\n", command->name, command->arguments,
            command->summary, stop(command->summary));
    for (const nl_option *o = nl_options_of(command, rows); o->name; o++) {
        char head[80];
        if (o->where & NL_ONLY_MAN)
            continue;
        if (o->group)
            fprintf(stream, "%s:\n", o->group);
        option_head(o, head, sizeof(head));
        fprintf(stream, "  %-*s", HELP_COLUMN, head);
        for (const char *line = o->help; line;
             line = strchr(line, '\n') ? strchr(line, '\n') + 1 : NULL)
            fprintf(stream, "%*s%.*s\n", line == o->help ? 0 : HELP_COLUMN + 2, "",
                    (int)strcspn(line, "\n"), line);
    }
    if (command->notes)
        fputs(command->notes, stream);
    if (command->examples)
        fprintf(stream, "Examples:\n%s", command->examples);
}

/* Text for roff: hyphens stay hyphens, no line starts a request. */
static void roff(FILE *stream, const char *text)
{
    bool start = true;
    for (; *text; text++) {
        if (start && (*text == '.' || *text == '\''))
            fputs("\\&", stream);
        if (*text == '-' || *text == '\\')
            fputc('\\', stream);
        fputc(*text == '\\' ? 'e' : *text, stream);
        start = *text == '\n';
    }
}

static void roff_command(FILE *stream, const nl_command *command)
{
    nl_option rows[NL_MOST_OPTIONS];
    fputs(".SH ", stream);
    for (const char *c = command->name; *c; c++)
        fputc(*c >= 'a' && *c <= 'z' ? *c - 32 : *c, stream);
    fprintf(stream, "\n.B nalagen %s\n", command->name);
    roff(stream, command->arguments);
    fputs("\n.PP\n", stream);
    roff(stream, command->summary);
    fprintf(stream, "%s\n", stop(command->summary));
    for (const nl_option *o = nl_options_of(command, rows); o->name; o++) {
        char head[80];
        if (o->group) {
            fputs(".SS ", stream);
            roff(stream, o->group);
            fputc('\n', stream);
        }
        option_head(o, head, sizeof(head));
        fputs(".TP\n.B ", stream);
        roff(stream, head + strspn(head, " "));
        fputc('\n', stream);
        roff(stream, o->help);
        fprintf(stream, "%s\n", stop(o->help));
        if (o->detail) {
            roff(stream, o->detail);
            fputc('\n', stream);
        }
        if (o->kind == NL_OPTION_CHOICE) {
            fputs("One of: ", stream);
            for (int i = 0; o->choices[i]; i++) {
                fputs(i ? ", " : "", stream);
                roff(stream, o->choices[i]);
            }
            fputs(".\n", stream);
        }
    }
    if (command->notes) {
        fputs(".SS Notes\n.nf\n", stream);
        roff(stream, command->notes);
        fputs(".fi\n", stream);
    }
    if (command->examples) {
        fputs(".SS Examples\n.nf\n", stream);
        roff(stream, command->examples);
        fputs(".fi\n", stream);
    }
}

void nl_print_man(FILE *stream, const nl_command *commands)
{
    nl_option rows[NL_MOST_OPTIONS];
    fprintf(stream, ".TH NALAGEN 1 \"\" \"nalagen %s\" \"User Commands\"\n", nl_version());
    fputs(".SH NAME\nnalagen \\- class\\-conditional image generation with DiT, SiT, NaLaDiT and "
          "NaLaSiT\n.SH SYNOPSIS\n",
          stream);
    for (const nl_command *c = commands; c->name; c++)
        if (!c->hidden) {
            fprintf(stream, ".B nalagen %s\n", c->name);
            roff(stream, c->arguments);
            fputs(c->arguments[0] ? "\n.br\n" : ".br\n", stream);
        }
    for (const nl_command *c = commands; c->name; c++)
        if (!c->hidden && nl_options_of(c, rows)->name)
            roff_command(stream, c);
    fputs(".SH EXIT STATUS\n.nf\n", stream);
    roff(stream, nl_exit_codes);
    fputs(".fi\n.SH ENVIRONMENT\n"
          ".TP\n.B NALAGEN_WEIGHTS\nFolder of the shipped model and autoencoder.\n"
          ".TP\n.B XDG_CACHE_HOME\nWhere the sha256 of checkpoints are kept (nalagen/).\n",
          stream);
}
