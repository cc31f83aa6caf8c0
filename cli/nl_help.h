/* SPDX-License-Identifier: MIT */
/* What the tables of options say to people: --help, the man page, shell completion. */
#ifndef NL_HELP_H
#define NL_HELP_H

#include "nl_options.h"

void nl_print_help(FILE *stream, const nl_command *command);
/* commands: ended by an entry without name. */
void nl_print_man(FILE *stream, const nl_command *commands);
bool nl_print_completion(FILE *stream, const char *shell, const nl_command *commands);

/* What the exit codes mean, one line each, indented. */
extern const char nl_exit_codes[];

#endif
