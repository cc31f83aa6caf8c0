/* SPDX-License-Identifier: MIT */
/* The configuration of a checkpoint: what its metadata says, or what the names and shapes of its
 * tensors tell (the public DiT and SiT files have no metadata). */
#include <ctype.h>
#include <math.h>
#include <stdio.h>
#include <string.h>

#include "network.h"
#include "nl_json.h"

/* What the tensors tell; `problem` is the first thing that they fail to. */
typedef struct nl_shapes {
    char problem[256];
    int depth, hidden_size, patch_size, in_channels;
    int label_rows; /* of the table of classes, the null class with them */
    int64_t head_rows;
    nl_attention attention;
    nl_mlp mlp;
    nl_norm norm;
    bool gate, lepe, crops, middle, dw_conv;
    bool qk_norm_layer; /* it has biases */
    int64_t qk_norm;    /* head size by its weights; 0: none */
    int64_t head_size;  /* by the norm of a gated linear attention; 0: not told */
    int64_t exponents;  /* heads with learnt ones; 0: none */
    int grid;           /* tokens a side by pos_embed; 0: not there or not square */
} nl_shapes;

/* The tensor, or NULL and what is wrong with it in shapes->problem. ndim 0: any. */
static const nl_entry *find(const nl_checkpoint *checkpoint, const char *name, int ndim,
                            nl_shapes *shapes)
{
    const nl_entry *entry = nl_checkpoint_find(checkpoint, name);
    if (shapes->problem[0])
        return NULL;
    if (!entry)
        snprintf(shapes->problem, sizeof(shapes->problem), "there is no tensor %s", name);
    else if (ndim && entry->ndim != ndim)
        snprintf(shapes->problem, sizeof(shapes->problem), "tensor %s has %d sizes instead of %d",
                 name, entry->ndim, ndim);
    else
        for (int i = 0; i < entry->ndim; i++)
            if (entry->shape[i] < 1 || entry->shape[i] > INT32_MAX)
                snprintf(shapes->problem, sizeof(shapes->problem),
                         "tensor %s has the impossible size %lld", name,
                         (long long)entry->shape[i]);
    return shapes->problem[0] ? NULL : entry;
}

static void read_grid(const nl_checkpoint *checkpoint, nl_shapes *shapes)
{
    const nl_entry *position = nl_checkpoint_find(checkpoint, "pos_embed");
    if (!position || position->ndim != 3 || position->shape[1] > INT32_MAX)
        return;
    int side = (int)lround(sqrt((double)position->shape[1]));
    if ((int64_t)side * side == position->shape[1])
        shapes->grid = side;
}

/* What storing the table in a type, or averaging it for long, may change of it. */
static float table_tolerance(nl_dtype dtype)
{
    return dtype == NL_BF16 ? 8e-3f : dtype == NL_F16 ? 1e-3f : 1e-4f;
}

nl_status nl_config_read_position(const nl_checkpoint *checkpoint, nl_config *config)
{
    nl_context *context = checkpoint->context;
    const nl_entry *entry = nl_checkpoint_find(checkpoint, "pos_embed");
    int64_t rows = config->input_height / config->patch_size;
    int64_t columns = config->input_width / config->patch_size;
    nl_status status = NL_OK;
    float *found = NULL;
    config->stored_position = false;
    if (!entry || entry->ndim != 3 || entry->shape[0] != 1 ||
        entry->shape[2] != config->hidden_size || entry->shape[1] < 1)
        return NL_OK; /* nl_dit_check has a word on that */
    int64_t tokens = entry->shape[1], side = llround(sqrt((double)tokens));
    if (tokens != rows * columns)
        rows = columns = side;
    if (rows * columns != tokens)
        return NL_OK;
    int64_t count = tokens * config->hidden_size;
    NL_TRY(NL_NEW_ARRAY(context, "tables of positions", 2 * count, &found));
    float *table = found + count;
    NL_TRY(nl_entry_read(checkpoint, entry, found));
    nl_position_table(rows, columns, config->hidden_size, table);
    for (int64_t i = 0; i < count && !config->stored_position; i++)
        config->stored_position = fabsf(found[i] - table[i]) > table_tolerance(entry->dtype);
    if (config->stored_position)
        nl_log(context, NL_LOG_INFO,
               "%s: pos_embed is not the table of sines and cosines: its own is used",
               checkpoint->path);
cleanup:
    nl_free(context, found);
    return status;
}

