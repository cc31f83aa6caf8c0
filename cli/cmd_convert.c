/* SPDX-License-Identifier: MIT */
/* The convert command: backbones and autoencoders into safetensors, public names or a folder for diffusers. */
#include "nl_convert.h"

#include <stdio.h>
#include <string.h>

#include "nl_command.h"
#include "nl_pipeline.h"
#include "nl_vae.h"

typedef struct nl_convert_options {
    bool help, force, quiet, verbose;
    const char *dtype, *format, *key, *config, *arch, *one_step;
} nl_convert_options;

#define FIELD(member) offsetof(nl_convert_options, member)

static const char *const dtypes[] = {"keep", "f32", "bf16", "f16", "int8", NULL};
static const char *const formats[] = {"nalagen", "dit", "diffusers", "torch-names", NULL};

static const nl_option options_table[] = {
    {"dtype", 0, NL_OPTION_CHOICE, FIELD(dtype), "NAME", .choices = dtypes, .group = "Options",
     .help = "of matrices: keep, f32, bf16, f16 or int8 (keep)",
     .detail = "Biases and other vectors are stored as f32. int8 is row-wise with f32 scales; what "
               "lies outside the blocks is then bf16. keep leaves f32, bf16, f16 and int8 as they "
               "are and makes everything else f32."},
    {"format", 0, NL_OPTION_CHOICE, FIELD(format), "NAME", .choices = formats,
     .help = "nalagen, dit, diffusers or torch-names (nalagen)",
     .detail =
         "nalagen: the configuration goes into the file. dit: the names of the public DiT and SiT "
         "code with pos_embed, for load_state_dict. diffusers: DiTTransformer2DModel, "
         "AutoencoderKL or AutoencoderTiny, with config.json beside it for from_pretrained (OUT "
         "may be a folder); it has no SiT. torch-names: any network under the names that the file "
         "has; a DiT or SiT gets "
         "pos_embed, where it has none, for strict loading."},
    {"key", 0, NL_OPTION_TEXT, FIELD(key), "NAME",
     .help = "dict of a training checkpoint: ema, model (ema)"},
    {"config", 0, NL_OPTION_FILE, FIELD(config), "FILE",
     .help = "JSON configuration in place of the checkpoint's"},
    {"arch", 0, NL_OPTION_CHOICE, FIELD(arch), "NAME", .choices = nl_architecture_names,
     .help = "DiT, SiT, NaLaDiT, NaLaSiT; if the file is silent"},
    {"one-step", 0, NL_OPTION_FILE, FIELD(one_step), "FILE",
     .help = "run or model of distill --one-step, to hold it too",
     .detail =
         "IN is the flow map. OUT makes u(x, 0, 1), the one step from noise to data, by FILE's "
         "weights (\"one_step\": \"beside\"), and all others by IN's."},
    {"force", 'f', NL_OPTION_FLAG, FIELD(force), .help = "overwrite OUT"},
    {.include = nl_common_options},
    {0},
};

typedef struct nl_conversion {
    nl_context *context;
    const nl_convert_options *options;
    const char *in, *out;
    nl_dtype dtype;
} nl_conversion;

static bool is_format(const nl_conversion *conversion, const char *name)
{
    return !strcmp(conversion->options->format, name);
}

static nl_dtype parse_dtype(const char *name)
{
    nl_dtype dtype;
    if (!strcmp(name, "int8"))
        return NL_I8;
    return nl_dtype_parse(name, &dtype) ? dtype : NL_DTYPE_COUNT; /* keep */
}

static bool names_folder(const char *path)
{
    size_t length = strlen(path);
    return nl_path_is_folder(path) || (length > 0 && path[length - 1] == '/');
}

/* What diffusers loads: weights and, written last, config.json beside them: a folder without it is not taken for whole. */
typedef struct nl_diffusers_files {
    char *weights, *config;
    char *json;
} nl_diffusers_files;

/* Names the files and sees that they may be written; files->json is there. */
static nl_status open_diffusers(const nl_conversion *conversion, nl_diffusers_files *files)
{
    nl_context *context = conversion->context;
    const char *out = conversion->out, *slash = strrchr(out, '/');
    if (names_folder(out)) {
        NL_CHECK(
            nl_path_join(context, out, "diffusion_pytorch_model.safetensors", &files->weights));
        NL_CHECK(nl_path_join(context, out, "config.json", &files->config));
        NL_CHECK(nl_make_folder(context, out));
    } else {
        NL_CHECK(nl_strdup(context, out, &files->weights));
        NL_CHECK(nl_format(context, &files->config, "%.*sconfig.json",
                           slash ? (int)(slash + 1 - out) : 0, out));
    }
    return nl_output_check(context, files->config, conversion->options->force, "");
}

