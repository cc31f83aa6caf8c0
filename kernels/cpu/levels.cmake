# The CPU back end is compiled once for each level of x86-64 vector instructions; dispatch.c takes
# the best one that the processor has. nl_cpu itself is the level `base`, the only one elsewhere.
include(CheckCCompilerFlag)

# Selects vectorise only when comparisons may not trap; NaN and infinity keep their meaning.
set(NL_CPU_FLAGS $<$<NOT:$<CONFIG:Debug>>:-O3> -ffp-contract=fast -fno-trapping-math)
# These promise the roundings of their reference.
set_source_files_properties(kernels/cpu/normal.c kernels/cpu/to_uint8.c PROPERTIES COMPILE_OPTIONS
    -ffp-contract=off)
target_compile_options(nl_cpu PRIVATE ${NL_CPU_FLAGS})
target_include_directories(nl_cpu PRIVATE ${NL_DNNL_INCLUDE})

check_c_compiler_flag("-march=x86-64-v4 -mprefer-vector-width=512" NL_CPU_HAS_LEVELS)
if(NL_CPU_HAS_LEVELS)
    target_compile_definitions(nl_cpu PRIVATE NL_CPU_HAS_LEVELS)
    file(GLOB sources CONFIGURE_DEPENDS kernels/cpu/*.c)
    list(FILTER sources EXCLUDE REGEX "/(dispatch|dnnl)\\.c$")
    foreach(level v3 v4)
        add_library(nl_cpu_${level} OBJECT ${sources})
        target_link_libraries(nl_cpu_${level} PRIVATE nl_flags nl_core nl_ops OpenMP::OpenMP_C)
        target_compile_definitions(nl_cpu_${level} PRIVATE NL_CPU_LEVEL=${level})
        target_compile_options(nl_cpu_${level} PRIVATE ${NL_CPU_FLAGS} -march=x86-64-${level})
        set_property(GLOBAL APPEND PROPERTY NL_COMPONENTS nl_cpu_${level})
    endforeach()
    target_compile_options(nl_cpu_v4 PRIVATE -mprefer-vector-width=512)
endif()
