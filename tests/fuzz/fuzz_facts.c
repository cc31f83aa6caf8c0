/* SPDX-License-Identifier: MIT */
/* What a picture says of itself, as `sample --from` takes it: the JSON of its text chunk, into options. */
#include "nl_fuzz.h"
#include "nl_json.h"
#include "nl_sample.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    nl_context *context = fuzz_context();
    int64_t used = context->memory_used;
    nl_texts texts = {.context = context};
    nl_sample_options options = nl_sample_defaults;
    cJSON *facts = NULL;
    nl_status status = nl_json_parse(context, "fuzz", (const char *)data, size, &facts);
    if (status == NL_OK)
        status = nl_options_from_picture(context, "/nowhere/fuzz.png", facts, &texts, &options);
    if (status == NL_OK)
        FUZZ_CHECK(options.task.first_index >= 0 && options.task.n >= 0);
    cJSON_Delete(facts);
    nl_texts_free(&texts);
    if (status == NL_ERROR_USAGE) /* a value out of an option's range */
        status = NL_ERROR_INPUT;
    fuzz_end(context, used, status);
    return 0;
}