static nl_status end_diffusers(const nl_conversion *conversion, const nl_diffusers_files *files)
{
    nl_status status = nl_write_file(conversion->context, files->config, conversion->options->force,
                                     files->json, strlen(files->json));
    if (status == NL_OK)
        nl_log(conversion->context, NL_LOG_INFO, "%s: written beside it", files->config);
    return status;
}

static void free_diffusers(nl_context *context, nl_diffusers_files *files)
{
    nl_free(context, files->weights);
    nl_free(context, files->config);
    nl_free(context, files->json);
}

static nl_status write_diffusers(const nl_conversion *conversion, const nl_checkpoint *checkpoint,
                                 const nl_config *config)
{
    nl_context *context = conversion->context;
    nl_diffusers_files files = {0};
    nl_status status;
    NL_TRY(nl_dit_convertible(checkpoint, config, conversion->out, conversion->dtype,
                              NL_SPELLING_DIFFUSERS));
    NL_TRY(nl_dit_diffusers_config(context, config, &files.json));
    NL_TRY(open_diffusers(conversion, &files));
    NL_TRY(nl_dit_convert(checkpoint, config, files.weights, conversion->options->force,
                          conversion->dtype, NL_SPELLING_DIFFUSERS));
    NL_TRY(end_diffusers(conversion, &files));
cleanup:
    free_diffusers(context, &files);
    return status;
}

static nl_status write_diffusers_vae(const nl_conversion *conversion,
                                     const nl_checkpoint *checkpoint, const nl_checkpoint *second)
{
    nl_diffusers_files files = {0};
    nl_status status;
    if (conversion->dtype == NL_I8)
        return nl_fail(conversion->context, NL_ERROR_USAGE,
                       "%s: int8 with row scales is nalagen's own, which diffusers would not "
                       "understand; store f32, bf16 or f16",
                       conversion->out);
    NL_TRY(nl_vae_diffusers_config(checkpoint, second, &files.json));
    NL_TRY(open_diffusers(conversion, &files));
    NL_TRY(nl_vae_convert(checkpoint, second, files.weights, conversion->options->force,
                          conversion->dtype, true));
    NL_TRY(end_diffusers(conversion, &files));
cleanup:
    free_diffusers(conversion->context, &files);
    return status;
}

/* --one-step: from now on what it names stands beside the checkpoint, in place of what did. */
static nl_status take_one_step(const nl_conversion *conversion, nl_checkpoint *checkpoint,
                               nl_config *config)
{
    nl_context *context = conversion->context;
    const char *path = conversion->options->one_step, *key;
    nl_checkpoint *student = NULL;
    nl_config other;
    nl_status status;
    nl_config_init(&other);
    NL_TRY(nl_open_backbone(context, path, NULL, &student));
    NL_TRY(nl_read_config(student, &(nl_model_options){0}, &other));
    if (other.one_step != NL_ONE_STEP_ALONE)
        NL_TRY(nl_fail(context, NL_ERROR_USAGE,
                       "--one-step %s: it was not made by distill --one-step (\"one_step\" is %s)",
                       path, nl_one_step_names[other.one_step]));
    other.one_step = config->one_step;
    if ((key = nl_config_difference(config, &other)))
        NL_TRY(nl_fail(context, NL_ERROR_USAGE, "--one-step %s: it differs from %s in \"%s\"", path,
                       conversion->in, key));
    if (nl_config_other_class(config, &other) >= 0)
        NL_TRY(nl_fail(context, NL_ERROR_USAGE, "--one-step %s: it has other classes than %s", path,
                       conversion->in));
    nl_checkpoint_close(checkpoint->beside);
    checkpoint->beside = student;
    student = NULL;
    config->one_step = NL_ONE_STEP_BESIDE;
cleanup:
    nl_checkpoint_close(student);
    nl_config_free(context, &other);
    return status;
}

static nl_status convert_backbone(const nl_conversion *conversion, nl_checkpoint *checkpoint)
{
    const nl_convert_options *options = conversion->options;
    nl_model_options model = {.config_path = options->config, .architecture = options->arch};
    bool public = is_format(conversion, "dit") || is_format(conversion, "torch-names");
    nl_dit_spelling spelling = public                               ? NL_SPELLING_PUBLIC
                               : is_format(conversion, "diffusers") ? NL_SPELLING_DIFFUSERS
                                                                    : NL_SPELLING_NALAGEN;
    nl_config config;
    char name[64];
    nl_status status = nl_read_config(checkpoint, &model, &config);
    if (status != NL_OK)
        return status;
    if (options->one_step)
        NL_TRY(take_one_step(conversion, checkpoint, &config));
    if (spelling == NL_SPELLING_DIFFUSERS)
        NL_TRY(write_diffusers(conversion, checkpoint, &config));
    else
        NL_TRY(nl_dit_convert(checkpoint, &config, conversion->out, options->force,
                              conversion->dtype, spelling));
    nl_log(conversion->context, NL_LOG_INFO, "%s: %s as %s", conversion->out,
           nl_config_name(&config, name, sizeof(name)), options->format);
cleanup:
    nl_config_free(conversion->context, &config);
    return status;
}

