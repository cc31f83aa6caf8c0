/* SPDX-License-Identifier: MIT */
/*
 * The CPU back end: what its files share.
 *
 * Every operation is compiled once for each instruction set level that CMake names in NL_CPU_LEVEL:
 * `base` (whatever the compiler's default is), and on x86-64 `v3` (AVX2, FMA) and `v4` (AVX-512).
 * The code is the same plain C; only the width of its vectors differs. dispatch.c takes the best
 * level that the processor has.
 *
 * Results do not depend on the number of threads or images: sums are split at fixed places, never
 * by thread.
 */
#ifndef NL_CPU_H
#define NL_CPU_H

#include "nl_dnnl.h"
#include "ops.h"

#include <omp.h>

#ifndef NL_CPU_LEVEL
#define NL_CPU_LEVEL base
#endif
#define NL_CPU_PASTE(name, level)  nl_cpu_##name##_##level
#define NL_CPU_EXPAND(name, level) NL_CPU_PASTE(name, level)
/* nl_cpu_NAME_LEVEL */
#define NL_CPU(name) NL_CPU_EXPAND(name, NL_CPU_LEVEL)

#define NL_OPERATION(operation)                                                                    \
    nl_status NL_CPU(operation)(nl_device * device, const nl_##operation##_args *args);
NL_ALL_OPERATIONS(NL_OPERATION)
#undef NL_OPERATION

extern const nl_ops NL_CPU(ops);

typedef struct nl_cpu_state { /* nl_device.state */
    const nl_ops *level;
    nl_dnnl *dnnl;
    struct nl_frozen_weights *frozen; /* arranged.c */
    void *scratch;
    int64_t scratch_bytes;
} nl_cpu_state;

/* The operations of one level, or NULL when this build or this processor does not have it. name:
 * "base", "v3", "v4", or NULL for the best. */
const nl_ops *nl_cpu_level(const char *name);

/* At least `bytes` of working memory, 64-byte aligned, valid until the next call. */
nl_status nl_cpu_scratch(nl_device *device, int64_t bytes, void **scratch);

/* sums [columns] += sums over the rows of the first columns of x, by runs of rows of fixed length; in linear_backward.c. */
void NL_CPU(column_sums)(nl_device *device, const nl_tensor *x, int64_t columns, float *sums);

/* depthwise_conv, with the kernel turned by 180 degrees for the gradient of x; a bias left out is 0. */
nl_status NL_CPU(convolve_tokens)(nl_device *device, const nl_depthwise_conv_args *args,
                                  bool turned);

/* conv2d of 3 x 3 in fp32 with fewer multiplications, and whether it is such a one; in winograd.c. */
bool NL_CPU(winograd_takes)(const nl_conv2d_args *args);
nl_status NL_CPU(winograd)(nl_device *device, const nl_conv2d_args *args);

/* Whether products by BF16 weights are made in BF16; otherwise they are in F32, the weight widened. */
static inline bool nl_cpu_multiplies_bf16(const nl_device *device)
{
    return device->dtype == NL_BF16 && nl_dnnl_has_bf16();
}

/* Threads worth waking for `work` elements of simple arithmetic. */
static inline int nl_cpu_team(const nl_device *device, int64_t work)
{
    return work < 16384 ? 1 : device->threads;
}

/* Rounds up to a multiple of `unit`. */
static inline int64_t nl_cpu_pad(int64_t count, int64_t unit)
{
    return (count + unit - 1) / unit * unit;
}

static inline const float *nl_cpu_row(const nl_tensor *tensor, int64_t row)
{
    return (const float *)tensor->data + row * tensor->row_stride;
}

static inline float *nl_cpu_row_out(const nl_tensor *tensor, int64_t row)
{
    return (float *)tensor->data + row * tensor->row_stride;
}

#endif
