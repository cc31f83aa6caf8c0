/* SPDX-License-Identifier: MIT */
/*
 * Reading safetensors.
 *
 *   OFFSET  SIZE    DESCRIPTION
 *   0       8       n, length of the header, little endian, at most 100,000,000
 *   8       n       JSON object: name -> {dtype, shape, data_offsets: [begin, end]}, and under
 *                   "__metadata__" an object of strings; may be padded with spaces
 *                   (NL_CHECKSUMS there: checksums.h)
 *   8 + n   rest    the data; offsets count from here; no hole, no overlap, nothing behind
 */
#include <stdlib.h>
#include <string.h>

#include "checksums.h"
#include "nl_bytes.h"
#include "nl_json.h"

enum {
    HEADER_LIMIT = 100000000,
    FOLDED = -1 /* ndim of an entry that became another one's scale */
};

static const char metadata_key[] = "__metadata__";
static const char scale_suffix[] = ".scale";

typedef struct nl_span {
    int64_t begin, end; /* in the data section */
    const char *name;
} nl_span;

typedef struct nl_header {
    nl_checkpoint *checkpoint;
    const uint8_t *data; /* the data section */
    int64_t size;
    const cJSON *root, *metadata;
    int64_t count;
    nl_entry *entries;
    nl_span *spans;
} nl_header;

/* A number that is a whole one and not negative. */
static bool whole_number(const cJSON *item, int64_t *value)
{
    return nl_json_whole(item, value) && *value >= 0;
}

static nl_status bad_tensor(const nl_header *header, const char *name, const char *expected)
{
    return nl_fail(header->checkpoint->context, NL_ERROR_INPUT, "%s: tensor %s: %s",
                   header->checkpoint->path, name, expected);
}

static nl_status read_dtype(const nl_header *header, const cJSON *item, nl_dtype *dtype)
{
    const cJSON *value = cJSON_GetObjectItemCaseSensitive(item, "dtype");
    if (!cJSON_IsString(value))
        return bad_tensor(header, item->string, "no \"dtype\"");
    if (!nl_dtype_parse(value->valuestring, dtype))
        return nl_fail(header->checkpoint->context, NL_ERROR_INPUT,
                       "%s: tensor %s has the type %s, which is not read (read are F64, F32, F16, "
                       "BF16, I64, I32, I16, I8, U8, BOOL)",
                       header->checkpoint->path, item->string, value->valuestring);
    return NL_OK;
}

static nl_status read_shape(const nl_header *header, const cJSON *item, nl_entry *entry)
{
    const cJSON *shape = cJSON_GetObjectItemCaseSensitive(item, "shape"), *size;
    if (!cJSON_IsArray(shape))
        return bad_tensor(header, item->string, "no \"shape\"");
    for (int i = 0; i < NL_MAX_DIMS; i++)
        entry->shape[i] = 1;
    cJSON_ArrayForEach(size, shape)
    {
        if (entry->ndim == NL_MAX_DIMS)
            return bad_tensor(header, item->string, "its shape has more than 5 sizes");
        if (!whole_number(size, &entry->shape[entry->ndim++]))
            return bad_tensor(header, item->string,
                              "its shape holds something else than whole numbers >= 0");
    }
    return NL_OK;
}

static nl_status read_offsets(const nl_header *header, const cJSON *item, nl_span *span)
{
    const cJSON *offsets = cJSON_GetObjectItemCaseSensitive(item, "data_offsets");
    if (!cJSON_IsArray(offsets) || cJSON_GetArraySize(offsets) != 2 ||
        !whole_number(offsets->child, &span->begin) ||
        !whole_number(offsets->child->next, &span->end))
        return bad_tensor(header, item->string,
                          "\"data_offsets\" should be two whole numbers >= 0");
    if (span->begin > span->end || span->end > header->size)
        return nl_fail(header->checkpoint->context, NL_ERROR_INPUT,
                       "%s: tensor %s: data_offsets [%lld, %lld] are not within the file's %lld "
                       "bytes of data: the file is cut off or damaged",
                       header->checkpoint->path, item->string, (long long)span->begin,
                       (long long)span->end, (long long)header->size);
    return NL_OK;
}

