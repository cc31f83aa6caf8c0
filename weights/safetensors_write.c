/* SPDX-License-Identifier: MIT */
/* Writing safetensors through the checked writer; the layout stands in safetensors.c. */
#include <string.h>

#include "checksums.h"
#include "nl_bytes.h"
#include "nl_crc.h"
#include "nl_json.h"

struct nl_safetensors_writer {
    nl_context *context;
    nl_writer *writer;
    char *path;
    int64_t expected; /* bytes of all declared tensors */
    int64_t written;
    int64_t count, current; /* tensors; the one that is being written */
    int64_t *ends;          /* [count] in the data section */
    uint32_t crc;           /* of its bytes up to now */
    char *checksums; /* [8 (count + 1) + 1] as they will stand in the metadata; NULL: not here */
};

/* So the header's text begins: the place of the checksums is known. */
#define BEFORE_CHECKSUMS "{\"__metadata__\":{\"" NL_CHECKSUMS "\":\""

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

/* checksums: the room for them, or NULL. */
static bool add_metadata(cJSON *root, const char *checksums, const char *const *metadata)
{
    cJSON *item = cJSON_AddObjectToObject(root, "__metadata__");
    bool built = item && (!checksums || cJSON_AddStringToObject(item, NL_CHECKSUMS, checksums));
    for (; built && metadata && *metadata; metadata += 2)
        built = cJSON_AddStringToObject(item, metadata[0], metadata[1]);
    return built;
}

/* Where each tensor ends. */
static nl_status measure(nl_safetensors_writer *writer, const nl_tensor_header *tensors)
{
    nl_status status =
        NL_NEW_ARRAY(writer->context, "places of tensors", NL_MAX(writer->count, 1), &writer->ends);
    for (int64_t i = 0; i < writer->count && status == NL_OK; i++) {
        int64_t size = nl_dtype_size(tensors[i].dtype);
        bool fits = tensors[i].ndim >= 0 && tensors[i].ndim <= NL_MAX_DIMS;
        for (int axis = 0; fits && axis < tensors[i].ndim; axis++)
            fits = nl_mul_size(size, tensors[i].shape[axis], &size);
        if (!fits || !nl_add_size(writer->expected, size, &writer->expected))
            return nl_fail(writer->context, NL_ERROR_INTERNAL,
                           "%s: tensor %s has an impossible shape", writer->path, tensors[i].name);
        writer->ends[i] = writer->expected;
    }
    return status;
}

/* The header's JSON text. */
static nl_status print_header(const nl_safetensors_writer *writer, const char *const *metadata,
                              const nl_tensor_header *tensors, char **text)
{
    cJSON *root = cJSON_CreateObject();
    bool built = root && ((!metadata && !writer->checksums) ||
                          add_metadata(root, writer->checksums, metadata));
    for (int64_t i = 0; i < writer->count && built; i++)
        built = add_tensor(root, &tensors[i], i ? writer->ends[i - 1] : 0, writer->ends[i]);
    *text = built ? nl_json_print(root, false) : NULL;
    cJSON_Delete(root);
    return *text ? NL_OK
                 : nl_fail(writer->context, NL_ERROR_MEMORY, "%s: no memory for the header",
                           writer->path);
}

/* Zeros in place of the checksums of tensors; that of the table is known. */
static nl_status prepare_checksums(nl_safetensors_writer *writer, const nl_tensor_header *tensors)
{
    int64_t digits = NL_CHECKSUM_DIGITS * (writer->count + 1);
    uint32_t table = 0;
    NL_CHECK(NL_NEW_ARRAY(writer->context, "checksums", digits + 1, &writer->checksums));
    memset(writer->checksums, '0', (size_t)digits);
    writer->checksums[digits] = '\0';
    for (int64_t i = 0; i < writer->count; i++)
        table = nl_checksum_table(table, tensors[i].name, writer->ends[i]);
    nl_checksum_print(table, writer->checksums);
    return NL_OK;
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
    writer->count = count;
    NL_TRY(nl_strdup(context, path, &writer->path));
    NL_TRY(measure(writer, tensors));
    NL_TRY(nl_check_space(context, path, writer->expected));
    NL_TRY(nl_writer_open(context, path, overwrite, &writer->writer));
    if (nl_writer_goes_back(writer->writer))
        NL_TRY(prepare_checksums(writer, tensors));
    NL_TRY(print_header(writer, metadata, tensors, &text));
    text_size = strlen(text);
    padded = (text_size + 7) / 8 * 8;
    nl_put_little(length, sizeof(length), padded);
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

/* The bytes may be of several tensors, or a part of one. */
static void add_to_checksums(nl_safetensors_writer *writer, const uint8_t *data, int64_t bytes)
{
    int64_t at = writer->written;
    while (bytes > 0) {
        int64_t left = writer->ends[writer->current] - at, now = NL_MIN(bytes, left);
        writer->crc = nl_crc32(writer->crc, NULL, data, now);
        nl_checksum_print(writer->crc,
                          writer->checksums + NL_CHECKSUM_DIGITS * (writer->current + 1));
        if (now == left) {
            writer->current++;
            writer->crc = 0;
        }
        at += now;
        data += now;
        bytes -= now;
    }
}

nl_status nl_safetensors_write(nl_safetensors_writer *writer, const void *data, int64_t bytes)
{
    if (bytes < 0 || bytes > writer->expected - writer->written)
        return nl_fail(writer->context, NL_ERROR_INTERNAL,
                       "%s: %lld bytes more than the declared tensors have", writer->path,
                       (long long)(bytes - (writer->expected - writer->written)));
    NL_CHECK(nl_writer_write(writer->writer, data, (size_t)bytes));
    if (writer->checksums)
        add_to_checksums(writer, data, bytes);
    writer->written += bytes;
    return NL_OK;
}

nl_status nl_safetensors_commit(nl_safetensors_writer **writer)
{
    nl_safetensors_writer *this = *writer;
    nl_status status = NL_OK;
    if (this->written != this->expected)
        status = nl_fail(this->context, NL_ERROR_INTERNAL,
                         "%s: %lld of %lld bytes of tensors were written", this->path,
                         (long long)this->written, (long long)this->expected);
    if (status == NL_OK && this->checksums)
        status = nl_writer_overwrite(this->writer, 8 + (int64_t)sizeof(BEFORE_CHECKSUMS) - 1,
                                     this->checksums, strlen(this->checksums));
    if (status == NL_OK)
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
    nl_free(this->context, this->ends);
    nl_free(this->context, this->checksums);
    nl_free(this->context, this);
    *writer = NULL;
}
