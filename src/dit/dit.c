#include <math.h>
#include <stdio.h>
#include <string.h>

#include "nl_random.h"
#include "params.h"

static nl_status upload_position(nl_dit *dit)
{
    nl_status status;
    nl_device *device = dit->device;
    const nl_config *config = &dit->config;
    void *table = NULL;
    NL_TRY(nl_alloc_array(device->context, "the position table", nl_tensor_count(&dit->position),
                          sizeof(float), &table));
    nl_position_table(config->input_height / config->patch_size,
                      config->input_width / config->patch_size, config->hidden_size, table);
    NL_TRY(device->ops->upload(device, dit->position.data, table, nl_tensor_bytes(&dit->position)));
    NL_TRY(device->ops->sync(device));
cleanup:
    nl_free(device->context, table);
    return status;
}

nl_status nl_dit_create(nl_device *device, const nl_config *config, nl_dit **result)
{
    nl_status status;
    nl_context *context = device->context;
    void *memory = NULL;
    nl_dit *dit = NULL;
    *result = NULL;
    NL_TRY(nl_config_check(context, "configuration", config));
    NL_TRY(nl_alloc_zero(context, "a model", sizeof(*dit), &memory));
    dit = memory;
    dit->device = device;
    NL_TRY(nl_config_copy(context, config, &dit->config));
    NL_TRY(nl_params_list(dit));
    NL_TRY(nl_params_place(dit));
    NL_TRY(upload_position(dit));
    *result = dit;
    dit = NULL;
cleanup:
    nl_dit_destroy(dit);
    return status;
}

void nl_dit_destroy(nl_dit *dit)
{
    if (!dit)
        return;
    nl_context *context = dit->device->context;
    if (dit->storage)
        dit->device->ops->free(dit->device, dit->storage, dit->storage_bytes);
    nl_free(context, dit->params);
    nl_free(context, dit->blocks);
    nl_config_free(context, &dit->config);
    nl_free(context, dit);
}

int64_t nl_dit_parameter_count(const nl_dit *dit)
{
    int64_t count = 0;
    for (int i = 0; i < dit->param_count; i++)
        count += nl_tensor_count(dit->params[i].tensor);
    return count;
}

/* ---- Filling */

/* Host memory for one parameter on its way to or from the device. */
typedef struct nl_staging {
    nl_context *context;
    float *values; /* as many as the largest parameter has */
    void *packed;  /* the same in another type */
} nl_staging;

static nl_status staging_open(const nl_dit *dit, nl_staging *staging)
{
    nl_status status;
    void *memory = NULL;
    int64_t count = 1;
    *staging = (nl_staging){.context = dit->device->context};
    for (int i = 0; i < dit->param_count; i++)
        count = NL_MAX(count, nl_tensor_count(dit->params[i].tensor));
    NL_TRY(
        nl_alloc_array(staging->context, "a parameter on the host", count, sizeof(float), &memory));
    staging->values = memory;
    NL_TRY(nl_alloc_array(staging->context, "a parameter on the host", count, sizeof(float),
                          &staging->packed));
cleanup:
    return status;
}

static void staging_close(nl_staging *staging)
{
    nl_free(staging->context, staging->values);
    nl_free(staging->context, staging->packed);
}

static nl_status upload(const nl_dit *dit, const nl_tensor *tensor, nl_staging *staging)
{
    nl_device *device = dit->device;
    nl_convert_from_float(staging->values, nl_tensor_count(tensor), tensor->dtype, staging->packed);
    nl_status status =
        device->ops->upload(device, tensor->data, staging->packed, nl_tensor_bytes(tensor));
    return status == NL_OK ? device->ops->sync(device) : status; /* packed is used again */
}

static nl_status download(const nl_dit *dit, const nl_tensor *tensor, nl_staging *staging)
{
    nl_device *device = dit->device;
    nl_status status =
        device->ops->download(device, staging->packed, tensor->data, nl_tensor_bytes(tensor));
    if (status == NL_OK)
        nl_convert_to_float(staging->packed, tensor->dtype, nl_tensor_count(tensor),
                            staging->values);
    return status;
}

/* The table of positions is computed; one in the file has to be one all the same: [1, T, D] for
 * this grid or another square one. */
static bool is_position_table(const nl_dit *dit, const nl_entry *entry)
{
    int64_t tokens = entry->ndim >= 2 ? entry->shape[entry->ndim - 2] : 0;
    int64_t side = llround(sqrt((double)tokens));
    return (entry->ndim == 2 || (entry->ndim == 3 && entry->shape[0] == 1)) &&
           entry->shape[entry->ndim - 1] == dit->config.hidden_size && tokens > 0 &&
           (tokens == nl_config_tokens(&dit->config) || side * side == tokens);
}

