/* SPDX-License-Identifier: MIT */
/* The decode command: latents from anywhere to pictures. */
#include "nl_encode_command.h"

#include <math.h>
#include <stdio.h>
#include <string.h>

#include "nl_command.h"
#include "nl_decode.h"
#include "nl_pipeline.h"

typedef struct nl_decode_values {
    nl_machine_options machine;
    bool force, json;
    const char *out, *vae, *key, *rounding;
    double scale, shift; /* NaN: the autoencoder's own */
    int64_t batch;
} nl_decode_values;

#define FIELD(member)   offsetof(nl_decode_values, member)
#define MACHINE(member) offsetof(nl_decode_values, machine.member)

static const char *const dtypes[] = {"f32", "bf16", NULL};
static const char *const roundings[] = {"dit", "adm", NULL};

static const nl_option options_table[] = {
    {"out", 'o', NL_OPTION_FILE, FIELD(out), "OUT", .where = NL_COMMON, .group = "Pictures",
     .help = "a.png, out/ (000000.png, ...) or a.npz"},
    {"vae", 0, NL_OPTION_FILE, FIELD(vae), "FILE", .where = NL_COMMON,
     .help = "autoencoder, or tiny (tiny)",
     .detail = "A file, a folder, or a whole diffusers pipeline. tiny is the one that ships."},
    {"key", 0, NL_OPTION_TEXT, FIELD(key), "NAME",
     .help = "array of an .npz, tensor of a safetensors (latents)",
     .detail = "Not needed where there is one alone."},
    {"latent-scale", 0, NL_OPTION_REAL, FIELD(scale), "X", 1e-6, 1e6, .where = NL_COMMON,
     .help = "of the latents (the autoencoder's)",
     .detail = "What is decoded is latents / X + shift. The autoencoder's config.json says X "
               "(scaling_factor); without one 0.18215, of TAESD's layout 1. --latent-scale 1 with "
               "--latent-shift 0: of latents that are not scaled."},
    {"latent-shift", 0, NL_OPTION_REAL, FIELD(shift), "X", -1e6, 1e6, .where = NL_COMMON,
     .help = "of the latents (the autoencoder's)",
     .detail = "shift_factor of the autoencoder's config.json; without one 0."},
    {"rounding", 0, NL_OPTION_CHOICE, FIELD(rounding), "HOW", .choices = roundings,
     .help = "pixels as dit or adm rounds them (dit)"},
    {"force", 'f', NL_OPTION_FLAG, FIELD(force), .where = NL_COMMON,
     .help = "overwrite files (never without)"},
    {"json", 0, NL_OPTION_FLAG, FIELD(json), .where = NL_COMMON,
     .help = "one JSON object on stdout"},
    {.include = nl_device_options, .offset = offsetof(nl_decode_values, machine)},
    {"dtype", 0, NL_OPTION_CHOICE, MACHINE(dtype), "NAME", .choices = dtypes,
     .help = "arithmetic of the autoencoder: f32, bf16 (f32)"},
    {"batch", 'b', NL_OPTION_INT, FIELD(batch), "N", 1, 65536, .where = NL_COMMON,
     .help = "pictures at once (16)"},
    {.include = nl_common_options, .offset = offsetof(nl_decode_values, machine)},
    {0},
};

/* What the command line says, or else the autoencoder. */
static nl_status set_scale(const nl_decode_values *v, nl_vae *vae, double *scale, double *shift)
{
    nl_status status = NL_OK;
    *scale = v->scale;
    *shift = 0;
    if (isnan(v->scale) || nl_vae_says_scale(vae))
        status = nl_vae_latent_scale(vae, scale, shift);
    if (status != NL_OK)
        return status;
    if (!isnan(v->scale))
        *scale = v->scale;
    if (!isnan(v->shift))
        *shift = v->shift;
    nl_vae_set_scale(vae, *scale, *shift);
    return NL_OK;
}

static nl_status print_path(void *user, const char *path)
{
    return nl_print_path(user, path);
}

