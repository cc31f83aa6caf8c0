/* SPDX-License-Identifier: MIT */
/* What a run consists of, made from its options, its data and its folder. */
#include <math.h>
#include <stdio.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "nl_io.h"
#include "schedule.h"
#include "trainer.h"

/* A loss on other numbers or classes would mean nothing. */
static nl_status check_held_out(nl_context *context, const nl_train_options *options,
                                const nl_dataset_info *data, const nl_dataset_info *held_out)
{
    if (held_out->sample_channels != data->sample_channels || held_out->height != data->height ||
        held_out->width != data->width || held_out->classes != data->classes)
        return nl_fail(context, NL_ERROR_USAGE,
                       "%s and %s are not of one kind: %d x %d x %d and %d %s there, "
                       "%d x %d x %d and %d here",
                       options->data, options->validation, data->sample_channels, data->height,
                       data->width, data->classes, nl_plural(data->classes, "class", "classes"),
                       held_out->sample_channels, held_out->height, held_out->width,
                       held_out->classes);
    if (strcmp(held_out->autoencoder, data->autoencoder) != 0 ||
        strcmp(held_out->autoencoder_sha256, data->autoencoder_sha256) != 0)
        return nl_fail(context, NL_ERROR_USAGE,
                       "%s and %s were encoded by different autoencoders (%s %.8s and %s %.8s)",
                       options->data, options->validation, data->autoencoder,
                       data->autoencoder_sha256, held_out->autoencoder,
                       held_out->autoencoder_sha256);
    for (int i = 0; i < data->classes; i++)
        if (strcmp(held_out->class_ids[i], data->class_ids[i]) != 0)
            return nl_fail(context, NL_ERROR_USAGE, "%s and %s: class %d is '%s' there, '%s' here",
                           options->data, options->validation, i, data->class_ids[i],
                           held_out->class_ids[i]);
    return NL_OK;
}

static nl_status open_data(nl_trainer *trainer)
{
    const nl_train_options *options = trainer->options;
    nl_context *context = trainer->context;
    nl_status status = NL_OK;
    char *path = NULL;
    NL_TRY(nl_dataset_open(context, options->data, &trainer->data));
    if (options->hold_out > 0) {
        NL_TRY(nl_dataset_hold_out(trainer->data, options->hold_out, false));
        NL_TRY(nl_dataset_open(context, options->data, &trainer->validation));
        NL_TRY(nl_dataset_hold_out(trainer->validation, options->hold_out, true));
    }
    const nl_dataset_info *info = nl_dataset_get_info(trainer->data);
    if (options->overfit > info->count)
        NL_TRY(nl_fail(context, NL_ERROR_USAGE, "--overfit %lld: %s has %lld samples",
                       (long long)options->overfit, options->data, (long long)info->count));
    trainer->point.samples = options->overfit ? options->overfit : info->count;
    NL_TRY(nl_path_join(context, options->data, "dataset.json", &path));
    NL_TRY(nl_file_sha256(context, path, trainer->point.data_sha256));
    if (options->validation) {
        NL_TRY(nl_dataset_open(context, options->validation, &trainer->validation));
        NL_TRY(check_held_out(context, options, info, nl_dataset_get_info(trainer->validation)));
    }
cleanup:
    nl_free(context, path);
    return status;
}

/* A network that is told what part of its picture a sample is has to be told the truth. */
static nl_status check_crops(const nl_trainer *trainer)
{
    const nl_train_options *options = trainer->options;
    const struct {
        const nl_dataset *data;
        const char *path;
    } sets[] = {{trainer->data, options->data}, {trainer->validation, options->validation}};
    for (int i = 0; i < NL_COUNT(sets) && trainer->config.crop_conditioning; i++)
        if (sets[i].data && !nl_dataset_get_info(sets[i].data)->crops_known)
            return nl_fail(trainer->context, NL_ERROR_USAGE,
                           "%s: its samples are parts of pictures, and an older nalagen did not "
                           "write down which, as \"crop_conditioning\" needs: encode again, or set "
                           "it to false in --config",
                           sets[i].path);
    return NL_OK;
}

