/* SPDX-License-Identifier: MIT */
/* From options and data to a configuration. */
#include <stdio.h>
#include <string.h>

#include "nl_json.h"
#include "schedule.h"
#include "trainer.h"

#define DEFAULTS                                                                                   \
    .size = sizeof(nl_train_options), .resume = "auto", .batch = 256, .accumulate = 1,             \
    .rate = 1e-4, .beta1 = 0.9, .beta2 = 0.999, .epsilon = 1e-8, .schedule = "constant",           \
    .cooldown = 0.2, .query_scale = 1, .ema = "auto", .times = "uniform", .times_deviation = 1,    \
    .weighting = "none", .min_snr = 5, .label_dropout = -1, .log_every = -1, .validate_every = -1, \
    .sample_every = -1, .save_every = -1, .keep = 3, .samples = 16, .cfg_scale = -1,               \
    .max_skipped = 10, .snapshots = 32

const nl_train_options nl_train_defaults = {DEFAULTS, .guidance = 1};
const nl_train_options nl_distill_defaults = {DEFAULTS,
                                              .guidance = 3,
                                              .guidance_interval = {0.1, 0.9},
                                              .alpha_floor = 0.02,
                                              .adaptive = 1e-3,
                                              .teacher_samples = 30720,
                                              .match_from = 0.5,

                                              .fake_updates = 3};

const char *const nl_train_times[] = {"uniform", "logit-normal", NULL};
const char *const nl_train_weightings[] = {"none", "velocity", "likelihood", "min-snr", NULL};

/* By what a distillation alone has. */
static bool distills(const nl_train_options *options)
{
    return options->alpha_floor > 0;
}

/* Of an older header the first part, and the caller's size stays. */
void nl_train_recipe(nl_train_options *options)
{
    nl_train_options recipe = nl_train_defaults;
    size_t size = options->size ? options->size : sizeof(recipe);
    recipe.size = size;
    memcpy(options, &recipe, NL_MIN(size, sizeof(recipe)));
}

/* What would divide by zero, or count backwards, or be taken for something else. */
static nl_status check_ranges(nl_context *context, const nl_train_options *o)
{
    const struct {
        const char *name;
        double value, low, high;
    } numbers[] = {{"batch", (double)o->batch, 1, 1 << 20},
                   {"accumulate", (double)o->accumulate, 1, 1 << 16},
                   {"steps", (double)o->steps, 0, 1e12},
                   {"epochs", (double)o->epochs, 0, 1e9},
                   {"minutes", o->minutes, 0, 1e7},
                   {"overfit", (double)o->overfit, 0, 1e12},
                   {"warmup", (double)o->warmup, 0, 1e9},
                   {"cooldown", o->cooldown, 0.001, 1},
                   {"log-every", (double)o->log_every, -1, 10000},
                   {"val-every", (double)o->validate_every, -1, 1e9},
                   {"val-count", (double)o->validation_count, 0, 1e12},
                   {"sample-every", (double)o->sample_every, -1, 1e9},
                   {"save-every", (double)o->save_every, -1, 1e9},
                   {"keep", (double)o->keep, 0, 1e6},
                   {"samples", (double)o->samples, 1, 1024},
                   {"sample-steps", (double)o->sample_steps, 0, 1000},
                   {"snapshot-every", (double)o->snapshot_every, 0, 1e9},
                   {"snapshots", (double)o->snapshots, 2, 1000},
                   {"patience", (double)o->patience, 0, 1e6},
                   {"max-skipped", (double)o->max_skipped, 1, 1e6},
                   {"dump", (double)o->dump, 0, 10000},
                   {"hold-out", o->hold_out, 0, 0.5},
                   {"teacher-internal", o->internal_guidance, 0, 1000},
                   {"match", o->match, 0, 1e6},
                   {"match-from", o->match_from, 0, 0.99},
                   {"match-cfg", o->match_guidance, 0, 100},
                   {"adversarial", o->adversarial, 0, 1e6},
                   {"fake-lr", o->fake_rate, 0, 1e3},
                   {"fake-updates", (double)o->fake_updates, o->match > 0, 100}};
    const struct {
        const char *name, *value, *const *choices;
    } words[] = {{"schedule", o->schedule, nl_train_schedules},
                 {"times", o->times, nl_train_times},
                 {"weighting", o->weighting, nl_train_weightings}};
    for (int i = 0; i < NL_COUNT(numbers); i++)
        if (!(numbers[i].value >= numbers[i].low && numbers[i].value <= numbers[i].high))
            return nl_fail(context, NL_ERROR_USAGE, "--%s: expected %.12g to %.12g, found %.12g",
                           numbers[i].name, numbers[i].low, numbers[i].high, numbers[i].value);
    for (int i = 0; i < NL_COUNT(words); i++) {
        int found = 0;
        while (words[i].value && words[i].choices[found] &&
               strcmp(words[i].value, words[i].choices[found]) != 0)
            found++;
        if (!words[i].value || !words[i].choices[found])
            return nl_fail(context, NL_ERROR_USAGE, "--%s: there is no '%s'", words[i].name,
                           words[i].value ? words[i].value : "");
    }
    return NL_OK;
}

