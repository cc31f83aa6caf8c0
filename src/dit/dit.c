/* SPDX-License-Identifier: MIT */
/* A backbone's life: created, checked against a file, loaded from it or initialised, copied to and from the host. */
#include <math.h>
#include <stdio.h>
#include <string.h>

#include "frozen.h"
#include "nl_random.h"
#include "nl_thread.h"
#include "params.h"

/* The table of sines and cosines, or the checkpoint's own. */
static nl_status upload_position(nl_dit *dit, const nl_checkpoint *checkpoint)
{
    nl_status status;
    nl_device *device = dit->device;
    const nl_config *config = &dit->config;
    float *table = NULL;
    NL_TRY(NL_NEW_ARRAY(device->context, "the position table", nl_tensor_count(&dit->position),
                        &table));
    if (checkpoint)
        NL_TRY(nl_entry_read(checkpoint, nl_checkpoint_find(checkpoint, "pos_embed"), table));
    else
        nl_position_table(config->input_height / config->patch_size,
                          config->input_width / config->patch_size, config->hidden_size, table);
    NL_TRY(device->ops->upload(device, dit->position.data, table, nl_tensor_bytes(&dit->position)));
    NL_TRY(device->ops->sync(device));
cleanup:
    nl_free(device->context, table);
    return status;
}

/* Of the model's grid; nothing where it has none. */
static nl_status upload_rope(nl_dit *dit)
{
    nl_status status = NL_OK;
    nl_device *device = dit->device;
    const nl_config *config = &dit->config;
    float *table = NULL;
    if (!dit->rope.data)
        return NL_OK;
    NL_TRY(
        NL_NEW_ARRAY(device->context, "the table of angles", nl_tensor_count(&dit->rope), &table));
    nl_rope_table(config->input_height / config->patch_size,
                  config->input_width / config->patch_size, dit->rope.shape[1], table);
    NL_TRY(device->ops->upload(device, dit->rope.data, table, nl_tensor_bytes(&dit->rope)));
    NL_TRY(device->ops->sync(device));
cleanup:
    nl_free(device->context, table);
    return status;
}

nl_status nl_dit_create(nl_device *device, const nl_config *config, nl_dit **dit)
{
    return nl_dit_create_as(device, config, false, dit);
}

