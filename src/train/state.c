/* SPDX-License-Identifier: MIT */
/* The training state: twins and small numbers allocated, initialised or loaded, updated, averages shown. */
#include "state.h"

#include <string.h>

enum { ALIGNMENT = 256 };

static int64_t aligned(int64_t bytes)
{
    return (bytes + ALIGNMENT - 1) / ALIGNMENT * ALIGNMENT;
}

/* The small tensors, in one allocation. */
static nl_status create_numbers(nl_train_state *state)
{
    nl_device *device = state->device;
    int64_t table = state->segment_count * (int64_t)sizeof(nl_segment);
    int64_t hyper = NL_HYPER_COLUMNS * (int64_t)sizeof(float);
    state->bytes = aligned(table) + aligned(hyper) + aligned(sizeof(nl_step_report));
    NL_CHECK(device->ops->alloc(device, "the optimiser's numbers", state->bytes, &state->memory));
    char *at = state->memory;
    state->segment_table = nl_tensor_of(at, NL_U8, 1, &table);
    at += aligned(table);
    state->hyper = nl_tensor_of(at, NL_F32, 1, (int64_t[]){NL_HYPER_COLUMNS});
    at += aligned(hyper);
    state->loss = nl_tensor_of(at + offsetof(nl_step_report, loss), NL_F32, 1, (int64_t[]){1});
    state->norm = nl_tensor_of(at + offsetof(nl_step_report, norm), NL_F32, 1, (int64_t[]){1});
    state->counter =
        nl_tensor_of(at + offsetof(nl_step_report, applied), NL_I32, 1, (int64_t[]){2});
    nl_step_report nothing = {0};
    NL_CHECK(device->ops->upload(device, state->segment_table.data, state->segments, table));
    NL_CHECK(device->ops->upload(device, state->loss.data, &nothing, sizeof(nothing)));
    return device->ops->sync(device);
}

/* Sets the weights, and starts the moving averages there. */
nl_status nl_state_start(nl_train_state *state)
{
    for (int i = 0; i < state->ema_count; i++)
        NL_CHECK(nl_dit_copy(state->master, state->ema[i]));
    return nl_state_show_weights(state);
}

nl_status nl_state_create(nl_device *device, const nl_config *config, int ema_count,
                          bool keeps_best, uint64_t seed, double query_scale, nl_train_state *state)
{
    nl_status status = NL_OK;
    *state = (nl_train_state){.device = device, .ema_count = ema_count};
    NL_TRY(nl_dit_create(device, config, &state->model));
    NL_TRY(nl_dit_create_flat(device, config, &state->master));
    NL_TRY(nl_dit_create_flat(device, config, &state->first));
    NL_TRY(nl_dit_create_flat(device, config, &state->second));
    NL_TRY(nl_dit_create_flat(device, config, &state->gradient));
    for (int i = 0; i < ema_count; i++)
        NL_TRY(nl_dit_create_flat(device, config, &state->ema[i]));
    if (keeps_best)
        NL_TRY(nl_dit_create_flat(device, config, &state->best));
    NL_TRY(nl_dit_segments(state->model, state->master, (float)query_scale, &state->segments,
                           &state->segment_count));
    NL_TRY(create_numbers(state));
    if (device->measuring) /* which has no values */
        return NL_OK;
    NL_TRY(nl_dit_initialize(state->master, seed));
    NL_TRY(nl_dit_scale_queries(state->master, (float)query_scale));
    NL_TRY(nl_state_start(state));
    return NL_OK;
cleanup:
    nl_state_free(state);
    return status;
}

void nl_state_free(nl_train_state *state)
{
    if (!state->device)
        return;
    if (state->memory)
        state->device->ops->free(state->device, state->memory, state->bytes);
    nl_free(state->device->context, state->segments);
    nl_dit_destroy(state->model);
    nl_dit_destroy(state->master);
    nl_dit_destroy(state->first);
    nl_dit_destroy(state->second);
    nl_dit_destroy(state->gradient);
    for (int i = 0; i < state->ema_count; i++)
        nl_dit_destroy(state->ema[i]);
    nl_dit_destroy(state->best);
    *state = (nl_train_state){0};
}

