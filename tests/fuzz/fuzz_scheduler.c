/* SPDX-License-Identifier: MIT */
/* What a folder of diffusers says beside its tensors: config.json, scheduler_config.json and model_index.json, a byte 0xff
 * between them. What is taken is a configuration that can be printed and read again. */
#include "fuzz_files.h"
#include "nl_checkpoint.h"
#include "nl_config.h"
#include "params.h"

enum { TEXTS = 3 };

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    nl_context *context = fuzz_context();
    int64_t used = context->memory_used;
    char *names[TEXTS] = {"config.json", "scheduler_config.json", "model_index.json"};
    char *texts[TEXTS], *metadata[2 * TEXTS + 1] = {NULL}, *json = NULL;
    const char *said;
    nl_checkpoint checkpoint = {.context = context,
                                .path = "fuzz",
                                .metadata = metadata,
                                .spelling = nl_spelling_diffusers};
    nl_config config, again;
    nl_config_init(&config);
    nl_config_init(&again);
    FUZZ_CHECK(nl_config_from_name(context, "DiT-S/2", &config) == NL_OK);
    config.num_classes = 3;
    for (int i = 0, at = 0; i < TEXTS; i++) {
        size_t part;
        const uint8_t *text = fuzz_part(&data, &size, &part);
        FUZZ_CHECK((texts[i] = malloc(part + 1)));
        memcpy(texts[i], text, part);
        texts[i][part] = '\0';
        if (part) {
            metadata[at++] = names[i];
            metadata[at++] = texts[i];
        }
    }
    nl_status status = nl_config_hints(&checkpoint, &config, &said);
    if (status == NL_OK && nl_config_check(context, "fuzz", &config) == NL_OK) {
        FUZZ_CHECK(nl_config_print(context, &config, &json) == NL_OK);
        FUZZ_CHECK(nl_config_parse(context, "printed", json, strlen(json), &again) == NL_OK);
        FUZZ_CHECK(!nl_config_difference(&config, &again));
        nl_free(context, json);
    }
    for (int i = 0; i < TEXTS; i++)
        free(texts[i]);
    nl_config_free(context, &config);
    nl_config_free(context, &again);
    fuzz_end(context, used, status);
    return 0;
}