static void read_blocks(const nl_checkpoint *checkpoint, nl_shapes *shapes)
{
    char name[NL_NAME_SIZE];
    const nl_entry *entry;
    const nl_config told = {.attention = nl_told_mixer(checkpoint)};
    const char *told_by = nl_branch_of(&told, NL_BRANCH_MIXER)->told_by;
    shapes->attention = told.attention;
    shapes->mlp = nl_told_mlp(checkpoint);
    if (nl_checkpoint_find(checkpoint, "blocks.0.norm1.weight"))
        shapes->norm = NL_NORM_RMS;
    if (nl_checkpoint_find(checkpoint, "blocks.0.attn.q_norm.weight") &&
        (entry = find(checkpoint, "blocks.0.attn.q_norm.weight", 1, shapes)))
        shapes->qk_norm = entry->shape[0];
    shapes->qk_norm_layer =
        shapes->qk_norm && nl_checkpoint_find(checkpoint, "blocks.0.attn.q_norm.bias");
    if (shapes->attention == NL_ATTENTION_GLA &&
        (entry = find(checkpoint, "blocks.0.attn.norm.weight", 1, shapes)))
        shapes->head_size = entry->shape[0];
    if (shapes->attention == NL_ATTENTION_NALA &&
        nl_checkpoint_find(checkpoint, "blocks.0.attn.log_lambda") &&
        (entry = find(checkpoint, "blocks.0.attn.log_lambda", 1, shapes)))
        shapes->exponents = entry->shape[0];
    shapes->dw_conv = nl_checkpoint_find(checkpoint, "blocks.0.dw_conv.weight") != NULL;
    shapes->lepe = nl_checkpoint_find(checkpoint, "blocks.0.attn.lepe.weight") != NULL;
    snprintf(name, sizeof(name), "blocks.0.%s", told_by);
    if ((entry = find(checkpoint, name, 0, shapes)))
        shapes->gate = entry->shape[0] != 3 * (int64_t)shapes->hidden_size;
    while (nl_checkpoint_find(checkpoint, name)) {
        shapes->depth++;
        snprintf(name, sizeof(name), "blocks.%d.%s", shapes->depth, told_by);
    }
}

static void read_shapes(const nl_checkpoint *checkpoint, nl_shapes *shapes)
{
    const nl_entry *entry;
    memset(shapes, 0, sizeof(*shapes));
    if ((entry = find(checkpoint, "x_embedder.proj.weight", 4, shapes))) {
        shapes->hidden_size = (int)entry->shape[0];
        shapes->in_channels = (int)entry->shape[1];
        shapes->patch_size = (int)entry->shape[2];
        if (entry->shape[2] != entry->shape[3])
            snprintf(shapes->problem, sizeof(shapes->problem), "the patches of %s are not square",
                     entry->name);
    }
    if ((entry = find(checkpoint, "y_embedder.embedding_table.weight", 2, shapes)))
        shapes->label_rows = (int)entry->shape[0];
    if ((entry = find(checkpoint, "final_layer.linear.weight", 2, shapes)))
        shapes->head_rows = entry->shape[0];
    if (!shapes->problem[0])
        read_blocks(checkpoint, shapes);
    shapes->crops = nl_checkpoint_find(checkpoint, "crop_embedder.weight") != NULL;
    shapes->middle = nl_checkpoint_find(checkpoint, "middle_layer.linear.weight") != NULL;
    read_grid(checkpoint, shapes);
    int64_t patch = (int64_t)shapes->patch_size * shapes->patch_size;
    int64_t channels = patch > 0 ? shapes->head_rows / patch : 0;
    if (!shapes->problem[0] &&
        (shapes->head_rows % patch ||
         (channels != shapes->in_channels && channels != 2 * (int64_t)shapes->in_channels)))
        snprintf(shapes->problem, sizeof(shapes->problem),
                 "final_layer.linear.weight has %lld rows, expected %d x %d x %d channels or twice "
                 "that",
                 (long long)shapes->head_rows, shapes->patch_size, shapes->patch_size,
                 shapes->in_channels);
}

static void apply_shapes(const nl_shapes *shapes, nl_config *config)
{
    config->attention = shapes->attention;
    config->mlp = shapes->mlp;
    config->norm = shapes->norm;
    config->qk_norm = shapes->qk_norm > 0;
    config->qk_norm_layer = shapes->qk_norm_layer;
    config->gate = shapes->attention == NL_ATTENTION_NALA ? shapes->gate : true;
    config->lepe = shapes->lepe;
    config->learn_exponents = shapes->exponents > 0;
    config->dw_conv = shapes->dw_conv;
    config->crop_conditioning = shapes->crops;
    config->depth = shapes->depth;
    config->hidden_size = shapes->hidden_size;
    config->num_heads = nl_config_default_heads(shapes->hidden_size);
    if (config->qk_norm && shapes->hidden_size % shapes->qk_norm == 0)
        config->num_heads = (int)(shapes->hidden_size / shapes->qk_norm);
    if (shapes->head_size && shapes->hidden_size % shapes->head_size == 0)
        config->num_heads = (int)(shapes->hidden_size / shapes->head_size);
    if (shapes->exponents && shapes->hidden_size % shapes->exponents == 0)
        config->num_heads = (int)shapes->exponents;
    config->patch_size = shapes->patch_size;
    config->in_channels = shapes->in_channels;
    config->num_classes = shapes->label_rows - !config->no_null_class;
    int64_t patch = (int64_t)shapes->patch_size * shapes->patch_size;
    config->learn_sigma = shapes->head_rows != patch * shapes->in_channels;
    config->variance = config->learn_sigma ? NL_VARIANCE_LEARNED_RANGE : NL_VARIANCE_FIXED_LARGE;
}