/* Refuses what was given and would change nothing. */
static nl_status check_idle(nl_context *context, const nl_train_options *o)
{
    const nl_train_options *usual = distills(o) ? &nl_distill_defaults : &nl_train_defaults;
    bool validates = o->validation || o->hold_out > 0, draws = o->sample_every != 0;
    bool normal = nl_same_text(o->times, "logit-normal"), matches = o->match > 0;
    bool maps = o->teacher && !nl_converts(o);
    static const char target[] = "the target's loss, which --one-step leaves out";
    bool guides = o->guidance != 1 || (matches && o->match_guidance > 0 && o->match_guidance != 1);
    const nl_idle options[] = {
        {"cooldown", o->cooldown != usual->cooldown, nl_same_text(o->schedule, "cooldown"),
         "--schedule cooldown"},
        {"last-lr", o->last_rate != 0, !nl_same_text(o->schedule, "constant"),
         "--schedule cosine or cooldown"},
        {"times-mean", o->times_mean != 0, normal, "--times logit-normal"},
        {"times-deviation", o->times_deviation != 1, normal, "--times logit-normal"},
        {"min-snr", o->min_snr != usual->min_snr, nl_same_text(o->weighting, "min-snr"),
         "--weighting min-snr"},
        {"val-every", o->validate_every > 0, validates, "--val or --hold-out"},
        {"val-count", o->validation_count != 0, validates, "--val or --hold-out"},
        {"snapshots", o->snapshots && o->snapshots != usual->snapshots, o->snapshot_every > 0,
         "--snapshot-every"},
        {"samples", o->samples != usual->samples, draws, "grids: --sample-every 0 asks for none"},
        {"sample-steps", o->sample_steps != 0, draws, "grids: --sample-every 0 asks for none"},
        {"cfg-scale", o->cfg_scale > 0, draws, "grids: --sample-every 0 asks for none"},
        {"match-from", o->match_from != usual->match_from, matches, "--match"},
        {"one-step", o->one_step, matches, "--match"},
        {"match-from", o->match_from != usual->match_from, !o->one_step, target},
        {"alpha-floor", o->alpha_floor != usual->alpha_floor, !o->one_step, target},
        {"adaptive", o->adaptive != usual->adaptive, !o->one_step, target},
        {"val", o->validation != NULL, !o->one_step, target},
        {"hold-out", o->hold_out > 0, !o->one_step, target},
        {"match-cfg", o->match_guidance != 0, matches, "--match"},
        {"adversarial", o->adversarial != 0, matches, "--match"},
        {"fake-lr", o->fake_rate != 0, matches, "--match"},
        {"fake-updates", o->fake_updates != usual->fake_updates, matches, "--match"},
        {"alpha-floor", o->alpha_floor != usual->alpha_floor, maps, "a flow map: --flow-map"},
        {"adaptive", o->adaptive != usual->adaptive, maps, "a flow map: --flow-map"},
        {"teacher-interval",
         o->guidance_interval[0] != usual->guidance_interval[0] ||
             o->guidance_interval[1] != usual->guidance_interval[1],
         maps && guides, "a teacher that is guided: --teacher-cfg"},
        {"teacher-samples", o->teacher_samples != usual->teacher_samples, !o->data,
         "the teacher's own: --data gives others"},
    };
    return nl_refuse_idle(context, options, NL_COUNT(options));
}