static nl_status read_tensor(const nl_header *header, const cJSON *item, nl_entry *entry,
                             nl_span *span)
{
    static const char *const keys[] = {"dtype", "shape", "data_offsets", NULL};
    nl_context *context = header->checkpoint->context;
    if (!cJSON_IsObject(item))
        return bad_tensor(header, item->string, "expected an object");
    nl_json json = {context, header->checkpoint->path, item};
    NL_CHECK(nl_json_known_keys(&json, keys));
    NL_CHECK(read_dtype(header, item, &entry->dtype));
    NL_CHECK(read_shape(header, item, entry));
    NL_CHECK(read_offsets(header, item, span));
    int64_t bytes = nl_dtype_size(entry->dtype);
    bool fits = true;
    for (int i = 0; i < entry->ndim; i++)
        fits = fits && nl_mul_size(bytes, entry->shape[i], &bytes);
    if (!fits || bytes != span->end - span->begin) {
        char text[128];
        return nl_fail(context, NL_ERROR_INPUT,
                       "%s: tensor %s: %s of shape %s does not fill data_offsets [%lld, %lld]",
                       header->checkpoint->path, item->string, nl_dtype_name(entry->dtype),
                       nl_shape_text(entry->ndim, entry->shape, text, sizeof(text)),
                       (long long)span->begin, (long long)span->end);
    }
    entry->name = span->name = item->string;
    entry->data = header->data + span->begin;
    return NL_OK;
}

static nl_status read_tensors(nl_header *header, const cJSON *root)
{
    const cJSON *item;
    cJSON_ArrayForEach(item, root)
    {
        if (strcmp(item->string, metadata_key) == 0) {
            header->metadata = item;
            continue;
        }
        NL_CHECK(read_tensor(header, item, &header->entries[header->count],
                             &header->spans[header->count]));
        header->count++;
    }
    return NL_OK;
}

static int compare_spans(const void *a, const void *b)
{
    const nl_span *x = a, *y = b;
    if (x->begin != y->begin)
        return x->begin < y->begin ? -1 : 1;
    return (x->end > y->end) - (x->end < y->end);
}

static nl_status check_spans(nl_header *header)
{
    nl_context *context = header->checkpoint->context;
    const char *path = header->checkpoint->path;
    int64_t end = 0;
    if (header->count > 0)
        qsort(header->spans, (size_t)header->count, sizeof(nl_span), compare_spans);
    for (int64_t i = 0; i < header->count; i++) {
        const nl_span *span = &header->spans[i];
        if (span->begin < end)
            return nl_fail(context, NL_ERROR_INPUT, "%s: tensors %s and %s overlap", path,
                           header->spans[i - 1].name, span->name);
        if (span->begin > end)
            return nl_fail(context, NL_ERROR_INPUT,
                           "%s: not part of any tensor: %lld %s before tensor %s", path,
                           (long long)(span->begin - end),
                           nl_plural(span->begin - end, "byte", "bytes"), span->name);
        end = span->end;
    }
    if (end != header->size)
        return nl_fail(
            context, NL_ERROR_INPUT, "%s: not part of any tensor: %lld %s at the end of the file",
            path, (long long)(header->size - end), nl_plural(header->size - end, "byte", "bytes"));
    return NL_OK;
}

static int compare_names(const void *a, const void *b)
{
    return strcmp(((const nl_entry *)a)->name, ((const nl_entry *)b)->name);
}

/* The weights that "<name>.scale" belongs to, when they are I8. */
static nl_entry *scaled_entry(const nl_header *header, const char *name)
{
    size_t length = strlen(name), suffix = sizeof(scale_suffix) - 1;
    if (length <= suffix || strcmp(name + length - suffix, scale_suffix) != 0)
        return NULL;
    /* Binary search for the first length - suffix characters of the name. */
    int64_t low = 0, high = header->count;
    while (low < high) {
        int64_t middle = low + (high - low) / 2;
        nl_entry *entry = &header->entries[middle];
        int order = strncmp(entry->name, name, length - suffix);
        if (order == 0 && entry->name[length - suffix] == 0)
            return entry->dtype == NL_I8 ? entry : NULL;
        if (order < 0)
            low = middle + 1;
        else
            high = middle;
    }
    return NULL;
}

