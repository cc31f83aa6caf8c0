/* SPDX-License-Identifier: MIT */
/* Opening by content, looking up, reading as floats: what all formats share. */
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "checksums.h"

/* The formats, told apart by their first bytes. A row without a reader is there for its message. */
typedef struct nl_file_format {
    const char *name;
    const char *magic;
    int magic_size;
    int magic_offset;
    nl_status (*parse)(nl_checkpoint *checkpoint);
    const char *advice;
} nl_file_format;

#define NL_MAGIC(bytes) bytes, (int)sizeof(bytes) - 1

static const nl_file_format formats[] = {
    {"torch", NL_MAGIC("PK\003\004"), 0, nl_torch_zip_parse, NULL},
    {"torch before 1.6", NL_MAGIC("\x80\x02\x8a\x0a\x6c\xfc\x9c\x46\xf9\x20\x6a\xa8\x50\x19"), 0,
     nl_torch_legacy_parse, NULL},
    {"npy", NL_MAGIC("\x93NUMPY"), 0, NULL, "a numpy array holds no named tensors"},
    {"parquet", NL_MAGIC("PAR1"), 0, NULL, "parquet holds tables, no tensors of a network"},
    {"LMDB", NL_MAGIC("\xde\xc0\xef\xbe"), 16, NULL,
     "an LMDB holds records, no tensors of a network"},
    {"JPEG", NL_MAGIC("\xff\xd8\xff"), 0, NULL, "this is a picture"},
    {"gzip", NL_MAGIC("\x1f\x8b"), 0, NULL, "packed by gzip: unpack it first"},
    {"GGUF", NL_MAGIC("GGUF"), 0, NULL, "GGUF is not read; save it as safetensors"},
    {"HDF5", NL_MAGIC("\x89HDF"), 0, NULL, "HDF5 is not read; save it as safetensors"},
    {"PNG", NL_MAGIC("\x89PNG"), 0, NULL, "this is a picture"},
    {"Git LFS pointer", NL_MAGIC("version https://git-lfs"), 0, NULL,
     "a Git LFS pointer stands for the file: fetch it with git lfs pull"},
    {"HTML", NL_MAGIC("<!DOCTYPE"), 0, NULL, "a web page was saved instead of the file"},
    {"safetensors", NL_MAGIC("{"), 8, nl_safetensors_parse, NULL},
    {"tar", NL_MAGIC("ustar"), 257, NULL,
     "a tar archive (a webdataset, or a checkpoint of torch 0.1): unpack it, or load and save it "
     "in "
     "torch"},
    {"pickle", NL_MAGIC("\x80"), 0, NULL,
     "a pickle that torch.save has not written: save the tensors with torch.save or safetensors"},
};

static const nl_file_format *find_format(const nl_mapping *mapping)
{
    for (int i = 0; i < NL_COUNT(formats); i++) {
        const nl_file_format *format = &formats[i];
        if (mapping->size >= format->magic_offset + format->magic_size &&
            memcmp(mapping->data + format->magic_offset, format->magic,
                   (size_t)format->magic_size) == 0)
            return format;
    }
    return NULL;
}

static nl_status parse(nl_checkpoint *checkpoint)
{
    nl_context *context = checkpoint->context;
    const nl_mapping *mapping = &checkpoint->mapping;
    const nl_file_format *format = find_format(mapping);
    if (!format) {
        char found[64] = "nothing";
        for (int i = 0, n = 0; i < NL_MIN(mapping->size, 12); i++)
            n += snprintf(found + n, sizeof(found) - (size_t)n, "%s%02x", i ? " " : "",
                          mapping->data[i]);
        return nl_fail(
            context, NL_ERROR_INPUT,
            "%s: not a checkpoint: expected safetensors or torch's .pt, found %lld bytes that "
            "begin with %s",
            checkpoint->path, (long long)mapping->size, found);
    }
    if (!format->parse)
        return nl_fail(context, NL_ERROR_INPUT, "%s: %s", checkpoint->path, format->advice);
    NL_CHECK(format->parse(checkpoint));
    checkpoint->format = format->name;
    return NL_OK;
}

/* ---- Names */

static int compare_entries(const void *a, const void *b)
{
    return strcmp(((const nl_entry *)a)->name, ((const nl_entry *)b)->name);
}

static bool starts_with(const char *text, const char *prefix)
{
    return strncmp(text, prefix, strlen(prefix)) == 0;
}

