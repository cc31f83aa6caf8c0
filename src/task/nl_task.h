/* SPDX-License-Identifier: MIT */
/*
 * A task: which pictures of a model are wanted, and how they are made. The commands that sample and the server work
 * theirs out here, from a command line or from JSON by one table, and make their pictures through nl_tasks_make.
 */
#ifndef NL_TASK_H
#define NL_TASK_H

#include "nl_options.h"
#include "nl_pipeline.h"

/* The values of nl_sampling_options. Texts stay their owner's. */
typedef struct nl_task_options {
    const char *model, *key, *config, *arch, *path, *prediction, *vae, *guide;
    int64_t size[2]; /* height, width in pixels; 0: the model's */
    const char *classes;
    int64_t n; /* 0: one for each class */
    uint64_t seed;
    int64_t first_index;
    nl_sampling
        sampling; /* cfg_scale: a number, negative for the model's default; without cfg_channels */
    const char *cfg_channels;
    const char *rounding;
    int64_t
        walk; /* pictures of a walk, 0: none; from picture 0 of classes and seed to that of these: */
    const char *to_class; /* NULL: the same class */
    const char *to_seed;  /* a number; NULL: the same seed */
} nl_task_options;

extern const nl_task_options nl_task_defaults;
/* Which model, which pictures, how: for the tables of whatever samples, of a member of that type. */
extern const nl_option nl_sampling_options[];
/* The members of a walk: for those that make pictures to be looked at. */
extern const nl_option nl_walk_options[];
nl_sampling nl_sampling_of(const nl_task_options *options);
nl_rounding nl_rounding_of(const nl_task_options *options);

/* The model that the options name. */
nl_status nl_task_load(nl_context *context, const nl_task_options *options, nl_model **model);

/* ---- Classes: "church", "1,4,7", "0-9", "null", "random", "balanced" */

typedef struct nl_classes {
    bool random;
    int count;   /* of `list`; picture i takes list[i % count] */
    int *list;   /* allocated */
    int classes; /* of the model */
} nl_classes;

/* text NULL: random, or null for a model without classes. An unknown name is NL_ERROR_USAGE and the message names near
 * ones. Any thread: `context` need not be the one of a model. */
nl_status nl_classes_parse(nl_context *context, const nl_config *config, const char *text,
                           nl_classes *classes);
void nl_classes_free(nl_context *context, nl_classes *classes);
int nl_classes_at(const nl_classes *classes, uint64_t seed, int64_t index);
/* The name of a class for people: "church", "n03028079"; "null"; "4", which is put into text. */
const char *nl_class_text(const nl_config *config, int label, char *text, size_t size);

/* ---- A task */

typedef struct nl_task {
    nl_task_options options;
    nl_sampling sampling; /* with the model's defaults */
    nl_classes classes;
    int64_t count; /* pictures */
    nl_mix end;    /* of a walk: its last picture */
} nl_task;

/* Works out `options` for a model of that configuration, so that what can be refused is refused before the first step. guide: of
 * the model that guides it, or NULL. usual: pictures where
 * the options do not say how many; 0: one for each class. Any thread, as above. nl_task_free is due in every case. */
nl_status nl_task_plan(nl_context *context, const nl_config *config, const nl_config *guide,
                       const nl_task_options *options, int64_t usual, nl_task *task);
void nl_task_free(nl_context *context, nl_task *task);
/* The class of picture i: 0 <= i < count; of a walk that of its first picture. */
int nl_task_label(const nl_task *task, int64_t i);
/* Whether pictures of both may be made together: nothing differs but classes, seeds, numbers. Of one model. */
bool nl_tasks_agree(const nl_task *a, const nl_task *b);

/* Picture `number` of a task. */
typedef struct nl_task_picture {
    const nl_task *task;
    int64_t number;
} nl_task_picture;

typedef struct nl_making {
    const nl_task_picture *pictures; /* of tasks that agree */
    int64_t count;
    int batch;          /* at once; 0: as large as pays and the memory allows */
    int preview_every;  /* steps between previews; 0: none */
    const float *noise; /* [count, C, H, W] initial latents, or NULL: drawn */
} nl_making;

/* Makes them in their order, as nl_generate, whose statuses are returned. Their `index` is that of the task: pictures of a walk
 * count along it, though all are mixed of image index 0. */
nl_status nl_tasks_make(nl_model *model, const nl_making *making,
                        nl_status (*picture)(void *user, const nl_picture *picture), void *user);

/* ---- What a picture says about itself: a JSON object in the text chunk NL_FACTS_KEY */

#define NL_FACTS_KEY "nalagen"

/* Model, sha256, version: the part that is the same for all pictures of a model; options: those that it was loaded by. */
nl_status nl_model_facts(nl_model *model, const nl_task_options *options, cJSON **facts);
/* Everything needed to make picture `index` again; label NULL: all pictures of the task together. sampling: resolved. */
nl_status nl_task_facts(const nl_model *model, const cJSON *model_facts,
                        const nl_task_options *options, const nl_sampling *sampling,
                        const int *label, int64_t index, cJSON **facts);
/* A PNG (allocated) that says them; facts NULL: one that says nothing. */
nl_status nl_picture_encode(nl_context *context, const uint8_t *rgb, int height, int width,
                            const cJSON *facts, uint8_t **bytes, size_t *size);
/* The same, animated: see nl_apng_encode; milliseconds 0: the first of them alone. */
nl_status nl_animation_encode(nl_context *context, const uint8_t *const *pictures, int count,
                              int height, int width, int milliseconds, const cJSON *facts,
                              uint8_t **bytes, size_t *size);
/* The last part of a path: how a file is called towards others. */
const char *nl_base_name(const char *path);

#endif