nl_status nl_dit_create_as(nl_device *device, const nl_config *config, bool flat, nl_dit **result)
{
    nl_status status;
    nl_context *context = device->context;
    nl_dit *dit = NULL;
    *result = NULL;
    NL_TRY(nl_config_check(context, "configuration", config));
    if (flat && device->fp8)
        NL_TRY(nl_fail(context, NL_ERROR_USAGE,
                       "dtype fp8 is for networks that are run forward; training and likelihoods, "
                       "which need gradients, take auto, f32 or bf16"));
    NL_TRY(NL_NEW(context, "a model", &dit));
    dit->device = device;
    dit->flat = flat;
    NL_TRY(nl_config_copy(context, config, &dit->config));
    NL_TRY(nl_params_list(dit));
    NL_TRY(nl_params_place(dit));
    if (!flat) {
        NL_TRY(upload_position(dit, NULL));
        NL_TRY(upload_rope(dit));
    }
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

nl_status nl_staging_open(const nl_dit *dit, nl_staging *staging)
{
    nl_status status;
    int64_t rows = 1;
    *staging = (nl_staging){.context = dit->device->context, .count = 1};
    for (int i = 0; i < dit->param_count; i++) {
        staging->count = NL_MAX(staging->count, nl_tensor_count(dit->params[i].tensor));
        rows = NL_MAX(rows, dit->params[i].shape[0]);
    }
    NL_TRY(NL_NEW_ARRAY(staging->context, "factors of rows", rows, &staging->scale));
    NL_TRY(NL_NEW_ARRAY(staging->context, "a parameter on the host", staging->count,
                        &staging->values));
    NL_TRY(NL_NEW_SIZED(staging->context, "a parameter on the host", staging->count, sizeof(float),
                        &staging->packed));
cleanup:
    return status;
}

void nl_staging_close(nl_staging *staging)
{
    nl_free(staging->context, staging->values);
    nl_free(staging->context, staging->packed);
    nl_free(staging->context, staging->scale);
}

nl_status nl_staging_upload(nl_device *device, const nl_tensor *tensor, nl_staging *staging)
{
    nl_status status;
    int64_t count = nl_tensor_count(tensor), rows = tensor->shape[0];
    if (tensor->dtype == NL_F8)
        nl_quantize(staging->values, rows, count / rows, staging->packed, staging->scale);
    else
        nl_convert_from_float(staging->values, count, tensor->dtype, staging->packed);
#pragma omp critical(nl_staging)
    {
        status =
            device->ops->upload(device, tensor->data, staging->packed, nl_tensor_bytes(tensor));
        if (status == NL_OK && tensor->dtype == NL_F8)
            status = device->ops->upload(device, tensor->scale, staging->scale,
                                         rows * (int64_t)sizeof(float));
        if (status == NL_OK)
            status = device->ops->sync(device); /* packed is used again */
    }
    return status;
}

/* staging->values to a parameter of a model. */
static nl_status upload_param(const nl_dit *dit, const nl_param *param, nl_staging *staging)
{
    int64_t count = nl_tensor_count(param->tensor), rows = param->shape[0];
    if (dit->device->fp8 && param->row_norm) {
        double largest = 0;
        for (int64_t row = 0; row < rows; row++) {
            double squares = 0;
            for (int64_t i = row * (count / rows); i < (row + 1) * (count / rows); i++)
                squares += (double)staging->values[i] * staging->values[i];
            largest = NL_MAX(largest, squares);
        }
        *param->row_norm = (float)sqrt(largest);
    }
    return nl_staging_upload(dit->device, param->tensor, staging);
}

nl_status nl_staging_download(nl_device *device, const nl_tensor *tensor, nl_staging *staging)
{
    nl_status status =
        device->ops->download(device, staging->packed, tensor->data, nl_tensor_bytes(tensor));
    int64_t count = nl_tensor_count(tensor), rows = tensor->shape[0];
    if (status == NL_OK && tensor->dtype == NL_F8)
        status = device->ops->download(device, staging->scale, tensor->scale,
                                       rows * (int64_t)sizeof(float));
    if (status == NL_OK && tensor->dtype == NL_F8)
        nl_dequantize(staging->packed, staging->scale, rows, count / rows, staging->values);
    else if (status == NL_OK)
        nl_convert_to_float(staging->packed, tensor->dtype, count, staging->values);
    return status;
}

/* Where the table of positions is computed, one in the file has to be one all the same: [1, T, D] for
 * this grid or another square one. One that is the file's own is of this grid. */
static bool is_position_table(const nl_dit *dit, const nl_entry *entry)
{
    int64_t tokens = entry->ndim >= 2 ? entry->shape[entry->ndim - 2] : 0;
    int64_t side = llround(sqrt((double)tokens));
    return (entry->ndim == 2 || (entry->ndim == 3 && entry->shape[0] == 1)) &&
           entry->shape[entry->ndim - 1] == dit->config.hidden_size && tokens > 0 &&
           (tokens == nl_config_tokens(&dit->config) ||
            (side * side == tokens && !dit->config.stored_position));
}

/* The name in the parameter table, and in brackets the file's when that is another. */
static const char *spelled(const nl_checkpoint *checkpoint, const nl_param *param,
                           char text[2 * NL_NAME_SIZE])
{
    char other[NL_NAME_SIZE] = "";
    if (checkpoint->spelling == nl_spelling_diffusers)
        nl_diffusers_name(param->name, 0, 0, other);
    snprintf(text, 2 * NL_NAME_SIZE, other[0] ? "%s (%s)" : "%s", param->name, other);
    return text;
}

static nl_status check_tensors(const nl_dit *dit, const nl_checkpoint *checkpoint)
{
    nl_status status;
    nl_context *context = checkpoint->context;
    nl_problems problems = {0};
    bool *expected = NULL;
    char wanted[128], found[128], name[2 * NL_NAME_SIZE];
    NL_TRY(NL_NEW_ZEROS(context, "marks", checkpoint->count, &expected));
    for (int i = 0; i < dit->param_count; i++) {
        const nl_param *param = &dit->params[i];
        const nl_entry *entry = nl_checkpoint_find(checkpoint, param->name);
        nl_shape_text(param->ndim, param->shape, wanted, sizeof(wanted));
        if (!entry) {
            nl_problem(&problems, "%s %s is missing", spelled(checkpoint, param, name), wanted);
            continue;
        }
        expected[entry - checkpoint->entries] = true;
        nl_shape_text(entry->ndim, entry->shape, found, sizeof(found));
        if (entry->ndim != param->ndim ||
            memcmp(entry->shape, param->shape, (size_t)param->ndim * sizeof(int64_t)) != 0)
            nl_problem(&problems, "%s: expected %s, found %s", spelled(checkpoint, param, name),
                       wanted, found);
    }
    for (int64_t i = 0; i < checkpoint->count; i++) {
        const nl_entry *entry = &checkpoint->entries[i];
        nl_shape_text(entry->ndim, entry->shape, found, sizeof(found));
        if (strcmp(entry->name, "pos_embed") == 0) {
            if (!is_position_table(dit, entry))
                nl_problem(&problems, "pos_embed: expected [1, %lld, %d], found %s%s",
                           (long long)nl_config_tokens(&dit->config), dit->config.hidden_size,
                           found,
                           dit->config.stored_position
                               ? "; it is not the table of sines and cosines, so that the model "
                                 "has this size alone"
                               : "");
        } else if (!expected[i]) {
            nl_problem(&problems, "%s %s is not expected", entry->name, found);
        }
    }
    if (dit->config.stored_position && !nl_checkpoint_find(checkpoint, "pos_embed"))
        nl_problem(&problems, "pos_embed is missing (stored_position)");
    if (problems.count > 0) {
        status = nl_fail(context, NL_ERROR_INPUT, "%s: %d %s not fit %s:%s", checkpoint->path,
                         problems.count, nl_plural(problems.count, "tensor does", "tensors do"),
                         nl_config_name(&dit->config, name, sizeof(name)), problems.text);
    }
cleanup:
    nl_free(context, expected);
    return status;
}

nl_status nl_dit_check(const nl_dit *dit, const nl_checkpoint *checkpoint)
{
    NL_CHECK(check_tensors(dit, checkpoint));
    if (dit->config.one_step != NL_ONE_STEP_BESIDE)
        return NL_OK;
    if (!checkpoint->beside)
        return nl_fail(checkpoint->context, NL_ERROR_INPUT,
                       "%s: the tensors \"one_step\" are missing, which its configuration says are "
                       "beside the others",
                       checkpoint->path);
    return check_tensors(dit, checkpoint->beside);
}

nl_status nl_dit_load(nl_dit *dit, const nl_checkpoint *checkpoint)
{
    enum { READERS = 4 }; /* reading and converting takes longer than uploading */
    int worst = nl_dit_check(dit, checkpoint);
    if (worst == NL_OK && dit->config.stored_position)
        worst = upload_position(dit, checkpoint);
    if (worst != NL_OK)
        return worst;
    int team = nl_team(dit->device->context, NL_MIN(dit->device->threads, READERS));
#pragma omp parallel num_threads(team) reduction(max : worst)
    {
        nl_staging staging;
        worst = nl_staging_open(dit, &staging);
#pragma omp for schedule(dynamic)
        for (int i = 0; i < dit->param_count; i++) {
            const nl_param *param = &dit->params[i];
            const nl_entry *entry = nl_checkpoint_find(checkpoint, param->name);
            if (worst == NL_OK)
                worst = nl_entry_read(checkpoint, entry, staging.values);
            if (worst == NL_OK)
                worst = upload_param(dit, param, &staging);
        }
        nl_staging_close(&staging);
    }
    return worst;
}

/* What is worth a copy: the weights of products over all tokens. */
nl_status nl_dit_freeze(nl_dit *dit)
{
    nl_status status;
    const nl_tensor **weights = NULL;
    int count = 0;
    NL_TRY(NL_NEW_ARRAY(dit->device->context, "weights", dit->param_count, &weights));
    for (int i = 0; i < dit->param_count; i++)
        if (dit->params[i].matrix && dit->params[i].row_norm && dit->params[i].ndim == 2)
            weights[count++] = dit->params[i].tensor;
    NL_TRY(nl_freeze(dit->device, weights, count));
cleanup:
    nl_free(dit->device->context, weights);
    return status;
}

/* XAVIER_SMALL of the part of a weight that this row belongs to. */
static double small_bound(const nl_param *param, int64_t row, int64_t fan_in)
{
    int part = 0;
    for (; param->parts[part] && row >= param->parts[part]; part++)
        row -= param->parts[part];
    int64_t rows = param->parts[part] ? param->parts[part] : param->shape[0];
    return exp2(-2.5) * sqrt(6.0 / (double)(fan_in + rows));
}

/* Initial values of the parameter with this row in the table. */
static void initial_values(const nl_param *param, uint64_t row, uint64_t seed, float *values)
{
    int64_t count = nl_tensor_count(param->tensor), rows = param->shape[0];
    int64_t fan_in = param->ndim > 1 ? count / rows : 0;
    double bound = param->init == NL_INIT_XAVIER ? sqrt(6.0 / (double)(fan_in + rows))
                   : param->init == NL_INIT_MIX  ? 1 / sqrt(3.0 * 3.0)
                                                 : 1 / sqrt(5.0 * 5.0); /* lepe's fan in */
    bool drawn = param->init != NL_INIT_ZERO && param->init != NL_INIT_ONE &&
                 param->init != NL_INIT_IDENTITY && param->init != NL_INIT_VALUE;
    for (int64_t i = 0; i < count; i += 4) {
        uint32_t words[4];
        float four[4] = {0};
        if (param->init == NL_INIT_NORMAL_002)
            nl_philox_normal4(seed, row, NL_STREAM_INIT, (uint64_t)i, four);
        else if (drawn)
            nl_philox(seed, row, NL_STREAM_INIT, (uint64_t)i, words);
        for (int j = 0; j < 4 && i + j < count; j++) {
            if (param->init == NL_INIT_XAVIER_SMALL)
                bound = small_bound(param, (i + j) / fan_in, fan_in);
            if (param->init == NL_INIT_IDENTITY) /* fan_in: its taps; 0 of the bias */
                values[i + j] = fan_in && (i + j) % fan_in == fan_in / 2;
            else if (param->init == NL_INIT_VALUE)
                values[i + j] = param->value;
            else if (!drawn)
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
    NL_TRY(nl_staging_open(dit, &staging));
    for (int i = 0; i < dit->param_count; i++) {
        NL_TRY(nl_check_cancelled(dit->device->context));
        initial_values(&dit->params[i], (uint64_t)i, seed, staging.values);
        NL_TRY(upload_param(dit, &dit->params[i], &staging));
    }
cleanup:
    nl_staging_close(&staging);
    return status;
}