static nl_status convert_autoencoder(const nl_conversion *conversion,
                                     const nl_checkpoint *checkpoint)
{
    nl_checkpoint *second = NULL;
    nl_status status;
    if (is_format(conversion, "dit") || conversion->options->config || conversion->options->arch ||
        conversion->options->one_step)
        return nl_fail(
            conversion->context, NL_ERROR_USAGE,
            "%s is an autoencoder: --format dit, --config, --arch and --one-step are for "
            "backbones",
            conversion->in);
    NL_TRY(nl_open_other_half(conversion->context, conversion->in, &second));
    if (is_format(conversion, "diffusers"))
        NL_TRY(write_diffusers_vae(conversion, checkpoint, second));
    else
        NL_TRY(nl_vae_convert(checkpoint, second, conversion->out, conversion->options->force,
                              conversion->dtype, false));
    nl_log(conversion->context, NL_LOG_INFO, "%s: autoencoder", conversion->out);
cleanup:
    nl_checkpoint_close(second);
    return status;
}

/* A backbone of ours, whose files leave out the table that the public classes want. */
static bool lacks_position(const nl_checkpoint *checkpoint)
{
    return nl_checkpoint_metadata(checkpoint, "nalagen") &&
           nl_checkpoint_find(checkpoint, "x_embedder.proj.weight") &&
           !nl_checkpoint_find(checkpoint, "pos_embed");
}

static nl_status convert_file(const nl_conversion *conversion)
{
    nl_context *context = conversion->context;
    const nl_convert_options *options = conversion->options;
    nl_checkpoint *checkpoint = NULL;
    nl_status status;
    if (names_folder(conversion->out) && !is_format(conversion, "diffusers"))
        return nl_fail(context, NL_ERROR_USAGE,
                       "%s is a folder: only --format diffusers writes one; name a file such as "
                       "model.safetensors",
                       conversion->out);
    if (options->one_step && !is_format(conversion, "nalagen"))
        return nl_fail(context, NL_ERROR_USAGE,
                       "--one-step: only --format nalagen holds a second set of weights");
    if (!names_folder(conversion->out))
        NL_TRY(nl_output_check(context, conversion->out, options->force, ""));
    if (is_format(conversion, "torch-names")) {
        NL_TRY(nl_checkpoint_open_key(context, conversion->in, options->key, &checkpoint));
        if (lacks_position(checkpoint))
            NL_TRY(convert_backbone(conversion, checkpoint));
        else
            NL_TRY(
                nl_checkpoint_save(checkpoint, conversion->out, options->force, conversion->dtype));
        goto cleanup;
    }
    NL_TRY(nl_open_backbone(context, conversion->in, options->key, &checkpoint));
    NL_TRY(nl_vae_recognizes(checkpoint) ? convert_autoencoder(conversion, checkpoint)
                                         : convert_backbone(conversion, checkpoint));
cleanup:
    nl_checkpoint_close(checkpoint);
    return status;
}

static nl_status convert(nl_command_line *line, void *values)
{
    const nl_convert_options *options = values;
    nl_catch_interrupt(&line->console, line->context);
    return convert_file(&(nl_conversion){.context = line->context,
                                         .options = options,
                                         .in = line->operands[0],
                                         .out = line->operands[1],
                                         .dtype = parse_dtype(options->dtype)});
}

static nl_status nl_convert_main(int argc, char **argv)
{
    nl_convert_options options = {.dtype = "keep", .format = "nalagen"};
    return nl_command_main(&nl_convert_command, argc, argv, &options, convert);
}

const nl_command nl_convert_command = {
    .name = "convert",
    .summary = "Convert and quantise a checkpoint: torch, diffusers, safetensors",
    .arguments = "[OPTION...] IN OUT.safetensors",
    .least = 2,
    .most = 2,
    .operands = "IN and OUT",
    .options = options_table,
    .notes = "IN: safetensors, torch's .pt, .bin or .ckpt, or a folder of diffusers; backbones\n"
             "  and autoencoders. Nothing in a file is run; what would be is refused by name.\n"
             "OUT: a file. --format diffusers writes config.json beside it, takes a folder\n"
             "  too, and has no SiT; torch-names adds pos_embed for strict loading.\n",
    .examples = "  nalagen convert DiT-XL-2-256x256.pt dit-xl-2.safetensors --dtype bf16\n"
                "  nalagen convert 0400000.pt sit.safetensors --key model --dtype int8\n"
                "  nalagen convert model.safetensors for-pytorch.safetensors --format dit\n"
                "  nalagen convert model.safetensors both.safetensors --one-step run\n",
    .run = nl_convert_main,
};
