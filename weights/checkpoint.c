/* Opening by content, looking up, reading as floats: what all formats share. */
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "nl_checkpoint.h"

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
    {"torch checkpoint", NL_MAGIC("PK\003\004"), 0, NULL,
     "torch checkpoint: not yet; save it as safetensors"},
    {"torch checkpoint", NL_MAGIC("\x80\x02\x8a\x0a\x6c\xfc\x9c\x46\xf9\x20\x6a\xa8\x50\x19"), 0,
     NULL, "torch checkpoint (before 1.6): not yet; save it as safetensors"},
    {"npy", NL_MAGIC("\x93NUMPY"), 0, NULL, "a numpy array holds no named tensors"},
    {"GGUF", NL_MAGIC("GGUF"), 0, NULL, "GGUF is not read; save it as safetensors"},
    {"HDF5", NL_MAGIC("\x89HDF"), 0, NULL, "HDF5 is not read; save it as safetensors"},
    {"PNG", NL_MAGIC("\x89PNG"), 0, NULL, "this is a picture"},
    {"Git LFS pointer", NL_MAGIC("version https://git-lfs"), 0, NULL,
     "a Git LFS pointer stands for the file: fetch it with git lfs pull"},
    {"HTML", NL_MAGIC("<!DOCTYPE"), 0, NULL, "a web page was saved instead of the file"},
    {"safetensors", NL_MAGIC("{"), 8, nl_safetensors_parse, NULL},
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

static int compare_entries(const void *a, const void *b)
{
    return strcmp(((const nl_entry *)a)->name, ((const nl_entry *)b)->name);
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
        return nl_fail(context, NL_ERROR_INPUT,
                       "%s: not a checkpoint: expected a safetensors file, found %lld bytes that "
                       "begin with %s",
                       checkpoint->path, (long long)mapping->size, found);
    }
    if (!format->parse)
        return nl_fail(context, NL_ERROR_INPUT, "%s: %s", checkpoint->path, format->advice);
    nl_status status = format->parse(checkpoint);
    if (status != NL_OK)
        return status;
    checkpoint->format = format->name;
    if (checkpoint->count > 0)
        qsort(checkpoint->entries, (size_t)checkpoint->count, sizeof(nl_entry), compare_entries);
    return NL_OK;
}

/* Takes the mapping over, also on failure. */
static nl_status open_mapping(nl_context *context, const char *path, nl_mapping mapping,
                              bool borrowed, nl_checkpoint **result)
{
    nl_status status;
    void *memory = NULL;
    nl_checkpoint *checkpoint = NULL;
    NL_TRY(nl_alloc_zero(context, "a checkpoint's table", sizeof(*checkpoint), &memory));
    checkpoint = memory;
    checkpoint->context = context;
    checkpoint->mapping = mapping;
    checkpoint->borrowed = borrowed;
    NL_TRY(nl_strdup(context, path, &checkpoint->path));
    NL_TRY(parse(checkpoint));
    *result = checkpoint;
    return NL_OK;
cleanup:
    if (checkpoint)
        nl_checkpoint_close(checkpoint);
    else if (!borrowed)
        nl_unmap(context, &mapping);
    return status;
}

nl_status nl_checkpoint_open(nl_context *context, const char *path, nl_checkpoint **checkpoint)
{
    *checkpoint = NULL;
    nl_mapping mapping = {0};
    nl_status status = nl_map_file(context, path, &mapping);
    return status == NL_OK ? open_mapping(context, path, mapping, false, checkpoint) : status;
}

nl_status nl_checkpoint_open_memory(nl_context *context, const char *name, const void *data,
                                    int64_t size, nl_checkpoint **checkpoint)
{
    *checkpoint = NULL;
    nl_mapping mapping = {.data = data, .size = size};
    return open_mapping(context, name, mapping, true, checkpoint);
}

void nl_checkpoint_close(nl_checkpoint *checkpoint)
{
    if (!checkpoint)
        return;
    nl_context *context = checkpoint->context;
    if (!checkpoint->borrowed)
        nl_unmap(context, &checkpoint->mapping);
    nl_free(context, checkpoint->entries);
    nl_free(context, checkpoint->metadata);
    nl_free(context, checkpoint->owned);
    nl_free(context, checkpoint->path);
    nl_free(context, checkpoint);
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

/* Walks the elements in row-major order of the shape, wherever the strides put them. */
static void read_strided(const nl_entry *entry, int64_t count, float *to)
{
    const char *data = entry->data;
    int size = nl_dtype_size(entry->dtype);
    int64_t index[NL_MAX_DIMS] = {0}, offset = 0;
    for (int64_t i = 0; i < count; i++) {
        nl_convert_to_float(data + offset * size, entry->dtype, 1, to + i);
        for (int axis = entry->ndim - 1; axis >= 0; axis--) {
            offset += entry->strides[axis];
            if (++index[axis] < entry->shape[axis])
                break;
            offset -= index[axis] * entry->strides[axis];
            index[axis] = 0;
        }
    }
}

nl_status nl_entry_read(const nl_checkpoint *checkpoint, const nl_entry *entry, float *to)
{
    int64_t count = nl_entry_count(entry);
    if (count == 0)
        return NL_OK;
    if (entry->strides)
        read_strided(entry, count, to);
    else
        nl_convert_to_float(entry->data, entry->dtype, count, to);
    if (entry->scale) {
        int64_t columns = count / entry->shape[0];
        for (int64_t row = 0; row < entry->shape[0]; row++)
            for (int64_t i = 0; i < columns; i++)
                to[row * columns + i] *= entry->scale[row];
    }
    for (int64_t i = 0; i < count; i++)
        if (!isfinite(to[i]))
            return nl_fail(checkpoint->context, NL_ERROR_INPUT,
                           "%s: tensor %s holds %f at element %lld: the file is damaged, or the "
                           "training that wrote it had diverged",
                           checkpoint->path, entry->name, to[i], (long long)i);
    return NL_OK;
}

void nl_problem(nl_problems *problems, const char *format, ...)
{
    enum { NAMED = 20, RESERVED = 32 }; /* bytes for the last line, "and N more" */
    char line[256];
    va_list list;
    va_start(list, format);
    vsnprintf(line, sizeof(line), format, list);
    va_end(list);

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
