/* SPDX-License-Identifier: MIT */
/* Too many steps in a row that were not finite: the state is written down, and the first bad tensor named. */
#include <math.h>
#include <stdio.h>
#include <string.h>

#include "trainer.h"

enum { NAME_SIZE = 160 };

static nl_status is_finite(nl_device *device, const nl_tensor *tensor, bool *finite)
{
    nl_status status = NL_OK;
    int64_t count = nl_tensor_count(tensor);
    void *raw = NULL;
    float *values = NULL;
    *finite = true;
    if (!tensor->data || !nl_tensor_contiguous(tensor))
        return NL_OK;
    NL_TRY(NL_NEW_SIZED(device->context, "a tensor", count, (size_t)nl_dtype_size(tensor->dtype),
                        &raw));
    NL_TRY(NL_NEW_ARRAY(device->context, "a tensor", count, &values));
    NL_TRY(device->ops->download(device, raw, tensor->data, nl_tensor_bytes(tensor)));
    nl_convert_to_float(raw, tensor->dtype, count, values);
    for (int64_t i = 0; i < count && *finite; i++)
        *finite = isfinite(values[i]);
cleanup:
    nl_free(device->context, raw);
    nl_free(device->context, values);
    return status;
}

/* Names the first parameter of the twin that is not finite; backwards: as the backward pass comes to them. */
static nl_status search_twin(nl_device *device, const nl_dit *twin, const char *what,
                             bool backwards, char *name)
{
    int count = twin->param_count;
    for (int i = 0; i < count && !*name; i++) {
        const nl_param *param = &twin->params[backwards ? count - 1 - i : i];
        bool finite;
        NL_CHECK(is_finite(device, param->tensor, &finite));
        if (!finite)
            snprintf(name, NAME_SIZE, "%s %s", what, param->name);
    }
    return NL_OK;
}

static nl_status search_one(nl_device *device, const nl_tensor *tensor, const char *what,
                            char *name)
{
    bool finite = true;
    nl_status status = *name ? NL_OK : is_finite(device, tensor, &finite);
    if (!finite)
        snprintf(name, NAME_SIZE, "%s", what);
    return status;
}

/* What the branches of a block leave, in the order in which it comes. */
static nl_status search_block(nl_device *device, const nl_config *config,
                              const nl_block_saved *block, int index, char *name)
{
    static const char *const kinds[] = {"attention", "MLP"};
    char what[NAME_SIZE];
    for (int kind = 0; kind < NL_BRANCHES; kind++) {
        const nl_branch_saved *branch = &block->branches[kind];
        snprintf(what, sizeof(what), "blocks.%d: the input of the %s", index, kinds[kind]);
        NL_CHECK(search_one(device, &branch->x, what, name));
        for (int i = 0; nl_branch_kept_name(config, kind, i); i++) {
            snprintf(what, sizeof(what), "blocks.%d: the %s", index,
                     nl_branch_kept_name(config, kind, i));
            NL_CHECK(search_one(device, &branch->kept[i], what, name));
        }
        snprintf(what, sizeof(what), "blocks.%d: the output of the %s", index, kinds[kind]);
        NL_CHECK(search_one(device, &branch->out, what, name));
    }
    return NL_OK;
}

/* The forward pass of the last batch once more. */
static nl_status search_activations(nl_trainer *trainer, char *name)
{
    nl_status status = NL_OK;
    nl_device *device = trainer->device;
    nl_feed *feed = &trainer->feed;
    nl_dit *model = trainer->state.model;
    nl_noised noised;
    nl_dit_saved saved = {0};
    int64_t mark = nl_arena_mark(device);
    NL_TRY(nl_noised_take(feed, &trainer->config, device, &noised));
    NL_TRY(nl_noised_draw(feed, device, trainer->options->seed, &noised));
    NL_TRY(nl_noised_mix(feed, model, device, &noised));
    NL_TRY(search_one(device, &feed->x, "the samples of the data set", name));
    NL_TRY(search_one(device, &noised.data, "the latents", name));
    NL_TRY(search_one(device, &noised.x, "the noisy latents", name));
    NL_TRY(nl_dit_forward_saving(model, device, &noised.x, nl_noised_times(feed), &feed->labels,
                                 nl_feed_crop(feed), false, NULL, &noised.prediction, NULL,
                                 &saved));
    NL_TRY(search_one(device, &saved.c, "the conditioning", name));
    NL_TRY(search_one(device, &saved.modulation, "the modulation", name));
    for (int i = 0; i < trainer->config.depth && !*name; i++)
        NL_TRY(search_block(device, &trainer->config, &saved.blocks[i], i, name));
    NL_TRY(search_one(device, &saved.last, "the stream before the head", name));
    NL_TRY(search_one(device, &noised.prediction, "the prediction", name));
cleanup:
    nl_dit_saved_free(device, &saved);
    nl_arena_release(device, mark);
    return status;
}

