/* SPDX-License-Identifier: MIT */
/* Whether a state holds NaN or infinity. */
#include "nl_cpu.h"
#include "vector_math.h"

/* Infinity and NaN have the exponent 0xff, which is looked for in the bits. */
nl_status NL_CPU(finite)(nl_device *device, const nl_finite_args *args)
{
    int64_t count = nl_tensor_count(&args->x);
    const float *x = args->x.data;
    uint32_t largest = 0;
#pragma omp parallel for simd num_threads(nl_cpu_team(device, count)) reduction(max : largest)
    for (int64_t i = 0; i < count; i++) {
        uint32_t magnitude = nlv_bits(x[i]) & 0x7fffffff;
        largest = magnitude > largest ? magnitude : largest;
    }
    int32_t *found = args->found.data;
    if (largest >= 0x7f800000 && *found == 0)
        *found = args->mark;
    return NL_OK;
}