/* The run's own numbers against those of the checkpoint. */
static nl_status check_same_run(const nl_trainer *trainer, const char *path,
                                const nl_run_point *found)
{
    const nl_run_point *point = &trainer->point;
    nl_context *context = trainer->context;
    if (found->seed == point->seed && found->batch == point->batch &&
        found->samples == point->samples && !strcmp(found->data_sha256, point->data_sha256)) {
        if (!strcmp(found->teacher_sha256, point->teacher_sha256))
            return NL_OK;
        return nl_fail(
            context, NL_ERROR_USAGE,
            "%s: made with %s teacher, asked for is %s: such a run cannot be resumed; to "
            "start from its weights, give it as --init with another --out",
            path, *found->teacher_sha256 ? "another" : "no",
            *point->teacher_sha256 ? "one" : "none");
    }
    return nl_fail(context, NL_ERROR_USAGE,
                   "%s: made with seed %llu, batch %lld and %lld %s%s, asked for are %llu, "
                   "%lld and %lld: such a run cannot be resumed; to start from its weights, "
                   "give it as --init with another --out",
                   path, (unsigned long long)found->seed, (long long)found->batch,
                   (long long)found->samples, nl_plural(found->samples, "sample", "samples"),
                   strcmp(found->data_sha256, point->data_sha256) ? " of other data" : "",
                   (unsigned long long)point->seed, (long long)point->batch,
                   (long long)point->samples);
}

/* A decay may become another one; a power function is of all steps. */
static nl_status check_same_averages(const nl_trainer *trainer, const char *path,
                                     const nl_run_point *found)
{
    for (int i = 0; i < found->ema_count; i++)
        if (found->ema[i].sigma_rel != trainer->point.ema[i].sigma_rel)
            return nl_fail(trainer->context, NL_ERROR_USAGE,
                           "%s: average %d of the run is of a power function of width %g, asked "
                           "for is %g (0: none): such a run cannot be resumed",
                           path, i + 1, found->ema[i].sigma_rel, trainer->point.ema[i].sigma_rel);
    return NL_OK;
}

static nl_status load(nl_trainer *trainer, const char *path)
{
    nl_run_point found;
    nl_status status = nl_load_point(&trainer->state, path, &found);
    if (status == NL_OK)
        status = check_same_run(trainer, path, &found);
    if (status == NL_OK)
        status = check_same_averages(trainer, path, &found);
    if (status != NL_OK)
        return status;
    memcpy(found.ema, trainer->point.ema, sizeof(found.ema));
    trainer->point = found;
    nl_log(trainer->context, NL_LOG_INFO, "%s: resuming at step %lld", path, (long long)found.step);
    return NL_OK;
}

/* The newest checkpoint that is whole. */
static nl_status resume_newest(nl_trainer *trainer, char **paths, int count, bool *resumed)
{
    nl_status status = NL_OK;
    for (int i = 0; i < count; i++) {
        status = load(trainer, paths[i]);
        *resumed = status == NL_OK;
        if (status != NL_ERROR_INPUT)
            return status;
        nl_log(trainer->context, NL_LOG_WARNING, "%s%s", nl_last_error(trainer->context),
               i + 1 < count ? "; trying the one before" : "");
    }
    if (count)
        return nl_fail(trainer->context, NL_ERROR_INPUT,
                       "%s: no checkpoint can be read (%d tried); start anew with another --out",
                       trainer->options->out, count);
    return NL_OK;
}

/* ---- RUN, the folder. It is the first rank's; whether that could do its part all others hear at once. */

static nl_status by_first_rank(nl_trainer *trainer, nl_status (*work)(nl_trainer *trainer))
{
    nl_status status = trainer->group->rank == 0 ? work(trainer) : NL_OK;
    int64_t worst = status;
    nl_status heard = nl_group_maximum(trainer->group, &worst);
    if (status == NL_OK)
        status = heard;
    if (status == NL_OK && worst)
        status = nl_fail(trainer->context, (nl_status)worst, "%s: the first process cannot begin",
                         trainer->options->out);
    return status;
}

