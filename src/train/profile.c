/* SPDX-License-Identifier: MIT */
/* --profile: where the time of a step goes. The device's table of operations, with a clock around each. */
#include <stdio.h>
#include <stdlib.h>

#include "trainer.h"
#include "work.h"

enum { WARM_UP = 3, TIMED = 10 };

typedef struct nl_operation_time {
    const char *name;
    double seconds, flops; /* flops: of products alone */
    int64_t calls;
} nl_operation_time;

enum {
#define NL_OPERATION(operation) INDEX_##operation,
    NL_ALL_OPERATIONS(NL_OPERATION)
#undef NL_OPERATION
        OPERATIONS
};

/* Stands in the device's place for its operations: device->ops points at `table`, and so at the whole. */
typedef struct nl_profile {
    nl_ops table;
    const nl_ops *real;
    nl_operation_time times[OPERATIONS];
} nl_profile;

static double product_flops(const nl_tensor *a, const nl_tensor *b)
{
    return 2 * (double)a->shape[0] * (double)a->shape[1] * (double)b->shape[1];
}

static double no_flops(const void *args)
{
    (void)args;
    return 0;
}
static double linear_flops(const nl_linear_args *args)
{
    return product_flops(&args->y, &args->x);
}
static double data_flops(const nl_linear_backward_data_args *args)
{
    return product_flops(&args->dy, &args->dx);
}
static double weight_flops(const nl_linear_backward_weight_args *args)
{
    return product_flops(&args->dy, &args->x);
}

/* clang-format off */
#define FLOPS(args)                                                                                \
    _Generic(args,                                                                                 \
             const nl_linear_args *: linear_flops,                                                 \
             const nl_linear_backward_data_args *: data_flops,                                     \
             const nl_linear_backward_weight_args *: weight_flops,                                 \
             default: no_flops)(args)
#define NL_OPERATION(operation)                                                                    \
    static nl_status timed_##operation(nl_device *device, const nl_##operation##_args *args)       \
    {                                                                                              \
        nl_profile *profile = (nl_profile *)(uintptr_t)device->ops;                                \
        nl_operation_time *time = &profile->times[INDEX_##operation];                              \
        double start = nl_seconds();                                                               \
        nl_status status = profile->real->operation(device, args);                                 \
        if (status == NL_OK)                                                                       \
            status = profile->real->sync(device);                                                  \
        time->seconds += nl_seconds() - start;                                                     \
        time->flops += FLOPS(args);                                                                \
        time->calls++;                                                                             \
        return status;                                                                             \
    }
/* clang-format on */
NL_ALL_OPERATIONS(NL_OPERATION)
#undef NL_OPERATION

static void begin_profile(nl_device *device, nl_profile *profile)
{
    profile->real = device->ops;
    profile->table = *device->ops;
    profile->table.replay = NULL; /* every operation by itself */
#define NL_OPERATION(operation)                                                                    \
    profile->table.operation = timed_##operation;                                                  \
    profile->times[INDEX_##operation] = (nl_operation_time){.name = #operation};
    NL_ALL_OPERATIONS(NL_OPERATION)
#undef NL_OPERATION
    device->ops = &profile->table;
}

static int slowest_first(const void *a, const void *b)
{
    double first = ((const nl_operation_time *)a)->seconds;
    double second = ((const nl_operation_time *)b)->seconds;
    return (first < second) - (first > second);
}

static void print_profile(nl_trainer *trainer, nl_profile *profile, int steps, double seconds)
{
    double sum = 0, peak = nl_peak_flops(trainer->device);
    char rate[64];
    qsort(profile->times, OPERATIONS, sizeof(*profile->times), slowest_first);
    for (int i = 0; i < OPERATIONS; i++)
        sum += profile->times[i].seconds;
    nl_log(trainer->context, NL_LOG_INFO, "%-28s %10s %8s %7s  %s", "operation", "ms a step",
           "calls", "share", "TFLOP/s");
    for (int i = 0; i < OPERATIONS && profile->times[i].calls; i++) {
        const nl_operation_time *time = &profile->times[i];
        double flops = time->flops / time->seconds;
        rate[0] = '\0';
        if (flops > 0)
            snprintf(rate, sizeof(rate), peak > 0 ? "%.3g, %.0f %% of the peak" : "%.3g",
                     flops / 1e12, 100 * flops / peak);
        nl_log(trainer->context, NL_LOG_INFO, "%-28s %10.3f %8.1f %6.1f%%  %s", time->name,
               1e3 * time->seconds / steps, (double)time->calls / steps, 100 * time->seconds / sum,
               rate);
    }
    nl_log(trainer->context, NL_LOG_INFO,
           "%.3f ms a step in operations one by one; %.3f ms a step as they run together",
           1e3 * sum / steps, 1e3 * seconds);
}

nl_status nl_trainer_profile(nl_trainer *trainer)
{
    nl_status status = NL_OK;
    nl_device *device = trainer->device;
    double together = 0, alone;
    nl_profile *profile = NULL;
    NL_TRY(NL_NEW(trainer->context, "a profile", &profile));
    nl_trainer_match_now(trainer);
    NL_TRY(nl_trainer_time(trainer, WARM_UP, &together));
    int steps = together > 2 ? 1 : TIMED;
    NL_TRY(nl_trainer_time(trainer, steps, &together));
    begin_profile(device, profile);
    status = nl_trainer_time(trainer, steps, &alone);
    device->ops = profile->real;
    NL_TRY(status);
    print_profile(trainer, profile, steps, together);
cleanup:
    nl_free(trainer->context, profile);
    return status;
}
