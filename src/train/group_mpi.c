/* SPDX-License-Identifier: MIT */
/* Processes on CPUs, through MPI. Started by mpirun or srun. */
#include "nl_group.h"

#ifdef NL_MPI
#include <limits.h>
#include <mpi.h>
#include <time.h>

static nl_status check(nl_group *group, int result, const char *what)
{
    char text[MPI_MAX_ERROR_STRING] = "";
    int size = 0;
    if (result == MPI_SUCCESS)
        return NL_OK;
    MPI_Error_string(result, text, &size);
    return nl_fail(group->context, NL_ERROR_DEVICE, "MPI: %s: %s", what, text);
}

/* MPI counts in int. */
static int part_of(int64_t left)
{
    return (int)NL_MIN(left, (int64_t)INT_MAX / 2);
}

static nl_status mpi_all_reduce_sum(nl_group *group, const nl_tensor *x)
{
    float *values = x->data;
    nl_status status = NL_OK;
    for (int64_t left = nl_tensor_count(x); left > 0;) {
        int part = part_of(left);
        NL_TRY(check(group,
                     MPI_Allreduce(MPI_IN_PLACE, values, part, MPI_FLOAT, MPI_SUM, MPI_COMM_WORLD),
                     "a sum over processes"));
        values += part;
        left -= part;
    }
cleanup:
    return status;
}

static nl_status mpi_join(nl_group *group)
{
    (void)group;
    return NL_OK;
}

static nl_status mpi_maximum(nl_group *group, int64_t *value)
{
    return check(group, MPI_Allreduce(MPI_IN_PLACE, value, 1, MPI_INT64_T, MPI_MAX, MPI_COMM_WORLD),
                 "asking all processes");
}

static nl_status mpi_barrier(nl_group *group)
{
    return check(group, MPI_Barrier(MPI_COMM_WORLD), "waiting for all processes");
}

/* Does not come back: what went wrong is said before, and the launcher gets time to pass it on. */
static void mpi_abort(nl_group *group, nl_status status)
{
    nl_log(group->context, NL_LOG_ERROR, "process %d of %d: %s", group->rank, group->size,
           nl_last_error(group->context));
    nanosleep(&(struct timespec){.tv_nsec = 300 * 1000 * 1000}, NULL);
    MPI_Abort(MPI_COMM_WORLD, (int)status);
}

static void mpi_destroy(nl_group *group)
{
    int over = 0;
    (void)group;
    if (MPI_Finalized(&over) == MPI_SUCCESS && !over)
        MPI_Finalize();
}

static const nl_group_ops ops = {"mpi",       mpi_all_reduce_sum, mpi_join,   mpi_maximum,
                                 mpi_barrier, mpi_abort,          mpi_destroy};

nl_status nl_group_open_mpi(nl_group *group)
{
    nl_status status = NL_OK;
    int already = 0, provided, rank, size;
    NL_TRY(check(group, MPI_Initialized(&already), "starting"));
    if (!already)
        NL_TRY(
            check(group, MPI_Init_thread(NULL, NULL, MPI_THREAD_FUNNELED, &provided), "starting"));
    MPI_Comm_set_errhandler(MPI_COMM_WORLD, MPI_ERRORS_RETURN);
    NL_TRY(check(group, MPI_Comm_rank(MPI_COMM_WORLD, &rank), "asking for the rank"));
    NL_TRY(check(group, MPI_Comm_size(MPI_COMM_WORLD, &size), "asking for the size"));
    if (size != group->size)
        NL_TRY(
            nl_fail(group->context, NL_ERROR_DEVICE,
                    "the launcher started %d processes, and MPI (another one than this build's?) "
                    "sees %d",
                    group->size, size));
    group->rank = rank;
    group->ops = &ops;
cleanup:
    return status;
}

#else

nl_status nl_group_open_mpi(nl_group *group)
{
    return nl_fail(group->context, NL_ERROR_DEVICE,
                   "process %d of %d: several processes on CPUs need a build with MPI (install "
                   "libopenmpi-dev and build again)",
                   group->rank, group->size);
}
#endif