/* Before its checkpoints are looked at: two processes that resume from the same one would undo each other's steps. */
static nl_status lock_folder(nl_trainer *trainer)
{
    const char *out = trainer->options->out;
    bool there = nl_path_exists(out);
    nl_status status = nl_make_folder(trainer->context, out);
    if (status == NL_OK)
        status = nl_lock_folder(trainer->context, out, &trainer->lock);
    trainer->folder_is_new = status == NL_OK && !there;
    return status;
}

/* Once it is clear that the run can begin. */
static nl_status begin_folder(nl_trainer *trainer)
{
    nl_context *context = trainer->context;
    const char *out = trainer->options->out;
    nl_status status = NL_OK;
    char *done = NULL, *checkpoints = NULL, *samples = NULL;
    NL_TRY(nl_path_join(context, out, NL_RUN_CHECKPOINTS, &checkpoints));
    NL_TRY(nl_path_join(context, out, NL_RUN_SAMPLES, &samples));
    nl_remove_temporaries(context, out);
    nl_remove_temporaries(context, checkpoints);
    nl_remove_temporaries(context, samples);
    NL_TRY(nl_set_aside_points(context, checkpoints, trainer->point.step));
    NL_TRY(nl_path_join(context, out, NL_RUN_DONE, &done));
    if (!nl_trainer_is_over(trainer)) {
        unlink(done); /* of a shorter run */
        NL_TRY(nl_try_saving(&trainer->state, checkpoints));
    }
    NL_TRY(nl_trainer_begin_snapshots(trainer));
    NL_TRY(nl_trainer_write_config(trainer));
    NL_TRY(nl_record_open(context, out, trainer->point.step, &trainer->record));
cleanup:
    nl_free(context, checkpoints);
    nl_free(context, samples);
    nl_free(context, done);
    return status;
}

/* An empty file is nothing that could be lost, nor is a pipe. */
static bool holds_something(const char *path)
{
    struct stat info;
    return stat(path, &info) == 0 && S_ISREG(info.st_mode) && info.st_size > 0;
}

/* What is left of a run whose checkpoints are gone must not be overwritten by a new one. */
static nl_status refuse_remains(nl_trainer *trainer, const char *checkpoints)
{
    static const char *const remains[] = {NL_RUN_MODEL, NL_RUN_DONE, NL_RUN_LOG};
    nl_context *context = trainer->context;
    const char *out = trainer->options->out;
    nl_status status = NL_OK;
    char *path = NULL;
    if (nl_never_saved(context, checkpoints))
        return NL_OK;
    for (int i = 0; i < NL_COUNT(remains); i++) {
        nl_free(context, path);
        path = NULL;
        NL_TRY(nl_path_join(context, out, remains[i], &path));
        if (strcmp(remains[i], NL_RUN_DONE) ? holds_something(path) : nl_path_exists(path))
            NL_TRY(nl_fail(context, NL_ERROR_INPUT,
                           "%s: a run was here (%s), and there is no checkpoint to resume from in "
                           "%s: put its checkpoints back, name one with --resume, or choose "
                           "another --out",
                           out, remains[i], checkpoints));
    }
cleanup:
    nl_free(context, path);
    return status;
}

/* Each rank has looked for the checkpoint by itself. */
static nl_status check_same_step(nl_trainer *trainer)
{
    nl_status status = NL_OK;
    int64_t last = trainer->point.step, first = -trainer->point.step;
    NL_TRY(nl_group_maximum(trainer->group, &last));
    NL_TRY(nl_group_maximum(trainer->group, &first));
    if (last != -first)
        status =
            nl_fail(trainer->context, NL_ERROR_INPUT,
                    "%s: one process has read the checkpoint of step %lld, another one that of "
                    "step %lld (0: none): all processes must see the same folder",
                    trainer->options->out, (long long)-first, (long long)last);
cleanup:
    return status;
}

