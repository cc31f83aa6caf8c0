/* SPDX-License-Identifier: MIT */
/* The names of classes in a text file, as `encode --class-names` reads it. */
#include "encode.h"
#include "nl_fuzz.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    static char *ids[] = {"n01440764", "a", "", "two words", "\xc3\xa9", "two"};
    nl_context *context = fuzz_context();
    int64_t used = context->memory_used;
    char *names[NL_COUNT(ids)] = {NULL};
    nl_source source = {.context = context, .classes = NL_COUNT(ids), .class_ids = ids};
    nl_encode_options options = {.class_names = "fuzz"};
    nl_encode_job job = {.context = context, .options = &options, .source = &source};
    nl_status status = nl_class_names_parse(&job, (const char *)data, size, names);
    for (int i = 0; i < NL_COUNT(ids); i++) {
        FUZZ_CHECK(!names[i] || (names[i][0] && strlen(names[i]) <= size));
        nl_free(context, names[i]);
    }
    fuzz_end(context, used, status);
    return 0;
}
