/* SPDX-License-Identifier: MIT */
/* Checkpoints: what opens can be read, found by name, parted, and asked for its configuration. */
#include "nl_config.h"
#include "nl_fuzz.h"

static void read_all(nl_context *context, const nl_checkpoint *checkpoint)
{
    for (int64_t i = 0; i < checkpoint->count; i++) {
        const nl_entry *entry = &checkpoint->entries[i];
        FUZZ_CHECK(nl_checkpoint_find(checkpoint, entry->name) == entry);
        FUZZ_CHECK(i == 0 || strcmp(entry[-1].name, entry->name) < 0);
        float *values;
        int64_t count = nl_entry_count(entry);
        if (NL_NEW_ARRAY(context, "values", count, &values) != NL_OK)
            continue;
        nl_status status = nl_entry_read(checkpoint, entry, values);
        FUZZ_CHECK(status == NL_OK || status == NL_ERROR_INPUT);
        nl_free(context, values);
    }
    for (char **pair = checkpoint->metadata; pair && *pair; pair += 2)
        FUZZ_CHECK(nl_checkpoint_metadata(checkpoint, pair[0]) == pair[1]);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    nl_context *context = fuzz_context();
    int64_t used = context->memory_used;
    nl_checkpoint *checkpoint = NULL;
    nl_config config;
    nl_status status =
        nl_checkpoint_open_memory(context, "fuzz DiT", data, (int64_t)size, &checkpoint);
    FUZZ_CHECK((status == NL_OK) == (checkpoint != NULL));
    if (status == NL_OK) {
        int64_t checksums;
        read_all(context, checkpoint);
        nl_status verified = nl_checkpoint_verify(checkpoint, &checksums);
        FUZZ_CHECK(verified == NL_OK || (verified == NL_ERROR_INPUT && checksums > 0));
        int64_t count = checkpoint->count;
        if (nl_checkpoint_set_aside(checkpoint, NL_ONE_STEP_KEY) == NL_OK && checkpoint->beside) {
            read_all(context, checkpoint);
            read_all(context, checkpoint->beside);
            FUZZ_CHECK(checkpoint->count + checkpoint->beside->count == count);
        }
        status = nl_config_from_checkpoint(checkpoint, NULL, &config);
        if (status == NL_OK)
            FUZZ_CHECK(nl_config_check(context, "fuzz", &config) == NL_OK);
        nl_config_free(context, &config);
        nl_checkpoint_close(checkpoint);
    }
    fuzz_end(context, used, status);
    return 0;
}
