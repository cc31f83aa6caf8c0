/* SPDX-License-Identifier: MIT */
/* What a foreign file says of its own network: training arguments in torch files, config.json of diffusers. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <strings.h>

#include "nl_json.h"
#include "params.h"

/* One of the names, in any case; `other` are those of REPA in the same order. NULL text: nothing is said. */
static nl_status read_choice(const nl_checkpoint *checkpoint, const char *key,
                             const char *const *names, const char *const *other, int *value)
{
    const char *text = nl_checkpoint_metadata(checkpoint, key);
    if (!text)
        return NL_OK;
    for (int i = 0; names[i]; i++)
        if (strcasecmp(text, names[i]) == 0 || (other[i] && strcasecmp(text, other[i]) == 0)) {
            *value = i;
            return NL_OK;
        }
    return nl_fail(checkpoint->context, NL_ERROR_INPUT,
                   "%s: %s of its training is \"%s\": expected %s, %s or %s", checkpoint->path, key,
                   text, names[0], names[1], names[2]);
}

static void read_number(const nl_checkpoint *checkpoint, const char *key, double *value)
{
    const char *text = nl_checkpoint_metadata(checkpoint, key);
    char *end = NULL;
    double number = text ? strtod(text, &end) : -1;
    if (text && end > text && !*end && number >= 0)
        *value = number;
}

/* A table with as many rows as the training had classes has none for the null class. */
static void read_classes(const nl_checkpoint *checkpoint, nl_config *config)
{
    double classes = -1, dropout = -1;
    read_number(checkpoint, "args.num_classes", &classes);
    read_number(checkpoint, "args.class_dropout_prob", &dropout);
    read_number(checkpoint, "args.cfg_prob", &dropout);
    if (dropout >= 0 && dropout <= 1)
        config->class_dropout_prob = dropout;
    if (classes != nl_config_label_rows(config))
        return;
    config->no_null_class = true;
    config->num_classes = (int)classes;
    config->class_dropout_prob = 0;
    nl_log(checkpoint->context, NL_LOG_INFO,
           "%s: trained without dropping classes: there is no null class and no guidance",
           checkpoint->path);
}

/* The arguments of the public training programs, as torch checkpoints keep them. */
static nl_status read_arguments(const nl_checkpoint *checkpoint, nl_config *config,
                                const char **source)
{
    static const char *const repa_paths[] = {NULL, "cosine", NULL};
    static const char *const repa_predictions[] = {"v", NULL, NULL};
    const char *model = nl_checkpoint_metadata(checkpoint, "args.model");
    int path = config->path, prediction = config->prediction;
    nl_status status = NL_OK;
    if (checkpoint->spelling == nl_spelling_repa) {
        config->architecture = NL_ARCH_SIT;
        *source = "what REPA adds to it";
    }
    if (checkpoint->spelling == nl_spelling_dig) {
        config->architecture = NL_ARCH_DIT;
        *source = "DiG's names";
    }
    config->rope = checkpoint->spelling == nl_spelling_lightning_rope;
    if (config->rope || checkpoint->spelling == nl_spelling_lightning) {
        config->architecture = NL_ARCH_SIT; /* in time and in what it predicts */
        *source = config->rope ? "its rotary positions, which are LightningDiT's" : "its name";
    }
    if (model && (strncasecmp(model, "DiT-", 4) == 0 || strncasecmp(model, "SiT-", 4) == 0)) {
        config->architecture = strncasecmp(model, "SiT-", 4) == 0 ? NL_ARCH_SIT : NL_ARCH_DIT;
        *source = "the arguments of its training";
    }
    read_classes(checkpoint, config);
    if (config->architecture != NL_ARCH_SIT)
        return NL_OK;
    NL_TRY(read_choice(checkpoint, "args.path_type", nl_path_names, repa_paths, &path));
    NL_TRY(read_choice(checkpoint, "args.prediction", nl_prediction_names, repa_predictions,
                       &prediction));
    config->path = (nl_path)path;
    config->prediction = (nl_prediction)prediction;
    read_number(checkpoint, "args.train_eps", &config->train_eps);
    read_number(checkpoint, "args.sample_eps", &config->sample_eps);
cleanup:
    return status;
}