nl_status nl_checkpoint_take(nl_checkpoint *checkpoint, const char *place)
{
    char *longer = NULL, *taken = checkpoint->taken;
    NL_CHECK(nl_format(checkpoint->context, &longer, "%s%s%s", taken ? taken : "", taken ? "." : "",
                       place));
    nl_free(checkpoint->context, taken);
    checkpoint->taken = longer;
    return NL_OK;
}

/* "ema.NAME" is there as well: a tensor of the model in a training checkpoint of ours. The entries are sorted. */
static bool has_average(const nl_checkpoint *checkpoint, const nl_entry *entry)
{
    char name[256];
    snprintf(name, sizeof(name), "ema.%s", entry->name);
    return nl_checkpoint_find(checkpoint, name);
}

bool nl_checkpoint_has_average(const nl_checkpoint *checkpoint)
{
    for (int64_t i = 0; i < checkpoint->count; i++)
        if (has_average(checkpoint, &checkpoint->entries[i]))
            return true;
    return false;
}

/* The model beside its averages. */
static nl_status select_model(nl_checkpoint *checkpoint)
{
    int64_t kept = 0;
    nl_entry *entries;
    NL_CHECK(NL_OWN_ARRAY(checkpoint, "a checkpoint's table", checkpoint->count, &entries));
    for (int64_t i = 0; i < checkpoint->count; i++)
        if (has_average(checkpoint, &checkpoint->entries[i]))
            entries[kept++] = checkpoint->entries[i];
    memcpy(checkpoint->entries, entries, (size_t)kept * sizeof(nl_entry));
    checkpoint->count = kept;
    return nl_checkpoint_take(checkpoint, "model");
}

/* NAME of an entry "key.NAME"; NULL of others. */
static const char *name_under(const nl_entry *entry, const char *key)
{
    size_t length = strlen(key);
    return starts_with(entry->name, key) && entry->name[length] == '.' ? entry->name + length + 1
                                                                       : NULL;
}

/* A key that named no dict: the tensors whose names begin with it and a dot. */
nl_status nl_checkpoint_select(nl_checkpoint *checkpoint, const char *key)
{
    nl_context *context = checkpoint->context;
    int64_t kept = 0;
    for (int64_t i = 0; i < checkpoint->count; i++) {
        nl_entry entry = checkpoint->entries[i];
        if (!(entry.name = name_under(&entry, key)))
            continue;
        checkpoint->entries[kept++] = entry;
    }
    if (kept == 0)
        return nl_fail(context, NL_ERROR_USAGE, "%s has no '%s': it holds %s%s", checkpoint->path,
                       key, checkpoint->holds ? "" : "tensors like ",
                       checkpoint->holds   ? checkpoint->holds
                       : checkpoint->count ? checkpoint->entries[0].name
                                           : "nothing");
    checkpoint->count = kept;
    return nl_checkpoint_take(checkpoint, key);
}

/* What wrappers of a model put in front of every name: data parallelism, torch.compile, EMA. */
static bool strip_prefix(nl_checkpoint *checkpoint)
{
    static const char *const prefixes[] = {"module.", "_orig_mod.", "ema."};
    for (int i = 0; i < NL_COUNT(prefixes); i++) {
        size_t length = strlen(prefixes[i]);
        int64_t having = 0;
        while (having < checkpoint->count &&
               starts_with(checkpoint->entries[having].name, prefixes[i]) &&
               checkpoint->entries[having].name[length])
            having++;
        if (having == 0 || having < checkpoint->count)
            continue;
        for (int64_t j = 0; j < checkpoint->count; j++)
            checkpoint->entries[j].name += length;
        return true;
    }
    return false;
}

static nl_status arrange(nl_checkpoint *checkpoint)
{
    if (checkpoint->key && !checkpoint->key_found) {
        nl_status status = nl_checkpoint_sort(checkpoint);
        if (status == NL_OK)
            status = !strcmp(checkpoint->key, "model") && nl_checkpoint_has_average(checkpoint)
                         ? select_model(checkpoint)
                         : nl_checkpoint_select(checkpoint, checkpoint->key);
        if (status != NL_OK)
            return status;
    }
    while (strip_prefix(checkpoint))
        ;
    return nl_checkpoint_sort(checkpoint);
}

nl_status nl_checkpoint_sort(nl_checkpoint *checkpoint)
{
    if (checkpoint->count > 0)
        qsort(checkpoint->entries, (size_t)checkpoint->count, sizeof(nl_entry), compare_entries);
    for (int64_t i = 1; i < checkpoint->count; i++)
        if (compare_entries(&checkpoint->entries[i - 1], &checkpoint->entries[i]) == 0)
            return nl_fail(checkpoint->context, NL_ERROR_INPUT, "%s: tensor %s is there twice",
                           checkpoint->path, checkpoint->entries[i].name);
    return NL_OK;
}

