/* SPDX-License-Identifier: MIT */
/* Recipes: options of training that follow from the data and the device. */
#ifndef NL_RECIPE_H
#define NL_RECIPE_H

#include "nl_train.h"

/* What the choice depends on. */
typedef struct nl_recipe_facts {
    int64_t pictures; /* of the data set, each with its parts once */
    int64_t held_out; /* pictures, of them or others; 0: none */
    int classes;      /* 0: unconditional */
    bool starts;      /* from trained weights */
    bool cpu;
} nl_recipe_facts;

/* One picture of so many of a class is held out, where no others are. */
int64_t nl_recipe_held_out_every(const nl_recipe_facts *facts);

/* Length, batch, optimiser, dropout, averages and stop of the recipe "small". What is asked for already stays: a length
 * (steps, epochs, minutes). */
void nl_recipe_choose(const nl_recipe_facts *facts, nl_train_options *options);

typedef struct nl_recipe {
    nl_recipe_facts facts;
    double minutes;   /* that it sets to the run; 0: none */
    char config[96];  /* options->config may point here */
    bool middle_head; /* that it gives the network */
} nl_recipe;

/* The recipe "small" for what `options` names: data, validation, model, init, length; these stay. What is left open is
 * chosen by the data set and the context's device: also the model, or the weights to start from, and what is held out. */
nl_status nl_recipe_small(nl_context *context, nl_train_options *options, nl_recipe *recipe);

#endif
