/* SPDX-License-Identifier: MIT */
/* The driver's function that describes tensors for TMA. It cannot be linked: a build with CUDA runs without a driver. */
#ifndef NL_CUDA_TENSOR_MAP_CUH
#define NL_CUDA_TENSOR_MAP_CUH

#include <cuda.h>
#include <cuda_runtime.h>

namespace nl_hopper
{

typedef decltype(&cuTensorMapEncodeTiled) tensor_map_encoder;

/* NULL where the driver has none. */
inline tensor_map_encoder find_tensor_map_encoder()
{
    void *function = NULL;
    cudaDriverEntryPointQueryResult result;
#if CUDART_VERSION >= 12050
    const cudaError_t error = cudaGetDriverEntryPointByVersion("cuTensorMapEncodeTiled", &function,
                                                               12000, cudaEnableDefault, &result);
#else
    const cudaError_t error =
        cudaGetDriverEntryPoint("cuTensorMapEncodeTiled", &function, cudaEnableDefault, &result);
#endif
    (void)cudaGetLastError();
    return error == cudaSuccess && result == cudaDriverEntryPointSuccess
               ? (tensor_map_encoder)function
               : NULL;
}

} // namespace nl_hopper

#endif
