/* SPDX-License-Identifier: MIT */
/* Twins of the parameter table, and files that hold several. */
#include <stdio.h>
#include <string.h>

#include "nl_dit_train.h"
#include "params.h"

nl_status nl_dit_create_flat(nl_device *device, const nl_config *config, nl_dit **twin)
{
    nl_status status = nl_dit_create_as(device, config, true, twin);
    if (status != NL_OK)
        return status;
    status = NL_OP(device, zero, .x = nl_dit_flat(*twin));
    if (status != NL_OK) {
        nl_dit_destroy(*twin);
        *twin = NULL;
    }
    return status;
}

nl_tensor nl_dit_flat(const nl_dit *twin)
{
    return nl_tensor_of(twin->storage, NL_F32, 1,
                        (int64_t[]){twin->storage_bytes / (int64_t)sizeof(float)});
}

static nl_segment segment_of(const nl_dit *twin, const nl_tensor *flat, const nl_tensor *model,
                             float rate)
{
    return (nl_segment){.first = (const float *)flat->data - (const float *)twin->storage,
                        .count = nl_tensor_count(flat),
                        .weights = model->data,
                        .dtype = model->dtype,
                        .decay = flat->ndim > 1,
                        .rate = rate};
}

nl_status nl_dit_segments(const nl_dit *dit, const nl_dit *twin, float query_rate,
                          nl_segment **segments, int *count)
{
    nl_segment *next;
    NL_CHECK(NL_NEW_ARRAY(dit->device->context, "segments", 2 * ((int64_t)dit->param_count + 1),
                          segments));
    next = *segments;
    for (int i = 0; i < dit->param_count; i++) {
        const nl_tensor *flat = twin->params[i].tensor, *model = dit->params[i].tensor;
        int64_t queries = dit->params[i].query_rows;
        nl_tensor rows[2][2] = {{*flat, *model}};
        if (nl_param_is_adaln(&dit->params[i]))
            continue;
        if (queries)
            for (int j = 0; j < 2; j++) {
                const nl_tensor *whole = j ? model : flat;
                rows[0][j] = nl_tensor_rows(whole, 0, queries);
                rows[1][j] = nl_tensor_rows(whole, queries, whole->shape[0] - queries);
            }
        *next++ = segment_of(twin, &rows[0][0], &rows[0][1], queries ? query_rate : 1);
        if (queries)
            *next++ = segment_of(twin, &rows[1][0], &rows[1][1], 1);
    }
    *next++ = segment_of(twin, &twin->adaln_weight, &dit->adaln_weight, 1);
    *next++ = segment_of(twin, &twin->adaln_bias, &dit->adaln_bias, 1);
    *count = (int)(next - *segments);
    return NL_OK;
}

nl_status nl_dit_scale_queries(nl_dit *twin, float scale)
{
    nl_status status;
    nl_staging staging;
    NL_TRY(nl_staging_open(twin, &staging));
    for (int i = 0; i < twin->param_count; i++) {
        const nl_param *param = &twin->params[i];
        if (!param->query_rows)
            continue;
        nl_tensor rows = nl_tensor_rows(param->tensor, 0, param->query_rows);
        NL_TRY(nl_staging_download(twin->device, &rows, &staging));
        for (int64_t j = 0; j < nl_tensor_count(&rows); j++)
            staging.values[j] *= scale;
        NL_TRY(nl_staging_upload(twin->device, &rows, &staging));
    }
cleanup:
    nl_staging_close(&staging);
    return status;
}

nl_status nl_dit_copy(const nl_dit *from, nl_dit *to)
{
    nl_status status;
    nl_staging staging;
    NL_TRY(nl_staging_open(to, &staging));
    for (int i = 0; i < to->param_count; i++) {
        NL_TRY(nl_staging_download(from->device, from->params[i].tensor, &staging));
        NL_TRY(nl_staging_upload(to->device, to->params[i].tensor, &staging));
    }
cleanup:
    nl_staging_close(&staging);
    return status;
}

/* ---- Files */

typedef struct nl_named_file {
    const nl_dit_named *models;
    int count, param_count; /* of models; of parameters of each */
    nl_staging staging;
} nl_named_file;