/* Before anything is allocated by the metadata's numbers they are held against the tensors. */
static nl_status compare_shapes(const nl_checkpoint *checkpoint, const nl_config *config,
                                const nl_shapes *shapes)
{
    static const char *const bools[] = {"false", "true"};
    bool nala = config->attention == NL_ATTENTION_NALA;
    nl_config told;
    nl_config_init(&told);
    told.no_null_class = config->no_null_class;
    apply_shapes(shapes, &told);
    const struct {
        const char *key;
        int said, found;
        const char *const *names; /* of the values, when they are no numbers */
    } rows[] = {
        {"hidden_size", config->hidden_size, told.hidden_size, NULL},
        {"attention", config->attention, told.attention, nl_mixer_names},
        {"mlp", config->mlp, told.mlp, nl_mlp_names},
        {"norm", config->norm, told.norm, nl_norm_names},
        {"qk_norm", config->qk_norm, told.qk_norm, bools},
        {"qk_norm_layer", config->qk_norm_layer, told.qk_norm_layer, bools},
        {"gate", nala ? config->gate : true, told.gate, bools},
        {"lepe", nala && config->lepe, told.lepe, bools},
        {"learn_exponents", nala && config->learn_exponents, told.learn_exponents, bools},
        {"dw_conv", config->dw_conv, told.dw_conv, bools},
        {"middle_head", config->middle_head > 0, shapes->middle, bools},
        {"crop_conditioning", config->crop_conditioning, told.crop_conditioning, bools},
        {"patch_size", config->patch_size, told.patch_size, NULL},
        {"in_channels", config->in_channels, told.in_channels, NULL},
        {"num_classes", config->num_classes, told.num_classes, NULL},
        {"learn_sigma", config->learn_sigma, told.learn_sigma, bools},
        {"depth (blocks in a row from 0)", config->depth, told.depth, NULL},
    };
    for (int i = 0; i < NL_COUNT(rows); i++) {
        char said[16], found[16];
        if (rows[i].said == rows[i].found)
            continue;
        snprintf(said, sizeof(said), "%d", rows[i].said);
        snprintf(found, sizeof(found), "%d", rows[i].found);
        return nl_fail(checkpoint->context, NL_ERROR_INPUT,
                       "%s: %s: its configuration says %s, its tensors say %s", checkpoint->path,
                       rows[i].key, rows[i].names ? rows[i].names[rows[i].said] : said,
                       rows[i].names ? rows[i].names[rows[i].found] : found);
    }
    return NL_OK;
}

static bool mentions(const char *path, const char *word)
{
    const char *slash = strrchr(path, '/'), *name = slash ? slash + 1 : path;
    return strcasestr(name, word) != NULL;
}

static const char guessed[] = "its name (give the architecture, --arch, if that is wrong)";

static nl_status choose_architecture(const nl_checkpoint *checkpoint, const char *architecture,
                                     nl_config *config, const char **source)
{
    nl_context *context = checkpoint->context;
    nl_attention attention = config->attention;
    nl_status status = nl_config_hints(checkpoint, config, source);
    if (status != NL_OK)
        return status;
    if (architecture) {
        *source = NULL;
        status = nl_config_set_architecture(context, architecture, config);
        if (status != NL_OK)
            return status;
        if (config->attention != attention)
            return nl_fail(context, NL_ERROR_USAGE,
                           "%s: its tensors are those of %s attention, which %s does not have",
                           checkpoint->path, nl_mixer_names[attention], architecture);
        return NL_OK;
    }
    if (config->architecture != NL_ARCH_UNKNOWN)
        return NL_OK;
    *source = guessed;
    char list[128];
    bool sit = mentions(checkpoint->path, "sit"), dit = mentions(checkpoint->path, "dit");
    if (sit == dit)
        return nl_fail(
            context, NL_ERROR_INPUT,
            "%s: neither the file nor its name says whether this is a DiT or a SiT; give "
            "the architecture (%s) or a configuration",
            checkpoint->path, nl_config_architectures(list, sizeof(list)));
    config->architecture = sit ? NL_ARCH_SIT : NL_ARCH_DIT;
    return NL_OK;
}

