/* SPDX-License-Identifier: MIT */
/* A distillation's data where none is given: what the teacher itself draws, evenly by class. */
#include <stdio.h>
#include <string.h>

#include "nl_latents.h"
#include "trainer.h"

typedef struct nl_drawn {
    nl_context *context;
    float *latents; /* of a shard */
    int64_t elements, first;
} nl_drawn;

static nl_status take(void *user, const nl_picture *picture)
{
    nl_drawn *drawn = user;
    memcpy(drawn->latents + (picture->index - drawn->first) * drawn->elements, picture->latents,
           (size_t)drawn->elements * sizeof(float));
    return NL_OK;
}

/* As the student will see it guided from within. */
static nl_sampling sampling_of(const nl_train_options *options)
{
    nl_sampling sampling = nl_sampling_default();
    sampling.cfg_scale = nl_sampling_cfg(options->guidance);
    for (int end = 0; end < 2 && options->guidance != 1; end++)
        sampling.cfg_interval[end] = options->guidance_interval[end];
    sampling.internal_guidance = options->internal_guidance;
    return sampling;
}

static nl_status draw_shard(nl_trainer *trainer, nl_model *teacher,
                            const nl_latents_options *latents, int64_t number)
{
    nl_context *context = trainer->context;
    nl_status status = NL_OK;
    int64_t first = number * NL_LATENTS_SHARD;
    int64_t n = NL_MIN(NL_LATENTS_SHARD, latents->count - first);
    nl_drawn drawn = {.context = context,
                      .elements = (int64_t)latents->channels * latents->height * latents->width,
                      .first = first};
    int *labels = NULL;
    NL_TRY(NL_NEW_ARRAY(context, "labels", n, &labels));
    NL_TRY(NL_NEW_ARRAY(context, "a shard", n * drawn.elements, &drawn.latents));
    for (int64_t i = 0; i < n; i++)
        labels[i] = latents->classes ? (int)((first + i) % latents->classes) : 0;
    nl_request request = {.labels = labels,
                          .count = n,
                          .seed = trainer->options->seed,
                          .first_index = first,
                          .sampling = sampling_of(trainer->options)};
    NL_TRY(nl_generate(teacher, &request, take, &drawn));
    NL_TRY(nl_latents_write_shard(context, latents, number, drawn.latents, labels));
    nl_log(context, NL_LOG_INFO, "%s: %lld of %lld samples of the teacher", latents->out,
           (long long)(first + n), (long long)latents->count);
cleanup:
    nl_free(context, labels);
    nl_free(context, drawn.latents);
    return status;
}

/* Names for dataset.json. Without names of its own a class is called by its number. */
static nl_status name_classes(nl_context *context, const nl_config *config, const char ***ids,
                              const char ***names, char (**numbers)[12])
{
    int count = config->num_classes;
    NL_CHECK(NL_NEW_ARRAY(context, "names of classes", count, ids));
    NL_CHECK(NL_NEW_ARRAY(context, "names of classes", count, names));
    NL_CHECK(NL_NEW_ARRAY(context, "numbers of classes", count, numbers));
    for (int i = 0; i < count; i++) {
        const nl_class_name *name = config->class_names ? &config->class_names[i] : NULL;
        snprintf((*numbers)[i], sizeof((*numbers)[i]), "%d", i);
        (*ids)[i] = name && name->wnid   ? name->wnid
                    : name && name->name ? name->name
                                         : (*numbers)[i];
        (*names)[i] = name && name->name ? name->name : (*ids)[i];
    }
    return NL_OK;
}

static nl_status draw(nl_trainer *trainer, const nl_latents_options *latents)
{
    nl_context *context = trainer->context;
    nl_status status = NL_OK;
    nl_model *teacher = NULL;
    nl_model_options model = {.path = trainer->options->teacher, .vae = "none"};
    NL_TRY(nl_make_folder(context, latents->out));
    NL_TRY(nl_model_load(context, &model, &teacher));
    for (int64_t i = trainer->group->rank; i < nl_latents_shards(latents->count);
         i += trainer->group->size)
        NL_TRY(draw_shard(trainer, teacher, latents, i));
cleanup:
    nl_model_destroy(teacher);
    return status;
}

nl_status nl_trainer_draw_data(nl_trainer *trainer, const nl_checkpoint *checkpoint)
{
    const nl_train_options *options = trainer->options;
    nl_context *context = trainer->context;
    nl_status status = NL_OK;
    const char **ids = NULL, **names = NULL;
    char(*numbers)[12] = NULL, *about = NULL, sha256[65], inside[64] = "";
    bool found = false;
    nl_config config;
    NL_TRY(nl_config_from_checkpoint(checkpoint, NULL, &config));
    NL_TRY(name_classes(context, &config, &ids, &names, &numbers));
    NL_TRY(nl_checkpoint_sha256(checkpoint, sha256));
    if (nl_guides_inside(options->internal_guidance))
        snprintf(inside, sizeof(inside), "\"internal_guidance\": %.9g, ",
                 options->internal_guidance);
    NL_TRY(nl_format(context, &about,
                     "{\"teacher_sha256\": \"%s\", \"cfg_scale\": %.9g, \"cfg_interval\": [%.9g, "
                     "%.9g], %s\"seed\": \"%llu\", \"count\": %lld}",
                     sha256, options->guidance, options->guidance_interval[0],
                     options->guidance_interval[1], inside, (unsigned long long)options->seed,
                     (long long)options->teacher_samples));
    nl_latents_options latents = {.out = options->data,
                                  .about = about,
                                  .channels = config.in_channels,
                                  .height = config.input_height,
                                  .width = config.input_width,
                                  .factor = nl_model_factor(&config),
                                  .autoencoder = nl_autoencoder_names[config.autoencoder],
                                  .scale = config.latent_scale,
                                  .shift = config.latent_shift,
                                  .class_ids = ids,
                                  .class_names = names,
                                  .classes = config.num_classes,
                                  .count = options->teacher_samples};
    NL_TRY(nl_latents_find(context, &latents, &found));
    if (!found) {
        NL_TRY(draw(trainer, &latents));
        NL_TRY(nl_group_barrier(trainer->group));
        if (trainer->group->rank == 0)
            NL_TRY(nl_latents_finish(context, &latents));
        NL_TRY(nl_group_barrier(trainer->group));
    }
cleanup:
    nl_config_free(context, &config);
    nl_free(context, ids);
    nl_free(context, names);
    nl_free(context, numbers);
    nl_free(context, about);
    return status;
}
