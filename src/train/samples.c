/* SPDX-License-Identifier: MIT */
/* A grid of pictures by the moving average: the same noise and classes every time. */
#include <string.h>

#include "nl_image.h"
#include "nl_random.h"
#include "trainer.h"

enum { MAX_SAMPLES = 1024, GAP = 2 };

typedef struct nl_grid {
    nl_context *context;
    const uint8_t *pictures[MAX_SAMPLES]; /* copies */
    int count, height, width;
} nl_grid;

static nl_status take(void *user, const nl_picture *picture)
{
    nl_grid *grid = user;
    int64_t bytes = (int64_t)picture->height * picture->width * 3;
    uint8_t *copy;
    if (!picture->rgb)
        return NL_OK;
    nl_status status = NL_NEW_ARRAY(grid->context, "a picture", bytes, &copy);
    if (status != NL_OK)
        return status;
    memcpy(copy, picture->rgb, (size_t)bytes);
    grid->pictures[grid->count++] = copy;
    grid->height = picture->height;
    grid->width = picture->width;
    return NL_OK;
}

static nl_status write_grid(nl_trainer *trainer, const nl_grid *grid)
{
    nl_context *context = trainer->context;
    nl_status status = NL_OK;
    nl_image image = {0};
    uint8_t *png = NULL;
    size_t size;
    char *folder = NULL, *path = NULL, name[NL_RUN_NAME];
    int columns = 1;
    while (columns * columns < grid->count)
        columns++;
    int rows = (grid->count + columns - 1) / columns;
    NL_TRY(nl_path_join(context, trainer->options->out, NL_RUN_SAMPLES, &folder));
    NL_TRY(nl_path_join(context, folder, nl_run_grid_name(trainer->point.step, name), &path));
    NL_TRY(nl_image_grid(context, grid->pictures, grid->count, grid->height, grid->width, rows,
                         columns, GAP, &image));
    NL_TRY(nl_png_encode(context, image.rgb, image.height, image.width, NULL, &png, &size));
    NL_TRY(nl_make_folder(context, folder));
    NL_TRY(nl_write_file(context, path, true, png, size));
    nl_record_image(&trainer->record, trainer->point.step, image.height, image.width, png, size);
cleanup:
    nl_free(context, png);
    nl_image_free(context, &image);
    nl_free(context, folder);
    nl_free(context, path);
    return status;
}

/* Without an autoencoder there are no pictures; that is said once. */
static nl_status open_sampler(nl_trainer *trainer)
{
    nl_context *context = trainer->context;
    char *path = NULL;
    if (trainer->sampler_tried)
        return NL_OK;
    trainer->sampler_tried = true;
    nl_status status = nl_path_join(context, trainer->options->out, NL_RUN_MODEL, &path);
    if (status == NL_OK)
        status =
            nl_model_around(trainer->state.model, path, trainer->options->vae, &trainer->sampler);
    nl_free(context, path);
    if (status == NL_ERROR_INPUT) {
        nl_log(context, NL_LOG_WARNING, "no pictures while training: %s", nl_last_error(context));
        return NL_OK;
    }
    if (status == NL_OK && !nl_model_has_autoencoder(trainer->sampler)) {
        nl_model_leave(trainer->sampler);
        trainer->sampler = NULL;
    }
    return status;
}

static nl_status draw(nl_trainer *trainer, nl_grid *grid)
{
    const nl_train_options *options = trainer->options;
    int classes = trainer->config.num_classes, labels[MAX_SAMPLES];
    int count = (int)NL_MIN(options->samples, MAX_SAMPLES);
    for (int i = 0; i < count; i++)
        labels[i] = !classes           ? 0
                    : classes <= count ? i % classes
                                       : nl_draw_class(options->seed, i, classes);
    nl_request request = {.labels = labels,
                          .count = count,
                          .seed = options->seed,
                          .sampling = {.steps = (int)options->sample_steps,
                                       .cfg_scale = nl_sampling_cfg(options->cfg_scale)}};
    return nl_generate(trainer->sampler, &request, take, grid);
}

nl_status nl_trainer_sample(nl_trainer *trainer)
{
    nl_context *context = trainer->context;
    nl_status status = NL_OK;
    nl_grid grid = {.context = context};
    NL_TRY(nl_trainer_collect(trainer));
    if (trainer->group->rank == 0)
        NL_TRY(open_sampler(trainer));
    if (trainer->sampler) {
        if (trainer->state.ema_count)
            NL_TRY(nl_state_show_average(&trainer->state, 0));
        status = draw(trainer, &grid);
        nl_status back = nl_state_show_weights(&trainer->state);
        if (status == NL_ERROR_NOT_FINITE || status == NL_ERROR_MEMORY) {
            nl_log(context, NL_LOG_WARNING, "step %lld: no pictures: %s",
                   (long long)trainer->point.step, nl_last_error(context));
            status = NL_OK;
        } else if (status == NL_CANCELLED) { /* known to all ranks before the next step */
            nl_cancel(context);
            status = NL_OK;
        } else if (status == NL_OK) {
            status = write_grid(trainer, &grid);
            if (status == NL_ERROR_WRITE) {
                nl_log(context, NL_LOG_ERROR, "step %lld: training continues: %s",
                       (long long)trainer->point.step, nl_last_error(context));
                status = NL_OK;
            }
        }
        NL_TRY(status);
        NL_TRY(back);
    }
    NL_TRY(nl_group_barrier(trainer->group));
    nl_stepper_record_anew(&trainer->stepper);
cleanup:
    for (int i = 0; i < grid.count; i++)
        nl_free(context, (void *)(uintptr_t)grid.pictures[i]);
    return status;
}
