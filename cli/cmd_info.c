/* SPDX-License-Identifier: MIT */
/* The info command: what a file, a folder or a device is, as lines or as JSON. */
#include "nl_info.h"

#include <dirent.h>
#include <stdio.h>
#include <string.h>

#include "nl_command.h"
#include "nl_data.h"
#include "nl_image.h"
#include "nl_npy.h"
#include "nl_pipeline.h"
#include "nl_run.h"
#include "nl_sample.h"
#include "nl_vae.h"

typedef struct nl_info_options {
    bool help, quiet, verbose, json;
    const char *arch, *key, *device;
    bool verify;
} nl_info_options;

static const char *const devices[] = {"auto", NULL};

#define FIELD(member) offsetof(nl_info_options, member)

static const nl_option options_table[] = {
    {"json", 0, NL_OPTION_FLAG, FIELD(json), .group = "Options", .help = "one JSON object"},
    {"arch", 0, NL_OPTION_CHOICE, FIELD(arch), "NAME", .choices = nl_architecture_names,
     .help = "of a checkpoint that does not say"},
    {"key", 0, NL_OPTION_TEXT, FIELD(key), "NAME",
     .help = "dict of a training checkpoint: ema, model (ema)"},
    {"verify", 0, NL_OPTION_FLAG, FIELD(verify),
     .help = "compare a checkpoint's tensors with their checksums",
     .detail = "Files that nalagen has written have them. What fits is counted; what does not is "
               "named, and the exit "
               "code is 3."},
    {"device", 0, NL_OPTION_TEXT, FIELD(device), "NAME", .choices = devices,
     .where = NL_OPTIONAL_VALUE, .help = "a device, with measured rates: auto, cpu, cuda:N"},
    {.include = nl_common_options},
    {0},
};

/* {"BF16": 12, ...}: tensors of each type. */
static void add_types(const nl_checkpoint *checkpoint, cJSON *object)
{
    int64_t tensors[NL_DTYPE_COUNT] = {0};
    cJSON *types = cJSON_AddObjectToObject(object, "tensors");
    for (const nl_checkpoint *part = checkpoint; part; part = part->beside)
        for (int64_t i = 0; i < part->count; i++)
            tensors[part->entries[i].dtype] += NL_MAX(part->entries[i].part_count, 1);
    for (int t = 0; t < NL_DTYPE_COUNT; t++)
        if (tensors[t])
            cJSON_AddNumberToObject(types, nl_dtype_name((nl_dtype)t), (double)tensors[t]);
}

/* What a torch file holds beside the tensors: the step, the arguments of the training. */
static void add_facts(const nl_checkpoint *checkpoint, cJSON *object)
{
    cJSON *facts = NULL;
    if (checkpoint->taken && checkpoint->holds)
        cJSON_AddStringToObject(object, "holds", checkpoint->holds);
    if (checkpoint->taken)
        cJSON_AddStringToObject(object, "taken", checkpoint->taken);
    if (checkpoint->spelling)
        cJSON_AddStringToObject(object, "names", checkpoint->spelling);
    for (char **pair = checkpoint->metadata; *pair; pair += 2) {
        if (!strcmp(pair[0], "nalagen") || strstr(pair[0], ".json"))
            continue;
        if (!facts)
            facts = cJSON_AddObjectToObject(object, "metadata");
        cJSON_AddStringToObject(facts, pair[0], pair[1]);
    }
}

/* "complete", or why it would not load: every tensor that is missing, unexpected or misshapen. */
static void add_verdict(nl_context *context, nl_status status, cJSON *object)
{
    cJSON_AddBoolToObject(object, "complete", status == NL_OK);
    if (status != NL_OK)
        cJSON_AddStringToObject(object, "problem", nl_last_error(context));
}

static void add_license(const nl_config *config, cJSON *object)
{
    const char *text = config->license;
    if (!text && config->attention == NL_ATTENTION_SOFTMAX)
        text = config->architecture == NL_ARCH_DIT
                   ? "not stated in the file; weights published with DiT are CC BY-NC 4.0"
                   : "not stated in the file; the public SiT repository is under the MIT licence";
    cJSON_AddStringToObject(object, "license", text ? text : "not stated in the file");
}