/* config.json says sizes that names and shapes of tensors do not tell, and whether it is this
 * network at all. */
static nl_status read_diffusers(const nl_checkpoint *checkpoint, const char *text,
                                nl_config *config)
{
    nl_context *context = checkpoint->context;
    nl_status status;
    cJSON *object = NULL;
    const char *class = NULL, *activation = NULL, *norm = NULL;
    int64_t heads = config->num_heads, size = config->input_height;
    NL_TRY(nl_json_parse(context, "config.json", text, strlen(text), &object));
    nl_json json = {context, "config.json", object};
    NL_TRY(nl_json_string(&json, "_class_name", &class));
    if (!class ||
        (strcmp(class, "DiTTransformer2DModel") != 0 && strcmp(class, "Transformer2DModel") != 0))
        goto cleanup; /* of something else in the same folder */
    NL_TRY(nl_json_string(&json, "activation_fn", &activation));
    NL_TRY(nl_json_string(&json, "norm_type", &norm));
    NL_TRY(nl_json_int(&json, "num_attention_heads", 1, INT16_MAX, &heads));
    NL_TRY(nl_json_int(&json, "sample_size", 1, INT16_MAX, &size));
    if ((activation && strcmp(activation, "gelu-approximate") != 0) ||
        (norm && strcmp(norm, "ada_norm_zero") != 0)) {
        status = nl_fail(context, NL_ERROR_INPUT,
                         "config.json of %s: expected the activation gelu-approximate and the norm "
                         "ada_norm_zero of a DiT, found %s and %s",
                         checkpoint->path, activation ? activation : "none", norm ? norm : "none");
        goto cleanup;
    }
    config->num_heads = (int)heads;
    config->input_height = config->input_width = (int)size;
cleanup:
    cJSON_Delete(object);
    return status;
}

/* ---- The other parts of a pipeline folder */

/* A key whose other values this network was not trained or is not sampled with. */
static nl_status refuse_unless(const nl_json *json, const char *key, bool right, const char *has)
{
    const cJSON *item = cJSON_GetObjectItemCaseSensitive(json->object, key);
    if (!item || cJSON_IsNull(item) || right)
        return NL_OK;
    char *text = nl_json_print(item, false);
    nl_status status =
        nl_fail(json->context, NL_ERROR_INPUT,
                "%s: \"%s\" is %.80s: nalagen has %s; a configuration that says otherwise can be "
                "given with --config",
                json->where, key, text ? text : "?", has);
    cJSON_free(text);
    return status;
}

/* Allowed to be missing or null: then *value stays. */
static nl_status read_name(const nl_json *json, const char *key, const char *const *names,
                           int *value)
{
    const cJSON *item = cJSON_GetObjectItemCaseSensitive(json->object, key);
    return item && cJSON_IsNull(item) ? NL_OK : nl_json_choice(json, key, names, value);
}

static nl_status read_variance(const nl_json *json, nl_config *config)
{
    static const char *const names[] = {"learned_range",   "fixed_small",     "fixed_large",
                                        "fixed_small_log", "fixed_large_log", NULL};
    int variance = -1;
    nl_status status = read_name(json, "variance_type", names, &variance);
    if (status == NL_OK && variance > 0)
        config->variance = variance % 2 ? NL_VARIANCE_FIXED_SMALL : NL_VARIANCE_FIXED_LARGE;
    return status;
}

/* scheduler_config.json: the noise that the network was trained with and the timesteps that it is asked at. Missing
 * keys have the defaults of DDIMScheduler and DDPMScheduler. */
