/* SPDX-License-Identifier: MIT */
/* Which of several processes this is: what Open MPI, other MPIs, Slurm and our own parent tell it. */
#include "nl_process.h"

#include <stdio.h>
#include <stdlib.h>

/* Rank, size, rank on the machine, and up to two variables that tell one start from another. Not SLURM_NTASKS: it also
 * stands in the environment of a batch script, which is one process. */
static const char *const launchers[][5] = {
    {"OMPI_COMM_WORLD_RANK", "OMPI_COMM_WORLD_SIZE", "OMPI_COMM_WORLD_LOCAL_RANK", "PMIX_NAMESPACE",
     NULL},
    {"PMI_RANK", "PMI_SIZE", "MPI_LOCALRANKID", "PMI_ID_NAMESPACE", "HYDRA_BSTRAP_JOBID"},
    {"SLURM_PROCID", "SLURM_STEP_NUM_TASKS", "SLURM_LOCALID", "SLURM_JOB_ID", "SLURM_STEP_ID"},
};

static bool number_of(const char *name, int *number)
{
    const char *text = getenv(name);
    char *end;
    long value = text ? strtol(text, &end, 10) : -1;
    if (!text || end == text || *end || value < 0 || value > 1000000)
        return false;
    *number = (int)value;
    return true;
}

static bool read_child(const char *text, nl_process *process)
{
    unsigned long long token;
    if (sscanf(text, "%d/%d %llx %d %d", &process->rank, &process->ranks, &token,
               &process->descriptor, &process->local) != 5 ||
        process->rank < 0 || process->rank >= process->ranks || process->ranks > 1000000)
        return false;
    process->launcher = NL_CHILD_VARIABLE;
    process->child_token = token;
    snprintf(process->token, sizeof(process->token), "%llx", token);
    return true;
}

bool nl_process_read(nl_process *process)
{
    const char *child = getenv(NL_CHILD_VARIABLE);
    *process = (nl_process){.ranks = 1, .local = -1, .descriptor = -1};
    if (child)
        return read_child(child, process);
    for (size_t i = 0; i < sizeof(launchers) / sizeof(launchers[0]); i++) {
        const char *const *names = launchers[i];
        int rank, ranks, local;
        if (!number_of(names[0], &rank) || !number_of(names[1], &ranks) || ranks < 2 ||
            rank >= ranks)
            continue;
        process->rank = rank;
        process->ranks = ranks;
        process->launcher = names[0];
        if (number_of(names[2], &local))
            process->local = local;
        const char *job = names[3] ? getenv(names[3]) : NULL;
        const char *step = names[4] ? getenv(names[4]) : NULL;
        snprintf(process->token, sizeof(process->token), "%.31s%s%.31s", job ? job : "",
                 job && step ? "." : "", step ? step : "");
        break;
    }
    return true;
}