static nl_status backbone_info(const nl_checkpoint *checkpoint, const char *arch, cJSON *object)
{
    nl_context *context = checkpoint->context;
    nl_config config;
    nl_status status = NL_OK;
    char name[64], *text = NULL;
    cJSON *json = NULL;
    int64_t parameters = 0;
    if (nl_config_from_checkpoint(checkpoint, arch, &config) != NL_OK) {
        /* Another network: its tensors are all there is to say. */
        cJSON_AddStringToObject(object, "model", "not a DiT or SiT");
        cJSON_AddStringToObject(object, "reason", nl_last_error(context));
        return NL_OK;
    }
    cJSON_AddStringToObject(object, "model", nl_config_name(&config, name, sizeof(name)));
    nl_status fits = nl_dit_fits(checkpoint, &config, &parameters);
    if (fits == NL_OK)
        cJSON_SetNumberValue(cJSON_GetObjectItem(object, "parameters"), (double)parameters);
    add_verdict(context, fits, object);
    add_license(&config, object);
    NL_TRY(nl_config_print(context, &config, &text));
    NL_TRY(nl_json_parse(context, checkpoint->path, text, strlen(text), &json));
    cJSON_AddItemToObject(object, "config", json);
cleanup:
    nl_free(context, text);
    nl_config_free(context, &config);
    return status;
}

static nl_status autoencoder_info(const nl_checkpoint *checkpoint, cJSON *object)
{
    nl_vae_kind kind = NL_VAE_NONE;
    int64_t parameters = 0;
    nl_status fits = nl_vae_fits(checkpoint, NULL, &kind, &parameters);
    if (fits == NL_OK)
        cJSON_SetNumberValue(cJSON_GetObjectItem(object, "parameters"), (double)parameters);
    cJSON_AddStringToObject(object, "model",
                            fits != NL_OK         ? "an autoencoder"
                            : kind == NL_VAE_TINY ? "tiny autoencoder (TAESD)"
                                                  : "AutoencoderKL");
    add_verdict(checkpoint->context, fits, object);
    return NL_OK;
}

static nl_status checkpoint_info(nl_context *context, const char *path,
                                 const nl_info_options *options, cJSON *object)
{
    nl_checkpoint *checkpoint = NULL;
    nl_status status = NL_OK;
    char hex[65];
    int64_t parameters = 0, checksums = 0;
    NL_TRY(nl_open_backbone(context, path, options->key, &checkpoint));
    if (options->verify)
        NL_TRY(nl_checkpoint_verify(checkpoint, &checksums));
    if (options->verify && !checksums)
        nl_log(context, NL_LOG_WARNING, "%s: it carries no checksums: nothing was compared", path);
    for (int64_t i = 0; i < checkpoint->count; i++)
        parameters += nl_entry_count(&checkpoint->entries[i]);
    NL_TRY(nl_checkpoint_read_sha256(checkpoint, hex));
    bool shard = nl_checkpoint_metadata(checkpoint, NL_SHARD_ENCODING) != NULL;
    cJSON_AddStringToObject(object, "kind",
                            shard ? "shard of training data of nalagen encode" : "checkpoint");
    cJSON_AddStringToObject(object, "format", checkpoint->format);
    if (checkpoint->shard_count > 1)
        cJSON_AddNumberToObject(object, "files", checkpoint->shard_count);
    cJSON_AddNumberToObject(object, "bytes", (double)nl_checkpoint_bytes(checkpoint));
    cJSON_AddStringToObject(object, "sha256", hex);
    if (options->verify)
        cJSON_AddNumberToObject(object, "checksums", (double)checksums);
    if (shard) {
        NL_TRY(nl_info_shard(checkpoint, object));
        goto cleanup;
    }
    cJSON_AddNumberToObject(object, "parameters", (double)parameters);
    add_types(checkpoint, object);
    add_facts(checkpoint, object);
    NL_TRY(nl_vae_recognizes(checkpoint) ? autoencoder_info(checkpoint, object)
                                         : backbone_info(checkpoint, options->arch, object));
cleanup:
    nl_checkpoint_close(checkpoint);
    return status;
}