static nl_status infer(const nl_checkpoint *checkpoint, const nl_shapes *shapes,
                       const char *architecture, nl_config *config)
{
    nl_context *context = checkpoint->context;
    const char *source;
    nl_status status = choose_architecture(checkpoint, architecture, config, &source);
    if (status != NL_OK)
        return status;
    if (shapes->grid)
        config->input_height = config->input_width =
            (int)NL_MIN((int64_t)shapes->grid * shapes->patch_size, INT32_MAX);
    if (config->in_channels < 4) { /* pictures, not latents */
        config->autoencoder = NL_AUTOENCODER_NONE;
        config->latent_scale = 1;
    }
    status = nl_config_check(context, checkpoint->path, config);
    if (status != NL_OK)
        return status;
    char name[64];
    nl_log(context, source == guessed ? NL_LOG_WARNING : NL_LOG_INFO,
           "%s does not say what it is; taken for %s, %d x %d, %d %s, by its tensors%s%s",
           checkpoint->path, nl_config_name(config, name, sizeof(name)), config->input_height,
           config->input_width, config->num_classes,
           nl_plural(config->num_classes, "class", "classes"), source ? " and " : "",
           source ? source : "");
    return NL_OK;
}

static nl_status parse_metadata(const nl_checkpoint *checkpoint, const char *json,
                                const nl_shapes *shapes, const char *architecture,
                                nl_config *config)
{
    nl_context *context = checkpoint->context;
    nl_status status;
    char where[512];
    nl_config asked = {0};
    snprintf(where, sizeof(where), "%s: metadata nalagen", checkpoint->path);
    NL_TRY(nl_config_parse(context, where, json, strlen(json), config));
    NL_TRY(compare_shapes(checkpoint, config, shapes));
    if (architecture) {
        NL_TRY(nl_config_set_architecture(context, architecture, &asked));
        if (asked.architecture != config->architecture || asked.attention != config->attention) {
            char name[64];
            status =
                nl_fail(context, NL_ERROR_USAGE,
                        "%s: the file says that it is %s; the architecture %s is for files "
                        "that do not say",
                        checkpoint->path, nl_config_name(config, name, sizeof(name)), architecture);
        }
    }
cleanup:
    return status;
}

/* Another network: by the name that its config.json gives it, where there is one. */
static nl_status refuse_other(const nl_checkpoint *checkpoint, const char *problem)
{
    const char *text = nl_checkpoint_metadata(checkpoint, "config.json");
    cJSON *object = NULL;
    if (text)
        (void)nl_json_parse(checkpoint->context, "config.json", text, strlen(text), &object);
    const char *class =
        cJSON_GetStringValue(cJSON_GetObjectItemCaseSensitive(object, "_class_name"));
    nl_status status =
        class && strcmp(class, "DiTTransformer2DModel") != 0
            ? nl_fail(
                  checkpoint->context, NL_ERROR_INPUT,
                  "%s: a %.60s by its config.json: nalagen has DiT (diffusers' "
                  "DiTTransformer2DModel), SiT and their NaLa twins, and autoencoders; not a DiT "
                  "or SiT: %s",
                  checkpoint->path, class, problem)
            : nl_fail(checkpoint->context, NL_ERROR_INPUT, "%s: not a DiT or SiT: %s",
                      checkpoint->path, problem);
    cJSON_Delete(object);
    return status;
}

nl_status nl_config_from_checkpoint(const nl_checkpoint *checkpoint, const char *architecture,
                                    nl_config *config)
{
    nl_shapes shapes;
    const char *json = nl_checkpoint_metadata(checkpoint, "nalagen");
    nl_config_init(config);
    read_shapes(checkpoint, &shapes);
    if (shapes.problem[0])
        return refuse_other(checkpoint, shapes.problem);
    apply_shapes(&shapes, config);
    nl_status status = json ? parse_metadata(checkpoint, json, &shapes, architecture, config)
                            : infer(checkpoint, &shapes, architecture, config);
    if (status == NL_OK && !json)
        status = nl_config_read_position(checkpoint, config);
    if (status == NL_OK && checkpoint->beside && config->one_step != NL_ONE_STEP_BESIDE)
        status = nl_fail(checkpoint->context, NL_ERROR_INPUT,
                         "%s holds tensors \"one_step\", and its configuration does not say so "
                         "(\"one_step\": \"beside\")",
                         checkpoint->path);
    if (status != NL_OK)
        nl_config_free(checkpoint->context, config);
    return status;
}
