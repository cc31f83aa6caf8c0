/* SPDX-License-Identifier: MIT */
/*
 * torch.save since 1.6: a zip archive whose entries are stored, so that tensors are read where they
 * lie.
 *
 *   ROOT/data.pkl     the pickle; ROOT is any name
 *   ROOT/byteorder    "little"; not in older files
 *   ROOT/data/KEY     one storage, little endian
 *   ROOT/version, ROOT/.data/...  of no interest
 */
#include <string.h>

#include "torch.h"
#include "zip.h"

static const char pickle_name[] = "data.pkl";

typedef struct nl_torch_zip {
    nl_zip zip;
    int root_size; /* of "ROOT/" */
    const char *root;
    const uint8_t **unpacked; /* [zip.count]; of deflated entries that were asked for */
} nl_torch_zip;

static bool ends_with(const nl_zip_entry *entry, const char *text)
{
    int64_t size = (int64_t)strlen(text);
    return entry->name_size >= size &&
           memcmp(entry->name + entry->name_size - size, text, (size_t)size) == 0;
}

static nl_status not_torch(const nl_checkpoint *checkpoint, const nl_zip *zip)
{
    const char *kind = "a zip archive without data.pkl: no torch checkpoint";
    for (int64_t i = 0; i < zip->count; i++)
        if (ends_with(&zip->entries[i], ".npy"))
            kind = "an archive of numpy arrays, not a checkpoint";
        else if (ends_with(&zip->entries[i], "model_index.json"))
            kind = "an archived folder: unpack it and give the folder";
    return nl_fail(checkpoint->context, NL_ERROR_INPUT, "%s: %s", checkpoint->path, kind);
}

/* The pickle that lies least deep; finds the root. */
static nl_status find_pickle(const nl_checkpoint *checkpoint, nl_torch_zip *source,
                             const nl_zip_entry **pickle)
{
    const nl_zip *zip = &source->zip;
    *pickle = NULL;
    for (int64_t i = 0; i < zip->count; i++) {
        const nl_zip_entry *entry = &zip->entries[i];
        int64_t root = entry->name_size - (int64_t)sizeof(pickle_name) + 1;
        if (!ends_with(entry, pickle_name) || (root > 0 && entry->name[root - 1] != '/') ||
            (*pickle && root >= source->root_size))
            continue;
        *pickle = entry;
        source->root = entry->name;
        source->root_size = (int)root;
    }
    return *pickle ? NL_OK : not_torch(checkpoint, zip);
}

static nl_status find_entry(const nl_torch_zip *source, const char *folder, const char *name,
                            int64_t name_size, const nl_zip_entry **entry)
{
    char *path = NULL;
    nl_status status = nl_format(source->zip.context, &path, "%.*s%s%.*s", source->root_size,
                                 source->root, folder, (int)NL_MIN(name_size, 0xffff), name);
    if (status == NL_OK)
        *entry = nl_zip_find(&source->zip, path, (int64_t)strlen(path));
    nl_free(source->zip.context, path);
    return status;
}

/* Where an entry's content lies: in the file, or unpacked on first use. */
static nl_status content(nl_torch *torch, const nl_zip_entry *entry, const uint8_t **data)
{
    nl_torch_zip *source = torch->source;
    const uint8_t **unpacked = &source->unpacked[entry - source->zip.entries];
    uint8_t *memory;
    if (entry->deflated && !*unpacked) {
        NL_CHECK(NL_OWN_ARRAY(torch->checkpoint, "a compressed storage", entry->size, &memory));
        NL_CHECK(nl_zip_read(&source->zip, entry, memory));
        *unpacked = memory;
    }
    *data = entry->deflated ? *unpacked : entry->data;
    return NL_OK;
    return NL_OK;
}

/* torch.save stores. Who packs a checkpoint saves some of it, not all but a sixteenth: that is a file made to fill memory. */
static nl_status check_packing(const nl_checkpoint *checkpoint, const nl_zip *zip)
{
    enum { RATIO = 16, SMALL = 1 << 24 };
    int64_t unpacked = 0, most = SMALL;
    bool known = nl_mul_size(RATIO, checkpoint->mapping.size, &most);
    most = known ? NL_MAX(most, SMALL) : INT64_MAX;
    for (int64_t i = 0; i < zip->count; i++)
        if (zip->entries[i].deflated && !nl_add_size(unpacked, zip->entries[i].size, &unpacked))
            unpacked = INT64_MAX;
    if (unpacked <= most)
        return NL_OK;
    return nl_fail(checkpoint->context, NL_ERROR_INPUT,
                   "%s: its compressed entries would take %.1f MiB, the file has %.1f MiB: unpack "
                   "it yourself if you trust it, and save it with torch.save, which does not "
                   "compress",
                   checkpoint->path, (double)unpacked / (1 << 20),
                   (double)checkpoint->mapping.size / (1 << 20));
}

static nl_status find_storage(nl_torch *torch, const nl_pickle_value *key, const uint8_t **data,
                              int64_t *bytes)
{
    const nl_zip_entry *entry;
    NL_CHECK(find_entry(torch->source, "data/", key->text, key->size, &entry));
    if (!entry)
        return nl_fail(torch->checkpoint->context, NL_ERROR_INPUT,
                       "%s: its storage data/%.*s is not in the archive", torch->checkpoint->path,
                       (int)NL_MIN(key->size, 64), key->text);
    *bytes = entry->size;
    return content(torch, entry, data);
}

static nl_status check_byte_order(nl_torch *torch)
{
    const nl_zip_entry *entry;
    const uint8_t *data;
    nl_status status = find_entry(torch->source, "", "byteorder", 9, &entry);
    if (status != NL_OK || !entry || (status = content(torch, entry, &data)) != NL_OK)
        return status;
    if (entry->size < 6 || memcmp(data, "little", 6) != 0)
        return nl_fail(torch->checkpoint->context, NL_ERROR_INPUT,
                       "%s: it was written on a big-endian machine, which is not read",
                       torch->checkpoint->path);
    return NL_OK;
}

nl_status nl_torch_zip_parse(nl_checkpoint *checkpoint)
{
    nl_context *context = checkpoint->context;
    nl_torch_zip source = {0};
    nl_torch torch = {.checkpoint = checkpoint,
                      .pickle = {.context = context, .where = checkpoint->path},
                      .find = find_storage,
                      .source = &source};
    nl_status status;
    const nl_zip_entry *entry;
    const nl_pickle_value *root;
    const uint8_t *data;
    int64_t length;
    NL_TRY(nl_zip_open(context, checkpoint->path, checkpoint->mapping.data,
                       checkpoint->mapping.size, &source.zip));
    NL_TRY(NL_NEW_ZEROS(context, "the directory of a zip archive", source.zip.count,
                        &source.unpacked));
    NL_TRY(check_packing(checkpoint, &source.zip));
    NL_TRY(find_pickle(checkpoint, &source, &entry));
    NL_TRY(check_byte_order(&torch));
    NL_TRY(content(&torch, entry, &data));
    NL_TRY(nl_pickle_load(&torch.pickle, data, entry->size, &length, &root));
    NL_TRY(nl_torch_fill(&torch, root));
cleanup:
    nl_pickle_free(&torch.pickle);
    nl_free(context, source.unpacked);
    if (source.zip.context)
        nl_zip_close(&source.zip);
    return status;
}