static nl_status latents_info(nl_context *context, const char *path, cJSON *object)
{
    nl_npy npy;
    NL_CHECK(nl_npy_open(context, path, &npy));
    cJSON_AddStringToObject(object, "kind", "latents");
    cJSON_AddStringToObject(object, "dtype", nl_dtype_name(npy.dtype));
    cJSON *shape = cJSON_AddArrayToObject(object, "shape");
    int64_t count = 1;
    for (int i = 0; i < npy.ndim; i++) {
        cJSON_AddItemToArray(shape, cJSON_CreateNumber((double)npy.shape[i]));
        count *= npy.shape[i];
    }
    double sum = 0, squares = 0, low = 0, high = 0;
    int64_t finite = 0;
    for (int64_t i = 0; i < count; i++) {
        float x;
        nl_convert_to_float((const char *)npy.data + i * nl_dtype_size(npy.dtype), npy.dtype, 1,
                            &x);
        if (!(x - x == 0))
            continue;
        low = !finite || x < low ? x : low;
        high = !finite || x > high ? x : high;
        sum += x;
        squares += (double)x * x;
        finite++;
    }
    double mean = finite ? sum / (double)finite : 0;
    cJSON_AddNumberToObject(object, "min", low);
    cJSON_AddNumberToObject(object, "max", high);
    cJSON_AddNumberToObject(object, "mean", mean);
    cJSON_AddNumberToObject(object, "variance",
                            finite ? squares / (double)finite - mean * mean : 0);
    cJSON_AddNumberToObject(object, "not_finite", (double)(count - finite));
    nl_npy_close(context, &npy);
    return NL_OK;
}

static void add_picture(cJSON *object, const nl_image *image)
{
    cJSON_AddStringToObject(object, "kind", "picture");
    cJSON_AddNumberToObject(object, "height", image->height);
    cJSON_AddNumberToObject(object, "width", image->width);
}

/* A PNG, also one that nalagen has not made. */
static nl_status png_info(nl_context *context, const char *path, cJSON *object)
{
    nl_image image = {0};
    cJSON *facts = NULL;
    nl_status status = NL_OK;
    NL_TRY(nl_png_read_text(context, path, &image));
    add_picture(object, &image);
    const char *text = nl_image_facts(&image);
    if (text) {
        NL_TRY(nl_json_parse(context, path, text, strlen(text), &facts));
        cJSON_AddItemToObject(object, "parameters", facts);
    }
cleanup:
    nl_image_free(context, &image);
    return status;
}

/* What is no checkpoint, says `status`: a JPEG or WebP, or many pictures. Where it is neither, the error is the first one,
 * but for pictures of which a part is to be chosen. */
static nl_status pictures_info(nl_context *context, const char *path, nl_status status,
                               cJSON *object)
{
    nl_image image = {0};
    char *message = NULL;
    if (status != NL_ERROR_INPUT)
        return status;
    NL_CHECK(nl_strdup(context, nl_last_error(context), &message));
    bool folder = nl_path_is_folder(path);
    if (!folder && nl_image_read(context, path, &image) == NL_OK) {
        add_picture(object, &image);
        status = NL_OK;
    } else {
        status = nl_info_source(context, path, object);
    }
    if (status == NL_ERROR_INPUT)
        status = nl_fail(context, status, "%s%s", message,
                         folder ? "; nor is there training data, a run or pictures" : "");
    nl_image_free(context, &image);
    nl_free(context, message);
    return status;
}

static bool starts_with(const nl_mapping *file, const char *magic, int64_t size)
{
    return file->size >= size && !memcmp(file->data, magic, (size_t)size);
}

/* Whether nalagen encode has begun there. */
static bool holds_parts(const char *path)
{
    DIR *folder = opendir(path);
    bool found = false;
    for (struct dirent *entry; folder && !found && (entry = readdir(folder));)
        found = !strncmp(entry->d_name, "shard-", 6);
    if (folder)
        closedir(folder);
    return found;
}

static nl_status other_info(nl_context *context, const char *path, const nl_info_options *options,
                            cJSON *object)
{
    nl_status status = checkpoint_info(context, path, options, object);
    return options->verify ? status : pictures_info(context, path, status, object);
}

static nl_status folder_info(nl_context *context, const char *path, const nl_info_options *options,
                             cJSON *object)
{
    char *dataset = NULL;
    nl_status status = nl_path_join(context, path, NL_DATASET_FILE, &dataset);
    bool encoded = status == NL_OK && nl_path_exists(dataset);
    nl_free(context, dataset);
    if (status == NL_OK && !encoded && holds_parts(path))
        return nl_fail(
            context, NL_ERROR_INPUT,
            "%s: training data that is not finished: the same 'nalagen encode' resumes it", path);
    return status != NL_OK            ? status
           : encoded                  ? nl_info_dataset(context, path, object)
           : nl_is_run(context, path) ? nl_info_run(context, path, object)
                                      : other_info(context, path, options, object);
}

/* Files that torch.save writes are zip archives too: a .npz is known by its name. */
static bool is_npz(const char *path)
{
    size_t length = strlen(path);
    return length > 4 && !strcmp(path + length - 4, ".npz");
}

