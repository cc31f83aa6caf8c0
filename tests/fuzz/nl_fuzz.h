/* SPDX-License-Identifier: MIT */
/* What the fuzz targets share. A target returns for every input; a broken promise ends it. */
#ifndef NL_FUZZ_H
#define NL_FUZZ_H

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "nl_core.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

#define FUZZ_CHECK(condition)                                                                      \
    do {                                                                                           \
        if (!(condition)) {                                                                        \
            fprintf(stderr, "%s:%d: %s does not hold\n", __FILE__, __LINE__, #condition);          \
            abort();                                                                               \
        }                                                                                          \
    } while (0)

static inline nl_context *fuzz_context(void)
{
    nl_context *context = NULL;
    nl_context_options options = {.max_memory = 64 << 20};
    FUZZ_CHECK(nl_core_context_create(&options, &context) == NL_OK);
    return context;
}

/* A failure says what is wrong and is never a defect of ours; nothing may be left allocated. */
static inline void fuzz_end(nl_context *context, int64_t used_before, nl_status status)
{
    FUZZ_CHECK(status == NL_OK || status == NL_ERROR_INPUT || status == NL_ERROR_MEMORY);
    FUZZ_CHECK(status == NL_OK || nl_last_error(context)[0]);
    FUZZ_CHECK(context->memory_used == used_before);
    nl_core_context_destroy(context);
}

#endif
