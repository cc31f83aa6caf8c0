/* SPDX-License-Identifier: MIT */
/*
 * The recipe "small": one table, by the number of pictures. Where its numbers come from:
 *
 * - How long: the shipped model's held-out loss was least after each of its 18,486 pictures had been seen some 750 times,
 *   with dropout; before, without it and with half the pictures, after 530 times (docs/results.md). The steps below let
 *   each picture be seen 500 to 1,300 times, from nothing more often, and patience ends the run.
 * - How large a step: 1e-3 at batch 512 is what that model was trained with. Few pictures want what it knows already kept:
 *   the fewer there are, the smaller the rate.
 * - Averages of power functions forget the first weights whatever the length; the fall of the rate over the last 40 %
 *   brought more than any of them, where the run comes to its end.
 */
#include "recipe.h"

#include <math.h>
#include <stdio.h>
#include <string.h>

#include "nl_data.h"
#include "nl_pipeline.h"

typedef struct nl_length {
    int64_t steps;
    double rate;
} nl_length;

static const struct nl_row {
    int64_t pictures; /* at most */
    int64_t batch;
    nl_length on, anew; /* from trained weights, from nothing */
    double dropout;
    int64_t warmup;
} rows[] = {
    {500, 64, {2000, 1e-4}, {10000, 5e-4}, 0.2, 100},
    {5000, 128, {8000, 2e-4}, {16000, 1e-3}, 0.15, 200},
    {50000, 512, {24000, 1e-3}, {24000, 1e-3}, 0.1, 500},
    {INT64_MAX, 512, {100000, 1e-3}, {100000, 1e-3}, 0, 500},
};

enum {
    SEEN = 2000,         /* samples of each class in a run, at least */
    HELD_OUT_EVERY = 10, /* pictures of a class, of which one is held out */
    LOOKS = 40,          /* validations in a run, */
    PATIENCE = 8,        /* of which so many without a better one end it */
    DRAWS = 512,         /* samples of a validation at least: of few pictures at several times */
    VALIDATION = 5,      /* the part of the time that validations take is a fifth at most */
    SNAPSHOTS = 8,       /* in the whole run: each is a model of 16 bits for each average */
    KEPT_POINTS = 2,
    /* An hour of two busy cores is some 400 steps of 16 with NaLaSiT-S/2. */
    CPU_BATCH = 16,
    CPU_STEPS = 2000, /* at most */
    CPU_MINUTES = 60,
    CPU_DRAWS = 64,
    CPU_LOG_EVERY = 10, /* steps: of that hour's 400 */
};

int64_t nl_recipe_held_out_every(const nl_recipe_facts *facts)
{
    int64_t each = facts->pictures / NL_MAX(facts->classes, 1); /* a class has to have so many */
    int64_t every = facts->cpu ? NL_MIN(facts->pictures / CPU_DRAWS, each) : 0;
    return NL_MAX(every, HELD_OUT_EVERY);
}

/* On what is held out, whole passes, since it lies in the order of its classes. */
static void choose_validation(const nl_recipe_facts *facts, int64_t steps,
                              nl_train_options *options)
{
    int64_t draws = facts->cpu ? CPU_DRAWS : DRAWS, held = facts->held_out;
    int64_t samples = (draws + held - 1) / held * held;
    int64_t least = VALIDATION * samples / (3 * options->batch); /* a step takes three passes */
    options->validation_count = samples > held ? samples : 0;
    options->validate_every = NL_MAX(NL_MAX(steps / LOOKS, 1), least);
    options->patience = PATIENCE;
}

void nl_recipe_choose(const nl_recipe_facts *facts, nl_train_options *options)
{
    const struct nl_row *row = rows;
    while (row->pictures < facts->pictures)
        row++;
    nl_length length = facts->starts ? row->on : row->anew;
    if (options->batch == nl_train_defaults.batch)
        options->batch = facts->cpu ? CPU_BATCH : row->batch;
    int64_t steps = NL_MAX(length.steps, (int64_t)facts->classes * SEEN / options->batch);
    if (facts->cpu)
        steps = NL_MIN(steps, CPU_STEPS);
    if (options->steps)
        steps = options->steps;
    if (!options->steps && !options->epochs && options->minutes <= 0) {
        options->steps = steps;
        options->minutes = facts->cpu ? CPU_MINUTES : 0;
    }
    options->rate = length.rate;
    options->beta2 = 0.99;
    options->decay = 0.05;
    options->clip = 1;
    options->warmup = row->warmup;
    options->times = "logit-normal";
    options->dropout = row->dropout;
    /* On the CPU the hour ends most runs, and a rate by the clock could not be had again. */
    if (facts->cpu) {
        options->log_every = CPU_LOG_EVERY;
    } else {
        options->schedule = "cooldown";
        options->cooldown = 0.4;
    }
    options->ema = "power:0.1,power:0.05";
    options->snapshot_every = NL_MAX(steps / SNAPSHOTS, 1);
    options->snapshots = 2 * SNAPSHOTS;
    options->keep = KEPT_POINTS;
    if (facts->held_out)
        choose_validation(facts, steps, options);
}

/* Whether latents are those that the shipped model knows, and it is there. */
static nl_status fits_shipped(nl_context *context, const nl_dataset_info *info, bool *fits)
{
    char *path = NULL;
    *fits = false;
    if (strcmp(info->autoencoder, "tiny") != 0 || info->channels != 4 || info->latent_scale != 1 ||
        info->latent_shift != 0 || info->height % 2 || info->width % 2)
        return NL_OK;
    nl_status status = nl_find_data(context, NULL, nl_shipped_model, &path);
    *fits = path != NULL;
    nl_free(context, path);
    return status;
}

