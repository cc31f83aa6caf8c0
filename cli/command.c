/* SPDX-License-Identifier: MIT */
/* The frame of every command: parses its options, opens a context, hears Ctrl-C, tells of a failure. */
#include "nl_command.h"
#include "nl_help.h"

#include <string.h>

#define FIELD(member) offsetof(nl_machine_options, member)

const nl_option nl_device_options[] = {
    {"device", 0, NL_OPTION_TEXT, FIELD(device), "NAME", .where = NL_COMMON, .group = "Machine",
     .completes = "devices", .help = "auto, cpu, cuda, cuda:1"},
    {"threads", 't', NL_OPTION_INT, FIELD(threads), "N", 1, 1024,
     .help = "CPU threads (all that the process may use)"},
    {"max-memory", 0, NL_OPTION_BYTES, FIELD(max_memory), "SIZE",
     .help = "limit, such as 4G (none)"},
    {0},
};

const nl_option nl_common_options[] = {
    {"quiet", 'q', NL_OPTION_FLAG, FIELD(quiet), .help = "errors only"},
    {"verbose", 'v', NL_OPTION_FLAG, FIELD(verbose), .help = "say more"},
    {"help", 'h', NL_OPTION_FLAG, FIELD(help), .where = NL_COMMON,
     .help = "this text; --help all: every option"},
    {0},
};

const char *const nl_dtypes[] = {"auto", "f32", "bf16", "fp8", NULL};
const char *const nl_gradient_dtypes[] = {"auto", "f32", "bf16", NULL};

static void log_message(void *user, nl_log_level level, const char *message)
{
    nl_console_log(&((nl_command_line *)user)->console, level, message);
}

static bool pass_progress(void *user, const nl_progress *now)
{
    nl_command_line *line = user;
    return line->progress(line->user, now);
}

bool nl_command_progress(void *line, const nl_progress *now)
{
    nl_console_progress(&((nl_command_line *)line)->console, now);
    return !nl_interrupted();
}

static bool has_flag(const nl_command *command, const void *values, const char *name)
{
    nl_option rows[NL_MOST_OPTIONS];
    for (const nl_option *o = nl_options_of(command, rows); o->name; o++)
        if (!strcmp(o->name, name))
            return *(const bool *)((const char *)values + o->offset);
    return false;
}

static nl_status check_operands(const nl_command_line *line, const nl_command *command)
{
    int count = line->operand_count;
    for (int i = 0; i < count; i++) /* a variable of a script that was not set */
        if (!line->operands[i][0])
            return nl_fail(line->context, NL_ERROR_USAGE, "%s: argument %d is empty", command->name,
                           i + 1);
    if (count >= command->least && count <= command->most)
        return NL_OK;
    if (!command->most)
        return nl_fail(line->context, NL_ERROR_USAGE, "%s: unexpected argument '%s'%s%s",
                       command->name, line->operands[0], command->operands ? ": " : "",
                       command->operands ? command->operands : "");
    return nl_fail(line->context, NL_ERROR_USAGE,
                   "%s: expected %s, found %d; see 'nalagen %s --help'", command->name,
                   command->operands, count, command->name);
}

void nl_command_report(nl_command_line *line, nl_status status)
{
    if (!line->reported)
        nl_console_error(&line->console, line->context, status);
    line->reported = true;
}

nl_status nl_command_main(const nl_command *command, int argc, char **argv, void *values,
                          nl_status (*work)(nl_command_line *line, void *values))
{
    nl_command_line line = {.argc = argc, .argv = argv};
    nl_context_options options = {.log = log_message, .user = &line};
    int first;
    nl_console_init(&line.console, false, false);
    nl_status status = nl_core_context_create(&options, &line.first); /* says why not */
    if (status != NL_OK)
        return status;
    line.context = line.first;
    NL_TRY(nl_options_parse(line.context, command, argc, argv, values, &first));
    if (has_flag(command, values, "help")) {
        bool all = argc - first == 1 && !strcmp(argv[first], "all");
        nl_print_help(stdout, command, all);
        NL_TRY(nl_finish_stdout(line.context));
        goto cleanup;
    }
    line.operands = argv + first;
    line.operand_count = argc - first;
    NL_TRY(check_operands(&line, command));
    nl_console_init(&line.console, has_flag(command, values, "quiet"),
                    has_flag(command, values, "verbose"));
    NL_TRY(work(&line, values));
cleanup:
    nl_release_interrupt();
    nl_command_report(&line, status);
    if (line.context != line.first)
        nl_context_destroy(line.context);
    nl_core_context_destroy(line.first);
    return status;
}

nl_status nl_command_take_device(nl_command_line *line, const nl_machine_options *machine,
                                 bool (*progress)(void *user, const nl_progress *progress),
                                 void *user)
{
    nl_context *context;
    nl_context_options options = {.device = machine->device,
                                  .dtype = machine->dtype,
                                  .threads = (int)machine->threads,
                                  .max_memory = machine->max_memory,
                                  .log = log_message,
                                  .progress = progress ? pass_progress : NULL,
                                  .user = line};
    line->progress = progress;
    line->user = user;
    nl_status status = nl_context_create(&options, &context);
    line->reported = status != NL_OK; /* by the log */
    if (status != NL_OK)
        return status;
    line->context = context;
    nl_catch_interrupt(&line->console, context);
    return NL_OK;
}
