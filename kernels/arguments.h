/* SPDX-License-Identifier: MIT */
/*
 * Checks of an operation's arguments: types, shapes, strides, overlap. The first problem is kept, later
 * calls do nothing, and nl_arguments_end says what it came to. Costs no allocation and no pass over data.
 */
#ifndef NL_ARGUMENTS_H
#define NL_ARGUMENTS_H

#include "ops.h"

/* Flags of a tensor; without a type flag it is F32, or BF16 on the GPU. */
enum {
    NL_ARG_OPTIONAL = 1,
    NL_ARG_STRIDED = 2,  /* rows may be strided */
    NL_ARG_OUTPUT = 4,   /* overlaps no other argument */
    NL_ARG_IN_PLACE = 8, /* an input that may be an output: the same view of the same memory */
    NL_ARG_WEIGHT = 16,  /* F32 or BF16 everywhere */
    NL_ARG_F32 = 32,     /* F32 everywhere */
    NL_ARG_U8 = 64,
    NL_ARG_I32 = 128,
    NL_ARG_F16 = 256,    /* or F16 on the GPU */
    NL_ARG_STORED = 512, /* F32, F16, BF16 or U8: what a data set may hold */
    NL_ARG_F64 = 1024,
    NL_ARG_I64 = 2048,
    NL_ARG_F8 = 4096,          /* F8 everywhere */
    NL_ARG_MAYBE_F8 = 8192,    /* or F8 everywhere */
    NL_ARG_FEATURE_MAP = 16384 /* or BF16 on a device whose feature maps are */
};

enum { NL_ANY = -1, NL_MAX_ARGUMENTS = 20 };

typedef struct nl_arguments {
    nl_device *device;
    const char *operation;
    nl_status status;
    int count;
    struct {
        const char *name;
        const nl_tensor *tensor;
        int flags;
    } tensors[NL_MAX_ARGUMENTS];
} nl_arguments;

/* shape: sizes, or NL_ANY. */
void nl_check_tensor(nl_arguments *arguments, const char *name, const nl_tensor *tensor, int flags,
                     int ndim, const int64_t *shape);
void nl_check(nl_arguments *arguments, bool holds, const char *format, ...) NL_PRINTF(3, 4);
/* The overlap checks, and the status of all. */
nl_status nl_arguments_end(nl_arguments *arguments);

#endif
