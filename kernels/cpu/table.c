/* SPDX-License-Identifier: MIT */
/* The operations of one level; memory is dispatch.c's. */
#include "nl_cpu.h"

const nl_ops NL_CPU(ops) = {.name = "cpu",
#define NL_OPERATION(operation) .operation = NL_ENTRY(NL_CPU_LACKS_##operation, NL_CPU(operation)),
                            NL_ALL_OPERATIONS(NL_OPERATION)
#undef NL_OPERATION
};
