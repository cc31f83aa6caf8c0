/* Which part of the pictures this process makes, and on which device. */
#include "nl_sample.h"
#include "ops.h"

#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

/* Rank, size and rank on the machine, as the launchers tell their processes. Not SLURM_NTASKS: it also stands in the
 * environment of a batch script, which is one process. */
static const char *const launchers[][3] = {
    {"OMPI_COMM_WORLD_RANK", "OMPI_COMM_WORLD_SIZE", "OMPI_COMM_WORLD_LOCAL_RANK"},
    {"PMI_RANK", "PMI_SIZE", "MPI_LOCALRANKID"},
    {"SLURM_PROCID", "SLURM_STEP_NUM_TASKS", "SLURM_LOCALID"},
};

static bool environment_number(const char *name, int *number)
{
    const char *text = getenv(name);
    char *end;
    long value = text ? strtol(text, &end, 10) : -1;
    if (!text || end == text || *end || value < 0 || value > 1000000)
        return false;
    *number = (int)value;
    return true;
}

static void from_launcher(nl_context *context, nl_share *share)
{
    for (int i = 0; i < NL_COUNT(launchers); i++) {
        int rank, ranks, local;
        if (!environment_number(launchers[i][0], &rank) ||
            !environment_number(launchers[i][1], &ranks) || ranks < 2 || rank >= ranks)
            continue;
        share->rank = rank;
        share->ranks = ranks;
        if (environment_number(launchers[i][2], &local))
            share->local = local;
        nl_log(context, NL_LOG_INFO, "process %d of %d, says %s: every %dth batch", rank, ranks,
               launchers[i][0], ranks);
        return;
    }
}

static nl_status from_option(nl_context *context, const char *text, nl_share *share)
{
    int end = 0;
    if (sscanf(text, "%d/%d%n", &share->rank, &share->ranks, &end) != 2 || text[end] ||
        share->rank < 0 || share->rank >= share->ranks || share->ranks > 1000000)
        return nl_fail(context, NL_ERROR_USAGE,
                       "--rank %s: expected R/W with 0 <= R < W, such as 0/4", text);
    return NL_OK;
}

/* As nl_launch wrote it. */
static nl_status from_parent(nl_context *context, const char *text, int *gpu, nl_share *share)
{
    unsigned long long token;
    if (sscanf(text, "%d/%d %llx %d %d", &share->rank, &share->ranks, &token, &share->report,
               gpu) != 5 ||
        share->rank < 0 || share->rank >= share->ranks || fcntl(share->report, F_GETFD) < 0)
        return nl_fail(context, NL_ERROR_USAGE,
                       "%s: nalagen sets it for the processes that it starts: unset it",
                       NL_CHILD_VARIABLE);
    fcntl(share->report, F_SETFD, FD_CLOEXEC);
    share->token = token;
    unsetenv(NL_CHILD_VARIABLE);
    return NL_OK;
}

nl_status nl_share_read(nl_context *context, nl_sample_options *options, nl_share *share)
{
    nl_status status = NL_OK;
    const char *child = getenv(NL_CHILD_VARIABLE);
    bool any =
        !options->device || !strcmp(options->device, "auto") || !strcmp(options->device, "cuda");
    int gpu = -1;
    *share = (nl_share){.ranks = 1, .local = -1, .report = -1};
    if (child) {
        NL_TRY(from_parent(context, child, &gpu, share));
        if (!options->threads)
            options->threads = NL_MAX(1, nl_default_threads() / share->ranks);
    } else if (options->rank) {
        NL_TRY(from_option(context, options->rank, share));
    } else if (options->n > 1 && !options->requests && !options->gpus && !options->processes) {
        from_launcher(context, share);
    }
    int gpus = share->local >= 0 && any ? nl_cuda_device_count() : 0;
    if (gpus > 1)
        gpu = share->local % gpus;
    if (gpu >= 0) {
        snprintf(share->device, sizeof(share->device), "cuda:%d", gpu);
        options->device = share->device;
    }
    if (share->ranks > 1 && options->requests)
        NL_TRY(nl_fail(context, NL_ERROR_USAGE, "--requests is the work of one process"));
cleanup:
    return status;
}

/* A parent that has gone leaves nobody to tell. */
void nl_share_tell(const nl_share *share, nl_share_report report)
{
    ssize_t written = share->report >= 0 ? write(share->report, &report, sizeof(report)) : 0;
    (void)written;
}
