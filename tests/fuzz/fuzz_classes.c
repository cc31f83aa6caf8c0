/* SPDX-License-Identifier: MIT */
/* The names of classes in a text file, as `encode --class-names` reads it. */
#include "encode.h"
#include "nl_fuzz.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    static const char *const ids[] = {"n01440764", "a", "", "two words", "\xc3\xa9"};
    nl_mapping text = {.data = data, .size = (int64_t)size};
    for (int i = 0; i < NL_COUNT(ids); i++) {
        char name[16];
        const char *found = nl_class_name(&text, ids[i], name, sizeof(name));
        FUZZ_CHECK(found == ids[i] || (found == name && strlen(name) < sizeof(name)));
    }
    return 0;
}