/* ---- The state as it is, numbers that are not finite included, which checkpoints refuse. */

enum { DUMPED = 4 };

typedef struct nl_dump {
    const nl_dit *twins[DUMPED];
    nl_tensor_header *headers; /* [DUMPED * parameters] */
    char (*names)[112];
} nl_dump;

static void list_tensors(nl_dump *dump)
{
    static const char *const prefixes[DUMPED] = {"", "adam.m.", "adam.v.", "gradient."};
    int64_t at = 0;
    for (int t = 0; t < DUMPED; t++)
        for (int i = 0; i < dump->twins[t]->param_count; i++, at++) {
            const nl_param *param = &dump->twins[t]->params[i];
            snprintf(dump->names[at], sizeof(dump->names[at]), "%s%s", prefixes[t], param->name);
            dump->headers[at] =
                (nl_tensor_header){.name = dump->names[at], .dtype = NL_F32, .ndim = param->ndim};
            memcpy(dump->headers[at].shape, param->shape, sizeof(param->shape));
        }
}

static nl_status write_tensors(nl_device *device, const nl_dump *dump, const char *path)
{
    nl_status status = NL_OK;
    nl_safetensors_writer *writer = NULL;
    void *values = NULL;
    NL_TRY(nl_safetensors_create(device->context, path, true, NULL, dump->headers,
                                 (int64_t)DUMPED * dump->twins[0]->param_count, &writer));
    for (int t = 0; t < DUMPED; t++)
        for (int i = 0; i < dump->twins[t]->param_count; i++) {
            const nl_tensor *tensor = dump->twins[t]->params[i].tensor;
            int64_t bytes = nl_tensor_bytes(tensor);
            NL_TRY(NL_NEW_SIZED(device->context, "a parameter", bytes, 1, &values));
            NL_TRY(device->ops->download(device, values, tensor->data, bytes));
            NL_TRY(nl_safetensors_write(writer, values, bytes));
            nl_free(device->context, values);
            values = NULL;
        }
    NL_TRY(nl_safetensors_commit(&writer));
cleanup:
    nl_free(device->context, values);
    nl_safetensors_abort(&writer);
    return status;
}

static nl_status dump_state(nl_trainer *trainer, const char *path)
{
    nl_context *context = trainer->context;
    const nl_train_state *state = &trainer->state;
    nl_status status = NL_OK;
    nl_dump dump = {.twins = {state->master, state->first, state->second, state->gradient}};
    int64_t count = (int64_t)DUMPED * state->master->param_count;
    NL_TRY(NL_NEW_ARRAY(context, "names of tensors", count, &dump.headers));
    NL_TRY(NL_NEW_ARRAY(context, "names of tensors", count, &dump.names));
    list_tensors(&dump);
    NL_TRY(write_tensors(trainer->device, &dump, path));
cleanup:
    nl_free(context, dump.headers);
    nl_free(context, dump.names);
    return status;
}

nl_status nl_trainer_give_up(nl_trainer *trainer, int64_t skipped)
{
    nl_context *context = trainer->context;
    nl_device *device = trainer->device;
    nl_status status = NL_OK;
    char *path = NULL, name[NAME_SIZE] = "";
    NL_TRY(nl_path_join(context, trainer->options->out, "not-finite.safetensors", &path));
    NL_TRY(search_twin(device, trainer->state.master, "parameter", false, name));
    if (!*name && trainer->state.fake)
        NL_TRY(search_twin(device, trainer->fake.master, "the fake's parameter", false, name));
    if (!*name)
        NL_TRY(search_activations(trainer, name));
    if (!*name)
        NL_TRY(search_twin(device, trainer->state.gradient, "the gradient of", true, name));
    if (!*name && trainer->state.fake)
        NL_TRY(search_twin(device, trainer->fake.gradient, "the fake's gradient of", true, name));
    bool kept = !trainer->options->dry_run && !trainer->options->profile;
    if (kept && trainer->group->rank == 0 && dump_state(trainer, path) != NL_OK)
        nl_log(context, NL_LOG_ERROR, "%s", nl_last_error(context));
    NL_TRY(nl_group_barrier(trainer->group)); /* a rank that ends takes the others with it */
    status =
        nl_fail(context, NL_ERROR_NOT_FINITE,
                "step %lld: %lld steps in a row were not finite; first bad: %s; try a lower --lr, "
                "--clip 1 or --dtype f32%s%s",
                (long long)trainer->point.step, (long long)skipped,
                *name ? name : "nothing that a second look finds", kept ? "; the state is in " : "",
                kept ? path : "");
cleanup:
    nl_free(context, path);
    return status;
}
