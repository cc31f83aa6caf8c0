# SPDX-License-Identifier: MIT
# The CPU back end is compiled once for each level of x86-64 vector instructions; dispatch.c takes
# the best one that the processor has. nl_cpu itself is the level `base`, the only one elsewhere.
include(CheckCCompilerFlag)

target_include_directories(nl_cpu PRIVATE ${NL_DNNL_INCLUDE})
file(GLOB sources CONFIGURE_DEPENDS kernels/cpu/*.c)

# Selects vectorise only when comparisons may not trap; NaN and infinity keep their meaning. Options
# of sources come after nl_flags and so may allow fused multiply-adds again, but for the two files
# that promise the roundings of their reference.
set_source_files_properties(${sources} PROPERTIES COMPILE_OPTIONS
    "$<$<NOT:$<CONFIG:Debug>>:-O3>;-fno-trapping-math;-ffp-contract=fast")
set_source_files_properties(${CMAKE_SOURCE_DIR}/kernels/cpu/normal.c
    ${CMAKE_SOURCE_DIR}/kernels/cpu/to_uint8.c PROPERTIES COMPILE_OPTIONS
    "$<$<NOT:$<CONFIG:Debug>>:-O3>;-fno-trapping-math;-ffp-contract=off")

check_c_compiler_flag("-march=x86-64-v4 -mprefer-vector-width=512" NL_CPU_HAS_LEVELS)
if(NL_CPU_HAS_LEVELS)
    target_compile_definitions(nl_cpu PRIVATE NL_CPU_HAS_LEVELS)
    list(FILTER sources EXCLUDE REGEX "/(arranged|dispatch|dnnl)\\.c$")
    foreach(level v3 v4)
        add_library(nl_cpu_${level} OBJECT ${sources})
        target_link_libraries(nl_cpu_${level} PRIVATE nl_flags nl_core nl_ops OpenMP::OpenMP_C)
        target_compile_definitions(nl_cpu_${level} PRIVATE NL_CPU_LEVEL=${level})
        target_compile_options(nl_cpu_${level} PRIVATE -march=x86-64-${level})
        set_property(GLOBAL APPEND PROPERTY NL_COMPONENTS nl_cpu_${level})
    endforeach()
    target_compile_options(nl_cpu_v4 PRIVATE -mprefer-vector-width=512)
endif()
