/* SPDX-License-Identifier: MIT */
/* Autoencoder files of any spelling to one of ours; nothing is held in memory but one tensor. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "layers.h"

enum { NARROW = 32 }; /* channels; what touches pictures or latents is not quantised */

bool nl_vae_recognizes(const nl_checkpoint *checkpoint)
{
    nl_vae_spelling spelling;
    return nl_vae_find_spelling(checkpoint, &spelling);
}

/* Names and shapes checked; the parts of the inventory that are used remain. *said: allocated, or NULL. */
static nl_status take_stock(const nl_checkpoint *checkpoint, const nl_checkpoint *second,
                            nl_vae_inventory *inventory, nl_vae_kind *kind, char **said)
{
    nl_device device = {.context = checkpoint->context};
    nl_vae *vae;
    nl_status status = nl_vae_describe(&device, (const nl_checkpoint *const[]){checkpoint, second},
                                       inventory, &vae);
    if (status != NL_OK)
        return status;
    *kind = vae->kind;
    if (said)
        status = nl_vae_said(vae, said);
    nl_vae_destroy(vae);
    return status;
}

nl_status nl_vae_fits(const nl_checkpoint *checkpoint, const nl_checkpoint *second,
                      nl_vae_kind *kind, int64_t *parameters)
{
    nl_vae_inventory inventory;
    NL_CHECK(take_stock(checkpoint, second, &inventory, kind, NULL));
    *parameters = 0;
    for (int64_t i = 0; i < inventory.count; i++)
        *parameters += nl_entry_count(inventory.items[i].entry);
    nl_free(checkpoint->context, inventory.items);
    return NL_OK;
}

static nl_dtype saved_dtype(const nl_entry *entry, nl_dtype dtype)
{
    if (dtype == NL_DTYPE_COUNT)
        return entry->scale ? NL_I8 : nl_saved_dtype(entry);
    if (entry->ndim < 2)
        return NL_F32;
    if (dtype == NL_I8 && (entry->shape[0] < NARROW || entry->shape[1] < NARROW))
        return NL_BF16;
    return dtype;
}

/* diffusers has the attention's matrices without the two sizes of a 1 x 1 kernel. */
static bool is_matrix(const nl_vae_item *item)
{
    return strstr(item->name, ".attentions.") && item->entry->ndim == 4;
}

static nl_saved describe(const nl_vae_item *item, int64_t source, nl_dtype dtype)
{
    const nl_entry *entry = item->entry;
    nl_saved saved = {.name = item->name,
                      .dtype = saved_dtype(entry, dtype),
                      .ndim = is_matrix(item) ? 2 : entry->ndim,
                      .source = source};
    memcpy(saved.shape, entry->shape, sizeof(saved.shape));
    if (saved.dtype == NL_I8 && entry->dtype == NL_I8 && entry->scale && !entry->strides) {
        saved.exact = entry;
        saved.file = item->checkpoint;
    }
    return saved;
}

static nl_status read_item(void *user, int64_t source, float *values)
{
    const nl_vae_item *item = (const nl_vae_item *)user + source;
    return nl_entry_read(item->checkpoint, item->entry, values);
}

/* TAESD's decoder sequence begins with the soft clamp, which diffusers keeps outside of it. */
static void name_for_diffusers(char name[NL_VAE_NAME_SIZE])
{
    char own[NL_VAE_NAME_SIZE], *rest;
    memcpy(own, name, sizeof(own));
    bool decoder = !strncmp(own, "decoder.", 8);
    long position = strtol(own + 8, &rest, 10) - decoder;
    snprintf(name, NL_VAE_NAME_SIZE, "%.8slayers.%ld%.*s", own, position, NL_VAE_NAME_SIZE - 40,
             rest);
}

nl_status nl_vae_convert(const nl_checkpoint *checkpoint, const nl_checkpoint *second,
                         const char *path, bool overwrite, nl_dtype matrix_dtype, bool diffusers)
{
    nl_context *context = checkpoint->context;
    nl_vae_inventory inventory;
    nl_vae_kind kind;
    nl_saved *tensors = NULL;
    char *said = NULL; /* diffusers has a file of its own for it */
    nl_save_source source = {.read = read_item};
    nl_status status = take_stock(checkpoint, second, &inventory, &kind, diffusers ? NULL : &said);
    if (status != NL_OK)
        return status;
    const char *metadata[] = {"format", "pt", said ? "config.json" : NULL, said, NULL};
    for (int64_t i = 0; diffusers && kind == NL_VAE_TINY && i < inventory.count; i++)
        name_for_diffusers(inventory.items[i].name);
    NL_TRY(NL_NEW_ARRAY(context, "names of tensors", inventory.count, &tensors));
    for (int64_t i = 0; i < inventory.count; i++) {
        tensors[i] = describe(&inventory.items[i], i, matrix_dtype);
        source.largest = NL_MAX(source.largest, nl_entry_count(inventory.items[i].entry));
    }
    source.user = inventory.items;
    NL_TRY(nl_save_tensors(context, path, overwrite, metadata, tensors, inventory.count, &source));
cleanup:
    nl_free(context, said);
    nl_free(context, tensors);
    nl_free(context, inventory.items);
    return status;
}
