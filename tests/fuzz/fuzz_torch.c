/* SPDX-License-Identifier: MIT */
/* Checkpoints of torch: what opens can be read to the last element, renamed, and asked what it is. */
#include "nl_dit.h"
#include "nl_fuzz.h"
#include "nl_vae.h"

static void read_all(nl_context *context, const nl_checkpoint *checkpoint)
{
    for (int64_t i = 0; i < checkpoint->count; i++) {
        const nl_entry *entry = &checkpoint->entries[i];
        FUZZ_CHECK(nl_checkpoint_find(checkpoint, entry->name) == entry);
        void *values;
        int64_t count = nl_entry_count(entry);
        if (NL_NEW_SIZED(context, "values", count, sizeof(double), &values) != NL_OK)
            continue; /* a view may repeat one number without end */
        nl_status status = nl_entry_read(checkpoint, entry, values);
        FUZZ_CHECK(status == NL_OK || status == NL_ERROR_INPUT);
        if (!entry->part_count)
            nl_entry_copy(entry, values);
        nl_free(context, values);
    }
    for (char **pair = checkpoint->metadata; *pair; pair += 2)
        FUZZ_CHECK(strlen(pair[1]) < 8192);
}

static void ask(nl_context *context, const nl_checkpoint *checkpoint)
{
    nl_config config;
    nl_vae_kind kind;
    int64_t parameters;
    if (nl_config_from_checkpoint(checkpoint, NULL, &config) == NL_OK) {
        FUZZ_CHECK(nl_config_check(context, "fuzz", &config) == NL_OK);
        if (nl_dit_fits(checkpoint, &config, &parameters) == NL_OK)
            FUZZ_CHECK(parameters > 0);
        nl_config_free(context, &config);
    }
    if (nl_vae_recognizes(checkpoint) && nl_vae_fits(checkpoint, NULL, &kind, &parameters) == NL_OK)
        FUZZ_CHECK(parameters > 0);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    nl_context *context = fuzz_context();
    int64_t used = context->memory_used;
    nl_checkpoint *checkpoint = NULL;
    nl_status status = nl_checkpoint_open_memory(context, "fuzz", data, (int64_t)size, &checkpoint);
    FUZZ_CHECK((status == NL_OK) == (checkpoint != NULL));
    if (status == NL_OK) {
        read_all(context, checkpoint);
        status = nl_dit_rename(checkpoint);
        if (status == NL_OK) {
            read_all(context, checkpoint);
            ask(context, checkpoint);
        }
        nl_checkpoint_close(checkpoint);
    }
    fuzz_end(context, used, status);
    return 0;
}
