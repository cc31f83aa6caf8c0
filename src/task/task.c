/* SPDX-License-Identifier: MIT */
/* A task from its options to its pictures. */
#include "nl_task.h"

#include <string.h>

nl_status nl_task_load(nl_context *context, const nl_task_options *options, nl_model **model)
{
    nl_model_options of_model = {.path = options->model,
                                 .key = options->key,
                                 .config_path = options->config,
                                 .architecture = options->arch,
                                 .transport_path = options->path,
                                 .prediction = options->prediction,
                                 .vae = options->vae,
                                 .height = (int)options->size[0],
                                 .width = (int)options->size[1],
                                 .guide = options->guide};
    return nl_model_load(context, &of_model, model);
}

nl_status nl_task_plan(nl_context *context, const nl_config *config, const nl_config *guide,
                       const nl_task_options *options, int64_t usual, nl_task *task)
{
    nl_sampling given = nl_sampling_of(options);
    nl_status status = NL_OK;
    *task = (nl_task){.options = *options};
    NL_TRY(nl_sampling_resolve(context, config, guide, &given, &task->sampling));
    NL_TRY(nl_sampling_check(context, config, &task->sampling));
    NL_TRY(nl_classes_parse(context, config, options->classes, &task->classes));
    task->count = options->n ? options->n : usual ? usual : NL_MAX(task->classes.count, 1);
cleanup:
    return status;
}

void nl_task_free(nl_context *context, nl_task *task)
{
    nl_classes_free(context, &task->classes);
}

int nl_task_label(const nl_task *task, int64_t i)
{
    return nl_classes_at(&task->classes, task->options.seed, task->options.first_index + i);
}

static bool same_text(const char *a, const char *b)
{
    return a == b || (a && b && !strcmp(a, b));
}

/* What is no text is compared as it lies there: a difference that means nothing only costs a batch. */
bool nl_tasks_agree(const nl_task *one, const nl_task *other)
{
    nl_sampling a = one->sampling, b = other->sampling;
    const char **texts[][2] = {{&a.sampler, &b.sampler},
                               {&a.respacing, &b.respacing},
                               {&a.sde_form, &b.sde_form},
                               {&a.last_step, &b.last_step}};
    for (int i = 0; i < NL_COUNT(texts); i++) {
        if (!same_text(*texts[i][0], *texts[i][1]))
            return false;
        *texts[i][0] = *texts[i][1] = NULL;
    }
    return !memcmp(&a, &b, sizeof(a)) &&
           nl_rounding_of(&one->options) == nl_rounding_of(&other->options);
}

nl_status nl_tasks_make(nl_model *model, const nl_making *making,
                        nl_status (*picture)(void *user, const nl_picture *picture), void *user)
{
    nl_context *context = nl_model_context(model);
    const nl_task *task = making->pictures[0].task;
    int64_t *indices = NULL;
    uint64_t *seeds = NULL;
    int *labels = NULL;
    nl_status status = NL_OK;
    NL_TRY(NL_NEW_ARRAY(context, "image indices", making->count, &indices));
    NL_TRY(NL_NEW_ARRAY(context, "seeds", making->count, &seeds));
    NL_TRY(NL_NEW_ARRAY(context, "classes", making->count, &labels));
    for (int64_t i = 0; i < making->count; i++) {
        const nl_task_picture *wanted = &making->pictures[i];
        indices[i] = wanted->task->options.first_index + wanted->number;
        seeds[i] = wanted->task->options.seed;
        labels[i] = nl_task_label(wanted->task, wanted->number);
    }
    nl_request request = {.size = sizeof(request),
                          .labels = labels,
                          .count = making->count,
                          .seeds = seeds,
                          .indices = indices,
                          .batch = making->batch,
                          .preview_every = making->preview_every,
                          .noise = making->noise,
                          .rounding = nl_rounding_of(&task->options),
                          .sampling = task->sampling};
    NL_TRY(nl_generate(model, &request, picture, user));
cleanup:
    nl_free(context, indices);
    nl_free(context, seeds);
    nl_free(context, labels);
    return status;
}
