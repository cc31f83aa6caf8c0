/* SPDX-License-Identifier: MIT */
/* Files to an autoencoder: every tensor is accounted for before memory is taken for it. */
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "layers.h"

enum { ALIGNMENT = 256 };

static int compare_items(const void *a, const void *b)
{
    return strcmp(((const nl_vae_item *)a)->name, ((const nl_vae_item *)b)->name);
}

static nl_vae_item *find_item(const nl_vae_inventory *inventory, const char *name)
{
    int64_t low = 0, high = inventory->count;
    while (low < high) {
        int64_t middle = low + (high - low) / 2;
        int order = strcmp(inventory->items[middle].name, name);
        if (order == 0)
            return &inventory->items[middle];
        if (order < 0)
            low = middle + 1;
        else
            high = middle;
    }
    return NULL;
}

nl_vae_item *nl_vae_find_item(const nl_vae_inventory *inventory, const char *format, ...)
{
    char name[NL_VAE_NAME_SIZE];
    va_list arguments;
    va_start(arguments, format);
    vsnprintf(name, sizeof(name), format, arguments);
    va_end(arguments);
    return find_item(inventory, name);
}

int64_t nl_vae_item_size(const nl_vae_inventory *inventory, int axis, const char *format, ...)
{
    char name[NL_VAE_NAME_SIZE];
    va_list arguments;
    va_start(arguments, format);
    vsnprintf(name, sizeof(name), format, arguments);
    va_end(arguments);
    const nl_vae_item *item = find_item(inventory, name);
    return item && axis < item->entry->ndim ? item->entry->shape[axis] : 0;
}

void nl_vae_set_geometry(nl_vae *vae, int factor, int64_t latent_channels, nl_problems *problems)
{
    if (vae->factor && (vae->factor != factor || vae->latent_channels != latent_channels))
        nl_problem(
            problems,
            "the encoder makes %lld channels of 1/%d the size, the decoder takes %lld of 1/%d",
            (long long)vae->latent_channels, vae->factor, (long long)latent_channels, factor);
    vae->factor = factor;
    vae->latent_channels = latent_channels;
}

/* Adds the tensors of one file that belong to an autoencoder of the kind. */
static void take_inventory(nl_vae_inventory *inventory, const nl_checkpoint *checkpoint,
                           const nl_vae_spelling *spelling)
{
    for (int64_t i = 0; i < checkpoint->count; i++) {
        nl_vae_item *item = &inventory->items[inventory->count];
        const nl_entry *entry = &checkpoint->entries[i];
        if (!nl_vae_canonical_name(spelling, entry->name, item->name))
            continue;
        item->checkpoint = checkpoint;
        item->entry = entry;
        item->used = false;
        inventory->count++;
    }
}

static nl_status make_inventory(nl_context *context, const nl_checkpoint *const checkpoints[2],
                                nl_vae_inventory *inventory, nl_vae_kind *kind,
                                nl_problems *problems)
{
    nl_vae_spelling spellings[2];
    int64_t count = 0;
    for (int i = 0; i < 2 && checkpoints[i]; i++) {
        if (!nl_vae_find_spelling(checkpoints[i], &spellings[i]))
            return nl_fail(context, NL_ERROR_INPUT,
                           "%s: no autoencoder: neither encoder.conv_in or decoder.conv_in "
                           "(AutoencoderKL) nor numbered layers (TAESD) among its %lld tensors",
                           checkpoints[i]->path, (long long)checkpoints[i]->count);
        if (spellings[i].kind != spellings[0].kind)
            return nl_fail(context, NL_ERROR_INPUT,
                           "%s and %s hold autoencoders of different kinds: give the two halves of "
                           "one",
                           checkpoints[0]->path, checkpoints[i]->path);
        count += checkpoints[i]->count;
    }
    NL_CHECK(NL_NEW_ARRAY(context, "the autoencoder's table of tensors", count, &inventory->items));
    for (int i = 0; i < 2 && checkpoints[i]; i++)
        take_inventory(inventory, checkpoints[i], &spellings[i]);
    qsort(inventory->items, (size_t)inventory->count, sizeof(nl_vae_item), compare_items);
    for (int64_t i = 1; i < inventory->count; i++)
        if (strcmp(inventory->items[i - 1].name, inventory->items[i].name) == 0)
            nl_problem(problems, "%s is there twice (as %s and %s)", inventory->items[i].name,
                       inventory->items[i - 1].entry->name, inventory->items[i].entry->name);
    *kind = spellings[0].kind;
    return NL_OK;
}

/* 1 x 1 convolutions may be stored as matrices. */
static bool same_shape(const nl_entry *entry, const nl_vae_parameter *parameter)
{
    int ndim = NL_MAX(entry->ndim, parameter->ndim);
    bool matrix = parameter->ndim == 4 && parameter->shape[2] == 1;
    if (entry->ndim != parameter->ndim && !(matrix && entry->ndim == 2))
        return false;
    for (int i = 0; i < ndim; i++) {
        int64_t size = i < entry->ndim ? entry->shape[i] : 1;
        if (size != parameter->shape[i])
            return false;
    }
    return true;
}

