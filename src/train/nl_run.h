/* SPDX-License-Identifier: MIT */
/* The folder of a training run: what the files in it are called. */
#ifndef NL_RUN_H
#define NL_RUN_H

#include <stdbool.h>
#include <stdint.h>

#define NL_RUN_CONFIG      "config.json"
#define NL_RUN_LOG         "log.jsonl"
#define NL_RUN_METRICS     "metrics.jsonl"
#define NL_RUN_CHECKPOINTS "checkpoints"   /* a folder */
#define NL_RUN_UNSAVED     "not-saved-yet" /* in NL_RUN_CHECKPOINTS, until there is the first one */
#define NL_RUN_LATENTS     "latents"       /* a folder: what a teacher drew */
#define NL_RUN_SAMPLES     "samples"       /* a folder */
#define NL_RUN_SNAPSHOTS   "snapshots"     /* a folder, of a folder for each average: */
#define NL_RUN_SIGMA       "sigma-"        /* and its width, "sigma-0.05" */
#define NL_RUN_MODEL       "model.safetensors"
#define NL_RUN_DONE        "done"

enum { NL_RUN_NAME = 48 }; /* room for one of the names below */

/* "step-0000100.safetensors", in NL_RUN_CHECKPOINTS and in folders of snapshots; returns `name`. */
const char *nl_run_checkpoint_name(int64_t step, char name[NL_RUN_NAME]);
/* Whether a file is called like that, and of which step. */
bool nl_run_checkpoint_step(const char *name, int64_t *step);
/* "step-0000100.png", in NL_RUN_SAMPLES; returns `name`. */
const char *nl_run_grid_name(int64_t step, char name[NL_RUN_NAME]);

#endif
