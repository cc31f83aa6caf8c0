/* SPDX-License-Identifier: MIT */
/* Writing checkpoints: a model's parameters, or those of another file, under one of three
 * spellings. */
#include <stdio.h>
#include <string.h>

#include "nl_json.h"
#include "params.h"

/* The file to be written: what stands in it, and from which parameter it comes. */
typedef struct nl_dit_file {
    nl_context *context;
    const nl_dit *dit; /* its table is read, and its parameters when there is no checkpoint */
    const nl_checkpoint *checkpoint; /* or NULL */
    const nl_checkpoint *beside;     /* of it, for "one_step.NAME", or NULL */
    nl_dtype dtype;                  /* NL_DTYPE_COUNT: as they are */
    nl_dit_spelling spelling;
    nl_saved *tensors;
    int64_t count;
    char *names;  /* NL_NAME_SIZE for each */
    void *packed; /* device: one parameter in its own type */
    int64_t largest;
} nl_dit_file;

/* Sources are the parameters, then those of the second set, and one that is computed. */
enum { POSITION = -1 };

static const nl_param *param_of(const nl_dit_file *file, int64_t source)
{
    return &file->dit->params[source % file->dit->param_count];
}

/* Where the checkpoint has it. */
static const nl_checkpoint *checkpoint_of(const nl_dit_file *file, int64_t source)
{
    return source < file->dit->param_count ? file->checkpoint : file->beside;
}

/* Matrices in the type asked for, vectors in F32; with I8 all but the blocks' matrices in BF16. */
static nl_dtype saved_dtype(const nl_dit_file *file, int64_t source)
{
    const nl_param *param = param_of(file, source);
    if (file->dtype == NL_I8)
        return param->matrix && strncmp(param->name, "blocks.", 7) == 0 ? NL_I8 : NL_BF16;
    if (file->dtype != NL_DTYPE_COUNT)
        return param->ndim > 1 ? file->dtype : NL_F32;
    const nl_entry *entry = nl_checkpoint_find(checkpoint_of(file, source), param->name);
    if (entry->scale && file->spelling == NL_SPELLING_NALAGEN)
        return NL_I8;
    return nl_saved_dtype(entry->part_count ? &entry->parts[0] : entry);
}

static nl_saved *add_tensor(nl_dit_file *file, int64_t source, nl_dtype dtype, int ndim,
                            const int64_t *shape)
{
    nl_saved *saved = &file->tensors[file->count];
    char *name = file->names + file->count * NL_NAME_SIZE;
    file->count++;
    *saved = (nl_saved){.name = name, .dtype = dtype, .ndim = ndim, .source = source};
    memcpy(saved->shape, shape, sizeof(saved->shape));
    return saved;
}

static void add_native(nl_dit_file *file, int64_t source)
{
    const nl_param *param = param_of(file, source);
    const nl_checkpoint *checkpoint = checkpoint_of(file, source);
    nl_saved *saved =
        add_tensor(file, source, saved_dtype(file, source), param->ndim, param->shape);
    const nl_entry *entry = checkpoint ? nl_checkpoint_find(checkpoint, param->name) : NULL;
    snprintf((char *)saved->name, NL_NAME_SIZE, "%s%s",
             source < file->dit->param_count ? "" : NL_ONE_STEP_KEY ".", param->name);
    if (entry && saved->dtype == NL_I8 && entry->dtype == NL_I8 && entry->scale &&
        !entry->strides) {
        saved->exact = entry;
        saved->file = checkpoint;
    }
}

static void add_diffusers(nl_dit_file *file, int64_t source)
{
    const nl_param *param = param_of(file, source);
    int parts = nl_diffusers_parts(param->name);
    int copies = nl_diffusers_copied(param->name) ? file->dit->config.depth : 1;
    int64_t count = nl_tensor_count(param->tensor) / parts;
    for (int copy = 0; copy < copies; copy++)
        for (int part = 0; part < parts; part++) {
            nl_saved *saved =
                add_tensor(file, source, saved_dtype(file, source), param->ndim, param->shape);
            nl_diffusers_name(param->name, part, copy, (char *)saved->name);
            saved->shape[0] /= parts;
            saved->first = part * count;
        }
}

