/* SPDX-License-Identifier: MIT */
/* --dump: the first steps' samples as the network gets them, and the weights that the run starts with, so that other
 * code can train on the same. tests/replay_training.py is such code. */
#include <stdio.h>
#include <string.h>

#include "trainer.h"

enum { PER_STEP = 5, NAME_SIZE = 112 };

typedef struct nl_dump {
    nl_trainer *trainer;
    nl_feed feed; /* of its own: the run's is not touched */
    nl_tensor_header *headers;
    char (*names)[NAME_SIZE];
    int64_t count;
    nl_safetensors_writer *writer;
    void *values; /* one tensor on the host */
} nl_dump;

static void add(nl_dump *dump, nl_dtype dtype, int ndim, const int64_t *shape, const char *prefix,
                const char *name)
{
    char *text = dump->names[dump->count];
    snprintf(text, NAME_SIZE, "%s.%s", prefix, name);
    nl_tensor_header *header = &dump->headers[dump->count++];
    *header = (nl_tensor_header){.name = text, .dtype = dtype, .ndim = ndim};
    memcpy(header->shape, shape, (size_t)ndim * sizeof(*shape));
}

/* The names, then the tensors in the same order: "0.latents", "0.noise", "0.t", "0.labels", ..., "weights.NAME". */
static nl_status list_tensors(nl_dump *dump, int64_t steps)
{
    nl_context *context = dump->trainer->context;
    const nl_config *config = &dump->trainer->config;
    const nl_dit *master = dump->trainer->state.master;
    int64_t most = PER_STEP * steps + master->param_count;
    int64_t shape[4] = {dump->feed.size, config->in_channels, config->input_height,
                        config->input_width};
    char step[24];
    NL_CHECK(NL_NEW_ARRAY(context, "names of tensors", most, &dump->headers));
    NL_CHECK(NL_NEW_ARRAY(context, "names of tensors", most, &dump->names));
    for (int64_t k = 0; k < steps; k++) {
        snprintf(step, sizeof(step), "%lld", (long long)k);
        add(dump, NL_F32, 4, shape, step, "latents");
        add(dump, NL_F32, 4, shape, step, "noise");
        add(dump, NL_F32, 1, shape, step, "t");
        add(dump, NL_I32, 1, shape, step, "labels");
        if (dump->feed.options.crops)
            add(dump, NL_F32, 2, dump->feed.crops.shape, step, "crops");
    }
    for (int i = 0; i < master->param_count; i++)
        add(dump, NL_F32, master->params[i].ndim, master->params[i].shape, "weights",
            master->params[i].name);
    return NL_OK;
}

static nl_status write_tensor(nl_dump *dump, const nl_tensor *tensor)
{
    nl_status status = NL_OK;
    nl_device *device = dump->trainer->device;
    int64_t bytes = nl_tensor_bytes(tensor);
    NL_TRY(NL_NEW_SIZED(device->context, "a tensor", bytes, 1, &dump->values));
    NL_TRY(device->ops->download(device, dump->values, tensor->data, bytes));
    NL_TRY(nl_safetensors_write(dump->writer, dump->values, bytes));
cleanup:
    nl_free(device->context, dump->values);
    dump->values = NULL;
    return status;
}

static nl_status write_step(nl_dump *dump)
{
    nl_status status = NL_OK;
    nl_trainer *trainer = dump->trainer;
    nl_device *device = trainer->device;
    nl_noised noised;
    int64_t mark = nl_arena_mark(device);
    NL_TRY(nl_feed_next(&dump->feed));
    NL_TRY(nl_noised_take(&dump->feed, &trainer->config, device, &noised));
    NL_TRY(nl_noised_draw(&dump->feed, device, trainer->options->seed, &noised));
    NL_TRY(nl_noised_mix(&dump->feed, trainer->state.model, device, &noised));
    NL_TRY(write_tensor(dump, &noised.data));
    NL_TRY(write_tensor(dump, &noised.noise));
    NL_TRY(write_tensor(dump, &dump->feed.t));
    NL_TRY(write_tensor(dump, &dump->feed.labels));
    if (dump->feed.options.crops)
        NL_TRY(write_tensor(dump, &dump->feed.crops));
cleanup:
    nl_arena_release(device, mark);
    return status;
}

nl_status nl_trainer_dump(nl_trainer *trainer)
{
    nl_status status = NL_OK;
    nl_context *context = trainer->context;
    const nl_dit *master = trainer->state.master;
    nl_dump dump = {.trainer = trainer};
    nl_feed_options options = trainer->feed.options;
    char *path = NULL, *config = NULL;
    if (trainer->group->size > 1)
        return nl_fail(context, NL_ERROR_USAGE, "--dump wants one process");
    options.parts = 1;
    NL_TRY(nl_feed_open(trainer->device, trainer->data, trainer->loss, &options, &dump.feed));
    NL_TRY(list_tensors(&dump, trainer->options->dump));
    NL_TRY(nl_config_print(context, &trainer->config, &config));
    NL_TRY(nl_path_join(context, trainer->options->out, "dump.safetensors", &path));
    NL_TRY(nl_safetensors_create(context, path, true, (const char *const[]){"config", config, NULL},
                                 dump.headers, dump.count, &dump.writer));
    int64_t elements = dump.feed.size * trainer->config.in_channels * trainer->config.input_height *
                       trainer->config.input_width;
    /* Six tensors of noised, the predictions with a variance, and their alignment. */
    NL_TRY(nl_arena_reserve(trainer->device, 8 * (elements * (int64_t)sizeof(float) + 256)));
    for (int64_t k = 0; k < trainer->options->dump; k++)
        NL_TRY(write_step(&dump));
    for (int i = 0; i < master->param_count; i++)
        NL_TRY(write_tensor(&dump, master->params[i].tensor));
    NL_TRY(nl_safetensors_commit(&dump.writer));
cleanup:
    nl_safetensors_abort(&dump.writer);
    nl_feed_close(&dump.feed);
    nl_free(context, dump.headers);
    nl_free(context, dump.names);
    nl_free(context, config);
    nl_free(context, path);
    return status;
}
