/* SPDX-License-Identifier: MIT */
/*
 * The processes that train one model together, data parallel: each holds the whole model and computes the
 * gradient of its part of a batch; or that evaluate pictures together. One process is a group of its own.
 *
 * A group is its table of functions. Everything that needs the others goes through the functions below, which
 * do nothing in a group of one.
 */
#ifndef NL_GROUP_H
#define NL_GROUP_H

#include "ops.h"

typedef struct nl_group nl_group;

typedef struct nl_group_ops {
    const char *name; /* "mpi", "nccl" */
    /* x F32 [n] on the device becomes the sum over all ranks, the same bits on each. Called in the same order
     * by all. May run beside the device's later work: it starts behind what is queued by now and is over
     * behind `join`. */
    nl_status (*all_reduce_sum)(nl_group *group, const nl_tensor *x);
    nl_status (*join)(nl_group *group);
    /* *value on the host becomes the largest of all ranks'. Waits. */
    nl_status (*maximum)(nl_group *group, int64_t *value);
    nl_status (*barrier)(nl_group *group);
    /* data on the host becomes that of rank `root`. Waits. */
    nl_status (*broadcast)(nl_group *group, int root, void *data, int64_t bytes);
    /* This rank failed: the others end with an error instead of waiting for ever. */
    void (*abort)(nl_group *group, nl_status status);
    void (*destroy)(nl_group *group);
} nl_group_ops;

struct nl_group {
    const nl_group_ops *ops; /* NULL in a group of one */
    nl_context *context;
    nl_device *device; /* that holds the tensors */
    int rank, size;    /* size >= 1 */
    int failed;        /* 1 + the rank that has failed, as far as this one knows; 0: none */
    void *state;       /* of the implementation */
};

/* The group that this process was started in (nalagen itself, mpirun, srun), or of one. GPUs talk through NCCL and find
 * each other by a file in `folder`, which all of them see; CPUs talk through MPI. */
nl_status nl_group_create(nl_context *context, const char *folder, nl_group **group);
void nl_group_destroy(nl_group *group); /* NULL is allowed */

nl_status nl_group_all_reduce_sum(nl_group *group, const nl_tensor *x);
nl_status nl_group_join(nl_group *group);
nl_status nl_group_maximum(nl_group *group, int64_t *value);
nl_status nl_group_barrier(nl_group *group);
nl_status nl_group_broadcast(nl_group *group, int root, void *data, int64_t bytes);
/* What each rank has come to becomes what all have come to: NL_OK, or the status of the first rank that failed, which alone has
 * the message. From then on the group is over: nobody waits in it, and nl_group_abort does nothing. NULL: a group of one. */
nl_status nl_group_agree(nl_group *group, nl_status status);
void nl_group_abort(nl_group *group, nl_status status);

/* group_mpi.c, group_nccl.c: set ops and state of a group whose rank and size are known. */
nl_status nl_group_open_mpi(nl_group *group);
nl_status nl_group_open_nccl(nl_group *group, const char *folder, const char *token);

#endif