/* ---- Opening and closing */

typedef struct nl_block {
    struct nl_block *next;
    char padding[64 - sizeof(void *)]; /* what follows is aligned to 64 */
} nl_block;

void *nl_checkpoint_own(nl_checkpoint *checkpoint, const char *what, int64_t count, size_t size)
{
    int64_t total;
    if (!nl_mul_size(count, (int64_t)size, &total) || !nl_add_size(total, sizeof(nl_block), &total))
        total = -1; /* refused below */
    nl_block *block = nl_new_array(checkpoint->context, what, total, 1);
    if (!block)
        return NULL;
    block->next = checkpoint->blocks;
    checkpoint->blocks = block;
    return block + 1;
}

/* Takes the mapping over, also on failure. */
static nl_status create(nl_context *context, const char *path, const char *key, nl_mapping mapping,
                        bool borrowed, nl_checkpoint **result)
{
    nl_status status;
    nl_checkpoint *checkpoint = NULL;
    *result = NULL;
    NL_TRY(NL_NEW(context, "a checkpoint's table", &checkpoint));
    checkpoint->context = context;
    checkpoint->mapping = mapping;
    checkpoint->borrowed = borrowed;
    NL_TRY(nl_strdup(context, path, &checkpoint->path));
    if (key)
        NL_TRY(nl_strdup(context, key, &checkpoint->key));
    *result = checkpoint;
    return NL_OK;
cleanup:
    if (checkpoint)
        nl_checkpoint_close(checkpoint);
    else if (!borrowed)
        nl_unmap(context, &mapping);
    return status;
}

nl_status nl_checkpoint_set_aside(nl_checkpoint *checkpoint, const char *key)
{
    nl_context *context = checkpoint->context;
    nl_status status = NL_OK;
    nl_checkpoint *beside = NULL;
    char *path = NULL;
    int64_t count = 0, left = 0;
    for (int64_t i = 0; i < checkpoint->count; i++)
        count += name_under(&checkpoint->entries[i], key) != NULL;
    if (count == 0)
        return NL_OK;
    NL_TRY(nl_format(context, &path, "%s: %s", checkpoint->path, key));
    NL_TRY(create(context, path, key, checkpoint->mapping, true, &beside));
    NL_TRY(NL_NEW_ARRAY(context, "a checkpoint's table", count, &beside->entries));
    beside->shards = checkpoint->shards;
    beside->shard_count = checkpoint->shard_count;
    beside->checksums = checkpoint->checksums;
    beside->checksum_count = checkpoint->checksum_count;
    for (int64_t i = 0; i < checkpoint->count; i++) {
        nl_entry entry = checkpoint->entries[i];
        const char *name = name_under(&entry, key);
        if (!name) {
            checkpoint->entries[left++] = entry;
            continue;
        }
        entry.name = name;
        beside->entries[beside->count++] = entry;
    }
    checkpoint->count = left;
    checkpoint->beside = beside;
    beside = NULL;
cleanup:
    nl_checkpoint_close(beside);
    nl_free(context, path);
    return status;
}

nl_status nl_checkpoint_open_shard(nl_context *context, const char *path, const char *key,
                                   nl_checkpoint **checkpoint)
{
    nl_status status;
    nl_mapping mapping = {0};
    *checkpoint = NULL;
    NL_TRY(nl_map_file(context, path, &mapping));
    NL_TRY(create(context, path, key, mapping, false, checkpoint));
    NL_TRY(parse(*checkpoint));
    return NL_OK;
cleanup:
    nl_checkpoint_close(*checkpoint);
    *checkpoint = NULL;
    return status;
}

nl_status nl_checkpoint_open_key(nl_context *context, const char *path, const char *key,
                                 nl_checkpoint **checkpoint)
{
    nl_status status;
    *checkpoint = NULL;
    if (nl_path_is_folder(path)) {
        NL_TRY(create(context, path, key, (nl_mapping){0}, false, checkpoint));
        NL_TRY(nl_folder_parse(*checkpoint));
    } else {
        NL_TRY(nl_checkpoint_open_shard(context, path, key, checkpoint));
    }
    NL_TRY(nl_folder_config(*checkpoint));
    NL_TRY(arrange(*checkpoint));
    return NL_OK;
cleanup:
    nl_checkpoint_close(*checkpoint);
    *checkpoint = NULL;
    return status;
}

nl_status nl_checkpoint_open(nl_context *context, const char *path, nl_checkpoint **checkpoint)
{
    return nl_checkpoint_open_key(context, path, NULL, checkpoint);
}