nl_config nl_state_fake_config(const nl_config *student)
{
    nl_config config = *student;
    config.flow_map = 0;
    config.one_step = NL_ONE_STEP_NONE;
    config.internal_guidance = 0;
    config.guided = false;
    if (config.middle_head)
        config.middle_head = NL_MIN(student->flow_map, student->depth - 1);
    return config;
}

static bool is_middle(const char *name)
{
    return !strncmp(name, "middle_layer.", strlen("middle_layer."));
}

/* Shapes follow from the classes or channels of the data; what part of a picture a sample is need not have been told,
 * and there need not have been a middle head. */
static bool may_differ(const char *name)
{
    static const char *const names[] = {
        "crop_embedder.weight", "y_embedder.embedding_table.weight", "x_embedder.proj.weight",
        "x_embedder.proj.bias", "final_layer.linear.weight",         "final_layer.linear.bias"};
    for (int i = 0; i < NL_COUNT(names); i++)
        if (!strcmp(name, names[i]))
            return true;
    return is_middle(name);
}

static bool fits(const nl_param *param, const nl_entry *entry)
{
    return entry && entry->ndim == param->ndim &&
           !memcmp(entry->shape, param->shape, (size_t)param->ndim * sizeof(int64_t));
}

static nl_status take_parameter(nl_train_state *state, const nl_checkpoint *checkpoint,
                                const nl_param *param)
{
    nl_status status = NL_OK;
    nl_device *device = state->device;
    nl_context *context = device->context;
    const nl_entry *entry = nl_checkpoint_find(checkpoint, param->name);
    float *values = NULL;
    char wanted[64], found[64];
    if (fits(param, entry)) {
        int64_t count = nl_entry_count(entry);
        NL_TRY(NL_NEW_ARRAY(context, "a parameter", count, &values));
        NL_TRY(nl_entry_read(checkpoint, entry, values));
        NL_TRY(device->ops->upload(device, param->tensor->data, values,
                                   count * (int64_t)sizeof(float)));
        NL_TRY(device->ops->sync(device)); /* values go */
        goto cleanup;
    }
    nl_shape_text(param->ndim, param->shape, wanted, sizeof(wanted));
    if (entry)
        nl_shape_text(entry->ndim, entry->shape, found, sizeof(found));
    if (!may_differ(param->name))
        NL_TRY(nl_fail(context, NL_ERROR_INPUT,
                       "%s: %s: expected %s, found %s: only classes, channels and size of the "
                       "picture may be others than this model's",
                       checkpoint->path, param->name, wanted, entry ? found : "nothing"));
    if (entry || !is_middle(param->name))
        nl_log(context, NL_LOG_INFO, "%s: %s is %s there and %s here: it starts anew",
               checkpoint->path, param->name, entry ? found : "missing", wanted);
cleanup:
    nl_free(context, values);
    return status;
}

static const char label_table[] = "y_embedder.embedding_table.weight";

/* Where class i of the new model stands in the old one, or -1. */
static int old_class(const nl_config *from, const nl_class_name *name)
{
    for (int i = 0; i < from->num_classes; i++)
        if (nl_class_name_equal(&from->class_names[i], name))
            return i;
    return -1;
}

