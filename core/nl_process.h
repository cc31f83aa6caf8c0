/* SPDX-License-Identifier: MIT */
/* The place of this process among those that were started together. */
#ifndef NL_PROCESS_H
#define NL_PROCESS_H

#include <stdbool.h>
#include <stdint.h>

/* Set by nalagen for processes that it starts itself: "rank/ranks token descriptor gpu". */
#define NL_CHILD_VARIABLE "NALAGEN_CHILD"

typedef struct nl_process {
    int rank, ranks;      /* 0 of 1: alone */
    int local;            /* rank on this machine; a child's GPU; -1: not known */
    const char *launcher; /* the variable that says so; NULL: alone */
    char token[64];       /* the same in all of them, another in each start; "": not known */
    uint64_t child_token; /* of a child of nalagen; 0: the child of somebody else */
    int descriptor;       /* that a child was given, or -1 */
} nl_process;

/* From the environment that nalagen, mpirun (Open MPI, MPICH, Intel) or srun make. false: it is contradictory. */
bool nl_process_read(nl_process *process);

#endif
