/* SPDX-License-Identifier: MIT */
/* Elements of feature maps, F32 or BF16: `half` says which, a constant to the compiler. */
#ifndef NL_CPU_FEATURE_MAPS_H
#define NL_CPU_FEATURE_MAPS_H

#include "nl_cpu.h"
#include "vector.h"
#include "vector_math.h"

NL_INLINE float nl_get_element(bool half, const void *data, int64_t i)
{
    return half ? nlv_from_bf16(((const uint16_t *)data)[i]) : ((const float *)data)[i];
}

NL_INLINE void nl_put_element(bool half, void *data, int64_t i, float value)
{
    if (half)
        ((uint16_t *)data)[i] = nlv_to_bf16(value);
    else
        ((float *)data)[i] = value;
}

/* Whether a convolution is one of 3 x 3 at every pixel, with a border of one. */
static inline bool nl_every_3x3(const nl_conv2d_args *a)
{
    return a->weight.shape[2] == 3 && a->weight.shape[3] == 3 && a->stride == 1 &&
           a->pad_top == 1 && a->pad_left == 1 && a->pad_bottom == 1 && a->pad_right == 1;
}

/* function(half, ...) with half a constant. Not around a parallel region: the compiler takes that out before it looks. */
#define NL_FOR_HALF(half, function, ...)                                                           \
    ((half) ? function(true, __VA_ARGS__) : function(false, __VA_ARGS__))

#endif
