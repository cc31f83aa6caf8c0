/* SPDX-License-Identifier: MIT */
/* Which part of the pictures this process makes, and on which device. */
#include "nl_process.h"
#include "nl_sample.h"
#include "ops.h"

#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

static void from_launcher(nl_context *context, const nl_process *process, nl_share *share)
{
    if (process->ranks < 2)
        return;
    share->rank = process->rank;
    share->ranks = process->ranks;
    share->local = process->local;
    nl_log(context, NL_LOG_INFO, "process %d of %d, says %s: one batch in %d", share->rank,
           share->ranks, process->launcher, share->ranks);
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

static nl_status from_parent(nl_context *context, const nl_process *process, int *gpu,
                             nl_share *share)
{
    if (fcntl(process->descriptor, F_GETFD) < 0)
        return nl_fail(context, NL_ERROR_USAGE,
                       "%s: nalagen sets it for the processes that it starts: unset it",
                       NL_CHILD_VARIABLE);
    share->rank = process->rank;
    share->ranks = process->ranks;
    share->token = process->child_token;
    share->report = process->descriptor;
    *gpu = process->local;
    fcntl(share->report, F_SETFD, FD_CLOEXEC);
    unsetenv(NL_CHILD_VARIABLE);
    return NL_OK;
}

nl_status nl_share_read(nl_context *context, nl_sample_options *options, nl_share *share)
{
    nl_machine_options *machine = &options->machine;
    nl_process process;
    bool read = nl_process_read(&process);
    bool any =
        !machine->device || !strcmp(machine->device, "auto") || !strcmp(machine->device, "cuda");
    int gpu = -1;
    *share = (nl_share){.ranks = 1, .local = -1, .report = -1};
    if (!read || process.child_token) {
        NL_CHECK(from_parent(context, &process, &gpu, share));
        if (!machine->threads)
            machine->threads = NL_MAX(1, nl_default_threads() / share->ranks);
    } else if (options->rank) {
        NL_CHECK(from_option(context, options->rank, share));
    } else if (options->task.n > 1 && !options->requests && !options->gpus && !options->processes) {
        from_launcher(context, &process, share);
    }
    int gpus = share->local >= 0 && any ? nl_cuda_device_count() : 0;
    if (gpus > 1)
        gpu = share->local % gpus;
    if (gpu >= 0) {
        snprintf(share->device, sizeof(share->device), "cuda:%d", gpu);
        machine->device = share->device;
    }
    if (share->ranks > 1 && options->requests)
        return nl_fail(context, NL_ERROR_USAGE, "--requests is the work of one process");
    return NL_OK;
}

/* A parent that has gone leaves nobody to tell. */
void nl_share_tell(const nl_share *share, nl_share_report report)
{
    ssize_t written = share->report >= 0 ? write(share->report, &report, sizeof(report)) : 0;
    (void)written;
}