nl_status nl_checkpoint_open_memory(nl_context *context, const char *name, const void *data,
                                    int64_t size, nl_checkpoint **checkpoint)
{
    nl_status status;
    NL_TRY(create(context, name, NULL, (nl_mapping){.data = data, .size = size}, true, checkpoint));
    NL_TRY(parse(*checkpoint));
    NL_TRY(arrange(*checkpoint));
    return NL_OK;
cleanup:
    nl_checkpoint_close(*checkpoint);
    *checkpoint = NULL;
    return status;
}

void nl_checkpoint_close(nl_checkpoint *checkpoint)
{
    if (!checkpoint)
        return;
    nl_context *context = checkpoint->context;
    nl_checkpoint_close(checkpoint->beside);
    for (int i = 0; i < checkpoint->shard_count && !checkpoint->borrowed; i++)
        nl_checkpoint_close(checkpoint->shards[i]);
    if (!checkpoint->borrowed) {
        nl_unmap(context, &checkpoint->mapping);
        nl_free(context, checkpoint->shards);
    }
    for (nl_block *block = checkpoint->blocks, *next; block; block = next) {
        next = block->next;
        nl_free(context, block);
    }
    nl_free(context, checkpoint->entries);
    nl_free(context, checkpoint->metadata);
    nl_free(context, checkpoint->key);
    nl_free(context, checkpoint->holds);
    nl_free(context, checkpoint->taken);
    nl_free(context, checkpoint->path);
    nl_free(context, checkpoint);
}

/* ---- Looking up and reading */

int64_t nl_checkpoint_bytes(const nl_checkpoint *checkpoint)
{
    int64_t bytes = checkpoint->mapping.size;
    for (int i = 0; i < checkpoint->shard_count; i++)
        bytes += checkpoint->shards[i]->mapping.size;
    return bytes;
}

const nl_entry *nl_checkpoint_find(const nl_checkpoint *checkpoint, const char *name)
{
    if (checkpoint->count == 0)
        return NULL;
    nl_entry key = {.name = name};
    return bsearch(&key, checkpoint->entries, (size_t)checkpoint->count, sizeof(nl_entry),
                   compare_entries);
}

const char *nl_checkpoint_metadata(const nl_checkpoint *checkpoint, const char *key)
{
    for (char **pair = checkpoint->metadata; pair && *pair; pair += 2)
        if (strcmp(pair[0], key) == 0)
            return pair[1];
    return NULL;
}

int64_t nl_entry_count(const nl_entry *entry)
{
    int64_t count = 1; /* the readers have checked that this does not overflow */
    for (int i = 0; i < entry->ndim; i++)
        count *= entry->shape[i];
    return count;
}

/* All elements in row-major order of the shape, wherever the strides put them; those of the last
 * size together when they are neighbours. As floats, or as they are. */
static void gather(const nl_entry *entry, int64_t count, bool floats, void *to)
{
    const char *data = entry->data;
    int size = nl_dtype_size(entry->dtype), last = entry->ndim - 1;
    int64_t run = entry->strides[last] == 1 ? entry->shape[last] : 1;
    int64_t index[NL_MAX_DIMS] = {0}, offset = 0;
    for (int64_t i = 0; i < count; i += run) {
        if (floats)
            nl_convert_to_float(data + offset * size, entry->dtype, run, (float *)to + i);
        else
            memcpy((char *)to + i * size, data + offset * size, (size_t)(run * size));
        for (int axis = run == 1 ? last : last - 1; axis >= 0; axis--) {
            offset += entry->strides[axis];
            if (++index[axis] < entry->shape[axis])
                break;
            offset -= index[axis] * entry->strides[axis];
            index[axis] = 0;
        }
    }
}

void nl_entry_copy(const nl_entry *entry, void *to)
{
    int64_t count = nl_entry_count(entry);
    if (count > 0 && entry->strides)
        gather(entry, count, false, to);
    else if (count > 0)
        memcpy(to, entry->data, (size_t)(count * nl_dtype_size(entry->dtype)));
}

/* -1: all are finite. */
static int64_t first_not_finite(const float *x, int64_t count)
{
    enum { BLOCK = 4096 };
    for (int64_t start = 0; start < count; start += BLOCK) {
        int64_t end = NL_MIN(start + BLOCK, count);
        int bad = 0;
        for (int64_t i = start; i < end; i++) /* without a way out, so that it is vectorised */
            bad |= !isfinite(x[i]);
        for (int64_t i = start; bad && i < end; i++)
            if (!isfinite(x[i]))
                return i;
    }
    return -1;
}