/* Points the weights at their scales and marks the scales' own entries. */
static nl_status fold_scales(nl_header *header, int64_t *floats)
{
    *floats = 0;
    if (header->count > 0)
        qsort(header->entries, (size_t)header->count, sizeof(nl_entry), compare_names);
    for (int64_t i = 0; i < header->count; i++) {
        nl_entry *scale = &header->entries[i], *entry = scaled_entry(header, scale->name);
        if (!entry)
            continue;
        if (scale->dtype != NL_F32 || scale->ndim != 1 || entry->ndim < 1 ||
            scale->shape[0] != entry->shape[0]) {
            char text[128];
            return nl_fail(header->checkpoint->context, NL_ERROR_INPUT,
                           "%s: tensor %s: expected F32 with one number for each of the %lld rows "
                           "of %s, found %s %s",
                           header->checkpoint->path, scale->name, (long long)entry->shape[0],
                           entry->name, nl_dtype_name(scale->dtype),
                           nl_shape_text(scale->ndim, scale->shape, text, sizeof(text)));
        }
        entry->scale = scale->data;
        scale->ndim = FOLDED;
        *floats += scale->shape[0];
    }
    return NL_OK;
}

static char *copy_text(char **to, const char *text)
{
    size_t size = strlen(text) + 1;
    char *copy = memcpy(*to, text, size);
    *to += size;
    return copy;
}

/* Of all tensors, those that are folded into others too, whose names stay with them. */
static nl_status read_checksums(nl_header *header)
{
    nl_checkpoint *checkpoint = header->checkpoint;
    const cJSON *text = cJSON_GetObjectItemCaseSensitive(header->metadata, NL_CHECKSUMS), *item;
    int64_t size = 0, count = 0;
    uint32_t table = 0;
    char *names;
    if (!text)
        return NL_OK;
    for (int64_t i = 0; i < header->count; i++)
        size += (int64_t)strlen(header->entries[i].name) + 1;
    NL_CHECK(NL_OWN_ARRAY(checkpoint, "names of tensors", NL_MAX(size, 1), &names));
    NL_CHECK(
        NL_OWN_ARRAY(checkpoint, "checksums", NL_MAX(header->count, 1), &checkpoint->checksums));
    cJSON_ArrayForEach(item, header->root)
    {
        nl_span span;
        if (!strcmp(item->string, metadata_key))
            continue;
        NL_CHECK(read_offsets(header, item, &span));
        table = nl_checksum_table(table, item->string, span.end);
        checkpoint->checksums[count++] = (nl_checksum){
            copy_text(&names, item->string), header->data + span.begin, span.end - span.begin, 0};
    }
    checkpoint->checksum_count = count;
    nl_checksums_read(checkpoint, text->valuestring, table);
    return NL_OK;
}

/* One allocation holds what the entries point at outside the mapping: aligned copies of the scales,
 * then names and metadata. */