static nl_status file_info(nl_context *context, const char *path, const nl_info_options *options,
                           cJSON *object)
{
    nl_mapping mapping;
    if (nl_path_is_folder(path))
        return folder_info(context, path, options, object);
    NL_CHECK(nl_map_file(context, path, &mapping));
    bool png = starts_with(&mapping, "\x89PNG\r\n\x1a\n", 8);
    bool npy = starts_with(&mapping, "\x93NUMPY", 6);
    nl_unmap(context, &mapping);
    if (options->verify && (png || npy || is_npz(path)))
        return nl_fail(context, NL_ERROR_USAGE,
                       "%s: no checkpoint, which alone has checksums to --verify", path);
    return png            ? png_info(context, path, object)
           : npy          ? latents_info(context, path, object)
           : is_npz(path) ? nl_info_archive(context, path, object)
                          : other_info(context, path, options, object);
}

enum { MOST_NAMES = 20 };

/* The first names of classes, or what stands under them, as one line. */
static void print_names(const cJSON *item)
{
    int shown = 0;
    for (const cJSON *name = item->child; name && shown < MOST_NAMES; name = name->next, shown++) {
        const cJSON *text = cJSON_IsArray(name) ? cJSON_GetArrayItem(name, 1) : name;
        fputs(shown ? ", " : " ", stdout);
        if (cJSON_IsObject(item)) {
            nl_print_plain(stdout, name->string);
            printf(" %.15g", cJSON_GetNumberValue(name));
        } else {
            nl_print_plain(stdout, cJSON_IsString(text) ? text->valuestring : "?");
        }
    }
    printf("%s\n", cJSON_GetArraySize(item) > shown ? ", ..." : "");
}

/* "key: value" lines; objects inside are indented; those of classes become one line. */
static void print_lines(const cJSON *object, int indent)
{
    for (const cJSON *item = object->child; item; item = item->next) {
        bool names = !strcmp(item->string, "class_names") ||
                     !strcmp(item->string, "samples_of_classes") ||
                     !strcmp(item->string, "pictures_of_classes");
        printf("%*s", indent, "");
        nl_print_plain(stdout, item->string);
        putchar(':');
        if (names && item->child) {
            print_names(item);
            continue;
        }
        if (cJSON_IsObject(item)) {
            putchar('\n');
            print_lines(item, indent + 2);
            continue;
        }
        char *text = cJSON_IsString(item) ? NULL : nl_json_print(item, false);
        putchar(' ');
        if (!strcmp(item->string, "problem") && indent == 0)
            nl_print_message(stdout, cJSON_GetStringValue(item));
        else
            nl_print_plain(stdout, text ? text : cJSON_GetStringValue(item));
        putchar('\n');
        cJSON_free(text);
    }
}

static nl_status print(nl_context *context, const nl_info_options *options, const cJSON *object)
{
    if (options->json)
        return nl_print_json(context, object);
    print_lines(object, 0);
    return nl_finish_stdout(context);
}

static nl_status info(nl_command_line *line, void *values)
{
    const nl_info_options *options = values;
    nl_context *context = line->context;
    const char *operand = line->operand_count ? line->operands[0] : NULL;
    nl_status status = NL_OK;
    char *path = NULL;
    cJSON *object = cJSON_CreateObject();
    if (options->device) { /* --device NAME, too */
        NL_TRY(nl_device_info(context, operand ? operand : options->device, object));
    } else if (operand) {
        cJSON_AddStringToObject(object, "file", operand);
        NL_TRY(nl_find_named(context, operand, &path));
        NL_TRY(file_info(context, path, options, object));
    } else {
        NL_TRY(nl_fail(context, NL_ERROR_USAGE,
                       "info: expected one file or folder, found none; see 'nalagen info --help'"));
    }
    NL_TRY(print(context, options, object));
cleanup:
    nl_free(context, path);
    cJSON_Delete(object);
    return status;
}

static nl_status nl_info_main(int argc, char **argv)
{
    nl_info_options options = {0};
    return nl_command_main(&nl_info_command, argc, argv, &options, info);
}

const nl_command nl_info_command = {
    .name = "info",
    .summary = "What a checkpoint, picture, array, data set, run or device is",
    .arguments = "[OPTION...] FILE|FOLDER | --device[=NAME]",
    .most = 1,
    .operands = "one file or folder",
    .options = options_table,
    .examples = "  nalagen info church-seed0.png\n"
                "  nalagen info --json model.safetensors\n"
                "  nalagen info DiT-XL-2-256x256.pt\n"
                "  nalagen info pictures                       what encode would take\n"
                "  nalagen info data                           what nalagen encode has made\n"
                "  nalagen info run                            how far a training has come\n"
                "  nalagen info --device\n",
    .run = nl_info_main,
};