/* Names every tensor that is missing, misshapen or not expected. */
static nl_status check_tensors(const nl_dit *dit, const nl_checkpoint *checkpoint)
{
    nl_status status;
    nl_context *context = checkpoint->context;
    nl_problems problems = {0};
    void *memory = NULL;
    char wanted[128], found[128];
    NL_TRY(nl_alloc_zero(context, "marks", (size_t)checkpoint->count, &memory));
    bool *expected = memory;
    for (int i = 0; i < dit->param_count; i++) {
        const nl_param *param = &dit->params[i];
        const nl_entry *entry = nl_checkpoint_find(checkpoint, param->name);
        nl_shape_text(param->ndim, param->shape, wanted, sizeof(wanted));
        if (!entry) {
            nl_problem(&problems, "%s %s is missing", param->name, wanted);
            continue;
        }
        expected[entry - checkpoint->entries] = true;
        nl_shape_text(entry->ndim, entry->shape, found, sizeof(found));
        if (entry->ndim != param->ndim ||
            memcmp(entry->shape, param->shape, (size_t)param->ndim * sizeof(int64_t)) != 0)
            nl_problem(&problems, "%s: expected %s, found %s", param->name, wanted, found);
    }
    for (int64_t i = 0; i < checkpoint->count; i++) {
        const nl_entry *entry = &checkpoint->entries[i];
        nl_shape_text(entry->ndim, entry->shape, found, sizeof(found));
        if (strcmp(entry->name, "pos_embed") == 0) {
            if (!is_position_table(dit, entry))
                nl_problem(&problems, "pos_embed: expected [1, %lld, %d], found %s",
                           (long long)nl_config_tokens(&dit->config), dit->config.hidden_size,
                           found);
        } else if (!expected[i]) {
            nl_problem(&problems, "%s %s is not expected", entry->name, found);
        }
    }
    if (problems.count > 0) {
        char name[64];
        status = nl_fail(context, NL_ERROR_INPUT, "%s: %d tensors do not fit %s:%s",
                         checkpoint->path, problems.count,
                         nl_config_name(&dit->config, name, sizeof(name)), problems.text);
    }
cleanup:
    nl_free(context, memory);
    return status;
}

nl_status nl_dit_load(nl_dit *dit, const nl_checkpoint *checkpoint)
{
    nl_status status;
    nl_staging staging = {.context = dit->device->context};
    NL_TRY(check_tensors(dit, checkpoint));
    NL_TRY(staging_open(dit, &staging));
    for (int i = 0; i < dit->param_count; i++) {
        const nl_entry *entry = nl_checkpoint_find(checkpoint, dit->params[i].name);
        NL_TRY(nl_entry_read(checkpoint, entry, staging.values));
        NL_TRY(upload(dit, dit->params[i].tensor, &staging));
    }
cleanup:
    staging_close(&staging);
    return status;
}

/* Initial values of the parameter with this row in the table. */
static void initial_values(const nl_param *param, uint64_t row, uint64_t seed, float *values)
{
    int64_t count = nl_tensor_count(param->tensor), rows = param->shape[0];
    int64_t fan_in = param->ndim > 1 ? count / rows : 0;
    double bound = param->init == NL_INIT_XAVIER ? sqrt(6.0 / (double)(fan_in + rows))
                                                 : 1 / sqrt(5.0 * 5.0); /* lepe's fan in */
    for (int64_t i = 0; i < count; i += 4) {
        uint32_t words[4];
        float four[4] = {0};
        if (param->init == NL_INIT_NORMAL_002)
            nl_philox_normal4(seed, row, NL_STREAM_INIT, (uint64_t)i, four);
        else if (param->init == NL_INIT_XAVIER || param->init == NL_INIT_LEPE)
            nl_philox(seed, row, NL_STREAM_INIT, (uint64_t)i, words);
        for (int j = 0; j < 4 && i + j < count; j++) {
            if (param->init == NL_INIT_ZERO || param->init == NL_INIT_ONE)
                values[i + j] = param->init == NL_INIT_ONE;
            else if (param->init == NL_INIT_NORMAL_002)
                values[i + j] = 0.02f * four[j];
            else
                values[i + j] = (float)(bound * (words[j] * 0x1p-31 + 0x1p-32 - 1));
        }
    }
}

nl_status nl_dit_initialize(nl_dit *dit, uint64_t seed)
{
    nl_status status;
    nl_staging staging;
    NL_TRY(staging_open(dit, &staging));
    for (int i = 0; i < dit->param_count; i++) {
        initial_values(&dit->params[i], (uint64_t)i, seed, staging.values);
        NL_TRY(upload(dit, dit->params[i].tensor, &staging));
    }
cleanup:
    staging_close(&staging);
    return status;
}

/* ---- Saving */

