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

/* Where a walk ends, and how many pictures of it are wanted. */
static nl_status plan_walk(nl_context *context, const nl_config *config, nl_task *task)
{
    static const nl_option seed_option = {"to-seed", .kind = NL_OPTION_SEED};
    const nl_task_options *options = &task->options;
    nl_classes to = {0};
    nl_status status = NL_OK;
    if (!options->walk && !options->to_class && !options->to_seed)
        return NL_OK;
    if (!options->walk)
        return nl_fail(context, NL_ERROR_USAGE,
                       "--to-class and --to-seed say where a --walk ends: give that, too");
    if (!options->to_class && !options->to_seed)
        return nl_fail(context, NL_ERROR_USAGE,
                       "--walk: where to? Give --to-class or --to-seed, or both");
    if (task->classes.count > 1)
        return nl_fail(context, NL_ERROR_USAGE, "--walk begins at one class, found %d in --class",
                       task->classes.count);
    task->count = options->n ? options->n : options->walk - options->first_index;
    if (options->first_index >= options->walk || task->count > options->walk - options->first_index)
        return nl_fail(context, NL_ERROR_USAGE, "--walk %lld has pictures 0 to %lld alone",
                       (long long)options->walk, (long long)options->walk - 1);
    task->end = (nl_mix){.label = nl_task_label(task, 0), .seed = options->seed};
    if (options->to_seed)
        NL_TRY(nl_option_set(context, &seed_option, options->to_seed, &task->end.seed));
    if (options->to_class) {
        NL_TRY(nl_classes_parse(context, config, options->to_class, &to));
        if (to.count > 1)
            NL_TRY(nl_fail(context, NL_ERROR_USAGE,
                           "--walk ends at one class, found %d in "
                           "--to-class",
                           to.count));
        task->end.label = nl_classes_at(&to, task->end.seed, 0);
    }
cleanup:
    nl_classes_free(context, &to);
    return status;
}

nl_status nl_task_plan(nl_context *context, const nl_config *config, const nl_config *guide,
                       const nl_task_options *options, int64_t usual, nl_task *task)
{
    nl_sampling given = nl_sampling_of(options);
    *task = (nl_task){.options = *options};
    NL_CHECK(nl_sampling_resolve(context, config, guide, &given, &task->sampling));
    NL_CHECK(nl_sampling_check(context, config, &task->sampling));
    NL_CHECK(nl_classes_parse(context, config, options->classes, &task->classes));
    task->count = options->n ? options->n : usual ? usual : NL_MAX(task->classes.count, 1);
    return plan_walk(context, config, task);
}

void nl_task_free(nl_context *context, nl_task *task)
{
    nl_classes_free(context, &task->classes);
}

int nl_task_label(const nl_task *task, int64_t i)
{
    int64_t index = task->options.walk ? 0 : task->options.first_index + i;
    return nl_classes_at(&task->classes, task->options.seed, index);
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
        if (!nl_same_text(*texts[i][0], *texts[i][1]))
            return false;
        *texts[i][0] = *texts[i][1] = NULL;
    }
    return !memcmp(&a, &b, sizeof(a)) &&
           nl_rounding_of(&one->options) == nl_rounding_of(&other->options);
}

/* Whoever takes the pictures knows them by their place in the task. */
typedef struct nl_taking {
    const nl_task_picture *next;
    nl_status (*picture)(void *user, const nl_picture *picture);
    void *user;
} nl_taking;

static nl_status take(void *user, const nl_picture *picture)
{
    nl_taking *taking = user;
    const nl_task_picture *wanted = taking->next++;
    nl_picture made = *picture;
    made.index = wanted->task->options.first_index + wanted->number;
    return taking->picture(taking->user, &made);
}

/* A picture of a walk is mixed of the first and the last; another one is itself. */
static nl_mix mix_of(const nl_task *task, int64_t index, int label)
{
    nl_mix mix = {.label = label, .seed = task->options.seed, .index = index};
    if (task->options.walk) {
        mix = task->end;
        mix.part = (double)index / (double)(task->options.walk - 1);
    }
    return mix;
}

nl_status nl_tasks_make(nl_model *model, const nl_making *making,
                        nl_status (*picture)(void *user, const nl_picture *picture), void *user)
{
    nl_context *context = nl_model_context(model);
    const nl_task *task = making->pictures[0].task;
    int64_t *indices = NULL;
    uint64_t *seeds = NULL;
    int *labels = NULL;
    nl_mix *mixes = NULL;
    bool walks = false;
    nl_taking taking = {making->pictures, picture, user};
    nl_status status = NL_OK;
    NL_TRY(NL_NEW_ARRAY(context, "mixes", making->count, &mixes));
    NL_TRY(NL_NEW_ARRAY(context, "image indices", making->count, &indices));
    NL_TRY(NL_NEW_ARRAY(context, "seeds", making->count, &seeds));
    NL_TRY(NL_NEW_ARRAY(context, "classes", making->count, &labels));
    for (int64_t i = 0; i < making->count; i++) {
        const nl_task_picture *wanted = &making->pictures[i];
        const nl_task_options *options = &wanted->task->options;
        int64_t index = options->first_index + wanted->number;
        indices[i] = options->walk ? 0 : index;
        seeds[i] = options->seed;
        labels[i] = nl_task_label(wanted->task, wanted->number);
        mixes[i] = mix_of(wanted->task, index, labels[i]);
        walks |= options->walk > 0;
    }
    nl_request request = {.size = sizeof(request),
                          .labels = labels,
                          .count = making->count,
                          .seeds = seeds,
                          .indices = indices,
                          .batch = making->batch,
                          .preview_every = making->preview_every,
                          .noise = making->noise,
                          .mixes = walks ? mixes : NULL,
                          .rounding = nl_rounding_of(&task->options),
                          .sampling = task->sampling};
    NL_TRY(nl_generate(model, &request, take, &taking));
cleanup:
    nl_free(context, mixes);
    nl_free(context, indices);
    nl_free(context, seeds);
    nl_free(context, labels);
    return status;
}
