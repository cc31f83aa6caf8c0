/* SPDX-License-Identifier: MIT */
/* GPUs of one or several machines. Rank 0 writes NCCL's name of the group to a file that the others wait for; it is gone
 * when all have joined. */
#include "nl_group.h"

#ifdef NL_CUDA
#include <stdio.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

#include "nl_io.h"
#include "nl_nccl.h"
#include "trainer.h"

enum { PATIENCE = 300 /* seconds until the last process is there */ };

static nl_status write_id(nl_context *context, const char *path, const uint8_t id[NL_NCCL_ID])
{
    nl_status status = NL_OK;
    nl_writer *writer = NULL;
    NL_TRY(nl_writer_open(context, path, true, &writer));
    NL_TRY(nl_writer_write(writer, id, NL_NCCL_ID));
    NL_TRY(nl_writer_commit(&writer));
cleanup:
    nl_writer_abort(&writer);
    return status;
}

static nl_status read_id(nl_context *context, const char *path, uint8_t id[NL_NCCL_ID])
{
    const struct timespec pause = {.tv_nsec = 50 * 1000 * 1000};
    double started = nl_seconds();
    for (;;) {
        FILE *file = fopen(path, "rb");
        size_t size = file ? fread(id, 1, NL_NCCL_ID, file) : 0;
        if (file)
            fclose(file);
        if (size == NL_NCCL_ID)
            return NL_OK;
        NL_CHECK(nl_check_cancelled(context));
        if (nl_seconds() - started > PATIENCE)
            return nl_fail(
                context, NL_ERROR_DEVICE,
                "%s: the first process has not written it in %d s; all processes must see "
                "this folder",
                path, PATIENCE);
        nanosleep(&pause, NULL);
    }
}

static nl_status nccl_all_reduce_sum(nl_group *group, const nl_tensor *x)
{
    return nl_nccl_sum(group->state, x->data, nl_tensor_count(x));
}

static nl_status nccl_join(nl_group *group)
{
    return nl_nccl_join(group->state);
}

static nl_status nccl_maximum(nl_group *group, int64_t *value)
{
    return nl_nccl_maximum(group->state, value);
}

static nl_status nccl_barrier(nl_group *group)
{
    int64_t nothing = 0;
    return nl_nccl_maximum(group->state, &nothing);
}

static nl_status nccl_broadcast(nl_group *group, int root, void *data, int64_t bytes)
{
    return nl_nccl_broadcast(group->state, root, data, bytes);
}

/* Who started the processes ends those that wait (mpirun and nalagen do; srun with --kill-on-bad-exit). */
static void nccl_abort(nl_group *group, nl_status status)
{
    (void)status;
    nl_nccl_abort(group->state);
}

static void nccl_destroy(nl_group *group)
{
    nl_nccl_destroy(group->state);
}

static const nl_group_ops ops = {"nccl",       nccl_all_reduce_sum, nccl_join,  nccl_maximum,
                                 nccl_barrier, nccl_broadcast,      nccl_abort, nccl_destroy};

nl_status nl_group_open_nccl(nl_group *group, const char *folder, const char *token)
{
    nl_context *context = group->context;
    nl_status status = NL_OK;
    char *path = NULL, name[128];
    uint8_t id[NL_NCCL_ID];
    nl_nccl *nccl = NULL;
    bool fresh = !nl_path_exists(folder);
    snprintf(name, sizeof(name), "group-%s", token);
    NL_TRY(nl_path_join(context, folder, name, &path));
    if (group->rank == 0) {
        NL_TRY(nl_make_folder(context, folder));
        NL_TRY(nl_nccl_id(context, id));
        NL_TRY(write_id(context, path, id));
    } else {
        NL_TRY(read_id(context, path, id));
    }
    status = nl_nccl_create(group->device, id, group->rank, group->size, &nccl);
    if (group->rank == 0)
        unlink(path);
    if (group->rank == 0 && fresh) /* a run that is not to begin leaves no folder */
        rmdir(folder);
    NL_TRY(status);
    group->state = nccl;
    group->ops = &ops;
cleanup:
    nl_free(context, path);
    return status;
}

#else

nl_status nl_group_open_nccl(nl_group *group, const char *folder, const char *token)
{
    (void)folder, (void)token;
    return nl_fail(group->context, NL_ERROR_DEVICE, "this build has no CUDA");
}
#endif