static void add_position(nl_dit_file *file)
{
    const nl_config *config = &file->dit->config;
    int64_t shape[NL_MAX_DIMS] = {1, nl_config_tokens(config), config->hidden_size, 1, 1};
    nl_saved *saved = add_tensor(file, POSITION, NL_F32, 3, shape);
    strcpy((char *)saved->name, "pos_embed");
    file->largest = NL_MAX(file->largest, shape[1] * shape[2]);
}

static nl_status list_tensors(nl_dit_file *file)
{
    nl_status status;
    const nl_dit *dit = file->dit;
    /* the embeddings' six parameters in every block, three parts of qkv's two */
    int64_t sources = (int64_t)dit->param_count * (file->beside ? 2 : 1);
    int64_t most = sources + 1 + (int64_t)dit->config.depth * (6 + 4);
    NL_TRY(NL_NEW_ZEROS(file->context, "names of tensors", most, &file->tensors));
    NL_TRY(
        NL_NEW_ZEROS(file->context, "names of tensors", (size_t)most * NL_NAME_SIZE, &file->names));
    file->largest = 1;
    if (file->spelling == NL_SPELLING_PUBLIC || dit->config.stored_position)
        add_position(file);
    for (int64_t i = 0; i < sources; i++) {
        file->largest = NL_MAX(file->largest, nl_tensor_count(param_of(file, i)->tensor));
        if (file->spelling == NL_SPELLING_DIFFUSERS)
            add_diffusers(file, i);
        else
            add_native(file, i);
    }
cleanup:
    return status;
}

static nl_status download(nl_dit_file *file, const nl_tensor *tensor, float *values)
{
    nl_device *device = file->dit->device;
    if (tensor->dtype == NL_F8)
        return nl_fail(file->context, NL_ERROR_USAGE,
                       "what dtype fp8 made of the weights is not saved; load the model in f32 or "
                       "bf16");
    nl_status status =
        device->ops->download(device, file->packed, tensor->data, nl_tensor_bytes(tensor));
    if (status == NL_OK)
        nl_convert_to_float(file->packed, tensor->dtype, nl_tensor_count(tensor), values);
    return status;
}

static nl_status read_source(void *user, int64_t source, float *values)
{
    nl_dit_file *file = user;
    const nl_config *config = &file->dit->config;
    if (source == POSITION) {
        if (config->stored_position && file->checkpoint)
            return nl_entry_read(file->checkpoint,
                                 nl_checkpoint_find(file->checkpoint, "pos_embed"), values);
        if (config->stored_position)
            return download(file, &file->dit->position, values);
        nl_position_table(config->input_height / config->patch_size,
                          config->input_width / config->patch_size, config->hidden_size, values);
        return NL_OK;
    }
    const nl_param *param = param_of(file, source);
    const nl_checkpoint *checkpoint = checkpoint_of(file, source);
    if (!checkpoint)
        return download(file, param->tensor, values);
    return nl_entry_read(checkpoint, nl_checkpoint_find(checkpoint, param->name), values);
}

