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

static void print_choices(FILE *stream, const nl_option *option, const char *between)
{
    for (int i = 0; option->choices[i]; i++)
        fprintf(stream, "%s%s", i ? between : "", option->choices[i]);
}

static void bash_command(FILE *stream, const nl_command *command)
{
    nl_option rows[NL_MOST_OPTIONS];
    fprintf(stream, "    %s)\n        case $prev in\n", command->name);
    for (const nl_option *o = nl_options_of(command, rows); o->name; o++) {
        char letter[8] = "";
        if (o->letter)
            snprintf(letter, sizeof(letter), "|-%c", o->letter);
        if (!o->argument || o->where & NL_OPTIONAL_VALUE)
            continue;
        fprintf(stream, "        --%s%s) ", o->name, letter);
        if (o->kind == NL_OPTION_CHOICE) {
            fputs("COMPREPLY=($(compgen -W \"", stream);
            print_choices(stream, o, " ");
            fputs("\" -- \"$cur\")); return ;;\n", stream);
        } else if (o->kind == NL_OPTION_FILE) {
            fputs("COMPREPLY=($(compgen -f -- \"$cur\")); return ;;\n", stream);
        } else {
            fputs("return ;;\n", stream);
        }
    }
    fputs("        esac\n        options=\"", stream);
    for (const nl_option *o = nl_options_of(command, rows); o->name; o++)
        fprintf(stream, "%s--%s", o == rows ? "" : " ", o->name);
    fputs("\" ;;\n", stream);
}

static void bash(FILE *stream, const nl_command *commands)
{
    fputs("# bash completion of nalagen\n_nalagen()\n{\n"
          "    local cur=${COMP_WORDS[COMP_CWORD]} prev=${COMP_WORDS[COMP_CWORD-1]} options=\n"
          "    if [ \"$COMP_CWORD\" -eq 1 ]; then\n        COMPREPLY=($(compgen -W \"",
          stream);
    for (const nl_command *c = commands; c->name; c++)
        if (!c->hidden)
            fprintf(stream, "%s%s", c == commands ? "" : " ", c->name);
    fputs("\" -- \"$cur\"))\n        return\n    fi\n    case ${COMP_WORDS[1]} in\n", stream);
    for (const nl_command *c = commands; c->name; c++)
        if (!c->hidden)
            bash_command(stream, c);
    fputs("    esac\n    if [[ $cur == -* ]]; then\n"
          "        COMPREPLY=($(compgen -W \"$options\" -- \"$cur\"))\n"
          "    else\n        COMPREPLY=($(compgen -f -- \"$cur\"))\n    fi\n}\n"
          "complete -o filenames -F _nalagen nalagen\n",
          stream);
}

/* Single quotes, brackets and colons mean something inside zsh's and fish's '...' specifications. */
static void quoted(FILE *stream, const char *text, const char *escape)
{
    for (; *text; text++) {
        if (*text == '\'')
            fputs("'\\'", stream);
        else if (strchr(escape, *text))
            fputc('\\', stream);
        fputc(*text, stream);
    }
}

static void zsh_option(FILE *stream, const nl_option *o)
{
    const char *sign = o->where & NL_OPTIONAL_VALUE ? "=-" : o->argument ? "=" : "";
    if (o->letter)
        fprintf(stream, "        '(-%c --%s)'{-%c%s,--%s%s}'[", o->letter, o->name, o->letter,
                o->argument ? "+" : "", o->name, sign);
    else
        fprintf(stream, "        '--%s%s[", o->name, sign);
    quoted(stream, o->help, "[]:");
    fputc(']', stream);
    if (o->argument) {
        fputs(o->where & NL_OPTIONAL_VALUE ? "::" : ":", stream);
        quoted(stream, o->argument, "[]:");
        fputc(':', stream);
        if (o->kind == NL_OPTION_CHOICE) {
            fputc('(', stream);
            print_choices(stream, o, " ");
            fputc(')', stream);
        } else if (o->kind == NL_OPTION_FILE) {
            fputs("_files", stream);
        }
    }
    fputs("' \\\n", stream);
}

static void zsh(FILE *stream, const nl_command *commands)
{
    nl_option rows[NL_MOST_OPTIONS];
    fputs("#compdef nalagen\n_nalagen()\n{\n    if (( CURRENT == 2 )); then\n"
          "        local -a commands=(\n",
          stream);
    for (const nl_command *c = commands; c->name; c++)
        if (!c->hidden) {
            fprintf(stream, "            '%s:", c->name);
            quoted(stream, c->summary, ":");
            fputs("'\n", stream);
        }
    fputs("        )\n        _describe command commands\n        return\n    fi\n"
          "    local command=$words[2]\n    shift words\n    (( CURRENT-- ))\n"
          "    case $command in\n",
          stream);
    for (const nl_command *c = commands; c->name; c++) {
        if (c->hidden)
            continue;
        fprintf(stream, "    %s)\n        _arguments \\\n", c->name);
        for (const nl_option *o = nl_options_of(c, rows); o->name; o++)
            zsh_option(stream, o);
        fputs("        '*:file:_files' ;;\n", stream);
    }
    fputs("    esac\n}\n_nalagen \"$@\"\n", stream);
}

static void fish(FILE *stream, const nl_command *commands)
{
    nl_option rows[NL_MOST_OPTIONS];
    fputs("# fish completion of nalagen\n", stream);
    for (const nl_command *c = commands; c->name; c++) {
        if (c->hidden)
            continue;
        fprintf(stream, "complete -c nalagen -n __fish_use_subcommand -f -a %s -d '", c->name);
        quoted(stream, c->summary, "\\");
        fputs("'\n", stream);
        for (const nl_option *o = nl_options_of(c, rows); o->name; o++) {
            fprintf(stream, "complete -c nalagen -n '__fish_seen_subcommand_from %s' -l %s",
                    c->name, o->name);
            if (o->letter)
                fprintf(stream, " -s %c", o->letter);
            if (o->argument && !(o->where & NL_OPTIONAL_VALUE))
                fputs(o->kind == NL_OPTION_FILE ? " -r" : " -x", stream);
            if (o->kind == NL_OPTION_CHOICE) {
                fputs(" -a '", stream);
                print_choices(stream, o, " ");
                fputc('\'', stream);
            }
            fputs(" -d '", stream);
            quoted(stream, o->help, "\\");
            fputs("'\n", stream);
        }
    }
}

bool nl_print_completion(FILE *stream, const char *shell, const nl_command *commands)
{
    if (!strcmp(shell, "bash"))
        bash(stream, commands);
    else if (!strcmp(shell, "zsh"))
        zsh(stream, commands);
    else if (!strcmp(shell, "fish"))
        fish(stream, commands);
    else
        return false;
    return true;
}
