/* SPDX-License-Identifier: MIT */
/* Configurations: what is accepted is in range; printing and reading it again changes nothing. */
#include "nl_config.h"
#include "nl_fuzz.h"

static void round_trip(nl_context *context, const nl_config *config)
{
    char *json = NULL, *again = NULL;
    nl_config second;
    nl_config_init(&second);
    FUZZ_CHECK(nl_config_print(context, config, &json) == NL_OK);
    FUZZ_CHECK(nl_config_parse(context, "printed", json, strlen(json), &second) == NL_OK);
    FUZZ_CHECK(nl_config_print(context, &second, &again) == NL_OK);
    FUZZ_CHECK(strcmp(json, again) == 0);
    nl_free(context, json);
    nl_free(context, again);
    nl_config_free(context, &second);
}

static void look_up(nl_context *context, const nl_config *config)
{
    nl_class_index *names = NULL;
    if (nl_class_index_create(context, config, &names) != NL_OK)
        return;
    for (int i = 0; config->class_names && i < NL_MIN(config->num_classes, 8); i++) {
        const nl_class_name *name = &config->class_names[i];
        const char *texts[] = {name->wnid, name->name};
        for (int j = 0; j < 2; j++) {
            int index = -1;
            if (texts[j] && nl_config_class(context, config, names, texts[j], &index) == NL_OK)
                FUZZ_CHECK(index >= 0 && index <= config->num_classes);
        }
    }
    nl_class_index_free(context, names);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    nl_context *context = fuzz_context();
    int64_t used = context->memory_used;
    nl_config config;
    char name[64];
    nl_config_init(&config);
    nl_status status = nl_config_parse(context, "fuzz", (const char *)data, size, &config);
    if (status == NL_OK) {
        FUZZ_CHECK(nl_config_check(context, "fuzz", &config) == NL_OK);
        FUZZ_CHECK(nl_config_tokens(&config) > 0);
        nl_config_name(&config, name, sizeof(name));
        round_trip(context, &config);
        look_up(context, &config);
    }
    nl_config_free(context, &config);
    fuzz_end(context, used, status);
    return 0;
}