static nl_status read_schedule(const nl_json *json, nl_config *config)
{
    static const char *const schedules[] = {"linear", "squaredcos_cap_v2", "scaled_linear", NULL};
    static const char *const predictions[] = {"epsilon", "sample", "v_prediction", NULL};
    static const char *const spacings[] = {"linspace", "leading", "trailing", NULL};
    nl_status status;
    int schedule = NL_SCHEDULE_LINEAR, predicts = NL_PREDICTS_EPSILON, spacing = NL_SPACING_LEADING;
    int64_t steps = 1000, offset = 0;
    double start = 1e-4, end = 0.02, range = 1;
    bool clip = true, to_one = true, no = false, thresholding = false;
    NL_TRY(read_name(json, "beta_schedule", schedules, &schedule));
    NL_TRY(read_name(json, "prediction_type", predictions, &predicts));
    NL_TRY(read_name(json, "timestep_spacing", spacings, &spacing));
    NL_TRY(nl_json_int(json, "num_train_timesteps", 1, 1000000, &steps));
    NL_TRY(nl_json_int(json, "steps_offset", 0, 1000, &offset));
    NL_TRY(nl_json_double(json, "beta_start", 1e-12, 0.999, &start));
    NL_TRY(nl_json_double(json, "beta_end", 1e-12, 0.999, &end));
    NL_TRY(nl_json_bool(json, "clip_sample", &clip));
    NL_TRY(nl_json_double(json, "clip_sample_range", 0, 1e6, &range));
    NL_TRY(nl_json_bool(json, "set_alpha_to_one", &to_one));
    NL_TRY(nl_json_bool(json, "rescale_betas_zero_snr", &no));
    NL_TRY(nl_json_bool(json, "thresholding", &thresholding));
    NL_TRY(refuse_unless(json, "trained_betas", false, "the schedules that have a name"));
    NL_TRY(refuse_unless(json, "rescale_betas_zero_snr", !no, "schedules that end above zero"));
    NL_TRY(refuse_unless(json, "thresholding", !thresholding, "no thresholds"));
    NL_TRY(refuse_unless(json, "clip_sample_range", !clip || range == 1, "a range of 1"));
    NL_TRY(read_variance(json, config));
    config->schedule = (nl_schedule)schedule;
    config->predicts = (nl_predicts)predicts;
    config->spacing = (nl_spacing)spacing;
    config->diffusion_steps = (int)steps;
    config->steps_offset = spacing == NL_SPACING_LEADING ? (int)offset : 0;
    config->clip_denoised = clip;
    config->final_alpha_first = !to_one;
    if (schedule != NL_SCHEDULE_COSINE) {
        bool usual =
            schedule == NL_SCHEDULE_LINEAR && steps == 1000 && start == 1e-4 && end == 0.02;
        config->beta_start = usual ? 0 : start;
        config->beta_end = usual ? 0 : end;
    }
cleanup:
    return status;
}

static nl_status read_scheduler(const nl_checkpoint *checkpoint, const char *text,
                                nl_config *config)
{
    /* Those that draw on alpha_bar of a discrete schedule as DDPM and DDIM do. */
    static const char *const discrete[] = {"DDIM",  "DDPM", "DPMSolver", "UniPC", "PNDM", "DEIS",
                                           "Euler", "Heun", "LMS",       "KDPM2", NULL};
    nl_context *context = checkpoint->context;
    nl_status status;
    cJSON *object = NULL;
    char where[512];
    const char *class = NULL;
    int family = 0;
    snprintf(where, sizeof(where), "scheduler_config.json of %s", checkpoint->path);
    NL_TRY(nl_json_parse(context, where, text, strlen(text), &object));
    nl_json json = {context, where, object};
    NL_TRY(nl_json_string(&json, "_class_name", &class));
    while (class && discrete[family] && strncmp(class, discrete[family], strlen(discrete[family])))
        family++;
    if (!class || !discrete[family])
        NL_TRY(nl_fail(context, NL_ERROR_INPUT,
                       "%s: \"_class_name\" is \"%s\": nalagen samples a DiT as DDIMScheduler and "
                       "DDPMScheduler do; what it was trained with can be said with --config",
                       where, class ? class : "missing"));
    if (family > 1)
        nl_log(context, NL_LOG_WARNING,
               "%s: %s is not among nalagen's samplers: its noise schedule is taken, and ddpm or "
               "ddim sample",
               where, class);
    NL_TRY(read_schedule(&json, config));
    if (family > 1) { /* where those place their timesteps is their own affair */
        config->spacing = NL_SPACING_LINSPACE;
        config->steps_offset = 0;
        config->clip_denoised = config->final_alpha_first = false;
    }
cleanup:
    cJSON_Delete(object);
    return status;
}