/* What only a student of another network minds. */
static nl_status check_conversion(nl_context *context, const nl_train_options *o)
{
    if (!o->student_config)
        return NL_OK;
    if (!o->teacher)
        return nl_fail(context, NL_ERROR_USAGE,
                       "--student-config needs the model to learn from (--teacher)");
    if (o->flow_map)
        return NL_OK;
    if (!o->data)
        return nl_fail(context, NL_ERROR_USAGE,
                       "a student of another network learns the teacher's predictions on data: "
                       "give --data");
    if (o->model || o->match > 0 || nl_guides_inside(o->internal_guidance) ||
        (o->guidance != 1 && o->guidance != nl_distill_defaults.guidance))
        return nl_fail(context, NL_ERROR_USAGE,
                       "a student of another network has the teacher's sizes and is guided from "
                       "without, as the teacher: leave out --model, --teacher-cfg, "
                       "--teacher-internal and --match, or make a flow map of it (--flow-map)");
    if (o->dump)
        return nl_fail(context, NL_ERROR_USAGE,
                       "--dump writes down what ordinary training draws: a distillation has more");
    return NL_OK;
}

/* As it will be opened when the first grid is drawn. */
static nl_status check_autoencoder(nl_context *context, const char *vae)
{
    char *found = NULL;
    if (!vae || !strcmp(vae, "none") || !strcmp(vae, "tiny"))
        return NL_OK;
    NL_CHECK(nl_find_named(context, vae, &found));
    bool there = nl_path_exists(found);
    nl_free(context, found);
    return there ? NL_OK
                 : nl_fail(context, NL_ERROR_INPUT,
                           "%s: the autoencoder for pictures (--vae) is not there", vae);
}

/* What every training minds. */
static nl_status check_rest(nl_context *context, const nl_train_options *options)
{
    if (!(options->query_scale > 0))
        return nl_fail(context, NL_ERROR_USAGE, "--query-scale %g: expected more than 0",
                       options->query_scale);
    NL_CHECK(check_autoencoder(context, options->vae));
    bool validates = options->validate_every && (options->validation || options->hold_out > 0);
    if (options->validation && options->hold_out > 0)
        return nl_fail(context, NL_ERROR_USAGE,
                       "--val and --hold-out both say what is held out: give one of them");
    if (options->patience && !validates)
        return nl_fail(context, NL_ERROR_USAGE,
                       "--patience ends the run by its loss on held-out data: give --val, or "
                       "--hold-out 0.1");
    if (validates && !options->ema)
        return nl_fail(context, NL_ERROR_USAGE, "--val measures the moving average: give --ema");
    return check_idle(context, options);
}

