/* SPDX-License-Identifier: MIT */
/*
 * Processes on CPUs, through MPI. Started by mpirun or srun.
 *
 * MPI is loaded when there are several. Linked, it would be in every process of the program, with the twenty libraries that it
 * needs: some start threads before main, take over mmap, and abort where a limit of addresses stops them.
 */
#include "nl_group.h"

#ifdef NL_MPI
#include <dlfcn.h>
#include <limits.h>
#include <mpi.h>
#include <string.h>
#include <time.h>

#define FUNCTIONS(X)                                                                               \
    X(Abort)                                                                                       \
    X(Allreduce)                                                                                   \
    X(Barrier)                                                                                     \
    X(Bcast)                                                                                       \
    X(Comm_rank)                                                                                   \
    X(Comm_set_errhandler)                                                                         \
    X(Comm_size)                                                                                   \
    X(Error_string)                                                                                \
    X(Finalize)                                                                                    \
    X(Finalized)                                                                                   \
    X(Init_thread)                                                                                 \
    X(Initialized)

/* Type, name in mpi.h, and of what it is the address in Open MPI. */
#define HANDLES(X)                                                                                 \
    X(world, MPI_Comm, MPI_COMM_WORLD, ompi_mpi_comm_world)                                        \
    X(byte, MPI_Datatype, MPI_BYTE, ompi_mpi_byte)                                                 \
    X(errors_return, MPI_Errhandler, MPI_ERRORS_RETURN, ompi_mpi_errors_return)                    \
    X(float32, MPI_Datatype, MPI_FLOAT, ompi_mpi_float)                                            \
    X(int64, MPI_Datatype, MPI_INT64_T, ompi_mpi_int64_t)                                          \
    X(max, MPI_Op, MPI_MAX, ompi_mpi_op_max)                                                       \
    X(sum, MPI_Op, MPI_SUM, ompi_mpi_op_sum)

static struct {
#define MEMBER(name) __typeof__(&MPI_##name) name;
    FUNCTIONS(MEMBER)
#undef MEMBER
#define MEMBER(name, type, constant, symbol) type name;
    HANDLES(MEMBER)
#undef MEMBER
} mpi;

#ifdef OPEN_MPI
#define HANDLE(constant, symbol) dlsym(library, #symbol)
#else /* a number */
#define HANDLE(constant, symbol) constant
#endif

static nl_status load(nl_context *context)
{
    if (mpi.Abort)
        return NL_OK;
    /* Open MPI's own plugins look for it among all symbols. */
    void *library = dlopen(NL_MPI, RTLD_NOW | RTLD_GLOBAL), *address;
    if (!library)
        library = dlopen(NL_MPI_FILE, RTLD_NOW | RTLD_GLOBAL);
    if (!library)
        return nl_fail(context, NL_ERROR_DEVICE,
                       "several processes on CPUs talk through MPI, which cannot be loaded: %s",
                       dlerror());
#define FIND(name, type, constant, symbol)                                                         \
    if (!(mpi.name = HANDLE(constant, symbol)))                                                    \
        return nl_fail(context, NL_ERROR_DEVICE, NL_MPI " is without " #constant);
    HANDLES(FIND)
#undef FIND
#define FIND(name)                                                                                 \
    if (!(address = dlsym(library, "MPI_" #name)))                                                 \
        return nl_fail(context, NL_ERROR_DEVICE, NL_MPI " is without MPI_" #name);                 \
    memcpy(&mpi.name, &address, sizeof(address));
    FUNCTIONS(FIND)
#undef FIND
    return NL_OK;
}

static nl_status check(nl_group *group, int result, const char *what)
{
    char text[MPI_MAX_ERROR_STRING] = "";
    int size = 0;
    if (result == MPI_SUCCESS)
        return NL_OK;
    mpi.Error_string(result, text, &size);
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
    for (int64_t left = nl_tensor_count(x); left > 0;) {
        int part = part_of(left);
        NL_CHECK(check(group,
                       mpi.Allreduce(MPI_IN_PLACE, values, part, mpi.float32, mpi.sum, mpi.world),
                       "a sum over processes"));
        values += part;
        left -= part;
    }
    return NL_OK;
}

static nl_status mpi_join(nl_group *group)
{
    (void)group;
    return NL_OK;
}

static nl_status mpi_maximum(nl_group *group, int64_t *value)
{
    return check(group, mpi.Allreduce(MPI_IN_PLACE, value, 1, mpi.int64, mpi.max, mpi.world),
                 "asking all processes");
}

static nl_status mpi_barrier(nl_group *group)
{
    return check(group, mpi.Barrier(mpi.world), "waiting for all processes");
}

static nl_status mpi_broadcast(nl_group *group, int root, void *data, int64_t bytes)
{
    uint8_t *at = data;
    for (int64_t left = bytes; left > 0;) {
        int part = part_of(left);
        NL_CHECK(check(group, mpi.Bcast(at, part, mpi.byte, root, mpi.world),
                       "sending to all processes"));
        at += part;
        left -= part;
    }
    return NL_OK;
}

/* Does not come back: what went wrong is said before, and the launcher gets time to pass it on. */
static void mpi_abort(nl_group *group, nl_status status)
{
    nl_log(group->context, NL_LOG_ERROR, "process %d of %d: %s", group->rank, group->size,
           nl_last_error(group->context));
    nanosleep(&(struct timespec){.tv_nsec = 300 * 1000 * 1000}, NULL);
    mpi.Abort(mpi.world, (int)status);
}

static void mpi_destroy(nl_group *group)
{
    int over = 0;
    (void)group;
    if (mpi.Finalized(&over) == MPI_SUCCESS && !over)
        mpi.Finalize();
}

static const nl_group_ops ops = {"mpi",       mpi_all_reduce_sum, mpi_join,  mpi_maximum,
                                 mpi_barrier, mpi_broadcast,      mpi_abort, mpi_destroy};

nl_status nl_group_open_mpi(nl_group *group)
{
    int already = 0, provided, rank, size;
    NL_CHECK(load(group->context));
    NL_CHECK(check(group, mpi.Initialized(&already), "starting"));
    if (!already)
        NL_CHECK(
            check(group, mpi.Init_thread(NULL, NULL, MPI_THREAD_FUNNELED, &provided), "starting"));
    mpi.Comm_set_errhandler(mpi.world, mpi.errors_return);
    NL_CHECK(check(group, mpi.Comm_rank(mpi.world, &rank), "asking for the rank"));
    NL_CHECK(check(group, mpi.Comm_size(mpi.world, &size), "asking for the size"));
    if (size != group->size)
        return nl_fail(
            group->context, NL_ERROR_DEVICE,
            "the launcher started %d processes, and MPI (another one than this build's?) "
            "sees %d",
            group->size, size);
    group->rank = rank;
    group->ops = &ops;
    return NL_OK;
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
