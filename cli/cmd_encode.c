/* SPDX-License-Identifier: MIT */
/* The encode command: opens pictures and an autoencoder and has a data set made of them. */
#include "nl_encode_command.h"

#include <stdio.h>
#include <string.h>

#include "nl_command.h"
#include "nl_encode.h"
#include "nl_pipeline.h"

typedef struct nl_encode_command_options {
    nl_machine_options machine;
    bool force, strict, unconditional, no_flips, empty_classes, exif_orientation;
    const char *out, *vae, *split, *class_names;
    int64_t size[2], crops;
} nl_encode_command_options;

#define FIELD(member)   offsetof(nl_encode_command_options, member)
#define MACHINE(member) offsetof(nl_encode_command_options, machine.member)

static const char *const dtypes[] = {"f32", "bf16", NULL};

static const nl_option options_table[] = {
    {"out", 'o', NL_OPTION_FILE, FIELD(out), "DATA", .where = NL_COMMON, .group = "Data",
     .help = "the folder to write"},
    {"vae", 0, NL_OPTION_FILE, FIELD(vae), "FILE", .where = NL_COMMON,
     .help = "autoencoder, tiny, or none for pixels (tiny)",
     .detail =
         "tiny is the autoencoder that ships. A file of the Stable Diffusion VAE gives the moments "
         "of its posterior, from which training draws. The models to be trained must be used with "
         "the same autoencoder."},
    {"size", 0, NL_OPTION_EXTENT, FIELD(size), "N|HxW", 1, 16384, .where = NL_COMMON,
     .help = "of the pictures, in pixels (256; arrays: theirs)",
     .detail =
         "Pictures are halved by box while they are at least twice as large, scaled bicubically to "
         "the short side and cut out at the centre, with the numbers of PIL."},
    {"split", 0, NL_OPTION_TEXT, FIELD(split), "NAME",
     .help = "part of the data set: train, val, test"},
    {"unconditional", 0, NL_OPTION_FLAG, FIELD(unconditional), .where = NL_COMMON,
     .help = "no classes"},
    {"class-names", 0, NL_OPTION_FILE, FIELD(class_names), "FILE", .where = NL_COMMON,
     .help = "text or CSV, 'FOLDER NAME' a line",
     .detail = "ImageNet's LOC_synset_mapping.txt is one."},
    {"empty-classes", 0, NL_OPTION_FLAG, FIELD(empty_classes),
     .help = "a class folder may hold no picture"},
    {"exif-orientation", 0, NL_OPTION_FLAG, FIELD(exif_orientation),
     .help = "turn pictures as their EXIF says",
     .detail =
         "Without it they are taken as they are stored, as torchvision's ImageFolder does, and "
         "those that EXIF says to turn are counted."},
    {"no-flips", 0, NL_OPTION_FLAG, FIELD(no_flips), .where = NL_COMMON,
     .help = "do not encode mirrored pictures",
     .detail = "Half the time and size; training then cannot mirror latents."},
    {"crops", 0, NL_OPTION_INT, FIELD(crops), "N", 1, 1000, .where = NL_COMMON,
     .help = "samples of each picture: whole, then parts (1)",
     .detail = "Of few pictures a model learns less by heart when it sees parts of them too: "
               "down to half the side, and not enlarged more than 1.5 times, the larger the more "
               "frequent. Which part a sample is stands beside it: \"crop_conditioning\": true in "
               "train --config tells the model. What is held out is encoded without."},
    {"strict", 0, NL_OPTION_FLAG, FIELD(strict), .where = NL_COMMON,
     .help = "a broken picture is an error, not left out"},
    {"force", 'f', NL_OPTION_FLAG, FIELD(force), .where = NL_COMMON,
     .help = "begin anew, whatever is in DATA"},
    {.include = nl_device_options, .offset = offsetof(nl_encode_command_options, machine)},
    {"dtype", 0, NL_OPTION_CHOICE, MACHINE(dtype), "NAME", .choices = dtypes,
     .help = "arithmetic of the autoencoder: f32, bf16 (f32)"},
    {.include = nl_common_options, .offset = offsetof(nl_encode_command_options, machine)},
    {0},
};

typedef struct nl_encode_session {
    nl_command_line *line;
    nl_context *context;
    nl_vae_file vae;
    nl_encode_result result;
} nl_encode_session;