/* The weights of a checkpoint, and whose they are. *from owns what nl_config_free frees. */
static nl_status take_weights(nl_train_state *state, const nl_checkpoint *checkpoint,
                              nl_config *from)
{
    NL_CHECK(nl_config_from_checkpoint(checkpoint, NULL, from));
    return nl_state_take_weights(state, checkpoint, from);
}

static nl_status start_weights(nl_trainer *trainer, const nl_checkpoint *init,
                               const nl_checkpoint *teacher)
{
    const nl_train_options *options = trainer->options;
    nl_context *context = trainer->context;
    nl_status status = NL_OK;
    char *folder = NULL, **paths = NULL;
    int count = 0;
    bool resumed = false;
    nl_config from, of_teacher;
    nl_config_init(&from);
    nl_config_init(&of_teacher);
    if (options->student_config && !options->init) {
        NL_TRY(nl_state_inherit(&trainer->state, teacher));
    } else if (init) {
        NL_TRY(take_weights(&trainer->state, init, &from));
        trainer->settled = teacher && from.flow_map;
    }
    if (trainer->state.fake)
        NL_TRY(take_weights(&trainer->fake, teacher, &of_teacher));
    bool writes = !options->dry_run && !options->profile;
    if (writes && !trainer->drawn) /* otherwise it was before samples were drawn */
        NL_TRY(by_first_rank(trainer, lock_folder));
    NL_TRY(nl_path_join(context, options->out, NL_RUN_CHECKPOINTS, &folder));
    NL_TRY(nl_list_points(context, folder, &paths, &count));
    if (!strcmp(options->resume, "auto"))
        NL_TRY(resume_newest(trainer, paths, count, &resumed));
    else if (strcmp(options->resume, "none") != 0)
        NL_TRY(load(trainer, options->resume));
    else if (count && writes)
        NL_TRY(nl_fail(context, NL_ERROR_USAGE,
                       "%s holds a run that has come to %s: --resume none wants a new folder",
                       options->out, paths[0]));
    NL_TRY(check_same_step(trainer));
    if (writes && !count && trainer->point.step == 0)
        NL_TRY(refuse_remains(trainer, folder));
cleanup:
    nl_config_free(context, &from);
    nl_config_free(context, &of_teacher);
    nl_free_points(context, paths, count);
    nl_free(context, folder);
    return status;
}

static int find_choice(const char *text, const char *const *names)
{
    for (int i = 0; names[i]; i++)
        if (!strcmp(text, names[i]))
            return i;
    return 0;
}

/* What training changes, on `device`. fake: left alone without distribution matching. */
static nl_status create_states(const nl_trainer *trainer, nl_device *device, nl_train_state *state,
                               nl_train_state *fake)
{
    const nl_train_options *options = trainer->options;
    nl_config config = nl_state_fake_config(&trainer->config);
    NL_CHECK(nl_state_create(device, &trainer->config, trainer->point.ema_count,
                             options->patience > 0, options->seed, options->query_scale, state));
    if (trainer->point.matches) {
        NL_CHECK(nl_state_create(device, &config, 0, false, options->seed, 1, fake));
        state->fake = fake;
    }
    return NL_OK;
}

static nl_status open_matcher(const nl_trainer *trainer, nl_train_state *state, int64_t size,
                              nl_matcher *matcher)
{
    const nl_train_options *options = trainer->options;
    nl_matching_options matching = {
        .weight = options->match,
        .from = options->one_step ? 0 : options->match_from,
        .alone = options->one_step,
        .guidance = options->match_guidance > 0 ? options->match_guidance : options->guidance,
        .low = options->guidance_interval[0],
        .high = options->guidance_interval[1],
        .internal = options->internal_guidance,
        .adversarial = options->adversarial,
        .channels = nl_dataset_get_info(trainer->data)->sample_channels,
        .updates = (int)options->fake_updates,
        .size = size,
        .seed = options->seed,
        .gradient_scale = 1 / (float)options->batch,
        .checkpointing = options->checkpointing};
    return nl_matcher_open(trainer->teacher, state, state->fake, &matching, matcher);
}