static nl_status check_request(const nl_dit_file *file, const char *path)
{
    nl_dtype dtype = file->dtype;
    bool keep = dtype == NL_DTYPE_COUNT && file->checkpoint;
    if (!keep && dtype != NL_F32 && dtype != NL_BF16 && dtype != NL_F16 && dtype != NL_I8)
        return nl_fail(file->context, NL_ERROR_USAGE,
                       "%s: weights are stored as F32, BF16, F16 or I8, not %s", path,
                       dtype < NL_DTYPE_COUNT ? nl_dtype_name(dtype) : "as they are");
    if (dtype == NL_I8 && file->spelling != NL_SPELLING_NALAGEN)
        return nl_fail(file->context, NL_ERROR_USAGE,
                       "%s: int8 with row scales is nalagen's own: PyTorch would not understand it "
                       "under public names; store f32, bf16 or f16",
                       path);
    const nl_config *config = &file->dit->config;
    if (file->spelling != NL_SPELLING_NALAGEN && (config->flow_map || config->guided))
        return nl_fail(file->context, NL_ERROR_USAGE,
                       "%s: other programs know no flow maps and no guidance inside the weights, "
                       "and would make wrong pictures: write it as nalagen",
                       path);
    const char *part = config->attention >= NL_ATTENTION_GLA ? "this \"attention\""
                       : config->dw_conv                     ? "\"dw_conv\""
                       : config->mlp != NL_MLP_GELU          ? "this \"mlp\""
                       : config->norm != NL_NORM_LAYER       ? "this \"norm\""
                       : config->qk_norm                     ? "\"qk_norm\""
                       : config->rope && config->attention == NL_ATTENTION_SOFTMAX ? "\"rope\""
                       : config->learn_exponents && config->attention == NL_ATTENTION_NALA
                           ? "\"learn_exponents\""
                       : config->crop_conditioning ? "\"crop_conditioning\""
                       : config->middle_head       ? "\"middle_head\""
                                                   : NULL;
    if (file->spelling != NL_SPELLING_NALAGEN && part)
        return nl_fail(file->context, NL_ERROR_USAGE,
                       "%s: the networks of %s do not have %s: write it as nalagen", path,
                       file->spelling == NL_SPELLING_DIFFUSERS ? "diffusers"
                                                               : "the public DiT and SiT code",
                       part);
    if (file->spelling == NL_SPELLING_DIFFUSERS && file->dit->config.attention == NL_ATTENTION_NALA)
        return nl_fail(file->context, NL_ERROR_USAGE,
                       "%s: diffusers has no NaLa attention: write it as nalagen or dit", path);
    if (file->spelling == NL_SPELLING_DIFFUSERS && file->dit->config.architecture == NL_ARCH_SIT)
        return nl_fail(
            file->context, NL_ERROR_USAGE,
            "%s: diffusers has no SiT: DiTTransformer2DModel is sampled as a DiT, by noise; "
            "write it as nalagen or dit",
            path);
    if (file->spelling == NL_SPELLING_DIFFUSERS && file->dit->config.stored_position)
        return nl_fail(
            file->context, NL_ERROR_USAGE,
            "%s: diffusers computes the table of positions, and this model has one of its "
            "own: write it as nalagen or dit",
            path);
    if (file->spelling == NL_SPELLING_DIFFUSERS && file->dit->config.no_null_class)
        return nl_fail(file->context, NL_ERROR_USAGE,
                       "%s: diffusers' DiTTransformer2DModel has a null class, and this model has "
                       "none: write it as nalagen or dit",
                       path);
    return NL_OK;
}

static nl_status write_file(nl_dit_file *file, const char *path, bool overwrite)
{
    nl_status status;
    char *json = NULL;
    NL_TRY(check_request(file, path));
    NL_TRY(list_tensors(file));
    NL_TRY(nl_config_print(file->context, &file->dit->config, &json));
    if (!file->checkpoint)
        NL_TRY(NL_NEW_SIZED(file->context, "a parameter on the host", file->largest, sizeof(float),
                            &file->packed));
    /* "format" is what transformers and diffusers look for */
    const char *metadata[] = {"nalagen", json, "format", "pt", NULL};
    if (file->spelling == NL_SPELLING_NALAGEN)
        metadata[2] = NULL;
    NL_TRY(nl_save_tensors(file->context, path, overwrite, metadata, file->tensors, file->count,
                           &(nl_save_source){read_source, file, file->largest}));
cleanup:
    nl_free(file->context, json);
    nl_free(file->context, file->packed);
    nl_free(file->context, file->tensors);
    nl_free(file->context, file->names);
    return status;
}

nl_status nl_dit_save(const nl_dit *dit, const char *path, bool overwrite, nl_dtype matrix_dtype)
{
    nl_dit_file file = {.context = dit->device->context, .dit = dit, .dtype = matrix_dtype};
    return write_file(&file, path, overwrite);
}

/* The parameter table of a configuration, without a device behind it. */
typedef struct nl_table {
    nl_device device;
    nl_dit dit;
} nl_table;

