/* SPDX-License-Identifier: MIT */
/* What the tables of options say to people: --help, the man page, shell completion. */
#ifndef NL_HELP_H
#define NL_HELP_H

#include "nl_options.h"

/* One screen, 24 lines of 80 columns: everything where it fits, otherwise the common options (NL_COMMON). all: everything. */
void nl_print_help(FILE *stream, const nl_command *command, bool all);
/* man.c. commands: ended by an entry without name. */
void nl_print_man(FILE *stream, const nl_command *commands);
/* schema.c. The JSON schema of requests, answers and pictures: docs/sample.schema.json. false: no memory. */
bool nl_print_schema(FILE *stream);

/* completion.c. The script of bash, zsh or fish; false: another shell. */
bool nl_print_completion(FILE *stream, const char *shell, const nl_command *commands);
/* For these scripts, one a line: the classes of a model's file (NULL: of the one that ships), nothing where it cannot be read;
 * the devices. */
void nl_print_classes(FILE *stream, const char *model);
void nl_print_devices(FILE *stream);

/* For both: "-o, --out FILE", and the full stop that a text lacks. */
void nl_option_head(const nl_option *option, char *text, size_t size);
const char *nl_full_stop(const char *text);

/* What the exit codes mean, one line each, indented. */
extern const char nl_exit_codes[];

#endif
