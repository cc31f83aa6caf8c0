/* SPDX-License-Identifier: MIT */
/* Rows in F8: of the operations that write the input of a product. */
#ifndef NL_CPU_F8_H
#define NL_CPU_F8_H

#include "nl_cpu.h"
#include "nl_e4m3.h"

/* Row `row` of y, F8, from x [columns]. */
static inline void nl_cpu_put_f8(const nl_tensor *y, int64_t row, const float *x)
{
    uint8_t *to = (uint8_t *)y->data + row * y->row_stride;
    uint32_t largest = 0; /* as bits, which order numbers without a sign; NaN is above all */
    float inverse;
#pragma omp simd reduction(max : largest)
    for (int64_t i = 0; i < y->shape[1]; i++) {
        uint32_t magnitude = nl_bits_of_float(x[i]) & 0x7FFFFFFF;
        largest = magnitude > largest ? magnitude : largest;
    }
    y->scale[row] = nl_e4m3_scale(nl_float_of_bits(largest), &inverse);
#pragma omp simd
    for (int64_t i = 0; i < y->shape[1]; i++)
        to[i] = nl_float_to_e4m3(x[i] * inverse);
}

/* x [columns] from that. */
static inline void nl_cpu_get_f8(const nl_tensor *y, int64_t row, float *x)
{
    const uint8_t *from = (const uint8_t *)y->data + row * y->row_stride;
    const float scale = y->scale[row];
#pragma omp simd
    for (int64_t i = 0; i < y->shape[1]; i++)
        x[i] = scale * nl_e4m3_to_float(from[i]);
}

/* Where a thread puts row `row` of y before it is quantised: with F8 its own part of `room` [threads, columns],
 * otherwise y itself. */
static inline float *nl_cpu_row_before_f8(const nl_tensor *y, int64_t row, float *room)
{
    return room ? room + omp_get_thread_num() * y->shape[1] : nl_cpu_row_out(y, row);
}

/* *room for that; NULL where y is not F8. */
static inline nl_status nl_cpu_f8_room(nl_device *device, const nl_tensor *y, float **room)
{
    void *scratch = NULL;
    nl_status status = y->dtype == NL_F8
                           ? nl_cpu_scratch(device, device->threads * y->shape[1] * 4, &scratch)
                           : NL_OK;
    *room = scratch;
    return status;
}

#endif