/* On the state's device. The loader begins behind the steps that are done. */
static nl_status open_steps(const nl_trainer *trainer, nl_train_state *state, nl_feed *feed,
                            nl_matcher *matcher, nl_stepper *stepper)
{
    const nl_train_options *options = trainer->options;
    nl_feed_options of_feed = {
        .loader = {.seed = options->seed,
                   .batch = options->batch,
                   .rank = trainer->group->rank,
                   .ranks = trainer->group->size,
                   .first_step = trainer->point.step,
                   .flip = !options->no_flip && nl_dataset_get_info(trainer->data)->flips,
                   .label_dropout = trainer->config.class_dropout_prob,
                   .count = options->overfit},
        .parts = (int)options->accumulate,
        .times_seed = options->seed,
        .crops = trainer->config.crop_conditioning,
        .teacher = trainer->teacher,
        .converts = nl_converts(options),
        .distill = {.guidance = options->guidance,
                    .low = options->guidance_interval[0],
                    .high = options->guidance_interval[1],
                    .internal = options->internal_guidance,
                    .floor = options->alpha_floor,
                    .settled = trainer->settled,
                    .adaptive = options->adaptive}};
    NL_CHECK(nl_feed_open(state->device, trainer->data, trainer->loss, &of_feed, feed));
    if (state->fake)
        NL_CHECK(open_matcher(trainer, state, feed->size, matcher));
    return nl_stepper_open(trainer->group, state, feed, state->fake ? matcher : NULL, options->seed,
                           options->checkpointing, (float)options->dropout, trainer->slots,
                           stepper);
}

/* What the run takes, found out by beginning it on a device without memory; refused where there is less. */
static nl_status check_memory(nl_trainer *trainer)
{
    nl_context *context = trainer->context;
    const nl_train_options *options = trainer->options;
    const double mib = 1 << 20;
    nl_status status = NL_OK;
    nl_device measuring;
    nl_train_state state = {0}, fake = {0};
    nl_feed feed = {0};
    nl_matcher matcher = {0};
    nl_stepper stepper = {0};
    nl_device_measuring(trainer->device, &measuring);
    NL_TRY(create_states(trainer, &measuring, &state, &fake));
    NL_TRY(open_steps(trainer, &state, &feed, &matcher, &stepper));
    NL_TRY(nl_stepper_measure(&stepper, &trainer->arena));
    bool host = !nl_device_queues(trainer->device);
    int64_t of_state = measuring.allocated, batches = host ? feed.host_bytes : 0;
    int64_t need = of_state + trainer->arena + batches;
    int64_t have = nl_device_memory_left(trainer->device);
    char text[256];
    snprintf(text, sizeof(text),
             "%.0f MiB: %.0f MiB for weights, gradient, optimiser and averages, %.0f MiB for "
             "activations (batch %lld in %lld %s%s), %.0f MiB for batches",
             (double)need / mib, (double)of_state / mib, (double)trainer->arena / mib,
             (long long)options->batch, (long long)options->accumulate,
             nl_plural(options->accumulate, "part", "parts"),
             options->checkpointing ? ", checkpointing" : "", (double)batches / mib);
    if (options->dry_run)
        nl_log(context, NL_LOG_INFO, "memory: %s", text);
    if (need > have)
        NL_TRY(nl_fail(context, NL_ERROR_MEMORY,
                       "training takes %s; %s has %.0f MiB left: take the batch in parts "
                       "(--accumulate), a smaller --batch, or --checkpointing",
                       text, trainer->device->name, (double)have / mib));
cleanup:
    nl_stepper_close(&stepper);
    nl_matcher_close(&matcher);
    nl_feed_close(&feed);
    nl_state_free(&state);
    nl_state_free(&fake);
    return status;
}

/* An average that is mostly the first weights makes noise, however well the weights themselves have learnt. */
static void warn_of_averages(const nl_trainer *trainer)
{
    const nl_train_options *options = trainer->options;
    if (!trainer->steps || options->init || options->teacher || !options->ema)
        return;
    for (int i = 0; i < trainer->point.ema_count; i++) {
        const nl_average *average = &trainer->point.ema[i];
        double part = nl_train_first_part(options, average, trainer->steps);
        if (part > 0.01)
            nl_log(trainer->context, NL_LOG_WARNING,
                   "--ema %g: after %lld %s %.2g %% of this average are still the first weights, "
                   "and it makes noise: leave --ema out, add --ema-warmup, or take --ema power:0.1",
                   average->decay, (long long)trainer->steps,
                   nl_plural(trainer->steps, "step", "steps"), 100 * part);
    }
}