/* The rate is that of this run: what an earlier one has made is not counted into it. */
static bool show_progress(void *user, const nl_progress *progress)
{
    nl_encode_session *s = user;
    nl_progress mine = *progress;
    s->line->console.bar.there = s->result.there;
    mine.image -= s->result.there;
    mine.images -= s->result.there;
    nl_console_progress(&s->line->console, &mine);
    return true;
}

static nl_status encode_source(nl_encode_session *s, const nl_encode_command_options *o,
                               const char *source)
{
    nl_dataset *dataset = NULL;
    double scale = 1, shift = 0;
    nl_status status = NL_OK;
    if (s->vae.vae)
        NL_TRY(nl_vae_latent_scale(s->vae.vae, &scale, &shift));
    NL_TRY(nl_encode_dataset(s->context,
                             &(nl_encode_options){.source = source,
                                                  .out = o->out,
                                                  .split = o->split,
                                                  .unconditional = o->unconditional,
                                                  .empty_classes = o->empty_classes,
                                                  .turn = o->exif_orientation,
                                                  .height = (int)o->size[0],
                                                  .width = (int)o->size[1],
                                                  .vae = s->vae.vae,
                                                  .vae_sha256 = s->vae.sha256,
                                                  .latent_scale = scale,
                                                  .latent_shift = shift,
                                                  .class_names = o->class_names,
                                                  .no_flips = o->no_flips,
                                                  .crops = o->crops,
                                                  .strict = o->strict,
                                                  .force = o->force,
                                                  .threads = s->context->device->threads},
                             &s->result));
    NL_TRY(nl_dataset_open(s->context, o->out, &dataset)); /* what training will find */
    nl_log(s->context, NL_LOG_INFO, "%s: %lld %s%s", o->out, (long long)s->result.count,
           nl_plural(s->result.count, "sample", "samples"),
           s->result.there == s->result.count ? ", all of them there already" : "");
    if (s->result.turned > 0)
        nl_log(s->context, o->exif_orientation ? NL_LOG_INFO : NL_LOG_WARNING,
               o->exif_orientation
                   ? "%lld %s turned as EXIF says (the first: %s)"
                   : "%lld %s taken as stored, not turned as EXIF says (the first: %s): see "
                     "--exif-orientation",
               (long long)s->result.turned, nl_plural(s->result.turned, "picture", "pictures"),
               s->result.first_turned);
    if (s->result.skipped > 0)
        nl_log(s->context, NL_LOG_WARNING, "%lld broken %s left out: see %s/dataset.json",
               (long long)s->result.skipped, nl_plural(s->result.skipped, "picture", "pictures"),
               o->out);
cleanup:
    nl_dataset_close(dataset);
    return status;
}

static nl_status encode(nl_command_line *line, void *values)
{
    const nl_encode_command_options *options = values;
    nl_encode_session s = {.line = line};
    nl_status status = NL_OK;
    if (!options->out)
        NL_TRY(nl_fail(line->context, NL_ERROR_USAGE,
                       "encode: name the folder to write with -o DATA"));
    NL_TRY(nl_command_take_device(line, &options->machine, show_progress, &s));
    s.context = line->context;
    NL_TRY(nl_vae_file_open(s.context, options->vae, &s.vae));
    NL_TRY(encode_source(&s, options, line->operands[0]));
cleanup:
    nl_console_clear(&line->console);
    if (status == NL_CANCELLED)
        nl_log(line->context, NL_LOG_INFO, "run the same command to resume");
    nl_vae_file_close(&s.vae);
    return status;
}

static nl_status nl_encode_main(int argc, char **argv)
{
    nl_encode_command_options options = {.vae = "tiny", .machine = {.dtype = "f32"}};
    return nl_command_main(&nl_encode_command, argc, argv, &options, encode);
}

const nl_command nl_encode_command = {
    .name = "encode",
    .summary = "Make training data of pictures",
    .arguments = "[OPTION...] -o DATA SOURCE",
    .least = 1,
    .most = 1,
    .operands = "one folder or archive of pictures",
    .options = options_table,
    .notes = "SOURCE: a folder for each class with PNG, JPEG, WebP, or pictures alone; a tar\n"
             "  or zip of them; a folder of webdataset's tars; CIFAR's batches; IDX files\n"
             "  (MNIST); an .npz; latents of fast-DiT or REPA. DATA: latents of the pictures\n"
             "  and their mirror images, for 'nalagen train'. What was stopped resumes.\n",
    .examples = "  nalagen encode imagenet/train -o imagenet-256 --vae sd-vae-ft-ema.safetensors\n"
                "  nalagen encode cifar-10-batches-bin --split train -o cifar --vae none\n",
    .run = nl_encode_main,
};