static bool float_type(nl_dtype dtype)
{
    return dtype == NL_F32 || dtype == NL_BF16 || dtype == NL_F16 || dtype == NL_F64;
}

static void check_parameter(const nl_vae_inventory *inventory, const nl_vae_parameter *parameter,
                            nl_problems *problems)
{
    char expected[64], found[64];
    nl_shape_text(parameter->ndim, parameter->shape, expected, sizeof(expected));
    nl_vae_item *item = find_item(inventory, parameter->name);
    if (!item) {
        nl_problem(problems, "missing %s %s", parameter->name, expected);
        return;
    }
    item->used = true;
    if (!same_shape(item->entry, parameter))
        nl_problem(problems, "%s is %s, expected %s", item->entry->name,
                   nl_shape_text(item->entry->ndim, item->entry->shape, found, sizeof(found)),
                   expected);
    else if (!float_type(item->entry->dtype) && !item->entry->scale)
        nl_problem(problems, "%s holds %s, expected floating point numbers", item->entry->name,
                   nl_dtype_name(item->entry->dtype));
}

static nl_dtype stored_type(const nl_vae *vae, const nl_vae_parameter *parameter)
{
    return parameter->matrix && vae->device->dtype == NL_BF16 ? NL_BF16 : NL_F32;
}

/* Calls `visit` for every parameter of every layer. */
static nl_status walk(nl_vae *vae,
                      nl_status (*visit)(nl_vae *vae, nl_vae_layer *layer,
                                         const nl_vae_parameter *parameter, void *user),
                      void *user)
{
    nl_status status = NL_OK;
    for (int half = 0; half < NL_VAE_HALVES; half++) {
        for (int i = 0; i < vae->halves[half].count; i++) {
            nl_vae_layer *layer = &vae->halves[half].layers[i];
            nl_vae_parameter rows[NL_VAE_LAYER_ROWS];
            int count = nl_vae_parameters(layer, rows);
            for (int row = 0; row < count && status == NL_OK; row++)
                status = visit(vae, layer, &rows[row], user);
        }
    }
    return status;
}

typedef struct nl_vae_check {
    const nl_vae_inventory *inventory;
    nl_problems *problems;
} nl_vae_check;

static nl_status visit_check(nl_vae *vae, nl_vae_layer *layer, const nl_vae_parameter *parameter,
                             void *user)
{
    (void)vae;
    (void)layer;
    nl_vae_check *check = user;
    check_parameter(check->inventory, parameter, check->problems);
    return NL_OK;
}

typedef struct nl_vae_fill {
    const nl_vae_inventory *inventory;
    int64_t bytes;   /* placed so far */
    int64_t largest; /* elements */
    float *values;
    void *converted;
} nl_vae_fill;

/* Gives the parameter's tensor its place; with q, k and v in one, at the first of them. */
static nl_status visit_place(nl_vae *vae, nl_vae_layer *layer, const nl_vae_parameter *parameter,
                             void *user)
{
    if (parameter->part > 0)
        return NL_OK;
    nl_vae_fill *fill = user;
    nl_tensor *tensor = &layer->parameters[parameter->index];
    int64_t shape[4];
    memcpy(shape, parameter->shape, sizeof(shape));
    shape[0] *= parameter->parts;
    *tensor = nl_tensor_of(NULL, stored_type(vae, parameter), parameter->ndim, shape);
    int64_t count = nl_tensor_count(tensor);
    fill->largest = NL_MAX(fill->largest, count);
    int64_t bytes = (nl_tensor_bytes(tensor) + ALIGNMENT - 1) / ALIGNMENT * ALIGNMENT;
    if (vae->weights)
        tensor->data = (uint8_t *)vae->weights + fill->bytes;
    if (!nl_add_size(fill->bytes, bytes, &fill->bytes))
        return nl_fail(vae->device->context, NL_ERROR_INPUT, "%s: the tensors overflow", vae->path);
    return NL_OK;
}

static nl_status visit_upload(nl_vae *vae, nl_vae_layer *layer, const nl_vae_parameter *parameter,
                              void *user)
{
    nl_vae_fill *fill = user;
    const nl_vae_item *item = find_item(fill->inventory, parameter->name);
    nl_tensor *tensor = &layer->parameters[parameter->index];
    nl_status status = nl_entry_read(item->checkpoint, item->entry, fill->values);
    if (status != NL_OK)
        return status;
    status = nl_vae_fold_stats(vae, layer, parameter, fill->inventory, fill->values);
    if (status != NL_OK)
        return status;
    int64_t count = nl_entry_count(item->entry);
    int64_t bytes = count * nl_dtype_size(tensor->dtype);
    const void *data = fill->values;
    if (tensor->dtype != NL_F32) {
        nl_convert_from_float(fill->values, count, tensor->dtype, fill->converted);
        data = fill->converted;
    }
    status = vae->device->ops->upload(
        vae->device, (uint8_t *)tensor->data + parameter->part * bytes, data, bytes);
    /* an upload may still be reading the buffer that the next parameter goes into */
    return status == NL_OK ? vae->device->ops->sync(vae->device) : status;
}

