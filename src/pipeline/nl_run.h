/* SPDX-License-Identifier: MIT */
/* The folder of a training run: what the files in it are called, and which of them is the model. */
#ifndef NL_RUN_H
#define NL_RUN_H

#include "nl_io.h"

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

/* Paths of the checkpoints in `folder`, the newest first: allocated, to be freed by nl_free_points. None where there is no
 * such folder. */
nl_status nl_list_points(nl_context *context, const char *folder, char ***paths, int *count);
void nl_free_points(nl_context *context, char **paths, int count);
/* The step of such a path. */
int64_t nl_point_step(const char *path);

/* Whether the folder is that of a run: it has a log. */
bool nl_is_run(nl_context *context, const char *path);
/* Allocated: the model of a run that is over, otherwise its newest checkpoint. NL_ERROR_INPUT: it has neither yet. */
nl_status nl_run_find_model(nl_context *context, const char *path, char **model);

#endif
