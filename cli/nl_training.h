/* SPDX-License-Identifier: MIT */
/* `nalagen train` and what goes with it. */
#ifndef NL_TRAINING_H
#define NL_TRAINING_H

#include "nl_command.h"
#include "nl_train.h"

extern const nl_command nl_train_command, nl_distill_command, nl_average_command, nl_plot_command,
    nl_likelihood_command;

typedef struct nl_train_values {
    const nl_command *command; /* train or distill */
    nl_train_options train;
    nl_machine_options machine;
    const char *options; /* JSON file of the same options */
    const char *recipe;  /* NULL: the published one */
    bool recipe_taken;   /* its choices are in what this was read from */
    const char *gpus;
} nl_train_values;

extern const nl_option nl_train_rows[];
/* Runs `command` with these values, changed by the command line. */
nl_status nl_train_with(int argc, char **argv, nl_train_values *values);

#endif