/* model_index.json: "id2label": {"0": "tench, Tinca tinca", ...}. */
static nl_status read_labels(const nl_checkpoint *checkpoint, const char *text, nl_config *config)
{
    nl_context *context = checkpoint->context;
    nl_status status;
    cJSON *object = NULL;
    NL_TRY(nl_json_parse(context, "model_index.json", text, strlen(text), &object));
    const cJSON *labels = cJSON_GetObjectItemCaseSensitive(object, "id2label"), *item;
    if (!cJSON_IsObject(labels) || config->num_classes < 1)
        goto cleanup;
    if (cJSON_GetArraySize(labels) != config->num_classes) {
        nl_log(context, NL_LOG_WARNING,
               "model_index.json of %s: id2label has %d names for %d classes: left out",
               checkpoint->path, cJSON_GetArraySize(labels), config->num_classes);
        goto cleanup;
    }
    NL_TRY(NL_NEW_ARRAY(context, "class names", config->num_classes, &config->class_names));
    memset(config->class_names, 0, (size_t)config->num_classes * sizeof(nl_class_name));
    cJSON_ArrayForEach(item, labels)
    {
        char *end = NULL;
        long index = strtol(item->string, &end, 10);
        bool right = end > item->string && !*end && index >= 0 && index < config->num_classes;
        if (!right || !cJSON_IsString(item) || config->class_names[index].name)
            NL_TRY(
                nl_fail(context, NL_ERROR_INPUT,
                        "model_index.json of %s: id2label: \"%s\": expected a name for each of 0 "
                        "to %d, once",
                        checkpoint->path, item->string, config->num_classes - 1));
        NL_TRY(nl_strdup(context, item->valuestring, &config->class_names[index].name));
    }
cleanup:
    cJSON_Delete(object);
    return status;
}

nl_status nl_config_hints(const nl_checkpoint *checkpoint, nl_config *config, const char **source)
{
    const char *json = nl_checkpoint_metadata(checkpoint, "config.json");
    const char *scheduler = nl_checkpoint_metadata(checkpoint, "scheduler_config.json");
    const char *index = nl_checkpoint_metadata(checkpoint, "model_index.json");
    nl_status status;
    *source = NULL;
    NL_TRY(read_arguments(checkpoint, config, source));
    if (checkpoint->spelling != nl_spelling_diffusers)
        return NL_OK;
    if (config->architecture == NL_ARCH_UNKNOWN) {
        config->architecture = NL_ARCH_DIT;
        *source = "diffusers' names";
    }
    if (json)
        NL_TRY(read_diffusers(checkpoint, json, config));
    if (scheduler)
        NL_TRY(read_scheduler(checkpoint, scheduler, config));
    if (index)
        NL_TRY(read_labels(checkpoint, index, config));
    nl_log(checkpoint->context, NL_LOG_WARNING,
           "%s: run with the public DiT's time frequencies and norms; where it was trained in "
           "diffusers, say {\"of_diffusers\": true} with --config",
           checkpoint->path);
cleanup:
    return status;
}