/* Rows of classes that both have, by name; the others keep their initial values. */
static nl_status take_classes(nl_train_state *state, const nl_checkpoint *checkpoint,
                              const nl_param *param, const nl_config *from)
{
    nl_device *device = state->device;
    nl_context *context = device->context;
    const nl_config *to = &state->master->config;
    const nl_entry *entry = nl_checkpoint_find(checkpoint, param->name);
    int64_t d = param->shape[1], bytes = nl_tensor_count(param->tensor) * (int64_t)sizeof(float);
    float *rows = NULL, *table = NULL;
    int taken = 0;
    nl_status status = NL_OK;
    if (!entry || entry->ndim != 2 || entry->shape[1] != d)
        return take_parameter(state, checkpoint, param);
    NL_TRY(NL_NEW_ARRAY(context, "the table of classes", nl_entry_count(entry), &rows));
    NL_TRY(NL_NEW_SIZED(context, "the table of classes", bytes, 1, &table));
    NL_TRY(nl_entry_read(checkpoint, entry, rows));
    NL_TRY(device->ops->download(device, table, param->tensor->data, bytes));
    for (int i = 0; i < nl_config_label_rows(to); i++) {
        bool null = i == to->num_classes;
        int row = null ? from->no_null_class ? -1 : from->num_classes
                       : old_class(from, &to->class_names[i]);
        if (row < 0 || row >= entry->shape[0])
            continue;
        memcpy(table + i * d, rows + row * d, (size_t)d * sizeof(float));
        taken += !null;
    }
    NL_TRY(device->ops->upload(device, param->tensor->data, table, bytes));
    NL_TRY(device->ops->sync(device));
    if (taken)
        nl_log(context, NL_LOG_WARNING,
               "%s: it knows %d of the data's %d %s by name; the others start anew",
               checkpoint->path, taken, to->num_classes,
               nl_plural(to->num_classes, "class", "classes"));
    else
        nl_log(context, NL_LOG_WARNING,
               "%s: it knows none of the data's %d %s by name: they start anew", checkpoint->path,
               to->num_classes, nl_plural(to->num_classes, "class", "classes"));
cleanup:
    nl_free(context, rows);
    nl_free(context, table);
    return status;
}

/* Its parameters in one sentence. */
static void tell_middle_head(const nl_train_state *state, const nl_checkpoint *checkpoint)
{
    bool missing = false;
    for (int i = 0; i < state->master->param_count; i++) {
        const char *name = state->master->params[i].name;
        missing |= is_middle(name) && !nl_checkpoint_find(checkpoint, name);
    }
    if (missing)
        nl_log(state->device->context, NL_LOG_INFO, "%s: it has no middle head, which starts anew",
               checkpoint->path);
}

nl_status nl_state_take_weights(nl_train_state *state, const nl_checkpoint *checkpoint,
                                const nl_config *from)
{
    bool others = nl_config_other_class(from, &state->master->config) >= 0;
    for (int i = 0; i < state->master->param_count; i++) {
        const nl_param *param = &state->master->params[i];
        NL_CHECK(others && !strcmp(param->name, label_table)
                     ? take_classes(state, checkpoint, param, from)
                     : take_parameter(state, checkpoint, param));
    }
    tell_middle_head(state, checkpoint);
    return nl_state_start(state);
}

nl_status nl_state_update(nl_train_state *state)
{
    nl_tensor gradient = nl_dit_flat(state->gradient);
    NL_CHECK(NL_OP(state->device, gradient_norm, .x = gradient, .norm = state->norm));
    nl_adamw_args update = {.master = nl_dit_flat(state->master),
                            .first = nl_dit_flat(state->first),
                            .second = nl_dit_flat(state->second),
                            .gradient = gradient,
                            .ema_count = state->ema_count,
                            .hyper = state->hyper,
                            .norm = state->norm,
                            .counter = state->counter,
                            .segment_count = state->segment_count,
                            .segments = state->segments,
                            .segment_table = state->segment_table};
    for (int i = 0; i < state->ema_count; i++)
        update.ema[i] = nl_dit_flat(state->ema[i]);
    return nl_op_adamw(state->device, &update);
}

nl_status nl_state_show_average(nl_train_state *state, int index)
{
    return nl_dit_copy(state->ema[index], state->model);
}

nl_status nl_state_show_weights(nl_train_state *state)
{
    return nl_dit_copy(state->master, state->model);
}