static nl_dtype saved_dtype(const nl_param *param, nl_dtype matrix_dtype)
{
    if (matrix_dtype == NL_I8)
        return param->matrix && strncmp(param->name, "blocks.", 7) == 0 ? NL_I8 : NL_BF16;
    return param->ndim > 1 ? matrix_dtype : NL_F32;
}

/* The tensors of the file in order: parameters, each int8 one followed by its scales. */
static nl_status list_tensors(const nl_dit *dit, nl_dtype matrix_dtype, nl_tensor_header **headers,
                              char (**scale_names)[112], int64_t *count)
{
    nl_status status;
    nl_context *context = dit->device->context;
    void *memory = NULL;
    *count = 0;
    NL_TRY(nl_alloc_zero(context, "names of tensors",
                         2 * (size_t)dit->param_count * sizeof(**headers), &memory));
    *headers = memory;
    NL_TRY(nl_alloc_zero(context, "names of tensors",
                         (size_t)dit->param_count * sizeof(**scale_names), &memory));
    *scale_names = memory;
    for (int i = 0; i < dit->param_count; i++) {
        const nl_param *param = &dit->params[i];
        nl_tensor_header *header = &(*headers)[(*count)++];
        *header =
            (nl_tensor_header){param->name, saved_dtype(param, matrix_dtype), param->ndim, {0}};
        memcpy(header->shape, param->shape, sizeof(header->shape));
        if (header->dtype != NL_I8)
            continue;
        char *name = (*scale_names)[i];
        snprintf(name, sizeof((*scale_names)[i]), "%s.scale", param->name);
        (*headers)[(*count)++] = (nl_tensor_header){name, NL_F32, 1, {param->shape[0]}};
    }
cleanup:
    return status;
}

static nl_status check_values(const nl_dit *dit, const nl_param *param, const float *values,
                              nl_dtype dtype)
{
    int64_t count = nl_tensor_count(param->tensor);
    for (int64_t i = 0; i < count; i++)
        if (!isfinite(values[i]) || (dtype == NL_F16 && !(fabsf(values[i]) < 65520)))
            return nl_fail(dit->device->context, NL_ERROR_NOT_FINITE,
                           "parameter %s: %g cannot be stored as %s", param->name, values[i],
                           nl_dtype_name(dtype));
    return NL_OK;
}

static nl_status save_param(const nl_dit *dit, const nl_param *param, nl_dtype dtype,
                            nl_staging *staging, nl_safetensors_writer *writer)
{
    nl_status status;
    void *scale = NULL;
    int64_t count = nl_tensor_count(param->tensor), rows = param->shape[0];
    NL_TRY(download(dit, param->tensor, staging));
    NL_TRY(check_values(dit, param, staging->values, dtype));
    if (dtype == NL_I8) {
        NL_TRY(nl_alloc_array(staging->context, "row scales", rows, sizeof(float), &scale));
        nl_quantize_rows(staging->values, rows, count / rows, staging->packed, scale);
    } else {
        nl_convert_from_float(staging->values, count, dtype, staging->packed);
    }
    NL_TRY(nl_safetensors_write(writer, staging->packed, count * nl_dtype_size(dtype)));
    if (scale)
        NL_TRY(nl_safetensors_write(writer, scale, rows * (int64_t)sizeof(float)));
cleanup:
    nl_free(staging->context, scale);
    return status;
}

nl_status nl_dit_save(const nl_dit *dit, const char *path, bool overwrite, nl_dtype matrix_dtype)
{
    nl_status status;
    nl_context *context = dit->device->context;
    nl_staging staging = {.context = context};
    nl_tensor_header *headers = NULL;
    char(*scale_names)[112] = NULL;
    char *json = NULL;
    int64_t count;
    nl_safetensors_writer *writer = NULL;
    if (matrix_dtype != NL_F32 && matrix_dtype != NL_BF16 && matrix_dtype != NL_F16 &&
        matrix_dtype != NL_I8)
        return nl_fail(context, NL_ERROR_USAGE,
                       "%s: weights are stored as F32, BF16, F16 or I8, not %s", path,
                       nl_dtype_name(matrix_dtype));
    NL_TRY(staging_open(dit, &staging));
    NL_TRY(nl_config_print(context, &dit->config, &json));
    NL_TRY(list_tensors(dit, matrix_dtype, &headers, &scale_names, &count));
    NL_TRY(nl_safetensors_create(context, path, overwrite,
                                 (const char *const[]){"nalagen", json, NULL}, headers, count,
                                 &writer));
    for (int i = 0; i < dit->param_count; i++)
        NL_TRY(save_param(dit, &dit->params[i], saved_dtype(&dit->params[i], matrix_dtype),
                          &staging, writer));
    NL_TRY(nl_safetensors_commit(&writer));
cleanup:
    nl_safetensors_abort(&writer);
    nl_free(context, json);
    nl_free(context, headers);
    nl_free(context, scale_names);
    staging_close(&staging);
    return status;
}
