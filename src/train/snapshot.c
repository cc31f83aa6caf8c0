/* SPDX-License-Identifier: MIT */
/* Snapshots of averages: written now and then, thinned so that their number stays bounded. */
#include <errno.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

#include "trainer.h"

/* RUN/snapshots/sigma-0.05 */
static nl_status folder_of(const nl_trainer *trainer, const nl_average *average, char **folder)
{
    return nl_format(trainer->context, folder, "%s/%s/" NL_RUN_SIGMA "%g", trainer->options->out,
                     NL_RUN_SNAPSHOTS, average->sigma_rel);
}

nl_status nl_trainer_begin_snapshots(nl_trainer *trainer)
{
    nl_context *context = trainer->context;
    nl_status status = NL_OK;
    char *folder = NULL;
    if (!trainer->options->snapshot_every)
        return NL_OK;
    NL_TRY(nl_path_join(context, trainer->options->out, NL_RUN_SNAPSHOTS, &folder));
    NL_TRY(nl_make_folder(context, folder));
    for (int i = 0; i < trainer->point.ema_count; i++) {
        if (!trainer->point.ema[i].sigma_rel)
            continue;
        nl_free(context, folder);
        folder = NULL;
        NL_TRY(folder_of(trainer, &trainer->point.ema[i], &folder));
        NL_TRY(nl_make_folder(context, folder));
        nl_remove_temporaries(context, folder);
        NL_TRY(nl_set_aside_points(context, folder, trainer->point.step));
    }
cleanup:
    nl_free(context, folder);
    return status;
}

/* Steps between those that stay: the interval, doubled until there are no more than --snapshots. So which ones there
 * are follows from the step alone, and a run that was stopped has those of one that was not. */
static int64_t spacing(const nl_train_options *options, int64_t step)
{
    int64_t every = options->snapshot_every;
    while (step / every > options->snapshots)
        every *= 2;
    return every;
}

static nl_status thin_out(nl_trainer *trainer, const char *folder)
{
    nl_context *context = trainer->context;
    int64_t every = spacing(trainer->options, trainer->point.step);
    char **paths;
    int count;
    NL_CHECK(nl_list_points(context, folder, &paths, &count));
    for (int i = 0; i < count; i++) {
        int64_t step = nl_point_step(paths[i]);
        if (step % every && step < trainer->point.step && unlink(paths[i]) != 0)
            nl_log(context, NL_LOG_WARNING, "%s: cannot be removed: %s", paths[i], strerror(errno));
    }
    nl_free_points(context, paths, count);
    return NL_OK;
}

/* A model by itself, in half precision: what the rounding adds is a hundredth of what separates two averages. */
static nl_status write_one(nl_trainer *trainer, int index)
{
    nl_context *context = trainer->context;
    nl_dit *average = trainer->state.ema[index];
    nl_status status = NL_OK;
    char name[NL_RUN_NAME], *folder = NULL, *path = NULL;
    NL_TRY(folder_of(trainer, &trainer->point.ema[index], &folder));
    NL_TRY(nl_path_join(context, folder, nl_run_checkpoint_name(trainer->point.step, name), &path));
    nl_describe_average(&trainer->point, &trainer->point.ema[index], &average->config);
    status = nl_dit_save(average, path, true, NL_F16);
    if (status == NL_CANCELLED) { /* a signal while a slow disk wrote: first this, then stop */
        status = nl_dit_save(average, path, true, NL_F16);
        nl_cancel(context);
    }
    if (status == NL_OK)
        status = thin_out(trainer, folder);
cleanup:
    nl_free(context, folder);
    nl_free(context, path);
    return status;
}

nl_status nl_trainer_snapshot(nl_trainer *trainer)
{
    for (int i = 0; i < trainer->point.ema_count; i++) {
        if (!trainer->point.ema[i].sigma_rel)
            continue;
        nl_status status = write_one(trainer, i);
        if (status == NL_ERROR_WRITE)
            nl_log(trainer->context, NL_LOG_ERROR,
                   "step %lld: a snapshot was not written, training continues: %s",
                   (long long)trainer->point.step, nl_last_error(trainer->context));
        else if (status != NL_OK)
            return status;
    }
    return NL_OK;
}
