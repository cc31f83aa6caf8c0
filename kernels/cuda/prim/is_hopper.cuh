/* SPDX-License-Identifier: MIT */
/* Whether a device is what the files *_sm90.cu are written for: Hopper, with all of its shared memory. */
#ifndef NL_CUDA_PRIM_IS_HOPPER_CUH
#define NL_CUDA_PRIM_IS_HOPPER_CUH

#include "shared_limit.cuh"

inline bool nl_is_hopper(int device)
{
    int major = 0;
    return cudaDeviceGetAttribute(&major, cudaDevAttrComputeCapabilityMajor, device) ==
               cudaSuccess &&
           major == 9 && nl_shared_limit() >= 227 << 10;
}

#endif
