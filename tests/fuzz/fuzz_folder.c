/* SPDX-License-Identifier: MIT */
/* A folder as diffusers writes it: config.json, the index, and a file that stands for both parts, a byte 0xff between
 * them. */
#include "fuzz_files.h"
#include "nl_checkpoint.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    static const char *const names[] = {"config.json",
                                        "diffusion_pytorch_model.safetensors.index.json",
                                        "diffusion_pytorch_model-00001-of-00002.safetensors",
                                        "diffusion_pytorch_model-00002-of-00002.safetensors"};
    nl_context *context = fuzz_context();
    int64_t used = context->memory_used;
    nl_checkpoint *folder = NULL;
    char path[256];
    size_t part;
    for (int i = 0; i < 2; i++) {
        const uint8_t *text = fuzz_part(&data, &size, &part);
        fuzz_write(names[i], text, part);
    }
    fuzz_write(names[2], data, size);
    fuzz_write(names[3], data, size);
    nl_status status = nl_checkpoint_open(context, fuzz_path("", path), &folder);
    if (status == NL_OK) {
        for (int64_t i = 0; i < folder->count; i++)
            FUZZ_CHECK(nl_checkpoint_find(folder, folder->entries[i].name));
        (void)nl_checkpoint_metadata(folder, "config.json");
        nl_checkpoint_close(folder);
    }
    fuzz_end(context, used, status);
    return 0;
}
