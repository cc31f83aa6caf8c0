/* SPDX-License-Identifier: MIT */
/* The reconstruct command: what an autoencoder makes of pictures, and what it loses. */
#include "nl_encode_command.h"

#include <math.h>
#include <stdio.h>
#include <string.h>

#include "nl_command.h"
#include "nl_reconstruct.h"

typedef struct nl_reconstruct_values {
    nl_machine_options machine;
    bool force, exif_orientation, json;
    const char *out, *vae;
    int64_t size[2], batch;
} nl_reconstruct_values;

#define FIELD(member)   offsetof(nl_reconstruct_values, member)
#define MACHINE(member) offsetof(nl_reconstruct_values, machine.member)

static const char *const dtypes[] = {"f32", "bf16", NULL};

static const nl_option options_table[] = {
    {"out", 'o', NL_OPTION_FILE, FIELD(out), "OUT", .where = NL_COMMON, .group = "Pictures",
     .help = "a.png, out/ or a.npz: what IN is"},
    {"vae", 0, NL_OPTION_FILE, FIELD(vae), "FILE", .where = NL_COMMON,
     .help = "autoencoder, or tiny (tiny)", .detail = "tiny is the one that ships."},
    {"size", 0, NL_OPTION_EXTENT, FIELD(size), "N|HxW", 1, 16384, .where = NL_COMMON,
     .help = "fit pictures to it first (as they are)",
     .detail = "As encode does: halved by box, scaled bicubically, the centre cut out."},
    {"exif-orientation", 0, NL_OPTION_FLAG, FIELD(exif_orientation),
     .help = "turn pictures as their EXIF says"},
    {"force", 'f', NL_OPTION_FLAG, FIELD(force), .where = NL_COMMON,
     .help = "overwrite files (never without)"},
    {"json", 0, NL_OPTION_FLAG, FIELD(json), .where = NL_COMMON,
     .help = "one JSON object on stdout"},
    {.include = nl_device_options, .offset = offsetof(nl_reconstruct_values, machine)},
    {"dtype", 0, NL_OPTION_CHOICE, MACHINE(dtype), "NAME", .choices = dtypes,
     .help = "arithmetic of the autoencoder: f32, bf16 (f32)"},
    {"batch", 'b', NL_OPTION_INT, FIELD(batch), "N", 1, 65536, .where = NL_COMMON,
     .help = "pictures at once (16)"},
    {.include = nl_common_options, .offset = offsetof(nl_reconstruct_values, machine)},
    {0},
};

static void add_ratio(cJSON *object, const char *name, double value)
{
    if (isfinite(value))
        cJSON_AddNumberToObject(object, name, value);
    else
        cJSON_AddNullToObject(object, name);
}

static nl_status report_json(nl_context *context, const char *in, const nl_vae_file *vae,
                             const nl_reconstruct_result *result)
{
    cJSON *object = cJSON_CreateObject();
    cJSON_AddStringToObject(object, "version", nl_version());
    cJSON_AddStringToObject(object, "input", in);
    cJSON_AddNumberToObject(object, "n", (double)result->count);
    cJSON_AddNumberToObject(object, "exact", (double)result->exact);
    add_ratio(object, "psnr_mean", result->mean);
    add_ratio(object, "psnr_worst", result->worst);
    if (isfinite(result->worst)) {
        cJSON_AddNumberToObject(object, "worst_index", (double)result->worst_index);
        if (*result->worst_name)
            cJSON_AddStringToObject(object, "worst", result->worst_name);
    }
    cJSON_AddStringToObject(object, "vae_sha256", vae->sha256);
    nl_status status = nl_print_json(context, object);
    cJSON_Delete(object);
    return status;
}

static nl_status report_text(nl_context *context, const nl_reconstruct_result *result)
{
    char text[800], exact[64] = "";
    if (result->exact)
        snprintf(exact, sizeof(exact), "; %lld without a difference", (long long)result->exact);
    if (!isfinite(result->worst))
        snprintf(text, sizeof(text), "%lld %s%s", (long long)result->count,
                 nl_plural(result->count, "picture", "pictures"), exact);
    else
        snprintf(text, sizeof(text),
                 "%lld %s: PSNR %.2f dB on average, %.2f dB at worst (%s%s%lld)%s",
                 (long long)result->count, nl_plural(result->count, "picture", "pictures"),
                 result->mean, result->worst, result->worst_name, *result->worst_name ? ", " : "",
                 (long long)result->worst_index, exact);
    return nl_print_path(context, text);
}

static nl_status reconstruct(nl_command_line *line, void *values)
{
    const nl_reconstruct_values *v = values;
    nl_vae_file vae = {.file = NULL};
    nl_reconstruct_result result;
    nl_status status = NL_OK;
    if (!v->out || !*v->out)
        NL_TRY(nl_fail(line->context, NL_ERROR_USAGE,
                       "reconstruct: say where the pictures go with -o OUT"));
    if (!strcmp(v->vae, "none"))
        NL_TRY(nl_fail(line->context, NL_ERROR_USAGE,
                       "--vae none: pixels stay what they are without an autoencoder"));
    NL_TRY(nl_command_take_device(line, &v->machine, nl_command_progress, line));
    NL_TRY(nl_vae_file_open(line->context, v->vae, &vae));
    const nl_reconstruct_options options = {.in = line->operands[0],
                                            .out = v->out,
                                            .vae = vae.vae,
                                            .vae_sha256 = vae.sha256,
                                            .height = (int)v->size[0],
                                            .width = (int)v->size[1],
                                            .turn = v->exif_orientation,
                                            .force = v->force,
                                            .batch = v->batch};
    NL_TRY(nl_reconstruct(line->context, &options, &result));
    nl_console_clear(&line->console);
    NL_TRY(v->json ? report_json(line->context, line->operands[0], &vae, &result)
                   : report_text(line->context, &result));
cleanup:
    nl_vae_file_close(&vae);
    return status;
}

static nl_status reconstruct_main(int argc, char **argv)
{
    nl_reconstruct_values values = {.vae = "tiny", .machine = {.dtype = "f32"}};
    return nl_command_main(&nl_reconstruct_command, argc, argv, &values, reconstruct);
}

const nl_command nl_reconstruct_command = {
    .name = "reconstruct",
    .summary = "Pictures through an autoencoder and back, and what is lost",
    .arguments = "[OPTION...] IN -o OUT",
    .least = 1,
    .most = 1,
    .operands = "a picture, a folder of pictures or an .npz",
    .options = options_table,
    .notes = "IN: a PNG, JPEG or WebP, a folder with such files and folders of them, or an\n"
             "  .npz with arr_0 (uint8 [N, height, width, 3]). OUT: the same, in PNG. The peak\n"
             "  signal to noise ratio is that of bytes, over each whole picture. eval then\n"
             "  says what a model that makes latents cannot better: FID of OUT.\n",
    .examples = "  nalagen reconstruct photo.png -o through.png\n"
                "  nalagen reconstruct imagenet/val -o through/ --size 256 --vae sd-vae-ft-ema\n"
                "  nalagen eval through/ --ref ref.npz\n",
    .run = reconstruct_main,
};
