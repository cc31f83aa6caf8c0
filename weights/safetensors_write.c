/* SPDX-License-Identifier: MIT */
/* Writing safetensors through the checked writer; the layout stands in safetensors.c. */
#include <string.h>

#include "nl_checkpoint.h"
#include "nl_json.h"

struct nl_safetensors_writer {
    nl_context *context;
    nl_writer *writer;
    char *path;
    int64_t expected; /* bytes of all declared tensors */
    int64_t written;
};

static bool add_tensor(cJSON *root, const nl_tensor_header *tensor, int64_t begin, int64_t end)
{
    double shape[NL_MAX_DIMS], offsets[2] = {(double)begin, (double)end};
    for (int i = 0; i < tensor->ndim; i++)
        shape[i] = (double)tensor->shape[i];
    cJSON *item = cJSON_AddObjectToObject(root, tensor->name);
    return item && cJSON_AddStringToObject(item, "dtype", nl_dtype_name(tensor->dtype)) &&
           cJSON_AddItemToObject(item, "shape", cJSON_CreateDoubleArray(shape, tensor->ndim)) &&
           cJSON_AddItemToObject(item, "data_offsets", cJSON_CreateDoubleArray(offsets, 2));
}

static bool add_metadata(cJSON *root, const char *const *metadata)
{
    cJSON *item = cJSON_AddObjectToObject(root, "__metadata__");
    for (; item && *metadata; metadata += 2)
        if (!cJSON_AddStringToObject(item, metadata[0], metadata[1]))
            return false;
    return item != NULL;
}

/* The header's JSON text, and the bytes that all tensors take. */
static nl_status print_header(nl_context *context, const char *path, const char *const *metadata,
                              const nl_tensor_header *tensors, int64_t count, char **text,
                              int64_t *bytes)
{
    nl_status status = NL_OK;
    cJSON *root = cJSON_CreateObject();
    bool built = root && (!metadata || add_metadata(root, metadata));
    *text = NULL;
    *bytes = 0;
    for (int64_t i = 0; i < count && built; i++) {
        int64_t size = nl_dtype_size(tensors[i].dtype), end;
        bool fits = tensors[i].ndim >= 0 && tensors[i].ndim <= NL_MAX_DIMS;
        for (int axis = 0; fits && axis < tensors[i].ndim; axis++)
            fits = nl_mul_size(size, tensors[i].shape[axis], &size);
        if (!fits || !nl_add_size(*bytes, size, &end)) {
            status = nl_fail(context, NL_ERROR_INTERNAL, "%s: tensor %s has an impossible shape",
                             path, tensors[i].name);
            goto cleanup;
        }
        built = add_tensor(root, &tensors[i], *bytes, end);
        *bytes = end;
    }
    if (!built || !(*text = nl_json_print(root, false)))
        status = nl_fail(context, NL_ERROR_MEMORY, "%s: no memory for the header", path);
cleanup:
    cJSON_Delete(root);
    return status;
}

nl_status nl_safetensors_create(nl_context *context, const char *path, bool overwrite,
                                const char *const *metadata, const nl_tensor_header *tensors,
                                int64_t count, nl_safetensors_writer **result)
{
    nl_status status;
    nl_safetensors_writer *writer = NULL;
    char *text = NULL;
    uint8_t length[8];
    size_t text_size, padded;
    *result = NULL;
    NL_TRY(NL_NEW(context, "a file writer", &writer));
    writer->context = context;
    NL_TRY(nl_strdup(context, path, &writer->path));
    NL_TRY(print_header(context, path, metadata, tensors, count, &text, &writer->expected));
    NL_TRY(nl_check_space(context, path, writer->expected));
    NL_TRY(nl_writer_open(context, path, overwrite, &writer->writer));
    text_size = strlen(text);
    padded = (text_size + 7) / 8 * 8;
    for (int i = 0; i < 8; i++)
        length[i] = (uint8_t)(padded >> 8 * i);
    NL_TRY(nl_writer_write(writer->writer, length, sizeof(length)));
    NL_TRY(nl_writer_write(writer->writer, text, text_size));
    NL_TRY(nl_writer_write(writer->writer, "        ", padded - text_size));
    *result = writer;
    writer = NULL;
cleanup:
    cJSON_free(text);
    nl_safetensors_abort(&writer);
    return status;
}

nl_status nl_safetensors_write(nl_safetensors_writer *writer, const void *data, int64_t bytes)
{
    if (bytes < 0 || bytes > writer->expected - writer->written)
        return nl_fail(writer->context, NL_ERROR_INTERNAL,
                       "%s: %lld bytes more than the declared tensors have", writer->path,
                       (long long)(bytes - (writer->expected - writer->written)));
    nl_status status = nl_writer_write(writer->writer, data, (size_t)bytes);
    if (status == NL_OK)
        writer->written += bytes;
    return status;
}

nl_status nl_safetensors_commit(nl_safetensors_writer **writer)
{
    nl_safetensors_writer *this = *writer;
    nl_status status = NL_OK;
    if (this->written != this->expected)
        status = nl_fail(this->context, NL_ERROR_INTERNAL,
                         "%s: %lld of %lld bytes of tensors were written", this->path,
                         (long long)this->written, (long long)this->expected);
    else
        status = nl_writer_commit(&this->writer);
    nl_safetensors_abort(writer);
    return status;
}

void nl_safetensors_abort(nl_safetensors_writer **writer)
{
    nl_safetensors_writer *this = *writer;
    if (!this)
        return;
    nl_writer_abort(&this->writer);
    nl_free(this->context, this->path);
    nl_free(this->context, this);
    *writer = NULL;
}
