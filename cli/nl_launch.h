/* SPDX-License-Identifier: MIT */
/* Processes of this program that work on one job. */
#ifndef NL_LAUNCH_H
#define NL_LAUNCH_H

#include "nl_command.h"
#include "nl_process.h"

typedef struct nl_launch_options {
    const char *gpus;   /* "2", "all": a process for each; NULL: not asked for */
    int64_t processes;  /* on the CPU instead; 0: not asked for */
    const char *device; /* what the user said of the device, or NULL */
    bool together;      /* they wait for each other: one that fails ends all */
} nl_launch_options;

typedef struct nl_share_report {
    int64_t there, todo, made; /* pictures, to be added up */
} nl_share_report;

/* Whether this process is to start others: asked for, and not one of them. */
bool nl_launch_wanted(const nl_launch_options *options);
/* Each of several processes on a machine takes a GPU of its own (text: its name, where machine->device then points) and, of
 * nalagen's own children, its part of the threads; the first alone tells what is going on. */
void nl_take_place(nl_console *console, nl_machine_options *machine, char text[24]);
/* Starts them with the same arguments and waits for them. The first failure is the outcome. */
nl_status nl_launch(nl_console *console, nl_context *context, const nl_launch_options *options,
                    int argc, char **argv);

#endif