/* Of pixels the patch by which there are some 256 tokens, as there are of latents; 8 x 8 at most. */
static const char *model_for(const nl_dataset_info *info)
{
    static const char *const names[] = {"NaLaSiT-S/2", "NaLaSiT-S/4", "NaLaSiT-S/8"};
    int i = 0, side = NL_MIN(info->height, info->width);
    while (info->kind == NL_DATA_PIXELS && i < 2 && side >= 64 << i &&
           info->height % (4 << i) == 0 && info->width % (4 << i) == 0)
        i++;
    return names[i];
}

static nl_status start(nl_context *context, const nl_dataset_info *info, nl_train_options *options)
{
    bool fits = false;
    if (options->model || options->init)
        return NL_OK;
    NL_CHECK(fits_shipped(context, info, &fits));
    *(fits ? &options->init : &options->model) = fits ? nl_shipped_model : model_for(info);
    return NL_OK;
}

/* What the network is trained as: of the model that is named, or of the weights that come first. */
static nl_status read_network(nl_context *context, const nl_train_options *options,
                              nl_config *config)
{
    nl_status status = NL_OK;
    nl_checkpoint *init = NULL;
    nl_config_init(config);
    if (options->init) {
        NL_TRY(nl_open_backbone(context, options->init, NULL, &init));
        NL_TRY(nl_config_from_checkpoint(init, NULL, config));
    }
    if (options->model)
        NL_TRY(nl_config_from_name(context, options->model, config));
cleanup:
    nl_checkpoint_close(init);
    return status;
}

/* The batch in as many parts as the memory wants: about 30 bytes a parameter, and 13 activations a block (docs/training.md). */
static void take_parts(nl_context *context, const nl_config *config, const nl_dataset_info *info,
                       nl_train_options *options)
{
    bool queues = nl_device_queues(context->device);
    double width = config->hidden_size, depth = config->depth;
    double tokens = (double)info->height * info->width / (config->patch_size * config->patch_size);
    double weights = 18 * width * width * depth * 30;
    double sample = 13 * 1.25 * tokens * width * depth * (queues ? 2 : 4);
    double have = 0.8 * (double)nl_device_memory_left(context->device);
    while (weights + sample * (double)(options->batch / options->accumulate) > have &&
           options->batch % (2 * options->accumulate) == 0)
        options->accumulate *= 2;
}

/* Behind a third of the blocks; 0: of so few none. */
static int middle_head(const nl_config *config)
{
    return config->middle_head ? config->middle_head : config->depth / 3;
}

static void describe_network(const nl_config *config, const nl_dataset_info *info, bool anew,
                             char *text, size_t size)
{
    bool crops = info->crops_known && info->count > info->pictures;
    bool lepe = anew && config->attention == NL_ATTENTION_NALA;
    snprintf(text, size, "{\"middle_head\": %d%s%s}", middle_head(config),
             crops ? ", \"crop_conditioning\": true" : "", lepe ? ", \"lepe\": true" : "");
}

/* Pictures that are held out: those of --val, or some of the data. */
static nl_status hold_out(nl_context *context, nl_train_options *options, nl_recipe_facts *facts)
{
    const char *path = options->validation ? options->validation : options->data;
    nl_dataset *held = NULL;
    nl_status status = NL_OK;
    NL_TRY(nl_dataset_open(context, path, &held));
    if (!options->validation) {
        double given = options->hold_out;
        double part = given > 0 ? given : 1.0 / (double)nl_recipe_held_out_every(facts);
        status = nl_dataset_hold_out(held, part, true);
        options->hold_out = status == NL_OK ? part : given;
        if (status == NL_ERROR_USAGE && given <= 0) { /* too few of each class */
            status = NL_OK;
            goto cleanup;
        }
        NL_TRY(status);
    }
    facts->held_out = nl_dataset_get_info(held)->count;
cleanup:
    nl_dataset_close(held);
    return status;
}

nl_status nl_recipe_small(nl_context *context, nl_train_options *options, nl_recipe *recipe)
{
    nl_status status = NL_OK;
    nl_dataset *data = NULL;
    nl_config config;
    nl_config_init(&config);
    *recipe = (nl_recipe){0};
    if (!options->data)
        return NL_OK; /* refused later, with all that is missing */
    NL_TRY(nl_dataset_open(context, options->data, &data));
    const nl_dataset_info *info = nl_dataset_get_info(data);
    NL_TRY(start(context, info, options));
    NL_TRY(read_network(context, options, &config));
    recipe->facts = (nl_recipe_facts){.pictures = info->pictures,
                                      .classes = info->classes,
                                      .starts = options->init != NULL,
                                      .cpu = !nl_device_queues(context->device)};
    if (!options->config) {
        describe_network(&config, info, !options->init, recipe->config, sizeof(recipe->config));
        options->config = recipe->config;
        recipe->middle_head = middle_head(&config) > 0;
    }
    NL_TRY(hold_out(context, options, &recipe->facts));
    bool open_end = !options->steps && !options->epochs && options->minutes <= 0;
    nl_recipe_choose(&recipe->facts, options);
    recipe->minutes = open_end ? options->minutes : 0;
    if (config.architecture == NL_ARCH_DIT)
        options->times = "uniform";
    take_parts(context, &config, info, options);
cleanup:
    nl_config_free(context, &config);
    nl_dataset_close(data);
    return status;
}
