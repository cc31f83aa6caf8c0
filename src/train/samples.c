/* SPDX-License-Identifier: MIT */
/* A grid of pictures by the moving average: the same noise and classes every time. */
#include <stdio.h>
#include <string.h>

#include "nl_plot.h"
#include "nl_random.h"
#include "nl_task.h"
#include "trainer.h"

enum { MAX_SAMPLES = 1024 };

typedef struct nl_grid {
    nl_context *context;
    const uint8_t *pictures[MAX_SAMPLES]; /* copies */
    int labels[MAX_SAMPLES];
    int count, height, width;
} nl_grid;

static nl_status take(void *user, const nl_picture *picture)
{
    nl_grid *grid = user;
    int64_t bytes = (int64_t)picture->height * picture->width * 3;
    uint8_t *copy;
    if (!picture->rgb)
        return NL_OK;
    NL_CHECK(NL_NEW_ARRAY(grid->context, "a picture", bytes, &copy));
    memcpy(copy, picture->rgb, (size_t)bytes);
    grid->pictures[grid->count++] = copy;
    grid->height = picture->height;
    grid->width = picture->width;
    return NL_OK;
}

/* What the pictures are: of which step and weights. */
static void describe(const nl_trainer *trainer, char *text, size_t size)
{
    const nl_run_point *point = &trainer->point;
    char of[24] = "", average[48] = "weights";
    if (trainer->steps)
        snprintf(of, sizeof(of), " of %lld", (long long)trainer->steps);
    if (point->ema_count && point->ema[0].sigma_rel > 0)
        snprintf(average, sizeof(average), "average power:%g", point->ema[0].sigma_rel);
    else if (point->ema_count)
        snprintf(average, sizeof(average), "average %g%s", point->ema[0].decay,
                 trainer->options->ema_warmup ? " with warm-up" : "");
    snprintf(text, size, "step %lld%s, %s", (long long)point->step, of, average);
}

static nl_status draw_grid(nl_trainer *trainer, const nl_grid *grid, nl_image *image)
{
    enum { SMALL = 96 }; /* pixels: a caption's room */
    const nl_config *config = &trainer->config;
    char title[160], numbers[MAX_SAMPLES][16];
    const char *captions[MAX_SAMPLES];
    int columns = 1;
    while (columns * columns < grid->count)
        columns++;
    for (int i = 0; i < grid->count; i++)
        captions[i] = config->num_classes
                          ? nl_class_text(config, grid->labels[i], numbers[i], sizeof(numbers[i]))
                          : NULL;
    describe(trainer, title, sizeof(title));
    const uint8_t *pictures[MAX_SAMPLES + 1] = {NULL};
    memcpy(pictures, grid->pictures, (size_t)grid->count * sizeof(*pictures));
    nl_sheet sheet = {.pictures = pictures,
                      .rows = (grid->count + columns - 1) / columns,
                      .columns = columns,
                      .height = grid->height,
                      .width = grid->width,
                      .title = title,
                      .captions = config->num_classes ? captions : NULL,
                      .enlarged = (SMALL + grid->width - 1) / grid->width};
    return nl_sheet_render(grid->context, &sheet, image);
}

static nl_status write_grid(nl_trainer *trainer, const nl_grid *grid)
{
    nl_context *context = trainer->context;
    nl_status status = NL_OK;
    nl_image image = {0};
    uint8_t *png = NULL;
    size_t size;
    char *folder = NULL, *path = NULL, name[NL_RUN_NAME];
    NL_TRY(nl_path_join(context, trainer->options->out, NL_RUN_SAMPLES, &folder));
    NL_TRY(nl_path_join(context, folder, nl_run_grid_name(trainer->point.step, name), &path));
    NL_TRY(draw_grid(trainer, grid, &image));
    NL_TRY(nl_png_encode(context, image.rgb, image.height, image.width,
                         (const char *const *)image.text, &png, &size));
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

static nl_sampling sampling_of(const nl_train_options *options)
{
    nl_sampling sampling = nl_sampling_default();
    sampling.steps = options->sample_steps;
    sampling.cfg_scale = nl_sampling_cfg(options->cfg_scale);
    return sampling;
}

nl_status nl_trainer_check_samples(const nl_trainer *trainer)
{
    const nl_train_options *options = trainer->options;
    nl_sampling given = sampling_of(options), resolved;
    nl_status status = NL_OK;
    if (options->sample_every != 0)
        status = nl_sampling_resolve(trainer->context, &trainer->config, NULL, &given, &resolved);
    if (options->sample_every != 0 && status == NL_OK)
        status = nl_sampling_check(trainer->context, &trainer->config, &resolved);
    return status == NL_OK ? NL_OK : nl_fail_in(trainer->context, status, "the grids of the run");
}

static nl_status draw(nl_trainer *trainer, nl_grid *grid)
{
    const nl_train_options *options = trainer->options;
    int classes = trainer->config.num_classes, *labels = grid->labels;
    int count = (int)NL_MIN(options->samples, MAX_SAMPLES);
    for (int i = 0; i < count; i++)
        labels[i] = !classes           ? 0
                    : classes <= count ? i % classes
                                       : nl_draw_class(options->seed, i, classes);
    nl_request request = {
        .labels = labels, .count = count, .seed = options->seed, .sampling = sampling_of(options)};
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