static nl_status open_trainer(nl_trainer *trainer)
{
    const nl_train_options *options = trainer->options;
    nl_context *context = trainer->context;
    nl_status status = NL_OK;
    nl_checkpoint *init = NULL, *teacher = NULL;
    char name[64];
    NL_TRY(nl_trainer_check(context, options));
    trainer->point.seed = options->seed;
    trainer->point.batch = options->batch;
    trainer->slots = (int)NL_MAX(options->log_every, 100);
    NL_TRY(nl_train_averages(context, options, trainer->point.ema, &trainer->point.ema_count));
    NL_TRY(nl_group_create(context, options->out, &trainer->group));
    trainer->device->cancellable &= trainer->group->size == 1; /* ranks stop together */
    if (options->batch % ((int64_t)trainer->group->size * options->accumulate))
        NL_TRY(nl_fail(
            context, NL_ERROR_USAGE, "--batch %lld is not a multiple of %d %s times %lld %s",
            (long long)options->batch, trainer->group->size,
            nl_plural(trainer->group->size, "process", "processes"), (long long)options->accumulate,
            nl_plural(options->accumulate, "part", "parts")));
    if (options->teacher) {
        NL_TRY(nl_open_backbone(context, options->teacher, NULL, &teacher));
        NL_TRY(nl_trainer_check_teacher(trainer, teacher));
    }
    if (teacher && !options->data) {
        NL_TRY(nl_path_join(context, options->out, NL_RUN_LATENTS, &trainer->drawn));
        trainer->own = *options;
        trainer->own.data = trainer->drawn;
        trainer->options = options = &trainer->own;
        NL_TRY(by_first_rank(trainer, lock_folder));
        NL_TRY(nl_trainer_draw_data(trainer, teacher));
    }
    NL_TRY(open_data(trainer));
    if (options->init)
        NL_TRY(nl_open_backbone(context, options->init, NULL, &init));
    const nl_checkpoint *start = init ? init : teacher;
    NL_TRY(nl_trainer_configure(context, options, nl_dataset_get_info(trainer->data), start,
                                &trainer->config));
    NL_TRY(check_crops(trainer));
    NL_TRY(nl_trainer_check_samples(trainer));
    if (teacher)
        NL_TRY(nl_trainer_take_teacher(trainer, teacher));
    nl_loss_options loss = {.times = (nl_times)find_choice(options->times, nl_train_times),
                            .times_mean = options->times_mean,
                            .times_deviation = options->times_deviation,
                            .weighting =
                                (nl_weighting)find_choice(options->weighting, nl_train_weightings),
                            .min_snr = options->min_snr};
    NL_TRY(nl_loss_create(context, &trainer->config, &loss, &trainer->loss));
    trainer->point.matches = options->match > 0;
    NL_TRY(check_memory(trainer));
    NL_TRY(create_states(trainer, trainer->device, &trainer->state, &trainer->fake));
    NL_TRY(start_weights(trainer, start, teacher));
    trainer->steps = options->steps;
    if (options->epochs) {
        int64_t steps =
            (options->epochs * trainer->point.samples + options->batch - 1) / options->batch;
        trainer->steps = trainer->steps ? NL_MIN(trainer->steps, steps) : steps;
    }
    trainer->last_grid = options->sample_every < 0;
    trainer->clock_grids.passed = trainer->last_grid && options->minutes > 0 ? 0 : -1;
    trainer->clock_saves.passed = options->save_every < 0 && options->minutes > 0 ? 0 : -1;
    trainer->own = *options;
    trainer->options = options = &trainer->own;
    nl_train_follow_length(&trainer->own, trainer->steps);
    warn_of_averages(trainer);
    NL_TRY(
        open_steps(trainer, &trainer->state, &trainer->feed, &trainer->matcher, &trainer->stepper));
    NL_TRY(NL_NEW_ARRAY(context, "results of steps", trainer->slots, &trainer->results));
    nl_log(context, NL_LOG_INFO, "%s, %lld parameters, %lld %s of %d %s, batch %lld, %s",
           nl_config_name(&trainer->config, name, sizeof(name)),
           (long long)nl_dit_parameter_count(trainer->state.model),
           (long long)trainer->point.samples,
           nl_plural(trainer->point.samples, "sample", "samples"), trainer->config.num_classes,
           nl_plural(trainer->config.num_classes, "class", "classes"), (long long)options->batch,
           trainer->device->name);
cleanup:
    nl_checkpoint_close(init);
    nl_checkpoint_close(teacher);
    return status;
}