nl_status nl_trainer_check(nl_context *context, const nl_train_options *options)
{
    bool endless = !options->steps && !options->epochs && options->minutes <= 0;
    NL_CHECK(check_ranges(context, options));
    if (options->teacher && !options->data && (options->dry_run || options->profile))
        return nl_fail(context, NL_ERROR_USAGE,
                       "--dry-run and --profile draw no samples of the teacher: give --data");
    if ((!options->data && !options->teacher) || !options->out)
        return nl_fail(
            context, NL_ERROR_USAGE,
            "expected the data set (--data, made by nalagen encode) and a folder for the "
            "run (--out)");
    if (distills(options) && !options->teacher)
        return nl_fail(context, NL_ERROR_USAGE,
                       "expected the model to learn from (--teacher, a SiT)");
    if (!options->model && !options->init && !options->teacher)
        return nl_fail(context, NL_ERROR_USAGE,
                       "expected a model by name, such as --model NaLaSiT-S/2, or a checkpoint to "
                       "start from (--init)");
    if (endless && strcmp(options->schedule, "constant") != 0)
        return nl_fail(context, NL_ERROR_USAGE,
                       "--schedule %s needs the run's end: give --steps, --epochs or --minutes",
                       options->schedule);
    if (options->batch % options->accumulate)
        return nl_fail(context, NL_ERROR_USAGE,
                       "--batch %lld cannot be taken in %lld equal parts (--accumulate)",
                       (long long)options->batch, (long long)options->accumulate);
    nl_status converts = check_conversion(context, options);
    if (converts != NL_OK || nl_converts(options))
        return converts == NL_OK ? check_rest(context, options) : converts;
    if (options->teacher && endless)
        return nl_fail(context, NL_ERROR_USAGE,
                       "a distillation goes from one target to another over the run, and needs its "
                       "end: give --steps, --epochs or --minutes");
    if (options->teacher && (options->model || strcmp(options->times, "uniform") != 0 ||
                             strcmp(options->weighting, "none") != 0 || options->label_dropout > 0))
        return nl_fail(
            context, NL_ERROR_USAGE,
            "a distillation has the teacher's network, times and weights of its own and "
            "no dropped labels: leave out --model, --times, --weighting, --label-dropout");
    if (options->match > 0 && !options->teacher)
        return nl_fail(context, NL_ERROR_USAGE,
                       "--match needs the model whose pictures are to be matched (--teacher)");
    if (options->dump && options->teacher)
        return nl_fail(context, NL_ERROR_USAGE,
                       "--dump writes down what ordinary training draws: a distillation has more");
    return check_rest(context, options);
}

/* What the data says about a model of it, as a configuration's JSON. */
static nl_status describe_data(nl_context *context, const nl_dataset_info *info, char **text)
{
    cJSON *json = cJSON_CreateObject(), *pair;
    double size[2] = {info->height, info->width};
    int factor = info->image_height / info->height;
    bool built = json &&
                 cJSON_AddItemToObject(json, "input_size", cJSON_CreateDoubleArray(size, 2)) &&
                 cJSON_AddNumberToObject(json, "in_channels", info->channels) &&
                 cJSON_AddNumberToObject(json, "num_classes", info->classes) &&
                 cJSON_AddStringToObject(json, "autoencoder", info->autoencoder) &&
                 cJSON_AddNumberToObject(json, "latent_scale", info->latent_scale) &&
                 cJSON_AddNumberToObject(json, "latent_shift", info->latent_shift) &&
                 (info->kind == NL_DATA_PIXELS || factor == 8 ||
                  cJSON_AddNumberToObject(json, "latent_factor", factor));
    cJSON *names = built && info->classes ? cJSON_AddArrayToObject(json, "class_names") : NULL;
    for (int i = 0; names && built && i < info->classes; i++) {
        const char *const both[2] = {info->class_ids[i], info->class_names[i]};
        bool one = !strcmp(both[0], both[1]);
        pair = one ? cJSON_CreateString(both[0]) : cJSON_CreateStringArray(both, 2);
        built = pair && cJSON_AddItemToArray(names, pair);
    }
    *text = built ? nl_json_print(json, false) : NULL;
    cJSON_Delete(json);
    return *text ? NL_OK : nl_fail(context, NL_ERROR_MEMORY, "no memory for a configuration");
}

static nl_status check_against_data(nl_context *context, const nl_config *config,
                                    const nl_dataset_info *info, const char *data)
{
    if (config->in_channels == info->channels && config->input_height == info->height &&
        config->input_width == info->width && config->num_classes == info->classes)
        return NL_OK;
    return nl_fail(context, NL_ERROR_USAGE,
                   "%s has %d x %d x %d samples of %d classes, and --config asks for a model of "
                   "%d x %d x %d and %d: leave out what follows from the data",
                   data, info->channels, info->height, info->width, info->classes,
                   config->in_channels, config->input_height, config->input_width,
                   config->num_classes);
}

