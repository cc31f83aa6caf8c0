/* Tensors from anywhere to one safetensors file, one at a time. */
#include <math.h>
#include <stdio.h>
#include <string.h>

#include "nl_checkpoint.h"

typedef struct nl_saving {
    nl_context *context;
    const nl_save_source *source;
    nl_safetensors_writer *writer;
    float *values; /* of source `loaded` */
    void *packed;
    int64_t loaded;
} nl_saving;

static int64_t saved_count(const nl_saved *saved)
{
    int64_t count = 1; /* print_header has checked that this does not overflow */
    for (int i = 0; i < saved->ndim; i++)
        count *= saved->shape[i];
    return count;
}

/* Every I8 tensor is followed by its scales. */
static nl_status list_headers(nl_context *context, const nl_saved *saved, int64_t count,
                              nl_tensor_header **headers, char **names, int64_t *header_count)
{
    static const char suffix[] = ".scale";
    nl_status status;
    void *memory;
    int64_t size = 1;
    for (int64_t i = 0; i < count; i++)
        size += saved[i].dtype == NL_I8 ? (int64_t)(strlen(saved[i].name) + sizeof(suffix)) : 0;
    NL_TRY(
        nl_alloc_zero(context, "names of tensors", 2 * (size_t)count * sizeof(**headers), &memory));
    *headers = memory;
    NL_TRY(nl_alloc(context, "names of tensors", (size_t)size, &memory));
    *names = memory;
    char *text = *names;
    *header_count = 0;
    for (int64_t i = 0; i < count; i++) {
        nl_tensor_header *header = &(*headers)[(*header_count)++];
        *header = (nl_tensor_header){saved[i].name, saved[i].dtype, saved[i].ndim, {0}};
        memcpy(header->shape, saved[i].shape, sizeof(header->shape));
        if (saved[i].dtype != NL_I8)
            continue;
        int length = sprintf(text, "%s%s", saved[i].name, suffix);
        (*headers)[(*header_count)++] = (nl_tensor_header){text, NL_F32, 1, {saved[i].shape[0]}};
        text += length + 1;
    }
cleanup:
    return status;
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
    void *scale = NULL;
    NL_TRY(nl_alloc_array(saving->context, "row scales", rows, sizeof(float), &scale));
    nl_quantize_rows(values, rows, columns, saving->packed, scale);
    NL_TRY(nl_safetensors_write(saving->writer, saving->packed, rows * columns));
    NL_TRY(nl_safetensors_write(saving->writer, scale, rows * (int64_t)sizeof(float)));
cleanup:
    nl_free(saving->context, scale);
    return status;
}

static nl_status write_tensor(nl_saving *saving, const nl_saved *saved)
{
    nl_status status;
    int64_t count = saved_count(saved), rows = saved->ndim ? saved->shape[0] : 1;
    NL_TRY(nl_check_cancelled(saving->context));
    if (saved->exact) {
        NL_TRY(nl_safetensors_write(saving->writer, saved->exact->data, count));
        return nl_safetensors_write(saving->writer, saved->exact->scale,
                                    rows * (int64_t)sizeof(float));
    }
    if (saving->loaded != saved->source) {
        saving->loaded = -1;
        NL_TRY(saving->source->read(saving->source->user, saved->source, saving->values));
        saving->loaded = saved->source;
    }
    const float *values = saving->values + saved->first;
    NL_TRY(check_values(saving->context, saved, values, count));
    if (saved->dtype == NL_I8)
        return write_quantized(saving, values, rows, rows ? count / rows : 0);
    if (saved->dtype == NL_F32)
        return nl_safetensors_write(saving->writer, values, count * (int64_t)sizeof(float));
    nl_convert_from_float(values, count, saved->dtype, saving->packed);
    NL_TRY(
        nl_safetensors_write(saving->writer, saving->packed, count * nl_dtype_size(saved->dtype)));
cleanup:
    return status;
}

nl_status nl_save_tensors(nl_context *context, const char *path, bool overwrite,
                          const char *const *metadata, const nl_saved *saved, int64_t count,
                          const nl_save_source *source)
{
    nl_status status;
    nl_saving saving = {.context = context, .source = source, .loaded = -1};
    nl_tensor_header *headers = NULL;
    char *names = NULL;
    void *values = NULL;
    int64_t header_count;
    NL_TRY(list_headers(context, saved, count, &headers, &names, &header_count));
    NL_TRY(
        nl_alloc_array(context, "a tensor on the host", source->largest, sizeof(float), &values));
    saving.values = values;
    NL_TRY(nl_alloc_array(context, "a tensor on the host", source->largest, sizeof(float),
                          &saving.packed));
    NL_TRY(nl_safetensors_create(context, path, overwrite, metadata, headers, header_count,
                                 &saving.writer));
    for (int64_t i = 0; i < count; i++)
        NL_TRY(write_tensor(&saving, &saved[i]));
    NL_TRY(nl_safetensors_commit(&saving.writer));
cleanup:
    nl_safetensors_abort(&saving.writer);
    nl_free(context, saving.packed);
    nl_free(context, values);
    nl_free(context, headers);
    nl_free(context, names);
    return status;
}

nl_dtype nl_saved_dtype(const nl_entry *entry)
{
    bool half = entry->dtype == NL_BF16 || entry->dtype == NL_F16;
    return half && !entry->scale ? entry->dtype : NL_F32;
}
