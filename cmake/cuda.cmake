# SPDX-License-Identifier: MIT
# The CUDA back end: kernels/cuda and its folders, with cuDNN for convolutions where it is found (otherwise products over gathered
# patches). cudart is linked statically, cuDNN is found again at run time where it was found now, cuBLASLt is loaded when
# it is first wanted; a driver is needed only when a GPU is asked for.
#
# Without CMAKE_CUDA_ARCHITECTURES there is code for every kind of card since compute capability 8.0 that the toolkit knows, and
# PTX of the newest for those to come. ./nalagen names the cards of this machine.
set(all_cards OFF)
if(NOT DEFINED CMAKE_CUDA_ARCHITECTURES)
    set(all_cards ON)
    set(CMAKE_CUDA_ARCHITECTURES 80)
endif()
set(CMAKE_CUDA_STANDARD 17)
set(CMAKE_CUDA_RUNTIME_LIBRARY Static)
if(NL_CCACHE)
    set(CMAKE_CUDA_COMPILER_LAUNCHER ${NL_CCACHE})
endif()
enable_language(CUDA)
if(all_cards)
    set(CMAKE_CUDA_ARCHITECTURES)
    foreach(card 80:11.0 86:11.1 89:11.8 90:11.8 100:12.8 120:12.8) # known since
        string(REPLACE ":" ";" card ${card})
        list(GET card 0 capability)
        list(GET card 1 since)
        if(CMAKE_CUDA_COMPILER_VERSION VERSION_GREATER_EQUAL since)
            list(APPEND CMAKE_CUDA_ARCHITECTURES ${capability}-real)
            set(newest ${capability}-virtual)
        endif()
    endforeach()
    list(APPEND CMAKE_CUDA_ARCHITECTURES ${newest})
    message(STATUS "CUDA for ${CMAKE_CUDA_ARCHITECTURES}")
endif()
find_package(CUDAToolkit REQUIRED)
option(NL_CUDNN "Convolutions through cuDNN" ON)
find_path(NL_CUDNN_INCLUDE cudnn.h HINTS ${CUDAToolkit_INCLUDE_DIRS} ENV CUDNN_PATH PATH_SUFFIXES include)
find_library(NL_CUDNN_LIBRARY cudnn HINTS ${CUDAToolkit_LIBRARY_DIR} ENV CUDNN_PATH PATH_SUFFIXES lib lib64)

file(GLOB_RECURSE cuda_sources CONFIGURE_DEPENDS kernels/cuda/*.cu)
set(sm90_sources ${cuda_sources})
list(FILTER cuda_sources EXCLUDE REGEX "_sm90\\.cu$")
list(FILTER sm90_sources INCLUDE REGEX "_sm90\\.cu$")
add_library(nl_cuda OBJECT ${cuda_sources})
target_include_directories(nl_cuda PRIVATE kernels/cuda)
target_compile_options(nl_cuda PRIVATE $<$<COMPILE_LANGUAGE:CUDA>:-Xcompiler=-Wall --expt-relaxed-constexpr>)
target_link_libraries(nl_cuda PRIVATE nl_core nl_ops CUDA::cudart_static)
find_library(NL_CUBLASLT_LIBRARY cublasLt HINTS ${CUDAToolkit_LIBRARY_DIR} REQUIRED)
# Its functions have the library's names: nobody else is to find them in ours.
set_source_files_properties(kernels/cuda/product/cublaslt.cu PROPERTIES COMPILE_OPTIONS -Xcompiler=-fvisibility=hidden
    COMPILE_DEFINITIONS NL_CUBLASLT="${NL_CUBLASLT_LIBRARY}")
target_compile_definitions(nl_device PRIVATE NL_CUDA)
target_compile_definitions(nl_train PRIVATE NL_CUDA)
set(NL_CUDA_LIBRARIES CUDA::cudart_static stdc++ ${CMAKE_DL_LIBS})
if(NL_CUDNN AND NL_CUDNN_INCLUDE AND NL_CUDNN_LIBRARY)
    target_compile_definitions(nl_cuda PRIVATE NL_CUDNN)
    target_include_directories(nl_cuda PRIVATE ${NL_CUDNN_INCLUDE})
    list(APPEND NL_CUDA_LIBRARIES ${NL_CUDNN_LIBRARY})
else()
    message(STATUS "cuDNN not found: convolutions run as matrix products")
endif()

option(NL_NCCL "Training on several GPUs through NCCL" ON)
find_path(NL_NCCL_INCLUDE nccl.h HINTS ${CUDAToolkit_INCLUDE_DIRS} ENV NCCL_PATH PATH_SUFFIXES include)
find_library(NL_NCCL_LIBRARY nccl HINTS ${CUDAToolkit_LIBRARY_DIR} ENV NCCL_PATH PATH_SUFFIXES lib lib64)
if(NL_NCCL AND NL_NCCL_INCLUDE AND NL_NCCL_LIBRARY)
    # Loaded when several GPUs train, not linked.
    set_source_files_properties(kernels/cuda/nccl.cu PROPERTIES COMPILE_DEFINITIONS
        NL_NCCL="${NL_NCCL_LIBRARY}" INCLUDE_DIRECTORIES ${NL_NCCL_INCLUDE})
else()
    message(STATUS "NCCL not found: one GPU trains")
endif()

# Kernels of instructions that Hopper alone has, NAME_sm90.cu, whatever the list of architectures; chosen when running.
add_library(nl_cuda_sm90 OBJECT ${sm90_sources})
set_target_properties(nl_cuda_sm90 PROPERTIES CUDA_ARCHITECTURES 90a-real)
target_include_directories(nl_cuda_sm90 PRIVATE kernels/cuda)
target_link_libraries(nl_cuda_sm90 PRIVATE nl_core nl_ops CUDA::cudart_static)
set_property(GLOBAL APPEND PROPERTY NL_COMPONENTS nl_cuda nl_cuda_sm90)