static nl_status upload_weights(nl_vae *vae, const nl_vae_inventory *inventory)
{
    nl_context *context = vae->device->context;
    nl_vae_fill fill = {.inventory = inventory};
    nl_status status;
    NL_TRY(walk(vae, visit_place, &fill)); /* counts only: there is no memory yet */
    NL_TRY(vae->device->ops->alloc(vae->device, "the autoencoder's weights", fill.bytes,
                                   &vae->weights));
    vae->weight_bytes = fill.bytes;
    fill.bytes = 0;
    NL_TRY(walk(vae, visit_place, &fill));
    NL_TRY(NL_NEW_ARRAY(context, "the autoencoder's largest tensor", fill.largest, &fill.values));
    NL_TRY(NL_NEW_SIZED(context, "the autoencoder's largest tensor", fill.largest, sizeof(uint16_t),
                        &fill.converted));
    NL_TRY(walk(vae, visit_upload, &fill));
cleanup:
    nl_free(context, fill.converted);
    nl_free(context, fill.values);
    return status;
}

static nl_status build_networks(nl_vae *vae, nl_vae_inventory *inventory, nl_problems *problems)
{
    for (int half = 0; half < NL_VAE_HALVES; half++) {
        if (vae->kind == NL_VAE_KL)
            NL_CHECK(nl_vae_kl_network(vae, (nl_vae_half)half, inventory, problems));
        else
            NL_CHECK(nl_vae_tiny_network(vae, (nl_vae_half)half, inventory, problems));
        nl_vae_leave_sums(&vae->halves[half]);
    }
    NL_CHECK(walk(vae, visit_check, &(nl_vae_check){inventory, problems}));
    for (int64_t i = 0; i < inventory->count; i++)
        if (!inventory->items[i].used)
            nl_problem(problems, "unexpected %s", inventory->items[i].entry->name);
    return NL_OK;
}

nl_status nl_vae_describe(nl_device *device, const nl_checkpoint *const checkpoints[2],
                          nl_vae_inventory *inventory, nl_vae **out)
{
    nl_context *context = device->context;
    nl_problems problems = {0};
    nl_vae *vae = NULL;
    *out = NULL;
    *inventory = (nl_vae_inventory){0};
    nl_status status = NL_NEW(context, "an autoencoder", &vae);
    if (status != NL_OK)
        return status;
    *vae = (nl_vae){.device = device,
                    .said_scale = NAN,
                    .said_shift = NAN,
                    .groups = NL_SD_GROUPS,
                    .mid_attention = true};
    NL_TRY(nl_strdup(context, checkpoints[0]->path, &vae->path));
    NL_TRY(make_inventory(context, checkpoints, inventory, &vae->kind, &problems));
    NL_TRY(nl_vae_read_config(checkpoints[0], vae));
    NL_TRY(build_networks(vae, inventory, &problems));
    if (problems.count) {
        const nl_checkpoint *second = checkpoints[1];
        status = nl_fail(context, NL_ERROR_INPUT,
                         "%s%s%s: not a complete %s autoencoder, or not one of a known layout: %s",
                         vae->path, second ? " and " : "", second ? second->path : "",
                         vae->kind == NL_VAE_KL ? "AutoencoderKL" : "tiny (TAESD)", problems.text);
        goto cleanup;
    }
    NL_TRY(nl_vae_read_stats(checkpoints[0], vae));
    *out = vae;
    return NL_OK;
cleanup:
    nl_free(context, inventory->items);
    inventory->items = NULL;
    nl_vae_destroy(vae);
    return status;
}

nl_status nl_vae_load(nl_device *device, const nl_checkpoint *checkpoint,
                      const nl_checkpoint *second, double scale, double shift, nl_vae **out)
{
    nl_context *context = device->context;
    nl_vae_inventory inventory = {0};
    nl_vae *vae = NULL;
    nl_status status;
    *out = NULL;
    if (!(isfinite(scale) && scale != 0 && isfinite(shift)))
        return nl_fail(context, NL_ERROR_USAGE,
                       "latent scale %g and shift %g: both must be finite, the scale not 0", scale,
                       shift);
    NL_TRY(nl_vae_describe(device, (const nl_checkpoint *const[]){checkpoint, second}, &inventory,
                           &vae));
    vae->scale = scale;
    vae->shift = shift;
    if (vae->latent_mean)
        nl_log(context, NL_LOG_INFO,
               "%s: latents are normalised by a mean and a deviation for each channel", vae->path);
    NL_TRY(upload_weights(vae, &inventory));
    *out = vae;
    vae = NULL;
cleanup:
    nl_free(context, inventory.items);
    nl_vae_destroy(vae);
    return status;
}