static nl_status own(nl_header *header, int64_t floats)
{
    nl_checkpoint *checkpoint = header->checkpoint;
    nl_context *context = checkpoint->context;
    float *scale;
    const cJSON *item;
    int64_t pairs = 0, kept = 0;
    size_t size = (size_t)floats * sizeof(float); /* no more than the file holds */
    NL_CHECK(read_checksums(header));
    for (int64_t i = 0; i < header->count; i++)
        size += strlen(header->entries[i].name) + 1;
    cJSON_ArrayForEach(item, header->metadata)
    {
        size += strlen(item->string) + strlen(item->valuestring) + 2;
        pairs++;
    }
    NL_CHECK((scale = nl_checkpoint_own(checkpoint, "names of tensors", (int64_t)size, 1))
                 ? NL_OK
                 : NL_ERROR_MEMORY);
    NL_CHECK(NL_NEW_ARRAY(context, "metadata", 2 * pairs + 1, &checkpoint->metadata));

    char *text = (char *)(scale + floats);
    for (int64_t i = 0; i < header->count; i++) {
        nl_entry entry = header->entries[i];
        if (entry.ndim == FOLDED)
            continue;
        entry.name = copy_text(&text, entry.name);
        if (entry.scale) {
            int64_t bytes = entry.shape[0] * (int64_t)sizeof(float);
            NL_CHECK(nl_checksum_check(checkpoint, entry.scale, bytes));
            entry.scale = memcpy(scale, entry.scale, (size_t)bytes);
            scale += entry.shape[0];
        }
        header->entries[kept++] = entry;
    }
    pairs = 0;
    cJSON_ArrayForEach(item, header->metadata)
    {
        if (!strcmp(item->string, NL_CHECKSUMS))
            continue;
        checkpoint->metadata[pairs++] = copy_text(&text, item->string);
        checkpoint->metadata[pairs++] = copy_text(&text, item->valuestring);
    }
    checkpoint->metadata[pairs] = NULL;
    checkpoint->entries = header->entries;
    checkpoint->count = kept;
    header->entries = NULL;
    return NL_OK;
}

static nl_status check_metadata(const nl_header *header)
{
    const cJSON *item;
    if (header->metadata && !cJSON_IsObject(header->metadata))
        return bad_tensor(header, metadata_key, "expected an object of strings");
    cJSON_ArrayForEach(item, header->metadata)
    {
        if (!cJSON_IsString(item))
            return nl_fail(header->checkpoint->context, NL_ERROR_INPUT,
                           "%s: metadata %s: expected a string", header->checkpoint->path,
                           item->string);
    }
    return NL_OK;
}

static nl_status parse_header(nl_checkpoint *checkpoint, cJSON **root)
{
    nl_context *context = checkpoint->context;
    const nl_mapping *mapping = &checkpoint->mapping;
    if (mapping->size < 8)
        return nl_fail(context, NL_ERROR_INPUT, "%s: %lld bytes are too few for a safetensors file",
                       checkpoint->path, (long long)mapping->size);
    uint64_t length = nl_little(mapping->data, 8);
    if (length > HEADER_LIMIT || (int64_t)length > mapping->size - 8)
        return nl_fail(context, NL_ERROR_INPUT,
                       "%s: the header should be %llu bytes long, but the file has %lld and the "
                       "limit is %d: the file is cut off or not safetensors",
                       checkpoint->path, (unsigned long long)length, (long long)mapping->size,
                       HEADER_LIMIT);
    if (length == 0 || mapping->data[8] != '{')
        return nl_fail(context, NL_ERROR_INPUT, "%s: the header does not begin with {",
                       checkpoint->path);
    return nl_json_parse(context, checkpoint->path, (const char *)mapping->data + 8, (size_t)length,
                         root);
}

nl_status nl_safetensors_parse(nl_checkpoint *checkpoint)
{
    nl_context *context = checkpoint->context;
    nl_header header = {.checkpoint = checkpoint};
    nl_status status;
    cJSON *root = NULL;
    int64_t floats, items;
    NL_TRY(parse_header(checkpoint, &root));
    header.root = root;
    header.data = checkpoint->mapping.data + 8 + nl_little(checkpoint->mapping.data, 8);
    header.size = checkpoint->mapping.data + checkpoint->mapping.size - header.data;
    items = cJSON_GetArraySize(root);
    NL_TRY(NL_NEW_ZEROS(context, "a checkpoint's table", items, &header.entries));
    NL_TRY(NL_NEW_ZEROS(context, "a checkpoint's table", items, &header.spans));
    NL_TRY(read_tensors(&header, root));
    NL_TRY(check_metadata(&header));
    NL_TRY(check_spans(&header));
    NL_TRY(fold_scales(&header, &floats));
    NL_TRY(own(&header, floats));
cleanup:
    nl_free(context, header.entries);
    nl_free(context, header.spans);
    cJSON_Delete(root);
    return status;
}