static nl_status open_table(nl_context *context, const nl_config *config, nl_table *table)
{
    *table = (nl_table){.device = {.context = context}, .dit = {.config = *config}};
    table->dit.device = &table->device;
    nl_status status = nl_config_check(context, "configuration", config);
    return status == NL_OK ? nl_params_list(&table->dit) : status;
}

static void close_table(nl_context *context, nl_table *table)
{
    nl_free(context, table->dit.params);
    nl_free(context, table->dit.blocks);
}

/* Writes the file, or only says whether it could be. */
static nl_status convert(const nl_checkpoint *checkpoint, const nl_config *config, const char *path,
                         bool write, bool overwrite, nl_dtype matrix_dtype,
                         nl_dit_spelling spelling)
{
    nl_context *context = checkpoint->context;
    nl_table table;
    nl_status status;
    nl_dit_file file = {.context = context,
                        .dit = &table.dit,
                        .checkpoint = checkpoint,
                        .beside =
                            config->one_step == NL_ONE_STEP_BESIDE ? checkpoint->beside : NULL,
                        .dtype = matrix_dtype,
                        .spelling = spelling};
    NL_TRY(open_table(context, config, &table));
    NL_TRY(nl_dit_check(&table.dit, checkpoint));
    NL_TRY(write ? write_file(&file, path, overwrite) : check_request(&file, path));
cleanup:
    close_table(context, &table);
    return status;
}

nl_status nl_dit_convertible(const nl_checkpoint *checkpoint, const nl_config *config,
                             const char *path, nl_dtype matrix_dtype, nl_dit_spelling spelling)
{
    return convert(checkpoint, config, path, false, false, matrix_dtype, spelling);
}

nl_status nl_dit_convert(const nl_checkpoint *checkpoint, const nl_config *config, const char *path,
                         bool overwrite, nl_dtype matrix_dtype, nl_dit_spelling spelling)
{
    return convert(checkpoint, config, path, true, overwrite, matrix_dtype, spelling);
}

nl_status nl_dit_fits(const nl_checkpoint *checkpoint, const nl_config *config, int64_t *parameters)
{
    nl_context *context = checkpoint->context;
    nl_table table;
    nl_status status;
    NL_TRY(open_table(context, config, &table));
    *parameters = nl_dit_parameter_count(&table.dit);
    NL_TRY(nl_dit_check(&table.dit, checkpoint));
cleanup:
    close_table(context, &table);
    return status;
}

nl_status nl_dit_diffusers_config(nl_context *context, const nl_config *config, char **json)
{
    cJSON *object = cJSON_CreateObject();
    nl_status status = NL_OK;
    char *text = NULL;
    const struct {
        const char *key;
        int value;
    } numbers[] = {
        {"num_attention_heads", config->num_heads},
        {"attention_head_dim", config->hidden_size / config->num_heads},
        {"in_channels", config->in_channels},
        {"out_channels", nl_config_head_channels(config)},
        {"num_layers", config->depth},
        {"sample_size", config->input_height},
        {"patch_size", config->patch_size},
        {"num_embeds_ada_norm", config->num_classes},
        {"norm_num_groups", 32},
    };
    bool built = cJSON_AddStringToObject(object, "_class_name", "DiTTransformer2DModel") &&
                 cJSON_AddStringToObject(object, "activation_fn", "gelu-approximate") &&
                 cJSON_AddStringToObject(object, "norm_type", "ada_norm_zero") &&
                 cJSON_AddFalseToObject(object, "norm_elementwise_affine") &&
                 cJSON_AddNumberToObject(object, "norm_eps", 1e-5) &&
                 cJSON_AddTrueToObject(object, "attention_bias") &&
                 cJSON_AddFalseToObject(object, "upcast_attention");
    for (int i = 0; i < NL_COUNT(numbers) && built; i++)
        built = cJSON_AddNumberToObject(object, numbers[i].key, numbers[i].value) != NULL;
    if (built)
        text = nl_json_print(object, true);
    status = text ? nl_strdup(context, text, json)
                  : nl_fail(context, NL_ERROR_MEMORY, "no memory for config.json");
    cJSON_free(text);
    cJSON_Delete(object);
    return status;
}