/* The file that holds these bytes; NULL for memory. */
static const nl_mapping *mapping_of(const nl_checkpoint *checkpoint, const void *data)
{
    const nl_mapping *mapping = &checkpoint->mapping;
    uintptr_t at = (uintptr_t)data, begin = (uintptr_t)mapping->data;
    if (mapping->mapped && at >= begin && at < begin + (size_t)mapping->size)
        return mapping;
    for (int i = 0; i < checkpoint->shard_count; i++)
        if ((mapping = mapping_of(checkpoint->shards[i], data)))
            return mapping;
    return NULL;
}

static nl_status read_elements(const nl_checkpoint *checkpoint, const nl_entry *entry,
                               int64_t count, float *to)
{
    enum { LARGE = 1 << 20 }; /* bytes */
    int64_t bytes = count * nl_dtype_size(entry->dtype);
    const nl_mapping *mapping =
        bytes >= LARGE && !entry->strides ? mapping_of(checkpoint, entry->data) : NULL;
    if (mapping)
        nl_map_ahead(mapping, entry->data, bytes);
    NL_CHECK(nl_checksum_check(checkpoint, entry->data, bytes));
    if (entry->strides)
        gather(entry, count, true, to);
    else
        nl_convert_to_float(entry->data, entry->dtype, count, to);
    if (mapping)
        nl_map_release(mapping, entry->data, bytes);
    if (!entry->scale)
        return NL_OK;
    int64_t columns = count / entry->shape[0];
    for (int64_t row = 0; row < entry->shape[0]; row++)
        for (int64_t i = 0; i < columns; i++)
            to[row * columns + i] *= entry->scale[row];
    return NL_OK;
}

nl_status nl_entry_read(const nl_checkpoint *checkpoint, const nl_entry *entry, float *to)
{
    int64_t count = nl_entry_count(entry);
    if (count == 0)
        return NL_OK;
    for (int i = 0; i < entry->part_count; i++) {
        NL_CHECK(nl_entry_read(checkpoint, &entry->parts[i], to));
        to += nl_entry_count(&entry->parts[i]);
    }
    if (entry->part_count)
        return NL_OK;
    NL_CHECK(read_elements(checkpoint, entry, count, to));
    int64_t bad = first_not_finite(to, count);
    if (bad >= 0)
        return nl_fail(checkpoint->context, NL_ERROR_INPUT,
                       "%s: tensor %s holds %f at element %lld: the file is damaged, or the "
                       "training that wrote it had diverged",
                       checkpoint->path, entry->name, to[bad], (long long)bad);
    return NL_OK;
}

nl_status nl_entry_equal(const nl_checkpoint *checkpoint, const nl_entry *a, const nl_entry *b,
                         bool *equal)
{
    nl_context *context = checkpoint->context;
    nl_status status;
    float *y = NULL;
    float *x = NULL;
    int64_t count = nl_entry_count(a);
    *equal = a->ndim == b->ndim &&
             memcmp(a->shape, b->shape, (size_t)a->ndim * sizeof(a->shape[0])) == 0;
    if (!*equal)
        return NL_OK;
    NL_TRY(NL_NEW_ARRAY(context, "a tensor to compare", count, &x));
    NL_TRY(NL_NEW_ARRAY(context, "a tensor to compare", count, &y));
    NL_TRY(nl_entry_read(checkpoint, a, x));
    NL_TRY(nl_entry_read(checkpoint, b, y));
    *equal = memcmp(x, y, (size_t)count * sizeof(float)) == 0;
cleanup:
    nl_free(context, x);
    nl_free(context, y);
    return status;
}

void nl_problem(nl_problems *problems, const char *format, ...)
{
    enum { NAMED = 20, RESERVED = 32 }; /* bytes for the last line, "and N more" */
    char line[256];
    va_list list;
    va_start(list, format);
    vsnprintf(line, sizeof(line), format, list);
    va_end(list);
    for (char *c = line; (c = strchr(c, '\n'));) /* of a name: a problem is one line */
        *c = '?';

    char *text = problems->text, *last = strrchr(text, '\n');
    size_t used = strlen(text);
    int more = 0;
    problems->count++;
    if (last && sscanf(last, "\n  and %d more", &more) == 1)
        snprintf(last, RESERVED, "\n  and %d more", more + 1);
    else if (problems->count <= NAMED &&
             used + strlen(line) + 4 + RESERVED < sizeof(problems->text))
        snprintf(text + used, sizeof(problems->text) - used, "\n  %s", line);
    else
        snprintf(text + used, RESERVED, "\n  and 1 more");
}