/* What the pictures depend on, as JSON: also the comment of an archive. */
static nl_status describe(nl_context *context, const char *in, const nl_decode_values *v,
                          const nl_vae_file *vae, double scale, double shift, cJSON **about)
{
    char hex[65];
    nl_status status = nl_file_sha256(context, in, hex);
    *about = NULL;
    if (status != NL_OK)
        return status;
    *about = cJSON_CreateObject();
    cJSON_AddStringToObject(*about, "version", nl_version());
    cJSON_AddStringToObject(*about, "latents_sha256", hex);
    if (v->key)
        cJSON_AddStringToObject(*about, "key", v->key);
    cJSON_AddStringToObject(*about, "vae_sha256", vae->sha256);
    cJSON_AddNumberToObject(*about, "latent_scale", scale);
    cJSON_AddNumberToObject(*about, "latent_shift", shift);
    cJSON_AddStringToObject(*about, "rounding", v->rounding);
    return NL_OK;
}

static nl_status report(nl_context *context, const nl_decode_values *v,
                        const nl_decode_result *result, cJSON *object)
{
    cJSON_AddStringToObject(object, "out", v->out);
    cJSON_AddNumberToObject(object, "n", (double)result->count);
    cJSON_AddNumberToObject(object, "height", result->height);
    cJSON_AddNumberToObject(object, "width", result->width);
    return nl_print_json(context, object);
}

static nl_status decode(nl_command_line *line, void *values)
{
    const nl_decode_values *v = values;
    nl_vae_file vae = {.file = NULL};
    nl_decode_result result;
    nl_status status = NL_OK;
    double scale, shift;
    cJSON *about = NULL;
    char *text = NULL;
    if (!v->out || !*v->out)
        NL_TRY(nl_fail(line->context, NL_ERROR_USAGE,
                       "decode: say where the pictures go with -o OUT"));
    if (!strcmp(v->vae, "none"))
        NL_TRY(nl_fail(line->context, NL_ERROR_USAGE,
                       "--vae none: there is nothing to decode without an autoencoder"));
    NL_TRY(nl_command_take_device(line, &v->machine, nl_command_progress, line));
    NL_TRY(nl_vae_file_open(line->context, v->vae, &vae));
    NL_TRY(set_scale(v, vae.vae, &scale, &shift));
    NL_TRY(describe(line->context, line->operands[0], v, &vae, scale, shift, &about));
    text = nl_json_print(about, false);
    if (!text)
        NL_TRY(nl_fail(line->context, NL_ERROR_MEMORY, "decode: no memory for a description"));
    const nl_decode_options options = {.in = line->operands[0],
                                       .key = v->key,
                                       .out = v->out,
                                       .vae = vae.vae,
                                       .about = text,
                                       .rounding = strcmp(v->rounding, "adm") ? 128 : 127.5f,
                                       .force = v->force,
                                       .batch = v->batch,
                                       .written = v->json ? NULL : print_path,
                                       .user = line->context};
    NL_TRY(nl_decode_file(line->context, &options, &result));
    nl_console_clear(&line->console);
    if (v->json)
        NL_TRY(report(line->context, v, &result, about));
cleanup:
    cJSON_Delete(about);
    cJSON_free(text);
    nl_vae_file_close(&vae);
    return status;
}

static nl_status decode_main(int argc, char **argv)
{
    nl_decode_values values = {
        .vae = "tiny", .rounding = "dit", .scale = NAN, .shift = NAN, .machine = {.dtype = "f32"}};
    return nl_command_main(&nl_decode_command, argc, argv, &values, decode);
}

const nl_command nl_decode_command = {
    .name = "decode",
    .summary = "Latents from a file to pictures",
    .arguments = "[OPTION...] LATENTS -o OUT",
    .least = 1,
    .most = 1,
    .operands = "one file of latents (.npy, .npz, .safetensors)",
    .options = options_table,
    .notes = "LATENTS: [n, C, h, w], or [C, h, w] of one picture, of floats, as\n"
             "  'sample --latents' writes them: times the autoencoder's scale, less its shift.\n"
             "  OUT: 000000.png, ... in a folder, one PNG, or an .npz with arr_0.\n",
    .examples = "  nalagen sample --vae none --class church -n 4 --latents latents.npy\n"
                "  nalagen decode latents.npy -o pictures/\n"
                "  nalagen decode z.safetensors -o out.npz --vae sdxl-vae\n",
    .run = decode_main,
};