/* What a distillation has made of the model that training begins with: from now on it is a network of one time again, to be
 * guided from without. */
static void forget_distillation(nl_config *config)
{
    nl_config fresh;
    nl_config_init(&fresh);
    if (config->flow_map)
        config->class_dropout_prob = fresh.class_dropout_prob;
    if (config->internal_guidance)
        config->middle_head = 0;
    config->flow_map = 0;
    config->one_step = NL_ONE_STEP_NONE;
    config->guided = false;
    config->internal_guidance = 0;
}

/* Names of another data set do not belong to this one's classes. */
static void forget_data(nl_context *context, nl_config *config)
{
    nl_config_free(context, config);
    config->num_classes = 0;
    config->images_seen = 0;
    config->ema_decay = config->ema_sigma_rel = 0;
}

nl_status nl_trainer_check_flow_map(nl_context *context, const char *file, const nl_config *config)
{
    bool transport = config->architecture == NL_ARCH_SIT;
    if (transport && config->path == NL_PATH_LINEAR && config->prediction == NL_PREDICTION_VELOCITY)
        return NL_OK;
    return nl_fail(context, NL_ERROR_USAGE,
                   "%s: a flow map is made of a SiT that predicts the velocity on the linear path, "
                   "and this is %s%s%s%s; --student-config makes an ordinary model of another "
                   "network of it",
                   file, transport ? "one of the " : "a DiT",
                   transport ? nl_prediction_names[config->prediction] : "",
                   transport ? " on the path " : "", transport ? nl_path_names[config->path] : "");
}

/* Internal guidance costs a student nothing and it need not learn it: its own middle head does it by the same scale, so
 * that it begins as the guided teacher. One that is a flow map already keeps its own. */
static void keep_middle_head(const nl_train_options *options, nl_config *config)
{
    if (!config->middle_head)
        config->internal_guidance = 0;
    else if (!config->internal_guidance && nl_guides_inside(options->internal_guidance))
        config->internal_guidance = options->internal_guidance;
    if (!config->internal_guidance)
        config->middle_head = 0;
}

/* The discriminator is a middle head, and must not tell parts of pictures from whole ones. */
static nl_status check_discriminator(nl_context *context, const nl_train_options *options,
                                     const nl_dataset_info *data, const nl_config *student)
{
    if (!(options->adversarial > 0))
        return NL_OK;
    if (!student->middle_head)
        return nl_fail(context, NL_ERROR_USAGE,
                       "--adversarial needs a student that keeps its teacher's middle head, which "
                       "is the discriminator's: --teacher-internal");
    if (data->count > data->pictures)
        return nl_fail(
            context, NL_ERROR_USAGE,
            "%s holds parts of pictures, and the student draws whole ones: --adversarial "
            "needs data encoded without --crops",
            options->data);
    return NL_OK;
}

static nl_status refuse_key(nl_context *context, const char *key, const char *why)
{
    return nl_fail(context, NL_ERROR_USAGE, "\"%s\" of the configuration: %s: leave it out", key,
                   why);
}

/* What --config and --student-config say, and what they cannot: that of which training itself decides. */
static nl_status take_configuration(nl_context *context, const nl_train_options *options,
                                    nl_config *config)
{
    static const char made[] = "nalagen distill makes it, and training cannot be told";
    if (options->teacher) /* it learns the whole picture's velocities */
        config->crop_conditioning = false;
    if (nl_converts(options))
        config->middle_head = 0;
    const nl_config before = *config;
    if (options->config)
        NL_CHECK(nl_config_parse_over(context, options->config, config));
    if (options->student_config)
        NL_CHECK(nl_config_parse_over(context, options->student_config, config));
    if (config->stored_position)
        return refuse_key(context, "stored_position", "there is no table to go with it");
    if (config->flow_map != before.flow_map)
        return refuse_key(context, "flow_map", made);
    if (config->one_step != before.one_step)
        return refuse_key(context, "one_step", made);
    if (config->guided != before.guided)
        return refuse_key(context, "guided", made);
    if (config->internal_guidance != before.internal_guidance)
        return refuse_key(context, "internal_guidance", made);
    if (options->teacher && config->crop_conditioning)
        return refuse_key(context, "crop_conditioning", "a student draws whole pictures");
    bool head = config->middle_head && config->middle_head != before.middle_head;
    if (options->teacher && head && !nl_guides_inside(options->internal_guidance))
        return refuse_key(context, "middle_head", "a student has one for --teacher-internal alone");
    return NL_OK;
}

