/* SPDX-License-Identifier: MIT */
/* dataset.json as EDM writes it, beside four pictures: every one of them gets a class, or the file is refused. */
#include "fuzz_files.h"
#include "source.h"

static void make_pictures(void)
{
    static const char *const names[] = {"00000/img00000000.png", "00000/img00000001.png", "a.png",
                                        "b.png"};
    static bool made;
    char path[256];
    if (made)
        return;
    FUZZ_CHECK(mkdir(fuzz_path("00000", path), 0700) == 0);
    for (int i = 0; i < NL_COUNT(names); i++)
        fuzz_write(names[i], "\x89PNG\r\n\x1a\n", 8);
    made = true;
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    nl_context *context = fuzz_context();
    int64_t used = context->memory_used;
    nl_source *source = NULL;
    char path[256], hex[65], stamps[65];
    make_pictures();
    fuzz_write("dataset.json", data, size);
    nl_status status =
        nl_source_open(context, fuzz_path("", path), &(nl_source_options){0}, &source);
    if (status == NL_OK) {
        FUZZ_CHECK(source->count == 4 && source->classes >= 1);
        for (int i = 0; i < 4; i++)
            FUZZ_CHECK(source->pictures[i].label >= 0 &&
                       source->pictures[i].label < source->classes);
        FUZZ_CHECK(nl_source_sha256(source, hex, stamps) == NL_OK);
    }
    nl_source_close(source);
    fuzz_end(context, used, status);
    return 0;
}
