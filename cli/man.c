/* SPDX-License-Identifier: MIT */
/* The man page: the options and examples of the commands' tables, and what belongs to none of them. */
#include "nl_help.h"

#include <string.h>

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
    fprintf(stream, "%s\n", nl_full_stop(command->summary));
    for (const nl_option *o = nl_options_of(command, rows); o->name; o++) {
        char head[80];
        if (o->group) {
            fputs(".SS ", stream);
            roff(stream, o->group);
            fputc('\n', stream);
        }
        nl_option_head(o, head, sizeof(head));
        fputs(".TP\n.B ", stream);
        roff(stream, head + strspn(head, " "));
        fputc('\n', stream);
        roff(stream, o->help);
        fprintf(stream, "%s\n", nl_full_stop(o->help));
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
}

/* The sections that say nothing of a single command. */
static const char description[] =
    ".SH DESCRIPTION\n"
    "nalagen makes pictures of given classes with diffusion transformers (DiT, SiT) and with the "
    "same "
    "networks whose attention is linear and aware of norms (NaLaDiT, NaLaSiT), and trains and "
    "evaluates them. A small model of ten classes ships with it. Results go to standard output or "
    "into files, messages and progress to standard error. The same seed gives the same picture for "
    "any batch and any number of threads. No file is overwritten without \\-\\-force, and none is "
    "left half written; Ctrl\\-C keeps what is finished.\n"
    ".PP\n"
    "Every command prints its common options with \\-\\-help and all of them with \\-\\-help "
    "all.\n";

static const struct {
    const char *name, *text;
} files[] =
    {
        {"CLASS-seedN.png", "A picture without a name given with --out. It carries its parameters: "
                            "nalagen info reads them, sample --from makes it again."},
        {"NAME.npz.part, NAME.npz.journal",
         "Of an archive that is not finished: the same command resumes it."},
        {"DATA/dataset.json, DATA/shard-*.safetensors", "Training data of nalagen encode."},
        {"RUN/config.json, RUN/log.jsonl, RUN/checkpoints/, RUN/samples/, RUN/model.safetensors",
         "A run of nalagen train; the folder itself stands for its model."},
        {"~/.local/share/nalagen/, PREFIX/share/nalagen/",
         "Weights that are looked for by name: models, autoencoders, Inception."},
        {"~/.cache/nalagen/sha256/", "Sums of checkpoints, so that they are computed once."},
},
  variables[] = {
      {"NALAGEN_WEIGHTS", "A folder of weights that is looked through before the others."},
      {"XDG_DATA_HOME", "In place of ~/.local/share."},
      {"XDG_CACHE_HOME", "In place of ~/.cache."},
      {"NO_COLOR", "Where it is set and not empty, --show draws with letters, without colours."},
      {"TERM", "dumb: no bars and no pictures in the terminal."},
};

#define PRINT_PAIRS(stream, pairs)                                                                 \
    for (int i = 0; i < NL_COUNT(pairs); i++)                                                      \
    print_pair(stream, (pairs)[i].name, (pairs)[i].text)

static void print_pair(FILE *stream, const char *name, const char *text)
{
    fputs(".TP\n.B ", stream);
    roff(stream, name);
    fputc('\n', stream);
    roff(stream, text);
    fputc('\n', stream);
}

static void print_examples(FILE *stream, const nl_command *commands)
{
    fputs(".SH EXAMPLES\n.nf\n", stream);
    for (const nl_command *c = commands; c->name; c++)
        if (!c->hidden && c->examples)
            roff(stream, c->examples);
    fputs(".fi\n", stream);
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
    fputs(description, stream);
    for (const nl_command *c = commands; c->name; c++)
        if (!c->hidden && nl_options_of(c, rows)->name)
            roff_command(stream, c);
    fputs(".SH FILES\n", stream);
    PRINT_PAIRS(stream, files);
    fputs(".SH ENVIRONMENT\n", stream);
    PRINT_PAIRS(stream, variables);
    fputs(".SH EXIT STATUS\n.nf\n", stream);
    roff(stream, nl_exit_codes);
    fputs(".fi\n", stream);
    print_examples(stream, commands);
    fputs(".SH SEE ALSO\n"
          "The documents that come with the sources: README.md, docs/usage.md, docs/questions.md, "
          "docs/downloads.md (where published weights come from).\n.PP\n.BR mpirun (1),\n.BR srun "
          "(1)\n",
          stream);
}