static nl_status read_named(void *user, int64_t source, float *values)
{
    nl_named_file *file = user;
    const nl_dit *dit = file->models[source / file->param_count].dit;
    const nl_tensor *tensor = dit->params[source % file->param_count].tensor;
    nl_status status = nl_staging_download(dit->device, tensor, &file->staging);
    if (status == NL_OK)
        memcpy(values, file->staging.values, (size_t)nl_tensor_count(tensor) * sizeof(float));
    return status;
}

/* saved and names have room for all parameters of all models. */
static void list_named(const nl_named_file *file, nl_saved *saved, char (*names)[NL_NAME_SIZE])
{
    for (int i = 0; i < file->count * file->param_count; i++) {
        const nl_dit_named *model = &file->models[i / file->param_count];
        const nl_param *param = &model->dit->params[i % file->param_count];
        snprintf(names[i], NL_NAME_SIZE, "%s%s", model->prefix, param->name);
        saved[i] = (nl_saved){.name = names[i], .dtype = NL_F32, .ndim = param->ndim, .source = i};
        memcpy(saved[i].shape, param->shape, sizeof(param->shape));
    }
}

/* {"nalagen", json, metadata..., NULL}, allocated. */
static nl_status joined_metadata(nl_context *context, const char *json, const char *const *metadata,
                                 const char ***joined)
{
    int64_t count = 0;
    while (metadata && metadata[count])
        count++;
    NL_CHECK(NL_NEW_ARRAY(context, "metadata", count + 3, joined));
    (*joined)[0] = "nalagen";
    (*joined)[1] = json;
    for (int64_t i = 0; i < count; i++)
        (*joined)[2 + i] = metadata[i];
    (*joined)[2 + count] = NULL;
    return NL_OK;
}

nl_status nl_dit_save_named(const nl_dit_named *models, int count, const char *path, bool overwrite,
                            const char *const *metadata)
{
    nl_status status;
    const nl_dit *first = models[0].dit;
    nl_context *context = first->device->context;
    nl_named_file file = {.models = models, .count = count, .param_count = first->param_count};
    int64_t tensors = (int64_t)count * first->param_count;
    void *names = NULL;
    nl_saved *saved = NULL;
    const char **joined = NULL;
    char *json = NULL;
    NL_TRY(nl_staging_open(first, &file.staging));
    NL_TRY(NL_NEW_ARRAY(context, "names of tensors", tensors, &saved));
    NL_TRY(NL_NEW_SIZED(context, "names of tensors", tensors, NL_NAME_SIZE, &names));
    list_named(&file, saved, names);
    NL_TRY(nl_config_print(context, &first->config, &json));
    NL_TRY(joined_metadata(context, json, metadata, &joined));
    NL_TRY(nl_save_tensors(context, path, overwrite, joined, saved, tensors,
                           &(nl_save_source){read_named, &file, file.staging.count}));
cleanup:
    nl_staging_close(&file.staging);
    nl_free(context, joined);
    nl_free(context, json);
    nl_free(context, names);
    nl_free(context, saved);
    return status;
}

nl_status nl_dit_load_named(nl_dit *dit, const nl_checkpoint *checkpoint, const char *prefix)
{
    nl_status status;
    nl_staging staging;
    char name[NL_NAME_SIZE], expected[128], found[128];
    NL_TRY(nl_staging_open(dit, &staging));
    for (int i = 0; i < dit->param_count; i++) {
        const nl_param *param = &dit->params[i];
        snprintf(name, sizeof(name), "%s%s", prefix, param->name);
        const nl_entry *entry = nl_checkpoint_find(checkpoint, name);
        if (!entry || entry->ndim != param->ndim ||
            memcmp(entry->shape, param->shape, (size_t)param->ndim * sizeof(int64_t)) != 0)
            NL_TRY(nl_fail(dit->device->context, NL_ERROR_INPUT,
                           "%s: tensor %s: expected %s, found %s", checkpoint->path, name,
                           nl_shape_text(param->ndim, param->shape, expected, sizeof(expected)),
                           entry ? nl_shape_text(entry->ndim, entry->shape, found, sizeof(found))
                                 : "none"));
        NL_TRY(nl_entry_read(checkpoint, entry, staging.values));
        NL_TRY(nl_staging_upload(dit->device, param->tensor, &staging));
    }
cleanup:
    nl_staging_close(&staging);
    return status;
}
