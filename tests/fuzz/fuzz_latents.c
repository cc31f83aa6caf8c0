/* SPDX-License-Identifier: MIT */
/* Latents of other programs: REPA's dataset.json and one array, or (first byte odd) fast-DiT's array and label, split at the
 * first byte 0xff of the input. */
#include "encode.h"
#include "fuzz_files.h"

static void make_folders(void)
{
    static bool made;
    char path[256];
    if (made)
        return;
    FUZZ_CHECK(mkdir(fuzz_path("fast", path), 0700) == 0);
    FUZZ_CHECK(mkdir(fuzz_path("fast/x_features", path), 0700) == 0);
    FUZZ_CHECK(mkdir(fuzz_path("fast/x_labels", path), 0700) == 0);
    FUZZ_CHECK(mkdir(fuzz_path("repa", path), 0700) == 0);
    made = true;
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    nl_context *context = fuzz_context();
    int64_t used = context->memory_used;
    char source[256], out[256];
    bool found = false;
    size_t part;
    if (size < 2) {
        nl_core_context_destroy(context);
        return 0;
    }
    make_folders();
    bool fast = data[0] & 1;
    data++, size--;
    const uint8_t *first = fuzz_part(&data, &size, &part);
    fuzz_write(fast ? "fast/x_labels/0.npy" : "repa/dataset.json", first, part);
    fuzz_write(fast ? "fast/x_features/0.npy" : "repa/0.npy", data, size);
    nl_encode_options options = {.source = fuzz_path(fast ? "fast" : "repa", source),
                                 .out = fuzz_path("out", out),
                                 .force = true};
    nl_encode_result result = {0};
    nl_status status = nl_encode_latents(context, &options, &result, &found);
    FUZZ_CHECK(status != NL_OK || !found || result.count > 0);
    fuzz_remove("out/dataset.json");
    fuzz_remove("out/shard-00000.safetensors");
    fuzz_end(context, used, status);
    return 0;
}
