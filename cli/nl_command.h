/* SPDX-License-Identifier: MIT */
/* What all commands share: how they begin and end, and where they run. */
#ifndef NL_COMMAND_H
#define NL_COMMAND_H

#include "nl_console.h"
#include "nl_options.h"

typedef struct nl_machine_options {
    bool help, quiet, verbose;
    const char *device, *dtype;
    int64_t threads, max_memory;
} nl_machine_options;

/* For the tables of commands, of a member of type nl_machine_options: where it runs, and what ends every table
 * (nl_command_main finds these by their names). */
extern const nl_option nl_device_options[], nl_common_options[];

/* Choices of --dtype, of networks that are run and of those whose gradients are taken; ended by NULL. */
extern const char *const nl_dtypes[], *const nl_gradient_dtypes[];

/* A command at work. */
typedef struct nl_command_line {
    nl_console console;
    nl_context *context; /* of messages; without a device until nl_command_take_device */
    nl_context *first;   /* of the command line, to the end */
    int argc;
    char **argv; /* argv[0] is the command's name; permuted: operands are last */
    char **operands;
    int operand_count;
    bool (*progress)(void *user, const nl_progress *progress);
    void *user;
    bool reported; /* what the outcome is has been said */
} nl_command_line;

/* Before the work: NL_ERROR_WRITE where no file can be made, and where one stands that may not be overwritten; advice
 * follows that of --force. */
nl_status nl_output_check(nl_context *context, const char *path, bool overwrite,
                          const char *advice);

/* Reads the command line into `values`, before there is a device, so that --help and mistakes need none. Then work: its
 * failure is reported and returned. */
nl_status nl_command_main(const nl_command *command, int argc, char **argv, void *values,
                          nl_status (*work)(nl_command_line *line, void *values));

/* Says what went wrong, if that has not been said; main says it otherwise when all is put away. */
void nl_command_report(nl_command_line *line, nl_status status);

/* line->context becomes one on the device, whose work Ctrl-C cancels. progress: as in nl_context_options, or NULL. */
nl_status nl_command_take_device(nl_command_line *line, const nl_machine_options *machine,
                                 bool (*progress)(void *user, const nl_progress *progress),
                                 void *user);
/* A progress callback whose user is the command line: draws on its console. */
bool nl_command_progress(void *line, const nl_progress *progress);

#endif
