/* SPDX-License-Identifier: MIT */
/* Tensors from anywhere to one safetensors file, one at a time. */
#include <math.h>
#include <stdio.h>
#include <string.h>

#include "checksums.h"

static const int64_t nothing = INT64_MIN; /* no source has this number */

typedef struct nl_saving {
    nl_context *context;
    const nl_save_source *source;
    nl_safetensors_writer *writer;
    float *values; /* of source `loaded` */
    void *packed;
    int64_t loaded; /* or nothing */
} nl_saving;

static int64_t saved_count(const nl_saved *saved)
{
    int64_t count = 1; /* print_header has checked that this does not overflow */
    for (int i = 0; i < saved->ndim; i++)
        count *= saved->shape[i];
    return count;
}

/* I8 is followed by its scales, unless it is a copy of whole numbers that have none. */
static bool has_scale(const nl_saved *saved)
{
    return saved->dtype == NL_I8 && (!saved->exact || saved->exact->scale);
}

static nl_status list_headers(nl_context *context, const nl_saved *saved, int64_t count,
                              nl_tensor_header **headers, char **names, int64_t *header_count)
{
    static const char suffix[] = ".scale";
    int64_t size = 1;
    for (int64_t i = 0; i < count; i++)
        size += has_scale(&saved[i]) ? (int64_t)(strlen(saved[i].name) + sizeof(suffix)) : 0;
    NL_CHECK(NL_NEW_ZEROS(context, "names of tensors", 2 * (size_t)count, headers));
    NL_CHECK(NL_NEW_ARRAY(context, "names of tensors", size, names));
    char *text = *names;
    *header_count = 0;
    for (int64_t i = 0; i < count; i++) {
        nl_tensor_header *header = &(*headers)[(*header_count)++];
        *header = (nl_tensor_header){saved[i].name, saved[i].dtype, saved[i].ndim, {0}};
        memcpy(header->shape, saved[i].shape, sizeof(header->shape));
        if (!has_scale(&saved[i]))
            continue;
        int length = sprintf(text, "%s%s", saved[i].name, suffix);
        (*headers)[(*header_count)++] = (nl_tensor_header){text, NL_F32, 1, {saved[i].shape[0]}};
        text += length + 1;
    }
    return NL_OK;
}

static nl_status check_values(nl_context *context, const nl_saved *saved, const float *values,
                              int64_t count)
{
    for (int64_t i = 0; i < count; i++)
        if (!isfinite(values[i]) || (saved->dtype == NL_F16 && !(fabsf(values[i]) < 65520)))
            return nl_fail(context, NL_ERROR_NOT_FINITE, "parameter %s: %g cannot be stored as %s",
                           saved->name, values[i], nl_dtype_name(saved->dtype));
    return NL_OK;
}

static nl_status write_quantized(nl_saving *saving, const float *values, int64_t rows,
                                 int64_t columns)
{
    nl_status status;
    float *scale = NULL;
    NL_TRY(NL_NEW_ARRAY(saving->context, "row scales", rows, &scale));
    nl_quantize_rows(values, rows, columns, saving->packed, scale);
    NL_TRY(nl_safetensors_write(saving->writer, saving->packed, rows * columns));
    NL_TRY(nl_safetensors_write(saving->writer, scale, rows * (int64_t)sizeof(float)));
cleanup:
    nl_free(saving->context, scale);
    return status;
}

static nl_status write_exact(nl_saving *saving, const nl_checkpoint *file, const nl_entry *entry)
{
    nl_status status;
    void *copy = NULL;
    int64_t count = nl_entry_count(entry), bytes = count * nl_dtype_size(entry->dtype);
    NL_TRY(nl_checksum_check(file, entry->data, bytes)); /* no new one for what is damaged */
    if (entry->strides) {
        NL_TRY(NL_NEW_SIZED(saving->context, "a tensor", bytes, 1, &copy));
        nl_entry_copy(entry, copy);
    }
    NL_TRY(nl_safetensors_write(saving->writer, copy ? copy : entry->data, bytes));
    if (entry->scale)
        NL_TRY(nl_safetensors_write(saving->writer, entry->scale,
                                    entry->shape[0] * (int64_t)sizeof(float)));
cleanup:
    nl_free(saving->context, copy);
    return status;
}