nl_status nl_trainer_configure(nl_context *context, const nl_train_options *options,
                               const nl_dataset_info *data, const nl_checkpoint *init,
                               nl_config *config)
{
    nl_status status = NL_OK;
    char *text = NULL;
    nl_config_init(config);
    if (init)
        NL_TRY(nl_config_from_checkpoint(init, NULL, config));
    forget_data(context, config);
    if (!options->teacher || nl_converts(options))
        forget_distillation(config);
    if (config->stored_position)
        NL_TRY(nl_fail(context, NL_ERROR_USAGE,
                       "%s has a pos_embed of its own in place of the table of sines and cosines: "
                       "it can be sampled, and not be trained further here",
                       options->init));
    if (options->model)
        NL_TRY(nl_config_from_name(context, options->model, config));
    /* A transport has no variance to learn; the public SiT's head has those channels all the same. */
    if (!init && config->architecture == NL_ARCH_SIT)
        config->learn_sigma = false;
    NL_TRY(describe_data(context, data, &text));
    NL_TRY(nl_config_parse(context, options->data, text, strlen(text), config));
    NL_TRY(take_configuration(context, options, config));
    if (options->label_dropout >= 0)
        config->class_dropout_prob = options->label_dropout;
    if (options->teacher && !nl_converts(options)) {
        NL_TRY(nl_trainer_check_flow_map(context, options->init ? options->init : options->teacher,
                                         config));
        if (options->flow_map > config->depth)
            NL_TRY(nl_fail(context, NL_ERROR_USAGE, "--flow-map %lld: the network has %d %s",
                           (long long)options->flow_map, config->depth,
                           nl_plural(config->depth, "block", "blocks")));
        config->flow_map = options->flow_map ? (int)options->flow_map : (2 * config->depth + 2) / 3;
        config->one_step = options->one_step ? NL_ONE_STEP_ALONE : NL_ONE_STEP_NONE;
        config->guided = options->guidance != 1 || nl_guides_inside(options->internal_guidance);
        config->class_dropout_prob = 0;
        keep_middle_head(options, config);
        NL_TRY(check_discriminator(context, options, data, config));
    }
    NL_TRY(nl_config_check(context, options->data, config));
    NL_TRY(check_against_data(context, config, data, options->data));
cleanup:
    cJSON_free(text);
    if (status != NL_OK)
        nl_config_free(context, config);
    return status;
}

nl_status nl_trainer_write_config(const nl_trainer *trainer)
{
    nl_context *context = trainer->context;
    nl_status status = NL_OK;
    char *model = NULL, *path = NULL;
    nl_writer *writer = NULL;
    NL_TRY(nl_config_print(context, &trainer->config, &model));
    NL_TRY(nl_path_join(context, trainer->options->out, NL_RUN_CONFIG, &path));
    NL_TRY(nl_writer_open(context, path, true, &writer));
    nl_writer_printf(writer, "{\n  \"model\": %s,\n", model);
    nl_writer_printf(writer, "  \"training\": %s,\n",
                     trainer->options->record ? trainer->options->record : "{}");
    nl_writer_printf(writer, "  \"data\": {\"samples\": %lld, \"sha256\": \"%s\"},\n",
                     (long long)trainer->point.samples, trainer->point.data_sha256);
    nl_writer_printf(writer, "  \"version\": \"%s\"\n}\n", nl_version());
    NL_TRY(nl_writer_commit(&writer));
cleanup:
    nl_writer_abort(&writer);
    nl_free(context, model);
    nl_free(context, path);
    return status;
}