static void close_trainer(nl_trainer *trainer)
{
    nl_context *context = trainer->context;
    nl_record_close(&trainer->record);
    nl_model_leave(trainer->sampler);
    nl_stepper_close(&trainer->stepper);
    nl_matcher_close(&trainer->matcher);
    nl_feed_close(&trainer->feed);
    nl_state_free(&trainer->state);
    nl_state_free(&trainer->fake);
    nl_dit_destroy(trainer->teacher);
    nl_loss_destroy(trainer->loss);
    nl_config_free(context, &trainer->config);
    nl_dataset_close(trainer->validation);
    nl_dataset_close(trainer->data);
    nl_free(context, trainer->results);
    nl_free(context, trainer->drawn);
    nl_group_destroy(trainer->group);
    trainer->device->cancellable = !nl_device_queues(trainer->device);
    if (trainer->folder_is_new)
        rmdir(trainer->options->out); /* unless something is in it: it could not begin */
    nl_unlock_folder(trainer->lock);
}

static nl_status train(nl_trainer *trainer)
{
    const nl_train_options *options = trainer->options;
    NL_CHECK(open_trainer(trainer));
    NL_CHECK(nl_arena_reserve(trainer->device, trainer->arena));
    if (trainer->validation)
        NL_CHECK(nl_trainer_try_validation(trainer));
    trainer->started = trainer->clock = nl_seconds();
    trainer->first_step = trainer->clock_step = trainer->point.step;
    trainer->elapsed = trainer->point.seconds;
    if (options->dry_run)
        return nl_trainer_dry_run(trainer);
    if (options->profile)
        return nl_trainer_profile(trainer);
    NL_CHECK(by_first_rank(trainer, begin_folder));
    if (options->dump && trainer->point.step == 0)
        NL_CHECK(nl_trainer_dump(trainer));
    return nl_trainer_run(trainer);
}

static void describe(const nl_trainer *trainer, nl_training *training)
{
    const nl_run_point *point = &trainer->point;
    *training = (nl_training){.step = point->step,
                              .steps = trainer->steps,
                              .images = point->step * point->batch,
                              .skipped = point->skipped,
                              .loss = trainer->last_loss,
                              .best_step = point->best_step,
                              .validation = trainer->validation_loss};
    if (trainer->finished)
        snprintf(training->model, sizeof(training->model), "%s/%s", trainer->options->out,
                 NL_RUN_MODEL);
}

nl_status nl_train(nl_context *context, const nl_train_options *given, nl_training *training)
{
    nl_train_options options;
    nl_trainer trainer = {.context = context,
                          .device = context->device,
                          .options = &options,
                          .last_loss = NAN,
                          .validation_loss = NAN,
                          .saved_step = -1,
                          .lock = -1};
    nl_status status = nl_take_options(context, "options of training", given, sizeof(options),
                                       &options, sizeof(options));
    if (status != NL_OK)
        return status;
    nl_config_init(&trainer.config);
    status = train(&trainer);
    if (status != NL_OK && !(status == NL_CANCELLED && trainer.stopping))
        nl_group_abort(trainer.group, status);
    if (training)
        describe(&trainer, training);
    close_trainer(&trainer);
    return status;
}
