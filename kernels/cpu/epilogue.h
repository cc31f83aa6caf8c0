/* The epilogue of a product and its derivative, over a run of elements. */
#ifndef NL_CPU_EPILOGUE_H
#define NL_CPU_EPILOGUE_H

#include "ops.h"
#include "slope.h"

/* y [count] = epilogue(x); y may be x. */
static inline void nl_apply_epilogue(nl_epilogue epilogue, const float *x, int64_t count, float *y)
{
    switch (epilogue) {
    case NL_EPILOGUE_NONE:
#pragma omp simd
        for (int64_t i = 0; i < count; i++)
            y[i] = x[i];
        break;
    case NL_EPILOGUE_GELU_TANH:
#pragma omp simd
        for (int64_t i = 0; i < count; i++)
            y[i] = nlv_gelu_tanh(x[i]);
        break;
    case NL_EPILOGUE_SILU:
#pragma omp simd
        for (int64_t i = 0; i < count; i++)
            y[i] = nlv_silu(x[i]);
        break;
    }
}

/* dx [count] times the slope of the epilogue at x. */
static inline void nl_apply_epilogue_slope(nl_epilogue epilogue, const float *x, int64_t count,
                                           float *dx)
{
    switch (epilogue) {
    case NL_EPILOGUE_NONE:
        break;
    case NL_EPILOGUE_GELU_TANH:
#pragma omp simd
        for (int64_t i = 0; i < count; i++)
            dx[i] *= nlv_gelu_tanh_slope(x[i]);
        break;
    case NL_EPILOGUE_SILU:
#pragma omp simd
        for (int64_t i = 0; i < count; i++)
            dx[i] *= nlv_silu_slope(x[i]);
        break;
    }
}

#endif