static nl_status write_tensor(nl_saving *saving, const nl_saved *saved)
{
    int64_t count = saved_count(saved), rows = saved->ndim ? saved->shape[0] : 1;
    NL_CHECK(nl_check_cancelled(saving->context));
    if (saved->exact)
        return write_exact(saving, saved->file, saved->exact);
    if (saving->loaded != saved->source) {
        saving->loaded = nothing;
        NL_CHECK(saving->source->read(saving->source->user, saved->source, saving->values));
        saving->loaded = saved->source;
    }
    const float *values = saving->values + saved->first;
    NL_CHECK(check_values(saving->context, saved, values, count));
    if (saved->dtype == NL_I8)
        return write_quantized(saving, values, rows, rows ? count / rows : 0);
    if (saved->dtype == NL_F32)
        return nl_safetensors_write(saving->writer, values, count * (int64_t)sizeof(float));
    nl_convert_from_float(values, count, saved->dtype, saving->packed);
    return nl_safetensors_write(saving->writer, saving->packed,
                                count * nl_dtype_size(saved->dtype));
}

nl_status nl_save_tensors(nl_context *context, const char *path, bool overwrite,
                          const char *const *metadata, const nl_saved *saved, int64_t count,
                          const nl_save_source *source)
{
    nl_status status;
    nl_saving saving = {.context = context, .source = source, .loaded = nothing};
    nl_tensor_header *headers = NULL;
    char *names = NULL;
    int64_t header_count;
    NL_TRY(list_headers(context, saved, count, &headers, &names, &header_count));
    NL_TRY(NL_NEW_ARRAY(context, "a tensor on the host", source->largest, &saving.values));
    NL_TRY(NL_NEW_SIZED(context, "a tensor on the host", source->largest, sizeof(float),
                        &saving.packed));
    NL_TRY(nl_safetensors_create(context, path, overwrite, metadata, headers, header_count,
                                 &saving.writer));
    for (int64_t i = 0; i < count; i++)
        NL_TRY(write_tensor(&saving, &saved[i]));
    NL_TRY(nl_safetensors_commit(&saving.writer));
cleanup:
    nl_safetensors_abort(&saving.writer);
    nl_free(context, saving.packed);
    nl_free(context, saving.values);
    nl_free(context, headers);
    nl_free(context, names);
    return status;
}

nl_dtype nl_saved_dtype(const nl_entry *entry)
{
    bool half = entry->dtype == NL_BF16 || entry->dtype == NL_F16;
    return half && !entry->scale ? entry->dtype : NL_F32;
}

static nl_status read_entry(void *user, int64_t source, float *values)
{
    const nl_checkpoint *checkpoint = user;
    return nl_entry_read(checkpoint, &checkpoint->entries[source], values);
}

nl_status nl_checkpoint_save(const nl_checkpoint *checkpoint, const char *path, bool overwrite,
                             nl_dtype dtype)
{
    nl_context *context = checkpoint->context;
    nl_status status;
    nl_saved *tensors = NULL;
    const char *config = nl_checkpoint_metadata(checkpoint, "nalagen");
    const char *metadata[] = {"format", "pt", config ? "nalagen" : NULL, config, NULL};
    nl_save_source source = {.read = read_entry, .user = (void *)checkpoint};
    if (dtype != NL_DTYPE_COUNT && dtype != NL_F32 && dtype != NL_BF16 && dtype != NL_F16)
        return nl_fail(context, NL_ERROR_USAGE,
                       "%s: under a file's own names floats are stored as "
                       "f32, bf16 or f16",
                       path);
    NL_TRY(NL_NEW_ARRAY(context, "names of tensors", checkpoint->count, &tensors));
    for (int64_t i = 0; i < checkpoint->count; i++) {
        const nl_entry *entry = &checkpoint->entries[i];
        bool floats = entry->dtype <= NL_F64 || entry->scale || entry->part_count;
        nl_dtype kept = floats ? nl_saved_dtype(entry) : entry->dtype;
        tensors[i] = (nl_saved){.name = entry->name,
                                .dtype = !floats || dtype == NL_DTYPE_COUNT ? kept
                                         : entry->ndim > 1                  ? dtype
                                                                            : NL_F32,
                                .ndim = entry->ndim,
                                .source = i,
                                .exact = floats ? NULL : entry,
                                .file = checkpoint};
        memcpy(tensors[i].shape, entry->shape, sizeof(entry->shape));
        if (floats)
            source.largest = NL_MAX(source.largest, nl_entry_count(entry));
    }
    NL_TRY(
        nl_save_tensors(context, path, overwrite, metadata, tensors, checkpoint->count, &source));
cleanup:
    nl_free(context, tensors);
    return status;
}
