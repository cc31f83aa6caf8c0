/* SPDX-License-Identifier: MIT */
/* A line of `sample --requests`, or (first byte odd) the file of `train --options`: what is taken is in the ranges of the
 * options, and says the same when it is printed and read again. */
#include "nl_fuzz.h"
#include "nl_json.h"
#include "nl_sample.h"
#include "nl_training.h"

typedef union values {
    nl_sample_options sample;
    nl_train_values train;
} values;

static values defaults(bool train)
{
    values v;
    memset(&v, 0, sizeof(v));
    if (train)
        v.train = (nl_train_values){.command = &nl_train_command, .train = nl_train_defaults};
    else
        v.sample = nl_sample_defaults;
    return v;
}

/* What differs from the defaults, as text; allocated by cJSON. */
static char *print(const nl_command *command, const values *v, const values *from)
{
    cJSON *object = cJSON_CreateObject();
    FUZZ_CHECK(nl_options_to_json(command, v, from, NL_IN_REQUEST, object));
    char *text = cJSON_PrintUnformatted(object);
    cJSON_Delete(object);
    return text;
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    static const char *const own_keys[] = {"id", NULL};
    nl_context *context = fuzz_context();
    int64_t used = context->memory_used;
    nl_texts texts = {.context = context};
    cJSON *object = NULL, *second = NULL;
    nl_status status = NL_OK;
    if (size > 0) {
        bool train = data[0] & 1;
        const nl_command *command = train ? &nl_train_command : &nl_sample_command;
        const char *const *ignored = train ? NULL : own_keys;
        values from = defaults(train), v = from, again = from;
        status = nl_json_parse(context, "fuzz", (const char *)data + 1, size - 1, &object);
        if (status == NL_OK)
            status = nl_options_apply(context, command, "fuzz", object, NL_IN_REQUEST, ignored,
                                      &texts, &v);
        if (status == NL_OK) {
            char *text = print(command, &v, &from);
            FUZZ_CHECK(nl_json_parse(context, "printed", text, strlen(text), &second) == NL_OK);
            FUZZ_CHECK(nl_options_apply(context, command, "printed", second, NL_IN_REQUEST, NULL,
                                        &texts, &again) == NL_OK);
            char *same = print(command, &again, &from);
            FUZZ_CHECK(!strcmp(text, same));
            cJSON_free(text);
            cJSON_free(same);
        }
    }
    cJSON_Delete(object);
    cJSON_Delete(second);
    nl_texts_free(&texts);
    if (status == NL_ERROR_USAGE) /* a value out of an option's range */
        status = NL_ERROR_INPUT;
    fuzz_end(context, used, status);
    return 0;
}
